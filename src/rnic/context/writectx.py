"""writectx: DMA writes of contexts and of the fields that the engine changed (002 5.6)."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from rnic.context.cqc import CQC_BYTES
from rnic.context.eqc import EQC, EQC_BYTES
from rnic.context.machines import WRITECTX, Machine
from rnic.context.messages import (
    CEU,
    DMA_HEADER,
    WR_CQ_CXT,
    WR_CQ_INVALID,
    WR_EQ_CXT,
    WR_EQ_FUNC,
    WR_EQ_INVALID,
    WR_QP_EPST,
    WR_QP_NPST,
    WR_QP_UAPST,
    WRITE_REQUEST,
)
from rnic.context.qpc import QPC
from rnic.mem.dma import DmaPort

BEAT_BYTES: Final = 32
_PSN_AT: Final = {
    WR_QP_NPST: QPC["next_send_psn"].byte + 1,
    WR_QP_UAPST: QPC["last_acked_psn"].byte + 1,
    WR_QP_EPST: QPC["expected_psn"].byte + 1,
}
"""Where the three PSN bytes lie; the byte before them is another field's, or zero."""
_STATE_AT: Final = QPC["state"].byte
_MASK_AT: Final = EQC["event_mask"].byte
_ZEROS: Final = {(WR_CQ_CXT, WR_CQ_INVALID): CQC_BYTES, (WR_EQ_CXT, WR_EQ_INVALID): EQC_BYTES}


class DmaWrite(NamedTuple):
    """Bytes on their way: the 128-bit header {0, addr64, 0, len12} and the data, sent in 256-bit beats."""

    port: DmaPort
    header: bytes
    data: bytes

    @property
    def beats(self) -> list[bytes]:
        """The data as it crosses the interface; the last beat is filled with zeros."""
        return [self.data[at : at + BEAT_BYTES].ljust(BEAT_BYTES, b"\0") for at in range(0, len(self.data), BEAT_BYTES)]


class WriteCtx:
    """The module. ``ctxdata`` holds payloads from ceu_parser, ``dma`` the groups of writes that were not done yet.

    One request makes one group; it is done when all its writes are. A group's first failure ends it.
    """

    __slots__ = ("ctxdata", "dma", "fifo", "machine")

    def __init__(self) -> None:
        self.machine = Machine("writectx", WRITECTX)
        self.fifo: deque[tuple[DmaPort, bytes]] = deque()
        self.ctxdata: deque[bytes] = deque()
        self.dma: deque[tuple[bytes, tuple[DmaWrite, ...]]] = deque()

    def request(self, port: DmaPort, addr: int, header: bytes, source: int) -> None:
        """Take ctxmdata's write request, packed as :data:`~rnic.context.messages.WRITE_REQUEST`."""
        data = int.from_bytes(header[8:], "big")
        state = flags = 0
        if source != CEU:
            state, flags = data >> 60, data >> 56 & 15
        packed = header[0] << 120 | source << 117 | state << 113 | flags << 109 | (data & 0xFFFF_FFFF) << 64 | addr
        self.fifo.append((port, packed.to_bytes(16, "big")))

    def step(self) -> bool:
        """Turn one request into DMA writes; false where there is none."""
        if not self.fifo:
            return False
        port, request = self.fifo.popleft()
        word = int.from_bytes(request, "big")
        kind, opcode, source, addr = word >> 124, word >> 120 & 15, word >> 117 & 7, word & (1 << 64) - 1
        data = word >> 64 & 0xFFFF_FFFF
        if source != CEU:
            self.machine.step("write_back")
            state = (word >> 113 & 15) << 4 | word >> 109 & 15
            writes: tuple[DmaWrite, ...] = (
                _write(port, addr + _PSN_AT[opcode], (data & 0xFFFFFF).to_bytes(3, "big")),
                _write(port, addr + _STATE_AT, bytes((state,))),
            )
        elif (kind, opcode) in _ZEROS:
            self.machine.step("zeros")
            writes = (_write(port, addr, bytes(_ZEROS[kind, opcode])),)
        elif (kind, opcode) == (WR_EQ_CXT, WR_EQ_FUNC):
            self.machine.step("header_data")
            writes = (_write(port, addr + _MASK_AT, data.to_bytes(4, "big")),)
        else:
            self.machine.step("context")
            writes = (_write(port, addr, self.ctxdata.popleft()),)
        self.dma.append((request, writes))
        self.machine.step("sent")
        return True

    def finish(self) -> tuple[bytes, bool] | None:
        """Do the oldest group of DMA writes: its request and whether memory took it all; ``None`` without any."""
        if not self.dma:
            return None
        request, writes = self.dma.popleft()
        return request, all(write.port.write(DMA_HEADER.get(write.header, "addr"), write.data) for write in writes)


def _write(port: DmaPort, addr: int, data: bytes) -> DmaWrite:
    return DmaWrite(port, (addr << 32 | len(data)).to_bytes(16, "big"), data)


def origin(request: bytes) -> tuple[int, int, int]:
    """Type, opcode and source of a write request."""
    return request[0] >> 4, request[0] & 15, WRITE_REQUEST.get(request, "source")
