"""The congestion registers, by the commands that a driver reads and writes them with (004 7.4)."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.cc.settings import CongestionSettings
from rnic.spec import commands as cmd
from rnic.spec import congestion_regs as reg
from rnic.state.queue_pair import QP
from rnic.state.record import place
from rnic.testing import QpPair
from rnic.verbs import enums as e
from rnic.wire.bursts import RxBurst

MERGE = 49
SIZE = 64 << 10


def receive_cnp(pair: QpPair) -> None:
    """A CNP from ``b`` reaches ``a``, in no time."""
    factory = pair.factory(pair.a)
    packet = factory("CNP", 0, becn=True, payload=bytes(16))
    burst = RxBurst(factory.flow, memoryview(packet), len(packet), len(packet), 0)
    pair.a.node.nic.receive(burst, pair.clock.now_ns)


def read(side: Any, offset: int) -> int:
    result = side.ctx.driver.command(cmd.READ_CFG, offset, 0, b"")
    assert result.status == cmd.ST_OK
    return int(result.out_param)


def write(side: Any, offset: int, value: int, status: int = cmd.ST_OK) -> None:
    assert side.ctx.driver.command(cmd.WRITE_CFG, offset, 0, value.to_bytes(8, "big")).status == status


def per_qp(side: Any, base: int) -> int:
    return int(base + (side.qp.qp_num - 1) * reg.QP_STRIDE)


def test_device_registers_work() -> None:
    with QpPair(settings={"window_packets": 16}) as pair:
        a = pair.a
        assert read(a, reg.CNP_TIMER_THRD) == CongestionSettings().timer_windows
        assert read(a, reg.CONGESTION_CTRL) == CongestionSettings().merge_windows
        write(a, reg.CNP_TIMER_THRD, 100)
        write(a, reg.CONGESTION_CTRL, reg.OST_LIMIT | reg.LIMITER | 7)
        assert read(a, reg.CNP_TIMER_THRD) == 100
        assert read(a, reg.CONGESTION_CTRL) == reg.OST_LIMIT | reg.LIMITER | 7
        lowered = pair.clock.now_ns
        receive_cnp(pair)
        assert read(a, per_qp(a, reg.QP_CTRL)) == reg.TIMER_RUNS
        pair.net.run(lambda: read(a, per_qp(a, reg.QP_CTRL)) == 0)
        assert 100 * 1_024 <= pair.clock.now_ns - lowered <= 100 * 1_024 + 2_000
        write(a, reg.CONGESTION_CTRL, 7)
        receive_cnp(pair)
        assert read(a, per_qp(a, reg.QP_CTRL)) == 0


def test_what_is_left_of_the_merge_period() -> None:
    """Rounded up: 1 in its last nanosecond, and never negative."""
    mark = {1: [{"match": {"direction": "rx", "opcode": "RC_*"}, "action": "mark"}]}
    with QpPair(faults=mark, settings={"congestion": CongestionSettings("none", 1, MERGE)}) as pair:
        b, nic = pair.b, pair.b.node.nic
        assert read(b, per_qp(b, reg.QP_CNP_MERGE)) == 0
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8)
        pair.a.wait()
        assert MERGE - 20 <= read(b, per_qp(b, reg.QP_CNP_MERGE)) <= MERGE
        end = nic.qps[b.qp.qp_num].cnp_merge_ns
        for now_ns, left in ((end - 1_025, 2), (end - 1_024, 1), (end - 1, 1), (end, 0), (end + 1, 0)):
            nic.now_ns = now_ns
            assert read(b, per_qp(b, reg.QP_CNP_MERGE)) == left


@pytest.mark.parametrize("offset", [0, 0x200220 + 4, 0x400001, 0x600030, reg.QP_CTRL + 0x7FF * 0x100, 0xFFFF_FFFF])
def test_what_is_no_register_reads_0(offset: int) -> None:
    with QpPair() as pair:
        assert read(pair.a, offset) == 0


def test_a_store_to_nobodys_register_is_refused() -> None:
    with QpPair() as pair:
        write(pair.a, reg.QP_CTRL + 0x7FF * 0x100, 1, cmd.ST_BAD_INDEX)
        assert pair.a.ctx.driver.command(cmd.WRITE_CFG, reg.CNP_TIMER_THRD, 0, b"").status == cmd.ST_BAD_SIZE


def test_a_masked_send_queue_waits_and_still_answers() -> None:
    with QpPair() as pair:
        a, b = pair.a, pair.b
        write(a, per_qp(a, reg.QP_CTRL), reg.SQ_ARB_MASK)
        a.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
        b.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
        assert b.wait()[0].status == e.IBV_WC_SUCCESS
        pair.run()
        assert a.poll() == []
        write(a, per_qp(a, reg.QP_CTRL), 0)
        assert a.wait()[0].status == e.IBV_WC_SUCCESS


@pytest.mark.slow
def test_requests_keep_to_the_rate_that_software_set() -> None:
    """1 MiB at 128 bytes a window is 8.4 ms, once the bucket of 64 windows is empty."""
    with QpPair(size=1 << 20) as pair:
        a = pair.a
        write(a, per_qp(a, reg.QP_RATE), 128)
        assert read(a, per_qp(a, reg.QP_RATE)) == 128
        begun = pair.clock.now_ns
        a.post_send(e.IBV_WR_RDMA_WRITE, 1 << 20)
        a.wait()
        assert pair.clock.now_ns - begun < 3_000_000  # the limiter is off
        write(a, reg.CONGESTION_CTRL, reg.LIMITER)
        begun = pair.clock.now_ns
        a.post_send(e.IBV_WR_RDMA_WRITE, 1 << 20)
        a.wait()
        on_the_wire = (1 << 20) * (1024 + 16) // 1024
        expected = (on_the_wire - 64 * 128) * 1_024 // 128
        assert expected * 0.99 <= pair.clock.now_ns - begun <= expected * 1.02


def test_dcqcn_registers_show_and_set_what_rates_are_found_by() -> None:
    settings = CongestionSettings("dcqcn")
    with QpPair(settings={"congestion": settings}) as pair:
        a = pair.a
        assert read(a, reg.DCQCN_CTRL) == 54 | 3_200 << 16 | 156_250 << 32  # 55 us, 25 Gb/s, 10 MB
        assert read(a, reg.ALPHA_TIMER) == 54
        write(a, reg.DCQCN_CTRL, 100 | 1_000 << 16 | 50 << 32 | reg.TIMER_BUSY)
        write(a, reg.ALPHA_TIMER, 0)
        assert read(a, reg.DCQCN_CTRL) == 100 | 1_000 << 16 | 50 << 32
        assert read(a, reg.ALPHA_TIMER) == 1
        dcqcn = a.node.nic.congestion.settings.dcqcn
        assert (dcqcn.timer_ns, dcqcn.line_rate, dcqcn.counter_bytes, dcqcn.alpha_ns) == (102_400, 1_000, 3_200, 1_024)
        assert settings.dcqcn.timer_ns == 55_000  # the configuration's own stays


def test_registers_of_what_a_queue_pair_found() -> None:
    with QpPair(settings={"congestion": CongestionSettings("dcqcn")}) as pair:
        a = pair.a
        found = [per_qp(a, base) for base in (reg.QP_ALPHA, reg.QP_BYTE_CNT, reg.QP_ROUNDS, reg.QP_CC_RATE)]
        assert [read(a, offset) for offset in found] == [0, 0, 0, 0]
        receive_cnp(pair)
        assert [read(a, offset) for offset in found] == [1_023, 0, 0, 1_600]
        assert read(a, reg.DCQCN_CTRL) & reg.TIMER_BUSY
        receive_cnp(pair)
        assert read(a, found[3]) == 800
        pair.clock.now_ns += 200_000  # three rounds of the timer: three times halfway back to 1600
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 6_400)
        pair.a.wait()
        alpha, counted, rounds, rate = (read(a, offset) for offset in found)
        assert 1_000 < alpha < 1_023
        assert 100 <= counted < 120
        assert rounds & 0xFF >= 3
        assert 1_500 <= rate < 1_600
        for offset in found:
            write(a, offset, 7)
        assert [read(a, offset) for offset in found] == [alpha, counted, rounds, rate]


def test_three_ways_to_control_congestion() -> None:
    """The device finds rates; software finds them and the device keeps them; software alone, told by events."""
    with QpPair(settings={"congestion": CongestionSettings("none")}) as pair:
        a, qp = pair.a, pair.a.node.nic.qps[pair.a.qp.qp_num]
        write(a, reg.CONGESTION_CTRL, MERGE | reg.HW_EN)
        receive_cnp(pair)
        assert read(a, per_qp(a, reg.QP_CC_RATE)) == 1_600
        write(a, reg.CONGESTION_CTRL, MERGE | reg.LIMITER)
        write(a, per_qp(a, reg.QP_RATE), 500)
        receive_cnp(pair)
        assert read(a, per_qp(a, reg.QP_CC_RATE)) == 0
        assert qp.paced
        assert qp.words[place(QP, "pace_rate")] == 500 << 10
        write(a, reg.CONGESTION_CTRL, MERGE)
        before = a.counters["cnps_received"]
        receive_cnp(pair)
        assert (qp.controlled, qp.paced) == (None, 0)
        assert a.counters["cnps_received"] == before + 1
        write(a, per_qp(a, reg.QP_CTRL), reg.SQ_ARB_MASK)
        assert qp.masked


def test_a_queue_pair_is_paced_until_its_rate_has_recovered() -> None:
    """Then the engine does its turns again, where there is one; the next notification begins from what was found."""
    with QpPair(settings={"congestion": CongestionSettings("dcqcn")}) as pair:
        a, qp = pair.a, pair.a.node.nic.qps[pair.a.qp.qp_num]

        def send() -> None:
            a.post_send(e.IBV_WR_RDMA_WRITE, 6_400)
            a.wait()

        send()
        assert qp.paced == 0
        receive_cnp(pair)
        assert qp.paced == 1
        send()
        assert qp.paced == 1
        pair.clock.now_ns += 20_000_000
        send()
        assert qp.paced == 0
        alpha = read(a, per_qp(a, reg.QP_ALPHA))
        assert 0 < alpha < 1_023
        receive_cnp(pair)
        assert qp.paced == 1
        assert 1_600 < read(a, per_qp(a, reg.QP_CC_RATE)) < 3_200  # by half of alpha, which is not 1 any more
        assert a.counters["event_congestion"] == 1


def test_a_program_that_says_its_queue_pair_is_paced_harms_nobody() -> None:
    """The word is in the arena of a program that runs the engine itself; there is no rate to keep."""
    with QpPair() as pair:
        qp = pair.a.node.nic.qps[pair.a.qp.qp_num]
        qp.paced = 1
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 6_400)
        pair.a.expect()
        assert qp.controlled is None
