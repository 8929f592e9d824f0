"""The first record of a NIC's arena (:data:`rnic.state.device.DEVICE`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.state.device import DEVICE
from rnic.state.record import Word, view

if TYPE_CHECKING:
    from rnic.device.host import RootHost
    from rnic.state.arena import Arena


@view(DEVICE)
class Root:
    """Offsets of all tables in ``arena``; the record is at its start, so it must be allocated first."""

    __slots__ = ("words",)

    keys: Word
    max_keys: Word
    log_qps: Word
    log_eqs: Word
    qp_contexts: Word
    cqs: Word
    eqs: Word
    directory: Word
    timers: Word
    scheduler: Word
    inflight: Word

    def __init__(self, arena: Arena) -> None:
        at = arena.allocate_first(DEVICE.size)
        self.words = arena.words(at, DEVICE.size)

    def show(self, nic: RootHost) -> None:
        """Store the offsets of the tables."""
        key = nic.contexts.key
        self.keys, self.max_keys = nic.memory.place, nic.memory.max_entries
        self.log_qps, self.log_eqs = key.qps.log, key.eqs.log
        self.qp_contexts, self.cqs, self.eqs = key.qps.place, key.cqs.place, key.eqs.place
        self.directory = nic.directory.place
        self.timers, self.scheduler = nic.timers.record, nic.sending.scheduler.record
        self.inflight = nic.inflight.record
