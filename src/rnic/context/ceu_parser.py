"""ceu_parser: parses the command unit's requests (002 5.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rnic.context.ctxmdata import CQ, EQ, QP, CtxMData
from rnic.context.eqc import merged_mask
from rnic.context.fifo import Fifo
from rnic.context.key_qpc_data import KeyQpcData
from rnic.context.machines import CEU_PARSER, Machine
from rnic.context.messages import (
    BY_CODE,
    CEU,
    EQ_DISABLE,
    KEY_WORDS,
    METADATA,
    READ,
    WR_CQ_CXT,
    WR_EQ_CXT,
    WR_EQ_FUNC,
    WR_QP_CXT,
    WRITE,
)
from rnic.context.writectx import WriteCtx
from rnic.mem.dma import DmaPort

EXTRACT_BYTES: Final = 48
"""Width of an extract FIFO, 384 bits: 12 QPC words; the last three of the second FIFO are zero."""
KIND: Final = {WR_QP_CXT: QP, WR_CQ_CXT: CQ, WR_EQ_CXT: EQ}
"""Kind of context that each message type writes."""
Admit = Callable[[str, int, bytes], str]
"""Function from kind, number and bytes of a context to the name of the field that the device refuses, empty if none."""


def extract(qpc: bytes) -> bytes:
    """Return the key words of a QPC: 48 bytes for the first extract FIFO, 48 for the second."""
    return b"".join(qpc[at : at + 4] for at in KEY_WORDS).ljust(2 * EXTRACT_BYTES, b"\0")


class CeuParser:
    """The module. ``fifo`` holds header, payload and the DMA port of MAP_ICM's pages.

    The request to key_qpc_data is ``held`` until the context is in host memory, so a refused or failed write leaves the
    cache unchanged; until then no other request is parsed. :attr:`admit` is called for every context before it is
    written; :attr:`wrong` is the field for which it refused the last context, or empty.
    """

    __slots__ = ("admit", "ctxmdata", "fifo", "held", "key", "machine", "refused", "writectx", "wrong")

    def __init__(self, ctxmdata: CtxMData, writectx: WriteCtx, key: KeyQpcData) -> None:
        self.ctxmdata = ctxmdata
        self.writectx = writectx
        self.key = key
        self.admit: Admit | None = None
        self.machine = Machine("ceu_parser", CEU_PARSER)
        self.fifo: Fifo[tuple[bytes, bytes, DmaPort | None]] = Fifo()
        self.held: tuple[bytes, bytes] | None = None
        self.refused = False
        self.wrong = ""

    def step(self) -> bool:
        """Parse one request; return false if there is none, or if the previous one has not reached the cache."""
        if self.held is not None or not self.fifo or self.key.channels[0]:
            return False
        self.machine.step("request")
        self.wrong = ""
        header, payload, port = self.fifo.popleft()
        kind, opcode = header[0] >> 4, header[0] & 15
        row = BY_CODE.get((kind, opcode))
        function = (kind, opcode) == (WR_EQ_CXT, WR_EQ_FUNC)
        number = int.from_bytes(header[4:8], "big")
        if (
            row is None
            or CEU not in row.sources
            or len(payload) not in row.payloads
            or (function and number & EQ_DISABLE - 1 not in self.key.eqs)
            or (payload and row.kind == WRITE and not self.admits(KIND[kind], number, payload))
        ):
            self.machine.step("refused")
            self.refused = True
        elif row.kind == METADATA:
            self.ctxmdata.ceu_fifo.append((header, payload, port))
            self.machine.step("metadata")
        elif row.kind == READ:
            self.ctxmdata.ceu_fifo.append((header, b"", None))
            self.machine.step("read")
        else:
            data = payload
            if kind == WR_QP_CXT:
                data = extract(payload)
            elif function:
                # the 35-bit request has no room for disable bit and mask, so the data FIFO carries them
                data = header[4:8] + header[12:]
                types, before = int.from_bytes(header[12:], "big"), self.key.eqs[number & EQ_DISABLE - 1].event_mask
                # write the merged mask, as in the cache, not the request's types
                header = header[:12] + merged_mask(before, types, bool(number & EQ_DISABLE)).to_bytes(4, "big")
            request = kind << 31 | opcode << 27 | CEU << 24 | number & 0xFFFFFF
            self.held = request.to_bytes(5, "big"), data
            if payload:
                self.writectx.ctxdata.append(payload)
            self.ctxmdata.ceu_fifo.append((header, payload, None))
            self.machine.step("write")
        return True

    def admits(self, kind: str, number: int, image: bytes) -> bool:
        """Return whether the device accepts a context; if not, :attr:`wrong` is the offending field."""
        self.wrong = "" if self.admit is None else self.admit(kind, number, image)
        return not self.wrong
