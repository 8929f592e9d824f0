"""CtxMgt's Verilog in this process, driven at its ports in place of the CEU, six engines and a DMA engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from rnic.context import messages as m
from rnic.context.ctxmgt import Status
from rnic.gateware.ctxmgt.key_qpc_data import WRITES
from rnic.gateware.ctxmgt.streams import BEAT_BYTES, FAILED_BIT
from rnic.gateware.ctxmgt.top import EVENTS
from rnic.gateware.verilated import Library, Model

QUIET: Final = 24
"""Idle cycles after which nothing is in flight."""
PATIENCE: Final = 4_000_000
"""Cycle limit of a request; 64 chunks of 4095 pages with rollback take two million."""
Beat = dict[str, int]
Read = Callable[[int, int], bytes | None]
Write = Callable[[int, bytes], bool]


def beats_of(header: bytes, payload: bytes) -> list[int]:
    """Return a CEU request's payload in beats; a request without payload is one beat with ``tkeep`` low."""
    beats = [payload[at : at + BEAT_BYTES] for at in range(0, len(payload), BEAT_BYTES)]
    if header[0] >> 4 == m.MAP_ICM_CXT:
        return [int.from_bytes(beat[16:] + beat[:16], "big") for beat in beats] or [0]
    return [int.from_bytes(beat, "big") for beat in beats] or [0]


