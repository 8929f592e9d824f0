"""Requester transmit control: fetch work requests, check them, number packets, send within the window (IBA 9.7).

:mod:`rnic.transport.send_queue` tracks packets once they are sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.context.qpc import OPT_GSO
from rnic.spec.limits import MAX_RD_ATOMIC, NEVER
from rnic.spec.opcodes import (
    ATOMIC_WRITE,
    COMPARE_SWAP,
    FETCH_ADD,
    FLUSH,
    READ_REQUEST,
    UC,
    UD,
    WORK_REQUESTS,
    WR_ATOMIC_WRITE,
    WR_BIND_MW,
    WR_CMP_SWAP,
    WR_FETCH_ADD,
    WR_FLUSH,
    WR_LOCAL_INV,
    WR_READ,
    WR_WRITE,
    XRC,
    allowed,
    work_requests,
)
from rnic.spec.psn import PSN_MASK, PSN_WINDOW, psn_count, psn_diff
from rnic.spec.states import RELIABLE, RTS, ST_RC, ST_UC, ST_UD, ST_XRC_INI, ST_XRC_TGT
from rnic.spec.status import LOC_LEN_ERR, LOC_PROT_ERR, LOC_QP_OP_ERR, MW_BIND_ERR, SUCCESS
from rnic.state.queue_pair import PIECES, QP
from rnic.state.record import NONE, Word, view
from rnic.transport.encap import (
    ACK_REQ,
    BTH_ATOMIC_STRUCT,
    BTH_FETH_RETH_STRUCT,
    BTH_RETH_IMM_STRUCT,
    BTH_RETH_STRUCT,
    BTH_STRUCT,
    BTH_WORD_STRUCT,
    ICRC_STRUCT,
    SOLICITED,
    FrameBatch,
    bth_base,
    frames_of,
)
from rnic.transport.inflight import QUANTUM
from rnic.transport.message import ATOMICS, OPERANDS, READS, TAKES_RECEIVE, WRITES, Message, ReadPiece
from rnic.transport.send_queue import PROBE_MENDS, SendQueue
from rnic.transport.sge import NO_PAYLOAD, SPOILT, Inline, Payload, local_payload
from rnic.wire.xrceth import XRCETH

if TYPE_CHECKING:
    from rnic.wire.bursts import TxBurst
    from rnic.wire.flow import Flow

OPERATIONS = {row.opcode: row.packets for row in WORK_REQUESTS if row.packets}
"""First, middle, last and only operation of each multi-packet work request."""

_WORD_AT_END = work_requests("word")
_LOCAL = work_requests("local")
_SERVICE_BITS = {ST_UC: UC, ST_UD: UD, ST_XRC_INI: XRC, ST_XRC_TGT: XRC}
_ALLOWED = {service: allowed(service) for service in (ST_RC, ST_UC, ST_UD, ST_XRC_INI, ST_XRC_TGT)}


def read_chunk(widest: int, burst: int) -> int:
    """Return the most response packets per READ request, so that they fit one or two turns and half a window.

    FIRST and LAST are longer because of their AETH; the packets between them fill whole bursts.

    Args:
        widest: most packets in flight.
        burst: packets of this size in one burst; 1 without segmentation offload.
    """
    most = max(1, min(widest // 2, QUANTUM if burst == 1 else 2 * QUANTUM))
    return (most - 2) // burst * burst + 2 if most - 2 >= burst else most


@view(QP, "Requester")
class Requester(SendQueue):
    """The sending half of one queue pair. ``head`` lacks the destination QPN, which is in the context."""

    __slots__ = ("flow",)

    ssn: Word
    lsn: Word
    more: Word
    head: Word
    mtu: Word
    read_chunk: Word
    service: Word
    batch_limit: Word
    asked_psn: Word

    flow: Flow

    def reset(self) -> None:
        """Reset all state, as RESET requires."""
        super().reset()
        self.ssn = 0
        self.lsn = NONE
        self.more = 0
        self.head = 0
        self.mtu = 0
        self.read_chunk = 1
        self.service = 0
        self.batch_limit = 1
        self.asked_psn = NONE

    def start(self, flow: Flow | None) -> None:
        """Load PSN, path and retry attributes from the context at the transition to RTS."""
        self.refresh(flow)
        self.begin(self.mtu)
        length = BTH_STRUCT.size + self.mtu + ICRC_STRUCT.size
        self.read_chunk = read_chunk(self.widest, frames_of(self.batch_limit, length))

    def take_pkey(self) -> None:
        """Reload the P_Key at the context's index from the table."""
        self.head = bth_base(self.host.pkey(self.ctx.pkey_index), 0)

    def refresh(self, flow: Flow | None) -> None:
        """Reload attributes that may change while the QP runs."""
        ctx = self.ctx
        self.mtu = ctx.mtu_bytes
        self.take_pkey()
        self.service = _SERVICE_BITS.get(ctx.servtype, 0)
        self.refresh_retries()
        if flow is not None:
            self.flow = flow
            if ctx.servtype in RELIABLE:
                self.set_peer(self.account.peer(flow))
            self.batch_limit = self.host.max_segments(flow, bool(ctx.options & OPT_GSO))

    # ----------------------------------------------------------------------------------- producing

    @property
    def unsent(self) -> bool:
        """True if there may be something to send or retransmit, or a granted turn must be used."""
        selective = self.qp.selective
        return bool(
            self.send_index != self.fetch_index
            or self.probe_due
            or self.fetch_index != self.tail
            or self.admitted
            or (selective is not None and selective.due)
        )

    def produce(self, now_ns: int, budget: int, out: list[TxBurst]) -> int:
        """Send up to ``budget`` packets and return the number sent. Set ``more`` if the turn ended only because of the
        budget."""
        if self.more:
            self.more = 0
        if self.rnr_until != NEVER:
            self.account.turn_over(self)
            return 0
        batch = FrameBatch(self.flow, out, self.batch_limit)
        sent = 0
        if self.probe_due:
            mends, self.probe_due = self.probe_due == PROBE_MENDS, 0
            sent = self._probe(batch, mends)
        if self.qp.selective is not None:
            sent += self.qp.selective.send(batch)
        while sent < budget:
            payload, index = None, self.send_index
            if index == self.fetch_index:
                if index == self.tail or (payload := self._fetch()) is None:
                    break
                index = self.send_index
            message = self._messages[index]
            count = self._send_message(message, payload, budget - sent, batch, now_ns)
            if message.finished:
                if index == self.send_index != self.fetch_index:
                    self.send_index = self.ring.after(index)
            elif count == 0:
                break
            sent += count
            if message.packets == 0 or self.ctx.servtype not in RELIABLE:
                self.retire()
        else:
            self.more = 1
        batch.flush()
        if sent:
            self.arm_timers(now_ns)
        self.account.turn_over(self)
        return sent

    def _fetch(self) -> Payload | None:
        """Fetch the next descriptor from the ring. Return its payload, or ``None`` if there is none."""
        index = self.fetch_index
        if index == self.tail or self.ctx.state != RTS:
            return None
        after = self.ring.after(index)
        if after == self.sq_head:
            return None
        last = self.last()
        if last is not None and last.status:
            return None  # requests after one that failed here are flushed, not sent
        message = self._messages[index]
        message.begin()
        payload: Payload | None = None
        if self.ring.fetch(message):
            message.first_psn = self.ctx.next_send_psn & PSN_MASK
            payload = self._payload(message)
            message.status = self._check(message, payload)
        else:
            message.first_psn = self.sent_psn
            message.forget()
            message.status = LOC_PROT_ERR
        self.fetch_index = after
        if message.packets and self.ctx.servtype in RELIABLE:
            requests = self._requests(message) if message.opcode == WR_READ else 1
            self.ssn = message.ssn = self.ssn + requests & PSN_MASK
        return payload or NO_PAYLOAD

    def _requests(self, message: Message) -> int:
        """Return the number of requests on the wire, each with its own SSN: a long READ takes several."""
        return -(-message.packets // self.read_chunk) if message.opcode == WR_READ else 1

    def ssn_before(self, psn: int) -> int:
        """Return the SSN of the last request that ends before ``psn``: the MSN of a peer that has received everything
        up to there, unless it counted a request twice.

        A peer counts twice if a READ request was lost and a probe requested its first response alone: it then receives
        two requests.
        """
        for message in self.messages(self.sq_head, self.fetch_index):
            if message.packets and psn_diff(message.end_psn, psn) > 0:
                taken = max(0, psn_diff(psn, message.first_psn)) // self.read_chunk if message.opcode == WR_READ else 0
                return message.ssn - self._requests(message) + taken & PSN_MASK
        return self.ssn

    def _check(self, message: Message, payload: Payload | None) -> int:
        """Check a descriptor and assign its PSNs. Return its status; a descriptor in error gets no PSNs."""
        opcode = message.opcode
        ctx = self.ctx
        if payload is None or opcode not in _ALLOWED[ctx.servtype]:
            return LOC_QP_OP_ERR
        if opcode in _LOCAL:
            return SUCCESS
        length = message.length
        if length > ctx.max_msg_bytes or length > self.mtu * (1 if ctx.servtype == ST_UD else PSN_WINDOW):
            return LOC_LEN_ERR
        if opcode in READS:
            if opcode in ATOMICS and (length != 8 or message.inline):
                return LOC_LEN_ERR
            if opcode in OPERANDS and length:
                return LOC_LEN_ERR
            if ctx.max_rd_atomic == 0 or message.inline:
                return LOC_QP_OP_ERR
        if not payload.valid:
            return LOC_PROT_ERR
        message.packets = packets = 1 if length <= self.mtu else psn_count(length, self.mtu)
        ctx.next_send_psn = message.first_psn + packets & PSN_MASK
        return SUCCESS

    def _payload(self, message: Message) -> Payload | None:
        """Return the bytes to send, or the memory for responses; ``None`` if the entry is inconsistent."""
        if message.inline:
            data = self.ring.inline(message)
            return None if data is None else Inline(data)
        sges = self.ring.sges(message)
        return None if sges is None else local_payload(self.host.memory, self.ctx.pd, sges, message.opcode in READS)

    def payload(self, message: Message) -> Payload:
        """Return the payload of a checked message; an invalid one if its owner has overwritten the entry since."""
        return self._payload(message) or SPOILT

    def _send_message(
        self, message: Message, payload: Payload | None, budget: int, batch: FrameBatch, now_ns: int
    ) -> int:
        """Send packets of one message. Return their number, 0 if it must wait. ``payload`` is its payload, if known."""
        sent = message.sent
        if message.fence and sent == 0 and self.piece_count:
            return 0
        packets = message.packets
        if packets == 0:
            self._execute_local(message)
            return 0
        if payload is None:
            payload = self.payload(message)
        if not payload.valid:
            message.status = LOC_PROT_ERR
            self._truncate(message)
            return 0
        if self.ctx.servtype == ST_UD:
            message.begun = 1
            return self.qp.send_datagram(message, payload, batch)
        if not sent and not self._follows(message):
            return 0
        message.begun = 1
        opcode = message.opcode
        reads = opcode in READS
        if reads and self.read_index == NONE:
            self.read_index = message.index
        left = packets - sent
        if self.ctx.servtype == ST_UC:
            count = self._send_data(message, payload, min(budget, left), batch)
            self.una = self.sent_psn
            return count
        room = self.allowance(left)
        if room <= 0:
            return 0
        if reads:
            return self._send_request(message, budget, room, batch, now_ns)
        psn = message.first_psn + sent & PSN_MASK
        count = min(budget, left, room)
        if count == left:
            ask = not self._defers_ack_request(message, psn)
        else:
            # Set AckReq on the last packet that the window allows; otherwise transmission stalls.
            account, more = self.account, min(left, self.window - self.inflight) - count
            ask = count == room or account.shared(self) or not account.enough(self, count, more)
        if (
            opcode in TAKES_RECEIVE
            and self.lsn != NONE
            and psn_diff(message.ssn, self.lsn) > 0
            and psn_diff(self.una, message.first_psn) <= 0
        ):
            # IBA 9.7.7.2: without credits, one packet may probe for them; its ACK shows that the message has
            # a receive entry.
            if sent or self._asks_for_credit(message):
                return 0
            count = 1
            ask = True
        if psn != self.sent_psn and (again := -psn_diff(psn, self.sent_psn)) > 0:
            self.host.counters.bump("retransmitted_packets", min(count, again))
        elif self.rtt_psn == NONE and ask:
            self.rtt_psn = psn + count - 1 & PSN_MASK
            self.rtt_at = now_ns
        done = self._send_data(message, payload, count, batch, ask)
        if self.ack_each and done == left:
            self.ack_each -= 1
        self.add_inflight(done)
        return done

    def _defers_ack_request(self, message: Message, psn: int) -> bool:
        """Return whether a message may omit AckReq, which IBA 9.7.5.1 leaves to the requester.

        No program waits for the completion of an unsignaled short WRITE. An rnic responder acknowledges it after a
        delay, or the ACK of a later message covers it; for other peers, a probe requests the ACK. AckReq is still set
        if the queue pair runs short of window, send queue entries or room in flight, if the message is retransmitted,
        or if other messages follow, since one ACK for all of them costs little.
        """
        if message.opcode != WR_WRITE or message.packets != 1 or message.signaled or self.qp.signal_all:
            return False
        ring, account = self.ring, self.account
        return (
            psn == self.sent_psn
            and not self.ack_each
            and ring.after(message.index) == self.tail
            and self.window - self.inflight > 1
            and 2 * ((message.index - self.sq_head) % ring.entries) < ring.entries
            and self.probing
            and self.qp.selective is None
            and not account.shared(self)
            and account.enough(self, 1, 1)
        )

    def _asks_for_credit(self, message: Message) -> bool:
        """Return whether an earlier message probed for credits and its single packet is not acknowledged yet."""
        return any(
            each.packets
            and each.takes_receive
            and psn_diff(each.ssn, self.lsn) > 0
            and psn_diff(self.una, each.first_psn) <= 0
            for each in self.messages(self.sq_head, message.index)
        )

    def allowance(self, want: int) -> int:
        """Return how many of ``want`` packets the queue pair's window and the limits of NIC and peer allow.

        0 if it must wait, for its own ACK or in line for room that others release.
        """
        room = self.window - self.inflight
        if room <= 0:
            return 0
        granted = self.account.room(self, want if want < room else room)
        if granted <= 0:
            self.account.wait(self)
            return 0
        return granted if granted < room else room

    def _follows(self, message: Message) -> bool:
        """Return whether a new message may start: its PSN is the next one, or nothing is outstanding.

        Writing the next PSN of a live queue pair (WR_QP_NPST) may create a gap or move it back. PSNs are not compared
        across the gap: packets sent before it must be acknowledged first; then the peer responds as after a loss.
        """
        first = message.first_psn
        before = self.last()
        if before is not None:
            return first == before.end_psn
        if self.una == self.sent_psn:
            self.una = self.sent_psn = self.ctx.last_acked_psn = first
            return True
        return psn_diff(first, self.una) <= 0  # it was sent and rewound: nothing else is outstanding

    def _truncate(self, message: Message) -> None:
        """Send no more packets of a message whose memory region is gone; it fails once it is the oldest."""
        message.packets = 0
        message.executed = 1

    def _send_data(self, message: Message, payload: Payload, count: int, batch: FrameBatch, ask: bool = False) -> int:
        """Send the next ``count`` packets of a SEND or WRITE, MIDDLEs as runs; ``ask`` sets AckReq on the last."""
        done = 0
        mtu = self.mtu
        while done < count:
            index = message.sent
            middles = min(count - done - ask, message.packets - 1 - index) if index else 0
            view = payload.gather(index * mtu, middles * mtu) if middles > 1 and self.service != XRC else None
            if view is not None:
                head = self.head | self.ctx.remote_qpn | (self.service | OPERATIONS[message.opcode][1]) << 56
                psn = message.first_psn + index & PSN_MASK
                batch.run(head, psn, middles, view, mtu, 0 if self.service else self.ack_every)
                message.sent += middles
                done += middles
            else:
                if not self._send_packet(message, payload, index, batch, ask and done == count - 1):
                    message.status = LOC_PROT_ERR
                    break
                message.sent += 1
                done += 1
        psn = message.first_psn + message.sent & PSN_MASK
        if psn_diff(psn, self.sent_psn) > 0:
            self.sent_psn = psn
        if message.status:
            self._truncate(message)
        return done

    def _send_packet(self, message: Message, payload: Payload, index: int, batch: FrameBatch, ask: bool) -> bool:
        """Frame packet ``index`` of a SEND or WRITE. Return false if its payload cannot be read."""
        opcode = message.opcode
        first, middle, last, only = OPERATIONS[opcode]
        offset = index * self.mtu
        total = payload.total
        size = min(self.mtu, total - offset)
        data = payload.read(offset, size) if size else b""
        if data is None:
            return False
        at_end = index == message.packets - 1
        psn = message.first_psn + index & PSN_MASK
        head = self.head | self.ctx.remote_qpn | (-size & 3) << 52
        if at_end:
            operation = last if index else only
            if message.solicited and message.takes_receive:
                head |= SOLICITED
        else:
            operation = middle if index else first
        head |= (self.service | operation) << 56
        word = psn
        if self.service != UC and (ask or psn % self.ack_every == 0):
            word |= ACK_REQ
        with_word = at_end and opcode in _WORD_AT_END
        if index == 0 and opcode in WRITES:
            if with_word:
                header = BTH_RETH_IMM_STRUCT.pack(head, word, message.remote_addr, message.rkey, total, message.imm)
            else:
                header = BTH_RETH_STRUCT.pack(head, word, message.remote_addr, message.rkey, total)
        elif with_word:
            header = BTH_WORD_STRUCT.pack(head, word, message.imm)
        else:
            header = BTH_STRUCT.pack(head, word)
        batch.add(self._with_xrceth(message, header), data)
        return True

    def _with_xrceth(self, message: Message, header: bytes) -> bytes:
        """Insert the XRCETH after the BTH if the service is XRC; return the headers."""
        if self.service != XRC:
            return header
        return header[: BTH_STRUCT.size] + message.srqn.to_bytes(XRCETH.size, "big") + header[BTH_STRUCT.size :]

    def retransmit(self, message: Message, payload: Payload, index: int, batch: FrameBatch) -> int:
        """Retransmit packet ``index`` of a SEND or WRITE alone, with AckReq. Return the number of packets sent."""
        return int(self._send_packet(message, payload, index, batch, True))

    def _send_request(self, message: Message, budget: int, room: int, batch: FrameBatch, now_ns: int) -> int:
        """Send READ requests or an atomic request, within the limit of outstanding ones."""
        requests = 0
        while message.sent < message.packets and requests < budget and room > 0:
            psn = message.first_psn + message.sent & PSN_MASK
            packets = min(self.read_chunk - message.sent % self.read_chunk, message.packets - message.sent)
            if psn == self.asked_psn:
                packets = 1  # requested alone by a probe; a peer that answered already repeats only that response
            most = min(self.ctx.max_rd_atomic, MAX_RD_ATOMIC)
            if self.piece_count >= most or (self.inflight and packets > self.window - self.inflight):
                break
            offset = message.sent * self.mtu
            self.add_piece().fill(message.index, psn, offset, packets)
            if psn_diff(psn, self.sent_psn) < 0:
                self.host.counters.bump("retransmitted_requests")
            elif self.rtt_psn == NONE:
                self.rtt_psn, self.rtt_at = psn, now_ns
            batch.add(*self._request(message, psn, offset, packets))
            message.sent += packets
            self.add_inflight(packets)
            room -= packets
            requests += 1
            end = psn + packets & PSN_MASK
            if psn_diff(end, self.sent_psn) > 0:
                self.sent_psn = end
        return requests

    def _request(self, message: Message, psn: int, offset: int, packets: int) -> tuple[bytes, bytes]:
        """Return headers and payload of a READ request for ``packets`` responses from ``offset`` on, or of another
        request with a response."""
        header, data = self._plain_request(message, psn, offset, packets)
        return self._with_xrceth(message, header), data

    def _plain_request(self, message: Message, psn: int, offset: int, packets: int) -> tuple[bytes, bytes]:
        head, word = self.head | self.ctx.remote_qpn | self.service << 56, psn | ACK_REQ
        opcode, va, rkey = message.opcode, message.remote_addr, message.rkey
        if opcode == WR_READ:
            length = min(packets * self.mtu, message.length - offset)
            va = va + offset & 0xFFFF_FFFF_FFFF_FFFF
            return BTH_RETH_STRUCT.pack(head | READ_REQUEST << 56, word, va, rkey, length), b""
        operand = message.swap_add
        if opcode == WR_FLUSH:
            length = operand & 0xFFFF_FFFF
            return BTH_FETH_RETH_STRUCT.pack(head | FLUSH << 56, word, message.imm & 0x3F, va, rkey, length), b""
        if opcode == WR_ATOMIC_WRITE:
            return BTH_RETH_STRUCT.pack(head | ATOMIC_WRITE << 56, word, va, rkey, 8), operand.to_bytes(8, "little")
        operation = COMPARE_SWAP if opcode == WR_CMP_SWAP else FETCH_ADD
        compare = message.compare if opcode != WR_FETCH_ADD else 0
        return BTH_ATOMIC_STRUCT.pack(head | operation << 56, word, va, rkey, operand, compare), b""

    def _execute_local(self, message: Message) -> None:
        """Execute a bind or invalidate request, which is the oldest and uses no PSN."""
        if message.executed:
            return
        message.executed = 1
        if message.status:
            return
        memory, ctx = self.host.memory, self.ctx
        if message.opcode == WR_BIND_MW:
            if not memory.bind_window(
                message.window,
                message.new_rkey,
                message.lkey,
                ctx.pd,
                ctx.local_qpn,
                message.start,
                message.bind_length,
                message.access,
            ):
                message.status = MW_BIND_ERR
        elif message.opcode == WR_LOCAL_INV and not memory.invalidate(message.imm, ctx.pd, ctx.local_qpn):
            message.status = LOC_PROT_ERR

    def _probe(self, batch: FrameBatch, mends: bool) -> int:
        """Retransmit the oldest and the last unacknowledged packet with AckReq, or only the oldest if a NAK named it
        (``mends``). Return the number of packets sent.

        A conforming responder acknowledges the oldest packet, as a duplicate or as the expected one. The last packet
        then makes it report any gap between them, even if its only NAK was lost (IBA 9.7.5.2). If the oldest is a READ
        or atomic, it is requested again; for a READ, only the next expected response. If that response was merely late,
        this costs one packet; if more responses were lost, its arrival shows it, since they would have arrived before.
        """
        if self.inflight == 0:
            return 0
        sent = 0
        if self.piece_count and self.piece().next_psn == self.una:
            due = self._split()
            message = self.message(due.index)
            batch.add(*self._request(message, due.first_psn, due.offset, 1))
            sent = 1
        else:
            for message, index in self._ends()[: 1 if mends else 2]:
                if message.reads or not 0 <= index < message.sent:
                    continue
                payload = self.payload(message)
                if payload.valid:
                    sent += self.retransmit(message, payload, index, batch)
        if sent:
            self.host.counters.bump("retransmitted_packets" if mends else "probes")
        return sent

    def _ends(self) -> list[tuple[Message, int]]:
        """Return message and packet index of the oldest and the last packet in flight; a single pair if they are the
        same."""
        messages = self.messages(self.sq_head, self.fetch_index)
        inflight = [message for message in messages if message.sent and message.packets]
        if not inflight:
            return []
        oldest, last = inflight[0], inflight[-1]
        at, end = psn_diff(self.una, oldest.first_psn), last.sent - 1
        same = oldest.index == last.index and at == end
        return [(last, end)] if same else [(oldest, at), (last, end)]

    def _split(self) -> ReadPiece:
        """Split the next expected response off the oldest request, as a separate request before the rest."""
        piece = self.piece()
        got = piece.got
        index, first_psn, offset = piece.index, piece.first_psn, piece.offset
        long = piece.packets > 1 or piece.asked
        left = piece.packets - got - 1
        if left:
            piece.fill(index, first_psn + got + 1 & PSN_MASK, offset + (got + 1) * self.mtu, left)
            self.piece_first = (self.piece_first or PIECES) - 1
            self.piece_count += 1
            piece = self.piece()
        piece.fill(index, first_psn + got & PSN_MASK, offset + got * self.mtu, 1)
        piece.asked = long
        if long:
            self.asked_psn = piece.first_psn
        return piece
