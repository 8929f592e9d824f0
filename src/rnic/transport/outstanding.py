"""What a requester has sent and not seen acknowledged: progress, going back, timers (IBA 9.7.6).

Messages wait in ``backlog`` until all their packets are sent, then in ``inflight`` until they are
acknowledged; both are in PSN order. Going back to a PSN moves messages from the end of ``inflight`` to the
front of ``backlog``, so that sending again is the same code as sending.

Four things wait for a time, each with a deadline of its own: the local ACK timeout, the tail-loss probe
(``design.md``, "Loss recovery"), the second loss of a READ response, and the end of an RNR wait. The local ACK
timeout is the same for every retry, as the standard has it: who sets timeout and retry count knows when the queue
pair gives up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.cc.limit import relieve
from rnic.context.qpc import OPT_NO_PROBE
from rnic.spec.limits import NEVER
from rnic.spec.psn import PSN_MASK, PSN_WINDOW, psn_diff
from rnic.spec.states import SQD, ST_RC
from rnic.spec.status import SUCCESS
from rnic.spec.syndromes import ack_timeout_ns
from rnic.transport.message import Message, ReadPiece

if TYPE_CHECKING:
    from rnic.transport.host import CompletionSink
    from rnic.transport.qp import QueuePair
    from rnic.transport.wqe import SendRing

_REPEAT_MIN_NS = 1_000_000
"""A tail-loss probe, and the repetition of a READ that was repeated already, wait at least this long."""
_PROBE_MAX_SHIFT = 10
_NARROWEST = 32
"""Packets in flight that no number of losses takes away."""
_ACKS_A_WINDOW = 4
_WIDEN_AFTER = 4
"""Packets to be acknowledged for each one more in flight."""


class Outstanding:
    """The state of the sending half of one queue pair, and what acknowledgements and time do to it.

    ``una`` is the oldest PSN that is not acknowledged, ``sent_psn`` the one behind the last ever sent. ``window``
    bounds the packets between ``una`` and the next to be sent. A loss halves it, since Go-Back-N sends again
    whatever was in flight behind the lost packet, and acknowledgements open it again: so the packets sent in vain
    stay in proportion to those between two losses. The standard leaves it to the requester how much it sends.
    """

    __slots__ = (
        "ack_deadline",
        "ack_every",
        "ack_timeout",
        "backlog",
        "cq",
        "ctx",
        "fetch_index",
        "gap_deadline",
        "host",
        "inflight",
        "most",
        "pieces",
        "probe_deadline",
        "probe_due",
        "probe_shift",
        "qp",
        "reads",
        "relief_ns",
        "retry_left",
        "ring",
        "rnr_left",
        "rnr_until",
        "rtt_at",
        "rtt_psn",
        "sent_psn",
        "sq_head",
        "srtt",
        "tail",
        "una",
        "uncounted",
        "widest",
        "window",
    )

    def __init__(self, qp: QueuePair, ring: SendRing, cq: CompletionSink) -> None:
        self.qp = qp
        self.ctx = qp.ctx
        self.host = qp.host
        self.ring = ring
        self.cq = cq
        # Lists, since an empty deque takes 700 bytes of every idle QP; the window bounds them.
        self.inflight: list[Message] = []
        self.backlog: list[Message] = []
        self.pieces: list[ReadPiece] = []
        self.reads: list[Message] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything: the RESET state."""
        self.backlog.clear()
        self.inflight.clear()
        self.fetch_index = self.sq_head = self.tail = 0
        self.una = self.sent_psn = 0
        self.retry_left = self.rnr_left = 0
        self.stop_waiting()
        self.probe_shift = 0
        self.rtt_psn = -1
        self.rtt_at = 0
        self.srtt = 0
        self.ack_timeout = 0
        self.most = self.widest = self.window = 0
        self.ack_every = 1
        self.uncounted = 0

    def stop_waiting(self) -> None:
        """Expect no responses and no deadline any more."""
        self.pieces.clear()
        self.reads.clear()
        self.ack_deadline = self.probe_deadline = self.gap_deadline = self.rnr_until = self.relief_ns = NEVER
        self.probe_due = False

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

    def narrow(self) -> None:
        """A packet was lost: half as many in flight."""
        self._resize(max(min(_NARROWEST, self.widest), self.window >> 1))

    def _widen(self, acknowledged: int) -> None:
        more, self.uncounted = divmod(self.uncounted + acknowledged, _WIDEN_AFTER)
        if more:
            self._resize(min(self.widest, self.window + more))

    def _resize(self, packets: int) -> None:
        self.window = packets
        self.ack_every = max(1, min(self.host.config.ack_every, packets // _ACKS_A_WINDOW))

    # ----------------------------------------------------------------------------------- progress

    @property
    def outstanding(self) -> bool:
        """Whether packets are waiting for an acknowledgement."""
        return self.una != self.sent_psn

    def advance(self, psn: int, now_ns: int) -> None:
        """Everything before ``psn`` is acknowledged. May end in a failure: see the context's state."""
        if psn != self.una:
            if self.rtt_psn >= 0 and psn_diff(psn, self.rtt_psn) > 0:
                sample = now_ns - self.rtt_at
                self.srtt = sample if self.srtt == 0 else (7 * self.srtt + sample) >> 3
                self.rtt_psn = -1
            if self.window < self.widest:
                self._widen(psn_diff(psn, self.una))
            self.una = psn
            self.ctx.last_acked_psn = psn
            self.retry_left = self.ctx.retry_cnt
            self.rnr_left = self.ctx.rnr_retry
            probed = self.probe_shift != 0
            self.probe_shift = 0
            self.gap_deadline = NEVER
            if psn == self.sent_psn:
                self.ack_deadline = self.probe_deadline = NEVER
            else:
                self.ack_deadline = now_ns + self.ack_timeout if self.ack_timeout else NEVER
                self.probe_deadline = now_ns + self._probe_interval() if self._probing else NEVER
                # what a probe brought to light need not be all
                self.probe_due = probed and self._probing
                self.qp.rearm()
            self.retire()
        if self.backlog or self.probe_due or self.fetch_index != self.tail:
            self.host.schedule(self.qp)

    def retire(self) -> None:
        """Complete, in order, every message that is wholly acknowledged."""
        una = self.una
        while self.inflight or self.backlog:
            queue = self.inflight or self.backlog
            message = queue[0]
            if message.packets == 0 and not message.executed:
                break
            if psn_diff(message.first_psn + message.packets & PSN_MASK, una) > 0:
                if queue is self.backlog:
                    # acknowledged after a rewind: what arrived need not be sent again
                    message.sent = max(message.sent, psn_diff(una, message.first_psn))
                break
            if message.status:
                self.qp.fail_send(message.status, 0)
                return
            del queue[0]
            wqe = message.wqe
            self.sq_head = 0 if wqe.index + 1 == self.ring.entries else wqe.index + 1
            self.ctx.sq_wqe_counter = self.ctx.sq_wqe_counter + 1 & 0xFFFF
            if wqe.signaled or self.qp.signal_all:
                self.cq.complete(
                    wqe.index, SUCCESS, 0, wqe.length, wqe.opcode, wqe.wqe_id, wqe.length, self.ctx.local_qpn, 0
                )
        if self.ctx.state == SQD:
            self.qp.check_drained()

    def about_to_send(self, psn: int) -> bool:
        """Whether ``psn`` is what is sent next, again: a NAK that asks for it tells nothing new and costs no retry.

        So it is while an RNR wait runs: some responders answer what was in flight behind the refused request with a
        sequence NAK each. They are the consequence of the RNR NAK.
        """
        return bool(self.backlog) and self.backlog[0].first_psn + self.backlog[0].sent & PSN_MASK == psn

    def rewind(self, psn: int) -> None:
        """Go back: the next packet sent is ``psn`` (Go-Back-N)."""
        self.rtt_psn = -1
        self.probe_due = False
        pieces = self.pieces
        while pieces and psn_diff(pieces[-1].next_psn, psn) >= 0:
            pieces.pop()
        backlog = self.backlog
        inflight = self.inflight
        if backlog:
            backlog[0].sent = self._sent_at(backlog[0], psn)
        again = []
        while inflight:
            message = inflight[-1]
            if psn_diff(message.first_psn + message.packets & PSN_MASK, psn) <= 0:
                break
            message.sent = self._sent_at(message, psn)
            again.append(inflight.pop())
        backlog[:0] = reversed(again)
        self.host.schedule(self.qp)

    @staticmethod
    def _sent_at(message: Message, psn: int) -> int:
        return min(message.sent, max(0, psn_diff(psn, message.first_psn)))

    # ------------------------------------------------------------------------------------- timers

    def watch(self, now_ns: int) -> None:
        """Start the timers that are not running, for the packets that are now outstanding."""
        if self.ctx.servtype != ST_RC or self.una == self.sent_psn:
            return
        deadline = self.ack_deadline
        if deadline == NEVER and self.ack_timeout:
            deadline = self.ack_deadline = now_ns + self.ack_timeout
        if self._probing:
            probe = self.probe_deadline = now_ns + self._probe_interval()
            if probe < deadline:
                deadline = probe
        else:
            self.probe_deadline = NEVER
        if deadline < self.qp.armed_ns:
            self.host.arm(self.qp)

    def watch_gap(self, seen_ns: int) -> None:
        """A READ response is missing that was asked for again at ``seen_ns``: after a while, ask once more."""
        self.gap_deadline = seen_ns + self.repeat_interval
        self.qp.rearm()

    def wait_until(self, deadline_ns: int) -> None:
        """The responder is not ready: send nothing, and expect nothing, until then (IBA 9.7.5.2.8)."""
        self.rnr_until = deadline_ns
        self.ack_deadline = self.probe_deadline = self.gap_deadline = NEVER
        self.qp.rearm()

    @property
    def _probing(self) -> bool:
        """Whether the tail-loss probe is on and could be sent: never while a READ or atomic is outstanding."""
        return not self.pieces and self.host.config.probe and not self.ctx.options & OPT_NO_PROBE

    @property
    def repeat_interval(self) -> int:
        """Nanoseconds in which what was repeated should have been answered."""
        return max(_REPEAT_MIN_NS, 2 * self.srtt)

    def _probe_interval(self) -> int:
        return self.repeat_interval << self.probe_shift

    @property
    def deadline_ns(self) -> int:
        """The next time at which :meth:`handle_timer` has something to do."""
        return min(self.ack_deadline, self.probe_deadline, self.gap_deadline, self.rnr_until, self.relief_ns)

    def handle_timer(self, now_ns: int) -> None:
        """RNR wait or congestion over, local ACK timeout, READ response lost twice, or tail-loss probe."""
        if self.relief_ns <= now_ns:
            relieve(self)
        if self.rnr_until <= now_ns:
            self.rnr_until = NEVER
            self.host.schedule(self.qp)
        if self.ack_deadline <= now_ns:
            self.host.counters.bump("ack_timeouts")
            self.ack_deadline = NEVER
            self.qp.retry(self.una, now_ns)
        elif self.gap_deadline <= now_ns:
            self.gap_deadline = NEVER
            self.qp.completer.repeat_gap(now_ns)
        elif self.probe_deadline <= now_ns:
            self.probe_due = True
            self.probe_shift = min(self.probe_shift + 1, _PROBE_MAX_SHIFT)
            self.probe_deadline = now_ns + self._probe_interval()
            self.host.schedule(self.qp)
