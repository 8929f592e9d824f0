"""More programs of one device run the data path than one word has bits."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import rnic
from rnic import enums as e
from rnic.engine import use
from rnic.link.steering import MAX_MEMBERS, first_qpn, member_of
from rnic.nic_process.bypass_programs import refusal
from rnic.runtime.attach import ask
from rnic.testing import own_network
from rnic.verbs.attrs import SGE, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, SendWR
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP

NET = own_network()
MANY = 70


def write_to_itself(ctx: Context) -> int:
    """Status of one WRITE of a queue pair that is connected to itself."""
    pd, cq = PD(ctx), CQ(ctx, 4)
    mr = MR(pd, bytearray(64), e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(4, 4, 1, 1, 0), cq, cq))
    attr = QPAttr()
    attr.qp_access_flags, attr.path_mtu, attr.dest_qp_num = e.IBV_ACCESS_REMOTE_WRITE, e.IBV_MTU_1024, qp.qp_num
    attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
    attr.ah_attr = AHAttr(GlobalRoute(ctx.query_gid()), udp_dport=ctx.udp_port)
    qp.to_rts(attr)
    wr = SendWR(1, e.IBV_WR_RDMA_WRITE, send_flags=e.IBV_SEND_SIGNALED, sg=[SGE(mr.buf, 8, mr.lkey)])
    wr.set_wr_rdma(mr.rkey, mr.buf + 32)
    qp.post_send(wr)
    while True:  # waits: for the completion
        count, found = cq.poll(1)
        if count:
            return found[0].status


def test_every_member_has_numbers_of_its_own_but_that_of_multicast() -> None:
    assert MAX_MEMBERS == 255
    assert member_of(first_qpn(MAX_MEMBERS)) == MAX_MEMBERS
    assert first_qpn(MAX_MEMBERS + 1) <= 0xFF_FFFF < first_qpn(MAX_MEMBERS + 2), "the next would have 0xffffff"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_seventy_programs_take_their_packets_themselves(tmp_path: Path) -> None:
    if use.ENGINE is None or refusal(bytes((127, 0, 0, 1))):
        pytest.skip(f"no slots here: {refusal(bytes((127, 0, 0, 1))) or 'no engine'}")
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(rnic.open(f"{NET}.71", directory=tmp_path, bypass=True)) for _ in range(MANY)]
        assert all(ctx.bypass for ctx in opened)
        assert [write_to_itself(ctx) for ctx in (opened[0], opened[-1])] == [e.IBV_WC_SUCCESS] * 2
        seen = ask(tmp_path, opened[0].name, "slots")
        assert (len(seen["slots"]), seen["refused"]) == (MANY, "")
        assert max(slot["slot"] for slot in seen["slots"]) == MANY
