"""Coyote's software interface: two threads, their buffers, transfers, counters, and what goes wrong."""

from __future__ import annotations

import random

import pytest

from rnic.cm.line_socket import ExchangeError
from rnic.coyote.device import Device
from rnic.coyote.mmu import PAGE_BYTES
from rnic.coyote.oper import CoyoteOper, rdmaSg
from rnic.coyote.thread import CoyoteError, CThread
from rnic.link.beats import BeatLink
from rnic.mem.space import address_of
from rnic.spec import access
from rnic.trace.tracer import ListTracer
from tests.unit.coyote.conftest import CLIENT, SERVER, Beside, Hosts, connect, free_port
from tests.unit.runtime.test_loop import until

WRITE, READ, SEND = CoyoteOper.REMOTE_RDMA_WRITE, CoyoteOper.REMOTE_RDMA_READ, CoyoteOper.REMOTE_RDMA_SEND
LOCAL_WRITE, LOCAL_READ = CoyoteOper.LOCAL_WRITE, CoyoteOper.LOCAL_READ
RNG = random.Random(8)


def test_the_two_sides_know_each_other(hosts: Hosts) -> None:
    client, server = hosts.client, hosts.server
    assert client.local_queue == server.remote_queue._replace(gid="")  # type: ignore[union-attr]
    assert server.local_queue == client.remote_queue._replace(gid="")  # type: ignore[union-attr]
    local = server.local_queue
    assert local is not None
    assert (local.address, local.rkey, local.size) == (SERVER, 0, 1 << 16)
    assert local.vaddr == address_of(hosts.server_memory)
    assert (client.getVfid(), client.getCtid()) == (2, 0)


@pytest.mark.parametrize("size", [1, 4096, 65_536])
def test_write_read_and_counters(hosts: Hosts, size: int) -> None:
    client, server = hosts.client, hosts.server
    data = RNG.randbytes(size)
    hosts.client_memory[:size] = data
    for _ in range(3):
        client.invoke(WRITE, rdmaSg(len=size))
    assert client.wait(WRITE, 3) == 3
    assert server.wait(LOCAL_WRITE, 3) == 3
    assert hosts.server_memory[:size] == data
    assert client.checkCompleted(LOCAL_WRITE) == 0
    hosts.client_memory[:size] = bytes(size)
    client.clearCompleted()
    assert client.checkCompleted(WRITE) == 0
    client.invoke(READ, rdmaSg(len=size))
    assert client.wait(READ) == 1
    assert hosts.client_memory[:size] == data
    assert client.checkCompleted(LOCAL_WRITE) == 1
    # a READ whose answer was late is asked for again, and memory is read for it again, a round after that is counted
    counters = server.device.stack.runtime.nic.counters
    assert until(lambda: server.checkCompleted(LOCAL_READ) == 1 + counters["duplicate_reads"])


def test_offsets(hosts: Hosts) -> None:
    hosts.client_memory[100:108] = b"somebyte"
    hosts.client.invoke(WRITE, rdmaSg(len=8, local_offs=100, remote_offs=5000))
    hosts.client.wait(WRITE)
    assert bytes(hosts.server_memory[4998:5010]) == b"\0\0somebyte\0\0"


def test_last_alone_counts(hosts: Hosts) -> None:
    for number in range(5):
        hosts.client.invoke(WRITE, rdmaSg(len=8), last=number == 4)
    assert hosts.client.wait(WRITE) == 1
    assert hosts.server.wait(LOCAL_WRITE, 5) == 5


def test_send_arrives_as_a_message(hosts: Hosts) -> None:
    for number in range(20):
        hosts.client_memory[4 * number : 4 * number + 4] = b"%04d" % number
        hosts.client.invoke(SEND, rdmaSg(len=4, local_offs=4 * number))
    assert [hosts.server.receive() for _ in range(20)] == [b"%04d" % number for number in range(20)]
    hosts.client.wait(SEND, 20)


def test_streams_instead_of_host_memory(hosts: Hosts) -> None:
    hosts.client.send(b"from the stream")
    hosts.client.invoke(WRITE, rdmaSg(len=6, local_offs=9, local_stream=0))
    hosts.client.wait(WRITE)
    assert bytes(hosts.server_memory[:6]) == b"stream"
    hosts.client.send(b"another stream", dest=15)
    hosts.client.invoke(WRITE, rdmaSg(len=7, local_stream=0, local_dest=15))
    hosts.client.wait(WRITE, 2)
    assert bytes(hosts.server_memory[:7]) == b"another"
    hosts.server_memory[:6] = b"stream"
    hosts.client.invoke(READ, rdmaSg(len=6, local_stream=0))
    assert hosts.client.receive() == b"stream"
    assert hosts.client.checkCompleted(LOCAL_WRITE) == 0


