"""The last packets and steps of a running device, kept only while a session asks for them.

A :class:`Tap` stands before a device's link from the first question on, and leaves once no session has asked for a
while, so that a NIC without sessions pays nothing. Everything that it keeps is bounded; times are the runtime's.
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
    from rnic.runtime.loop import Runtime

MAX_EVENTS = 8_192
"""Events that a session keeps; older ones are lost, and the answer says how many."""
MAX_ANSWER = 4_096
"""Events of one answer."""
MAX_SESSIONS = 8
MAX_QPS = 64
"""Queue pairs that a session may name."""
MAX_FOLLOWED = 256
"""Queue pairs whose descriptors a session follows; of others it has packets and doorbells alone."""
MAX_SAMPLE = 1_000_000
EXPIRES_NS = 5_000_000_000
"""A session ends so long after its last question."""
_STARTS = 64
"""Messages of one direction whose sampling is remembered, for packets that come later."""
_OPEN = 4_096
"""Operations under way that a session remembers."""
_SPREAD = ((0x85EB_CA6B, 13), (0xC2B2_AE35, 16))
"""Multipliers and shifts that mix all bits of a PSN into the lowest, so that the choice is fair however many packets a
message has: the first PSNs of messages of 1,024 packets have ten bits in common."""
_INDEX_EVERY_NS = 10_000_000
_BTH = 12
_SOURCE_QP = slice(17, 20)
"""Of a DETH behind a BTH."""

Event = tuple[int, int, str, int, dict[str, Any]]
"""Number, time in ns, stage, queue pair, what happened."""


class Session:
    """One looker's events.

    Args:
        qpns: queue pairs that are meant; all where it is empty.
        sample: one message in so many is kept with all its packets, chosen by its first PSN: so both ends of a
            connection choose the same ones.
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
        """First PSN of operations under way, by queue pair and index."""

    def add(self, now_ns: int, stage: str, qpn: int, fields: dict[str, Any]) -> None:
        """Keep an event."""
        self.events.append((self.count, now_ns, stage, qpn, fields))
        self.count += 1

    def wants(self, qpn: int) -> bool:
        """Whether this queue pair is meant."""
        return not self.qpns or qpn in self.qpns

    def chosen(self, psn: int) -> bool:
        """Whether the message that begins with this PSN is kept."""
        for factor, shift in _SPREAD:
            psn = psn * factor & 0xFFFF_FFFF
            psn ^= psn >> shift
        return psn % self.sample == 0

    def keeps(self, direction: str, qpn: int, row: OpcodeRow, psn: int) -> bool:
        """Whether a packet belongs to a message that is kept.

        ``direction`` is the request's: ``tx`` for what the queue pair asked for, answers to it included.
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
        """Note the descriptors that were fetched and completed since the last look."""
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
                # what is under way already has no beginning
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
    """Stands before the link of a runtime while it has sessions; see :meth:`answer`. Callers hold its lock."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.link)
        self.enabled = False
        """For the device: as its tracer, it wants events."""
        self.sessions: dict[str, Session] = {}
        self._runtime = runtime
        self._nic = runtime.nic
        self._before = runtime.nic.tracer
        self._numbers: dict[tuple[bytes, int], int] = {}
        """Own queue pairs by the peer's address and number."""
        self._numbered_ns = -2 * _INDEX_EVERY_NS

    def answer(self, words: str) -> dict[str, Any]:
        """Events of a session since number ``SINCE``: ``words`` are ``ID SINCE SAMPLE [QP,QP,...]``.

        The answer is ``{"now_ns", "next", "lost", "events"}``; an event is ``[number, time_ns, stage, qpn, fields]``.
        Stages are ``doorbell``, ``fetched``, ``sent``, ``received``, ``completed``, ``receive completed``, and those of
        the device's tracer. ``lost`` were older than what is kept, ``next`` is what to ask for next.

        Raises:
            ValueError: no such question, or a number out of range.
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

    def follow(self, device: Tap) -> None:
        """Add what this tap sees, of a slot, to the sessions of its device's."""
        self.sessions = device.sessions
        if self.sessions:
            self._attach()

    def _attach(self) -> None:
        if not self.enabled:
            self.enabled = True
            self.inner = self._runtime.link
            self._runtime.link = self
            self._before, self._nic.tracer = self._nic.tracer, self

    def _expire(self, now_ns: int) -> None:
        for name in [each for each, session in self.sessions.items() if now_ns - session.asked_ns > EXPIRES_NS]:
            del self.sessions[name]

    def _leave(self) -> None:
        """Nobody looks any more; what was put before this one meanwhile stays, with one call more to a packet."""
        if self._runtime.link is self and self._nic.tracer is self:
            self.enabled = False
            self._runtime.link = self.inner
            self._nic.tracer = self._before

    # -------------------------------------------------------------------------------- what is seen

    def event(self, now_ns: int, stage: str, qpn: int, **fields: int | str) -> None:
        """See :class:`~rnic.trace.tracer.Tracer`."""
        if self._before.enabled:
            self._before.event(now_ns, stage, qpn, **fields)
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
        dqpn, psn = int.from_bytes(data[5:8], "big"), int.from_bytes(data[9:12], "big")
        sent = stage == "sent"
        if not sent:
            qpn = dqpn
        elif row.deth:
            qpn = int.from_bytes(data[_SOURCE_QP], "big")
        else:
            qpn = self._own(flow.dst, dqpn, now_ns)
        asked = "tx" if sent is row.request else "rx"
        fields: dict[str, Any] | None = None
        for session in self.sessions.values():
            if session.wants(qpn) and session.keeps(asked, qpn, row, psn):
                if fields is None:
                    fields = {
                        "opcode": row.name,
                        "psn": psn,
                        "bytes": len(data),
                        "dqpn": dqpn,
                        "src": format_address(flow.src),
                        "dst": format_address(flow.dst),
                    }
                    if row.aeth:
                        fields["syndrome"] = data[_BTH]
                session.add(now_ns, stage, qpn, fields)

    def _own(self, peer: bytes, dqpn: int, now_ns: int) -> int:
        """Which queue pair sends to this one; 0 where that is not known."""
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
