"""Compare contexts in host memory with the cache, for users and tools."""

from __future__ import annotations

from rnic.context.cqc import CQC
from rnic.context.ctxmdata import CQ, EQ
from rnic.context.ctxmgt import ContextManager, Status
from rnic.context.eqc import EQC
from rnic.context.qpc import QPC
from rnic.spec.layout import Layout

Row = dict[str, str | int | bool | None]
"""``field``, ``host``, ``cache``, ``differs``; a value is ``None`` if that side does not have it."""


def _rows(layout: Layout, host: bytes | None, cache: dict[str, int]) -> list[Row]:
    rows: list[Row] = []
    for field in layout.fields:
        there = None if host is None else layout.get(host, field.name)
        here = cache.get(field.name)
        differs = there is not None and here is not None and there != here
        rows.append({"field": field.name, "host": there, "cache": here, "differs": differs})
    return rows


def qp(contexts: ContextManager, qpn: int) -> list[Row]:
    """Return one row per field of the QPC. Nothing is flushed first, so fields that are not written back yet differ."""
    status, data = contexts.read_qp(qpn)
    ctx = contexts.key.qps.get(qpn)
    cache = {} if ctx is None else {field.name: getattr(ctx, field.name) for field in QPC.fields}
    return _rows(QPC, data if status == Status.OK else None, cache)


def cq(contexts: ContextManager, cqn: int, live: dict[str, int] | None = None) -> list[Row]:
    """Return one row per field of the CQC; ``live`` holds fields that the NIC keeps outside the key data."""
    key = contexts.key.cqs.get(cqn)
    cache = {} if live is None else dict(live)
    cache = ({} if key is None else key.values()) | cache
    return _rows(CQC, contexts.peek(CQ, cqn), cache)


def eq(contexts: ContextManager, eqn: int) -> list[Row]:
    """Return one row per field of the EQC."""
    key = contexts.key.eqs.get(eqn)
    cache = {} if key is None else key.values()
    return _rows(EQC, contexts.peek(EQ, eqn), cache)
