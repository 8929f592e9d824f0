"""Outstanding requests: progress, rewind, timers (IBA 9.7.6).

Messages are in the send WQEs, in PSN order. From ``sq_head`` to ``send_index``, all packets are sent; from there to
``fetch_index``, some wait to be sent. Rewinding to a PSN moves ``send_index`` back, so retransmission uses the same
code as the first transmission.

There are three timers: the local ACK timeout, the tail-loss probe (``design.md``, "Loss recovery"), and the end of an
RNR wait. The first two start when a packet is sent, not while it waits for (re)transmission. ``inflight`` counts
packets that are sent and not acknowledged; the accounts of NIC and peer include them (:mod:`rnic.transport.inflight`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.cc.controlled import ACKS_A_WINDOW
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
"""Shortest interval of a tail-loss probe: with a shorter one, many busy queue pairs retransmit packets that are only
late."""
REPEAT_ALONE_NS = 250_000
"""Shortest interval for the only active queue pair of a peer, if it waits for ACKs only and knows the round trip: a
repeated READ costs more than an ACK, and other queue pairs delay the peer."""
SILENT_PROBES = 3
"""Probe intervals without an answer after which the peer counts as silent, even without an ACK timeout."""
PROBE_MAX_SHIFT = 10
"""Most doublings of a probe's interval."""
BACKOFF_MOST = len(ACK_WAITS) - 1
"""Most doublings of the ACK timeout."""
ACK_EACH_AFTER_PROBE = 32
"""Messages with AckReq after a probe: not every peer acknowledges messages without it."""
PROBE_MENDS = 2
"""Value of ``probe_due`` if only the oldest packet is retransmitted, because a NAK named it."""
GO_BACK_PENALTY_MAX = 64
"""Most losses for which Go-Back-N is used with a peer that did not keep out-of-order packets."""
NARROWEST = 32
"""Window in packets that losses do not shrink further."""
MENDED_PART = 4
"""Retransmitting a single packet shrinks the window by one in this many: each repair takes a round trip, which grows
with the packets in flight."""
WIDEN_AFTER = 4
"""Acknowledged packets for each packet that the window grows by."""


