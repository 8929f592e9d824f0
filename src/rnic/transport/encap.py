"""Frame encapsulation: BTH and extended headers packed as integers, the ICRC, and frames batched into bursts.

Headers are packed with combined ``struct`` calls: the first eight bytes of a BTH are one integer that changes
only with opcode and flags, the last four the AckReq bit and the PSN.
"""

from __future__ import annotations

import struct

from rnic.spec.psn import PSN_MASK
from rnic.transport.runs import segment_run
from rnic.wire.bursts import Buffer, TxBurst
from rnic.wire.crc import crc32
from rnic.wire.flow import Flow, tx_delta

BTH_STRUCT = struct.Struct(">QI")
BTH_RETH_STRUCT = struct.Struct(">QIQII")
BTH_RETH_IMM_STRUCT = struct.Struct(">QIQIII")
BTH_WORD_STRUCT = struct.Struct(">QII")
"""BTH and one 32-bit word: AETH, ImmDt or IETH."""
BTH_FETH_RETH_STRUCT = struct.Struct(">QIIQII")
BTH_ATOMIC_STRUCT = struct.Struct(">QIQIQQ")
BTH_ATOMIC_ACK_STRUCT = struct.Struct(">QIIQ")
BTH_DETH_STRUCT = struct.Struct(">QIII")
BTH_DETH_IMM_STRUCT = struct.Struct(">QIIII")
ICRC_STRUCT = struct.Struct("<I")

ACK_REQ = 1 << 31
SOLICITED = 1 << 55
_MIG_REQ = 1 << 54

_MAX_BURST_BYTES = 65_000
_COPY_BELOW = 1_024
"""Payloads shorter than this are copied into one buffer with their headers: cheaper than more iov entries."""

_PADS = (b"", b"\0", b"\0\0", b"\0\0\0")


def bth_base(pkey: int, dqpn: int) -> int:
    """Return the first eight bytes of a BTH with opcode 0, MigReq set (as hardware sends it) and TVer 0."""
    return _MIG_REQ | pkey << 32 | dqpn


def frames_of(max_segments: int, length: int) -> int:
    """Return the number of frames of ``length`` bytes that fit one burst of up to ``max_segments``."""
    return max(1, min(max_segments, _MAX_BURST_BYTES // length))


class FrameBatch:
    """Collects frames for one flow and emits them as bursts of equal-sized segments.

    A shorter frame may close a burst, since UDP_SEGMENT lets the last segment be short. The ICRC of a frame
    depends on its index in the burst, which becomes its IPv4 ID when the burst is segmented.
    """

    __slots__ = ("buffers", "count", "flow", "length", "max_segments", "open", "out", "segment")

    def __init__(self, flow: Flow, out: list[TxBurst], max_segments: int) -> None:
        self.flow = flow
        self.out = out
        self.max_segments = max_segments
        self.open = False
        self.buffers: list[Buffer] = []
        self.segment = 0
        self.count = 0
        self.length = 0

    def room(self, length: int) -> int:
        """Return how many frames of ``length`` bytes still fit the open burst; open a new burst if it is full."""
        if self.open and length == self.segment:
            left = min(self.max_segments, _MAX_BURST_BYTES // length) - self.count
            if left > 0:
                return left
        self.flush()
        self.open = True
        self.segment = length
        return frames_of(self.max_segments, length)

    def reserve(self, length: int, count: int) -> int:
        """Reserve room for ``count`` full-sized frames that the caller appends. Return the first frame's IP ID."""
        ident = self.count
        self.count += count
        self.length += length * count
        return ident

    def run(self, head: int, psn: int, count: int, view: memoryview, mtu: int, ack_every: int) -> None:
        """Append ``count`` frames of a BTH and ``mtu`` payload bytes each, in as many bursts as needed.

        Args:
            head: first eight bytes of each BTH.
            psn: PSN of the first frame.
            view: payload of all frames. It is copied before the ICRC is computed, since the program may change it at
                any time.
            ack_every: request an ACK if the PSN is a multiple of this; 0 for never.
        """
        flow = self.flow
        length = mtu + BTH_STRUCT.size + ICRC_STRUCT.size
        seeds = flow.seeds(length)
        delta = tx_delta(length)
        most = frames_of(self.max_segments, length)
        at = 0
        while count:
            if count >= most and (not self.count or self.room(length) == most):
                # a whole burst at once, without the bookkeeping of a growing burst
                taken = most
                buffers: list[Buffer] = []
                part = memoryview(bytes(view[at : at + most * mtu]))
                segment_run(head, psn, most, part, mtu, seeds, 0, delta, ack_every, buffers)
                self.out.append(TxBurst(flow, buffers, length, most, most * length))
                self.open = False
            else:
                taken = min(count, self.room(length))
                ident = self.reserve(length, taken)
                part = memoryview(bytes(view[at : at + taken * mtu]))
                segment_run(head, psn, taken, part, mtu, seeds, ident, delta, ack_every, self.buffers)
            psn = psn + taken & PSN_MASK
            at += taken * mtu
            count -= taken

    def add(self, header: bytes, payload: Buffer = b"") -> None:
        """Pad one frame, add its ICRC and append it. The payload is copied first, since the program may change it at
        any time."""
        size = len(payload)
        pad = -size & 3
        length = len(header) + size + pad + 4
        ident = 0
        if self.open:
            if length <= self.segment and self.count < self.max_segments and self.length + length <= _MAX_BURST_BYTES:
                ident = self.count
            else:
                self.flush()
        if not self.open:
            self.open = True
            self.segment = length
        seed = self.flow.seed(length, ident)
        if size < _COPY_BELOW:
            frame = header + payload + _PADS[pad] if size else header
            self.buffers.append(frame + ICRC_STRUCT.pack(crc32(frame, seed) ^ tx_delta(length)))
        else:
            payload = bytes(payload)
            crc = crc32(payload, crc32(header, seed))
            tail = _PADS[pad]
            if pad:
                crc = crc32(tail, crc)
            self.buffers += (header, payload, tail + ICRC_STRUCT.pack(crc ^ tx_delta(length)))
        self.count += 1
        self.length += length
        if length < self.segment:
            self.flush()

    def flush(self) -> None:
        """Emit the open burst, if any."""
        if self.open and self.count:
            self.out.append(TxBurst(self.flow, self.buffers, self.segment, self.count, self.length))
            self.buffers = []
        self.open = False
        self.count = 0
        self.length = 0
