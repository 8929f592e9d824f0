"""What a requester has sent and not seen acknowledged: progress, going back, timers (IBA 9.7.6).

Messages lie in the send WQEs, in PSN order. From ``sq_head`` to ``send_index`` all their packets are sent; from there
to ``fetch_index`` some wait to be sent. Going back to a PSN moves ``send_index`` back, so that sending again is the
same code as sending.

Three things wait for a time, each with a deadline of its own: the local ACK timeout, the tail-loss probe
(``design.md``, "Loss recovery"), and the end of an RNR wait. They count from when a packet leaves: what waits in line,
for the first time or to be sent again, is not late. ``inflight`` says how many packets have left and are not
acknowledged; NIC and peer keep accounts of them (:mod:`rnic.transport.inflight`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.cc.limit import relieve
from rnic.context.qpc import OPT_NO_PROBE, OPT_SELECTIVE_REPEAT
from rnic.spec.limits import NEVER
from rnic.spec.psn import PSN_MASK, PSN_WINDOW, psn_diff
from rnic.spec.states import SQD
from rnic.spec.status import SUCCESS
from rnic.spec.syndromes import ACK_WAITS, ack_timeout_ns
from rnic.state.queue_pair import PIECE, PIECES, QP, SEND_WQE, QpMemory, QpRecord
from rnic.state.record import NONE, WORD_BYTES, Run, Word, view
from rnic.transport.inflight import NOBODY
from rnic.transport.message import Message, ReadPiece
from rnic.transport.selective_repeat import REPEAT_NS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rnic.transport.host import CompletionSink
    from rnic.transport.inflight import Peer
    from rnic.transport.qp import QueuePair
    from rnic.transport.wqe import SendRing

REPEAT_MIN_NS = 1_000_000
"""A tail-loss probe waits at least this long: sooner, many busy queue pairs repeat what is only late."""
REPEAT_ALONE_NS = 250_000
"""The same of a queue pair that has its peer for itself and waits for ACKs alone, once it knows the round trip. What is
asked for again of a READ is more than an ACK, and others may have come meanwhile."""
SILENT_PROBES = 3
"""Probe intervals without an answer after which the peer counts as silent, also without an ACK timeout."""
PROBE_MAX_SHIFT = 10
"""How often a probe's interval doubles at most."""
BACKOFF_MOST = len(ACK_WAITS) - 1
"""How often the ACK timeout doubles at most."""
ACK_EACH_AFTER_PROBE = 32
"""Messages that each ask for an ACK after a probe: not every peer acknowledges what does not ask for it."""
PROBE_MENDS = 2
"""``probe_due`` where the oldest packet alone is sent again, since a NAK names it."""
GO_BACK_PENALTY_MAX = 64
"""Losses for which a peer that did not keep what came beyond a gap gets Go-Back-N, at most."""
NARROWEST = 32
"""Packets in flight that no number of losses takes away."""
ACKS_A_WINDOW = 4
"""Acknowledgements that are asked for while a window is sent, at least."""
MENDED_PART = 4
"""By which part a packet that is sent again alone narrows the window: each takes a round trip, which what is in flight
makes long."""
WIDEN_AFTER = 4
"""Packets to be acknowledged for each one more in flight."""


