"""The first record of a NIC's arena (:data:`rnic.state.device.DEVICE`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.state.device import DEVICE
from rnic.state.record import Word, view

if TYPE_CHECKING:
    from rnic.context.key_qpc_data import KeyQpcData
    from rnic.mem.table import MemoryTable
    from rnic.state.arena import Arena
    from rnic.state.device import Directory


@view(DEVICE)
class Root:
    """Where everything lies in ``arena``, of which nothing is in use yet: it is at the start."""

    __slots__ = ("words",)

    keys: Word
    max_keys: Word
    log_qps: Word
    log_eqs: Word
    qp_contexts: Word
    cqs: Word
    eqs: Word
    directory: Word

    def __init__(self, arena: Arena) -> None:
        at = arena.allocate_first(DEVICE.size)
        self.words = arena.words(at, DEVICE.size)

    def show(self, memory: MemoryTable, key: KeyQpcData, directory: Directory) -> None:
        """Say where the tables are."""
        self.keys, self.max_keys = memory.place, memory.max_entries
        self.log_qps, self.log_eqs = key.qps.log, key.eqs.log
        self.qp_contexts, self.cqs, self.eqs = key.qps.place, key.cqs.place, key.eqs.place
        self.directory = directory.place
