"""The assembled NIC: data path, receive checks, doorbells, events, fairness, timers, isolation."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from rnic.context.qpc import QPC
from rnic.device import Nic, NicConfig
from rnic.device.mailboxes import MGM
from rnic.device.nic import MULTICAST_QPN
from rnic.device.receiving import Receiving
from rnic.engine import use
from rnic.rings.queue_block import ARM_NEXT, QUEUE_STATE, RQ_TAIL, SQ_DOORBELL, SQ_HEAD, SQ_TAIL
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec.gids import gid_from_address
from rnic.spec.opcodes import CNP, RC, SEND_ONLY, UC, UD, WR_READ, WRITE_FIRST, WRITE_LAST, WRITE_MIDDLE, WRITE_ONLY
from rnic.spec.states import ERR, ST_RC, ST_UC, ST_UD
from rnic.spec.status import RETRY_EXC_ERR, WR_FLUSH_ERR
from rnic.trace import ListTracer
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow
from rnic.wire.packet import build, seal
from tests.unit.device.conftest import Driver, NewPair, Pair


def drops(nic: Nic) -> dict[str, int]:
    return {name: count for name, count in nic.counters.items() if name.startswith("drop")}


# ---------------------------------------------------------------------------------------- data path


@pytest.mark.parametrize("service", [ST_RC, ST_UC])
@pytest.mark.parametrize("known", [True, False])
def test_write(pair: Pair, service: int, known: bool) -> None:
    pair.wire.known_ident = known
    a, b = pair.connect(service)
    (src, src_va, lkey), (dst, dst_va, rkey) = pair.mrs
    src[:5000] = bytes(range(250)) * 20
    pair.drivers[0].arm(pair.cqs[0], ARM_NEXT)
    pair.drivers[0].write(a, src_va, 5000, lkey, dst_va + 8, rkey)
    assert pair.nics[0].has_work()
    pair.wire.run()
    assert dst[8:5008] == src[:5000]
    (entry,) = pair.poll(0)
    assert entry[1] == 0
    assert entry[6] == a.number
    assert pair.drivers[0].uar.load(a.block, SQ_HEAD) == 1
    assert pair.nics[0].next_event() == 3
    assert pair.nics[0].next_event() is None
    ((kind, number, *_),) = pair.events(0)
    assert (kind, number) == (events.COMP, pair.cqs[0].number)
    for nic in pair.nics:
        assert not drops(nic)
    assert pair.nics[1].counters["rx_packets"] == pair.nics[0].counters["tx_packets"] == 5
    assert b.number in pair.nics[1].qps


def test_long_bursts_take_the_fast_path(new_pair: NewPair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = new_pair()
    a, _ = pair.connect()
    (src, src_va, lkey), (dst, dst_va, rkey) = pair.mrs
    src[:] = random.Random(5).randbytes(len(src))
    for nic in pair.nics:
        nic.attach(Offloading())
    pair.drivers[0].ok(cmd.RTS2SQD, a.number)
    pair.drivers[0].ok(cmd.SQD2RTS, a.number)
    full: list[object] = []
    take = Receiving.take_packet
    monkeypatch.setattr(Receiving, "take_packet", lambda *args: full.append(take(*args)))
    pair.drivers[0].write(a, src_va, len(src), lkey, dst_va, rkey)
    pair.wire.run()
    assert dst == src
    assert pair.nics[1].counters["rx_packets"] == 64
    assert len(full) < 10


class Offloading:
    def max_segments(self, flow: Flow) -> int:
        return 64

    def allow_gso(self, flow: Flow) -> None:
        """Always allowed."""


def test_send_and_read(pair: Pair) -> None:
    a, b = pair.connect()
    (src, src_va, lkey), (dst, dst_va, rkey) = pair.mrs
    src[:3000] = b"s" * 3000
    dst[5000:8000] = b"r" * 3000
    pair.drivers[1].recv(b, dst_va, 4096, rkey)
    pair.drivers[0].send(a, src_va, 3000, lkey)
    pair.drivers[0].post(a, WR_READ, src_va + 4096, 3000, lkey, dst_va + 5000, rkey)
    pair.wire.run()
    assert dst[:3000] == b"s" * 3000
    assert src[4096:7096] == b"r" * 3000
    assert [entry[1] for entry in pair.poll(0)] == [0, 0]
    ((index, status, length, *_),) = pair.poll(1)
    assert (index, status, length) == (0, 0, 3000)


def test_datagrams(pair: Pair) -> None:
    a, b = (pair.drivers[side].qp(pair.pds[side], pair.cqs[side], ST_UD) for side in (0, 1))
    for side, qp in ((0, a), (1, b)):
        pair.drivers[side].to_rts(qp)
    (src, src_va, lkey), (dst, dst_va, rkey) = pair.mrs
    src[:100] = b"d" * 100
    pair.drivers[1].recv(b, dst_va, 4096, rkey)
    pair.drivers[0].send_ud(a, src_va, 100, lkey, pair.gid(1), b.number, 0x1111_1111)
    pair.drivers[0].send_ud(a, src_va, 100, lkey, pair.gid(1), b.number, 0x2222)
    pair.wire.run()
    assert dst[40:140] == b"d" * 100
    ((_, status, length, _, source, *_),) = pair.poll(1)
    assert (status, length, source) == (0, 140, a.number)
    assert drops(pair.nics[1]) == {"drop_bad_qkey": 1}


def test_multicast_reaches_every_member(new_pair: NewPair) -> None:
    pair = new_pair()
    group = gid_from_address(bytes((239, 9, 9, 9)))
    sender = pair.drivers[0].qp(pair.pds[0], pair.cqs[0], ST_UD)
    pair.drivers[0].to_rts(sender)
    members = [pair.drivers[1].qp(pair.pds[1], pair.cqs[1], ST_UD) for _ in range(3)]
    for qp in members[:2]:
        pair.drivers[1].to_rts(qp)
    _, dst_va, rkey = pair.mrs[1]
    for qp in members:
        pair.drivers[1].recv(qp, dst_va, 4096, rkey)
    values = {"mgid": int.from_bytes(group, "big"), "count": 3}
    values |= {f"qpn{index}": qp.number for index, qp in enumerate(members)}
    pair.drivers[1].ok(cmd.WRITE_MGM, 0, 0, MGM.pack(values))
    _, src_va, lkey = pair.mrs[0]
    pair.drivers[0].send_ud(sender, src_va, 64, lkey, group, MULTICAST_QPN, 0x1111_1111)
    pair.wire.run()
    assert sorted(entry[6] for entry in pair.poll(1)) == [qp.number for qp in members[:2]]
    assert drops(pair.nics[1]) == {"drop_qp_state": 1}


# ----------------------------------------------------------------------------------- receive checks


@pytest.fixture
def target(new_pair: NewPair) -> Pair:
    pair = new_pair()
    pair.qps = pair.connect()
    pair.wire.run()
    return pair


def deliver(pair: Pair, frame: bytes | bytearray, *, good: bool = True, src: int = 0, index: int = 1) -> None:
    """Hand one packet to NIC 1 as if its peer had sent it."""
    address = pair.nics[0].config.address[:-1] + bytes((src or 1,))
    flow = Flow(address, pair.nics[1].config.address, 4791)
    data = bytearray(seal(frame, flow))
    if not good:
        data[-1] ^= 1
    pair.nics[index].receive(RxBurst(flow, memoryview(data), len(data), len(data), 0), 5_000)


def send(pair: Pair, **fields: Any) -> bytearray:
    values: dict[str, Any] = {"dqpn": pair.qps[1].number, "psn": 7, "payload": b"x" * 8} | fields
    return build(values.pop("opcode", RC | SEND_ONLY), **values)


@pytest.mark.parametrize(
    ("reason", "fields", "how"),
    [
        ("drop_bad_icrc", {}, {"good": False}),
        ("drop_unknown_qp", {"dqpn": 63}, {}),
        ("drop_wrong_service", {"dqpn": 1}, {}),
        ("drop_unknown_qp", {"dqpn": MULTICAST_QPN}, {}),
        ("drop_wrong_service", {"opcode": UC | SEND_ONLY}, {}),
        ("drop_wrong_service", {"opcode": UD | SEND_ONLY}, {}),
        ("drop_wrong_address", {}, {"src": 9}),
        ("drop_bad_pkey", {"pkey": 0xFFFE}, {}),
        ("drop_bad_pkey", {"pkey": 0x0000}, {}),
    ],
)
def test_drops(target: Pair, reason: str, fields: dict[str, int], how: dict[str, Any]) -> None:
    nic = target.nics[1]
    before = nic.qps[target.qps[1].number].ctx.store()
    deliver(target, send(target, **fields), **how)
    assert drops(nic) == {reason: 1}
    assert nic.counters["rx_packets"] == 1
    assert nic.qps[target.qps[1].number].ctx.store() == before
    assert not nic.has_work()


@pytest.fixture(
    params=[
        "reference",
        pytest.param("engine", marks=pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")),
    ]
)
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes packets on devices that are made from now on."""
    monkeypatch.setattr(use, "ENGINE", use.COMPILED if request.param == "engine" else None)