class InProcess:
    """One CtxMgt under simulation.

    Args:
        library: of :func:`~rnic.gateware.verilated.build`.
        read: reads host memory; returns ``None`` on failure.
        write: writes host memory; returns whether that succeeded.
        latency: memory latency in cycles.
    """

    def __init__(self, library: Library, read: Read, write: Write, latency: int = 1) -> None:
        self._model = Model(library)
        self._read, self._write = read, write
        self.latency = latency
        self.stalled = False
        """True while host memory does not respond."""
        self.counted = dict.fromkeys(EVENTS, 0)
        self.responses: dict[int, deque[bytes]] = {source: deque() for source in m.ENGINES}
        self.contexts: dict[int, deque[bytes]] = {source: deque() for source in m.ENGINES}
        self._statuses: deque[Status] = deque()
        self._answers: list[tuple[bytes, bytes]] = []
        self._burst = b""
        self._queues: dict[str, deque[Beat]] = {name: deque() for name in ("ceu_req", "dma_cm_rd_rsp", "dma_cm_wr_rsp")}
        self._later: deque[tuple[int, str, list[Beat]]] = deque()
        takers: dict[str, Callable[[str], None]] = {
            "ceu_status": self._status,
            "ceu_rsp": self._answer,
            "dma_cm_rd_req": self._dma_read,
            "dma_cm_wr_req": self._dma_write,
        }
        for source in m.ENGINES:
            name = m.SOURCE_NAMES[source]
            self._queues[f"{name}_cmd"] = deque()
            if source in WRITES:
                self._queues[f"{name}_cxt_in"] = deque()
            takers[f"{name}_resp"] = self._into(self.responses[source], "big", m.ENGINE_HEADER.size)
            takers[f"{name}_cxt"] = self._into(self.contexts[source], "little", m.RESPONSES[source].size)
        self._takers = takers
        self._offered: set[str] = set()
        self._model.step({f"{name}_tready": 1 for name in takers})
        while not self._model.outputs["ceu_req_tready"]:
            self._model.step({})

    @property
    def cycles(self) -> int:
        """Clock cycles so far."""
        return self._model.cycles

    def close(self) -> None:
        """Free the simulation."""
        self._model.close()

    # ------------------------------------------------------------------------------ requests

    def ceu(self, header: bytes, payload: bytes = b"") -> tuple[Status, bytes, bytes]:
        """Run a request of the command unit; return status, response header and data.

        Raise ``RuntimeError`` on timeout.
        """
        beats, tuser = beats_of(header, payload), int.from_bytes(header, "big")
        for place, beat in enumerate(beats, 1):
            last, keep = int(place == len(beats)), int(bool(payload))
            self._queues["ceu_req"].append({"tuser": tuser, "tdata": beat, "tlast": last, "tkeep": keep})
        self._answers.clear()
        end = self.cycles + PATIENCE
        while not self._statuses:
            self.cycle()
            if self.cycles > end:
                raise RuntimeError(f"CtxMgt has not answered {header.hex()} in {PATIENCE} cycles")
        answer = self._answers[0][0] if self._answers else b""
        return self._statuses.popleft(), answer, b"".join(beat for _, beat in self._answers)

    def waiting(self, source: int) -> int:
        """Return the number of commands of a channel that its FIFO has not taken."""
        return len(self._queues[f"{m.SOURCE_NAMES[source]}_cmd"])

    def request(self, source: int, command: bytes, payload: bytes = b"") -> None:
        """Queue a command, with a write's payload, on an engine channel."""
        name = m.SOURCE_NAMES[source]
        self._queues[f"{name}_cmd"].append({"tdata": int.from_bytes(command, "big")})
        if payload and source in WRITES and command[0] == m.WR_QP_CXT << 4 | WRITES[source][0]:
            self._queues[f"{name}_cxt_in"].append({"tdata": int.from_bytes(payload, "big")})

    def settle(self) -> None:
        """Run until nothing is in flight except requests to a stalled memory."""
        quiet = 0
        while quiet < QUIET:
            quiet = 0 if self.cycle() else quiet + 1

    # ------------------------------------------------------------------------------ a cycle

    def cycle(self) -> bool:
        """Run one clock cycle; return whether anything was active."""
        pins = self._model.outputs
        events = pins["events"]
        if events:
            for place, name in enumerate(EVENTS):
                self.counted[name] += events >> place & 1
        moved = bool(events or pins["waiting"])
        for port, take in self._takers.items():
            if pins[f"{port}_tvalid"]:
                take(port)
                moved = True
        for port in self._offered:
            if pins[f"{port}_tready"]:
                self._queues[port].popleft()
        while self._later and not self.stalled and self._later[0][0] <= self.cycles:
            _, port, beats = self._later.popleft()
            self._queues[port].extend(beats)
        new: Beat = {f"{port}_tvalid": 0 for port in self._offered}
        self._offered = {port for port, queue in self._queues.items() if queue}
        for port in self._offered:
            new[f"{port}_tvalid"] = 1
            new |= {f"{port}_{part}": value for part, value in self._queues[port][0].items()}
        self._model.step(new)
        return moved or bool(self._offered) or bool(self._later and not self.stalled)

    def _into(self, queue: deque[bytes], order: str, size: int) -> Callable[[str], None]:
        def take(port: str) -> None:
            word = self._model.outputs[f"{port}_tdata"]
            queue.append(word.to_bytes(size, "big" if order == "big" else "little"))

        return take

    def _status(self, port: str) -> None:
        self._statuses.append(Status(self._model.outputs["ceu_status_tdata"]))

    def _answer(self, port: str) -> None:
        pins = self._model.outputs
        header, beat = pins["ceu_rsp_tuser"].to_bytes(16, "big"), pins["ceu_rsp_tdata"].to_bytes(BEAT_BYTES, "big")
        self._answers.append((header, beat))

    def _dma_read(self, port: str) -> None:
        tuser = self._model.outputs["dma_cm_rd_req_tuser"]
        header = m.DMA_HEADER.unpack(tuser.to_bytes(16, "big"))
        data = self._read(header["addr"], header["len"])
        if data is None:
            beats = [{"tuser": tuser | 1 << FAILED_BIT, "tdata": 0, "tlast": 1}]
        else:
            words = [int.from_bytes(data[at : at + BEAT_BYTES], "big") for at in range(0, len(data), BEAT_BYTES)]
            last = len(words) - 1
            beats = [{"tuser": tuser, "tdata": word, "tlast": int(at == last)} for at, word in enumerate(words)]
        self._later.append((self.cycles + self.latency, "dma_cm_rd_rsp", beats))

    def _dma_write(self, port: str) -> None:
        pins = self._model.outputs
        self._burst += pins["dma_cm_wr_req_tdata"].to_bytes(BEAT_BYTES, "big")
        if not pins["dma_cm_wr_req_tlast"]:
            return
        tuser = pins["dma_cm_wr_req_tuser"]
        header = m.DMA_HEADER.unpack(tuser.to_bytes(16, "big"))
        data, self._burst = self._burst[: header["len"]], b""
        failed = 0 if self._write(header["addr"], data) else 1 << FAILED_BIT
        self._later.append((self.cycles + self.latency, "dma_cm_wr_rsp", [{"tdata": tuser | failed}]))
