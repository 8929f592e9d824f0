"""Marks in real IP headers, over real sockets: a flow that a link marks is throttled, and its data are right."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Sequence

import pytest

from rnic.cc.settings import CongestionSettings
from rnic.device.congestion import BURST_WINDOWS
from rnic.engine import use
from rnic.link.faults import FaultyLink
from rnic.link.udp import UdpLink
from rnic.spec import commands as cmd
from rnic.spec import congestion_regs as reg
from rnic.spec.congestion_regs import WINDOW_NS
from rnic.testing import own_network
from rnic.trace.counters import Counters
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, SGE, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, SendWR
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.devices import runtime_on
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP
from rnic.wire.bursts import TxBurst

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "IP_RECVTOS"), reason="this system does not say the traffic class of what arrives"
)
SECONDS = 20.0
SIZE = 1 << 20
PACKET = 4_096 + 36
ECT = 2
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
MARKS = [{"match": {"direction": "tx", "opcode": "RC_WRITE*"}, "every": 50, "action": "mark"}]


class End:
    """A NIC of its own on a UDP socket of its own, and one queue pair."""

    def __init__(self, address: str, script: list[dict[str, object]], mode: str) -> None:
        counters = Counters()
        self.udp = udp = UdpLink(address, 0, counters=counters)
        link = FaultyLink(udp, clock=time.monotonic_ns, rng=random.Random(1), script=script)
        settings = CongestionSettings(mode, timer_windows=200)
        self.ctx = Context(runtime=runtime_on(link, counters, congestion=settings, window_packets=16))
        self.counters = counters
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 64)
        self.buf = bytearray(SIZE)
        self.mr = MR(self.pd, self.buf, RIGHTS)
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(16, 16, 1, 1, 0), self.cq, self.cq))

    def connect(self, peer: End) -> None:
        attr = QPAttr()
        attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer = e.IBV_MTU_4096, 1, 1, 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.gso = 14, 7, 7, True
        attr.qp_access_flags, attr.dest_qp_num = RIGHTS & ~e.IBV_ACCESS_LOCAL_WRITE, peer.qp.qp_num
        route = GlobalRoute(GID(peer.ctx.address), traffic_class=ECT)
        attr.ah_attr = AHAttr(route, udp_dport=peer.ctx.udp_port)
        self.qp.to_rts(attr)


def write(sender: End, receiver: End) -> None:
    """One WRITE of everything, to its completion."""
    wr = SendWR(1, e.IBV_WR_RDMA_WRITE, sg=[SGE(sender.mr.buf, SIZE, sender.mr.lkey)], send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_rdma(receiver.mr.rkey, receiver.mr.buf)
    sender.qp.post_send(wr)
    end = time.monotonic() + SECONDS
    while not (found := sender.cq.poll()[1]):
        receiver.cq.poll()
        assert time.monotonic() < end
    assert found[0].status == e.IBV_WC_SUCCESS


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["none", "limit", "dcqcn", "swift"])
def test_a_real_flow(mode: str) -> None:
    host = own_network()
    sender, receiver = End(f"{host}.201", MARKS, mode), End(f"{host}.202", [], mode)
    try:
        sender.connect(receiver)
        receiver.connect(sender)
        sender.buf[:] = random.Random(2).randbytes(SIZE)
        for _ in range(4):
            write(sender, receiver)
        assert receiver.buf == sender.buf
        assert receiver.counters["ecn_marked_packets"] >= 4 * SIZE // 4096 // 50
        assert receiver.counters["cnps_sent"] == sender.counters["cnps_received"] > 0
        assert bool(sender.counters["cnp_limits"]) == (mode == "limit")
    finally:
        sender.ctx.close()
        receiver.ctx.close()


def limit_rate(sender: End, rate: int) -> None:
    """Set a rate as software does, in bytes per window."""
    for offset, value in (
        (reg.QP_RATE + (sender.qp.qp_num - 1) * reg.QP_STRIDE, rate),
        (reg.CONGESTION_CTRL, reg.LIMITER),
    ):
        assert sender.ctx.driver.command(cmd.WRITE_CFG, offset, 0, value.to_bytes(8, "big")).status == cmd.ST_OK


@pytest.mark.slow
def test_the_engine_keeps_a_rate_on_real_sockets() -> None:
    host = own_network()
    sender, receiver = End(f"{host}.205", [], "none"), End(f"{host}.206", [], "none")
    rate = 128
    try:
        sender.connect(receiver)
        receiver.connect(sender)
        limit_rate(sender, rate)
        begun = time.monotonic_ns()
        write(sender, receiver)
        assert time.monotonic_ns() - begun >= (SIZE - rate * BURST_WINDOWS) * WINDOW_NS // rate
    finally:
        sender.ctx.close()
        receiver.ctx.close()


@pytest.mark.slow
def test_a_rate_bounds_what_leaves_at_once_on_real_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 Gb/s: in any span no more is handed to the socket than the rate brings in it and the bucket holds."""
    monkeypatch.setattr(use, "ENGINE", None)  # what leaves is watched in Python
    host = own_network()
    sender, receiver = End(f"{host}.203", [], "none"), End(f"{host}.204", [], "none")
    rate = 128
    bucket = rate * BURST_WINDOWS
    sent: list[tuple[int, int]] = []
    nic, send = sender.ctx.runtime.nic, sender.udp.send

    def watched(bursts: Sequence[TxBurst]) -> None:
        sent.extend((nic.now_ns, burst.length) for burst in bursts)
        send(bursts)

    try:
        sender.connect(receiver)
        receiver.connect(sender)
        limit_rate(sender, rate)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sender.udp, "send", watched)
            write(sender, receiver)
        beyond = sender.counters["retransmitted_packets"] + sender.counters["probes"]
        assert sum(size for _, size in sent) >= SIZE
        assert len({now for now, _ in sent}) > (SIZE - bucket) // (2 * bucket)
        for first, (begin, _) in enumerate(sent):
            total = 0
            for now, size in sent[first:]:
                total += size
                # a tail-loss probe leaves whatever the bucket holds
                assert total <= bucket + (now - begin) * rate // WINDOW_NS + beyond * PACKET
        assert sent[-1][0] - sent[0][0] >= (SIZE - bucket) * WINDOW_NS // rate
    finally:
        sender.ctx.close()
        receiver.ctx.close()