@pytest.mark.parametrize("pad", [1, 2, 3])
def test_a_pad_of_what_has_no_payload_is_dropped(executor: None, target: Pair, pad: int) -> None:
    """It would begin in front of the payload: nobody is refused for it, since who sent it is not known."""
    nic, number = target.nics[1], target.qps[1].number
    psn = nic.qps[number].ctx.expected_psn
    frame = send(target, opcode=RC | SEND_ONLY, psn=psn, payload=b"")
    frame[1] |= pad << 4
    deliver(target, frame)
    assert drops(nic) == {"drop_too_short": 1}
    assert nic.qps[number].ctx.expected_psn == psn
    assert not nic.has_work()


@pytest.mark.parametrize("size", [8, 7, 6, 5])
def test_a_packet_is_whole_words(executor: None, target: Pair, size: int) -> None:
    """A payload is padded to whole words and its pad count says how far; nothing else may be short of one."""
    nic = target.nics[1]
    dst, dst_va, rkey = target.mrs[1]
    psn = nic.qps[target.qps[1].number].ctx.expected_psn
    fields = {"opcode": RC | WRITE_ONLY, "psn": psn, "va": dst_va, "rkey": rkey, "dma_length": size}
    frame = send(target, **fields)
    deliver(target, frame[: len(frame) - 8 + size])
    whole = size == 8
    assert drops(nic) == ({} if whole else {"drop_bad_length": 1})
    assert dst[:8] == (b"x" * 8 if whole else bytes(8))


