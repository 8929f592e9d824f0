"""XRC: queue pairs of one context send into shared receive queues of another (IBA annex A14)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from errno import EAGAIN, EBADF, EBUSY, EINVAL
from pathlib import Path
from typing import Any

import pytest

from rnic import enums as e
from rnic.link.faults import FaultRates
from rnic.spec.errors import VerbsError
from rnic.testing import SimNet
from rnic.testing.pair import ALL_RIGHTS
from rnic.verbs import CQ, MR, PD, QP, SRQ, XRCD, Context
from rnic.verbs.attrs import (
    SGE,
    WC,
    AHAttr,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
    XRCDInitAttr,
)

SIZE = 1 << 16
SIZES = [1, 1024, 5000, 50_001]


def attributes(peer: Context, qpn: int) -> QPAttr:
    attr = QPAttr()
    attr.qp_access_flags = ALL_RIGHTS & ~e.IBV_ACCESS_MW_BIND
    attr.dest_qp_num, attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer = qpn, 4, 4, 1
    attr.gso = True
    attr.ah_attr = AHAttr(GlobalRoute(peer.query_gid(), 0), udp_dport=peer.udp_port)
    return attr


class Receiver:
    """A domain with a receiving queue pair, and SRQs with their own protection domains, CQs and memory."""

    def __init__(self, ctx: Context, srqs: int = 1) -> None:
        self.ctx = ctx
        self.xrcd = XRCD(ctx)
        self.qp = QP(ctx, QPInitAttr(e.IBV_QPT_XRC_RECV, xrcd=self.xrcd))
        self.pds = [PD(ctx) for _ in range(srqs)]
        self.cqs = [CQ(ctx, 64) for _ in range(srqs)]
        self.srqs = [
            SRQ(pd, SrqInitAttr(SrqAttr(32, 2), None, e.IBV_SRQT_XRC, self.xrcd, cq))
            for pd, cq in zip(self.pds, self.cqs, strict=True)
        ]
        self.bufs = [bytearray(SIZE) for _ in range(srqs)]
        self.mrs = [MR(pd, buf, ALL_RIGHTS) for pd, buf in zip(self.pds, self.bufs, strict=True)]

    def post(self, at: int, length: int, wr_id: int = 0) -> None:
        mr = self.mrs[at]
        self.srqs[at].post_recv(RecvWR(wr_id, sg=[SGE(mr.buf, length, mr.lkey)]))


class Sender:
    """A sending queue pair."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.pd, self.cq = PD(ctx), CQ(ctx, 64)
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_XRC_SEND, None, QPCap(16, 0, 2, 0, 64), self.cq))
        self.buf = bytearray(random.Random(1).randbytes(SIZE))
        self.mr = MR(self.pd, self.buf, ALL_RIGHTS)

    def wr(self, opcode: int, length: int, srqn: int, wr_id: int = 0, **more: Any) -> SendWR:
        wr = SendWR(wr_id, opcode, sg=[SGE(self.mr.buf, length, self.mr.lkey)] if length else [], **more)
        wr.set_qp_type_xrc(srqn)
        return wr


class Link:
    """One sender and one receiver, connected."""

    def __init__(self, net: SimNet, srqs: int = 1) -> None:
        self.net = net
        self.here, self.there = Sender(net.nodes[0].ctx), Receiver(net.nodes[1].ctx, srqs)
        self.connect(self.here, self.there.qp)

    def connect(self, here: Sender, there: QP) -> None:
        there.to_rts(attributes(here.ctx, here.qp.qp_num))
        here.qp.to_rts(attributes(there.ctx, there.qp_num))

    def wait(self, cq: CQ, count: int = 1) -> list[WC]:
        found: list[WC] = []

        def enough() -> bool:
            found.extend(cq.poll(16)[1])
            return len(found) >= count

        assert self.net.run(enough)
        return found


@pytest.fixture
def net() -> Iterator[SimNet]:
    with SimNet(2) as made:
        yield made


@pytest.fixture
def link(net: SimNet) -> Link:
    return Link(net)


