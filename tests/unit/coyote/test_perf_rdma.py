"""perf_rdma between two threads: every byte is checked on both sides, and wrong bytes are found."""

from __future__ import annotations

import json

import pytest

from rnic.coyote import perf_rdma
from rnic.coyote.oper import CoyoteOper, rdmaSg
from rnic.coyote.perf_rdma import Plan
from rnic.coyote.thread import CoyoteError
from tests.unit.coyote.conftest import Beside, Hosts


@pytest.mark.slow
@pytest.mark.parametrize("write", [True, False])
def test_a_sweep(hosts: Hosts, write: bool) -> None:
    plan = Plan(write, 1, 40_000, 4, 2)
    served = Beside(lambda: perf_rdma.server(hosts.server, hosts.server_memory))
    shown: list[object] = []
    rows = perf_rdma.client(hosts.client, hosts.client_memory, plan, shown.append)
    assert served.result() == plan
    assert [row.size for row in rows] == [1 << order for order in range(16)]
    assert shown == rows
    assert all(row.bytes_per_s > 0 and row.latency_us > 0 for row in rows)


@pytest.mark.parametrize("write", [True, False])
def test_wrong_bytes_are_found(hosts: Hosts, write: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    original = hosts.client.wait

    def spoil(oper: CoyoteOper, count: int = 1, timeout: float | None = None) -> int:
        done = original(oper, count, timeout)
        hosts.client_memory[3] ^= 1
        return done

    monkeypatch.setattr(hosts.client, "wait", spoil)
    monkeypatch.setattr(hosts.server, "_timeout", 0.5)
    served = Beside(lambda: perf_rdma.server(hosts.server, hosts.server_memory))
    with pytest.raises(CoyoteError, match="64 bytes came back wrong"):
        perf_rdma.client(hosts.client, hosts.client_memory, Plan(write, 64, 64, 2, 1))
    with pytest.raises(Exception, match="sent no acknowledgement"):
        served.result()


def test_the_server_finds_wrong_bytes(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_rdma, "_client_round", lambda *args: _write_zeros(hosts))
    served = Beside(lambda: perf_rdma.server(hosts.server, hosts.server_memory))
    perf_rdma.client(hosts.client, hosts.client_memory, Plan(True, 64, 64, 1, 1))
    with pytest.raises(CoyoteError, match="64 bytes arrived wrong"):
        served.result()


def _write_zeros(hosts: Hosts) -> float:
    if hosts.client.checkCompleted(CoyoteOper.REMOTE_RDMA_WRITE):
        return 1.0
    hosts.client_memory[:64] = bytes(64)
    hosts.client.connSync()
    hosts.client.invoke(CoyoteOper.REMOTE_RDMA_WRITE, rdmaSg(len=64))
    hosts.client.wait(CoyoteOper.REMOTE_RDMA_WRITE)
    return 1.0


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(True, 0, 5), "at least 1"),
        (Plan(True, 6, 5), "at least 1"),
        (Plan(True, 1, 1 << 20), "the smaller buffer has 65536"),
        (Plan(True, 1, 5, 0), "reps=0"),
        (Plan(True, 1, 5, 1, 10_001), "runs=10001"),
    ],
)
def test_plans_that_cannot_be(hosts: Hosts, plan: Plan, words: str) -> None:
    with pytest.raises(CoyoteError, match=words):
        perf_rdma.client(hosts.client, hosts.client_memory, plan)


@pytest.mark.parametrize("head", [b"", b"[]", b"{}", json.dumps(Plan(max_size=1 << 40)._asdict()).encode()])
def test_a_server_refuses_what_the_client_says(hosts: Hosts, head: bytes) -> None:
    hosts.client_memory[:256] = head.ljust(256)
    served = Beside(lambda: perf_rdma.server(hosts.server, hosts.server_memory))
    hosts.client.connSync()
    with pytest.raises(CoyoteError, match=r"holds no parameters|max_size="):
        served.result()