@pytest.mark.parametrize(
    ("reason", "opcode", "pkey"),
    [("drop_wrong_service", RC | SEND_ONLY, 0xFFFF), ("drop_bad_pkey", UD | SEND_ONLY, 0x8001)],
)
def test_multicast_drops(target: Pair, reason: str, opcode: int, pkey: int) -> None:
    driver, nic = target.drivers[1], target.nics[1]
    qp = driver.qp(target.pds[1], target.cqs[1], ST_UD)
    driver.to_rts(qp)
    nic.resources.groups.set(gid_from_address(nic.config.address), driver.uar, (qp.number,))
    deliver(target, send(target, opcode=opcode, dqpn=MULTICAST_QPN, pkey=pkey, qkey=0x1111_1111))
    assert drops(nic) == {reason: 1}


def test_what_no_parser_takes(target: Pair) -> None:
    frame = send(target)
    frame[0] = 0x4A  # reliable datagram
    deliver(target, frame)
    frame[0], frame[1] = RC | SEND_ONLY, 0x01
    deliver(target, frame)
    assert drops(target.nics[1]) == {"drop_bad_opcode": 1, "drop_bad_tver": 1}


def test_limited_members_hear_full_ones(target: Pair) -> None:
    deliver(target, send(target, pkey=0x7FFF))
    assert drops(target.nics[1]) == {}
    target.nics[1].qps[target.qps[1].number].pkey = 0x7FFF
    deliver(target, send(target, pkey=0x7FFF))
    target.nics[1].qps[target.qps[1].number].pkey = 0x7FFE
    deliver(target, send(target, pkey=0x7FFF))
    assert drops(target.nics[1]) == {"drop_bad_pkey": 1}