@pytest.mark.parametrize("size", SIZES)
def test_send(link: Link, size: int) -> None:
    here, there = link.here, link.there
    there.post(0, size, wr_id=7)
    here.qp.post_send(here.wr(e.IBV_WR_SEND_WITH_IMM, size, there.srqs[0].srqn, wr_id=5, imm_data=9))
    sent, got = link.wait(here.cq)[0], link.wait(there.cqs[0])[0]
    assert (sent.wr_id, sent.status, sent.opcode) == (5, e.IBV_WC_SUCCESS, e.IBV_WC_SEND)
    assert (got.wr_id, got.status, got.opcode, got.byte_len) == (7, e.IBV_WC_SUCCESS, e.IBV_WC_RECV, size)
    assert (got.qp_num, got.imm_data) == (there.qp.qp_num, 9)
    assert there.bufs[0][:size] == here.buf[:size]


def test_each_request_names_its_queue(net: SimNet) -> None:
    link = Link(net, srqs=3)
    here, there = link.here, link.there
    for at in (2, 0, 1):
        there.post(at, 4000, wr_id=at)
        here.qp.post_send(here.wr(e.IBV_WR_SEND, 3000 + at, there.srqs[at].srqn))
    link.wait(here.cq, 3)
    for at in range(3):
        got = link.wait(there.cqs[at])[0]
        assert (got.wr_id, got.byte_len) == (at, 3000 + at)


@pytest.mark.parametrize("size", SIZES)
def test_write_and_read(link: Link, size: int) -> None:
    here, there = link.here, link.there
    mr, srqn = there.mrs[0], there.srqs[0].srqn
    write = here.wr(e.IBV_WR_RDMA_WRITE, size, srqn)
    write.set_wr_rdma(mr.rkey, mr.buf + 16)
    here.qp.post_send(write)
    assert link.wait(here.cq)[0].status == e.IBV_WC_SUCCESS
    assert there.bufs[0][16 : 16 + size - 16] == here.buf[: size - 16] or size < 16
    there.bufs[0][:] = random.Random(2).randbytes(SIZE)
    read = here.wr(e.IBV_WR_RDMA_READ, size, srqn)
    read.set_wr_rdma(mr.rkey, mr.buf)
    here.qp.post_send(read)
    assert link.wait(here.cq)[0].status == e.IBV_WC_SUCCESS
    assert here.buf[:size] == there.bufs[0][:size]


def test_atomics_flush_and_atomic_write(link: Link) -> None:
    here, there = link.here, link.there
    mr, srqn = there.mrs[0], there.srqs[0].srqn
    there.bufs[0][:8] = (40).to_bytes(8, "little")
    add = here.wr(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, srqn)
    add.set_wr_atomic(mr.rkey, mr.buf, 2)
    write = here.wr(e.IBV_WR_ATOMIC_WRITE, 0, srqn)
    write.set_wr_atomic_write(mr.rkey, mr.buf + 8, b"abcdefgh")
    flush = here.wr(e.IBV_WR_FLUSH, 0, srqn)
    flush.set_wr_flush(mr.rkey, mr.buf, 16)
    here.qp.post_send([add, write, flush])
    assert [wc.status for wc in link.wait(here.cq, 3)] == [e.IBV_WC_SUCCESS] * 3
    assert here.buf[:8] == (40).to_bytes(8, "little")
    assert there.bufs[0][:16] == (42).to_bytes(8, "little") + b"abcdefgh"


def test_write_with_immediate_takes_a_receive_of_the_srq(link: Link) -> None:
    here, there = link.here, link.there
    there.post(0, 0, wr_id=3)
    write = here.wr(e.IBV_WR_RDMA_WRITE_WITH_IMM, 2000, there.srqs[0].srqn, imm_data=6)
    write.set_wr_rdma(there.mrs[0].rkey, there.mrs[0].buf)
    here.qp.post_send(write)
    got = link.wait(there.cqs[0])[0]
    assert (got.wr_id, got.opcode, got.imm_data) == (3, e.IBV_WC_RECV_RDMA_WITH_IMM, 6)


def test_a_queue_without_receives_lets_the_sender_wait(link: Link) -> None:
    here, there = link.here, link.there
    here.qp.post_send(here.wr(e.IBV_WR_SEND, 100, there.srqs[0].srqn))
    with pytest.raises(TimeoutError):
        link.net.run(lambda: bool(here.cq.poll()[0]), limit_ns=1_000_000)
    there.post(0, 100)
    assert link.wait(here.cq)[0].status == e.IBV_WC_SUCCESS
    assert link.wait(there.cqs[0])[0].byte_len == 100


