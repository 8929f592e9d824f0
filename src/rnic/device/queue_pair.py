"""A queue pair of the device: adds the queue block, the owner, and the mirrored indices in the block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rnic.context.qpc import SRQ_VALID
from rnic.device.cq import CompletionQueue
from rnic.device.keyed_memory import KeyedMemory
from rnic.device.paths import NOWHERE
from rnic.device.srq import SharedReceiveQueue, receive_ring, show_ring
from rnic.device.uar import Registers, Uar
from rnic.rings.cqe import CQE_SRQ
from rnic.rings.queue_block import (
    BLOCK_BYTES,
    QUEUE_NUMBER,
    QUEUE_STATE,
    SQ_BASE_HI,
    SQ_BASE_LO,
    SQ_HEAD,
    SQ_SIZE,
    SQ_STRIDE,
)
from rnic.rings.sqe import SQE_SHIFT
from rnic.spec import reasons
from rnic.spec.opcodes import RC, UC, UD, XRC
from rnic.spec.psn import PSN_MASK, psn_diff
from rnic.spec.reasons import MOST_LINES, Reason
from rnic.spec.states import (
    ERR,
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
    state_name,
)
from rnic.state.queue_pair import QP, QpMemory
from rnic.state.record import Word, view
from rnic.transport.qp import QueuePair
from rnic.transport.wqe import ReceiveRing, SendRing
from rnic.wire.flow import Flow

if TYPE_CHECKING:
    from rnic.context.qp_context import QpContext
    from rnic.device.host import QpHost
    from rnic.engine import _engine
    from rnic.mem.dma import DmaPort
    from rnic.mem.table import MemoryTable
    from rnic.transport.message import Message
    from rnic.wire.packet import Packet

_SEND_RING = QP["sq_base"].byte  # its record is part of the queue pair's record
_CONNECTED = frozenset({RTR, RTS, SQD, SQE})
_SENDING = frozenset({RTS, SQD})
SERVICE_CODES = {ST_RC: RC, ST_UC: UC, ST_UD: UD, ST_XRC_INI: XRC, ST_XRC_TGT: XRC}
"""Service bits of a BTH opcode for each service type of a context."""
_ENGINE_SERVICES = frozenset({ST_RC, ST_UC, ST_UD})
"""Service types that the engine supports."""


def send_entries(ctx: QpContext) -> int:
    """Return the number of entries of the send ring in a context."""
    return ctx.snd_wqe_length >> (ctx.sq_entry_sz_log or SQE_SHIFT)


class _Completions:
    """Destination of a queue pair's completions: the current CQ in its context."""

    __slots__ = ("_cqs", "_ctx")

    def __init__(self, ctx: QpContext, cqs: Mapping[int, CompletionQueue]) -> None:
        self._ctx = ctx
        self._cqs = cqs


class SendCompletions(_Completions):
    """Completions of the send queue: row ``qp_cqn_send`` of 002 5.4.2."""

    __slots__ = ()

    def complete(self, *entry: int) -> bool:
        """Call :meth:`~rnic.device.cq.CompletionQueue.complete`; return false if there is no such CQ."""
        cq = self._cqs.get(self._ctx.cqn_snd)
        return cq is not None and cq.complete(*entry)

    @property
    def queue(self) -> CompletionQueue | None:
        """The CQ itself."""
        return self._cqs.get(self._ctx.cqn_snd)


class ReceiveCompletions(_Completions):
    """Completions of the receive queue: row ``cqn_rcv`` of 002 5.4.2."""

    __slots__ = ()

    def complete(self, *entry: int) -> bool:
        """Call :meth:`~rnic.device.cq.CompletionQueue.complete`; return false if there is no such CQ."""
        cq = self._cqs.get(self._ctx.cqn_rcv)
        return cq is not None and cq.complete(*entry)

    @property
    def queue(self) -> CompletionQueue | None:
        """The CQ itself."""
        return self._cqs.get(self._ctx.cqn_rcv)

    @property
    def notified(self) -> bool:
        """The CQ's :attr:`~rnic.device.cq.CompletionQueue.notified`; false if there is no such CQ."""
        cq = self._cqs.get(self._ctx.cqn_rcv)
        return cq is not None and cq.notified


