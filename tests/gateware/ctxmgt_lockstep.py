"""CtxMgt's gateware and the software's CtxMgt side by side: every event of the one is a step of the other.

The bench sees the gateware's ports once a cycle and says what they are in the next, whatever simulates them. At each
event (``rnic.gateware.ctxmgt.top.EVENTS``) the golden model makes the step of the same name, and what comes out is
compared: DMA requests and data, answers, statuses, counters, in order and bit for bit; so are the golden model's own
choices, of a channel and between the CEU and write-backs.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from rnic.context import messages as m
from rnic.context.ctxmgt import ContextManager, Status
from rnic.gateware.ctxmgt.driver import beats_of
from rnic.gateware.ctxmgt.key_qpc_data import WRITES
from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.streams import BEAT_BYTES, FAILED_BIT
from rnic.gateware.ctxmgt.top import EVENTS
from rnic.trace.counters import Counters

ERROR = 1 << FAILED_BIT
QUIET = 16
"""Cycles; a request that the golden model has dropped is longer on its way in the gateware."""
COUNTED = {
    "refused": "ctx_refused",
    "unmapped": "ctx_unmapped",
    "unknown_qp": "ctx_unknown_qps",
    "bad_payload": "ctx_bad_payloads",
    "bad_request": "ctx_bad_requests",
}


class Memory:
    """Host memory of both: what the gateware did to it is what the golden model's port repeats."""

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}

    def read(self, addr: int, count: int) -> bytes:
        return bytes(self.bytes.get(addr + at, 0) for at in range(count))

    def write(self, addr: int, data: bytes) -> None:
        self.bytes.update(enumerate(data, addr))


@dataclass
class Transfer:
    """One DMA transfer of the gateware, and how it ended."""

    addr: int
    data: bytes
    ok: bool = True


class Replay:
    """The golden model's DMA port: its transfers must be the gateware's, and end as those."""

    def __init__(self) -> None:
        self.writes: deque[Transfer] = deque()
        self.reads: deque[Transfer] = deque()

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        done = self.writes.popleft()
        assert (done.addr, done.data) == (va, bytes(data)), "another DMA write"
        return done.ok

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        done = self.reads.popleft()
        assert (done.addr, len(done.data)) == (va, len(buf)), "another DMA read"
        buf[:] = done.data
        return done.ok

    def views(self, va: int, length: int) -> memoryview | None:
        return None


@dataclass
class Answer:
    """Beats of a DMA response, and the cycle from which on it may come."""

    due: int
    tuser: int
    beats: list[int] = field(default_factory=list)


class Stalled:
    """A choice at random."""

    def __init__(self, rng: random.Random, share: float) -> None:
        self.rng, self.share = rng, share

    def __call__(self) -> bool:
        return self.share > 0 and self.rng.random() < self.share


class Outputs(Protocol):
    """The gateware's outputs by name."""

    def __getitem__(self, name: str, /) -> int: ...

    def get(self, name: str, default: int, /) -> int: ...