def test_queue_pair_that_cannot_receive(target: Pair) -> None:
    target.drivers[1].ok(cmd.TOERR, target.qps[1].number)
    deliver(target, send(target))
    assert drops(target.nics[1]) == {"drop_qp_state": 1}


def test_congestion_notification(target: Pair) -> None:
    deliver(target, build(CNP, dqpn=target.qps[1].number, psn=0, payload=bytes(16)))
    assert target.nics[1].counters["cnps_received"] == 1
    assert drops(target.nics[1]) == {}


def test_short_and_odd_bursts(target: Pair) -> None:
    nic = target.nics[1]
    flow = Flow(target.nics[0].config.address, nic.config.address, 4791)
    for size in range(40):
        for segment in (0, 1, 7, 16, size, size + 1, -3):
            for ident in (None, 0, 65_535):
                nic.receive(RxBurst(flow, memoryview(bytes(size)), segment, size, ident), 1)
    assert set(drops(nic)) == {"drop_too_short", "drop_bad_icrc", "drop_bad_length"}
    nic.receive(RxBurst(flow, memoryview(bytes(60_000)), 60_000, 60_000), 1)
    assert drops(nic)["drop_too_long"] == 1


def test_random_bytes_and_mangled_packets(target: Pair) -> None:
    rng = random.Random(11)
    nic = target.nics[1]
    flow = Flow(target.nics[0].config.address, nic.config.address, 4791)
    for _ in range(500):
        data = bytearray(rng.randbytes(rng.randrange(16, 120)))
        if rng.random() < 0.7:  # a right ICRC around wrong fields
            data[5:8] = target.qps[1].number.to_bytes(3, "big")
            data = bytearray(seal(bytes(data[:-4]), flow))
        nic.receive(RxBurst(flow, memoryview(data), rng.choice((len(data), 20, 64)), len(data), 0), 1)
    nic.produce(2)


# ---------------------------------------------------------------------------------------- doorbells


def test_tail_beyond_the_ring_fails_that_queue_pair_alone(new_pair: NewPair) -> None:
    pair = new_pair()
    a, _ = pair.connect()
    other, _ = pair.connect()
    driver = pair.drivers[0]
    driver.map_events(pair.eqs[0], events.WQ_CATAS_ERROR)
    for tail in (16, 0xFFFF_FFFF):
        driver.uar.store(a.block, SQ_TAIL, tail)
        pair.wire.run()
    assert pair.nics[0].qps[a.number].ctx.state == ERR
    assert driver.uar.load(a.block, QUEUE_STATE) == ERR
    assert [entry[:2] for entry in pair.events(0)] == [(events.WQ_CATAS_ERROR, a.number)]
    (_, src_va, lkey), (_, dst_va, rkey) = pair.mrs
    driver.write(other, src_va, 64, lkey, dst_va, rkey)
    pair.wire.run()
    assert [entry[1] for entry in pair.poll(0)] == [0]


def test_posting_to_a_failed_queue_pair_flushes(target: Pair) -> None:
    driver, (a, _) = target.drivers[0], target.qps
    driver.ok(cmd.TOERR, a.number)
    _, va, lkey = target.mrs[0]
    driver.recv(a, va, 8, lkey)
    driver.send(a, va, 8, lkey)
    target.wire.run()
    driver.recv(a, va, 8, lkey)
    target.wire.run()
    entries = target.poll(0)
    assert [entry[1] & 0xFF for entry in entries] == [WR_FLUSH_ERR] * 3


def test_rings_without_news_cost_no_turn(target: Pair) -> None:
    driver, (a, _) = target.drivers[0], target.qps
    driver.uar.store(a.block, SQ_DOORBELL, 1)
    driver.uar.store(a.block, RQ_TAIL, 1)
    assert target.nics[0].has_work()
    assert target.nics[0].produce(1) == []
    assert not target.nics[0].has_work()


