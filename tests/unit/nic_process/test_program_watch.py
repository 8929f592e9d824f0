"""What tools see of programs with slots is what they see of any device: packets, and operations told from them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rnic.link.recorder import Recorder
from rnic.link.recording import Recording
from rnic.nic_process.program_watch import ProgramWatch
from rnic.runtime.tap import EXPIRES_NS
from rnic.testing import QpPair
from rnic.trace.counters import Counters
from rnic.verbs import enums as e

RC = (
    (e.IBV_WR_RDMA_WRITE, 3000),
    (e.IBV_WR_SEND, 8),
    (e.IBV_WR_RDMA_READ, 5000),
    (e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8),
    (e.IBV_WR_SEND_WITH_IMM, 5000),
    (e.IBV_WR_ATOMIC_CMP_AND_SWP, 8),
    (e.IBV_WR_RDMA_WRITE_WITH_IMM, 4097),
    (e.IBV_WR_RDMA_READ, 1),
)


class Both:
    """Two taps on one end of a pair: one sees the device, the other what was recorded of it."""

    def __init__(self, pair: QpPair) -> None:
        self.node = pair.a.node
        runtime = self.node.ctx.runtime
        self.device, self.watched = runtime.tap(), type(runtime.tap())(runtime)
        self.left: list[ProgramWatch] = []
        self.recording = Recording(None, Counters())
        address = runtime.link.address
        self.watch = ProgramWatch(self.watched, address, self.node.nic.qps.items, self.left.append)
        self.recording.followers.append(self.watch)
        assert self.recording.adapt_snap()
        runtime.insert(lambda link: Recorder(link, self.recording))
        self.device.answer("x 0 1")
        session = self.watched.sessions["x"] = type(self.device.sessions["x"])(frozenset(), 1)
        session.asked_ns = runtime.clock()

    def seen(self) -> tuple[list[Any], list[Any]]:
        """Stage and fields of the packets and operations of both."""
        found = []
        for tap in (self.device, self.watched):
            events = [(event[2], event[3], dict(event[4])) for event in tap.sessions["x"].events]
            kept = [each for each in events if each[0] in ("fetched", "completed", "sent", "received")]
            for _, _, fields in kept:
                fields.pop("index", None)
            found.append(kept)
        return found[0], found[1]


def part(seen: list[Any], *stages: str) -> list[Any]:
    return [each for each in seen if each[0] in stages]


@pytest.mark.parametrize(
    ("service", "operations"),
    [("RC", RC), ("UC", [each for each in RC if each[0] in (e.IBV_WR_SEND, e.IBV_WR_RDMA_WRITE)])],
)
def test_operations_are_told_from_packets(service: str, operations: Any) -> None:
    with QpPair(service, size=1 << 16) as pair:
        both = Both(pair)
        for opcode, size in operations:
            if opcode in (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM):
                pair.b.post_recv(size)
            pair.a.post_send(opcode, size)
        pair.net.run()
        device, watched = both.seen()
    for stage in ("sent", "received", "fetched", "completed"):
        assert part(watched, stage) == part(device, stage), stage
    assert len(part(watched, "fetched")) == len(part(watched, "completed")) == len(operations)


def test_losses_end_no_operation_early_and_none_twice() -> None:
    lost = [{"match": {"opcode": name}, "every": 3, "action": "drop"} for name in ("RC_WRITE_LAST", "RC_ACKNOWLEDGE")]
    with QpPair(faults=lost, size=1 << 16) as pair:
        both = Both(pair)
        for _ in range(20):
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, 3000)
        pair.net.run()
        device, watched = both.seen()
    for stage in ("fetched", "completed"):  # one that lost a packet is told later
        assert sorted(each[2]["psn"] for each in part(watched, stage)) == [
            each[2]["psn"] for each in part(device, stage)
        ]
    assert len(part(watched, "completed")) == 20


def test_it_leaves_once_nobody_has_asked_for_a_while() -> None:
    with QpPair() as pair:
        both = Both(pair)
        both.watched.sessions["x"].asked_ns -= EXPIRES_NS + 1
        both.watch.write_blocks(b"", 0)
    assert both.left == [both.watch]


def test_operations_that_lack_packets_are_left_out() -> None:
    """A ring that is full lacks any packets: what is told of the others is right, and nothing stays open."""
    rng = random.Random(3)
    with QpPair(size=1 << 16) as pair:
        both = Both(pair)
        write = both.watch.write_blocks
        both.watch.write_blocks = lambda blocks, packets: write(blocks, packets) if rng.random() < 0.9 else None  # type: ignore[method-assign]
        for _ in range(12):
            for opcode, size in RC:
                if opcode in (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM):
                    pair.b.post_recv(size)
                pair.a.post_send(opcode, size)
                pair.a.wait()
            pair.net.run()
        device, watched = both.seen()
        both.watch.write_blocks = write  # type: ignore[method-assign]
        for _ in range(2):
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8)
            pair.net.run()
        assert [len(sender.open) for sender in both.watch._senders.values()] == [0]
    fetched, all_of_them = part(watched, "fetched"), part(device, "fetched")
    assert 30 < len(fetched) < len(all_of_them)
    assert all(each in all_of_them for each in fetched)
    assert 30 < len(part(watched, "completed")) <= len(fetched)


@pytest.mark.parametrize("seed", range(4))
def test_packets_of_any_bytes_are_taken(seed: int) -> None:
    """A program may store anything in its ring."""
    rng = random.Random(seed)
    with QpPair() as pair:
        both = Both(pair)
        flow = pair.a.node.nic.qps[pair.a.qp.qp_num].flow
        assert flow is not None
        own, peer = (qp.qp_num.to_bytes(3, "big") for qp in (pair.a.qp, pair.b.qp))
        for _ in range(1500):
            data = bytearray(rng.randbytes(rng.randrange(100)))
            if len(data) > 11:
                data[0] = rng.randrange(0x20)
                data[5:8] = rng.choice((own, peer, bytes(3)))
                data[9:12] = rng.randrange(8).to_bytes(3, "big")
            both.recording.add(rng.randrange(1 << 40), rng.choice((flow, flow.reverse())), data, 0)
        assert all(len(sender.open) <= 8 for sender in both.watch._senders.values())
        watched = both.seen()[1]
    assert len(part(watched, "sent")) > 100
    assert len(part(watched, "received")) > 100