@view(QP, "SendQueue", "Inflight")
class SendQueue(QpRecord):
    """The state of the sending half of one queue pair, and what acknowledgements and time do to it.

    ``una`` is the oldest PSN that is not acknowledged, ``sent_psn`` the one behind the last ever sent. ``window``
    bounds the packets between ``una`` and the next to be sent. A loss halves it, since Go-Back-N sends again
    whatever was in flight behind the lost packet, and acknowledgements open it again: so the packets sent in vain
    stay in proportion to those between two losses. The standard leaves it to the requester how much it sends.
    """

    __slots__ = (
        "_messages",
        "_pieces",
        "cq",
        "ctx",
        "account",
        "host",
        "peer",
        "qp",
        "record",
        "ring",
        "words",
    )

    una: Word
    sent_psn: Word
    sq_head: Word
    send_index: Word
    fetch_index: Word
    tail: Word
    read_index: Word
    piece_first: Word
    piece_count: Word
    inflight: Word
    window: Word
    widest: Word
    most: Word
    uncounted: Word
    ack_every: Word
    ack_timeout: Word
    retry_left: Word
    rnr_left: Word
    backoff: Word
    rtt_psn: Word
    rtt_at: Word
    probe_shift: Word
    probe_due: Word
    ack_deadline: Word
    probe_deadline: Word
    rnr_until: Word
    relief_ns: Word
    ack_each: Word
    single_resend_psn: Word
    go_back_penalty: Word
    go_back_left: Word
    parked: Word
    admitted: Word
    peer_record: Word
    line: Word
    next_waiting: Word
    previous_waiting: Word

    def __init__(self, memory: QpMemory, qp: QueuePair, ring: SendRing, cq: CompletionSink) -> None:
        self.qp = qp
        self.ctx = qp.ctx
        self.host = qp.host
        self.words = memory.qp
        self.record = memory.record
        state = memory.arena.memory
        self._messages = Run(Message, state, memory.sends * WORD_BYTES, SEND_WQE.size)
        self._pieces = Run(ReadPiece, state, memory.pieces * WORD_BYTES, PIECE.size)
        self.ring = ring
        self.cq = cq
        self.account = qp.host.inflight
        self.peer = NOBODY
        self.account.add_requester(self)
        self.reset()

    def reset(self) -> None:
        """Forget everything: the RESET state."""
        self.sq_head = self.send_index = self.fetch_index = self.tail = 0
        self.una = self.sent_psn = 0
        self.retry_left = self.rnr_left = 0
        self.stop_waiting()
        self.probe_shift = self.ack_each = 0
        self.single_resend_psn = NONE
        self.go_back_penalty = self.go_back_left = 0
        self.rtt_psn = NONE
        self.rtt_at = 0
        self.backoff = 0
        self.ack_timeout = 0
        self.most = self.widest = self.window = 0
        self.ack_every = 1
        self.uncounted = 0

    # ------------------------------------------------------------------------------------ messages

    def message(self, index: int) -> Message:
        """The message of SQ entry ``index``."""
        return self._messages[index]

    def messages(self, index: int, end: int) -> Iterator[Message]:
        """Those from one index up to another."""
        while index != end:
            yield self.message(index)
            index = self.ring.after(index)

    @property
    def pending(self) -> bool:
        """Whether a message that was fetched has packets to send, now or again."""
        return self.send_index != self.fetch_index

    @property
    def begun(self) -> bool:
        """Whether any message was fetched and has not completed."""
        return self.sq_head != self.fetch_index

    def skip(self) -> Message:
        """The oldest message, which is given up: the next is the oldest now."""
        index = self.sq_head
        self.sq_head = after = self.ring.after(index)
        if index == self.send_index:
            self.send_index = after
        return self.message(index)

    def last(self) -> Message | None:
        """The newest message all of which was sent, if it has not completed."""
        index = self.send_index
        return None if index == self.sq_head else self._messages[(index or self.ring.entries) - 1]

    def piece(self, place: int = 0) -> ReadPiece:
        """READ or atomic request number ``place`` of those that wait for responses, oldest first."""
        return self._pieces[(self.piece_first + place) % PIECES]

    def add_piece(self) -> ReadPiece:
        """One more, the newest; the caller fills it and has made sure that there is room."""
        self.piece_count += 1
        return self.piece(self.piece_count - 1)

    def drop_piece(self) -> None:
        """The oldest has all its responses."""
        self.piece_first = (self.piece_first + 1) % PIECES
        self.piece_count -= 1

    def next_read(self) -> None:
        """The READ or atomic at ``read_index`` has all its responses: go on to the next that was begun."""
        index = self.ring.after(self.read_index)
        self.read_index = NONE
        for message in self.messages(index, self.fetch_index):
            if message.reads and message.begun:
                self.read_index = message.index
                break

    def stop_waiting(self) -> None:
        """Expect no responses and no deadline any more."""
        self.piece_first = self.piece_count = 0
        self.read_index = NONE
        self.clear_inflight()
        self.ack_deadline = self.probe_deadline = self.rnr_until = self.relief_ns = NEVER
        self.probe_due = 0

    def begin(self, mtu: int) -> None:
        """Take PSN and window from the context: on the way to RTS."""
        ctx = self.ctx
        config = self.host.config
        self.una = self.sent_psn = ctx.next_send_psn & PSN_MASK
        ctx.last_acked_psn = self.una
        widest = ctx.window_packets or config.window_packets
        if mtu:
            widest = min(widest, config.window_bytes // (mtu + 64) or 1)
        self.most = self.widest = max(1, min(widest, PSN_WINDOW))
        self._resize(self.widest)

    def refresh_retries(self) -> None:
        """Take timeout and retry counts from the context."""
        ctx = self.ctx
        self.retry_left = ctx.retry_cnt
        self.rnr_left = ctx.rnr_retry
        self.ack_timeout = ack_timeout_ns(ctx.ackto)

    # ------------------------------------------------------------------------------------- window

    def limit(self, packets: int) -> None:
        """Congestion control changes the outstanding limit (:class:`rnic.cc.limit.Flight`).

        A window that losses narrowed below it opens by acknowledgements, as before.
        """
        wide = self.window >= min(self.widest, packets)
        self.widest = packets
        if wide:
            self._resize(packets)
        self.host.schedule(self.qp)

    def narrow(self, part: int = 2) -> None:
        """Shrink the window by one in ``part`` after a loss."""
        self._resize(max(min(NARROWEST, self.widest), self.window * (part - 1) // part))

    def _widen(self, acknowledged: int) -> None:
        more, self.uncounted = divmod(self.uncounted + acknowledged, WIDEN_AFTER)
        if more:
            self._resize(min(self.widest, self.window + more))

    def _resize(self, packets: int) -> None:
        self.window = packets
        self.ack_every = max(1, min(self.host.config.ack_every, packets // ACKS_A_WINDOW))

    # ----------------------------------------------------------------------------------- progress

    @property
    def next_psn(self) -> int:
        """PSN of the packet that is sent next, for the first time or again: ``inflight`` packets behind ``una``."""
        return self.una + self.inflight & PSN_MASK

    @property
    def srtt(self) -> int:
        """Mean round trip to the peer in nanoseconds, 0 before the first."""
        return self.peer.srtt

    def add_inflight(self, packets: int) -> None:
        """Count ``packets`` more in flight."""
        self.inflight += packets
        self.account.take(self, packets)

    def _remove_inflight(self, packets: int) -> None:
        """Count ``packets`` fewer in flight."""
        if packets:
            self.inflight -= packets
            self.account.release(self.peer, packets)

    def clear_inflight(self) -> None:
        """Take everything out of flight, and leave the line for room."""
        self._remove_inflight(self.inflight)
        self.account.leave(self)

    def _switch_peer(self, peer: Peer) -> None:
        self.peer.users -= 1 if self.peer_record else 0
        self.peer = peer
        self.peer_record = peer.record
        peer.users += 1 if peer.record else 0

    def detach(self) -> None:
        """Leave the peer's account, when the queue pair is destroyed."""
        self.clear_inflight()
        self._switch_peer(NOBODY)
        self.account.remove_requester(self)

    def set_peer(self, peer: Peer) -> None:
        """Account for packets to ``peer`` from now on, where the path leads."""
        if peer is not self.peer:
            inflight = self.inflight
            self._remove_inflight(inflight)
            self.account.leave(self)
            self._switch_peer(peer)
            # it may have waited with the other peer, where nobody will call it any more
            self.host.schedule(self.qp)
            self.add_inflight(inflight)

    def advance(self, psn: int, now_ns: int) -> None:
        """Take everything before ``psn`` as acknowledged. This may fail the queue pair: see the context's state.

        Deadlines may be earlier than they were: once all of a packet has had its effect, the caller rearms.
        """
        if psn != self.una:
            if self.rtt_psn != NONE and psn_diff(psn, self.rtt_psn) > 0:
                self.peer.measured(max(0, now_ns - self.rtt_at), now_ns)
                self.rtt_psn = NONE
            count = psn_diff(psn, self.una)
            if self.single_resend_psn != NONE and count > 1:
                self.go_back_penalty *= self.una != self.single_resend_psn  # it had what follows
                self.single_resend_psn = NONE
            if self.window < self.widest:
                self._widen(count)
            self.una = psn
            self.peer.acknowledged(count)
            self._remove_inflight(min(count, self.inflight))
            self.ctx.last_acked_psn = psn
            self.retry_left = self.ctx.retry_cnt
            self.rnr_left = self.ctx.rnr_retry
            probed = self.probe_shift != 0
            self.probe_shift = self.backoff = 0
            if self.inflight == 0:
                self.ack_deadline = self.probe_deadline = NEVER
            else:
                self.ack_deadline = self._ack_timeout_at(now_ns)
                self.probe_deadline = now_ns + self._probe_interval() if self.probing else NEVER
                # What a probe brought to light need not be all; but behind one READ response there are mostly more.
                self.probe_due = probed and self.probing and not self.piece_count
            self.retire()
        self.resume()

    def resume(self) -> None:
        """Schedule the queue pair if anything can be sent after an acknowledgement."""
        if self.probe_due or ((self.pending or self.fetch_index != self.tail) and not self.parked):
            self.host.schedule(self.qp)

    def retire(self) -> None:
        """Complete, in order, every message that is wholly acknowledged."""
        una = self.una
        index = self.sq_head
        while index != self.fetch_index:
            message = self.message(index)
            if not (message.begun if message.packets else message.executed):
                break
            if psn_diff(message.end_psn, una) > 0:
                if index == self.send_index:
                    # acknowledged after a rewind: what arrived need not be sent again
                    message.sent = max(message.sent, psn_diff(una, message.first_psn))
                break
            if message.status:
                self.qp.fail_send(message.status, 0)
                return
            after = self.ring.after(index)
            if index == self.send_index:
                self.send_index = after
            self.sq_head = after
            self.ctx.sq_wqe_counter = self.ctx.sq_wqe_counter + 1 & 0xFFFF
            if message.signaled or self.qp.signal_all:
                length = message.length
                self.cq.complete(
                    index, SUCCESS, 0, length, message.opcode, message.wqe_id, length, self.ctx.local_qpn, 0
                )
            index = after
        if self.ctx.state == SQD:
            self.qp.check_drained()

    def about_to_send(self, psn: int) -> bool:
        """Whether ``psn`` is what is sent next, again: a NAK that asks for it tells nothing new and costs no retry.

        So it is while an RNR wait runs: some responders answer what was in flight behind the refused request with a
        sequence NAK each. They are the consequence of the RNR NAK.
        """
        return self.next_psn == psn

    def rewind(self, psn: int) -> None:
        """Go back: the next packet sent is ``psn`` (Go-Back-N)."""
        self.rtt_psn = NONE
        self.probe_due = 0
        while self.piece_count and psn_diff(self.piece(self.piece_count - 1).next_psn, psn) >= 0:
            self.piece_count -= 1
        index = self.send_index
        if index != self.fetch_index:
            self._unsend(self.message(index), psn)
        while index != self.sq_head:
            index = (index or self.ring.entries) - 1
            message = self.message(index)
            if psn_diff(message.end_psn, psn) <= 0:
                break
            self._unsend(message, psn)
            self.send_index = index
        self._remove_inflight(max(0, self.inflight - max(0, psn_diff(psn, self.una))))
        if self.inflight == 0:
            # what waits to be sent again, perhaps long, is not late
            self.ack_deadline = self.probe_deadline = NEVER
        self.host.schedule(self.qp)

    def resend_one(self, psn: int) -> bool:
        """Send ``psn``, which a NAK names, again alone if possible; false if it has to be Go-Back-N.

        The peer must have agreed to selective repeat. If it names the same PSN again, or the next, it has not stored
        what follows, or several packets are lost: then Go-Back-N is used, for more losses each time.
        """
        if not self.ctx.options & OPT_SELECTIVE_REPEAT or self.piece_count:
            return False
        if self.single_resend_psn != NONE and psn in (self.single_resend_psn, self.single_resend_psn + 1 & PSN_MASK):
            self.go_back_left = self.go_back_penalty = min(2 * self.go_back_penalty or 1, GO_BACK_PENALTY_MAX)
        if self.go_back_left:
            self.go_back_left -= 1
            self.single_resend_psn = NONE
            return False
        self.single_resend_psn = psn
        self.narrow(MENDED_PART)
        self.rtt_psn = NONE  # what is kept is acknowledged when the gap is filled: that is no round trip
        self.probe_due = PROBE_MENDS
        self.host.schedule(self.qp)
        return True

    @staticmethod
    def _unsend(message: Message, psn: int) -> None:
        message.sent = min(message.sent, max(0, psn_diff(psn, message.first_psn)))

    # ------------------------------------------------------------------------------------- timers

    def arm_timers(self, now_ns: int) -> None:
        """Start the timers that are not running, for the packets that are now outstanding."""
        if self.inflight == 0:
            return
        deadline = self.ack_deadline
        if deadline == NEVER:
            deadline = self.ack_deadline = self._ack_timeout_at(now_ns)
        if self.probing:
            probe = self.probe_deadline = now_ns + (self.retransmit_interval << self.probe_shift)
            if probe < deadline:
                deadline = probe
        else:
            self.probe_deadline = NEVER
        if deadline < self.qp.armed_ns:
            self.host.arm(self.qp)

    def start_rnr_wait(self, deadline_ns: int) -> None:
        """Send nothing, and expect nothing, until the responder is ready (IBA 9.7.5.2.8)."""
        self.rnr_until = deadline_ns
        self.ack_deadline = self.probe_deadline = NEVER

    def _ack_timeout_at(self, now_ns: int) -> int:
        """When what is sent now, or waits now, counts as lost if nothing is acknowledged; never with a timeout of 0.

        The local ACK timeout, twice as long after each that passed in vain, and no shorter than four measured round
        trips; but at most four times the timeout, which is as long as IBA 9.7.6.1.3 lets a requester wait.
        """
        timeout = self.ack_timeout
        if not timeout:
            return NEVER
        return now_ns + min(max(timeout << self.backoff, 4 * self.peer.srtt), ACK_WAITS[-1] * timeout)

    @property
    def probing(self) -> bool:
        """Whether the tail-loss probe is on."""
        return self.host.config.probe and not self.ctx.options & OPT_NO_PROBE

    @property
    def retransmit_interval(self) -> int:
        """Nanoseconds in which what was repeated should have been answered."""
        peer = self.peer
        srtt = peer.srtt
        if self.qp.selective is not None:
            least = REPEAT_NS
        else:
            alone = srtt and peer.users == 1 and not self.piece_count
            least = REPEAT_ALONE_NS if alone else REPEAT_MIN_NS
        return max(least, 2 * srtt + 4 * peer.rttvar)

    def _probe_interval(self) -> int:
        return self.retransmit_interval << self.probe_shift

    @property
    def deadline_ns(self) -> int:
        """The next time at which :meth:`handle_timer` has something to do."""
        return min(self.ack_deadline, self.probe_deadline, self.rnr_until, self.relief_ns)

    def handle_timer(self, now_ns: int) -> None:
        """RNR wait or congestion over, local ACK timeout, or tail-loss probe."""
        if self.relief_ns <= now_ns:
            relieve(self)
        if self.rnr_until <= now_ns:
            self.rnr_until = NEVER
            self.host.schedule(self.qp)
        if self.ack_deadline <= now_ns:
            self.host.counters.bump("ack_timeouts")
            self.ack_deadline = NEVER
            self.backoff = min(self.backoff + 1, BACKOFF_MOST)
            self.peer.timed_out(now_ns)
            self.qp.retry(self.una, now_ns)
        elif self.probe_deadline <= now_ns:
            # As many probes without progress as packets may be sent by timeouts; without an ACK timeout, for ever.
            if self.probe_shift <= self.ctx.retry_cnt or not self.ack_timeout or self.qp.selective is not None:
                self.probe_due = 1
                self.ack_each = ACK_EACH_AFTER_PROBE
                self.host.schedule(self.qp)
            if self.probe_shift >= SILENT_PROBES:
                self.peer.timed_out(now_ns)
            self.probe_shift = min(self.probe_shift + 1, PROBE_MAX_SHIFT)
            self.probe_deadline = now_ns + self._probe_interval()