def test_a_moved_pointer_is_turns_until_both_meet(new_pair: NewPair) -> None:
    """004 7.3, QP manager: a moved pointer asks for a turn, and each turn for the next until there is nothing left."""
    pair = new_pair()
    a, _ = pair.connect()
    (_, src_va, lkey), (_, dst_va, rkey) = pair.mrs
    nic, load = pair.nics[0], pair.drivers[0].uar.load
    pair.wire.run()
    assert not nic.has_work()
    for number in range(10):
        pair.drivers[0].write(a, src_va + 300 * number, 300, lkey, dst_va + 300 * number, rkey)
    turns = []
    while nic.has_work():
        bursts = nic.produce(pair.wire.now, budget=1)
        turns.append(sum(burst.count for burst in bursts))
        for burst in bursts:
            data = memoryview(b"".join(burst.buffers))
            flow = burst.flow.reverse().reverse()
            pair.nics[1].receive(RxBurst(flow, data, burst.segment, burst.length, 0), pair.wire.now)
    assert turns in ([1] * 10, [1] * 10 + [0])  # the last may have found both pointers equal
    pair.wire.run()
    assert load(a.block, SQ_HEAD) == load(a.block, SQ_TAIL) == 10
    assert [entry[1] & 0xFF for entry in pair.poll(0)] == [0] * 10


def test_doorbell_of_a_vanished_queue(target: Pair) -> None:
    driver, (a, _) = target.drivers[0], target.qps
    driver.uar.store(a.block, SQ_TAIL, 1)
    driver.ok(cmd.ERR2RST, a.number)
    assert target.nics[0].produce(1) == []
    assert not target.nics[0].has_work()


def test_scheduled_queue_pair_vanishes(target: Pair) -> None:
    a, _ = target.qps
    nic = target.nics[0]
    nic.schedule(nic.qps[a.number])
    target.drivers[0].ok(cmd.ERR2RST, a.number)
    assert not nic.has_work()
    assert nic.produce(1) == []


# ------------------------------------------------------------------------------------ turns, budget


def test_turns_are_fair_and_bounded(new_pair: NewPair) -> None:
    pair = new_pair(turn_bytes=4096)
    qps = [pair.connect(ST_UC)[0] for _ in range(3)]
    (_, src_va, lkey), (_, dst_va, rkey) = pair.mrs
    for qp, count, length in zip(qps, (1, 4, 12), (60_000, 15_000, 5_000), strict=True):
        for _ in range(count):
            pair.drivers[0].write(qp, src_va, length, lkey, dst_va, rkey)
    sent: Counter[int] = Counter()
    nic = pair.nics[0]
    while min(sent[qp.number] for qp in qps) < 50_000:
        bursts = nic.produce(1, budget=12)
        assert sum(burst.count for burst in bursts) <= 12
        for burst in bursts:
            data = b"".join(burst.buffers)
            for at in range(0, len(data), burst.segment):
                sent[int.from_bytes(data[at + 5 : at + 8], "big")] += min(burst.segment, len(data) - at)
        assert max(sent.values()) - min(sent[number] for number in sent) <= 2 * (4096 + 1040)


def test_short_messages_that_a_turn_cuts_go_on_by_themselves(new_pair: NewPair) -> None:
    """UC: no ACK comes that would set them going again."""
    pair = new_pair(turn_bytes=256)
    qps = [pair.connect(ST_UC)[0] for _ in range(2)]
    (_, src_va, lkey), (_, dst_va, rkey) = pair.mrs
    for qp in qps:
        for _ in range(12):
            pair.drivers[0].write(qp, src_va, 64, lkey, dst_va, rkey)
    assert sum(burst.count for _ in range(30) for burst in pair.nics[0].produce(1)) == 24


# ------------------------------------------------------------------------------------------- timers


