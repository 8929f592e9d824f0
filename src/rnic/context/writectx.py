"""writectx: DMA writes of whole contexts, and of fields that the engine changed (002 5.6)."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from rnic.context.cqc import CQC_BYTES
from rnic.context.eqc import EQC, EQC_BYTES
from rnic.context.fifo import Fifo
from rnic.context.machines import WRITECTX, Machine
from rnic.context.messages import (
    CEU,
    WR_CQ_CXT,
    WR_CQ_INVALID,
    WR_EQ_CXT,
    WR_EQ_FUNC,
    WR_EQ_INVALID,
    WR_QP_EPST,
    WR_QP_NPST,
    WR_QP_UAPST,
)
from rnic.context.qpc import QPC
from rnic.mem.dma import DmaPort

BEAT_BYTES: Final = 32
_REQUEST: Final = struct.Struct(">BHxIQ")
"""A :data:`~rnic.context.messages.WRITE_REQUEST`: type and opcode, source with state and flags, data, address."""
_HEADER: Final = struct.Struct(">4xQI")
"""A :data:`~rnic.context.messages.DMA_HEADER`."""
_PSN_AT: Final = {
    WR_QP_NPST: QPC["next_send_psn"].byte + 1,
    WR_QP_UAPST: QPC["last_acked_psn"].byte + 1,
    WR_QP_EPST: QPC["expected_psn"].byte + 1,
}
"""Offsets of the three PSN bytes in the QPC; the byte before them belongs to another field or is zero."""
_STATE_AT: Final = QPC["state"].byte
_MASK_AT: Final = EQC["event_mask"].byte
_ZEROS: Final = {(WR_CQ_CXT, WR_CQ_INVALID): CQC_BYTES, (WR_EQ_CXT, WR_EQ_INVALID): EQC_BYTES}


class DmaWrite(NamedTuple):
    """A pending DMA write: the 128-bit header {0, addr64, 0, len12} and the data, sent in 256-bit beats."""

    port: DmaPort
    header: bytes
    data: bytes

    @property
    def beats(self) -> list[bytes]:
        """Return the data as beats of the interface; the last beat is zero-padded."""
        return [self.data[at : at + BEAT_BYTES].ljust(BEAT_BYTES, b"\0") for at in range(0, len(self.data), BEAT_BYTES)]


class WriteCtx:
    """The module. ``ctxdata`` holds payloads from ceu_parser, ``dma`` the pending groups of writes.

    One request forms one group. All its writes are attempted; the group succeeds if all of them succeed.
    """

    __slots__ = ("ctxdata", "dma", "fifo", "machine")

    def __init__(self) -> None:
        self.machine = Machine("writectx", WRITECTX)
        self.fifo: Fifo[tuple[DmaPort, bytes]] = Fifo()
        self.ctxdata: Fifo[bytes] = Fifo()
        self.dma: Fifo[tuple[bytes, tuple[DmaWrite, ...]]] = Fifo()

    def request(self, port: DmaPort, addr: int, header: bytes, source: int) -> None:
        """Accept ctxmdata's write request, packed as :data:`~rnic.context.messages.WRITE_REQUEST`."""
        # the first byte of a write-back's data has state and flags
        who = source << 13 | (header[8] << 5 if source != CEU else 0)
        self.fifo.append((port, _REQUEST.pack(header[0], who, int.from_bytes(header[12:], "big"), addr)))

    def step(self) -> bool:
        """Convert one request into DMA writes; return false if there is none."""
        if not self.fifo:
            return False
        port, request = self.fifo.popleft()
        code, who, data, addr = _REQUEST.unpack(request)
        kind, opcode, source = code >> 4, code & 15, who >> 13
        if source != CEU:
            self.machine.step("write_back")
            writes: tuple[DmaWrite, ...] = (
                _write(port, addr + _PSN_AT[opcode], (data & 0xFFFFFF).to_bytes(3, "big")),
                _write(port, addr + _STATE_AT, bytes((who >> 5 & 0xFF,))),
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
        """Perform the oldest group of DMA writes; return its request and whether all succeeded, or ``None``."""
        if not self.dma:
            return None
        request, writes = self.dma.popleft()
        done = [port.write(_HEADER.unpack(header)[0], data) for port, header, data in writes]
        return request, all(done)


def _write(port: DmaPort, addr: int, data: bytes) -> DmaWrite:
    return DmaWrite(port, _HEADER.pack(addr, len(data)), data)


def origin(request: bytes) -> int:
    """Return the source of a write request."""
    return request[1] >> 5
