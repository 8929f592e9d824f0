"""Device side of the send and receive rings: fetching and parsing work queue entries.

Entries come from memory that software owns, so nothing in them is trusted: counts and lengths are bounded
here, keys and addresses are checked where they are used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from rnic.mem.dma import DmaPort
from rnic.rings.rqe import SGE_BYTES, SGE_STRUCT, SRQ_ORDER_BYTES, SRQ_ORDER_STRUCT, srq_bytes
from rnic.rings.sqe import (
    FLAG_FENCE,
    FLAG_INLINE,
    FLAG_LIST,
    FLAG_SIGNALED,
    FLAG_SOLICITED,
    SQE_ATOMIC_STRUCT,
    SQE_BYTES,
    SQE_SHIFT,
    SQE_STRUCT,
    SQE_UD_PATH_STRUCT,
    SQE_UD_STRUCT,
)

Sge = tuple[int, int, int]
"""Address, length, key."""

_BIND_STRUCT = struct.Struct("<QQ")


class Wqe:
    """One parsed SQ descriptor. ``valid`` is false where the descriptor contradicts itself or the ring."""

    __slots__ = (
        "bind_access",
        "bind_length",
        "compare",
        "dgid",
        "dqpn",
        "fence",
        "flow_label",
        "hop_limit",
        "imm",
        "index",
        "inline",
        "length",
        "opcode",
        "qkey",
        "remote_addr",
        "rkey",
        "sges",
        "signaled",
        "sl",
        "solicited",
        "swap_add",
        "tclass",
        "udp_dport",
        "udp_sport",
        "valid",
        "wqe_id",
    )

    index: int
    wqe_id: int
    opcode: int
    signaled: int
    solicited: int
    fence: int
    inline: bytes | None
    remote_addr: int
    length: int
    rkey: int
    imm: int
    sges: list[Sge]
    swap_add: int
    compare: int
    dgid: bytes
    dqpn: int
    hop_limit: int
    qkey: int
    sl: int
    tclass: int
    flow_label: int
    udp_sport: int
    udp_dport: int
    bind_access: int
    bind_length: int
    valid: bool


class SendRing:
    """The send ring and its slab in the driver's memory.

    Args:
        port: DMA port of the process that owns the ring.
        base: virtual address of entry 0; the slab follows the last entry.
        entries: entries in the ring.
        slab_bytes: bytes of one slab slot, 0 for a ring without a slab.
        shift: log2 of the bytes from one entry to the next; the descriptor is the first 64 of them.

    ``view`` is ring and slab where they are in reach.
    """

    __slots__ = ("_port", "base", "entries", "shift", "slab_bytes", "view")

    def __init__(self, port: DmaPort, base: int, entries: int, slab_bytes: int, shift: int = SQE_SHIFT) -> None:
        self._port = port
        self.place(base, entries, slab_bytes, shift)

    def place(self, base: int, entries: int, slab_bytes: int, shift: int) -> None:
        """Go on in another ring, from the same index."""
        self.base = base
        self.entries = entries
        self.slab_bytes = slab_bytes
        self.shift = shift
        self.view = self._port.views(base, (entries << shift) + entries * slab_bytes)

    def _read(self, offset: int, length: int) -> bytes | memoryview | None:
        if self.view is not None:
            return self.view[offset : offset + length]
        buffer = bytearray(length)
        return memoryview(buffer) if self._port.read(self.base + offset, buffer) else None

    def fetch(self, index: int) -> Wqe | None:
        """Entry ``index``; ``None`` where the ring's memory cannot be read."""
        raw: bytes | memoryview | None
        at = index << self.shift
        if self.view is not None:
            raw = self.view
        else:
            raw = self._read(at, SQE_BYTES)
            at = 0
            if raw is None:
                return None
        wqe = Wqe()
        wqe.index = index
        (
            wqe.wqe_id,
            wqe.opcode,
            flags,
            local_addr,
            wqe.remote_addr,
            length,
            lkey,
            wqe.rkey,
            wqe.imm,
        ) = SQE_STRUCT.unpack_from(raw, at)
        wqe.length = length
        wqe.signaled = flags & FLAG_SIGNALED
        wqe.solicited = flags & FLAG_SOLICITED
        wqe.fence = flags & FLAG_FENCE
        wqe.inline = None
        wqe.valid = True
        if not flags & (FLAG_LIST | FLAG_INLINE):
            wqe.sges = [(local_addr, length, lkey)] if length else []
        elif flags & FLAG_INLINE:
            wqe.sges = []
            self._inline(wqe)
        else:
            self._list(wqe, lkey)
        return wqe

    def _inline(self, wqe: Wqe) -> None:
        if wqe.length > self.slab_bytes:
            wqe.valid = False
            return
        data = self._read((self.entries << self.shift) + wqe.index * self.slab_bytes, wqe.length)
        if data is None:
            wqe.valid = False
        else:
            wqe.inline = bytes(data)

    def _list(self, wqe: Wqe, count: int) -> None:
        wqe.sges = []
        if count * SGE_BYTES > self.slab_bytes:
            wqe.valid = False
            return
        data = self._read((self.entries << self.shift) + wqe.index * self.slab_bytes, count * SGE_BYTES)
        if data is None:
            wqe.valid = False
            return
        wqe.sges = [sge for sge in SGE_STRUCT.iter_unpack(data) if sge[1]]
        if sum(sge[1] for sge in wqe.sges) != wqe.length:
            wqe.valid = False

    def fetch_atomic(self, wqe: Wqe) -> bool:
        """Complete an atomic descriptor: its operands."""
        raw = self._read(wqe.index << self.shift, SQE_BYTES)
        if raw is None:
            return False
        wqe.swap_add, wqe.compare = SQE_ATOMIC_STRUCT.unpack_from(raw, 40)
        return True

    def fetch_ud(self, wqe: Wqe) -> bool:
        """Complete a UD descriptor: its destination."""
        raw = self._read(wqe.index << self.shift, SQE_BYTES)
        if raw is None:
            return False
        wqe.dgid, dqpn, wqe.qkey = SQE_UD_STRUCT.unpack_from(raw, 40)
        wqe.dqpn = dqpn & 0xFFFFFF
        wqe.hop_limit = dqpn >> 24
        path, wqe.udp_dport, wqe.udp_sport = SQE_UD_PATH_STRUCT.unpack_from(raw, 16)
        wqe.sl = path >> 28
        wqe.tclass = path >> 20 & 0xFF
        wqe.flow_label = path & 0xFFFFF
        return True

    def fetch_bind(self, wqe: Wqe) -> bool:
        """Complete a bind descriptor. ``sges`` becomes the region: start, length, its key."""
        raw = self._read(wqe.index << self.shift, SQE_BYTES)
        if raw is None:
            return False
        access, start = _BIND_STRUCT.unpack_from(raw, 8)
        lkey, new_rkey, old_rkey, length = struct.unpack_from("<IIIQ", raw, 28)
        wqe.bind_access = access & 0xFFFFFFFF
        wqe.bind_length = length
        wqe.remote_addr = start
        wqe.sges = [(start, length, lkey)]
        wqe.rkey = new_rkey
        wqe.imm = old_rkey
        return True


