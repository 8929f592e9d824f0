"""Measure the cycles of a 512-bit :class:`~rnic.gateware.roce.responder_nic.ResponderNic` with a slow memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rnic.context import messages as msg
from rnic.gateware.roce.driver import Around, Fields
from rnic.gateware.roce.frames import SOURCES
from rnic.gateware.roce.mr_table import PAGE_SHIFT, MrTableParams
from rnic.gateware.roce.qp_state import QpStateParams
from rnic.gateware.roce.responder_nic import ResponderNic, ResponderParams
from rnic.gateware.roce.target import MAC, PEER_MAC, frame_of
from rnic.gateware.verilated import Library, Model, build
from rnic.spec.limits import DEFAULT_PKEY
from rnic.spec.opcodes import READ_REQUEST, WRITE_FIRST, WRITE_LAST, WRITE_MIDDLE, WRITE_ONLY
from rnic.spec.states import RTS
from rnic.wire.flow import DONT_FRAGMENT, Flow
from rnic.wire.packet import build as build_packet
from rnic.wire.packet import seal

LATENCY: Final = 120
"""Cycles from a store's last beat, or from a fetch, to memory's answer."""
QPS: Final = 64
KEY: Final = 0x0001_0007
REGION: Final = 1 << 20
BEFORE: Final = 40
"""Packets not counted, while FIFOs fill."""
WINDOW: Final = 180
"""Beats in flight below which another frame is sent: with the longest frame, fewer than the FIFO holds."""
PARAMS: Final = ResponderParams(512, QpStateParams(6), MrTableParams(6, 10))
FLOW: Final = Flow(bytes((10, 0, 0, 2)), bytes((10, 0, 0, 1)), 0xC000)
_IP, _PEER = (int.from_bytes(each, "big") for each in (FLOW.dst, FLOW.src))


class Plain:
    """Memory and software for a measurement: data is discarded, every queue pair is in RTS."""

    def __init__(self, pmtu: int) -> None:
        self.pmtu = pmtu
        self.written = 0
        """Bytes."""

    def read(self, address: int, count: int) -> bytes:
        """Return zeros."""
        return bytes(count)

    def write(self, address: int, data: bytes) -> None:
        """Count the bytes."""
        self.written += len(data)

    def channel(self, command: bytes, payload: bytes) -> tuple[bytes, bytes] | None:
        """Return a context with PSN 0."""
        if payload:
            return None
        values = {"state": RTS, "pmtu": self.pmtu, "qp_pd": 1, "dst_qpn": msg.ENGINE_HEADER.get(command, "addr")}
        return command, msg.EE_RESPONSE.pack(values)

    def take_receive(self, qpn: int, take: bool, keeps: bool) -> Fields:
        """Do nothing."""
        return {}

    def complete(self, completion: Fields) -> None:
        """Does not occur in a measurement."""
        raise AssertionError(completion)

    def lost(self, qpn: int) -> None:
        """Does not occur in a measurement."""
        raise AssertionError(qpn)


class Run:
    """One measurement."""

    def __init__(self, library: Library, pmtu: int) -> None:
        self.host = Plain(pmtu)
        self.around = Around(PARAMS, self.host, MAC, _IP, LATENCY)
        self._model = Model(library)
        settings = {
            "remote_write": 1, "remote_read": 1, "pkey": DEFAULT_PKEY, "peer": _PEER, "mac": PEER_MAC, "sport": 0xC000,
        }  # fmt: skip
        for qpn in range(QPS):
            self.around.put("settings", {"qpn": qpn, "values": settings})
        entry = {"key": KEY, "pd": 1, "length": REGION, "local_write": 1, "remote_write": 1, "remote_read": 1}
        self.around.put("entries", {"index": KEY >> 16, "valid": 1, "entry": entry})
        for page in range(REGION >> PAGE_SHIFT):
            self.around.put("pages", {"index": page, "page": page})
        self.until_idle()

    def cycle(self) -> None:
        """Run one cycle."""
        self._model.step(self.around.cycle(self._model.outputs))

    def until_idle(self) -> None:
        """Run until nothing is in flight."""
        self.around.wake()
        while not self.around.idle:
            self.cycle()

    def rate(self, frames: Iterator[bytes], count: int) -> float:
        """Send frames as fast as it accepts them; return the cycles of each."""
        around, beats = self.around, list[int]()
        done = around.updates
        done.clear()
        while len(done) < count:
            while len(beats) < count and len(beats) - len(done) < SOURCES - 4 and sum(beats[len(done) :]) < WINDOW:
                frame = next(frames)
                beats.append(-(-len(frame) // around.lanes))
                around.frame(frame)
            self.cycle()
            assert not around.dropped, "a frame was dropped"
        return (done[-1] - done[BEFORE]) / (count - 1 - BEFORE)

    def close(self) -> None:
        """Free the simulation."""
        self._model.close()


def _frame(payload: bytes = b"", **fields: Any) -> bytes:
    packet = seal(bytes(build_packet(payload=payload, **fields)), FLOW)
    return frame_of(FLOW, packet, 0, DONT_FRAGMENT, 0)


def writes(size: int, qps: int, pmtu: int) -> Iterator[bytes]:
    """Yield an endless series of WRITEs, round-robin over queue pairs, with AckReq in the last packet of each."""
    psns = [0] * qps
    packets = -(-size // pmtu)
    while True:
        for qpn in range(qps):
            for at in range(packets):
                part = bytes(min(pmtu, size - at * pmtu))
                last = at == packets - 1
                opcode = WRITE_ONLY if packets == 1 else WRITE_FIRST if not at else WRITE_LAST if last else WRITE_MIDDLE
                reth = {"va": 0, "rkey": KEY, "dma_length": size} if not at else {}
                yield _frame(part, opcode=opcode, dqpn=qpn, psn=psns[qpn], ackreq=last, **reth)
                psns[qpn] = psns[qpn] + 1 & 0xFF_FFFF


def measure(directory: Path) -> list[dict[str, Any]]:
    """Return the name and the cycles of each measurement.

    Raises:
        ToolError: the responder cannot be compiled into ``directory``.
    """
    return measure_on(build(ResponderNic(PARAMS), "responder_512", directory))


def measure_on(library: Library) -> list[dict[str, Any]]:
    """Return the same for an already compiled responder."""
    rows: list[dict[str, Any]] = []

    def row(what: str, cycles: float) -> None:
        rows.append({"what": what, "cycles": round(cycles, 1)})

    for pmtu, code, size, qps, count in (
        (1024, 3, REGION, 1, 1024), (4096, 5, REGION, 1, 256), (1024, 3, 64, QPS, 640), (1024, 3, 64, 1, 300),
    ):  # fmt: skip
        run = Run(library, code)
        kind = f"WRITE of {size} bytes" if size < pmtu else "WRITE of 1 MiB"
        row(f"{kind}, PMTU {pmtu}, {qps} queue pair{'s' if qps > 1 else ''}: packet received", run.rate(
            writes(size, qps, pmtu), count))  # fmt: skip
        run.close()
    for pmtu, code in ((1024, 3), (4096, 5)):
        row(f"READ of 256 KiB, PMTU {pmtu}: packet sent", _read(library, pmtu, code))
    stored, acknowledged = _latency(library)
    row("WRITE of 8 bytes: first beat received to bytes at memory", stored)
    row("WRITE of 8 bytes: first beat received to first beat of the ACK, memory's latency in it", acknowledged)
    return rows


def _read(library: Library, pmtu: int, code: int) -> float:
    run, size = Run(library, code), 256 << 10
    run.around.frame(_frame(opcode=READ_REQUEST, dqpn=1, psn=0, va=0, rkey=KEY, dma_length=size))
    packets, done = size // pmtu, list[int]()
    while len(done) < packets:
        run.cycle()
        done += [run.around.cycles] * (len(run.around.sent) - len(done))
    run.close()
    return (done[-1] - done[BEFORE // 4]) / (packets - 1 - BEFORE // 4)


def _latency(library: Library) -> tuple[int, int]:
    run = Run(library, 3)
    frames = writes(8, 1, 1024)
    times = []
    for _ in range(2):  # the first WRITE fetches the context
        run.until_idle()
        run.around.frame(next(frames))
        begun, written, sent = run.around.cycles + 1, run.host.written, len(run.around.sent)
        stored = 0
        while len(run.around.sent) == sent:
            run.cycle()
            stored = stored or (run.around.cycles if run.host.written > written else 0)
        times.append((stored - begun, run.around.cycles - begun))
    run.close()
    return times[1]
