"""Device side of the send and receive rings: fetch entries, scatter lists and inline data.

Entries are in memory that software owns, so they are not trusted: counts and lengths are bounded here, keys and
addresses are checked at each use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rnic.mem.dma import DmaPort
from rnic.rings.ring import next_index, waiting
from rnic.rings.rqe import SGE_BYTES, SGE_STRUCT, SRQ_ORDER_BYTES, SRQ_ORDER_STRUCT, srq_bytes
from rnic.rings.sqe import SQE_BYTES, SQE_SHIFT
from rnic.spec.limits import MAX_INLINE, MAX_SGE
from rnic.state.queues import RECEIVE_RING, SEND_RING
from rnic.state.record import Record, Word, view
from rnic.transport.message import Message
from rnic.transport.sge import Sge

MOST_BYTES = max(MAX_SGE * SGE_BYTES, MAX_INLINE)
"""Most bytes read at once: a scatter list or inline data. Lengths in memory shared with a program are not trusted."""


@view(SEND_RING)
class SendRing(Record):
    """The send ring and its slab in the driver's memory.

    Args:
        memory: memory of its record.
        at: offset of the record.
        port: DMA port of the process that owns the ring.
        base: virtual address of entry 0; the slab follows the last entry.
        entries: entries in the ring.
        slab_bytes: bytes of one slab slot, 0 for a ring without a slab.
        shift: log2 of the bytes from one entry to the next; the descriptor is the first 64 of them.

    ``view`` is ring and slab, if they are mapped.
    """

    __slots__ = ("_port", "view")

    base: Word
    entries: Word
    slab_bytes: Word
    shift: Word

    def __init__(
        self,
        memory: memoryview,
        at: int,
        port: DmaPort,
        base: int,
        entries: int,
        slab_bytes: int,
        shift: int = SQE_SHIFT,
    ) -> None:
        self._port = port
        self.place(base, entries, slab_bytes, shift)

    def place(self, base: int, entries: int, slab_bytes: int, shift: int) -> None:
        """Switch to another ring and continue at the same index."""
        self.base = base
        self.entries = entries
        self.slab_bytes = slab_bytes
        self.shift = shift
        self.view = self._port.views(base, (entries << shift) + entries * slab_bytes)

    def after(self, index: int) -> int:
        """Return the index after ``index``."""
        index += 1
        return 0 if index == self.entries else index

    def _read(self, offset: int, length: int) -> bytearray | memoryview | None:
        if self.view is not None:
            return self.view[offset : offset + length]
        if length > MOST_BYTES:
            return None
        buffer = bytearray(length)
        return buffer if self._port.read(self.base + offset, buffer) else None

    def fetch(self, message: Message) -> bool:
        """Copy the entry of ``message`` into its slot. Return false if the ring's memory cannot be read."""
        entry = self._read(message.index << self.shift, SQE_BYTES)
        if entry is None:
            return False
        message.take(entry)
        return True

    def inline(self, message: Message) -> bytearray | memoryview | None:
        """Return the bytes in the slab slot; ``None`` if they cannot be read or do not fit."""
        if message.length > self.slab_bytes:
            return None
        return self._read((self.entries << self.shift) + message.index * self.slab_bytes, message.length)

    def sges(self, message: Message) -> Sequence[Sge] | None:
        """Return its scatter list, which adds up to its length; ``None`` if it cannot be read or is inconsistent."""
        length = message.length
        if not message.list:
            return ((message.local_addr, length, message.lkey),) if length else ()
        size = message.lkey * SGE_BYTES
        if size > self.slab_bytes:
            return None
        data = self._read((self.entries << self.shift) + message.index * self.slab_bytes, size)
        if data is None:
            return None
        sges = [sge for sge in SGE_STRUCT.iter_unpack(data) if sge[1]]
        return sges if sum([sge[1] for sge in sges]) == length else None


class ReceiveWqe:
    """One receive entry: the memory for an incoming message."""

    __slots__ = ("index", "sges", "total")

    def __init__(self, index: int, sges: list[Sge]) -> None:
        self.index = index
        self.sges = sges
        self.total = sum(sge[1] for sge in sges)


