"""The last packets and steps of a running device, kept only while a session asks for them.

A :class:`Tap` is inserted before a device's link on the first request, and removed once no session has asked for a
while, so that a NIC without sessions has no cost. Everything that it keeps is bounded; times are the runtime's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rnic.link.base import format_address
from rnic.link.middleware import Middleware
from rnic.rings.queue_block import RQ_HEAD
from rnic.spec.opcodes import WR_NAMES
from rnic.spec.psn import psn_diff
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES, OpcodeRow

if TYPE_CHECKING:
    from rnic.device.queue_pair import DeviceQp
    from rnic.runtime.rounds import Rounds

MAX_EVENTS = 8_192
"""Most events that a session keeps; older ones are lost, and the answer counts them."""
MAX_ANSWER = 4_096
"""Most events of one answer."""
MAX_SESSIONS = 8
MAX_QPS = 64
"""Most queue pairs that a session may name."""
MAX_FOLLOWED = 256
"""Most queue pairs whose descriptors a session follows; of others it only has packets and doorbells."""
MAX_SAMPLE = 1_000_000
EXPIRES_NS = 5_000_000_000
"""Time after its last request at which a session ends."""
_STARTS = 64
"""Most messages of one direction whose sampling choice is remembered, for later packets."""
_OPEN = 4_096
"""Most operations in progress that a session remembers."""
_SPREAD = ((0x85EB_CA6B, 13), (0xC2B2_AE35, 16))
"""Multipliers and shifts that mix all bits of a PSN into the lowest, so that the choice is fair however many packets a
message has: the first PSNs of messages of 1,024 packets have ten bits in common."""
_INDEX_EVERY_NS = 10_000_000
_BTH = 12
_SOURCE_QP = slice(17, 20)
"""Bytes of the source QPN of a DETH that follows a BTH."""

Event = tuple[int, int, str, int, dict[str, Any]]
"""Number, time in ns, stage, queue pair, what happened."""


class Session:
    """Events of one viewer.

    Args:
        qpns: queue pairs to trace; all if empty.
        sample: keep one message in ``sample``, with all its packets, chosen by its first PSN: both ends of a
            connection choose the same messages.
    """

    def __init__(self, qpns: frozenset[int], sample: int) -> None:
        self.qpns = qpns
        self.sample = sample
        self.count = 0
        self.asked_ns = 0
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._starts: dict[tuple[str, int], deque[tuple[int, bool]]] = {}
        self._followed: dict[tuple[int, int], tuple[DeviceQp, int, int, int]] = {}
        """By NIC, a device's or a slot's, and number: the queue pair, the next index to be seen fetched and completed,
        and its receive ring's head."""
        self._open: dict[tuple[int, int], int] = {}
        """First PSN of operations in progress, by queue pair and index."""

    def add(self, now_ns: int, stage: str, qpn: int, fields: dict[str, Any]) -> None:
        """Keep an event."""
        self.events.append((self.count, now_ns, stage, qpn, fields))
        self.count += 1

    def wants(self, qpn: int) -> bool:
        """Return whether this queue pair is traced."""
        return not self.qpns or qpn in self.qpns

    def chosen(self, psn: int) -> bool:
        """Return whether the message that starts with this PSN is kept."""
        for factor, shift in _SPREAD:
            psn = psn * factor & 0xFFFF_FFFF
            psn ^= psn >> shift
        return psn % self.sample == 0

    def keeps(self, direction: str, qpn: int, row: OpcodeRow, psn: int) -> bool:
        """Return whether a packet belongs to a message that is kept.

        ``direction`` is that of the request: ``tx`` for the queue pair's own requests, and for the responses to them.
        """
        if self.sample == 1:
            return True
        key = direction, qpn
        starts = self._starts.get(key)
        if starts is None:
            if len(self._starts) >= _OPEN:
                self._starts.clear()
            starts = self._starts[key] = deque(maxlen=_STARTS)
        if row.start:
            kept = self.chosen(psn)
            if all(start != psn for start, _ in starts):
                starts.append((psn, kept))
            return kept
        behind = [(psn_diff(psn, start), kept) for start, kept in starts]
        return min(((gap, kept) for gap, kept in behind if gap >= 0), default=(0, False))[1]

    def look(self, now_ns: int, qps: dict[int, DeviceQp]) -> None:
        """Note the descriptors that were fetched and completed since the last call."""
        numbers = self.qpns if self.qpns else list(qps)[:MAX_FOLLOWED]
        for qpn in numbers:
            qp = qps.get(qpn)
            if qp is None:
                self._followed.pop((id(qps), qpn), None)
                continue
            requester = qp.requester
            received = qp.regs.get(RQ_HEAD)
            known = self._followed.get((id(qps), qpn))
            if known is None or known[0] is not qp:
                # operations already in progress have no start event
                self._followed[id(qps), qpn] = (qp, requester.fetch_index, requester.sq_head, received)
                continue
            _, fetched, done, taken = known
            while fetched != requester.fetch_index:
                message = requester.message(fetched)
                if not (message.begun or message.executed or message.status):
                    break  # its PSN is not settled yet
                psn = message.first_psn
                if self.sample == 1 or self.chosen(psn):
                    if len(self._open) < _OPEN:
                        self._open[qpn, fetched] = psn
                    name = WR_NAMES.get(message.opcode, hex(message.opcode))
                    fields: dict[str, Any] = {"opcode": name, "bytes": message.length, "index": fetched, "psn": psn}
                    if message.ssn == 1:
                        fields["cold"] = True
                    self.add(now_ns, "fetched", qpn, fields)
                fetched = requester.ring.after(fetched)
            while done != requester.sq_head and done != fetched:
                started = self._open.pop((qpn, done), None)
                if started is not None:
                    self.add(now_ns, "completed", qpn, {"index": done, "psn": started})
                done = requester.ring.after(done)
            if received != taken and self.sample == 1:
                self.add(now_ns, "receive completed", qpn, {"index": received})
            if (fetched, done, received) != known[1:]:
                self._followed[id(qps), qpn] = (qp, fetched, done, received)


