"""Memory of the key-data cache: one slot of the device's arena per context, at an offset given by its number.

The slot of an uncached context is zero. For a queue pair, this is the RESET state, so it is idle.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

from rnic.context.cqc import CQC
from rnic.context.eqc import EQC
from rnic.context.qp_context import QpContext
from rnic.spec.layout import Layout
from rnic.state import queues
from rnic.state.structure import Ground, structure

Told = Callable[[int], None]
"""Called with the number of a context after a store to it."""


class Slot(Protocol):
    """A view of one slot."""

    @classmethod
    def at(cls, ground: Ground, place: int) -> Self:
        """Return the view of the slot at offset ``place`` of an arena."""

    def load(self, data: bytes | bytearray | memoryview) -> None:
        """Load a context's bytes."""


class _QueueKey(ctypes.LittleEndianStructure):
    """The record of a CQ or EQ; its context fields are loaded from CQC or EQC bytes."""

    __slots__ = ("_ground",)
    _pack_ = 1
    _layout_ = "ms"  # packed; Python 3.14 requires it to be explicit
    _layout: ClassVar[Layout]
    _names: ClassVar[tuple[str, ...]]
    """Names of the fields that the context and the record share."""

    def __init__(self, data: bytes | bytearray | memoryview = b"") -> None:
        super().__init__()
        if data:
            self.load(data)

    @classmethod
    def at(cls, ground: Ground, place: int) -> Self:
        """Return the record at offset ``place`` of an arena."""
        key = cls.from_address(ground.address + place)
        key._ground = ground
        return key

    def load(self, data: bytes | bytearray | memoryview) -> None:
        """Load a context's bytes; the queue's own fields are unchanged."""
        get = self._layout.get
        for name in self._names:
            setattr(self, name, get(data, name))

    def values(self) -> dict[str, int]:
        """Return the cached fields of the context, by name."""
        return {name: getattr(self, name) for name in self._names}


def _shared(context: Layout, held: Layout) -> tuple[str, ...]:
    return tuple(field.name for field in held.fields if field.access == queues.CONTEXT and field.name in context)


class CqKey(_QueueKey):
    """A CQ's record; by default a detached, empty one."""

    __slots__ = ()
    _fields_: ClassVar = structure(queues.CQ)
    _layout = CQC
    _names = _shared(CQC, queues.CQ)

    flags: int
    start: int
    logsize: int
    usrpage: int
    comp_eqn: int
    pd: int
    lkey: int
    cqn: int
    ci_db: int
    state_db: int
    tail: int
    phase: int
    room: int
    failed: int
    driver: int
    last_notified: int
    solicited_index: int
    due: int
    told: int


class EqKey(_QueueKey):
    """An EQ's record; by default a detached, empty one."""

    __slots__ = ()
    _fields_: ClassVar = structure(queues.EQ)
    _layout = EQC
    _names = _shared(EQC, queues.EQ)

    flags: int
    start: int
    logsize: int
    usrpage: int
    event_mask: int
    msix_vector: int
    pd: int
    lkey: int
    tail: int
    phase: int
    room: int
    failed: int
    driver: int
    enabled: int
    pending: int


class _Telling:
    """View for all code except the data path: storing to a field calls ``told``."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if not name.startswith("_"):
            self._told(self._number)  # type: ignore[attr-defined]  # slots of the classes below


class CachedQp(_Telling, QpContext):
    """A queue pair's entry of the cache."""

    __slots__ = ("_number", "_told")


class CachedCq(_Telling, CqKey):
    """A CQ's entry of the cache."""

    __slots__ = ("_number", "_told")


class CachedEq(_Telling, EqKey):
    """An EQ's entry of the cache."""

    __slots__ = ("_number", "_told")


S = TypeVar("S", bound=Any)


class Cache(dict[int, S]):
    """Cached contexts of one kind by number: views that report stores.

    Deleting an entry evicts it: it is written back, and its queue stalls until it is loaded again.

    Args:
        ground: arena that holds the slots.
        log: log2 of the number of slots; the low bits of a number are its slot.
        size: bytes of a slot.
        keep: bytes at the end of a slot that belong to the queue, not to the context, and persist.
        plain: the view that the data path uses.
        telling: the same view with a ``__setattr__`` that reports stores.

    Raises:
        MemoryError: the arena is full.
    """

    def __init__(self, ground: Ground, log: int, size: int, keep: int, plain: type[Any], telling: type[S]) -> None:
        super().__init__()
        place = ground.arena.allocate(size << log)
        if place is None:
            raise MemoryError(f"no room for {1 << log} contexts in {ground.arena.size} bytes of state")
        self.place = place
        """Offset of the slots in the arena."""
        self.log = log
        self.size = size
        self.evicted: set[int] = set()
        """Numbers of contexts that were written back and are only in host memory."""
        self.leave: Told = lambda number: None
        """Called before an entry is evicted, to write it back; may raise to keep it."""
        self.left: Told = lambda number: None
        """Called after an entry is evicted."""
        self.told: Told = lambda number: None
        """Called after a store to an entry."""
        self._ground = ground
        self._zero = bytes(size - keep)
        self._plain = plain
        self._telling = telling

    @property
    def words(self) -> memoryview:
        """Arena of the slots, as 64-bit words."""
        return self._ground.arena.cells

    def slot(self, number: int) -> int:
        """Return the offset of a context's slot in the arena."""
        return self.place + (number & (1 << self.log) - 1) * self.size

    def view(self, number: int) -> Any:
        """Return the data path's view of the slot, whether or not the context is cached."""
        return self._plain.at(self._ground, self.slot(number))

    def fill(self, number: int, data: bytes | bytearray | memoryview) -> None:
        """Load a context's bytes without calling ``told``."""
        self.view(number).load(data)
        self.evicted.discard(number)
        if number not in self:
            entry = self._telling.at(self._ground, self.slot(number))
            entry._number, entry._told = number, self._tell
            super().__setitem__(number, entry)

    def _tell(self, number: int) -> None:
        if number in self:
            self.told(number)

    def forget(self, number: int) -> None:
        """Drop a context without write-back, because it is gone or never existed."""
        self.evicted.discard(number)
        self._drop(number)

    def _drop(self, number: int) -> None:
        if super().pop(number, None) is not None:
            at = self.slot(number)
            self._ground.arena.memory[at : at + len(self._zero)] = self._zero

    def __setitem__(self, number: int, entry: S) -> None:
        raise TypeError("a cached context can be filled, not replaced")

    def __delitem__(self, number: int) -> None:
        if number not in self:
            raise KeyError(number)
        self.leave(number)
        self._drop(number)
        self.evicted.add(number)
        self.left(number)

    def pop(self, number: int, *default: Any) -> Any:
        """Evict an entry; return its view, whose slot is cleared."""
        if number not in self:
            if default:
                return default[0]
            raise KeyError(number)
        entry = self[number]
        del self[number]
        return entry

    def clear(self) -> None:
        """Drop all contexts without write-back."""
        for number in list(self):
            self.forget(number)
        self.evicted.clear()


def cache_of(ground: Ground, log: int, layout: Layout, plain: type[Any], telling: type[S]) -> Cache[S]:
    """Return a cache whose slots are laid out as ``layout``."""
    keep = layout.size - queues.CONTEXT_BYTES.get(layout.name, layout.size)
    return Cache(ground, log, layout.size, keep, plain, telling)


NO_CQ: Final = CqKey()
NO_EQ: Final = EqKey()
"""Placeholders for an uncached CQ or EQ."""
