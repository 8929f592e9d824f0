"""The model beside a scripted queue pair: whatever the queue pair does is a step of the model, to the same words.

Before each call the words of the model are read from the queue pair, the model does the same, and what it has then and
sends is compared. What the model leaves out (errors, credits, rates, selective repeat, a turn's room at the peer) ends
the comparison, for good: ``left`` says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rnic.context.qpc import OPT_CREDITS, OPT_SELECTIVE_REPEAT
from rnic.rings.sqe import FLAG_FENCE, FLAG_SIGNALED
from rnic.spec.limits import GO_BACK_N, NEVER
from rnic.spec.opcodes import COMPARE_SWAP, FETCH_ADD, RC, READ_REQUEST
from rnic.spec.states import RTS, ST_RC
from rnic.spec.syndromes import AETH_ACK, AETH_NAK, AETH_RNR_NAK, AETH_TYPE_MASK, NAK_PSN_SEQUENCE
from rnic.state import record
from rnic.state.queue_pair import REPLIES
from rnic.transport import response_queue
from rnic.transport.send_queue import ACK_EACH_AFTER_PROBE
from rnic.wire.bursts import TxBurst
from rnic.wire.packet import Packet
from tests.model import rc
from tests.model.requester import Requester
from tests.model.responder import Responder

SPACE = 1 << 24
_KINDS = {"SEND": rc.SEND, "SEND_IMM": rc.SEND, "WRITE": rc.WRITE, "WRITE_IMM": rc.WRITE_IMM, "READ": rc.READ}
_KINDS |= {"CMP_SWAP": rc.ATOMIC, "FETCH_ADD": rc.ATOMIC}
_OPCODES = {"READ": READ_REQUEST, "CMP_SWAP": COMPARE_SWAP, "FETCH_ADD": FETCH_ADD}
_REPLIES = {response_queue.READ: rc.READ, response_queue.ATOMIC: rc.ATOMIC}
_AETH = {AETH_ACK: rc.ACK, AETH_NAK: rc.NAK, AETH_RNR_NAK: rc.RNR}


WATCHED = Counter[str]()
"""Of this process: ``scripts`` watched, those of them ``compared`` at all, and ``steps`` compared."""


class OutsideError(Exception):
    """The queue pair does what the model leaves out."""


def acknowledgement(syndrome: int) -> str:
    """Return the kind of an ACK or NAK."""
    kind = _AETH.get(syndrome & AETH_TYPE_MASK)
    if kind is None or (kind == rc.NAK and syndrome != NAK_PSN_SEQUENCE):
        raise OutsideError("a NAK that fails the queue pair")
    return kind


def bare(response: rc.Response) -> rc.Response:
    """Return a response without the address of its bytes, which its packet does not say."""
    return response._replace(orig=0) if response.kind == rc.READ else response


class Watch:
    """The model of one scripted queue pair."""

    def __init__(self, script: Any) -> None:
        self._script, self._qp = script, script.qp
        ctx = script.ctx
        self.left = ""
        self.steps = 0
        WATCHED["scripts"] += 1
        host = script.host
        if ctx.servtype != ST_RC or ctx.state != RTS:
            self.left = "not a reliable connection in RTS"
        elif ctx.options & (OPT_CREDITS | OPT_SELECTIVE_REPEAT) or host.config.recovery != GO_BACK_N:
            self.left = "credits or selective repeat"
        elif host.config.rq_almost_full:
            self.left = "receive entries kept back"
        self._sent_base, self._expected_base = ctx.next_send_psn, ctx.expected_psn
        self._keys = len(host.memory._live)
        self._head: int = script.qp.requester.sq_head
        self.config = rc.Config([], space=SPACE, base=self._sent_base, judged=False, replies=REPLIES)
        self.config.ack_each_after_probe, self.config.unit = ACK_EACH_AFTER_PROBE, ctx.mtu_bytes

    # -------------------------------------------------------------------------- the queue pair's words

    def _settle(self) -> None:
        """Take over the choices that the queue pair makes from its settings now."""
        config, requester, ctx = self.config, self._qp.requester, self._script.ctx
        if ctx.state != RTS or self._qp.paced or self._qp.masked:
            raise OutsideError("not in RTS, or held")
        account = requester.account
        if account.limit_to(requester.peer) < requester.window or account.shared(requester):
            raise OutsideError("little room at the peer")
        if requester.lsn != record.NONE:
            raise OutsideError("credits")
        if len(self._script.host.memory._live) < self._keys:
            raise OutsideError("memory is gone")
        config.window, config.ack_every = requester.window, requester.ack_every
        config.read_chunk, config.entries = requester.read_chunk, requester.ring.entries
        config.max_rd_atomic, config.max_dest_rd_atomic = ctx.max_rd_atomic, ctx.max_dest_rd_atomic
        config.probing, config.timeout = requester.probing, bool(requester.ack_timeout)
        if not (config.probing or config.timeout):
            raise OutsideError("neither probe nor ACK timeout")

    def _psn(self, psn: int, base: int) -> int:
        return psn if psn == record.NONE else base + self.config.diff(psn, base)

    def requester(self) -> tuple[Any, ...]:
        """Return the words of its requester."""
        it, entries = self._qp.requester, int(self._qp.requester.ring.entries)
        self._head = head = self._head + int(it.sq_head - self._head) % entries

        def index(place: int) -> int:
            return head + (place - head) % entries

        messages = list(it.messages(it.sq_head, it.fetch_index))
        if any(message.status or not message.packets for message in messages):
            raise OutsideError("a work request of no packets, or with a mistake")
        pieces = tuple(
            rc.Piece(
                index(each.index), self._psn(each.first_psn, self._sent_base), each.packets, each.got, bool(each.asked)
            )
            for each in (it.piece(place) for place in range(it.piece_count))
        )
        return (
            *(self._psn(psn, self._sent_base) for psn in (it.una, it.sent_psn)),
            *(self._head, index(it.send_index), index(it.fetch_index), index(it.tail)),
            tuple((message.sent, message.received, bool(message.begun)) for message in messages),
            *(pieces, it.inflight, bool(it.probe_due), it.probe_shift != 0),
            *(at != NEVER for at in (it.ack_deadline, it.probe_deadline, it.rnr_until)),
            it.ack_each,
            *(rc.NONE if psn == record.NONE else psn for psn in (self._qp.completer.implied_psn, it.asked_psn)),
            bool(self._qp.scheduled or it.more),
        )

    def responder(self) -> tuple[Any, ...]:
        """Return the words of its responder."""
        it, base = self._qp.responder, self._expected_base
        resources = tuple(
            rc.Resource(
                rc.ATOMIC if each.atomic else rc.READ,
                *(self._psn(each.psn, base), each.packets, each.va, each.length),
                *(((each.rkey, each.opcode), each.swap_add, each.compare), each.orig),
            )
            for each in (it.resources._at(place) for place in range(len(it.resources)))
        )
        replies = tuple(
            rc.Reply(
                _REPLIES.get(each.kind) or acknowledgement(each.syndrome),
                *(self._psn(each.psn, base), each.packets, each.sent, bool(each.again)),
                each.orig if each.kind == response_queue.ATOMIC else 0,
                each.va if each.kind == response_queue.READ else 0,
            )
            for each in (it.replies._at(place) for place in range(len(it.replies)))
        )
        return (
            *(self._psn(self._script.ctx.expected_psn, base), bool(it.nak_sent), ("", rc.SEND, rc.WRITE)[it.open]),
            *(it.receive_index != record.NONE, it.rq.available(), it.owed_ns != NEVER, resources, replies, 0),
        )

    # ------------------------------------------------------------------------------------- packets

    def request(self, packet: Packet, base: int) -> rc.Request:
        """Return a packet as the model has it."""
        row, psn = packet.row, self._psn(packet.psn, base)
        if row.resource and row.operation != READ_REQUEST and not row.atomic:
            raise OutsideError("a FLUSH or an ATOMIC WRITE")
        if not row.resource:
            kind = rc.SEND if row.send else rc.WRITE_IMM if row.takes_receive else rc.WRITE
            return rc.Request(kind, psn, packet.ackreq, row.start, row.end)
        length = packet.dma_length if row.operation == READ_REQUEST else 8
        key = packet.rkey, packet.opcode
        args = (key, packet.swap_add, packet.compare) if row.atomic else (key, 0, 0)
        kind = rc.ATOMIC if row.atomic else rc.READ
        return rc.Request(kind, psn, packet.ackreq, va=packet.va, length=length, args=args)

    def response(self, packet: Packet, base: int) -> rc.Response:
        """Return a packet as the model has it."""
        row, psn = packet.row, self._psn(packet.psn, base)
        if row.read_response:
            return rc.Response(rc.READ, psn, row.start, row.end)
        if row.atomicacketh:
            return rc.Response(rc.ATOMIC, psn, orig=packet.orig)
        return rc.Response(acknowledgement(packet.syndrome), psn)

    # --------------------------------------------------------------------------------------- steps

    def around(self, call: Callable[[], Any], do: Callable[[Requester, Responder], None], turn: bool) -> Any:
        """Make a call, and let the model ``do`` the same; return the call's answer.

        ``turn``: the call is for the requester, and what it leaves scheduled is compared.
        """
        if self.left:
            return call()
        try:
            self._settle()
            a, b = Requester(self.config, self.requester()), Responder(self.config, self.responder())
        except OutsideError as outside:
            self.left = str(outside)
            return call()
        refused = ""
        try:
            do(a, b)
        except OutsideError as outside:
            self.left = str(outside)
            return call()
        except rc.ViolationError as error:
            refused = str(error)
        bad_responses = self._bad_responses()
        answer = call()
        if self._script.ctx.state != RTS:
            assert refused or self._bad_responses() == bad_responses, "BAD_RESP_ERR, which the model does not have"
            self.left = f"refused: {refused}" if refused else "failed"
            return answer
        assert not refused, f"the model refuses: {refused}"
        b.value = 0
        try:
            after = self.requester(), self.responder()
            if isinstance(answer, list):
                self._compare(answer, a, b)
        except OutsideError as outside:
            self.left = str(outside)
            return answer
        for half, words in ((a, after[0]), (b, after[1])):
            for name, mine, its in zip(half.WORDS, half.freeze(), words, strict=True):
                assert mine == its or (name == "scheduled" and not turn), f"{name} is {its}, in the model {mine}"
        self.steps += 1
        WATCHED["steps"] += 1
        WATCHED["compared"] += self.steps == 1
        return answer

    def _bad_responses(self) -> int:
        return sum(each.status == "BAD_RESP_ERR" for each in self._script.send_cq.entries)

    def _compare(self, bursts: list[TxBurst], a: Requester, b: Responder) -> None:
        """Check that it sends what the model sends."""
        packets = self._script.parse(bursts)
        requests = [self.request(packet, self._sent_base) for packet in packets if not packet.row.response]
        mine = [self.named(each) for each in a.out]
        assert [self.named(each) for each in requests] == mine, f"it sends {requests}, the model {a.out}"
        packets = [packet for packet in packets if packet.row.response]
        responses = [self.response(packet, self._expected_base) for packet in packets]
        assert responses == [bare(each) for each in b.out], f"it sends {responses}, the model {b.out}"
        for packet, each in zip(packets, b.out, strict=True):
            if each.kind == rc.READ:
                self.check_bytes(packet, each)

    def check_bytes(self, packet: Packet, response: rc.Response) -> None:
        """Check that a READ response has the bytes at the model's address, where those are the script's memory."""
        script, sent = self._script, bytes(packet.payload)
        assert response.end or len(sent) == self.config.unit
        at = response.orig - script.va
        if script.still and sent and 0 <= at < len(script.data):
            assert sent == script.data[at : at + len(sent)], f"{response} has other bytes than those of its place"

    @staticmethod
    def named(request: rc.Request) -> rc.Request:
        """Return a request without what its packet does not say: WRITE_IMM before the last, an atomic's length."""
        plain = request.kind == rc.WRITE_IMM and not request.end
        length = 0 if request.kind == rc.ATOMIC else request.length
        return request._replace(kind=rc.WRITE if plain else request.kind, length=length)

    # ------------------------------------------------------------------------------ the script's calls

    def posted(self, name: str, length: int, flags: int, over: dict[str, Any]) -> None:
        """Follow a work request that software posts next; ``over`` is as of ``Script.post``."""
        if name not in _KINDS:
            self.left = self.left or f"{name} is not modeled"
            return
        unit = self.config.unit
        packets = 1 if _KINDS[name] == rc.ATOMIC else -(-length // unit) or 1
        signaled, fence = bool(flags & FLAG_SIGNALED or self._qp.signal_all), bool(flags & FLAG_FENCE)
        args: tuple[Any, ...] = ()
        if _KINDS[name] in rc.READS:
            atomic, swaps = _KINDS[name] == rc.ATOMIC, name == "CMP_SWAP"
            operands = over.get("swap_add", 1) if atomic else 0, over.get("compare", 0) if swaps else 0
            args = ((over.get("rkey", 0xABC01), RC | _OPCODES[name]), *operands)
        self.config.add(rc.Work(_KINDS[name], packets, signaled, fence, over.get("remote", 0x5000), length, args))

    def turn(self, call: Callable[[], list[TxBurst]], budget: int) -> list[TxBurst]:
        """Follow a turn to send."""

        def do(a: Requester, b: Responder) -> None:
            if self._qp.replies_first:
                raise OutsideError("replies go first")
            a.produce(budget)
            b.produce(max(budget - len(a.out), 4))

        bursts: list[TxBurst] = self.around(call, do, True)
        return bursts

    def arrival(self, call: Callable[[], None], packet: Packet) -> None:
        """Follow a packet that comes."""

        def do(a: Requester, b: Responder) -> None:
            if packet.row.response:
                a.receive(self.response(packet, self._sent_base))
                if packet.row.read_response and a.placed:
                    message, place, _ = a.placed[0]
                    left = self.config.program[message].length - place * self.config.unit
                    if len(packet.payload) != min(left, self.config.unit):
                        raise OutsideError("a response of another length")
                return
            request = self.request(packet, self._expected_base)
            if request.kind == rc.ATOMIC:
                b.value = self._word(packet)
            b.take(request)
            if request.kind == rc.ATOMIC and packet.row.operation == COMPARE_SWAP:
                b.value = 0

        self.around(call, do, packet.row.response)

    def _word(self, packet: Packet) -> int:
        script = self._script
        at = packet.va - script.va
        return int.from_bytes(script.data[at : at + 8], "little") if 0 <= at < len(script.data) else 0

    def deadline(self, call: Callable[[], None]) -> None:
        """Follow a deadline that has come."""
        it, owed, now = self._qp.requester, self._qp.responder.owed_ns, self._script.now
        if it.control_ns <= now or self._qp.pace_ns <= now:
            self.left = self.left or "rates"

        def do(a: Requester, b: Responder) -> None:
            if owed <= now:
                b.owed_over()
            if it.rnr_until <= now:
                a.rnr_over()
            if it.ack_deadline <= now:
                a.ack_timeout()
            elif it.probe_deadline <= now:
                if it.probe_shift <= self._script.ctx.retry_cnt or not it.ack_timeout:
                    a.probe()
                a.probed = True

        self.around(call, do, owed > now)


def watched_script(base: type[Any]) -> type[Any]:
    """Return the script class ``base`` with the model beside it."""

    class WatchedScript(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **fields: Any) -> None:
            self.watch: Watch | None = None
            super().__init__(*args, **fields)
            self.watch = Watch(self)

        def to(self, state: int) -> None:
            super().to(state)
            if self.watch is not None:
                self.watch.left = self.watch.left or "modified"

        def post(self, name: str, length: int = 0, at: int = 0, **over: Any) -> None:
            assert self.watch is not None
            size = sum(size for _, size in over["sges"]) if "sges" in over else length
            self.watch.posted(name, size, over.get("flags", FLAG_SIGNALED), over)
            super().post(name, length, at, **over)

        def bursts(self, budget: int = 256) -> list[TxBurst]:
            assert self.watch is not None
            return self.watch.turn(lambda: super(WatchedScript, self).bursts(budget), budget)

        def inject(self, name: str, psn: int, **fields: Any) -> None:
            assert self.watch is not None
            call = super().inject
            self.watch.arrival(lambda: call(name, psn, **fields), self.packet(name, psn, **fields))

        def handle_timer(self) -> None:
            assert self.watch is not None
            self.watch.deadline(super().handle_timer)

    return WatchedScript
