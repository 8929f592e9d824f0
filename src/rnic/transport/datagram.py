"""Unreliable datagrams: one packet per message, a Q_Key instead of a connection (IBA 9.8; 004 "UD RX")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.rings.cqe import CQE_GRH, CQE_IMM, CQE_RECEIVE, CQE_SOLICITED
from rnic.spec import reasons
from rnic.spec.access import LOCAL_WRITE
from rnic.spec.drops import DropReason
from rnic.spec.events import WQ_CATAS_ERROR
from rnic.spec.limits import GRH_BYTES, ICRC_BYTES
from rnic.spec.opcodes import SEND_ONLY, SEND_ONLY_IMM, UD, WR_SEND, WR_SEND_IMM
from rnic.spec.psn import PSN_MASK
from rnic.spec.states import ERR
from rnic.spec.status import LOC_LEN_ERR, LOC_PROT_ERR, SUCCESS
from rnic.transport.encap import BTH_DETH_IMM_STRUCT, BTH_DETH_STRUCT, SOLICITED, FrameBatch, bth_base
from rnic.transport.sge import Payload, local_payload
from rnic.transport.why import why_lists
from rnic.wire.ip import synthesize_grh

if TYPE_CHECKING:
    from rnic.transport.host import CompletionSink, ReceiveSource
    from rnic.transport.message import Message
    from rnic.transport.qp import QueuePair
    from rnic.wire.packet import Packet

QKEY_FROM_QP = 1 << 31
"""A work request whose Q_Key has this bit set sends the QP's own Q_Key (IBA 3.5.3)."""


def send_datagram(qp: QueuePair, message: Message, payload: Payload, batch: FrameBatch) -> int:
    """Send one UD message. Return 1, or 0 with the message's status set if its payload cannot be read."""
    requester = qp.requester
    ctx = qp.ctx
    total = payload.total
    data = payload.read(0, total) if total else b""
    if data is None:
        message.status = LOC_PROT_ERR
        message.packets, message.executed = 0, 1
        return 0
    flow = qp.flow_to(message)
    head = bth_base(qp.host.pkey(ctx.pkey_index), message.dqpn) | (-total & 3) << 52
    if message.solicited:
        head |= SOLICITED
    qkey = ctx.qkey if message.qkey & QKEY_FROM_QP else message.qkey
    psn = message.first_psn
    if message.opcode == WR_SEND_IMM:
        header = BTH_DETH_IMM_STRUCT.pack(head | (UD | SEND_ONLY_IMM) << 56, psn, qkey, ctx.local_qpn, message.imm)
    else:
        header = BTH_DETH_STRUCT.pack(head | (UD | SEND_ONLY) << 56, psn, qkey, ctx.local_qpn)
    if flow is not batch.flow:
        batch.flush()
        batch.flow = flow
        batch.max_segments = qp.host.max_segments(flow, False)
    batch.add(header, data)
    message.sent = 1
    requester.una = requester.sent_psn = psn + 1 & PSN_MASK
    return 1


class DatagramReceiver:
    """The receiving half of a UD queue pair. It checks in the same order as RC; a failed check drops the packet."""

    __slots__ = ("cq", "qp", "rq")

    def __init__(self, qp: QueuePair, rq: ReceiveSource, cq: CompletionSink) -> None:
        self.qp = qp
        self.rq = rq
        self.cq = cq

    def receive(self, packet: Packet, now_ns: int) -> None:
        """Receive one UD packet: check Q_Key, receive entry and length, then store the GRH and the payload."""
        qp = self.qp
        ctx = qp.ctx
        host = qp.host
        if packet.qkey != ctx.qkey:
            qp.explain(reasons.WRONG_QKEY, qpn=packet.sqpn, got=packet.qkey, own=ctx.qkey)
            host.counters.bump(DropReason.BAD_QKEY.value)
            return
        size = len(packet.payload)
        if size > ctx.mtu_bytes:
            host.counters.bump(DropReason.BAD_LENGTH.value)
            return
        wqe = qp.take_receive()
        if wqe is None and not self.rq.readable():
            qp.explain(reasons.RECEIVE_RING, f"datagram of {size} bytes")
            qp.fail_receive(LOC_PROT_ERR, 0, WQ_CATAS_ERROR)
            return
        if wqe is None:
            qp.explain(reasons.NO_RECEIVE, f"datagram of {size} bytes", answer="it is dropped")
            host.counters.bump(DropReason.NO_RECEIVE.value)
            return
        status = SUCCESS
        dest = local_payload(host.memory, qp.receive_pd, wqe.sges, True)
        if not dest.valid:
            status = LOC_PROT_ERR
            reason, values = why_lists(host.memory, qp.receive_pd, wqe.sges, LOCAL_WRITE)
            qp.explain(reason, f"datagram of {size} bytes", **values)
        elif dest.total < size + GRH_BYTES:
            status = LOC_LEN_ERR
            qp.explain(reasons.SHORT_DATAGRAM_RECEIVE, length=size, room=dest.total)
        else:
            length = packet.row.header_bytes + size + packet.pad + ICRC_BYTES
            header = synthesize_grh(packet.flow, length, packet.tclass, packet.hop_limit, packet.flow_label)
            stored = dest.write(0, header)
            if not stored or (size and not dest.write(GRH_BYTES, packet.payload)):
                status = LOC_PROT_ERR
        word3 = CQE_RECEIVE | CQE_GRH
        if packet.row.immdt:
            word3 |= CQE_IMM | WR_SEND_IMM
        else:
            word3 |= WR_SEND
        if packet.solicited:
            word3 |= CQE_SOLICITED
        if status != SUCCESS:
            qp.stop(ERR)
        self.cq.complete(wqe.index, status, 0, size + GRH_BYTES, word3, packet.sqpn, 0, ctx.local_qpn, packet.imm)
        if status != SUCCESS:
            # The queue pair fails, and the completion reports it: asynchronous errors are for errors that no completion
            # can report (IBA chapter 10, "Affiliated Asynchronous Errors").
            qp.enter_error(raise_event=host.config.fault_events)