@view(QP, "SendQueue", "Inflight")
class SendQueue(QpRecord):
    """State of the sending half of one queue pair, and its changes by acknowledgements and timers.

    ``una`` is the oldest unacknowledged PSN, ``sent_psn`` follows the last PSN ever sent. ``window`` bounds the packets
    between ``una`` and the next one to send. A loss halves it, since Go-Back-N retransmits all packets in flight after
    the lost one, and acknowledgements open it again. So the wasted packets stay in proportion to those between two
    losses. The standard leaves the window to the requester.
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
    control_ns: Word
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
        """Reset all state, as RESET requires."""
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
        """Return the message of SQ entry ``index``."""
        return self._messages[index]

    def messages(self, index: int, end: int) -> Iterator[Message]:
        """Yield the messages from one index up to, but not including, another."""
        while index != end:
            yield self.message(index)
            index = self.ring.after(index)

    @property
    def pending(self) -> bool:
        """True if a fetched message has packets to send or retransmit."""
        return self.send_index != self.fetch_index

    @property
    def begun(self) -> bool:
        """True if a message was fetched and has not completed."""
        return self.sq_head != self.fetch_index

    def skip(self) -> Message:
        """Remove the oldest message and return it."""
        index = self.sq_head
        self.sq_head = after = self.ring.after(index)
        if index == self.send_index:
            self.send_index = after
        return self.message(index)

    def last(self) -> Message | None:
        """Return the newest completely sent message, if it has not completed."""
        index = self.send_index
        return None if index == self.sq_head else self._messages[(index or self.ring.entries) - 1]

    def piece(self, place: int = 0) -> ReadPiece:
        """Return the READ or atomic request at position ``place`` of those that wait for responses, oldest first."""
        return self._pieces[(self.piece_first + place) % PIECES]

    def add_piece(self) -> ReadPiece:
        """Append a piece and return it. The caller fills it in and has checked that there is room."""
        self.piece_count += 1
        return self.piece(self.piece_count - 1)

    def drop_piece(self) -> None:
        """Drop the oldest piece, which has all its responses."""
        self.piece_first = (self.piece_first + 1) % PIECES
        self.piece_count -= 1

    def next_read(self) -> None:
        """Move ``read_index`` from a READ or atomic that has all its responses to the next started one."""
        index = self.ring.after(self.read_index)
        self.read_index = NONE
        for message in self.messages(index, self.fetch_index):
            if message.reads and message.begun:
                self.read_index = message.index
                break

    def stop_waiting(self) -> None:
        """Stop expecting responses, and clear all deadlines."""
        self.piece_first = self.piece_count = 0
        self.read_index = NONE
        self.clear_inflight()
        self.ack_deadline = self.probe_deadline = self.rnr_until = self.control_ns = NEVER
        self.probe_due = 0

    def begin(self, mtu: int) -> None:
        """Load PSN and window from the context at the transition to RTS."""
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
        """Reload timeout and retry counts from the context."""
        ctx = self.ctx
        self.retry_left = ctx.retry_cnt
        self.rnr_left = ctx.rnr_retry
        self.ack_timeout = ack_timeout_ns(ctx.ackto)

    # ------------------------------------------------------------------------------------- window

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
        """PSN of the next packet to send or retransmit: ``una`` plus ``inflight``."""
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
        """Reset the packets in flight to 0, and leave the line for room."""
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
        """Switch to the account of ``peer``, to which the path leads."""
        if peer is not self.peer:
            inflight = self.inflight
            self._remove_inflight(inflight)
            self.account.leave(self)
            self._switch_peer(peer)
            # it may have waited for room at the old peer, which will not wake it anymore
            self.host.schedule(self.qp)
            self.add_inflight(inflight)

    def advance(self, psn: int, now_ns: int) -> None:
        """Mark everything before ``psn`` as acknowledged. This may fail the queue pair: check the context's state.

        Deadlines may move forward: the caller rearms once it has processed the whole packet.
        """
        if psn != self.una:
            rtt_ns = 0
            if self.rtt_psn != NONE and psn_diff(psn, self.rtt_psn) > 0:
                rtt_ns = max(0, now_ns - self.rtt_at)
                self.peer.measured(rtt_ns, now_ns)
                self.rtt_psn = NONE
            count = psn_diff(psn, self.una)
            if self.single_resend_psn != NONE and count > 1:
                self.go_back_penalty *= self.una != self.single_resend_psn  # the peer had kept later packets
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
                # a probe may not reveal every loss, so probe again; but more READ responses usually follow one
                self.probe_due = probed and self.probing and not self.piece_count
            self.retire()
            if (controlled := self.qp.controlled) is not None and controlled.counts_acks:
                controlled.acknowledged(count, rtt_ns, now_ns)
        self.resume()

    def resume(self) -> None:
        """Schedule the queue pair if it can send something after an acknowledgement."""
        if self.probe_due or ((self.pending or self.fetch_index != self.tail) and not self.parked):
            self.host.schedule(self.qp)

    def retire(self) -> None:
        """Complete, in order, every message that is fully acknowledged."""
        una = self.una
        index = self.sq_head
        while index != self.fetch_index:
            message = self.message(index)
            if not (message.begun if message.packets else message.executed):
                break
            if psn_diff(message.end_psn, una) > 0:
                if index == self.send_index:
                    # acknowledged after a rewind: do not retransmit packets that arrived
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
        """Return whether ``psn`` is the next to retransmit: a NAK that names it is redundant and costs no retry.

        This happens during an RNR wait: some responders answer each packet in flight after the refused request with a
        sequence NAK, as a consequence of the RNR NAK.
        """
        return self.next_psn == psn

    def rewind(self, psn: int) -> None:
        """Rewind to ``psn``, the next packet to send (Go-Back-N)."""
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
            # packets that wait for retransmission are not late
            self.ack_deadline = self.probe_deadline = NEVER
        self.host.schedule(self.qp)

    def resend_one(self, psn: int) -> bool:
        """Retransmit only ``psn``, which a NAK named. Return false if Go-Back-N must be used.

        The peer must have agreed to selective repeat. If it names the same PSN again, or the next one, it has not kept
        later packets, or several are lost: then Go-Back-N is used, each time for more losses.
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
        self.rtt_psn = NONE  # the ACK of kept packets waits for the gap: do not measure it as a round trip
        self.probe_due = PROBE_MENDS
        self.host.schedule(self.qp)
        return True

    @staticmethod
    def _unsend(message: Message, psn: int) -> None:
        message.sent = min(message.sent, max(0, psn_diff(psn, message.first_psn)))

    # ------------------------------------------------------------------------------------- timers

    def arm_timers(self, now_ns: int) -> None:
        """Start the timers that are not running, for the packets now outstanding."""
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
        """Send nothing and expect no response until the responder is ready (IBA 9.7.5.2.8)."""
        self.rnr_until = deadline_ns
        self.ack_deadline = self.probe_deadline = NEVER

    def _ack_timeout_at(self, now_ns: int) -> int:
        """Return the time at which packets sent by now count as lost without an ACK; ``NEVER`` with a timeout of 0.

        The wait is the local ACK timeout, doubled after each expiry, and at least four measured round trips; but at
        most four times the timeout, the limit of IBA 9.7.6.1.3.
        """
        timeout = self.ack_timeout
        if not timeout:
            return NEVER
        return now_ns + min(max(timeout << self.backoff, 4 * self.peer.srtt), ACK_WAITS[-1] * timeout)

    @property
    def probing(self) -> bool:
        """True if the tail-loss probe is on."""
        return self.host.config.probe and not self.ctx.options & OPT_NO_PROBE

    @property
    def retransmit_interval(self) -> int:
        """Time in nanoseconds within which a retransmission should be answered."""
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
        """Time of the next :meth:`handle_timer`."""
        return min(self.ack_deadline, self.probe_deadline, self.rnr_until, self.control_ns)

    def handle_timer(self, now_ns: int) -> None:
        """Handle the end of an RNR wait, a congestion control timer, a local ACK timeout, or a tail-loss probe."""
        if self.control_ns <= now_ns:
            controlled = self.qp.controlled
            if controlled is None:
                self.control_ns = NEVER
            elif controlled.catch_up(now_ns):
                self.host.schedule(self.qp)
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
            # Send as many probes without progress as retry_cnt permits; without an ACK timeout, forever.
            if self.probe_shift <= self.ctx.retry_cnt or not self.ack_timeout or self.qp.selective is not None:
                self.probe_due = 1
                self.ack_each = ACK_EACH_AFTER_PROBE
                self.host.schedule(self.qp)
            if self.probe_shift >= SILENT_PROBES:
                self.peer.timed_out(now_ns)
            self.probe_shift = min(self.probe_shift + 1, PROBE_MAX_SHIFT)
            self.probe_deadline = now_ns + self._probe_interval()