@view(RECEIVE_RING)
class ReceiveRing:
    """A receive ring in the driver's memory.

    ``read_tail`` returns the tail that software stored, ``write_head`` publishes the head.
    An invalid tail, beyond the ring, counts as an empty ring. :meth:`settle` sets the ring's record.
    """

    __slots__ = ("_port", "_read_tail", "_write_head", "view", "words")

    base: Word
    entries: Word
    stride: Word
    head: Word

    def __init__(
        self,
        port: DmaPort,
        base: int,
        entries: int,
        stride: int,
        read_tail: Callable[[], int],
        write_head: Callable[[int], None],
    ) -> None:
        self._port = port
        self._read_tail = read_tail
        self._write_head = write_head
        self.words = memoryview(bytearray(RECEIVE_RING.size)).cast("Q")
        self.place(base, entries, stride)

    def place(self, base: int, entries: int, stride: int) -> None:
        """Switch to another ring and continue at the same index."""
        self.base = base
        self.entries = entries
        self.stride = stride
        self.view = self._port.views(base, self.size(entries, stride)) if entries else None

    def settle(self, words: memoryview) -> None:
        """Move the record to ``words``, with its contents."""
        words[:] = self.words[: len(words)]
        self.words = words

    @staticmethod
    def size(entries: int, stride: int) -> int:
        """Return the size of a ring in bytes."""
        return entries * stride

    def available(self) -> int:
        """Return the number of posted entries that are not taken yet."""
        tail = self._read_tail()
        return waiting(self.head, tail, self.entries)

    def kept_back(self, most: int) -> int:
        """Return how many of ``most`` entries to keep back (004 RC_CHK "RQ almost full"): 0 if the ring is too
        short."""
        return most if self.entries - 1 > most else 0

    def readable(self) -> bool:
        """False if an entry is posted but cannot be read; then :meth:`take` returns ``None`` because of a ring
        fault."""
        return not self.available() or self._in_reach()

    def take(self) -> ReceiveWqe | None:
        """Return the next entry, or ``None`` if there is none or the ring's memory cannot be read."""
        head = self.head
        tail = self._read_tail()
        if tail == head or tail >= self.entries:
            return None
        slot = self._slot(head)
        if slot is None:
            return None
        data = self._read(slot * self.stride, self.stride)
        if data is None:
            return None
        sges: list[Sge] = []
        for sge in SGE_STRUCT.iter_unpack(data):
            if sge[1] == 0 and sge[2] == 0:
                break
            sges.append(sge)
        self.head = next_index(head, self.entries)
        self._write_head(self.head)
        return ReceiveWqe(slot, sges)

    def _read(self, offset: int, length: int) -> bytearray | memoryview | None:
        if self.view is not None:
            return self.view[offset : offset + length]
        if length > MOST_BYTES:
            return None
        data = bytearray(length)
        return data if self._port.read(self.base + offset, data) else None

    def _in_reach(self) -> bool:
        slot = self._slot(self.head)
        return slot is not None and self._read(slot * self.stride, self.stride) is not None

    def _slot(self, place: int) -> int | None:
        """Return the slot number at a ring index; ``None`` if it cannot be read."""
        return place


class SharedReceiveRing(ReceiveRing):
    """Ring of a shared receive queue: slots, followed by the order ring (:mod:`rnic.rings.rqe`).

    An invalid slot number counts as an empty ring, like an invalid tail.
    """

    __slots__ = ()

    @staticmethod
    def size(entries: int, stride: int) -> int:
        """Return the size of the slots and the order ring in bytes."""
        return srq_bytes(entries, stride)

    def _in_reach(self) -> bool:
        order = self._read(self.entries * self.stride + self.head * SRQ_ORDER_BYTES, SRQ_ORDER_BYTES)
        if order is None:
            return False
        slot: int = SRQ_ORDER_STRUCT.unpack(order)[0]
        return slot >= self.entries or self._read(slot * self.stride, self.stride) is not None

    def _slot(self, place: int) -> int | None:
        data = self._read(self.entries * self.stride + place * SRQ_ORDER_BYTES, SRQ_ORDER_BYTES)
        if data is None:
            return None
        slot: int = SRQ_ORDER_STRUCT.unpack(data)[0]
        return slot if slot < self.entries else None
