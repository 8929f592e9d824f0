"""The judge finds nothing in our own traffic, however bad the network was that it was recorded on."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable

import pytest

from rnic.judge import Finding, Judge
from rnic.link.faults import FaultRates
from rnic.link.pcap import CapturedPacket, read_capture
from rnic.link.recorder import Recorder
from rnic.testing import QpPair
from rnic.verbs import enums as e

FAULTS = {
    "none": FaultRates(),
    "drop": FaultRates(drop=0.03),
    "duplicate": FaultRates(duplicate=0.05),
    "reorder": FaultRates(reorder=0.05),
    "delay": FaultRates(delay=0.03),
    "corrupt": FaultRates(corrupt=0.03),
    "mixed": FaultRates(drop=0.01, duplicate=0.02, reorder=0.02, delay=0.01, corrupt=0.01, mark=0.01),
}
RECEIVED = (e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM)
ATOMIC = (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP)
OPERATIONS = (*RECEIVED, *ATOMIC, e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ)
SIZES = (0, 1, 300, 1_024, 1_025, 5_000, 20_000)
NEAR_THE_WRAP = {"sq_psn": 0xFFFF00, "rq_psn": 0xFFFF00}


def record(faults: FaultRates, seed: int, count: int, *, at_the_nic: bool) -> io.BytesIO:
    """What passes ``a``'s end of the wire, or ``a`` itself, while both sides do ``count`` operations."""
    rng = random.Random(seed)
    capture = io.BytesIO()
    with QpPair(tx=faults, seed=seed, attributes=NEAR_THE_WRAP) as pair:
        if at_the_nic:
            runtime = pair.a.ctx.runtime
            runtime.link = Recorder(runtime.link, capture, clock=pair.clock)
        else:
            pair.a.node.link.inner = Recorder(pair.a.node.link.inner, capture, clock=pair.clock)
        for _ in range(count):
            operation = rng.choice(OPERATIONS)
            side = rng.choice((pair.a, pair.b))
            late = operation in RECEIVED and rng.random() < 0.2
            if operation in RECEIVED and not late:
                side.peer.post_recv(1 << 16)
            side.post_send(operation, 8 if operation in ATOMIC else rng.choice(SIZES), remote=64)
            if late:
                for _ in range(30):
                    pair.net.turn()
                side.peer.post_recv(1 << 16)
            assert side.wait()[0].status == e.IBV_WC_SUCCESS
            side.peer.poll()
    capture.seek(0)
    return capture


def found_in(packets: Iterable[CapturedPacket]) -> list[Finding]:
    """All that is found in them."""
    found: list[Finding] = []
    judge = Judge(found.append)
    for packet in packets:
        judge.frame(packet.time_ns, packet.linktype, packet.data, packet.length)
    judge.finish()
    return found


def judged(capture: io.BytesIO) -> tuple[int, list[Finding]]:
    """Packets, and what is found in them but for ICRCs that the network spoilt."""
    packets = list(read_capture(capture, "capture"))
    return len(packets), [finding for finding in found_in(packets) if finding.rule != "icrc"]


@pytest.mark.slow
@pytest.mark.parametrize("at_the_nic", [False, True], ids=["wire", "nic"])
@pytest.mark.parametrize("kind", FAULTS)
def test_nothing_is_found(kind: str, at_the_nic: bool) -> None:
    packets, found = judged(record(FAULTS[kind], 1, 120, at_the_nic=at_the_nic))
    assert packets > 500
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "drop", "mixed"])
def test_nothing_is_found_where_the_capture_lacks_packets(kind: str) -> None:
    whole = list(read_capture(record(FAULTS[kind], 1, 120, at_the_nic=False), "capture"))
    for seed in range(6):
        rng = random.Random(seed)
        hole = rng.randrange(len(whole))
        for kept in (
            [packet for packet in whole if rng.random() > 0.01],
            whole[:hole] + whole[hole + rng.randrange(300) :],
            whole[hole:],
        ):
            assert [finding for finding in found_in(kept) if finding.rule != "icrc"] == [], (seed, hole)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_nothing_is_found_in_a_million_packets() -> None:
    total = seed = 0
    while total < 1_000_000:
        seed += 1
        for kind, faults in FAULTS.items():
            packets, found = judged(record(faults, seed, 300, at_the_nic=bool(seed & 1)))
            total += packets
            assert found == [], (seed, kind)
