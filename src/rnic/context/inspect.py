"""Contexts as host memory and the cache have them, side by side, for people and tools."""

from __future__ import annotations

from rnic.context.cqc import CQC
from rnic.context.ctxmdata import CQ, EQ
from rnic.context.ctxmgt import ContextManager, Status
from rnic.context.eqc import EQC
from rnic.context.qpc import QPC
from rnic.spec.layout import Layout

Row = dict[str, str | int | bool | None]
"""``field``, ``host``, ``cache``, ``differs``; a value is ``None`` where that side does not hold it."""


def _rows(layout: Layout, host: bytes | None, cache: dict[str, int]) -> list[Row]:
    rows: list[Row] = []
    for field in layout.fields:
        there = None if host is None else layout.get(host, field.name)
        here = cache.get(field.name)
        differs = there is not None and here is not None and there != here
        rows.append({"field": field.name, "host": there, "cache": here, "differs": differs})
    return rows


def qp(contexts: ContextManager, qpn: int) -> list[Row]:
    """One row for each field of the QPC; nothing is flushed first, so what is still to be written back differs."""
    status, data = contexts.read_qp(qpn)
    ctx = contexts.key.qps.get(qpn)
    cache = {} if ctx is None else {field.name: getattr(ctx, field.name) for field in QPC.fields}
    return _rows(QPC, data if status == Status.OK else None, cache)


def cq(contexts: ContextManager, cqn: int, live: dict[str, int] | None = None) -> list[Row]:
    """One row for each field of the CQC; ``live`` is what the NIC itself keeps of it, beside the key data."""
    key = contexts.key.cqs.get(cqn)
    cache = {} if live is None else dict(live)
    cache = ({} if key is None else key.values()) | cache
    return _rows(CQC, contexts.peek(CQ, cqn), cache)


def eq(contexts: ContextManager, eqn: int) -> list[Row]:
    """One row for each field of the EQC."""
    key = contexts.key.eqs.get(eqn)
    cache = {} if key is None else key.values()
    return _rows(EQC, contexts.peek(EQ, eqn), cache)
