"""A NIC that moves no more packets brings host memory up to date by itself, within a bounded time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rnic.context.qpc import QPC
from rnic.device.nic import Nic
from rnic.spec.rounds import WRITE_BACK_NS
from rnic.testing import QpPair, SimNet
from rnic.verbs import enums as e

LIVE = ("state", "next_send_psn", "last_acked_psn", "expected_psn")


def exact(nic: Nic, qpn: int) -> bool:
    """Whether host memory says of a queue pair what the cache says."""
    ctx = nic.qps[qpn].ctx
    image = nic.contexts.read_qp(qpn)[1]
    return all(QPC.get(image, name) == getattr(ctx, name) for name in LIVE)


@pytest.mark.parametrize("count", [1, pytest.param(258, marks=pytest.mark.slow)])
def test_an_idle_nic_writes_its_contexts_back(count: int) -> None:
    with SimNet(2, settings={"log_max_qps": 10}) as net:
        pairs = [QpPair(net=net, size=4096, depth=4) for _ in range(count)]
        for pair in pairs:
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, 3000)
        for pair in pairs:
            pair.a.wait()
        nodes = {pair.a.qp.qp_num: pair for pair in pairs}
        assert any(not exact(net.nodes[0].nic, qpn) for qpn in nodes)
        # 32 queue pairs at once, the next ones a millisecond later each
        net.run(lambda: all(exact(net.nodes[0].nic, qpn) for qpn in nodes), 2 * WRITE_BACK_NS)
        assert all(exact(net.nodes[1].nic, pair.b.qp.qp_num) for pair in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("busy", [True, False])
def test_a_step_of_write_backs_is_bounded(busy: bool) -> None:
    with SimNet(2) as net:
        pairs = [QpPair(net=net, size=64, depth=1) for _ in range(34)]
        nic = net.nodes[0].nic
        qpns = [pair.a.qp.qp_num for pair in pairs]
        now = nic.now_ns
        while (at := nic.write_back_at) is not None:
            now = max(now, at)
            nic.handle_timers(now)
        for qpn in qpns:
            nic.contexts.key.qps.view(qpn).expected_psn += 1
        nic.note_traffic(now)
        steps, began = [0], now
        while (at := nic.write_back_at) is not None:
            now = at
            if busy:
                nic.note_traffic(now)
            nic.handle_timers(now)
            steps.append(sum(exact(nic, qpn) for qpn in qpns))
        assert steps[-1] == len(qpns)
        written = [later - before for before, later in pairwise(steps)]
        if not busy:
            assert written == [32, 2]
            return
        assert max(written) == 1
        looks = [place for place, count in enumerate(written) if count]
        assert {later - before for before, later in pairwise(looks)} == {8}, "the others cost next to nothing"
        assert now - began >= 34 * 7 * WRITE_BACK_NS