class XrcCompletions:
    """Destination of an XRC TGT queue pair's receive completions: the CQ of the entry's SRQ."""

    __slots__ = ("_cqs", "_qp")

    def __init__(self, qp: DeviceQp, cqs: Mapping[int, CompletionQueue]) -> None:
        self._qp = qp
        self._cqs = cqs

    def complete(
        self,
        index: int,
        status: int,
        vendor_err: int,
        length: int,
        word3: int,
        wqe_id: int,
        requested: int,
        qpn: int,
        imm: int,
    ) -> bool:
        """Complete an entry of the SRQ, with the SRQ's number; return false if there is no such CQ."""
        cq, srq = self.queue, self._qp.srq
        if cq is None or srq is None:
            return False
        return cq.complete(index, status, vendor_err, length, word3 | CQE_SRQ, srq.number, requested, qpn, imm)

    @property
    def queue(self) -> CompletionQueue | None:
        """The CQ itself."""
        srq = self._qp.srq
        return None if srq is None else self._cqs.get(srq.cqn)

    @property
    def notified(self) -> bool:
        """The CQ's :attr:`~rnic.device.cq.CompletionQueue.notified`; false if there is no such CQ."""
        cq = self.queue
        return cq is not None and cq.notified


class Rings(NamedTuple):
    """Addresses of the rings in a context."""

    sq_base: int
    sq_entries: int
    sq_shift: int
    rq_base: int
    rq_entries: int
    rq_stride: int


class RingMemory:
    """Memory of a queue pair's rings, and their addresses in it.

    In 002, a ring is given by its key: it starts ``wqe_base`` bytes into the key's region, and if both rings have the
    same key, the receive ring follows the send ring. The extension gives its address, with or without a key; without
    one, it is memory of the driver that created the queue pair.
    """

    __slots__ = ("_ctx", "receive", "send")

    def __init__(self, ctx: QpContext, memory: MemoryTable, port: DmaPort) -> None:
        self._ctx = ctx
        self.send = KeyedMemory(memory, ctx, "snd_wqe_base_lkey", port)
        self.receive = KeyedMemory(memory, ctx, "rcv_wqe_base_lkey", port)

    def rings(self) -> Rings:
        """Return the current rings of the context."""
        ctx = self._ctx
        shift = ctx.sq_entry_sz_log or SQE_SHIFT
        entries = send_entries(ctx)
        sq_base = ctx.sq_base or (self.send.start + ctx.wqe_base if ctx.snd_wqe_base_lkey else 0)
        rq_base = ctx.rq_base
        if not rq_base and ctx.rcv_wqe_base_lkey:
            if ctx.rcv_wqe_base_lkey == ctx.snd_wqe_base_lkey:
                rq_base = sq_base + (entries << shift) + entries * ctx.sq_slab_bytes
            else:
                rq_base = self.receive.start + ctx.wqe_base
        stride = ctx.rq_entry_sz_log
        return Rings(sq_base, entries, shift, rq_base, ctx.rcv_wqe_length >> stride, 1 << stride)


