"""Plain transfers of a thread, posted and counted in C: the same as by commands, with which they mix."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rnic.coyote.mmu import PAGE_BYTES
from rnic.coyote.oper import STRM_CARD, CoyoteOper, rdmaSg
from rnic.coyote.pair import DEPTH
from rnic.coyote.thread import CoyoteError
from rnic.engine import use
from rnic.rings import coyote as c
from tests.unit.coyote.conftest import Beside, Hosts

pytestmark = pytest.mark.skipif(use.ENGINE is None, reason="the engine is not in use")

WRITE, READ, SEND = (
    CoyoteOper.REMOTE_RDMA_WRITE,
    CoyoteOper.REMOTE_RDMA_READ,
    CoyoteOper.REMOTE_RDMA_SEND,
)
LOCAL_WRITE, LOCAL_READ = CoyoteOper.LOCAL_WRITE, CoyoteOper.LOCAL_READ
HALF = 1 << 15


@pytest.fixture
def taken(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The commands that the client's stack takes."""
    stack = hosts.client.device.stack
    seen: list[dict[str, int]] = []
    take = stack.take

    def note(command: dict[str, int]) -> bool:
        done = take(command)
        if done:
            seen.append(command)
        return done

    monkeypatch.setattr(stack, "take", note)
    # what is known of a connection at its begin is looked up with the first turn
    hosts.client.invoke(WRITE, rdmaSg(len=1))
    hosts.client.wait(WRITE)
    hosts.client.clearCompleted()
    seen.clear()
    return seen


def until(progress: Callable[[], object], done: Callable[[], bool]) -> None:
    for _ in range(10_000):  # waits: for what the peer answers
        progress()
        if done():
            return
        threading.Event().wait(0.003)
    raise AssertionError("it does not come")


def own(hosts: Hosts) -> Any:
    return hosts.client.device.stack.pair(hosts.client._number).transfers


def under_way(hosts: Hosts) -> int:
    return int(own(hosts).started - own(hosts).ended)


def test_plain_transfers_are_no_commands(hosts: Hosts, taken: list[dict[str, int]]) -> None:
    client, server = hosts.client, hosts.server
    hosts.client_memory[:HALF] = random.Random(1).randbytes(HALF)
    for _ in range(20):
        client.invoke(WRITE, rdmaSg(len=HALF))
    client.invoke(WRITE, rdmaSg(len=8), last=False)
    client.wait(WRITE, 20)
    for _ in range(5):
        client.invoke(READ, rdmaSg(len=HALF, local_offs=HALF))
    client.wait(READ, 5)
    assert taken == []
    assert hosts.client_memory[HALF:] == hosts.client_memory[:HALF] == hosts.server_memory[:HALF]
    assert [client.checkCompleted(oper) for oper in (WRITE, READ, LOCAL_WRITE, LOCAL_READ)] == [20, 5, 5, 21]
    assert server.wait(LOCAL_WRITE, 22) == 22
    assert server.checkCompleted(LOCAL_READ) == 5
    client.clearCompleted()
    assert [client.checkCompleted(oper) for oper in (WRITE, READ, LOCAL_WRITE, LOCAL_READ)] == [0] * 4


def test_what_is_not_plain_is_a_command(hosts: Hosts, taken: list[dict[str, int]]) -> None:
    client = hosts.client
    client.send(b"stream")
    for oper, sg in (
        (WRITE, rdmaSg(len=6, local_stream=STRM_CARD)),
        (WRITE, rdmaSg(len=0)),
        (WRITE, rdmaSg(len=6, local_dest=3)),
        (SEND, rdmaSg(len=6)),
        (WRITE, rdmaSg(len=6, local_offs=1 << 16)),  # behind the buffer: memory that is mapped nowhere
    ):
        before = len(taken)
        client.invoke(oper, sg)
        assert len(taken) == before + 1
        if not sg.local_offs:
            client.wait(WRITE, before + 1)
    assert bytes(hosts.server.receive()) == bytes(6)


@pytest.mark.parametrize("watched", [False, True])
def test_a_page_that_the_tlb_lost_makes_a_command_where_anyone_watches(
    hosts: Hosts, taken: list[dict[str, int]], watched: bool
) -> None:
    client = hosts.client
    mmu, counters = client.device.mmu, client.device.counters
    faults: list[tuple[int, int, bool]] = []
    if watched:
        mmu.observe = lambda fault, done: faults.append((fault.va, fault.length, done))
    assert client.local_queue is not None
    start = client.local_queue.vaddr
    for number in range(3):
        with client.device.stack.runtime.lock:
            mmu.invalidate(client._number, start + PAGE_BYTES, 1)
        client.invoke(WRITE, rdmaSg(len=3 * PAGE_BYTES))
        assert len(taken) == (number + 1) * watched
    client.wait(WRITE, 3)
    client.device.progress()
    assert [counters[name] for name in ("tlb_misses", "page_faults", "tlb_hits")] == [3, 3, 7]  # one of the fixture
    assert faults == [(start + PAGE_BYTES, 2 * PAGE_BYTES, True)] * 3 * watched


