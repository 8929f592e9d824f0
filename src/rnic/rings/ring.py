"""Producer and consumer rings over one memoryview, for the driver's side and the NIC's side alike.

Every index counts from 0 to ``size - 1`` and then starts again (001 section 3.2): a ring is empty when
``head == tail`` and full when ``(tail + 1) % size == head``, so it holds at most ``size - 1`` entries.
Completion and event rings say by a phase bit in each entry that it is valid; their size is a power of two.

The other side's index comes from a register that anybody may have written, so a value beyond the ring is
taken as "nothing to do": an empty ring for a consumer, a full one for a producer.
"""

from __future__ import annotations

import struct
from errno import EINVAL

from rnic.rings.cqe import CQE_BYTES, CQE_PHASE
from rnic.rings.sqe import SQE_BYTES
from rnic.spec.errors import VerbsError

MAX_ENTRIES = 1 << 16

_HEAD = struct.Struct("<3I")
_WORD3 = struct.Struct("<I")
_TAIL = struct.Struct("<4I")
_ENTRY = struct.Struct("<8I")
_WORD3_AT = 12
_TAIL_AT = 16
_LOW31 = CQE_PHASE - 1

Entry = tuple[int, int, int, int, int, int, int, int]
"""The eight words of a CQ or EQ entry."""


def next_index(index: int, size: int) -> int:
    """The index after ``index`` (001 3.2 "Circular Buffer Wraparound")."""
    index += 1
    return 0 if index == size else index


def _fit(view: memoryview, size: int, stride: int) -> memoryview:
    if not 2 <= size <= MAX_ENTRIES:
        raise VerbsError(EINVAL, f"size={size} is no ring size; 2 to {MAX_ENTRIES} entries are")
    if view.nbytes < size * stride:
        need = size * stride
        raise VerbsError(EINVAL, f"ring of {size} entries of {stride} bytes needs {need} bytes, not {view.nbytes}")
    return view.cast("B")


class ProducerRing:
    """The side that fills SQ, RQ or SRQ entries, and owns the tail.

    Args:
        view: writable memory of at least ``size * stride`` bytes.
        size: entries, 2 to 65,536.
        stride: bytes from one entry to the next.

    Raises:
        VerbsError: ``EINVAL`` where size or memory do not fit.
    """

    __slots__ = ("size", "stride", "tail", "view")

    def __init__(self, view: memoryview, size: int, stride: int = SQE_BYTES) -> None:
        self.view = _fit(view, size, stride)
        self.size = size
        self.stride = stride
        self.tail = 0

    def room(self, head: int) -> int:
        """Entries that may be filled while the consumer stands at ``head``."""
        return (head - self.tail - 1) % self.size if head < self.size else 0

    def full(self, head: int) -> bool:
        """Whether no entry may be filled."""
        return self.room(head) == 0

    @property
    def offset(self) -> int:
        """Byte offset in ``view`` of the entry to fill next."""
        return self.tail * self.stride

    def advance(self) -> int:
        """Count the entry at the tail as filled; the new tail, which is the doorbell's value."""
        self.tail = next_index(self.tail, self.size)
        return self.tail

    def reset(self) -> None:
        """Start over with an empty ring."""
        self.tail = 0


class ConsumerRing:
    """The side that takes SQ, RQ or SRQ entries, and owns the head. Arguments as :class:`ProducerRing`."""

    __slots__ = ("head", "size", "stride", "view")

    def __init__(self, view: memoryview, size: int, stride: int = SQE_BYTES) -> None:
        self.view = _fit(view, size, stride)
        self.size = size
        self.stride = stride
        self.head = 0

    def available(self, tail: int) -> int:
        """Entries to take while the producer stands at ``tail``."""
        return (tail - self.head) % self.size if tail < self.size else 0

    def empty(self, tail: int) -> bool:
        """Whether there is no entry to take."""
        return self.available(tail) == 0

    @property
    def offset(self) -> int:
        """Byte offset in ``view`` of the entry to take next."""
        return self.head * self.stride

    def advance(self) -> int:
        """Count the entry at the head as taken; the new head."""
        self.head = next_index(self.head, self.size)
        return self.head

    def reset(self) -> None:
        """Start over with an empty ring."""
        self.head = 0


def _fit_phase(view: memoryview, size: int) -> memoryview:
    if size & (size - 1):
        raise VerbsError(EINVAL, f"size={size} is no power of two; completion and event rings need one")
    return _fit(view, size, CQE_BYTES)


class PhaseProducer:
    """The side that fills CQ or EQ entries of 32 bytes.

    The memory is zero at first and the first pass writes phase 1, so no entry is valid before it was stored.

    Args:
        view: writable memory of at least ``size * 32`` bytes.
        size: entries, a power of two from 2 to 65,536.

    Raises:
        VerbsError: ``EINVAL`` where size or memory do not fit.
    """

    __slots__ = ("phase", "size", "tail", "view")

    def __init__(self, view: memoryview, size: int) -> None:
        self.view = _fit_phase(view, size)
        self.size = size
        self.tail = 0
        self.phase = CQE_PHASE

    def room(self, head: int) -> int:
        """Entries that may be stored while the consumer stands at ``head``."""
        return (head - self.tail - 1) & (self.size - 1) if head < self.size else 0

    def push(self, w0: int, w1: int, w2: int, w3: int, w4: int, w5: int, w6: int, w7: int) -> int:
        """Store one entry, its word 3 with the phase last; the new tail. Bit 31 of ``w3`` is ignored."""
        view = self.view
        at = self.tail * CQE_BYTES
        _HEAD.pack_into(view, at, w0, w1, w2)
        _TAIL.pack_into(view, at + _TAIL_AT, w4, w5, w6, w7)
        _WORD3.pack_into(view, at + _WORD3_AT, w3 & _LOW31 | self.phase)
        tail = self.tail + 1
        if tail == self.size:
            tail = 0
            self.phase ^= CQE_PHASE
        self.tail = tail
        return tail


class PhaseConsumer:
    """The side that takes CQ or EQ entries of 32 bytes. Arguments as :class:`PhaseProducer`."""

    __slots__ = ("head", "phase", "size", "view")

    def __init__(self, view: memoryview, size: int) -> None:
        self.view = _fit_phase(view, size)
        self.size = size
        self.head = 0
        self.phase = CQE_PHASE

    def ready(self) -> bool:
        """Whether the entry at the head is valid."""
        word: int = _WORD3.unpack_from(self.view, self.head * CQE_BYTES + _WORD3_AT)[0]
        return word & CQE_PHASE == self.phase

    def pop(self) -> Entry | None:
        """Take the next entry, phase included, or ``None``. The caller publishes ``head``."""
        if not self.ready():
            return None
        entry: Entry = _ENTRY.unpack_from(self.view, self.head * CQE_BYTES)
        head = self.head + 1
        if head == self.size:
            head = 0
            self.phase ^= CQE_PHASE
        self.head = head
        return entry