def test_memory_is_checked_with_the_domain_of_the_srq(net: SimNet) -> None:
    link = Link(net, srqs=2)
    here, there = link.here, link.there
    write = here.wr(e.IBV_WR_RDMA_WRITE, 8, there.srqs[0].srqn)
    write.set_wr_rdma(there.mrs[1].rkey, there.mrs[1].buf)
    here.qp.post_send(write)
    assert link.wait(here.cq)[0].status == e.IBV_WC_REM_ACCESS_ERR


@pytest.mark.parametrize("opcode", [e.IBV_WR_SEND, e.IBV_WR_RDMA_READ])
def test_a_number_that_is_no_srq_of_the_domain_is_refused(link: Link, opcode: int) -> None:
    here, there = link.here, link.there
    plain = SRQ(there.pds[0], SrqInitAttr(SrqAttr(4)))
    other = SRQ(there.pds[0], SrqInitAttr(SrqAttr(4), None, e.IBV_SRQT_XRC, XRCD(there.ctx), there.cqs[0]))
    for number in (plain.srqn, other.srqn, 0, 0xABCDEF):
        here.qp.post_send(here.wr(opcode, 8, number))
        wc = link.wait(here.cq)[0]
        assert wc.status == e.IBV_WC_REM_INV_REQ_ERR
        assert f"SRQ {number:#x} is not in the XRC domain" in there.qp.why
        for qp in (here.qp, there.qp):
            qp.modify(QPAttr(e.IBV_QPS_RESET), e.IBV_QP_STATE)
        link.connect(here, there.qp)
    there.post(0, 8)
    here.qp.post_send(here.wr(e.IBV_WR_SEND, 8, there.srqs[0].srqn))
    assert link.wait(here.cq)[0].status == e.IBV_WC_SUCCESS


def test_an_srq_may_go_while_a_message_comes_in() -> None:
    with SimNet(2, packet_ns=10_000) as net:
        _srq_goes(Link(net))


def _srq_goes(link: Link) -> None:
    here, there = link.here, link.there
    there.post(0, 9000)
    here.qp.post_send(here.wr(e.IBV_WR_SEND, 9000, there.srqs[0].srqn))
    responder = there.ctx.nic.resources.qps[there.qp.qp_num].responder
    assert link.net.run(lambda: bool(responder.open))
    there.srqs[0].close()
    assert link.wait(here.cq)[0].status == e.IBV_WC_REM_INV_REQ_ERR
    assert there.cqs[0].poll()[0] == 0
    there.cqs[0].close()


def test_losses_are_mended() -> None:
    with SimNet(2, tx=FaultRates(drop=0.05), seed=3) as net:
        link = Link(net)
        here, there = link.here, link.there
        for at in range(8):
            there.post(0, 20_000, wr_id=at)
            here.qp.post_send(here.wr(e.IBV_WR_SEND, 20_000 - at, there.srqs[0].srqn))
        link.wait(here.cq, 8)
        assert [(wc.wr_id, wc.byte_len) for wc in link.wait(there.cqs[0], 8)] == [(at, 20_000 - at) for at in range(8)]
        assert there.bufs[0][:19_993] == here.buf[:19_993]


def test_what_a_queue_pair_needs(net: SimNet) -> None:
    ctx = net.nodes[0].ctx
    pd, cq, xrcd = PD(ctx), CQ(ctx, 4), XRCD(ctx)
    with pytest.raises(VerbsError, match="needs a domain: set xrcd"):
        QP(ctx, QPInitAttr(e.IBV_QPT_XRC_RECV))
    with pytest.raises(VerbsError, match="made in a protection domain"):
        QP(xrcd, QPInitAttr(e.IBV_QPT_XRC_SEND, None, None, cq))
    with pytest.raises(VerbsError, match="an XRC SRQ needs a domain and a CQ"):
        SRQ(pd, SrqInitAttr(SrqAttr(4), None, e.IBV_SRQT_XRC, xrcd))
    sends = QP(pd, QPInitAttr(e.IBV_QPT_XRC_SEND, None, None, cq))
    with pytest.raises(VerbsError, match="sends alone"):
        sends.post_recv(RecvWR())
    with pytest.raises(VerbsError, match="names no SRQ"):
        sends.post_rdma(4, 0, 0, 0)
    receives = QP(xrcd, QPInitAttr(e.IBV_QPT_XRC_RECV))
    with pytest.raises(VerbsError, match="receives alone"):
        receives.post_send(SendWR())