def test_hits_are_counted(hosts: Hosts, taken: list[dict[str, int]]) -> None:
    client = hosts.client
    client.device.progress()
    before = client.device.counters["tlb_hits"]
    client.invoke(WRITE, rdmaSg(len=3 * PAGE_BYTES))
    client.wait(WRITE)
    assert client.device.counters["tlb_hits"] - before == 3


def test_no_more_than_a_queue_takes_are_under_way(hosts: Hosts, taken: list[dict[str, int]]) -> None:
    client = hosts.client
    transfers = own(hosts)
    sg = rdmaSg(len=8)
    for _ in range(DEPTH):
        client.invoke(WRITE, sg)
    assert under_way(hosts) == DEPTH
    assert not transfers.invoke(WRITE, sg, True, client.local_queue, client.remote_queue)
    client.invoke(WRITE, sg)  # waits until there is room
    client.wait(WRITE, DEPTH + 1)
    assert under_way(hosts) == 0


def test_commands_keep_their_turn(hosts: Hosts, taken: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails at once is answered when the transfers before it are done."""
    client, stack = hosts.client, hosts.client.device.stack
    told: list[tuple[bool, bool]] = []
    acknowledged = client.acknowledged

    def note(read: bool, done: bool) -> None:
        told.append((read, done))
        acknowledged(read, done)

    monkeypatch.setattr(client, "acknowledged", note)
    for _ in range(3):
        client.invoke(WRITE, rdmaSg(len=8))
    bad = {"opcode": 0x3F, "mode": c.MODE_RAW, "qpn": client._number, "host": 1, "last": 1, "cmplt": 1}
    assert stack.s_rdma_sq(c.RDMA_SQ.pack(bad))
    assert told == []
    assert under_way(hosts) == 3
    client.invoke(SEND, rdmaSg(len=8))
    until(stack.progress, lambda: len(told) == 2)
    assert told == [(False, False), (False, True)]
    assert client._counts["rdma_write"] == 4


def test_a_lock_that_another_thread_has_makes_a_command(hosts: Hosts, taken: list[dict[str, int]]) -> None:
    client, stack = hosts.client, hosts.client.device.stack
    with stack.lock:
        Beside(lambda: client.invoke(WRITE, rdmaSg(len=8))).result()
        assert len(taken) == 1
        assert under_way(hosts) == 0
    client.invoke(WRITE, rdmaSg(len=8, remote_offs=8))
    assert len(taken) == 2  # it stays behind the first
    client.wait(WRITE, 2)


def test_a_transfer_that_fails_is_told(hosts: Hosts, taken: list[dict[str, int]]) -> None:
    client = hosts.client
    client.invoke(WRITE, rdmaSg(len=8))
    client.invoke(WRITE, rdmaSg(len=8, remote_offs=1 << 20))
    client.invoke(READ, rdmaSg(len=8))
    assert taken == []
    with pytest.raises(CoyoteError, match="operations failed"):
        client.wait(WRITE, 3)
    until(client.device.progress, lambda: under_way(hosts) == 0)
    assert (client._counts["rdma_write"], client._counts["rdma_read"], client._failed) == (1, 0, 2)
    with pytest.raises(CoyoteError, match="operations failed"):
        client.invoke(WRITE, rdmaSg(len=8))


def test_numbers_that_are_none(hosts: Hosts, taken: list[dict[str, int]]) -> None:
    client = hosts.client
    for sg in (rdmaSg(len=-1), rdmaSg(len=1 << 70), rdmaSg(len=1, local_offs=-1), rdmaSg(len=1, remote_offs=-1)):
        with pytest.raises(CoyoteError, match=r"len=|offs="):
            client.invoke(WRITE, sg)
    for field in ("len", "local_offs", "remote_offs"):
        assert not own(hosts).invoke(
            WRITE, rdmaSg(len=1)._replace(**{field: 1 << 70}), True, client.local_queue, client.remote_queue
        )
    assert not own(hosts).invoke(WRITE, (1, 0, 0, 1, 0, 0), True, client.local_queue, client.remote_queue)
    assert under_way(hosts) == 0


@pytest.mark.parametrize("settings", [{"remote": "process"}])
def test_a_thread_whose_peer_reaches_the_process_has_none(hosts: Hosts, taken: list[dict[str, int]]) -> None:
    hosts.client.invoke(WRITE, rdmaSg(len=8))
    assert len(taken) == 1
    hosts.client.wait(WRITE)
