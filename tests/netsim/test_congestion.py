"""Marks, notifications and the outstanding limit between two NICs in virtual time (004 7.3, 7.4)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from rnic.cc.settings import CongestionSettings
from rnic.spec.opcodes import CNP
from rnic.spec.psn import psn_diff
from rnic.spec.registers import IRQ_CNP
from rnic.testing import QpPair
from rnic.verbs import enums as e
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import ECT

TIMER, MERGE = 200, 49
TIMER_NS, MERGE_NS = TIMER * 1_024, MERGE * 1_024
SIZE = 64 << 10
MARK_ALL = {1: [{"match": {"direction": "rx", "opcode": "RC_*"}, "action": "mark"}]}
WIRE: dict[str, Any] = {"packet_ns": 1_000, "latency_ns": 5_000}


def settings(mode: str = "limit", **more: Any) -> dict[str, Any]:
    return {"window_packets": 16, "congestion": CongestionSettings(mode, TIMER, MERGE), **more}


class Watch:
    """Every packet that a NIC sends, as (time, opcode, PSN, packets in flight once it has left)."""

    def __init__(self, pair: QpPair, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[int, int, int, int]] = []
        self.frames: list[bytes] = []
        nic = pair.a.node.nic
        requester = nic.qps[pair.a.qp.qp_num].requester
        produce = nic.produce

        def watched(now_ns: int, budget: int = 256) -> list[TxBurst]:
            out = produce(now_ns, budget)
            for burst in out:
                data = b"".join(burst.buffers)
                for at in range(0, len(data), burst.segment):
                    psn = int.from_bytes(data[at + 9 : at + 12], "big")
                    self.sent.append((now_ns, data[at], psn, psn_diff(psn, requester.una) + 1))
            return out

        monkeypatch.setattr(nic, "produce", watched)


def sent_by(pair: QpPair, opcode: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes, Any]]:
    """What ``b`` sends of one opcode from now on, as (time, packet, flow)."""
    found: list[tuple[int, bytes, Any]] = []
    nic = pair.b.node.nic
    produce = nic.produce

    def watched(now_ns: int, budget: int = 256) -> list[TxBurst]:
        out = produce(now_ns, budget)
        for burst in out:
            data = b"".join(burst.buffers)
            if data[0] == opcode:
                found.append((now_ns, data, burst.flow))
        return out

    monkeypatch.setattr(nic, "produce", watched)
    return found


@pytest.fixture
def marked() -> Iterator[QpPair]:
    """Every packet that reaches ``b`` was marked; ``a`` keeps the limit."""
    with QpPair(faults=MARK_ALL, settings=settings(), **WIRE) as pair:
        yield pair


def receive_cnp(pair: QpPair) -> None:
    """A CNP from ``b`` reaches ``a``, in no time."""
    factory = pair.factory(pair.a)
    packet = factory("CNP", 0, becn=True, payload=bytes(16))
    burst = RxBurst(factory.flow, memoryview(packet), len(packet), len(packet), 0)
    pair.a.node.nic.receive(burst, pair.clock.now_ns)


def test_one_cnp_a_merge_period(marked: QpPair, monkeypatch: pytest.MonkeyPatch) -> None:
    cnps = sent_by(marked, CNP, monkeypatch)
    for _ in range(8):
        marked.a.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
    assert all(wc.status == e.IBV_WC_SUCCESS for wc in marked.a.wait(8))
    marked.run()
    counters = marked.b.counters
    assert counters["ecn_marked_packets"] == 8 * SIZE // 1024
    assert len(cnps) == counters["cnps_sent"] == marked.a.counters["cnps_received"]
    assert counters["cnps_sent"] + counters["cnps_merged"] == counters["ecn_marked_packets"]
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(cnps)]
    assert len(gaps) > 5
    assert min(gaps) >= MERGE_NS - 2_000  # a tag may wait a round or two for its turn
    assert max(gaps) < 2 * MERGE_NS


def test_what_a_cnp_is(marked: QpPair, monkeypatch: pytest.MonkeyPatch) -> None:
    cnps = sent_by(marked, CNP, monkeypatch)
    marked.a.post_send(e.IBV_WR_RDMA_WRITE, 8)
    marked.a.wait()
    marked.run()
    ((_, packet, flow),) = cnps
    assert len(packet) == 12 + 16 + 4
    assert packet[0] == CNP
    assert packet[4] == 0x40  # BECN alone
    assert int.from_bytes(packet[5:8], "big") == marked.a.qp.qp_num
    assert packet[8:28] == bytes(20)  # no AckReq, PSN 0, 16 reserved bytes
    assert flow.check(packet)


def test_the_tag_goes_ahead_of_data(monkeypatch: pytest.MonkeyPatch) -> None:
    with QpPair(faults=MARK_ALL, settings=settings(), **WIRE) as pair:
        nic = pair.b.node.nic
        turns: list[list[int]] = []
        produce = nic.produce

        def watched(now_ns: int, budget: int = 256) -> list[TxBurst]:
            out = produce(now_ns, budget)
            turns.append([bytes(burst.buffers[0])[0] for burst in out])
            return out

        monkeypatch.setattr(nic, "produce", watched)
        pair.b.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
        pair.a.wait()
        pair.b.wait()
    with_cnp = [turn for turn in turns if CNP in turn]
    assert any(len(turn) > 1 for turn in with_cnp)
    assert all(turn[0] == CNP for turn in with_cnp)


def test_the_limit_follows_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 from the CNP until the timer ends, 16 before and after, whatever the moment."""
    with QpPair(settings=settings(), size=1 << 20, depth=64, **WIRE) as pair:
        watch = Watch(pair, monkeypatch)
        for _ in range(12):
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
        net, start = pair.net, pair.clock.now_ns
        net.run(lambda: pair.clock.now_ns >= start + 100_000)
        down = pair.clock.now_ns
        receive_cnp(pair)
        net.run(lambda: pair.clock.now_ns >= down + TIMER_NS // 2)
        again = pair.clock.now_ns
        receive_cnp(pair)
        pair.a.wait(12)
        end = again + TIMER_NS
        before = [flight for now, _, _, flight in watch.sent if now < down]
        during = [flight for now, _, _, flight in watch.sent if down <= now < end]
        after = [flight for now, _, _, flight in watch.sent if now > end + 2_000]
    assert max(before) == 16
    assert max(during) == 8
    assert max(after) == 16
    assert len(during) > 100


def test_event_and_interrupt_once_for_each_lowering() -> None:
    with QpPair(settings=settings()) as pair:
        nic = pair.a.node.nic
        nic.globals.irq_status = 0
        receive_cnp(pair)
        receive_cnp(pair)
        assert nic.globals.irq_status & IRQ_CNP
        assert pair.a.counters["cnps_received"] == 2
        assert pair.a.counters["cnp_limits"] == pair.a.counters["event_congestion"] == 1
        event = pair.a.ctx.get_async_event()
        assert (event.event_type, event.element) == (e.RNIC_EVENT_CONGESTION, pair.a.qp)
        pair.run()
        receive_cnp(pair)
        assert pair.a.counters["cnp_limits"] == 2


def test_none_counts_and_interrupts_and_sends_on() -> None:
    with QpPair(faults=MARK_ALL, settings=settings("none"), **WIRE) as pair:
        nic = pair.a.node.nic
        nic.globals.irq_status = 0
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
        pair.a.wait()
        pair.run()
        assert pair.a.counters["cnps_received"] >= 1
        assert nic.globals.irq_status & IRQ_CNP
        assert pair.a.counters.get("cnp_limits", 0) == 0
        assert nic.qps[pair.a.qp.qp_num].requester.widest == 16


def test_a_lowered_limit_ends_by_itself_on_an_idle_queue_pair() -> None:
    with QpPair(settings=settings()) as pair:
        nic = pair.a.node.nic
        requester = nic.qps[pair.a.qp.qp_num].requester
        lowered = pair.clock.now_ns
        receive_cnp(pair)
        assert requester.window == 8
        pair.net.run(lambda: requester.window != 8)
        assert requester.window == 16
        assert TIMER_NS <= pair.clock.now_ns - lowered <= TIMER_NS + 2_000


@pytest.mark.parametrize("service", ["UC", "UD"])
def test_only_rc_is_notified(service: str) -> None:
    script = {1: [{"match": {"direction": "rx"}, "action": "mark"}]}
    with QpPair(service, faults=script, settings=settings()) as pair:
        pair.b.post_recv(2_048)
        pair.a.post_send(e.IBV_WR_SEND, 512)
        pair.b.wait()
        pair.run()
        assert pair.b.counters["fault_rx_mark"] == 1
        assert "cnps_sent" not in pair.b.counters


def test_a_marked_packet_with_a_wrong_icrc_notifies_nobody() -> None:
    script = {
        1: [
            {"match": {"direction": "rx", "opcode": "RC_WRITE_ONLY"}, "nth": 1, "action": action}
            for action in ("mark", "corrupt")
        ]
    }
    with QpPair(faults=script, settings=settings()) as pair:
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8)
        pair.a.wait()
        assert pair.b.counters["drop_bad_icrc"] == 1
        assert "ecn_marked_packets" not in pair.b.counters


def queue_of_a_slow_wire(mode: str) -> tuple[int, dict[str, int]]:
    """The longest queue in front of a slow wire that marks from 6 packets on, and ``a``'s counters."""
    with QpPair(settings=settings(mode), packet_ns=4_000, latency_ns=1_000, mark_packets=6) as pair:
        for side in (pair.a, pair.b):
            flow = side.node.nic.qps[side.qp.qp_num].flow
            assert flow is not None
            flow.tclass = ECT
        link: Any = pair.a.ctx.runtime.link
        longest = 0
        for _ in range(12):
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
        begun = pair.clock.now_ns
        done: list[Any] = []
        while len(done) < 12:
            pair.net.turn()
            done += pair.a.poll()
            if pair.clock.now_ns > begun + 500_000:
                longest = max(longest, len(link._waiting))
        return longest, pair.a.counters


def test_a_marking_wire_keeps_its_queue_short() -> None:
    free, counters = queue_of_a_slow_wire("none")
    assert counters["cnps_received"] > 0
    kept, counters = queue_of_a_slow_wire("limit")
    assert counters["marked_tx"] > 0
    assert 14 <= free <= 16
    assert 6 <= kept <= 8