class Tap(Middleware):
    """Middleware before the link of a runtime while it has sessions; see :meth:`answer`. Callers hold its lock."""

    def __init__(self, runtime: Rounds) -> None:
        super().__init__(runtime.link)
        self.enabled = False
        """True if, as the device's tracer, it wants events."""
        self.sessions: dict[str, Session] = {}
        self._runtime = runtime
        self._nic = runtime.nic
        self.before = runtime.nic.tracer
        """The device's tracer without this tap."""
        self._numbers: dict[tuple[bytes, int], int] = {}
        """Local queue pair numbers by the peer's address and queue pair number."""
        self._numbered_ns = -2 * _INDEX_EVERY_NS

    def answer(self, words: str) -> dict[str, Any]:
        """Return the events of a session from number ``SINCE`` on: ``words`` are ``ID SINCE SAMPLE [QP,QP,...]``.

        The answer is ``{"now_ns", "next", "lost", "events"}``; an event is ``[number, time_ns, stage, qpn, fields]``.
        Stages are ``doorbell``, ``fetched``, ``sent``, ``received``, ``completed``, ``receive completed``, and those of
        the device's tracer. ``lost`` counts events that were dropped, ``next`` is the number to ask for next.

        Raises:
            ValueError: a malformed request, or a number out of range.
        """
        name, since_text, sample_text, *named = words.split(" ")
        since, sample = int(since_text), int(sample_text)
        qpns = frozenset(int(each) for each in named[0].split(",")) if named else frozenset()
        if not (len(named) <= 1 and since >= 0 and 1 <= sample <= MAX_SAMPLE and len(qpns) <= MAX_QPS):
            raise ValueError(
                f"tap: {words!r}: SAMPLE is 1 to {MAX_SAMPLE}, and at most {MAX_QPS} queue pairs may be named"
            )
        now = self._runtime.clock()
        self._expire(now)
        session = self.sessions.get(name)
        if session is None:
            if len(self.sessions) >= MAX_SESSIONS:
                raise ValueError(f"tap: {MAX_SESSIONS} look at this device already: end one")
            session = self.sessions[name] = Session(qpns, sample)
            session.look(now, self._nic.qps)
            self._attach()
        session.qpns, session.sample = qpns, sample
        session.asked_ns = now
        first = session.count - len(session.events)
        start = max(since, first)
        events = list(session.events)[start - first : start - first + MAX_ANSWER]
        return {
            "now_ns": now,
            "next": events[-1][0] + 1 if events else min(start, session.count),
            "lost": start - since if since else 0,
            "events": events,
        }

    def _attach(self) -> None:
        if not self.enabled:
            self.enabled = True
            self._runtime.pass_held()
            self.inner = self._runtime.link
            self._runtime.link = self
            self.before, self._nic.tracer = self._nic.tracer, self
            self._nic.invalidate_engine()

    def _expire(self, now_ns: int) -> None:
        for name in [each for each, session in self.sessions.items() if now_ns - session.asked_ns > EXPIRES_NS]:
            del self.sessions[name]

    def _leave(self) -> None:
        """Remove the tap, since the last viewer has gone. If other middleware was put before it meanwhile, it stays in
        the chain, at the cost of one more call per packet."""
        if self._runtime.link is self and self._nic.tracer is self:
            self.enabled = False
            self._runtime.link = self.inner
            self._nic.tracer = self.before
            self._nic.invalidate_engine()

    # -------------------------------------------------------------------------------- events

    def event(self, now_ns: int, stage: str, qpn: int, **fields: int | str) -> None:
        """See :class:`~rnic.trace.tracer.Tracer`."""
        if self.before.enabled:
            self.before.event(now_ns, stage, qpn, **fields)
        now = self._runtime.clock()
        for session in self.sessions.values():
            if session.wants(qpn) and (session.sample == 1 or stage != "doorbell"):
                session.add(now, stage, qpn, dict(fields))

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Send, and note every packet."""
        now = self._look()
        if self.sessions:
            for burst in bursts:
                data = memoryview(b"".join(burst.buffers))
                for at in range(0, burst.length, burst.segment):
                    self._packet(now, "sent", burst.flow, data[at : at + burst.segment])
        self.inner.send(bursts)

    def receive(self, limit: int) -> list[RxBurst]:
        """Receive, and note every packet."""
        now = self._look()
        bursts = self.inner.receive(limit)
        if bursts and self.sessions:
            for burst in bursts:
                for at in range(0, burst.length, burst.segment):
                    self._packet(now, "received", burst.flow, burst.buf[at : at + burst.segment])
        return bursts

    def _look(self) -> int:
        now = self._runtime.clock()
        self._expire(now)
        if not self.sessions:
            self._leave()
        for session in self.sessions.values():
            session.look(now, self._nic.qps)
        return now

    def _packet(self, now_ns: int, stage: str, flow: Flow, data: memoryview) -> None:
        row = OPCODES[data[0]] if len(data) >= _BTH else None
        if row is None or len(data) < row.header_bytes:
            return
        dqpn = int.from_bytes(data[5:8], "big")
        if stage != "sent":
            qpn = dqpn
        elif row.deth:
            qpn = int.from_bytes(data[_SOURCE_QP], "big")
        else:
            qpn = self._own(flow.dst, dqpn, now_ns)
        self.note(now_ns, stage, qpn, row, data, len(data), flow.src, flow.dst)

    def note(
        self, now_ns: int, stage: str, qpn: int, row: OpcodeRow, data: memoryview, length: int, src: bytes, dst: bytes
    ) -> None:
        """Note a packet of a queue pair, ``sent`` or ``received``: ``data`` are its headers, from the BTH on."""
        dqpn, psn = int.from_bytes(data[5:8], "big"), int.from_bytes(data[9:12], "big")
        asked = "tx" if (stage == "sent") is row.request else "rx"
        fields: dict[str, Any] | None = None
        for session in self.sessions.values():
            if session.wants(qpn) and session.keeps(asked, qpn, row, psn):
                if fields is None:
                    fields = {
                        "opcode": row.name,
                        "psn": psn,
                        "bytes": length,
                        "dqpn": dqpn,
                        "src": format_address(src),
                        "dst": format_address(dst),
                    }
                    if row.aeth:
                        fields["syndrome"] = data[_BTH]
                session.add(now_ns, stage, qpn, fields)

    def note_operation(self, now_ns: int, stage: str, qpn: int, psn: int, fields: dict[str, Any]) -> None:
        """Note that an operation was ``fetched`` or ``completed``; ``psn`` is that of its first packet."""
        for session in self.sessions.values():
            if session.wants(qpn) and (session.sample == 1 or session.chosen(psn)):
                session.add(now_ns, stage, qpn, fields)

    def clock(self) -> int:
        """Return the runtime's time in nanoseconds."""
        return self._runtime.clock()

    def is_watched(self, now_ns: int) -> bool:
        """Return whether any session is left."""
        self._expire(now_ns)
        return bool(self.sessions)

    def _own(self, peer: bytes, dqpn: int, now_ns: int) -> int:
        """Return the local queue pair that sends to this one of the peer's; 0 if unknown."""
        found = self._numbers.get((peer, dqpn))
        if found is None and now_ns - self._numbered_ns > _INDEX_EVERY_NS:
            self._numbered_ns = now_ns
            self._numbers = {
                (qp.flow.dst, qp.ctx.remote_qpn): number for number, qp in self._nic.qps.items() if qp.flow is not None
            }
            found = self._numbers.get((peer, dqpn))
        return found or 0


__all__ = [
    "EXPIRES_NS",
    "MAX_ANSWER",
    "MAX_EVENTS",
    "MAX_FOLLOWED",
    "MAX_QPS",
    "MAX_SAMPLE",
    "MAX_SESSIONS",
    "Session",
    "Tap",
]