class ReceiveWqe:
    """One receive entry: where an incoming message goes."""

    __slots__ = ("index", "sges", "total")

    def __init__(self, index: int, sges: list[Sge]) -> None:
        self.index = index
        self.sges = sges
        self.total = sum(sge[1] for sge in sges)


class ReceiveRing:
    """A receive ring in the driver's memory.

    ``read_tail`` returns the tail that software stored, ``write_head`` publishes the head.
    A tail beyond the ring counts as an empty ring: software broke its contract.
    """

    __slots__ = ("_port", "_read_tail", "_view", "_write_head", "base", "entries", "head", "stride")

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
        self.head = 0
        self.place(base, entries, stride)

    def place(self, base: int, entries: int, stride: int) -> None:
        """Go on in another ring, from the same index."""
        self.base = base
        self.entries = entries
        self.stride = stride
        self._view = self._port.views(base, self.size(entries, stride)) if entries else None

    @staticmethod
    def size(entries: int, stride: int) -> int:
        """Bytes of memory behind a ring."""
        return entries * stride

    def available(self) -> int:
        """Entries posted and not taken."""
        tail = self._read_tail()
        return (tail - self.head) % self.entries if tail < self.entries else 0

    def take(self) -> ReceiveWqe | None:
        """The next entry, or ``None`` if there is none or the ring's memory cannot be read."""
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
        self.head = 0 if head + 1 == self.entries else head + 1
        self._write_head(self.head)
        return ReceiveWqe(slot, sges)

    def _read(self, offset: int, length: int) -> bytearray | memoryview | None:
        if self._view is not None:
            return self._view[offset : offset + length]
        data = bytearray(length)
        return data if self._port.read(self.base + offset, data) else None

    def _slot(self, place: int) -> int | None:
        """The slot that is next at a place of the ring; ``None`` where that cannot be known."""
        return place


class SharedReceiveRing(ReceiveRing):
    """The ring of a shared receive queue: slots in the order that lies behind them (:mod:`rnic.rings.rqe`).

    A slot number beyond the slots counts as an empty ring, as a tail does.
    """

    __slots__ = ()

    @staticmethod
    def size(entries: int, stride: int) -> int:
        """Slots and their order."""
        return srq_bytes(entries, stride)

    def _slot(self, place: int) -> int | None:
        data = self._read(self.entries * self.stride + place * SRQ_ORDER_BYTES, SRQ_ORDER_BYTES)
        if data is None:
            return None
        slot: int = SRQ_ORDER_STRUCT.unpack(data)[0]
        return slot if slot < self.entries else None
