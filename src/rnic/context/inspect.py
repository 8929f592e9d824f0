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


def _peek(contexts: ContextManager, kind: str, number: int, layout: Layout) -> bytes | None:
    """A context's bytes through the metadata; 002 has no message that reads CQCs and EQCs back."""
    place = contexts.ctxmdata.tables[kind].locate(number)
    data = bytearray(layout.size)
    return bytes(data) if place is not None and place.port.read(place.addr, data) else None


def cq(contexts: ContextManager, cqn: int, live: dict[str, int] | None = None) -> list[Row]:
    """One row for each field of the CQC; ``live`` is what the NIC itself keeps of it, beside the key data."""
    key = contexts.key.cqs.get(cqn)
    cache = {} if live is None else dict(live)
    cache |= {} if key is None else {name: getattr(key, name) for name in ("logsize", "comp_eqn", "pd", "lkey")}
    return _rows(CQC, _peek(contexts, CQ, cqn, CQC), cache)


def eq(contexts: ContextManager, eqn: int) -> list[Row]:
    """One row for each field of the EQC."""
    key = contexts.key.eqs.get(eqn)
    names = ("logsize", "msix_vector", "pd", "lkey", "event_mask")
    cache = {} if key is None else {name: getattr(key, name) for name in names}
    return _rows(EQC, _peek(contexts, EQ, eqn, EQC), cache)