def test_more_commands_than_the_stack_takes_at_once(hosts: Hosts) -> None:
    for _ in range(300):
        hosts.client.invoke(WRITE, rdmaSg(len=1000))
    assert hosts.client.wait(WRITE, 300) == 300
    assert hosts.server.wait(LOCAL_WRITE, 300) == 300


def test_sync_and_close(hosts: Hosts) -> None:
    order: list[str] = []

    def sync() -> None:
        hosts.server.connSync()
        order.append("server")

    waiting = Beside(sync)
    assert order == []
    hosts.client.connSync()
    waiting.result()
    assert order == ["server"]
    closing = Beside(hosts.server.connClose)
    hosts.client.closeConn()
    closing.result()
    with pytest.raises(CoyoteError, match="no peer"):
        hosts.client.invoke(WRITE, rdmaSg(len=1))
    # and again
    port = free_port()
    accepted = Beside(lambda: hosts.server.initRDMA(4096, port, timeout=60))
    memory = connect(hosts.client, port, 4096)
    memory[:2] = b"ok"
    hosts.client.invoke(WRITE, rdmaSg(len=2))
    hosts.client.wait(WRITE)
    assert bytes(accepted.result()[:2]) == b"ok"


# ------------------------------------------------------------------------- shared virtual memory


def test_memory_that_was_never_mapped_faults_and_works(hosts: Hosts) -> None:
    """The queue pair's buffer is an address: offsets lead to any memory of the process, without registering it."""
    client = hosts.client
    counters = client.device.counters
    mine = bytearray(RNG.randbytes(3 * PAGE_BYTES))
    assert client.local_queue is not None
    offset = address_of(memoryview(mine)) - client.local_queue.vaddr
    client.local_queue = client.local_queue._replace(vaddr=client.local_queue.vaddr + offset)
    faults = counters["page_faults"]
    client.invoke(WRITE, rdmaSg(len=len(mine)))
    client.wait(WRITE)
    assert hosts.server_memory[: len(mine)] == mine
    assert counters["page_faults"] > faults
    assert counters["page_faults_refused"] == 0
    faults = counters["page_faults"]
    client.userMap(mine)
    client.invoke(WRITE, rdmaSg(len=len(mine)))
    client.wait(WRITE, 2)
    assert counters["page_faults"] == faults


def test_user_map_is_a_prefetch(hosts: Hosts) -> None:
    counters = hosts.client.device.counters
    mine = bytearray(5 * PAGE_BYTES)
    before = counters["tlb_prefetched"]
    va = hosts.client.userMap(mine)
    assert va == address_of(memoryview(mine))
    assert counters["tlb_prefetched"] - before in (5, 6)
    invalidated = counters["tlb_invalidations"]
    hosts.client.userUnmap(mine)
    assert counters["tlb_invalidations"] - invalidated in (5, 6)
    with pytest.raises(CoyoteError, match="is not mapped"):
        hosts.client.userUnmap(mine)


def aim(hosts: Hosts, va: int) -> None:
    """The client's WRITEs go to an address of the server's process."""
    queue = hosts.client.remote_queue
    assert queue is not None
    hosts.client.remote_queue = queue._replace(vaddr=va)


def refused(hosts: Hosts) -> None:
    before = hosts.server.checkCompleted(LOCAL_WRITE)
    hosts.client.clearCompleted()
    hosts.client.invoke(WRITE, rdmaSg(len=16))
    with pytest.raises(CoyoteError, match="failed"):
        hosts.client.wait(WRITE)
    assert hosts.server.device.counters["remote_refused"] > 0
    assert hosts.server.device.counters["fatal_naks_sent"] == 1
    assert hosts.server.checkCompleted(LOCAL_WRITE) == before


def test_the_peer_reaches_what_was_mapped_for_it(hosts: Hosts) -> None:
    given = bytearray(100)
    aim(hosts, hosts.server.userMap(given))
    hosts.client_memory[:16] = b"0123456789abcdef"
    hosts.client.invoke(WRITE, rdmaSg(len=16))
    hosts.client.wait(WRITE)
    assert given[:16] == b"0123456789abcdef"
    hosts.server.userUnmap(given)
    refused(hosts)
    assert given[:16] == b"0123456789abcdef"


def test_a_message_under_way_stops_where_memory_is_taken_back(hosts: Hosts) -> None:
    given = bytearray(3 * PAGE_BYTES)
    va = hosts.server.userMap(given)
    stack = hosts.server.device.stack
    pair = stack.pair(hosts.server._number)
    rights = access.REMOTE_WRITE
    entry = stack.runtime.nic.memory.check(0, pair.pd.handle, va, len(given), rights, pair.qp.qp_num)
    assert entry is not None
    assert entry.write_from(va, b"begun")
    hosts.server.userUnmap(given)
    assert not entry.write_from(va + PAGE_BYTES, b"too late")
    assert given == b"begun".ljust(3 * PAGE_BYTES, b"\0")


