"""readctx: DMA reads of whole QPCs, and the responses to the CEU (002 5.5)."""

from __future__ import annotations

from typing import NamedTuple

from rnic.context.fifo import Fifo
from rnic.context.messages import DMA_HEADER, READ_REQUEST
from rnic.mem.dma import DmaPort


class DmaRead(NamedTuple):
    """A pending DMA read: its port, and the 128-bit header {0, addr64, 0, len12}."""

    port: DmaPort
    header: bytes


class ReadCtx:
    """The module. ``pending`` is the queue of request metadata (type, opcode and QPN as in the CEU's header).

    ``dma`` holds pending reads, ``answers`` the responses to the CEU: header and QPC bytes, or ``None`` if the read
    failed.
    """

    __slots__ = ("answers", "dma", "pending")

    def __init__(self) -> None:
        self.pending: Fifo[bytes] = Fifo()
        self.dma: Fifo[DmaRead] = Fifo()
        self.answers: Fifo[tuple[bytes, bytes | None]] = Fifo()

    def request(self, port: DmaPort, request: bytes, header: bytes) -> None:
        """Accept ctxmdata's read request, a :data:`~rnic.context.messages.READ_REQUEST` of 108 bits.

        Its DMA header is {0, addr64, 0, len12}; the pending metadata has type and opcode of the CEU request's header.
        """
        addr, length, qpn = (READ_REQUEST.get(request, name) for name in ("addr", "len", "qpn"))
        self.dma.append(DmaRead(port, (addr << 32 | length).to_bytes(16, "big")))
        self.pending.append(header[:1] + bytes(3) + qpn.to_bytes(4, "big") + bytes(8))

    def finish(self) -> bool:
        """Perform the oldest DMA read and answer the CEU; return false if there is none."""
        if not self.dma:
            return False
        read = self.dma.popleft()
        data = bytearray(DMA_HEADER.get(read.header, "len"))
        done = read.port.read(DMA_HEADER.get(read.header, "addr"), data)
        self.answers.append((self.pending.popleft(), bytes(data) if done else None))
        return True
