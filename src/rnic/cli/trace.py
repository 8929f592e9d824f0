"""``rnic trace``: trace one operation between two NICs of this process, by stage, for ui.perfetto.dev.

``--attach`` follows a running program's operations instead (:mod:`rnic.cli.trace_attach`).

The lanes are the five components of 000 5.8: software, register interface, transmit path, wire, receive path; and the
context manager of 002, with the requests of the modules at each stage. The data path itself works on typed views of the
same cache; for the trace, the requests are made in message form. Each NIC is a process of the trace. Times are real,
from this machine's clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rnic.cli.files import OutFile
from rnic.cli.trace_attach import MAX_SECONDS, follow
from rnic.context import messages
from rnic.link.base import Link
from rnic.runtime.tap import MAX_SAMPLE
from rnic.testing.pair import QpPair, Side
from rnic.trace.tracer import Tracer
from rnic.verbs import enums as e
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.opcode import OPCODES, OpcodeRow

LANES = ("software", "register interface", "transmit path", "wire", "receive path", "context manager")
SOFTWARE, REGISTERS, TRANSMIT, WIRE, RECEIVE, CONTEXTS = range(len(LANES))
OPERATIONS = {
    "send": e.IBV_WR_SEND,
    "write": e.IBV_WR_RDMA_WRITE,
    "read": e.IBV_WR_RDMA_READ,
    "fetch-add": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
}
_MAX_TURNS = 100_000
_REQUESTS = {row.name: row for row in messages.REQUESTS}
_WRITTEN = {"WR_QP_NPST": "next_send_psn", "WR_QP_UAPST": "last_acked_psn", "WR_QP_EPST": "expected_psn"}


def _place(side: int, lane: int) -> dict[str, int]:
    """Return process and thread numbers of a lane: the viewer reserves 0, and thread numbers are global."""
    return {"pid": side + 1, "tid": (side + 1) * 10 + lane}


class Recorder:
    """Collects trace events."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._start = time.perf_counter_ns()

    def now(self) -> float:
        """Return the microseconds since the start."""
        return (time.perf_counter_ns() - self._start) / 1000

    def add(self, side: int, lane: int, name: str, since: float | None = None, /, **args: int | str) -> None:
        """Add one stage: from ``since`` until now, or an instant."""
        now = self.now()
        begin = now if since is None else since
        row = {"name": name, "ph": "X", "ts": begin, "dur": max(now - begin, 0.1), **_place(side, lane)}
        self.rows.append({**row, "cat": "rdma", "args": args})

    def document(self) -> dict[str, Any]:
        """Return the trace in Chrome's JSON form."""
        names: list[dict[str, Any]] = []
        for side, title in enumerate(("requester NIC", "responder NIC")):
            names.append({"name": "process_name", "ph": "M", "pid": side + 1, "args": {"name": title}})
            for lane, text in enumerate(LANES):
                row = {"name": "thread_name", "ph": "M", **_place(side, lane), "args": {"name": text}}
                names += [row, {**row, "name": "thread_sort_index", "args": {"sort_index": lane}}]
        return {"traceEvents": names + sorted(self.rows, key=lambda row: row["ts"]), "displayTimeUnit": "ns"}


class Channels:
    """Sends requests about one queue pair to a NIC's context manager on the engine's six channels, and records them."""

    def __init__(self, recorder: Recorder, number: int, side: Side) -> None:
        self._recorder = recorder
        self._number = number
        self._qpn = side.qp.qp_num
        self._contexts = side.node.nic.contexts
        self._known = self._numbers()

    def ask(self, name: str, payload: bytes = b"") -> None:
        """Make one request, and record it with the fields of its response."""
        began = self._recorder.now()
        row = _REQUESTS[name]
        source = row.sources[0]
        self._contexts.request(source, messages.engine_request(row.type, row.opcode, self._qpn), payload)
        self._contexts.run()
        answer = self._contexts.response(source)
        fields = (
            messages.ENGINE_WRITE.unpack(payload) if answer is None else messages.RESPONSES[source].unpack(answer[1])
        )
        who = messages.SOURCE_NAMES[source]
        self._recorder.add(self._number, CONTEXTS, name, began, source=who, qpn=self._qpn, **fields)

    def _numbers(self) -> dict[str, int]:
        ctx = self._contexts.key.qps[self._qpn]
        return {name: getattr(ctx, field) for name, field in _WRITTEN.items()}

    def write_back(self) -> None:
        """Write changed state and PSNs to host memory, as RTC, RRC and EE do."""
        numbers = self._numbers()
        for name, psn in numbers.items():
            if psn != self._known[name]:
                self.ask(name, messages.engine_payload(psn, self._contexts.key.qps[self._qpn].state))
        self._known = numbers


class Doorbells(Tracer):
    """One NIC's tracer, which records its doorbells."""

    def __init__(self, recorder: Recorder, number: int, channels: Channels) -> None:
        self.enabled = True
        self._recorder = recorder
        self._number = number
        self._channels = channels

    def event(self, now_ns: int, stage: str, qpn: int, **fields: int | str) -> None:
        """Note a doorbell; other stages are recorded elsewhere."""
        if stage == "doorbell":
            self._recorder.add(self._number, REGISTERS, "doorbell taken", None, qpn=qpn, **fields)
            self._channels.ask("RD_QP_SST")