@view(QP, "DeviceQp", "Scheduler")
class DeviceQp(QueuePair):
    """One QP. ``opcodes`` are the service bits that its packets' opcodes must have; ``notify_drained`` requests
    SQ_DRAINED.

    ``peer`` is the last verified incoming path, ``pkey`` the P_Key in use: every packet is checked against both;
    :meth:`refresh` renews them after a modify command. ``turn`` is its quantum in bytes, ``deficit`` the bytes that it
    may still send. Until ``cnp_merge_ns``, marks cause no further CNP; ``rate`` is its rate register.
    """

    __slots__ = (
        "_counted",
        "_memory",
        "_most",
        "cqs",
        "executor",
        "nic",
        "peer",
        "regs",
        "sq_entries",
        "srq",
        "uar",
        "xrc_target",
        "xrcd",
    )

    next_ready: Word
    previous_ready: Word
    program_record: Word
    turn: Word
    deficit: Word
    number: Word
    context: Word
    srq_record: Word
    block: Word
    driver: Word
    opcodes: Word
    pkey: Word
    replies_deferred: Word
    notify_drained: Word
    cnp_merge_ns: Word
    rate: Word
    sent_bytes: Word
    came_bytes: Word
    shown_head: Word
    shown_state: Word
    explains: Word
    held: Word

    def __init__(self, state: QpMemory, ctx: QpContext, nic: QpHost, uar: Uar, srq: SharedReceiveQueue | None) -> None:
        res = nic.resources
        self.nic = nic
        self.uar = uar
        self.srq = srq
        """Its shared receive queue; for an XRC TGT queue pair, that of the last request."""
        self.xrc_target = ctx.servtype == ST_XRC_TGT
        self.xrcd = ctx.xrcd
        self.regs = regs = Registers(uar, ctx.usr_page)
        self.executor: _engine.Executor | None = None
        """The engine's handle of it, if the engine supports its service."""
        self.peer: Flow | None = None
        regs.clear()
        regs.set(QUEUE_NUMBER, ctx.local_qpn)
        regs.set(QUEUE_STATE, ctx.state)
        self._memory = memory = RingMemory(ctx, nic.memory, uar.port)
        rings = memory.rings()
        self.sq_entries = self._most = rings.sq_entries
        self._show_send_ring(ctx, rings)
        send_ring = SendRing(
            nic.arena.memory,
            state.record + _SEND_RING,
            memory.send,
            rings.sq_base,
            rings.sq_entries,
            ctx.sq_slab_bytes,
            rings.sq_shift,
        )
        rq = srq or receive_ring(regs, rings.rq_base, rings.rq_entries, rings.rq_stride, port=memory.receive)
        self._counted: int | None = None
        self.cqs: tuple[CompletionQueue, ...] = ()
        """The CQs of its send and receive queues, which count it as a user."""
        receives = XrcCompletions(self, res.cqs) if self.xrc_target else ReceiveCompletions(ctx, res.cqs)
        super().__init__(state, ctx, nic, send_ring, rq, SendCompletions(ctx, res.cqs), receives)
        self.number = ctx.local_qpn
        self.shown_state = ctx.state
        self.context = nic.contexts.key.qps.slot(self.number)
        self.opcodes = SERVICE_CODES[ctx.servtype]
        self.block, self.driver = regs.block, uar.number
        self.srq_record = 0 if srq is None else srq.record
        self.program = uar.program
        self.forget_why()
        self.hold_users()

    def lacks_room_for(self, new: QpContext) -> str:
        """Return the field of another context with which it cannot continue, since its SRQ and send WQEs are fixed."""
        own = self.srq is not None and not self.xrc_target
        if (SRQ_VALID | self.srq.number if own and self.srq else 0) != new.srqn:
            return "srqn"
        return "snd_wqe_length" if send_entries(new) > self._most else ""

    def _show_send_ring(self, ctx: QpContext, rings: Rings) -> None:
        regs = self.regs
        regs.set(SQ_BASE_LO, rings.sq_base & 0xFFFF_FFFF)
        regs.set(SQ_BASE_HI, rings.sq_base >> 32)
        regs.set(SQ_SIZE, rings.sq_entries)
        regs.set(SQ_STRIDE, ctx.sq_slab_bytes)

    # --------------------------------------------------------------------------------- use counts

    def hold_users(self) -> bool:
        """Count as a user of the PD and the CQs in the context; return false if there is no such CQ."""
        if self.xrc_target:
            return True  # the SRQs count as users of what it receives into
        res, ctx = self.nic.resources, self.ctx
        send, receive = res.cqs.get(ctx.cqn_snd), res.cqs.get(ctx.cqn_rcv)
        if send is None or receive is None:
            return False
        self.release_users()
        send.users += 1
        receive.users += 1
        res.use_pd(ctx.pd)
        self._counted, self.cqs = ctx.pd, (send, receive)
        return True

    def release_users(self) -> None:
        """Stop counting as a user of the PD and the CQs."""
        if self._counted is not None:
            for cq in self.cqs:
                cq.users -= 1
            self.nic.resources.leave_pd(self._counted)
            self._counted = None

    # --------------------------------------------------------------------------- the context changed

    def refresh(self) -> None:
        """Apply the modified context."""
        self.peer = None
        self._choose_executor()
        if self.ctx.servtype == ST_UD and self.nic.datagrams is not None:
            self.nic.datagrams()
        self.pkey = self.host.pkey(self.ctx.pkey_index)
        self.requester.take_pkey()
        self.show()

    def _choose_executor(self) -> None:
        device = self.nic.engine_device
        if device is not None:
            device.remove(self.number)
        self.executor = None
        if device is not None and self.ctx.servtype in _ENGINE_SERVICES and self.ctx.state in _CONNECTED:
            block = self.regs.buf[self.regs.at : self.regs.at + BLOCK_BYTES]
            self.executor = device.add(self, block)

    def on_modify(self, old_state: int, now_ns: int) -> None:
        """Act on a change of the context, and start congestion control once it may send."""
        super().on_modify(old_state, now_ns)
        if self.ctx.state == RTS and old_state == RTR:
            self.nic.congestion.begin(self)

    def reload(self, now_ns: int) -> None:
        """Reload the context, which was changed outside a transition."""
        ctx, nic = self.ctx, self.nic
        old = self.shown_state
        known = ctx.servtype in SERVICE_CODES
        if known:
            self.opcodes = SERVICE_CODES[ctx.servtype]
        fits = self._place_rings()
        if ctx.state != old:
            self.on_modify(old, now_ns)
        elif ctx.state in _CONNECTED or ctx.servtype == ST_UD:
            self.flow = nic.make_flow(ctx)
            self.requester.refresh(self.flow)
        if ctx.state in _SENDING and ctx.servtype in RELIABLE:
            self._acknowledge(now_ns)
        self.refresh()
        if not (known and self.hold_users() and fits) and ctx.state not in (RESET, ERR):
            self.enter_error()
        else:
            nic.schedule(self)

    def fail_context(self, field: str) -> None:
        """Fail this queue pair only, because a field of its context got an invalid value that bypassed all checks."""
        self.explain(reasons.CONTEXT_VALUE, qpn=self.number, field=field, value=getattr(self.ctx, field))
        self.ctx.local_qpn = self.number  # the event is reported to the program with this number
        if self.shown_state == ERR:
            self.stop(ERR)
        else:
            self.enter_error()
        self._choose_executor()

    def _place_rings(self) -> bool:
        """Switch to the rings in the context. Return false if they are not usable."""
        ctx, rings = self.ctx, self._memory.rings()
        if not 0 < rings.sq_entries <= self._most or self.requester.fetch_index >= rings.sq_entries:
            return False
        self.sq_entries = rings.sq_entries
        self._show_send_ring(ctx, rings)
        self.send_ring.place(rings.sq_base, rings.sq_entries, ctx.sq_slab_bytes, rings.sq_shift)
        if isinstance(self.rq, ReceiveRing):
            self.rq.place(rings.rq_base, rings.rq_entries, rings.rq_stride)
            show_ring(self.regs, rings.rq_base, rings.rq_entries, rings.rq_stride)
        return True

    def _acknowledge(self, now_ns: int) -> None:
        """Acknowledge the PSNs before a new oldest unacknowledged PSN that was written to the context and must have
        been sent."""
        requester, ctx = self.requester, self.ctx
        psn = ctx.last_acked_psn & PSN_MASK
        if 0 < psn_diff(psn, requester.una) <= psn_diff(requester.sent_psn, requester.una):
            requester.advance(psn, now_ns)
            self.rearm()
        else:
            ctx.last_acked_psn = requester.una

    def comes_from_peer(self, flow: Flow) -> bool:
        """Return whether packets on ``flow`` are for this queue pair: from its peer's address to its own, or any for
        UD."""
        path = self.flow
        if path is None or (self.opcodes != UD and (path.dst != flow.src or path.src != flow.dst)):
            return False
        self.peer = flow
        return True

    def flow_to(self, message: Message) -> Flow:
        """Return the path to a message's destination, and add it to the engine."""
        flow = super().flow_to(message)
        if self.executor is not None and flow.dst not in NOWHERE:
            self.executor.add_destination(message, flow, self.nic.max_segments(flow, False))
        return flow

    @property
    def receive_pd(self) -> int:
        """Protection domain of its receive entries; a shared receive queue has its own."""
        return self.ctx.pd if self.srq is None else self.srq.pd

    # ----------------------------------------------------------------------------------- XRC (IBA annex A14)

    def _srq_of(self, packet: Packet) -> SharedReceiveQueue | None:
        """Return the SRQ that a request names, if it is in the queue pair's domain."""
        named = self.xrc_target and packet.row.xrceth
        srq = self.nic.resources.srqs.get(packet.srqn) if named else None
        return srq if srq is not None and srq.xrcd == self.xrcd and not srq.failed else None

    def use_srq(self, packet: Packet) -> bool:
        """Use the shared receive queue that an XRC request names; return false if it is not in the domain, or if the
        packet names another SRQ than the first packet of its message."""
        srq = self._srq_of(packet)
        if srq is not None and packet.row.start:
            self.srq = self.rq = self.responder.rq = srq
        return srq is not None and srq is self.srq

    def leave_srq(self, srq: SharedReceiveQueue) -> None:
        """Stop using an SRQ that is being destroyed; the next packet of an open message for it is refused."""
        if self.xrc_target and self.srq is srq:
            self.responder.release()
            self.srq = None

    @property
    def request_pd(self) -> int:
        """Protection domain of the memory that the open request may access; for XRC, that of its SRQ."""
        return self.receive_pd if self.xrc_target else self.ctx.pd

    def pd_of(self, packet: Packet) -> int:
        """Return the protection domain of the memory that a request may access; 0 if there is none."""
        if not self.xrc_target:
            return self.ctx.pd
        srq = self._srq_of(packet)
        return 0 if srq is None else srq.pd

    def reply_pd(self, rkey: int) -> int:
        """Return the protection domain of memory that is read; for XRC, the key was checked when the request
        arrived."""
        if not self.xrc_target:
            return self.ctx.pd
        entry = self.host.memory.lookup(rkey)
        return 0 if entry is None else entry.pd

    def handle_timer(self, now_ns: int) -> None:
        """Handle the timer if it has expired, by the engine if it can."""
        if self.executor is None or not self.executor.timeout(now_ns):
            super().handle_timer(now_ns)

    def forget_why(self) -> None:
        """Clear the reason, and let the engine punt dropped packets to the reference again, once for each line that may
        be shown."""
        super().forget_why()
        self.explains = 1 if self.uar.tell is None else MOST_LINES

    def explain(self, reason: Reason, about: str = "", /, **values: object) -> None:
        """Record a failure reason, and show it to the program's user if requested."""
        super().explain(reason, about, **values)
        tell = self.uar.tell
        if tell is not None and self.why is not None:
            tell(reason, f"queue pair {self.number:#x}: {self.why.text}")
        if self.explains:
            self.explains -= 1

    def ask_peer(self, silent: bool) -> str:
        """Return the peer's reason for refusing or not answering, if the peer belongs to the same user."""
        find = self.nic.find_peer
        if find is None or self.flow is None:
            return ""
        known, peer = find(self.flow.dst, self.flow.dport, self.ctx.remote_qpn)
        if not known:
            return ""
        if peer is None:
            return "there is no such queue pair"
        why = "" if peer.why is None else peer.why.reason(**peer.why.values)
        if silent and peer.ctx.state not in _CONNECTED:
            return f"it is in {state_name(peer.ctx.state)}"
        if silent and peer.ctx.remote_qpn != self.number:
            return f"its peer is queue pair {peer.ctx.remote_qpn:#x}, not this one"
        return why

    def stop(self, state: int) -> None:
        """Enter an error state and publish it."""
        if self.nic.stopped is not None:
            self.nic.stopped(self.number)
        super().stop(state)
        self.shown_state = state
        self.regs.set(QUEUE_STATE, state)

    def show(self) -> None:
        """Update SQ_HEAD and QUEUE_STATE in the queue block."""
        head = self.requester.sq_head
        if head != self.shown_head:
            self.shown_head = head
            self.regs.set(SQ_HEAD, head)
        state = self.ctx.state
        if state != self.shown_state:
            self.shown_state = state
            self.regs.set(QUEUE_STATE, state)
