"""Random AXI traffic at the pins of a PAXI bridge against a model of memory, over networks good and bad.

The master shows addresses and data when it likes, out of step with each other, and takes answers when it likes. Bursts
are narrow and wide, aligned or not, with holes in their strobes; some are forbidden, some leave the window, and some
reach memory that the target claims and does not have, so that its NIC refuses them and the queue pair breaks.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rnic.link.faults import NO_FAULTS, FaultRates
from rnic.paxi.axi import Address, WriteBeat, WriteResponse
from rnic.paxi.bridge import BridgeConfig
from rnic.paxi.pins import PinSlave, Sampled
from rnic.spec.axi import Burst, Resp
from rnic.testing.paxi import PaxiPair, RcPaxiPair

PAGE = 4096
PAGES = 8
CLAIMED = 10
BASE = 0x4000_0000
CYCLES = 100_000
BAD = FaultRates(drop=0.03, duplicate=0.05, reorder=0.05, delay=0.05)


def beat_at(address: Address, number: int) -> tuple[int, int]:
    """First byte of a beat and the one behind it, by the formulas of IHI 0022 A3.4.1."""
    number_bytes, burst_length = 1 << address.size, address.len + 1
    aligned = address.addr // number_bytes * number_bytes
    if address.burst == Burst.FIXED or number == 0:
        return address.addr, aligned + number_bytes
    at = aligned + number * number_bytes
    if address.burst == Burst.WRAP:
        boundary = address.addr // (number_bytes * burst_length) * (number_bytes * burst_length)
        if at >= boundary + number_bytes * burst_length:
            at -= number_bytes * burst_length
    return at, at + number_bytes


class Read(NamedTuple):
    address: Address
    resp: int
    beats: list[bytes]


class Write(NamedTuple):
    address: Address
    resp: int
    beats: list[WriteBeat]


class Traffic:
    """Makes transactions with what they must come to. ``model`` is the memory as it must be when all are answered."""

    def __init__(self, rng: random.Random, lanes: int) -> None:
        self.rng, self.lanes = rng, lanes
        self.model = bytearray(rng.randbytes(PAGES * PAGE))

    def round(self, count: int) -> tuple[list[Read], list[Write]]:
        """Reads and writes of different pages; a page is written with one ID, since IDs do not wait for each other."""
        rng = self.rng
        written = set(rng.sample(range(CLAIMED), CLAIMED // 2))
        reads, writes = [], []
        for _ in range(count):
            page = rng.randrange(CLAIMED)
            if page in written:
                writes.append(self.write(page))
            else:
                reads.append(self.read(page))
        return reads, writes

    def address(self, page: int, ident: int) -> tuple[Address, int]:
        rng = self.rng
        size = rng.randrange(self.lanes.bit_length())
        unit = 1 << size
        at = page * PAGE + rng.choice([0, rng.randrange(PAGE), rng.randrange(PAGE) & -unit])
        room = min(256, (PAGE - (at % PAGE & -unit)) // unit)
        beats = rng.randint(1, rng.choice([1, min(4, room), room]))
        found = Address(ident, BASE + at, beats - 1, size)
        kind = rng.random()
        if kind < 0.04:
            wrong = [
                found._replace(burst=3),
                found._replace(burst=Burst.WRAP, len=rng.choice([0, 2, 4, 16])),
                found._replace(burst=Burst.FIXED, len=16),
            ]
            if at % unit:
                wrong.append(found._replace(burst=Burst.WRAP, len=3))
            return rng.choice(wrong), Resp.SLVERR
        if kind < 0.06 and room < 256:
            return found._replace(len=room), Resp.SLVERR  # one beat too many for 4 KB
        if kind < 0.08:
            return found._replace(size=self.lanes.bit_length()), Resp.SLVERR
        if kind < 0.12:
            return found._replace(addr=rng.choice([0, BASE - PAGE, BASE + CLAIMED * PAGE]) + at % PAGE), Resp.DECERR
        if kind < 0.25:
            found = found._replace(burst=Burst.FIXED, len=min(found.len, 15))
        elif kind < 0.45:
            found = found._replace(burst=Burst.WRAP, len=rng.choice([1, 3, 7, 15]), addr=found.addr & -unit)
        return found, Resp.DECERR if page >= PAGES else Resp.OKAY

    def read(self, page: int) -> Read:
        address, resp = self.address(page, self.rng.randrange(4))
        beats = []
        lanes = self.lanes
        for number in range(address.len + 1):
            data = bytearray(lanes)
            at, end = beat_at(address, number)
            if resp == Resp.OKAY:
                data[at % lanes : at % lanes + end - at] = self.model[at - BASE : end - BASE]
            beats.append(bytes(data))
        return Read(address, resp, beats)

    def write(self, page: int) -> Write:
        rng, lanes = self.rng, self.lanes
        address, resp = self.address(page, page % 4)
        holes = rng.choice([0.0, 0.0, 0.0, 0.1, 0.5, 1.0])
        ends_early = rng.random() < 0.03 and address.len > 0
        beats, stores, stray = [], [], False
        count = rng.randrange(address.len) + 1 if ends_early else address.len + 1
        for number in range(count):
            at, end = beat_at(address, number)
            data = rng.randbytes(lanes)
            strobe = 0
            for place in range(at, end):
                if rng.random() >= holes:
                    strobe |= 1 << place % lanes
                    stores.append((place - BASE, data[place % lanes]))
            if rng.random() < 0.002:
                strobe |= 1 << rng.randrange(lanes)
                stray = stray or bool(strobe & ~sum(1 << place % lanes for place in range(at, min(end, at + lanes))))
                stores.extend(
                    (place - BASE, data[place % lanes]) for place in range(at, end) if strobe >> place % lanes & 1
                )
            beats.append(WriteBeat(data, strobe, number == count - 1))
        fault = resp == Resp.SLVERR
        if not fault and (ends_early or stray):
            # what is outside the window is so whatever comes with it
            resp = Resp.DECERR if not BASE <= address.addr < BASE + CLAIMED * PAGE else Resp.SLVERR
        elif resp == Resp.DECERR and not stores and BASE <= address.addr < BASE + CLAIMED * PAGE:
            resp = Resp.OKAY  # nothing to store, nothing to refuse
        if resp == Resp.OKAY:
            for place, byte in stores:
                self.model[place] = byte
        return Write(address, resp, beats)


class Master:
    """Plays transactions at the pins and checks every answer."""

    def __init__(self, slave: PinSlave, rng: random.Random, pace: float) -> None:
        self.slave, self.rng, self.pace = slave, rng, pace

    def play(self, reads: list[Read], writes: list[Write]) -> None:
        rng, pace = self.rng, self.pace
        ar = deque(read.address for read in reads)
        aw = deque(write.address for write in writes)
        w = deque(beat for write in writes for beat in write.beats)
        r_due: defaultdict[int, deque[tuple[bytes, int, bool]]] = defaultdict(deque)
        b_due: defaultdict[int, deque[int]] = defaultdict(deque)
        for read in reads:
            last = len(read.beats) - 1
            r_due[read.address.id].extend((beat, read.resp, at == last) for at, beat in enumerate(read.beats))
        for write in writes:
            b_due[write.address.id].append(write.resp)
        shown = [False, False, False]
        inside: int | None = None  # ID of a read whose beats have begun
        for _ in range(CYCLES):  # waits: in cycles
            driven = self.slave.driven
            queues: tuple[deque[Any], ...] = (ar, aw, w)
            shown = [bool(queue) and (was or rng.random() < pace) for queue, was in zip(queues, shown, strict=True)]
            read_at, write_at, beat = (queue[0] if on else None for queue, on in zip(queues, shown, strict=True))
            rready, bready = rng.random() < pace, rng.random() < pace
            if rready and driven.r is not None:
                ident, data, resp, last = driven.r
                assert inside in (None, ident), "the beats of one read stay together"
                assert (data, resp, last) == r_due[ident].popleft()
                inside = None if last else ident
            if bready and driven.b is not None:
                assert driven.b == WriteResponse(driven.b.id, b_due[driven.b.id].popleft())
            readies = (driven.arready, driven.awready, driven.wready)
            self.slave.cycle(Sampled(read_at, write_at, beat, rready, bready))
            for index, queue in enumerate(queues):
                if shown[index] and readies[index]:
                    queue.popleft()
                    shown[index] = False
            if not any(queues) and not any(r_due.values()) and not any(b_due.values()):
                return
        raise AssertionError(f"not answered in {CYCLES} cycles: {dict(r_due)} {dict(b_due)}")


def run(
    seed: int,
    width: int,
    faults: FaultRates,
    slots: int,
    pace: float,
    rounds: int = 2,
    count: int = 14,
    pair_of: Callable[..., Any] = PaxiPair,
) -> Any:
    rng = random.Random(seed)
    traffic = Traffic(rng, width // 8)
    config = BridgeConfig(data_bits=width, base=BASE, read_slots=slots, write_slots=slots, requests=rng.randint(1, 32))
    with pair_of(PAGES * PAGE, config, claimed=CLAIMED * PAGE, seed=seed, tx=faults) as pair:
        pair.memory[:] = traffic.model
        stalls = random.Random(seed)
        slave = PinSlave(pair.port, (lambda: stalls.random() < 0.3) if seed % 2 else None)
        master = Master(slave, rng, pace)
        for _ in range(rounds):
            master.play(*traffic.round(count))
            assert pair.bridge.idle
            assert pair.memory == traffic.model
    return pair


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 32),
    width=st.sampled_from([8, 16, 32, 64, 128, 256, 512, 1024]),
    faults=st.sampled_from([NO_FAULTS, BAD]),
    slots=st.integers(1, 8),
    pace=st.sampled_from([0.3, 0.8, 1.0]),
)
@example(seed=1, width=512, faults=BAD, slots=8, pace=1.0)
@example(seed=2, width=8, faults=BAD, slots=1, pace=0.3)
@example(seed=3, width=1024, faults=BAD, slots=4, pace=1.0)
def test_random_traffic(seed: int, width: int, faults: FaultRates, slots: int, pace: float) -> None:
    run(seed, width, faults, slots, pace)


@pytest.mark.slow
@pytest.mark.parametrize("faults", [NO_FAULTS, BAD], ids=["good", "bad"])
@pytest.mark.parametrize(("seed", "width"), [(1, 8), (2, 64), (3, 512), (4, 1024)])
def test_random_traffic_over_rclink(seed: int, width: int, faults: FaultRates) -> None:
    run(seed, width, faults, 4, 1.0, pair_of=RcPaxiPair)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["drop", "duplicate", "reorder", "delay", "corrupt"])
def test_each_fault_changes_nothing_but_time(kind: str) -> None:
    """The same traffic with and without: the master of :func:`run` checks every answer; only the clock differs."""
    good = run(7, 64, NO_FAULTS, 4, 1.0)
    rates: dict[str, Any] = {kind: 0.05}
    bad = run(7, 64, FaultRates(**rates), 4, 1.0)
    struck = sum(node.counters[f"fault_tx_{kind}"] for node in bad.net.nodes)
    assert struck > 0
    answers = ("paxi_reads", "paxi_writes", "paxi_slverr", "paxi_decerr", "paxi_read_bytes", "paxi_write_bytes")
    assert [good.bridge.counters[name] for name in answers] == [bad.bridge.counters[name] for name in answers]
    assert bad.net.clock.now_ns >= good.net.clock.now_ns
    assert kind != "drop" or bad.net.clock.now_ns > good.net.clock.now_ns


@pytest.mark.slow
def test_every_way_of_mending_was_used() -> None:
    """The random traffic breaks connections by refusals, by refusals whose NAK was lost, and posts others again."""
    total = {"paxi_lost": 0, "paxi_recoveries": 0, "paxi_replays": 0, "paxi_split_pieces": 0, "paxi_abandoned": 0}
    for seed in range(6):
        counters = run(seed, 64, FaultRates(drop=0.1, reorder=0.05), 8, 1.0).bridge.counters
        for name in total:
            total[name] += counters[name]
    assert total.pop("paxi_abandoned") == 0
    assert all(total.values()), total


def test_same_seed_same_run() -> None:
    runs = [run(seed, 128, BAD, 4, 0.8, 1, 8) for seed in (3, 3, 4)]
    seen = [(pair.net.clock.now_ns, pair.bridge.counters.snapshot()) for pair in runs]
    assert seen[0] == seen[1] != seen[2]