class Watch:
    """Detects what the device did to one side's queues since the last call."""

    def __init__(self, recorder: Recorder, number: int, side: Side, channels: Channels) -> None:
        self._recorder = recorder
        self._number = number
        self._channels = channels
        nic = side.node.nic
        self._qps = nic.qps
        self._qp = nic.qps[side.qp.qp_num]
        self._fetched = self._qp.requester.fetch_index
        self._tail = self._qp.cqs[0].tail
        self.completed = False

    def look(self) -> None:
        """Record new fetches and CQ entries; do nothing once the queue pair is destroyed."""
        if self._qps.get(self._qp.number) is not self._qp:
            return
        requester, cq = self._qp.requester, self._qp.cqs[0]
        if requester.fetch_index != self._fetched:
            self._recorder.add(self._number, TRANSMIT, "descriptor fetched", index=self._fetched)
            self._fetched = requester.fetch_index
            self._channels.ask("RD_QP_STATE")
            self._channels.ask("RD_QP_NPST")
        self._channels.write_back()
        if cq.tail != self._tail:
            self._recorder.add(self._number, RECEIVE, "CQ entry written", index=self._tail, cqn=cq.number)
            self._tail = cq.tail
            self.completed = True


class Tap:
    """A wrapper of a link that records the packets that pass."""

    def __init__(self, link: Link, recorder: Recorder, number: int, watch: Watch, channels: Channels) -> None:
        self._link = link
        self._recorder = recorder
        self._number = number
        self._watch = watch
        self._channels = channels

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Send, and record every packet."""
        self._watch.look()
        for burst in bursts:
            self._channels.ask("RD_ENCAP")
            data = b"".join(burst.buffers)
            for at in range(0, len(data), burst.segment):
                self._packet(WIRE, "sent", data[at : at + burst.segment])
        self._link.send(bursts)

    def receive(self, limit: int) -> list[RxBurst]:
        """Receive, and record every packet."""
        bursts = self._link.receive(limit)
        for burst in bursts:
            for at in range(0, burst.length, burst.segment):
                row = self._packet(RECEIVE, "received", bytes(burst.buf[at : at + burst.segment]))
                self._channels.ask("RD_CQ_CST" if row is not None and row.response else "RD_QP_RST")
        return bursts

    def _packet(self, lane: int, what: str, data: bytes) -> OpcodeRow | None:
        row = OPCODES[data[0]]
        name = "?" if row is None else row.name
        psn = int.from_bytes(data[9:12], "big")
        self._recorder.add(self._number, lane, f"{name} {what}", psn=psn, bytes=len(data))
        return row


def record(operation: str, size: int) -> dict[str, Any]:
    """Run one operation of ``size`` bytes between two NICs; return its trace."""
    recorder = Recorder()
    watches: list[Watch] = []
    with QpPair("RC") as pair:
        for number, side in enumerate((pair.a, pair.b)):
            channels = Channels(recorder, number, side)
            watch = Watch(recorder, number, side, channels)
            side.node.nic.tracer = Doorbells(recorder, number, channels)
            runtime = side.node.ctx.runtime
            runtime.link = Tap(runtime.link, recorder, number, watch, channels)
            watches.append(watch)
        if operation == "send":
            pair.b.post_recv(size)
        own, other = watches
        recorder.rows.clear()
        began = recorder.now()
        pair.a.post_send(OPERATIONS[operation], size)
        recorder.add(0, SOFTWARE, "descriptor written, doorbell stored", began, opcode=operation, bytes=size)
        for _ in range(_MAX_TURNS):
            own.look()
            if own.completed:
                break
            pair.net.turn()
            other.look()
        began = recorder.now()
        done = pair.a.poll()
        recorder.add(0, SOFTWARE, "completion polled", began, status=done[0].status, bytes=done[0].byte_len)
    return recorder.document()


@click.command()
@click.option("--attach", metavar="PID|QP", help="Follow a running program, or a queue pair, of the NIC process.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, MAX_SECONDS),
    default=2.0,
    show_default=True,
    help="With --attach: duration in seconds.",
)
@click.option(
    "--sample",
    type=click.IntRange(1, MAX_SAMPLE),
    default=1,
    show_default=True,
    help="With --attach: trace one in N messages, with all its packets at both ends.",
)
@click.option("--op", "operation", type=click.Choice(sorted(OPERATIONS)), default="write", help="Operation to trace.")
@click.option(
    "--size", type=click.IntRange(1, 1 << 20), default=4096, help="Bytes of the operation; atomics always have 8."
)
@click.option("--out", "-o", type=OutFile(), default="rnic-trace.json", help="File to write.")
@click.option("--json", "as_json", is_flag=True, help="Print the trace instead of writing a file.")
def trace(attach: str | None, seconds: float, sample: int, operation: str, size: int, out: Path, as_json: bool) -> None:
    """Trace one operation, or a running program's operations, for ui.perfetto.dev."""
    if attach is not None:
        followed = follow(attach, seconds, sample)
        if as_json:
            print(json.dumps(followed.document()))
        else:
            out.write_text(json.dumps(followed.document()), encoding="utf-8")
            print(f"{out}: {followed.summary()}; open it at ui.perfetto.dev")
        return
    document = record(operation, 8 if operation == "fetch-add" else size)
    if as_json:
        print(json.dumps(document))
        return
    out.write_text(json.dumps(document), encoding="utf-8")
    stages = sum(row["ph"] == "X" for row in document["traceEvents"])
    print(f"{out}: {stages} stages; open it at ui.perfetto.dev")


__all__ = ["LANES", "record", "trace"]