def test_peer_that_never_answers(target: Pair) -> None:
    a, _ = target.qps
    (_, src_va, lkey), (_, dst_va, rkey) = target.mrs
    nic = target.nics[0]
    target.wire.drop = lambda data: True
    assert nic.next_deadline_ns() is None
    target.drivers[0].write(a, src_va, 64, lkey, dst_va, rkey)
    target.drivers[0].write(a, src_va, 64, lkey, dst_va, rkey)
    target.wire.run()
    for _ in range(100_000):  # waits: in steps of simulated time
        deadline = nic.next_deadline_ns()
        if deadline is None:
            break
        assert deadline > target.wire.now
        target.wire.skip(deadline - target.wire.now)
    assert [entry[1] & 0xFF for entry in target.poll(0)] == [RETRY_EXC_ERR, WR_FLUSH_ERR]
    assert nic.qps[a.number].ctx.state == ERR
    assert target.drivers[0].uar.load(a.block, QUEUE_STATE) == ERR


def test_destroyed_queue_pairs_leave_no_deadline(target: Pair) -> None:
    a, _ = target.qps
    (_, src_va, lkey), (_, dst_va, rkey) = target.mrs
    target.wire.drop = lambda data: True
    target.drivers[0].write(a, src_va, 64, lkey, dst_va, rkey)
    target.wire.run()
    assert target.nics[0].next_deadline_ns() is not None
    target.drivers[0].ok(cmd.ERR2RST, a.number)
    assert target.nics[0].next_deadline_ns() is None
    target.wire.skip(10_000_000_000)


# ------------------------------------------------------------------------------------------- events


def test_access_error_reaches_the_owner_only(new_pair: NewPair, new_driver: type[Driver]) -> None:
    pair = new_pair()
    a, b = pair.connect()
    stranger = new_driver(pair.nics[1])
    strange_eq = stranger.eq(vector=9)
    for driver, eq in ((pair.drivers[1], pair.eqs[1]), (stranger, strange_eq)):
        driver.map_events(eq, events.WQ_ACCESS_ERROR, events.COMM_EST)
    (_, src_va, lkey), (_, dst_va, _) = pair.mrs
    pair.drivers[0].write(a, src_va, 64, lkey, dst_va, 0xBAD)
    pair.wire.run()
    assert [entry[:2] for entry in pair.events(1)] == [(events.WQ_ACCESS_ERROR, b.number)]
    assert stranger.poll(strange_eq) == []
    assert pair.nics[1].next_event() == 3
    assert pair.nics[1].next_event() is None
    assert pair.nics[1].counters["event_wq_access_error"] == 1


def test_events_of_nobody(nic: Nic) -> None:
    nic.event(events.WQ_CATAS_ERROR, 20)
    nic.event(events.CQ_ERROR, 1)
    nic.event(events.SRQ_LIMIT, 1)
    nic.event(events.SQ_DRAINED, 20)
    assert nic.next_event() is None


def test_communication_established(new_pair: NewPair) -> None:
    pair = new_pair()
    a, b = (d.qp(pd, cq) for d, pd, cq in zip(pair.drivers, pair.pds, pair.cqs, strict=True))
    pair.drivers[0].to_rts(a, pair.gid(1), b.number)
    pair.drivers[1].ok(cmd.INIT2RTR, b.number, 0, QPC.pack(pair.drivers[1].rtr_fields(ST_RC, pair.gid(0), a.number)))
    pair.drivers[1].map_events(pair.eqs[1], events.COMM_EST)
    (_, src_va, lkey), (_, dst_va, rkey) = pair.mrs
    pair.drivers[0].write(a, src_va, 8, lkey, dst_va, rkey)
    pair.wire.run()
    assert [entry[:2] for entry in pair.events(1)] == [(events.COMM_EST, b.number)]


def test_one_vector_waits_once(new_pair: NewPair) -> None:
    pair = new_pair()
    eq = pair.nics[0].resources.eqs[pair.eqs[0].number]
    for number in range(5):
        eq.report(events.COMP, number)
    assert pair.nics[0].next_event() == 3
    assert pair.nics[0].next_event() is None
    assert len(pair.events(0)) == 5


# -------------------------------------------------------------------------------------------- other


