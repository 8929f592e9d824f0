"""CtxMgt's gateware as a device's context manager, in lockstep with the software's: the Verilog executes every request.

Host memory accesses, statuses and responses are the gateware's. The software's modules perform the same steps on the
cache of the data path, without accessing memory, and must give the same results, bit for bit and in order.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

from rnic.context import messages as m
from rnic.context.ceu_parser import KIND
from rnic.context.ctxmdata import PAGE_BYTES, PAGE_SHIFT, QP
from rnic.context.ctxmgt import LOG_MAX_EQS, ContextManager, Status
from rnic.context.readctx import ReadCtx
from rnic.context.writectx import WriteCtx
from rnic.gateware.ctxmgt.driver import InProcess
from rnic.gateware.ctxmgt.key_qpc_data import WRITES
from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.streams import BEAT_BYTES
from rnic.gateware.ctxmgt.top import CtxMgt
from rnic.gateware.verilated import Library
from rnic.mem.dma import DmaPort
from rnic.spec.limits import FIRST_QPN
from rnic.trace.counters import Counters

PAGES_END: Final = 1 << 64 - PAGE_SHIFT


class DisagreementError(AssertionError):
    """Gateware and software disagree: an internal error."""


def component(log_qps: int) -> CtxMgt:
    """Return the component whose library :func:`rnic.gateware.verilated.build` makes, for a device of ``2**log_qps``
    queue pairs."""
    return CtxMgt(CtxMgtParams(log_qps=log_qps, log_eqs=LOG_MAX_EQS))


class Transfer(NamedTuple):
    """One DMA transfer of the gateware, and whether it succeeded."""

    port: DmaPort
    addr: int
    data: bytes
    ok: bool


class Bus:
    """Lent pages at addresses of one bus: each lender has its own addresses, the gateware has one address space."""

    def __init__(self) -> None:
        self._next = 1
        self._pages: dict[int, tuple[DmaPort, int]] = {}
        """Port and page of its memory, by page of the bus."""
        self._lent: dict[int, int] = {}
        """Page of the bus by page of context memory."""
        self._new: list[tuple[int, int, DmaPort, int]] = []
        self.reads: deque[Transfer] = deque()
        self.writes: deque[Transfer] = deque()

    def map(self, payload: bytes, port: DmaPort) -> bytes:
        """Return MAP_ICM_EN's payload for the gateware; call :meth:`mapped` once it succeeded."""
        out, self._new = b"", []
        for at in range(0, len(payload), m.CHUNK.size):
            chunk = m.CHUNK.unpack(payload, at)
            # leave pages without memory unchanged, for the gateware to refuse
            if chunk["page"] + chunk["pages"] <= PAGES_END:
                self._new += [
                    (chunk["virt"] // PAGE_BYTES + page, self._next + page, port, chunk["page"] + page)
                    for page in range(chunk["pages"])
                ]
                chunk["page"], self._next = self._next, self._next + chunk["pages"]
            out += m.CHUNK.pack(chunk)
        return out

    def mapped(self) -> None:
        """Use the pages of :meth:`map`."""
        for virt, page, port, host in self._new:
            self._lent[virt] = page
            self._pages[page] = port, host

    def unmapped(self, virt: int, pages: int) -> None:
        """Remove pages of context memory."""
        for page in range(virt // PAGE_BYTES, virt // PAGE_BYTES + pages):
            self._pages.pop(self._lent.pop(page), None)

    def clear(self) -> None:
        """Remove all pages."""
        self._pages.clear()
        self._lent.clear()

    def _place(self, addr: int) -> tuple[DmaPort, int] | None:
        found = self._pages.get(addr >> PAGE_SHIFT)
        return None if found is None else (found[0], found[1] << PAGE_SHIFT | addr % PAGE_BYTES)

    def read(self, addr: int, count: int) -> bytes | None:
        """Read host memory for the gateware; return ``None`` on failure."""
        place = self._place(addr)
        if place is None:
            return None
        data = bytearray(count)
        ok = place[0].read(place[1], data)
        self.reads.append(Transfer(*place, bytes(data), ok))
        return bytes(data) if ok else None

    def write(self, addr: int, data: bytes) -> bool:
        """Write host memory for the gateware; return whether that succeeded."""
        place = self._place(addr)
        if place is None:
            return False
        ok = place[0].write(place[1], data)
        self.writes.append(Transfer(*place, data, ok))
        return ok


class _Done:
    """DMA port that checks one transfer against the one that the gateware has already made."""

    def __init__(self, port: DmaPort, done: Transfer) -> None:
        if port is not done.port:
            raise DisagreementError("another's page")
        self._done = done

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        self._same(va, len(buf), None)
        buf[:] = self._done.data
        return self._done.ok

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        self._same(va, len(data), bytes(data))
        return self._done.ok

    def views(self, va: int, length: int) -> memoryview | None:
        return None

    def _same(self, va: int, length: int, data: bytes | None) -> None:
        done = self._done
        if (va, length) != (done.addr, len(done.data)) or data not in (None, done.data):
            raise DisagreementError(f"gateware moved {done.data.hex()} at {done.addr:#x}, software does at {va:#x}")


class _Reads(ReadCtx):
    """readctx that follows the gateware's transfers."""

    def __init__(self, done: deque[Transfer]) -> None:
        super().__init__()
        self._done = done

    def finish(self) -> bool:
        if not self.dma or not self._done:
            return False
        self.dma[0] = self.dma[0]._replace(port=_Done(self.dma[0].port, self._done.popleft()))
        return super().finish()


class _Writes(WriteCtx):
    """writectx that follows the gateware's transfers."""

    def __init__(self, done: deque[Transfer]) -> None:
        super().__init__()
        self._done = done

    def finish(self) -> tuple[bytes, bool] | None:
        if not self.dma or len(self._done) < len(self.dma[0][1]):
            return None
        request, writes = self.dma[0]
        self.dma[0] = request, tuple(each._replace(port=_Done(each.port, self._done.popleft())) for each in writes)
        return super().finish()


class GatewareContexts(ContextManager):
    """One device's contexts, managed by the gateware.

    Requests that the device itself refuses (:attr:`~rnic.context.ceu_parser.CeuParser.admit`, pages without a lender)
    or that cannot be encoded (a payload of a partial beat) do not reach the gateware. Neither do channel requests for a
    queue pair that is not cached: 002 has no message to evict a single one, so the gateware still has it.

    Args:
        library: library of :func:`component`, built for the same number of queue pairs.
        log_qps: this and further arguments as for :class:`~rnic.context.ctxmgt.ContextManager`.

    Raises:
        ValueError: the first QPN differs from the gateware's.
    """

    def __init__(self, library: Library, log_qps: int, counters: Counters, **more: Any) -> None:
        if more.get("first_qpn", FIRST_QPN) != FIRST_QPN:
            raise ValueError(f"first_qpn={more['first_qpn']}: the gateware's is {FIRST_QPN}")
        super().__init__(log_qps, counters, **more)
        self._bus = Bus()
        self.readctx = self.ctxmdata.readctx = _Reads(self._bus.reads)
        self.writectx = self.ctxmdata.writectx = self.parser.writectx = _Writes(self._bus.writes)
        self.gateware = InProcess(library, self._bus.read, self._bus.write)
        self._edits: dict[tuple[str, int], None] = {}
        self._answered: dict[int, deque[bool]] = {source: deque() for source in m.ENGINES}
        """True for each waiting response that is the gateware's."""

    # ------------------------------------------------------------------------------ the CEU

    def carry_out(self, header: bytes, payload: bytes, port: DmaPort | None) -> tuple[Status, bytes, bytes]:
        """Execute a CEU request in both."""
        if self._refused_before(header, payload, port):
            return super().carry_out(header, payload, port)
        row = m.BY_CODE.get((header[0] >> 4, header[0] & 15))
        maps = row is not None and row.name == "MAP_ICM_EN"
        carried = self._bus.map(payload, port) if maps and port is not None else payload
        status, answer, data = self.gateware.ceu(header, carried)
        expected = super().carry_out(header, payload, port)
        if expected[0] != status or (status == Status.OK and expected != (status, answer, data)):
            raise DisagreementError(f"{header.hex()}: gateware {status.name} {data.hex()}, software {expected}")
        if status == Status.OK and row is not None and row.kind == m.METADATA:
            if maps:
                self._bus.mapped()
            elif row.name == "MAP_ICM_DIS":
                self._bus.unmapped(int.from_bytes(header[8:], "big"), int.from_bytes(header[4:8], "big"))
            else:
                self._bus.clear()
        return expected

    def _refused_before(self, header: bytes, payload: bytes, port: DmaPort | None) -> bool:
        row = m.BY_CODE.get((header[0] >> 4, header[0] & 15))
        if row is None:
            return len(payload) % BEAT_BYTES != 0
        if len(payload) % BEAT_BYTES:
            return True
        if row.name == "MAP_ICM_EN":
            return port is None
        number = int.from_bytes(header[4:8], "big")
        return bool(
            payload
            and row.kind == m.WRITE
            and len(payload) in row.payloads
            and not self.parser.admits(KIND[row.type], number, payload)
        )

    # ------------------------------------------------------------------------------ the engines

    def request(self, source: int, command: bytes, payload: bytes = b"") -> bool:
        """Execute an engine's request in both, to completion."""
        waiting = len(self.key.responses[source - 1]) if source in m.ENGINES else 0
        if not super().request(source, command, payload):
            return False
        own = WRITES.get(source)
        writes = own is not None and command[0] == m.WR_QP_CXT << 4 | own[0]
        asked = int.from_bytes(command[1:4], "big") in self.key.qps and (len(payload) == BEAT_BYTES // 2 or not writes)
        if asked:
            self.gateware.request(source, command, payload)
        self.run()
        self._answered[source].extend([asked] * (len(self.key.responses[source - 1]) - waiting))
        return True

    def response(self, source: int) -> tuple[bytes, bytes] | None:
        """Return the gateware's oldest response on a channel."""
        expected = super().response(source)
        if expected is None or not self._answered[source].popleft():
            return expected
        self.gateware.settle()
        command = self.gateware.responses[source].popleft()
        payload = self.gateware.contexts[source].popleft() if expected[1] else b""
        if (command, payload) != expected:
            name = m.SOURCE_NAMES[source]
            raise DisagreementError(f"{name}, {command.hex()}: gateware {payload.hex()}, software {expected[1].hex()}")
        return command, payload

    def run(self) -> None:
        """Run the gateware until it is idle, then the software."""
        self.gateware.stalled = self.stalled
        self.gateware.settle()
        super().run()
        if not self.stalled and (self._bus.reads or self._bus.writes):
            raise DisagreementError("the gateware has made DMA transfers that the software has not")

    # ------------------------------------------------------------------- changes without a message

    def load_qp(self, qpn: int) -> Status:
        """Fill both caches from host memory."""
        status = super().load_qp(qpn)
        if status == Status.OK and qpn in self.key.qps:
            self._silently(m.WR_QP_CXT, m.WR_QP_ALL, qpn, self.key.qps.view(qpn).store())
        return status

    def load(self, kind: str, number: int) -> Status:
        """Fill both caches from host memory."""
        data = None if kind == QP else self.peek(kind, number)
        status = super().load(kind, number)
        if status == Status.OK and data is not None:
            self.store(kind, number, data)
        return status

    def _edit(self, kind: str, number: int) -> None:
        self._edits[kind, number] = None
        super()._edit(kind, number)

    def level(self) -> None:
        """Write cache entries that were changed directly to the gateware, as whole contexts and without checks."""
        edits, self._edits = self._edits, {}
        admit, self.parser.admit = self.parser.admit, None
        try:
            for kind, number in edits:
                if number in dict(self._caches)[kind]:
                    self.flush_one(kind, number)
        finally:
            self.parser.admit = admit

    def close(self) -> None:
        """Free the simulation."""
        self.gateware.close()
