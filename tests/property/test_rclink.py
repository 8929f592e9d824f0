"""RC Link against a model: a random walk over QPs of two endpoints, and bytes that nobody meant as packets."""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.link.faults import FaultRates
from rnic.rclink import Path, RcLinkConfig, RcLinkEndpoint, Recovery, expect, set_up
from rnic.rclink import registers as r
from rnic.rclink.drops import RcLinkDrop
from rnic.rclink.header import Rh
from rnic.rclink.numbers import psn_add, psn_diff
from rnic.rclink.packet import RcLinkPacket, build, parse, seal
from rnic.rclink.slots import SlotState
from rnic.testing import RcLinkNet
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow

ME, PEER = b"\x0a\0\0\x01", b"\x0a\0\0\x02"
QPS = 6


def check(endpoint: RcLinkEndpoint) -> None:
    """What holds of an endpoint at any time."""
    held = 0
    for qp in endpoint.qps:
        slots = [*qp.unacked, *qp.waiting]
        held += len(slots)
        assert all(slot.state is SlotState.WAIT_ACK for slot in qp.unacked)
        assert all(slot.state is SlotState.WAIT_GRANT for slot in list(qp.waiting)[1:])
        if qp.waiting:
            assert qp.waiting[0].state in (SlotState.WAIT_GRANT, SlotState.WAIT_CRD)
        # slots hold consecutive PSNs, from the oldest without an ACK to the one before the next to be given
        assert [slot.psn for slot in slots] == [psn_add(qp.expect_resp, n) for n in range(len(slots))]
        assert qp.stopped or not qp.slots or psn_add(qp.expect_resp, len(slots)) == qp.tx_epsn
        assert [slot.serial for slot in slots] == sorted(slot.serial for slot in slots)
        assert psn_diff(qp.expect_resp, qp.max_fw_psn) <= 1
        assert qp.retry_count <= 15
        assert qp.rnr_count <= 15
    assert endpoint.sender.free + held == endpoint.config.ost
    for bank, heap in enumerate(endpoint.sender._banks):
        assert len(heap) <= 4 * len(endpoint.qps) + 1, f"bank {bank} grows"
    assert endpoint.counters["internal_errors"] == 0