def test_the_peer_does_not_reach_other_memory_of_the_process(hosts: Hosts) -> None:
    private = bytearray(100)
    aim(hosts, address_of(memoryview(private)))
    refused(hosts)
    assert private == bytes(100)


@pytest.mark.parametrize("settings", [{"remote": "process"}])
def test_the_whole_process_where_that_is_wanted(hosts: Hosts) -> None:
    private = bytearray(100)
    aim(hosts, address_of(memoryview(private)))
    hosts.client_memory[:16] = b"0123456789abcdef"
    hosts.client.invoke(WRITE, rdmaSg(len=16))
    hosts.client.wait(WRITE)
    assert private[:16] == b"0123456789abcdef"
    aim(hosts, 0x1000)  # no process has its first pages
    refused(hosts)
    assert hosts.server.device.counters["page_faults_refused"] > 0


def test_freed_memory_is_out_of_reach(hosts: Hosts) -> None:
    hosts.server.freeMem(hosts.server_memory)
    refused(hosts)


def test_faults_show_in_the_trace() -> None:
    tracer = ListTracer()
    device = Device(BeatLink(bytes([10, 0, 0, 9])), tracer=tracer)
    with CThread(3, device=device) as thread:
        mine = bytearray(PAGE_BYTES)
        number = thread._number
        device.stack.pair(number)
        assert device.mmu.read(number, address_of(memoryview(mine)), bytearray(8))
        assert not device.mmu.write(number, 0x1000, b"x")
        found = tracer.of("fault")
        assert [event.qpn for event in found] == [device.stack.qpns.full(number)] * 2
        assert found[0].fields == {
            "vfid": 3,
            "ctid": 0,
            "vaddr": address_of(memoryview(mine)),
            "length": 8,
            "access": "read",
            "handled": 1,
        }
        assert (found[1].fields["vaddr"], found[1].fields["access"], found[1].fields["handled"]) == (0x1000, "write", 0)
    device.close()


# ------------------------------------------------------------------------------------ wrong uses


def test_wrong_uses_are_told(hosts: Hosts) -> None:
    for oper, sg, words in (
        (LOCAL_WRITE, rdmaSg(len=1), "no RDMA operation"),
        (CoyoteOper.REMOTE_TCP_SEND, rdmaSg(len=1), "no RDMA operation"),
        (WRITE, rdmaSg(len=(128 << 20) + 1), "at most"),
        (WRITE, rdmaSg(len=-1), "at most"),
        (WRITE, rdmaSg(len=1, local_offs=-1), "not negative"),
        (WRITE, rdmaSg(len=1, local_dest=16), "local_dest=16"),
    ):
        with pytest.raises(CoyoteError, match=words):
            hosts.client.invoke(oper, sg)
    with pytest.raises(CoyoteError, match="not counted"):
        hosts.client.checkCompleted(CoyoteOper.LOCAL_SYNC)
    with pytest.raises(CoyoteError, match="connClose first"):
        hosts.client.initRDMA(10, hosts.port, SERVER)
    with pytest.raises(CoyoteError, match="did not complete within"):
        hosts.client.wait(WRITE, 1, timeout=0.05)
    for settings in ({"vfid": 16}, {"vfid": -1}, {"hpid": 1}, {"remote": "all"}):
        with pytest.raises(CoyoteError):
            CThread(device=CLIENT, **settings)


def test_nobody_there() -> None:
    with CThread(device=CLIENT, timeout=1) as thread:
        with pytest.raises(ExchangeError, match="nobody listens"):
            thread.initRDMA(100, free_port(), SERVER)
        with pytest.raises(ExchangeError, match="nobody came"):
            thread.initRDMA(100, free_port(), timeout=0.05)


def test_threads_of_one_device_share_it_and_number_themselves() -> None:
    made = [CThread(1, device=CLIENT) for _ in range(3)] + [CThread(2, device=CLIENT)]
    assert [(thread.vfid, thread.ctid) for thread in made] == [(1, 0), (1, 1), (1, 2), (2, 0)]
    assert len({id(thread.device) for thread in made}) == 1
    made[1].close()
    made[1] = CThread(1, device=CLIENT)
    assert made[1].ctid == 1
    for thread in made:
        thread.close()
        thread.close()
    assert made[0].device.stack.runtime.closed


def test_64_threads_in_a_region() -> None:
    device = Device(BeatLink(bytes([10, 0, 0, 9])))
    made = [CThread(0, device=device) for _ in range(64)]
    with pytest.raises(CoyoteError, match="64 threads"):
        CThread(0, device=device)
    for thread in made:
        thread.close()
    device.close()
