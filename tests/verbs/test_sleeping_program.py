"""An opened device works like hardware: it answers while its program does something else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import rnic
from rnic import enums as e

RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


class End:
    """A queue pair with a region on a NIC of its own."""

    def __init__(self) -> None:
        self.ctx = rnic.Context(addr="127.0.0.1", port=0)
        self.pd = rnic.PD(self.ctx)
        self.cq = rnic.CQ(self.ctx, 16)
        self.buf = bytearray(4096)
        self.mr = rnic.MR(self.pd, self.buf, RIGHTS)
        self.qp = rnic.QP(self.pd, rnic.QPInitAttr(e.IBV_QPT_RC, None, rnic.QPCap(8, 8), self.cq, self.cq))

    def connect(self, peer: End) -> None:
        attr = rnic.QPAttr()
        attr.qp_access_flags = RIGHTS
        attr.dest_qp_num = peer.qp.qp_num
        route = rnic.GlobalRoute(peer.ctx.query_gid())
        attr.ah_attr = rnic.AHAttr(route, udp_dport=peer.ctx.udp_port)
        self.qp.to_rts(attr)


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    made = End(), End()
    assert not made[0].ctx.driver.threaded, "a device without a queue pair that receives takes no thread"
    made[0].connect(made[1])
    made[1].connect(made[0])
    yield made
    for end in made:
        end.ctx.close()


def wait_for(end: End) -> rnic.WC:
    """The next completion, of a program that polls its own CQ and nothing else."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        count, found = end.cq.poll(1)
        if count:
            return found[0]
    raise TimeoutError("no completion within 5 s")


def test_a_program_that_never_polls_acknowledges_and_answers(ends: tuple[End, End]) -> None:
    here, there = ends
    here.buf[:5] = b"hello"
    wr = rnic.SendWR(1, e.IBV_WR_RDMA_WRITE, sg=[rnic.SGE(here.mr.buf, 5, here.mr.lkey)])
    wr.set_wr_rdma(there.mr.rkey, there.mr.buf)
    here.qp.post_send(wr)
    assert wait_for(here).status == e.IBV_WC_SUCCESS
    assert there.buf[:5] == b"hello"
    back = rnic.SendWR(2, e.IBV_WR_RDMA_READ, sg=[rnic.SGE(here.mr.buf + 100, 5, here.mr.lkey)])
    back.set_wr_rdma(there.mr.rkey, there.mr.buf)
    here.qp.post_send(back)
    assert wait_for(here).status == e.IBV_WC_SUCCESS
    assert here.buf[100:105] == b"hello"


def test_a_device_on_a_link_of_the_caller_is_the_callers_to_drive() -> None:
    from rnic.testing import QpPair

    with QpPair() as pair:
        assert not pair.a.ctx.driver.threaded
