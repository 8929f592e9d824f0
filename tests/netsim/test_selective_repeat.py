"""Selective repeat: only what is missing is sent again, the data is right, and peers without it still work."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.device.config import NicConfig
from rnic.link.faults import FaultRates
from rnic.sim import Fabric, Flow, Topology
from rnic.spec.errors import VerbsError
from rnic.testing import QpPair
from rnic.verbs import enums as e

SELECTIVE = {"recovery": "selective-repeat"}
SIZE = 40 * 1_024


def fill(side: Any, size: int) -> bytes:
    data = bytes(at * 7 % 251 for at in range(size))
    side.buf[:size] = data
    return data


def dropped(*numbers: int) -> dict[int, list[dict[str, Any]]]:
    """A script for the sender's link: these packets of WRITEs are lost, counted from 1."""
    return {
        0: [
            {"match": {"direction": "tx", "opcode": "RC_WRITE*"}, "nth": number, "action": "drop"} for number in numbers
        ]
    }


@pytest.mark.parametrize("lost", [(5,), (5, 6), (5, 9, 30), (2, 3, 4, 20, 21, 38)])
def test_only_what_is_missing_is_sent_again(lost: tuple[int, ...]) -> None:
    with QpPair(faults=dropped(*lost), settings=SELECTIVE, attributes={"path_mtu": e.IBV_MTU_1024}) as pair:
        data = fill(pair.a, SIZE)
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
        assert [wc.status for wc in pair.a.wait()] == [e.IBV_WC_SUCCESS]
        assert bytes(pair.b.buf[:SIZE]) == data
        sender, receiver = pair.a.counters, pair.b.counters
        assert sender["repairs"] == sender["retransmitted_packets"] == len(lost)
        assert sender["rewinds"] == 0
        assert receiver["kept_packets"] > 0
        assert receiver["drop_naked"] == receiver["drop_psn_gap"] == 0


@pytest.mark.parametrize("without", ["a", "b"])
@pytest.mark.parametrize("lost", [(5, 6), (2, 3, 4, 20, 21, 38), (39, 41)])
def test_where_one_end_has_not_chosen_it_all_arrives(without: str, lost: tuple[int, ...]) -> None:
    """Without it at the sender this is Go-Back-N; without it at the receiver nothing is kept, and little is gained."""
    with QpPair(faults=dropped(*lost), settings=SELECTIVE, attributes={"path_mtu": e.IBV_MTU_1024}) as pair:
        side = getattr(pair, without)
        side.node.nic.qps[side.qp.qp_num].selective = None
        data = fill(pair.a, SIZE)
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
        assert [wc.status for wc in pair.a.wait()] == [e.IBV_WC_SUCCESS]
        assert bytes(pair.b.buf[:SIZE]) == data
        assert pair.a.counters["retransmitted_packets"] >= len(lost) - (41 in lost)
        assert (pair.a.counters["repairs"] == 0) == (without == "a")
        assert (pair.b.counters["kept_packets"] == 0) == (without == "b")


def test_go_back_n_sends_the_rest_again() -> None:
    """The same loss without the option, for comparison."""
    with QpPair(faults=dropped(5), attributes={"path_mtu": e.IBV_MTU_1024}) as pair:
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
        pair.a.wait()
        assert pair.a.counters["retransmitted_packets"] > 5
        assert pair.a.counters["repairs"] == pair.b.counters["kept_packets"] == 0


@pytest.mark.parametrize("last", [39, 40])
def test_a_tail_that_is_lost_is_repaired_by_the_probe(last: int) -> None:
    with QpPair(faults=dropped(last, 41), settings=SELECTIVE, attributes={"path_mtu": e.IBV_MTU_1024}) as pair:
        data = fill(pair.a, SIZE)
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, SIZE)
        assert [wc.status for wc in pair.a.wait()] == [e.IBV_WC_SUCCESS]
        assert bytes(pair.b.buf[:SIZE]) == data
        assert pair.a.counters["probes"] > 0
        assert pair.a.counters["ack_timeouts"] == 0


def test_messages_of_all_kinds_over_a_bad_link() -> None:
    """WRITEs, SENDs and READs in turn, with losses, duplicates and reordering: all complete with the right bytes."""
    rates = FaultRates(drop=0.03, duplicate=0.02, reorder=0.02)
    with QpPair(seed=11, tx=rates, settings=SELECTIVE) as pair:
        data = fill(pair.a, 8_000)
        for step in range(12):
            pair.b.post_recv(8_000, offset=16_000)
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8_000)
            pair.a.post_send(e.IBV_WR_SEND, 8_000)
            pair.a.post_send(e.IBV_WR_RDMA_READ, 4_000, offset=32_000)
            assert [wc.status for wc in pair.a.wait(3)] == [e.IBV_WC_SUCCESS] * 3, step
            assert bytes(pair.b.buf[:8_000]) == bytes(pair.b.buf[16_000:24_000]) == data
            assert bytes(pair.a.buf[32_000:36_000]) == data[:4_000]
            pair.b.buf[:36_000] = bytes(36_000)
        assert pair.a.counters["repairs"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_it_keeps_what_go_back_n_loses(seed: int) -> None:
    """One packet in two hundred is lost on each link of 3 us: goodput, and what is sent again."""

    def run(recovery: str) -> tuple[float, int]:
        with Fabric(Topology.star(2, loss=0.005, delay_ns=3_000), seed=seed, settings={"recovery": recovery}) as fabric:
            fabric.add([Flow("h0", "h1", 1 << 20)])
            (result,) = fabric.run()
            assert result.status == e.IBV_WC_SUCCESS
            return result.flow.size * 8 / result.took_ns, fabric.count("retransmitted_packets")

    (plain, again), (selective, repaired) = run("go-back-n"), run("selective-repeat")
    assert selective > 1.2 * plain
    assert repaired < again / 5


def test_a_name_that_is_none() -> None:
    with pytest.raises(VerbsError, match="recovery='magic' is unknown; use go-back-n or selective-repeat"):
        NicConfig(bytes(4), recovery="magic")