def test_srq_serves_many_queue_pairs(new_pair: NewPair) -> None:
    pair = new_pair()
    driver = pair.drivers[1]
    srq = driver.srq(pair.pds[1])
    pairs = []
    for _ in range(3):
        a = pair.drivers[0].qp(pair.pds[0], pair.cqs[0])
        b = driver.qp(pair.pds[1], pair.cqs[1], srq=srq)
        pair.drivers[0].to_rts(a, pair.gid(1), b.number)
        driver.to_rts(b, pair.gid(0), a.number)
        pairs.append((a, b))
    (_, src_va, lkey), (_, dst_va, rkey) = pair.mrs
    for index in range(6):
        driver.recv(srq, dst_va + 64 * index, 64, rkey)
    for a, _ in pairs * 2:
        pair.drivers[0].send(a, src_va, 32, lkey)
        pair.wire.run()
    got = [(entry[0], entry[6]) for entry in pair.poll(1)]
    assert got == list(enumerate(b.number for _, b in pairs * 2))


def test_tracer_sees_commands_and_doorbells(new_driver: type[Driver]) -> None:
    tracer = ListTracer()
    nic = Nic(NicConfig(bytes((10, 0, 0, 1))), rng=random.Random(1), tracer=tracer)
    driver = new_driver(nic)
    pd, cq = driver.alloc(cmd.RES_PD), driver.cq(driver.eq())
    qp = driver.qp(pd, cq)
    driver.uar.store(qp.block, SQ_TAIL, 1)
    nic.produce(5)
    assert tracer.of("command")[0].fields == {"op": cmd.ALLOC_RES, "modifier": cmd.RES_PD, "status": 0}
    (rung,) = tracer.of("doorbell")
    assert (rung.qpn, rung.fields, rung.now_ns) == (qp.number, {"tail": 1}, 5)


def test_same_seed_same_keys(new_pair: NewPair) -> None:
    assert new_pair().mrs[0][2] == new_pair().mrs[0][2]


def test_repr(nic: Nic) -> None:
    assert repr(nic) == "<Nic rnic0 at 10.0.0.1 port 4791, 0 queue pairs>"


@pytest.mark.parametrize("way", ["packets", "runs", "duplicates"])
def test_whatever_is_taken_teaches_what_idents_a_peer_sends(new_pair: NewPair, way: str) -> None:
    """A peer that sends ident 0 alone, over a link that shows none, is believed no other: on every path inwards."""
    pair = new_pair()
    _, b = pair.connect()
    nic, (_, va, key) = pair.nics[1], pair.mrs[1]
    out = nic.qps[b.number].flow
    assert out is not None
    flow = out.reverse()
    psn = 7
    reth = {"va": va, "rkey": key}

    def give(*frames: bytes) -> None:
        data = memoryview(b"".join(frames))
        nic.receive(RxBurst(flow, data, len(frames[0]), len(data), None), 5_000)

    def frame(opcode: int, psn: int, ident: int = 0, **fields: Any) -> bytes:
        return seal(build(RC | opcode, dqpn=b.number, psn=psn, **fields), flow, ident)

    for _ in range(20):
        if way == "runs":
            length = 62 * 1024
            frames = [frame(WRITE_FIRST, psn, dma_length=length, payload=bytes(1024), **reth)]
            frames += [frame(WRITE_MIDDLE, psn + 1 + at, at, payload=bytes(1024)) for at in range(60)]
            frames.append(frame(WRITE_LAST, psn + 61, payload=bytes(1024)))
            give(frames[0])
            give(*frames[1:61])
            give(frames[61])
            psn += 62
        else:
            for _ in range(10):
                if way == "packets":
                    give(frame(WRITE_ONLY, psn, dma_length=8, payload=bytes(8), **reth))
                    psn += 1
                else:
                    give(frame(SEND_ONLY, 6, payload=bytes(8)))
    assert nic.counters["drop_bad_icrc"] == 0
    assert nic.qps[b.number].ctx.expected_psn == psn
    for number, ident in enumerate(range(64, 65_536, 6_007)):
        give(frame(WRITE_ONLY, psn, ident, dma_length=8, payload=b"forgery%d" % number, **reth))
        assert nic.counters["held_ident"] == number + 1
        give(frame(WRITE_ONLY, psn - 1, dma_length=8, payload=bytes(8), **reth))
    assert b"forgery" not in pair.mrs[1][0]
    assert nic.qps[b.number].ctx.expected_psn == psn