def test_a_domain_in_use_stays(net: SimNet) -> None:
    ctx = net.nodes[0].ctx
    pd, cq, xrcd = PD(ctx), CQ(ctx, 4), XRCD(ctx)
    srq = SRQ(pd, SrqInitAttr(SrqAttr(4), None, e.IBV_SRQT_XRC, xrcd, cq))
    for close in (cq.close, lambda: ctx.command(0xF18, xrcd.handle)):
        with pytest.raises(VerbsError) as refused:
            close()
        assert refused.value.errno == EBUSY
    srq.close()
    qp = QP(xrcd, QPInitAttr(e.IBV_QPT_XRC_RECV))
    qp.to_init(QPAttr())
    with pytest.raises(VerbsError) as refused:
        ctx.command(0xF18, xrcd.handle)
    assert refused.value.errno == EBUSY
    xrcd.close()
    assert qp.closed
    cq.close()


def test_a_file_names_a_domain(net: SimNet, tmp_path: Path) -> None:
    ctx = net.nodes[0].ctx
    other = Context(runtime=ctx.runtime)
    fd = os.open(tmp_path / "domain", os.O_RDWR | os.O_CREAT)
    try:
        for attr, expected in ((XRCDInitAttr(0, 0, fd), EAGAIN), (XRCDInitAttr(0, os.O_CREAT, 999), EBADF)):
            with pytest.raises(VerbsError) as refused:
                XRCD(ctx, attr)
            assert refused.value.errno == expected
        first = XRCD(ctx, XRCDInitAttr(0, os.O_CREAT, fd))
        second = XRCD(other, XRCDInitAttr(0, 0, fd))
        assert first.handle == second.handle != XRCD(ctx).handle
        with pytest.raises(VerbsError) as refused:
            XRCD(ctx, XRCDInitAttr(0, os.O_CREAT | os.O_EXCL, fd))
        assert refused.value.errno == EINVAL
        first.close()
        XRCD(other, XRCDInitAttr(0, 0, fd)).close()
        other.close()
        with pytest.raises(VerbsError):
            XRCD(ctx, XRCDInitAttr(0, 0, fd))
    finally:
        os.close(fd)


def test_contexts_share_a_domain(net: SimNet, tmp_path: Path) -> None:
    """The queue pair is one program's, the SRQ another's."""
    link = Link(net)
    here, there = link.here, link.there
    other = Context(runtime=there.ctx.runtime)
    fd = os.open(tmp_path / "domain", os.O_RDWR | os.O_CREAT)
    try:
        named = XRCD(there.ctx, XRCDInitAttr(0, os.O_CREAT, fd))
        qp = QP(named, QPInitAttr(e.IBV_QPT_XRC_RECV))
        here.qp.modify(QPAttr(e.IBV_QPS_RESET), e.IBV_QP_STATE)
        link.connect(here, qp)
        pd, cq = PD(other), CQ(other, 4)
        srq = SRQ(pd, SrqInitAttr(SrqAttr(4), None, e.IBV_SRQT_XRC, XRCD(other, XRCDInitAttr(0, 0, fd)), cq))
        buf = bytearray(100)
        mr = MR(pd, buf)
        srq.post_recv(RecvWR(3, sg=[SGE(mr.buf, 100, mr.lkey)]))
        here.qp.post_send(here.wr(e.IBV_WR_SEND, 100, srq.srqn))
        got = link.wait(cq)[0]
        assert (got.wr_id, got.qp_num) == (3, qp.qp_num)
        assert buf == here.buf[:100]
        other.close()
        here.qp.post_send(here.wr(e.IBV_WR_SEND, 100, srq.srqn))
        assert [wc.status for wc in link.wait(here.cq, 2)] == [e.IBV_WC_SUCCESS, e.IBV_WC_REM_INV_REQ_ERR]
    finally:
        os.close(fd)