class Lockstep:
    """One run. Requests are queued by :meth:`ceu` and :meth:`engine`; :attr:`statuses` and :attr:`answers` have come.

    Args:
        stalls: share of cycles in which each ready, and each valid of ours, is low.
        latency: cycles until host memory answers, at least and at most.
        errors: share of DMA transfers that fail.
    """

    def __init__(
        self, params: CtxMgtParams, seed: int = 1, stalls: float = 0.0, latency: tuple[int, int] = (1, 1),
        errors: float = 0.0,
    ) -> None:  # fmt: skip
        self.params = params
        self.rng = random.Random(seed)
        self.stall = Stalled(self.rng, stalls)
        self.fail = Stalled(self.rng, errors)
        self.latency = latency
        self.memory = Memory()
        self.port = Replay()
        self.golden = ContextManager(params.log_qps, Counters(), log_eqs=params.log_eqs, infiniband=params.infiniband)
        self.cycle_number = self._quiet_since = 0
        self.refuse_all: set[str] = set()
        """Outputs that are not taken, by name."""
        self.ceu_queue: deque[tuple[int, list[int], bytes, bytes]] = deque()
        self.statuses: list[Status] = []
        self.expected_statuses: deque[Status] = deque()
        self.read_back: list[tuple[bytes, bytes]] = []
        self.commands: dict[int, deque[bytes]] = {source: deque() for source in m.ENGINES}
        self.payloads: dict[int, deque[bytes]] = {source: deque() for source in WRITES}
        self.accepted: dict[int, deque[bytes]] = {source: deque() for source in m.ENGINES}
        self.accepted_payloads: dict[int, deque[bytes]] = {source: deque() for source in WRITES}
        self.expected: dict[str, deque[int]] = {}
        self.answers: dict[int, list[tuple[bytes, bytes]]] = {source: [] for source in m.ENGINES}
        self.serving: list[int] = []
        """Channels in the order in which they were served."""
        self.counted = dict.fromkeys(EVENTS, 0)
        self.reads: deque[Answer] = deque()
        self.writes: deque[Answer] = deque()
        self.transfers: list[Transfer] = []
        self._burst: list[int] = []
        self._got: dict[str, list[int]] = {}
        self._parsing: deque[tuple[bytes, bytes]] = deque()
        self._reply: list[int] = []
        self._read_header = b""
        self.inputs: dict[str, int] = {}
        self._shown: dict[str, object] = {}

    # ------------------------------------------------------------------------------ what to do

    def ceu(self, header: bytes, payload: bytes = b"", beats: list[int] | None = None) -> None:
        """Queue a request of the command unit."""
        self.ceu_queue.append((int.from_bytes(header, "big"), beats or beats_of(header, payload), header, payload))

    def engine(self, source: int, command: bytes, payload: bytes = b"") -> None:
        """Queue a command of an engine."""
        self.commands[source].append(command)
        if payload:
            self.payloads[source].append(payload)

    @property
    def idle(self) -> bool:
        """Everything that was asked for has been answered, and for some cycles nothing more has happened."""
        if self._busy:
            self._quiet_since = self.cycle_number
        return self.cycle_number - self._quiet_since >= QUIET

    @property
    def _busy(self) -> bool:
        golden = self.golden
        return bool(
            self.ceu_queue
            or self._parsing
            or self.expected_statuses
            or any(self.commands.values())
            or any(self.accepted.values())
            or any(self.expected.values())
            or golden.key.key_fifo
            or golden.ctxmdata.ceu_fifo
            or golden.writectx.fifo
            or golden.writectx.dma
            or golden.readctx.dma
            or golden.parser.held
            or any(golden.key.channels)
        )

    def finish(self) -> None:
        """At the end of a run: nothing is left over, and both have counted the same."""
        assert self.idle
        assert not self.port.writes
        assert not self.port.reads
        counters = self.golden.counters
        assert {name: self.counted[name] for name in COUNTED} == {
            name: counters[counter] for name, counter in COUNTED.items()
        }

    # ------------------------------------------------------------------------------ a cycle

    def cycle(self, pins: Outputs) -> dict[str, int]:
        """Sample the gateware's outputs before a clock edge; its inputs after the edge."""
        self.cycle_number += 1
        self._events(pins["events"], pins)
        self._take_outputs(pins)
        return self._drive(pins)

    def _events(self, events: int, pins: Outputs) -> None:
        """In the order in which the modules see what is in their FIFOs: whoever takes goes before whoever gives."""
        seen = {name for place, name in enumerate(EVENTS) if events >> place & 1}
        for name in seen:
            self.counted[name] += 1
        golden = self.golden
        if "chose" in seen:
            self._choose(pins["waiting"])
        if "wrote" in seen:
            failed = golden.counters["ctx_dma_errors"]
            held = golden.parser.held is not None
            golden.finish_write()
            bad = golden._ceu_status == Status.DMA_ERROR and held
            assert ("write_failed" in seen) == (bad or golden.counters["ctx_dma_errors"] > failed)
            self._settle(bad)
        if "read" in seen:
            assert golden.readctx.finish()
            answer, data = golden.readctx.answers.popleft()
            assert ("read_failed" in seen) == (data is None)
            if data is None:
                golden._ceu_status = Status.DMA_ERROR
            else:
                self._expect("ceu_rsp_header", int.from_bytes(answer, "big"))
                for at in range(0, len(data), BEAT_BYTES):
                    self._expect("ceu_rsp", int.from_bytes(data[at : at + BEAT_BYTES], "big"))
            self._settle(True)
        if "writes" in seen:
            assert golden.writectx.step(), "no request for writectx"
        if "took_ceu" in seen or "took_key" in seen:
            assert bool(golden.ctxmdata.ceu_fifo) == ("took_ceu" in seen), "the CEU goes first"
            metadata = "took_ceu" in seen and golden.ctxmdata.ceu_fifo[0][0][0] >> 4 in (m.WR_ICMMAP_CXT, m.MAP_ICM_CXT)
            assert golden.translate(), "no request for ctxmdata"
            self._settle("took_ceu" in seen and (metadata or golden._ceu_status == Status.REFUSED))
        if "received" in seen:
            self._serve(pins["selected_channel"])
        if "forgot" in seen:
            assert golden.ctxmdata.forget
            golden.forget()
        if "parsed" in seen:
            header, payload = self._parsing.popleft()
            golden.parser.fifo.append((header, payload, self.port))
            golden._ceu_status = Status.OK
            assert golden.parse(), "the parser was not free"
            self._settle(golden._ceu_status == Status.REFUSED)

    def _settle(self, done: bool) -> None:
        """The CEU's request has come to an end: its status must come."""
        if done:
            self.expected_statuses.append(self.golden._ceu_status)

    def _choose(self, waiting: int) -> None:
        """The golden controller sees what the gateware's sees, and must choose as it did."""
        channels = self.golden.key.channels
        assert bool(waiting & 1) == bool(channels[0])
        for source in m.ENGINES:
            queue, held = self.accepted[source], channels[source - 1]
            if waiting >> source - 1 & 1:
                if not held:
                    command = queue.popleft()
                    writes = source in WRITES and command[0] == m.WR_QP_CXT << 4 | WRITES[source][0]
                    held.append((command, self.accepted_payloads[source].popleft() if writes else b""))
            elif held:
                command, payload = held.popleft()
                queue.appendleft(command)
                if payload:
                    self.accepted_payloads[source].appendleft(payload)
        self.golden.key.controller.select()

    def _serve(self, selected: int) -> None:
        assert self.golden.key.controller.selected_channel == selected, "another channel"
        channel = self.golden.serve()
        self.serving.append(channel)
        if channel == 0:
            self._settle(True)
            return
        name = m.SOURCE_NAMES[channel + 1]
        answer = self.golden.response(channel + 1)
        if answer is not None:
            command, payload = answer
            self._expect(f"{name}_resp", int.from_bytes(command, "big"))
            if payload:
                self._expect(f"{name}_cxt", int.from_bytes(payload, "little"))
            self.answers[channel + 1].append(answer)

    def _expect(self, port: str, value: int) -> None:
        self.expected.setdefault(port, deque()).append(value)

    # ------------------------------------------------------------------------------ outputs

    def _taken(self, pins: Outputs, port: str) -> bool:
        """A beat of an output is taken at this edge. Once valid, it stays as it is until then."""
        valid, ready = pins[f"{port}_tvalid"], self.inputs.get(f"{port}_tready", 0)
        parts = tuple(pins.get(f"{port}_{part}", 0) for part in ("tdata", "tuser", "tlast")) if valid else None
        before = self._shown.get(port)
        assert before is None or before == parts, f"{port}: a beat was taken back or changed"
        self._shown[port] = None if ready else parts
        return bool(valid and ready)

    def _take_outputs(self, pins: Outputs) -> None:
        if self._taken(pins, "ceu_status"):
            self.statuses.append(Status(pins["ceu_status_tdata"]))
            assert self.expected_statuses, "a status that the golden model has not"
            assert self.statuses[-1] == self.expected_statuses.popleft()
        if self._taken(pins, "ceu_rsp"):
            self._compare_read(pins)
        for source in m.ENGINES:
            for port in (f"{m.SOURCE_NAMES[source]}_resp", f"{m.SOURCE_NAMES[source]}_cxt"):
                if self._taken(pins, port):
                    assert self.expected.get(port), f"{port}: nothing was to come"
                    assert pins[f"{port}_tdata"] == self.expected[port].popleft(), port
        due = self.cycle_number + self.rng.randint(*self.latency)
        if self._taken(pins, "dma_cm_rd_req"):
            assert pins["dma_cm_rd_req_tlast"] == 1
            assert pins["dma_cm_rd_req_tdata"] == 0
            self._dma_read(pins["dma_cm_rd_req_tuser"], due)
        if self._taken(pins, "dma_cm_wr_req"):
            self._burst.append(pins["dma_cm_wr_req_tdata"])
            if pins["dma_cm_wr_req_tlast"]:
                self._dma_write(pins["dma_cm_wr_req_tuser"], due)

    def _compare_read(self, pins: Outputs) -> None:
        """The beats go out as they come in, before their last: the golden answer comes with that."""
        self._reply.append(pins["ceu_rsp_tdata"])
        self._got.setdefault("headers", []).append(pins["ceu_rsp_tuser"])
        if pins["ceu_rsp_tlast"]:
            headers = set(self._got.pop("headers"))
            assert headers == {self.expected["ceu_rsp_header"].popleft()}
            want = [self.expected["ceu_rsp"].popleft() for _ in self._reply]
            assert self._reply == want
            assert not self.expected["ceu_rsp"]
            data = b"".join(beat.to_bytes(BEAT_BYTES, "big") for beat in self._reply)
            self.read_back.append((headers.pop().to_bytes(16, "big"), data))
            self._reply = []

    def _dma_read(self, tuser: int, due: int) -> None:
        header = m.DMA_HEADER.unpack(tuser.to_bytes(16, "big"))
        data, ok = self.memory.read(header["addr"], header["len"]), not self.fail()
        self.port.reads.append(Transfer(header["addr"], data, ok))
        beats = [int.from_bytes(data[at : at + BEAT_BYTES], "big") for at in range(0, len(data), BEAT_BYTES)]
        self.reads.append(Answer(due, tuser | (0 if ok else ERROR), beats if ok else [0]))

    def _dma_write(self, tuser: int, due: int) -> None:
        header = m.DMA_HEADER.unpack(tuser.to_bytes(16, "big"))
        whole = b"".join(beat.to_bytes(BEAT_BYTES, "big") for beat in self._burst)
        self._burst = []
        data = whole[: header["len"]]
        assert -len(data) % BEAT_BYTES == len(whole) - len(data), "beats and length differ"
        assert not any(whole[len(data) :]), "what does not fill a beat is zero"
        ok = not self.fail()
        if ok:
            self.memory.write(header["addr"], data)
        self.port.writes.append(Transfer(header["addr"], data, ok))
        self.transfers.append(Transfer(header["addr"], data, ok))
        self.writes.append(Answer(due, tuser | (0 if ok else ERROR)))

    # ------------------------------------------------------------------------------ inputs

    def _sent(self, pins: Outputs, port: str) -> bool:
        return bool(self.inputs.get(f"{port}_tvalid") and pins[f"{port}_tready"])

    def _drive(self, pins: Outputs) -> dict[str, int]:
        inputs = self.inputs
        sent = {port: self._sent(pins, port) for port in self._sources()}
        if sent["ceu_req"]:
            _, beats, header, payload = self.ceu_queue[0]
            beats.pop(0)
            if not beats:
                self.ceu_queue.popleft()
                self._parsing.append((header, payload))
        for source in m.ENGINES:
            name = m.SOURCE_NAMES[source]
            if sent[f"{name}_cmd"]:
                self.accepted[source].append(self.commands[source].popleft())
            if source in WRITES and sent[f"{name}_cxt_in"]:
                self.accepted_payloads[source].append(self.payloads[source].popleft())
        if sent["dma_cm_rd_rsp"]:
            self.reads[0].beats.pop(0)
            if not self.reads[0].beats:
                self.reads.popleft()
        if sent["dma_cm_wr_rsp"]:
            self.writes.popleft()

        new: dict[str, int] = {}
        for port, beat in self._offers().items():
            held = inputs.get(f"{port}_tvalid") and not sent[port]
            if beat is None or (not held and self.stall()):
                new[f"{port}_tvalid"] = 0
            else:
                new[f"{port}_tvalid"] = 1
                new |= {f"{port}_{part}": value for part, value in beat.items()}
        for port in self._sinks():
            new[f"{port}_tready"] = int(port not in self.refuse_all and not self.stall())
        self.inputs = inputs | new
        return new

    @staticmethod
    def _sources() -> list[str]:
        names = ["ceu_req", "dma_cm_rd_rsp", "dma_cm_wr_rsp"]
        names += [f"{m.SOURCE_NAMES[source]}_cmd" for source in m.ENGINES]
        return names + [f"{m.SOURCE_NAMES[source]}_cxt_in" for source in WRITES]

    @staticmethod
    def _sinks() -> list[str]:
        names = ["ceu_status", "ceu_rsp", "dma_cm_rd_req", "dma_cm_wr_req"]
        return names + [f"{m.SOURCE_NAMES[source]}_{suffix}" for source in m.ENGINES for suffix in ("resp", "cxt")]

    def _offers(self) -> dict[str, dict[str, int] | None]:
        """What each of our sources would show."""
        out: dict[str, dict[str, int] | None] = dict.fromkeys(self._sources())
        if self.ceu_queue:
            tuser, beats, _, payload = self.ceu_queue[0]
            last, keep = int(len(beats) == 1), int(bool(payload))
            out["ceu_req"] = {"tuser": tuser, "tdata": beats[0], "tlast": last, "tkeep": keep}
        for source in m.ENGINES:
            if self.commands[source]:
                command = int.from_bytes(self.commands[source][0], "big")
                out[f"{m.SOURCE_NAMES[source]}_cmd"] = {"tdata": command}
        for source, queue in self.payloads.items():
            if queue:
                out[f"{m.SOURCE_NAMES[source]}_cxt_in"] = {"tdata": int.from_bytes(queue[0], "big")}
        if self.reads and self.reads[0].due <= self.cycle_number:
            answer = self.reads[0]
            beat = {"tuser": answer.tuser, "tdata": answer.beats[0], "tlast": int(len(answer.beats) == 1)}
            out["dma_cm_rd_rsp"] = beat
        if self.writes and self.writes[0].due <= self.cycle_number:
            out["dma_cm_wr_rsp"] = {"tdata": self.writes[0].tuser}
        return out
