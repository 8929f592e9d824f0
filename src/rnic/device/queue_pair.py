"""A queue pair with what the device adds: its queue block, its owner, and the numbers it mirrors there."""

from __future__ import annotations

from rnic.context.qp_context import QpContext
from rnic.device.cq import CompletionQueue
from rnic.device.srq import SharedReceiveQueue, receive_ring
from rnic.device.uar import Registers, Uar
from rnic.rings.queue_block import (
    QUEUE_NUMBER,
    QUEUE_STATE,
    SQ_BASE_HI,
    SQ_BASE_LO,
    SQ_HEAD,
    SQ_SIZE,
    SQ_STRIDE,
)
from rnic.rings.sqe import SQE_SHIFT
from rnic.spec.opcodes import RC, UC, UD
from rnic.spec.states import ST_RC, ST_UC, ST_UD
from rnic.transport.host import Host
from rnic.transport.qp import QueuePair
from rnic.transport.wqe import SendRing
from rnic.wire.flow import Flow

SERVICE_CODES = {ST_RC: RC, ST_UC: UC, ST_UD: UD}
"""Service bits of a BTH opcode for each service type of a context."""


class DeviceQp(QueuePair):
    """One QP. ``service`` is what its packets' opcodes must say; ``notify_drained`` asks for SQ_DRAINED.

    ``peer`` is the incoming path that was found right last, ``pkey`` the P_Key in use: what every packet is held
    against; :meth:`refresh` renews both after a modify command. ``turn`` is how many bytes it may send before the
    others have their turns, ``deficit`` what it may send still. ``cnp_merge_ns`` is until when marks bring no further
    CNP, ``rate`` its rate register.
    """

    __slots__ = (
        "cnp_merge_ns",
        "cqs",
        "deficit",
        "notify_drained",
        "peer",
        "pkey",
        "polite",
        "rate",
        "regs",
        "service",
        "shown_head",
        "shown_state",
        "sq_entries",
        "srq",
        "turn",
        "uar",
    )

    def __init__(
        self,
        ctx: QpContext,
        host: Host,
        uar: Uar,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        srq: SharedReceiveQueue | None,
    ) -> None:
        self.uar = uar
        self.cqs = (send_cq, recv_cq)
        self.srq = srq
        self.regs = regs = Registers(uar, ctx.usr_page)
        self.sq_entries = ctx.snd_wqe_length >> SQE_SHIFT
        self.service = SERVICE_CODES[ctx.servtype]
        self.notify_drained = False
        self.peer: Flow | None = None
        self.pkey = 0
        self.turn = 1
        self.deficit = 0
        self.cnp_merge_ns = 0
        self.rate = 0
        self.polite = False
        """Its replies have just let new messages go first; next time they go, come what may."""
        self.shown_head = 0
        self.shown_state = ctx.state
        regs.clear()
        regs.set(QUEUE_NUMBER, ctx.local_qpn)
        regs.set(QUEUE_STATE, ctx.state)
        regs.set(SQ_BASE_LO, ctx.sq_base & 0xFFFF_FFFF)
        regs.set(SQ_BASE_HI, ctx.sq_base >> 32)
        regs.set(SQ_SIZE, self.sq_entries)
        regs.set(SQ_STRIDE, ctx.sq_slab_bytes)
        send_ring = SendRing(uar.port, ctx.sq_base, self.sq_entries, ctx.sq_slab_bytes)
        stride = 1 << ctx.rq_entry_sz_log
        rq = srq or receive_ring(regs, ctx.rq_base, ctx.rcv_wqe_length // stride, stride)
        super().__init__(ctx, host, send_ring, rq, send_cq, recv_cq)
        self.program = uar.program

    def refresh(self) -> None:
        """The context was modified."""
        self.peer = None
        self.pkey = self.host.pkey(self.ctx.pkey_index)
        self.show()

    def reload(self) -> None:
        """The context was loaded anew from host memory, outside any transition."""
        if self.flow is not None:
            self.flow = self.host.make_flow(self.ctx)
            self.requester.refresh(self.flow)
        self.refresh()

    def comes_from_peer(self, flow: Flow) -> bool:
        """Whether packets on ``flow`` are for this queue pair: from its peer's address to its own, or UD."""
        path = self.flow
        if path is None or (self.service != UD and (path.dst != flow.src or path.src != flow.dst)):
            return False
        self.peer = flow
        return True

    @property
    def receive_pd(self) -> int:
        """Protection domain of the entries that it receives into: a shared receive queue has its own."""
        return self.ctx.pd if self.srq is None else self.srq.pd

    def stop(self, state: int) -> None:
        """Take an error state, and show it."""
        super().stop(state)
        self.shown_state = state
        self.regs.set(QUEUE_STATE, state)

    def show(self) -> None:
        """Bring SQ_HEAD and QUEUE_STATE up to date."""
        head = self.requester.sq_head
        if head != self.shown_head:
            self.shown_head = head
            self.regs.set(SQ_HEAD, head)
        state = self.ctx.state
        if state != self.shown_state:
            self.shown_state = state
            self.regs.set(QUEUE_STATE, state)
