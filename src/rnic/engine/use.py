"""Decide whether to use the engine: only if it was compiled from the current tables.

``RNIC_ENGINE=0`` selects the reference; ``RNIC_PLAIN=1`` selects plain Python everywhere.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from rnic.engine.header import layout_hash
from rnic.spec.limits import GO_BACK_N
from rnic.spec.twins import compiled_twin, in_use

if TYPE_CHECKING:
    from rnic.engine import _engine
    from rnic.mem.table import MemoryTable
    from rnic.mem.tlb import Tlb
    from rnic.state.arena import Arena
    from rnic.transport.host import TransportConfig

_NAME = "rnic.engine"


class Engine(Protocol):
    """Interface of the compiled module, whose types are in ``_engine.pyi``."""

    BypassDriver: type[_engine.BypassDriver]
    CompletionRing: type[_engine.CompletionRing]
    Device: type[_engine.Device]
    DeviceLock: type[_engine.DeviceLock]
    Executor: type[_engine.Executor]
    IoPoll: type[_engine.IoPoll]
    Loop: type[_engine.Loop]
    Loopback: type[_engine.Loopback]
    ReceiveQueue: type[_engine.ReceiveQueue]
    SendQueue: type[_engine.SendQueue]
    Shared: type[_engine.Shared]
    TransferQueue: type[_engine.TransferQueue]

    def sleep_while_active(
        self, epoll: int, views: list[memoryview], every_ms: int, most_ns: int
    ) -> tuple[bool, list[int]]:
        """Sleep while all words keep changing."""

    def use_tlb(self, tlb: Tlb, number: int, va: int, length: int, need: int, lock: Any = None) -> int:
        """Look a range up in a TLB."""

    def insert_tlb(self, tlb: Tlb, number: int, first: int, pages: int, rights: int) -> int:
        """Insert pages into a TLB."""


if TYPE_CHECKING:
    _module: Engine = _engine  # mypy checks that they agree

LAYOUT = layout_hash()
"""Layout hash of this process's tables, which takes milliseconds to compute."""


def compiled(plain: str, name: str) -> Any:
    """Return the compiled module ``name`` for ``plain``; ``None`` if it is missing or was compiled from other
    tables."""
    module = compiled_twin(plain, name)
    if module is not None and module.layout_hash() != LAYOUT:
        in_use[plain] = False
        return None  # compiled from other tables: its field offsets are wrong
    return module


COMPILED: Engine | None = compiled(_NAME, "rnic.engine._engine")
"""The compiled engine, or ``None``."""

ENGINE: Engine | None = None if os.environ.get("RNIC_ENGINE") == "0" else COMPILED
"""The engine that devices use, or ``None``."""

in_use[_NAME] = ENGINE is not None


def engine() -> Engine:
    """Return the engine, for callers with a device that uses it."""
    assert ENGINE is not None
    return ENGINE


def shared(arena: Arena, table: MemoryTable, config: TransportConfig) -> _engine.Shared | None:
    """Return the shared state of a device's queue pairs, which is notified of key changes; ``None`` without the
    engine."""
    if ENGINE is None or config.recovery != GO_BACK_N:
        return None
    made = ENGINE.Shared(arena, table, config)
    table.on_key_change = made.key_changed
    return made


def device(nic: Any) -> _engine.Device | None:
    """Return the engine's device for ``nic``, whose state is complete; ``None`` without the engine."""
    return None if ENGINE is None or nic.engine is None else ENGINE.Device(nic.engine, nic)
