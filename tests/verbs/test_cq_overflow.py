"""A completion queue that is too small, by verbs alone: what has no place in it was not received."""

from __future__ import annotations

import pytest

from rnic.testing import SimNet
from rnic.verbs import CQ, MR, PD, QP, SGE, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from rnic.verbs import enums as e

ENTRIES = 3
SENDS = 8
SIZE = 64


@pytest.mark.parametrize("together", [True, False])
def test_a_send_whose_completion_is_lost_is_not_acknowledged(together: bool) -> None:
    """004 "Fatal.cq_overflow" comes before the ACK: who sent hears of as many as who receives can see."""
    net = SimNet(2)
    ends = []
    for node, entries in zip(net.nodes, (2 * SENDS, ENTRIES), strict=True):
        pd, cq = PD(node.ctx), CQ(node.ctx, entries)
        mr = MR(pd, bytearray(SIZE), e.IBV_ACCESS_LOCAL_WRITE)
        qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(SENDS, SENDS), scq=cq, rcq=cq))
        ends.append((node.ctx, qp, cq, mr))
    for (_, qp, _, _), (ctx, peer, _, _) in (ends, ends[::-1]):
        attr = QPAttr()
        attr.path_mtu, attr.timeout, attr.retry_cnt = e.IBV_MTU_1024, 14, 7
        attr.dest_qp_num, attr.ah_attr = peer.qp_num, AHAttr(GlobalRoute(ctx.query_gid()))
        qp.to_rts(attr)
    (_, sender, sent, source), (_, receiver, received, target) = ends
    room = received.cqe
    assert ENTRIES <= room < SENDS
    for number in range(SENDS):
        receiver.post_recv(RecvWR(number, sg=[SGE(target.buf, SIZE, target.lkey)]))
    for number in range(SENDS):
        sender.post_send(
            SendWR(
                number,
                sg=[SGE(source.buf, SIZE, source.lkey)],
                opcode=e.IBV_WR_SEND,
                send_flags=e.IBV_SEND_SIGNALED,
            )
        )
        if not together:
            net.run()
    net.run()
    told = [wc.status for wc in sent.poll(2 * SENDS)[1]]
    seen = received.poll(SENDS)[1]
    assert [wc.status for wc in seen] == [e.IBV_WC_SUCCESS] * room
    assert told == ([e.IBV_WC_SUCCESS] * room + [e.IBV_WC_REM_OP_ERR] + [e.IBV_WC_WR_FLUSH_ERR] * (SENDS - room - 1))
    assert receiver.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_ERR
    net.close()
