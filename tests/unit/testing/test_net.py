from __future__ import annotations

import pytest

from rnic import enums as e
from rnic.testing import FakeClock, FaultRates, QpPair, SimNet, VirtualClock
from rnic.testing import net as net_module
from rnic.trace import ListTracer
from rnic.wire.bursts import TxBurst
from rnic.wire.flow import Flow


def run_once(seed: int) -> tuple[dict[str, int], list[object], int]:
    """A lossy run; what its counters, its trace and its clock say."""
    tracer = ListTracer()
    rates = FaultRates(drop=0.1, duplicate=0.05, reorder=0.05, corrupt=0.05, delay=0.05)
    with QpPair(seed=seed, tx=rates, tracer=tracer, max_segments=1) as pair:
        for number in range(20):
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, 5000, remote=5000 * number)
            pair.a.post_send(e.IBV_WR_RDMA_READ, 5000, 200_000 + 5000 * number, remote=5000 * number)
        assert {wc.status for wc in pair.a.wait(40)} == {e.IBV_WC_SUCCESS}
        trace: list[object] = [
            *tracer.events,
            pair.a.mr.buf,
            pair.a.mr.lkey,
            pair.b.mr.rkey,
        ]
        return dict(pair.a.counters), trace, pair.clock.now_ns


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run() -> None:
    assert run_once(1) == run_once(1)
    assert run_once(1)[1] != run_once(2)[1]


def test_time_jumps_to_what_happens_next() -> None:
    delay = [{"match": {"direction": "tx"}, "nth": 1, "action": "delay", "delay_ns": 3_000_000}]
    with QpPair(faults=delay, settings={"probe": False}) as pair:
        pair.a.post_send(e.IBV_WR_RDMA_READ, 100)
        pair.a.wait()
        assert 3_000_000 <= pair.clock.now_ns < 3_100_000


def poll_for_ever(pair: QpPair) -> None:
    while not pair.a.cq.poll()[0]:
        pass


def test_waiting_in_vain_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_module, "QUIET_POLLS", 100)
    with QpPair() as pair:
        with pytest.raises(TimeoutError, match="0 of 1 completions came"):
            pair.a.wait()
        with pytest.raises(TimeoutError, match="cannot come"):
            poll_for_ever(pair)


def test_a_limit_of_virtual_time() -> None:
    with QpPair(attributes={"timeout": 20}, tx=FaultRates(drop=1)) as pair:
        pair.a.post_send(e.IBV_WR_RDMA_READ, 100)
        with pytest.raises(TimeoutError, match="1 s of virtual time"):
            pair.a.wait(limit_ns=1_000_000_000)


def test_scripts_by_node() -> None:
    script = {1: [{"match": {"opcode": "RC_ACKNOWLEDGE"}, "times": 2, "action": "drop"}]}
    with QpPair(faults=script) as pair:
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 100)
        assert pair.a.wait()[0].status == e.IBV_WC_SUCCESS
        assert pair.b.counters["fault_tx_drop"] == 2


def test_a_bad_script_is_one_line() -> None:
    with pytest.raises(ValueError, match="action"):
        SimNet(2, faults=[{"action": "explode"}])


def test_an_outsider_and_many_nodes() -> None:
    with SimNet(5) as net:
        assert [node.ctx.address for node in net.nodes] == [f"10.0.0.{number}" for number in range(1, 6)]
        link = net.outsider(b"\x0a\0\0\x63")
        assert link.receive(1) == []
        assert "10.0.0.3" in repr(net.nodes[2])
        assert net.run()


def test_a_clock_of_your_own() -> None:
    clock = VirtualClock(5)
    assert FakeClock is VirtualClock
    with SimNet(1, clock=clock) as net:
        assert net.clock() == 5
        clock.advance(10)
        assert net.clock() == 15
        with pytest.raises(ValueError, match="delta_ns=-1"):
            clock.advance(-1)


@pytest.mark.parametrize("sender", [0, 1])
def test_a_wire_takes_its_time_and_no_more(sender: int) -> None:
    """A packet that a link lets go when its turn comes is seen at once, whichever NIC had its turn first."""
    net = SimNet(2, packet_ns=1_000, latency_ns=50_000)
    with QpPair(net=net) as pair:
        side = (pair.a, pair.b)[sender]
        start = net.clock.now_ns
        side.post_send(e.IBV_WR_RDMA_WRITE, 8)
        side.wait()
        assert 102_000 <= net.clock.now_ns - start < 112_000
        assert side.counters["probes"] == 0


@pytest.mark.parametrize("receives_all", [False, True])
def test_a_round_receives_some_of_what_has_come_or_all(receives_all: bool) -> None:
    with SimNet(1) as net:
        net.receives_all = receives_all
        runtime = net.nodes[0].ctx.runtime
        flow = Flow(b"\x0a\0\0\x09", runtime.nic.config.address, 50_000)
        net.outsider(flow.src).send([TxBurst(flow, [bytes(16)], 16, 1, 16)] * 9)
        assert len(runtime.receive(4)) == (9 if receives_all else 4)