moves = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, QPS - 1), st.integers(1, 300)),
        st.tuples(st.just("speed"), st.integers(0, QPS - 1), st.sampled_from([200, 1_000, 1 << 21])),
        st.tuples(st.just("time"), st.sampled_from([1_000, 50_000, 1_200_000]), st.just(0)),
        st.tuples(st.just("hold"), st.integers(0, 1), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.slow
@given(moves, st.integers(0, 1_000), st.sampled_from([0.0, 0.05, 0.25]), st.booleans())
def test_whatever_is_sent_arrives_once_and_in_order(
    script: list[tuple[str, int, int]], seed: int, rate: float, bank_rr: bool
) -> None:
    """Any traffic over any QPs, any rates, any pauses of the receiver, over a network with every kind of fault."""
    faults = FaultRates(drop=rate, corrupt=rate, duplicate=rate, delay=rate, reorder=rate, delay_ns=(1_000, 90_000))
    settings = {"qp_num": QPS, "ost": 24, "rx_packets": 4, "bank_rr": bank_rr, "cnp_halves": True}
    net = RcLinkNet(seed=seed, tx=faults, settings=settings)
    one, two = (port.endpoint for port in net.ports)
    for qpid in range(QPS):
        net.connect(0, qpid, 1, qpid, psn=4_090 + qpid & 0xFFF, remote_psn=qpid)
    rng = random.Random(seed)
    wanted: list[deque[bytes]] = [deque() for _ in range(QPS)]
    acknowledged: Counter[int] = Counter()
    sent: Counter[int] = Counter()
    holding = False

    def take() -> None:
        while not holding and (received := two.recv()) is not None:
            assert received.payload == wanted[received.qpid].popleft()
        while (done := one.next_sent()) is not None:
            assert done.ok
            assert done.tag == acknowledged[done.qpid], "completions in order"
            acknowledged[done.qpid] += 1

    for what, value, size in script:
        if what == "send" and one.free_slots:
            payload = rng.randbytes(size)
            one.send(value, payload, fack=rng.random() < 0.2, tag=sent[value])
            sent[value] += 1
            wanted[value].append(payload)
        elif what == "speed":
            one.write(r.QP_ID_SET, value)
            one.write(r.TX_SPEED, size)
        elif what == "hold":
            holding = bool(value)
        elif what == "time":
            net.run_for(value)
        check(one)
        check(two)
        take()
    holding = False

    def over() -> bool:
        take()
        check(one)
        return not any(wanted) and acknowledged == sent and one.free_slots == 24

    assert net.run(over)
    assert two.free_slots == 24


@given(st.integers(0, 1_000), st.integers(1, 40), st.integers(0, 4_095))
def test_recovery_after_an_outage(seed: int, count: int, psn: int) -> None:
    """The link is dead until the QP stops; recovery at psn + 1 goes on, and nothing old is taken for new."""
    net = RcLinkNet(seed=seed, settings={"qp_num": 4, "retry_limit": 2, "retry_timer_ns": 100_000})
    one, two = (port.endpoint for port in net.ports)
    net.connect(0, 1, 1, 2, psn=psn, remote_psn=7)
    dead = net.fabric
    link = net.ports[1].link.inner  # type: ignore[attr-defined]
    dead.detach(link)
    for number in range(count):
        one.send(1, bytes([number]), tag=number)
    assert net.run(lambda: one.interrupt_line)
    assert one.next_interrupt() == (2, 1)
    dead._links[link.address, link.port] = link
    recovery = Recovery(one, 1, net.path(1, 2))
    while (when := recovery.advance(net.clock.now_ns)) is not None:
        net.run_for(when - net.clock.now_ns)
    assert recovery.psn == psn + count + 1 & 0xFFF
    assert [done.ok for done in iter(one.next_sent, None)] == [False] * count
    two.send(2, b"meanwhile")
    expect(two, 2, recovery.psn)
    one.send(1, b"again")
    net.run()
    assert [received.payload for received in iter(two.recv, None)] == [b"again"]
    assert [received.payload for received in iter(one.recv, None)] == [b"meanwhile"]
    check(one)
    check(two)


def endpoint(**settings: Any) -> RcLinkEndpoint:
    one = RcLinkEndpoint(RcLinkConfig(qp_num=8, **settings), lambda dst, port, sport: Flow(ME, dst, 4793, port))
    for qpid in range(6):
        set_up(one, qpid, Path(PEER, qpid, psn=10, remote_psn=20))
    return one


@given(st.binary(max_size=200), st.booleans())
def test_parse_takes_any_bytes(data: bytes, with_icrc: bool) -> None:
    packet = parse(memoryview(data), with_icrc)
    if isinstance(packet, RcLinkPacket):
        size = len(packet.payload)
        assert (size == 0) == (packet.rh.opcode != 0)
        assert 8 + size + packet.rh.pad + 4 * with_icrc == len(data)
    else:
        assert packet in RcLinkDrop


fields = st.fixed_dictionaries(
    {
        "opcode": st.integers(0, 3),
        "psn": st.one_of(st.integers(0, 40), st.integers(0, 4_095)),
        "dest_qp": st.one_of(st.integers(0, 8), st.integers(0, 8_191)),
        "len_syndrome": st.one_of(st.sampled_from([0x1F, 0x20, 0x3F, 0x60]), st.integers(0, 127)),
        "pkey": st.sampled_from([0xFF, 0]),
        "fack": st.integers(0, 1),
        "pad": st.integers(0, 3),
        "reserved": st.integers(0, 3),
        "ts_en": st.integers(0, 1),
        "timestamp": st.integers(0, 0xFFFF),
    }
)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(fields, st.binary(max_size=150), st.sampled_from([PEER, ME]), st.integers(0, 3), st.booleans()),
        max_size=60,
    )
)
def test_hostile_packets(packets: list[tuple[dict[str, int], bytes, bytes, int, bool]]) -> None:
    """Packets with right ICRCs and any fields, against QPs at work: bounded, counted, no more."""
    one = endpoint(ost=16, rx_packets=8)
    now = 0
    for values, payload, src, ecn, work in packets:
        flow = Flow(src, ME, 4793, 4793)
        rh = Rh(**values)
        frame = build(rh, payload) if work else rh.pack() + payload
        data = seal(frame, flow)
        before = sum(count for name, count in one.counters.items() if name.startswith("drop_"))
        one.receive(RxBurst(flow, memoryview(data), len(data), len(data), 0, tclass=ecn), now)
        after = sum(count for name, count in one.counters.items() if name.startswith("drop_"))
        assert after - before <= 1
        if work and one.free_slots and not one.qps[rh.dest_qp % 6].stopped:
            one.send(rh.dest_qp % 6, b"mine")
        now += 3_000
        one.handle_timers(now)
        assert len(one.produce(now, 4)) <= 4
        check(one)
        assert len(one._receiver.inbox) <= 8
    assert one.counters["internal_errors"] == 0


@given(st.lists(st.binary(min_size=0, max_size=60), max_size=30), st.integers(1, 60))
def test_garbage_in_bursts(chunks: list[bytes], segment: int) -> None:
    one = endpoint()
    for chunk in chunks:
        flow = Flow(PEER, ME, 4793, 4793)
        one.receive(RxBurst(flow, memoryview(chunk), segment, len(chunk)), 0)
    check(one)
    assert one.recv() is None


def test_a_fault_of_ours_costs_one_qp(monkeypatch: pytest.MonkeyPatch) -> None:
    one = endpoint()
    flow = Flow(PEER, ME, 4793, 4793)

    def arrive(qpid: int) -> None:
        data = seal(build(Rh(psn=20, pkey=0xFF, dest_qp=qpid), b"x"), flow)
        one.receive(RxBurst(flow, memoryview(data), len(data), len(data), 0), 0)

    with monkeypatch.context() as patch:
        patch.setattr(one._receiver, "take", lambda *_: 1 // 0)
        arrive(3)
    arrive(4)
    assert one.counters["internal_errors"] == 1
    assert one.next_interrupt() == (2, 3)
    assert [qp.stopped for qp in one.qps[:6]] == [False, False, False, True, False, False]
    assert one.recv() is not None
