"""One queue pair: requester, completer and responder around one context, and its error handling."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rnic.context.qpc import OPT_SQ_SIG_ALL, SRQ_VALID
from rnic.rings.cqe import CQE_RECEIVE
from rnic.spec.addresses import address_text
from rnic.spec.drops import DropReason
from rnic.spec.events import SQ_DRAINED, SRQ_LAST_WQE, WQ_CATAS_ERROR
from rnic.spec.limits import ICRC_BYTES, MAX_TRANSPORT_HEADERS, NEVER, SELECTIVE_REPEAT
from rnic.spec.opcodes import (
    CNP,
    OPERATION_MASK,
    RC,
    READ_RESPONSE_MIDDLE,
    SEND_MIDDLE,
    SERVICE_MASK,
    UC,
    WR_SEND,
    WRITE_MIDDLE,
)
from rnic.spec.psn import PSN_MASK, psn_diff
from rnic.spec.reasons import Reason
from rnic.spec.states import (
    ERR,
    INIT,
    RELIABLE,
    RESET,
    RTR,
    RTS,
    SQD,
    SQE,
    ST_RC,
    ST_UC,
    ST_UD,
    ST_XRC_INI,
    ST_XRC_TGT,
)
from rnic.spec.status import REM_OP_ERR, RETRY_EXC_ERR, WR_FLUSH_ERR
from rnic.spec.syndromes import NAK_REMOTE_OPERATION
from rnic.state.queue_pair import QP, QpMemory, QpRecord
from rnic.state.queues import RECEIVE_RING
from rnic.state.record import Word, view, within
from rnic.transport import runs
from rnic.transport.completer import Completer
from rnic.transport.datagram import DatagramReceiver, send_datagram
from rnic.transport.encap import FrameBatch, bth_base
from rnic.transport.host import CompletionSink, Host, ReceiveCompletionSink, ReceiveSource
from rnic.transport.requester import Requester
from rnic.transport.responder import SEND, WRITE, Responder
from rnic.transport.selective_repeat import SelectiveRepeat
from rnic.transport.why import Why, about_message, why_send
from rnic.transport.wqe import ReceiveRing, SendRing
from rnic.wire.bursts import DONT_FRAGMENT, TxBurst
from rnic.wire.cnp import CNP_PAYLOAD
from rnic.wire.crc import crc32
from rnic.wire.flow import residue
from rnic.wire.flow_records import use
from rnic.wire.packet import build, seal

if TYPE_CHECKING:
    from rnic.cc.controlled import Controlled
    from rnic.context.qp_context import QpContext
    from rnic.transport.message import Message
    from rnic.transport.sge import Payload
    from rnic.transport.wqe import ReceiveWqe
    from rnic.wire.bursts import RxBurst
    from rnic.wire.flow import Flow
    from rnic.wire.packet import Packet

_RECEIVE_RING = within(QP, "rq_", RECEIVE_RING)
_BTH = struct.Struct(">QI")
_CAN_SEND = frozenset({RTS, SQD})
_CAN_RECEIVE = frozenset({RTR, RTS, SQD, SQE})
_SERVICE_BITS = {ST_RC: RC, ST_UC: UC}
LEAST = 4
"""Packets that replies (or requests, if replies go first) may still send in a turn whose budget is used up."""
_PAD_OR_TVER = 0x3F << 48
"""Pad count and TVer in the first eight bytes of a BTH: both zero in the packets of a run."""


@view(QP, "QueuePair", "Timers", "Nic")
class QueuePair(QpRecord):
    """A queue pair of any service type.

    Args:
        memory: its record and slots.
        ctx: its context, shared with the device, which loads and stores it.
        host: the device.
        send_ring: the send ring in the driver's memory.
        rq: its receive queue, or the shared one.
        send_cq: completion queue of sends.
        recv_cq: completion queue of receives.
    """

    __slots__ = (
        "_flow",
        "completer",
        "controlled",
        "ctx",
        "datagrams",
        "host",
        "memory",
        "recv_cq",
        "requester",
        "responder",
        "rq",
        "send_cq",
        "selective",
        "send_ring",
        "why",
        "words",
    )

    path: Word
    program: Word
    signal_all: Word
    uses_srq: Word
    cnp_tag: Word
    masked: Word
    paced: Word
    pace_ns: Word
    control: Word
    armed_ns: Word
    timer_place: Word
    scheduled: Word

    def __init__(
        self,
        memory: QpMemory,
        ctx: QpContext,
        host: Host,
        send_ring: SendRing,
        rq: ReceiveSource,
        send_cq: CompletionSink,
        recv_cq: ReceiveCompletionSink,
    ) -> None:
        self.ctx = ctx
        self.host = host
        self.send_ring = send_ring
        self.rq = rq
        self.send_cq = send_cq
        self.recv_cq = recv_cq
        self.why: Why | None = None
        """Reason of the last request that it refused, or of its last own request that failed."""
        self.controlled: Controlled | None = None
        """Its congestion control, if it has one."""
        chosen = host.config.recovery == SELECTIVE_REPEAT
        self.selective = SelectiveRepeat(self) if chosen else None
        """Selective repeat, if configured instead of Go-Back-N."""
        self._flow: Flow | None = None
        self.memory = memory
        self.words = memory.qp
        self.uses_srq, self.signal_all = bool(ctx.srqn & SRQ_VALID), bool(ctx.options & OPT_SQ_SIG_ALL)
        self.armed_ns = self.pace_ns = NEVER
        if isinstance(rq, ReceiveRing):
            rq.settle(self.words[_RECEIVE_RING])
        self.requester = Requester(memory, self, send_ring, send_cq)
        self.completer = Completer(memory, self)
        self.responder = Responder(memory, self, rq, recv_cq)
        self.datagrams = DatagramReceiver(self, rq, recv_cq)

    @property
    def flow(self) -> Flow | None:
        """Path to its peer."""
        return self._flow

    @flow.setter
    def flow(self, flow: Flow | None) -> None:
        at = 0 if flow is None else flow.place
        use(self.memory.cells, self.path, at)
        self.path = at
        self._flow = flow

    # --------------------------------------------------------------------------------- state changes

    def on_modify(self, old_state: int, now_ns: int) -> None:
        """Act on a change of the context by the device."""
        ctx = self.ctx
        if ctx.state == RESET or (ctx.state == ERR and old_state != ERR):
            self.drain_acks()
        if ctx.state == RESET:
            self.forget_why()
            self.requester.reset()
            self.completer.reset()
            self.responder.reset()
            if self.selective is not None:
                self.selective.reset()
            self.flow = None
            return
        if ctx.state == ERR:
            if old_state != ERR:
                # stopped by software: send nothing more (IBA 10.3.1, Error state)
                self.enter_error(raise_event=False)
            return
        if ctx.servtype == ST_UD or ctx.state >= RTR:
            self.flow = self.host.make_flow(ctx)
        if ctx.state == RTS and old_state == RTR:
            self.requester.start(self.flow)
        elif ctx.state in (RTR, RTS, SQD):
            self.requester.refresh(self.flow)
        if ctx.state == RTR and old_state == INIT:
            ctx.expected_psn &= PSN_MASK
        if ctx.state == SQD:
            if old_state != SQD:
                ctx.sq_draining = 1
                self.check_drained()
        elif ctx.state == RTS:
            ctx.sq_draining = 0
            self.host.schedule(self)

    def check_drained(self) -> None:
        """Raise the SQD event once all started requests have completed (IBA 10.3.1)."""
        requester = self.requester
        if self.ctx.sq_draining and not requester.begun:
            self.ctx.sq_draining = 0
            self.host.event(SQ_DRAINED, self.ctx.local_qpn)

    def query(self) -> None:
        """Update the context's live fields before the context is stored."""
        # the data path keeps all of them in the context, except the requester's sequence number
        self.ctx.ssn = self.requester.ssn

    @property
    def receive_pd(self) -> int:
        """Protection domain of its receive entries."""
        return self.ctx.pd

    @property
    def sq_head(self) -> int:
        """Index of the oldest send entry that has not completed."""
        return self.requester.sq_head

    # ------------------------------------------------------------------------------------- sending

    def doorbell(self, tail: int) -> None:
        """Take the new send tail from software; the device has checked it against the ring."""
        requester = self.requester
        requester.tail = tail
        state = self.ctx.state
        if state in (ERR, SQE):
            self._flush_send()
            if state == ERR:
                self._flush_receive()
        elif state == RTS:
            self.host.schedule(self)

    def ready(self, now_ns: int) -> bool:
        """Return whether the last turn was ended only by its budget, or replies wait."""
        return bool(self.requester.more or self.responder.replies.reply_count)

    @property
    def replies_first(self) -> bool:
        """True if replies go before requests.

        This matters if the owner sleeps on completion events: requests posted after waking must not overtake the ACK of
        the message that woke it. A hardware NIC has sent that ACK by then, and programs that use one channel for both
        directions (perftest) take the next event to be that of their send.
        """
        return self.responder.replies.reply_count > 0 and self.recv_cq.notified

    def produce(self, now_ns: int, budget: int, out: list[TxBurst]) -> int:
        """Send up to ``budget`` packets, requests first unless :attr:`replies_first`. Return the number sent."""
        sent = 0
        if self.cnp_tag:
            sent = self._notify(out)
        first = self.replies_first
        if first:
            sent += self.produce_replies(budget - sent, out)
        sent += self.produce_requests(now_ns, min(budget, max(budget - sent, LEAST)), out)
        if self.responder.replies and not first:
            # keep some budget for replies, or two busy requesters would starve each other of ACKs
            sent += self.produce_replies(max(budget - sent, LEAST), out)
        return sent

    def produce_requests(self, now_ns: int, budget: int, out: list[TxBurst]) -> int:
        """Send up to ``budget`` packets of requests. Return the number sent."""
        sent = 0
        if self.ctx.state in _CAN_SEND and self._flow is not None and not self.masked:
            controlled = self.controlled if self.paced else None  # a program may write ``paced`` in its slot
            if controlled is None:
                sent = self.requester.produce(now_ns, budget, out)
            else:
                sent = self._paced(controlled, now_ns, budget, out)
        if self.requester.admitted:
            self.requester.account.turn_over(self.requester)  # it was granted a turn but may not send
        return sent

    def produce_replies(self, budget: int, out: list[TxBurst]) -> int:
        """Send up to ``budget`` packets of the waiting replies. Return the number sent."""
        if self.flow is None:
            return 0
        ctx, replies = self.ctx, self.responder.replies
        batch = FrameBatch(self.flow, out, self.requester.batch_limit)
        head = self._reply_head(ctx)
        sent, failed = replies.produce(head, ctx.mtu_bytes, budget, batch)
        batch.flush()
        if failed is not None and ctx.state != ERR:
            # the requester would take replies after the failed one as a sign of loss
            replies.clear()
            replies.acknowledge(failed, NAK_REMOTE_OPERATION, self.responder.msn)
            self.fail_receive(REM_OP_ERR, NAK_REMOTE_OPERATION, WQ_CATAS_ERROR)
        return sent

    def _reply_head(self, ctx: QpContext) -> int:
        """Return the first eight bytes of the BTH of a response of operation 0."""
        return bth_base(self.host.pkey(ctx.pkey_index), ctx.remote_qpn) | self.requester.service << 56

    def drain_acks(self) -> None:
        """Acknowledge requests executed before software stopped the queue pair, and drop all other replies.

        The program may have seen the completion of a request whose ACK the peer still waits for.
        """
        replies = self.responder.replies
        replies.keep_acknowledgements()
        if len(replies) and self.flow is not None:
            ctx, out = self.ctx, list[TxBurst]()
            batch = FrameBatch(self.flow, out, 1)
            replies.produce(self._reply_head(ctx), ctx.mtu_bytes, len(replies), batch)
            batch.flush()
            self.host.final_bursts(out)
        replies.clear()

    def _notify(self, out: list[TxBurst]) -> int:
        """Send the requested CNP ahead of data. Return 1, or 0 if there is no peer anymore."""
        self.cnp_tag = 0
        flow = self.flow
        if flow is None:
            return 0
        host, ctx = self.host, self.ctx
        packet = build(
            CNP, dqpn=ctx.remote_qpn, psn=0, becn=True, pkey=host.pkey(ctx.pkey_index), payload=bytes(CNP_PAYLOAD.size)
        )
        frame = seal(packet, flow)
        out.append(TxBurst(flow, [frame], len(frame), 1, len(frame)))
        host.counters.bump("cnps_sent")
        return 1

    @property
    def largest_packet(self) -> int:
        """UDP payload bytes of the largest packet on this path."""
        return MAX_TRANSPORT_HEADERS + self.ctx.mtu_bytes + ICRC_BYTES

    def _paced(self, controlled: Controlled, now_ns: int, budget: int, out: list[TxBurst]) -> int:
        """Send requests as the rate allows, and arm a timer for the others. Return the number sent."""
        requester, size, pace = self.requester, self.largest_packet, controlled.pace
        if controlled.control.lazy:
            controlled.catch_up(now_ns)
        if self.paced:
            allowed = pace.allowance(now_ns, size)
            if not allowed:
                requester.more = False
                self.pace_ns = pace.ready_ns(size)
                self.rearm()
                return 0
            budget = min(allowed, budget)
        first = len(out)
        sent = requester.produce(now_ns, budget, out)
        controlled.sent(sum(burst.length for burst in out[first:]))
        return sent

    def flow_to(self, message: Message) -> Flow:
        """Return the path to the destination of a UD message."""
        return self.host.flow_to(self.ctx, message)

    def send_datagram(self, message: Message, payload: Payload, batch: FrameBatch) -> int:
        """Send one UD message."""
        return send_datagram(self, message, payload, batch)

    # ----------------------------------------------------------------------------------- receiving

    def receive(self, packet: Packet, now_ns: int) -> None:
        """Receive one packet for this QP and its service. ICRC, address and P_Key were checked."""
        if self.ctx.state not in _CAN_RECEIVE:
            self.host.counters.bump(DropReason.QP_STATE.value)
        elif self.ctx.servtype == ST_UD:
            self.datagrams.receive(packet, now_ns)
        elif packet.row.response:
            if self.ctx.state in _CAN_SEND and self.ctx.servtype != ST_XRC_TGT:
                if self.controlled is not None:
                    self.controlled.arrival = packet.burst.arrival
                self.completer.receive(packet, now_ns)
                self.rearm()
            else:
                self.host.counters.bump(DropReason.GHOST_RESPONSE.value)
        elif self.ctx.servtype == ST_XRC_INI:
            self.host.counters.bump(DropReason.WRONG_SERVICE.value)
        else:
            self.responder.receive(packet, now_ns)

    def use_srq(self, packet: Packet) -> bool:
        """Take the shared receive queue that an XRC request names; return false if this queue pair may not use it."""
        return False

    @property
    def request_pd(self) -> int:
        """Protection domain of the memory that the open request may access."""
        return self.ctx.pd

    def reply_pd(self, rkey: int) -> int:
        """Return the protection domain of memory that is read under a key."""
        return self.ctx.pd

    def pd_of(self, packet: Packet) -> int:
        """Return the protection domain of the memory that a request may access."""
        return self.ctx.pd

    def take_receive(self) -> ReceiveWqe | None:
        """Take the next receive entry and count it (002 ``rq_wqe_counter``). Return it, or ``None``."""
        wqe = self.rq.take()
        if wqe is not None:
            self.ctx.rq_wqe_counter = self.ctx.rq_wqe_counter + 1 & 0xFFFF
        return wqe

    def receive_burst(self, burst: RxBurst, start: int, now_ns: int) -> int:
        """Process a run of in-order MIDDLE packets. Return the bytes taken, 0 if the slow path must process the packet.

        The run continues the open message: same opcode, consecutive PSNs, one contiguous destination.
        """
        ctx = self.ctx
        segment = burst.segment
        mtu = ctx.mtu_bytes
        if self.selective is not None and ctx.servtype == ST_RC:
            return 0  # each packet may fill the gap before the kept packets
        if segment != mtu + 16 or burst.length - start < segment or ctx.state not in _CAN_RECEIVE:
            return 0
        if self.flow is None or burst.flow.src != self.flow.dst or burst.frag != DONT_FRAGMENT:
            return 0
        buf = burst.buf
        head, word = _BTH.unpack_from(buf, start)
        if head & _PAD_OR_TVER or head >> 32 & 0xFFFF != self.host.pkey(ctx.pkey_index):
            return 0
        opcode = head >> 56
        if opcode & SERVICE_MASK != _SERVICE_BITS.get(ctx.servtype):
            return 0
        operation = opcode & OPERATION_MASK
        psn = word & PSN_MASK
        available = (burst.length - start) // segment
        responder = self.responder
        response = operation == READ_RESPONSE_MIDDLE
        if response:
            requester = self.requester
            if not requester.piece_count:
                return 0
            piece = requester.piece()
            got = piece.got
            if piece.next_psn != psn or not got:
                return 0
            payload = requester.payload(requester.message(piece.index))
            if not payload.valid:
                return 0
            count = min(available, piece.packets - 1 - got)
            offset = piece.offset + got * mtu
        else:
            if responder.nak_sent and psn != ctx.expected_psn and ctx.servtype == ST_RC and operation in _OPEN_FOR:
                return self._drop_run(burst, start, available, head)
            if psn != ctx.expected_psn or responder.open != _OPEN_FOR.get(operation):
                return 0
            payload = responder.dest()
            if not payload.valid:
                return 0
            offset = responder.offset
            # the LAST packet holds at least one byte, so a MIDDLE never fills the payload
            count = min(available, (payload.total - offset - 1) // mtu)
        if count < 2:
            return 0
        first = start // segment if burst.ident is None else burst.ident + start // segment
        seeds = burst.flow.seeds(segment)
        if first + count > len(seeds):
            return 0
        expected = residue(segment, head >> 24 & 0xFF)
        window = payload.window(offset, count * mtu)
        dest = memoryview(bytearray(count * mtu)) if window is None else window
        taken, ask = runs.place_run(buf, start, segment, count, head, psn, seeds, first, expected, dest)
        # write the good packets at once to memory that cannot be mapped; if that fails, the slow path reports why
        if taken == 0 or (window is None and not payload.write(offset, dest[: taken * mtu])):
            return 0
        if response:
            self.completer.took(taken, now_ns)
            self.rearm()
        else:
            ctx.expected_psn = psn + taken & PSN_MASK
            responder.offset = offset + taken * mtu
            responder.nak_sent = 0
            responder.acknowledge_run(ask)
        return taken * segment

    def _drop_run(self, burst: RxBurst, start: int, count: int, head: int) -> int:
        """Drop out-of-order MIDDLEs after a NAK, up to the first other packet. Return the bytes taken.

        After a loss the rest of the window still arrives; this keeps its cost low.
        """
        expected_psn = self.ctx.expected_psn
        segment = burst.segment
        buf = burst.buf
        seeds = burst.flow.seeds(segment)
        first = start // segment if burst.ident is None else burst.ident + start // segment
        right = residue(segment, head >> 24 & 0xFF)
        at = start
        for seed in seeds[first : first + count]:
            got_head, word = _BTH.unpack_from(buf, at)
            if got_head != head or psn_diff(word & PSN_MASK, expected_psn) <= 0:
                break
            if crc32(buf[at : at + segment], seed) != right:
                break
            at += segment
        if at > start:
            self.host.counters.bump(DropReason.NAKED.value, (at - start) // segment)
        return at - start

    # -------------------------------------------------------------------------------------- timers

    @property
    def deadline_ns(self) -> int:
        """Time at which :meth:`handle_timer` is to be called, or ``NEVER``."""
        return min(self.requester.deadline_ns, self.pace_ns, self.responder.owed_ns)

    def rearm(self) -> None:
        """Re-arm the device's timer if the deadline is earlier now. A timer may fire too early, never too late."""
        if self.deadline_ns < self.armed_ns:
            self.host.arm(self)

    def handle_timer(self, now_ns: int) -> None:
        """Act on the deadline if it has come."""
        if self.pace_ns <= now_ns:
            self.pace_ns = NEVER
            self.host.schedule(self)
        if self.ctx.state in _CAN_RECEIVE:
            self.responder.handle_timer(now_ns)
        else:
            self.responder.owed_ns = NEVER
        if self.ctx.state in _CAN_SEND:
            self.requester.handle_timer(now_ns)
        else:
            self.requester.stop_waiting()  # the state changed without a transition: no response will arrive

    # -------------------------------------------------------------------------------------- errors

    def retry(self, psn: int, now_ns: int) -> None:
        """Go back to ``psn`` for a lost packet, or fail when the retry count is used up (IBA 9.9.2)."""
        requester = self.requester
        if requester.retry_left == 0:
            self.host.counters.bump("retries_exceeded")
            self.fail_send(RETRY_EXC_ERR, 0)
            return
        requester.retry_left -= 1
        self.host.counters.bump("rewinds")
        requester.narrow()
        requester.peer.lost(now_ns)
        requester.rewind(psn)
        if self.controlled is not None:
            self.controlled.lost(now_ns)

    def fail_send(self, status: int, vendor_err: int) -> None:
        """Complete the oldest send work request in error and flush the others (IBA 9.9.2)."""
        if self.ctx.state == ERR:
            return
        self.stop(ERR if self.ctx.servtype in RELIABLE else SQE)
        requester = self.requester
        said = requester.begun
        if said:
            message = requester.message(requester.sq_head)
            reason, values = why_send(self, message, status, vendor_err)
            self.explain(reason, about_message(message), **values)
            self._complete_send(requester.skip(), status, vendor_err)
        if self.ctx.state == ERR:
            # The completion reports the error, so no event is raised: events are for errors without a completion.
            self.enter_error(raise_event=not said or self.host.config.fault_events)
        else:
            self._flush_send()
            if self.host.config.fault_events:
                self.host.event(WQ_CATAS_ERROR, self.ctx.local_qpn)

    def fail_receive(self, status: int, vendor_err: int, event: int | None) -> None:
        """Complete the receive entry in use and fail the QP because the responder refused a request (IBA 9.9)."""
        if self.ctx.state == ERR:
            return
        self.stop(ERR)
        responder = self.responder
        index = responder.release()
        if index is not None:
            self.recv_cq.complete(index, status, vendor_err, 0, CQE_RECEIVE | WR_SEND, 0, 0, self.ctx.local_qpn, 0)
        self.enter_error(raise_event=False)
        if event is None and self.host.config.fault_events:
            event = WQ_CATAS_ERROR
        if event is not None:
            self.host.event(event, self.ctx.local_qpn, vendor_err)

    def forget_why(self) -> None:
        """Clear the last failure reason: the queue pair starts afresh."""
        self.why = None

    def explain(self, reason: Reason, about: str = "", /, **values: object) -> None:
        """Record the reason of a failure on this queue pair; ``about`` describes the request, if any."""
        self.why = Why(reason, about, values)

    @property
    def peer_text(self) -> str:
        """The peer's address as text."""
        return "its peer" if self.flow is None else address_text(self.flow.dst)

    def ask_peer(self, silent: bool) -> str:
        """Return the peer's reason for refusing or not answering this queue pair's requests, if it is in this NIC
        process."""
        return ""

    def stop(self, state: int) -> None:
        """Enter an error state before generating its completions, on which a program may query the state.

        If software did not request the state, it is a fault of this queue pair and raises an interrupt (004 7.3, 7.7).
        """
        if self.ctx.state != state:
            self.ctx.state = state
            self.host.fault(self.ctx.local_qpn)

    def enter_error(self, raise_event: bool = True) -> None:
        """Enter ERR: flush all posted work requests. Replies that are due are still sent."""
        self.stop(ERR)
        responder = self.responder
        index = responder.release()
        if index is not None:
            self.recv_cq.complete(index, WR_FLUSH_ERR, 0, 0, CQE_RECEIVE | WR_SEND, 0, 0, self.ctx.local_qpn, 0)
        responder.open = 0
        self._flush_send()
        self._flush_receive()
        if raise_event:
            self.host.event(WQ_CATAS_ERROR, self.ctx.local_qpn)
        if self.uses_srq:
            self.host.event(SRQ_LAST_WQE, self.ctx.local_qpn)
        self.host.schedule(self)

    def _flush_send(self) -> None:
        requester = self.requester
        requester.stop_waiting()
        while requester.begun:
            self._complete_send(requester.skip(), WR_FLUSH_ERR, 0)
        while requester.fetch_index != requester.tail:
            message = requester.message(requester.fetch_index)
            if not self.send_ring.fetch(message):
                message.forget()
            requester.fetch_index = self.send_ring.after(message.index)
            self._complete_send(message, WR_FLUSH_ERR, 0)
        requester.sq_head = requester.send_index = requester.fetch_index
        requester.una = requester.sent_psn = self.ctx.next_send_psn & PSN_MASK

    def _complete_send(self, message: Message, status: int, vendor_err: int) -> None:
        """Complete a send entry in error."""
        length, opcode = message.length, message.opcode & 0xFF
        qpn = self.ctx.local_qpn
        self.send_cq.complete(message.index, status, vendor_err, 0, opcode, message.wqe_id, length, qpn, 0)

    def _flush_receive(self) -> None:
        if self.uses_srq:
            return
        while (wqe := self.take_receive()) is not None:
            self.recv_cq.complete(wqe.index, WR_FLUSH_ERR, 0, 0, CQE_RECEIVE | WR_SEND, 0, 0, self.ctx.local_qpn, 0)


_OPEN_FOR = {SEND_MIDDLE: SEND, WRITE_MIDDLE: WRITE}
