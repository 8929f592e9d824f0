"""Coyote's memory on the engine: the same as the reference, by bytes and counts; rounds stay compiled."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from rnic.coyote.device import CountingShell, Device
from rnic.coyote.mmu import PAGE_BYTES, Fault, Mmu, SpaceTable, Tlb
from rnic.coyote.oper import CoyoteOper, rdmaSg
from rnic.coyote.pair import DEPTH
from rnic.coyote.thread import CoyoteError, CThread
from rnic.engine import use
from rnic.link.beats import BeatLink, wire
from rnic.mem.tlb import FIRST_SET
from rnic.rings import coyote as c
from rnic.runtime.virtual import VirtualClock
from rnic.trace.counters import Counters
from rnic.transport.responder import Responder
from tests.unit.coyote.conftest import Beside, Hosts

WRITE, READ = CoyoteOper.REMOTE_RDMA_WRITE, CoyoteOper.REMOTE_RDMA_READ
LOCAL_WRITE, LOCAL_READ = CoyoteOper.LOCAL_WRITE, CoyoteOper.LOCAL_READ
BYTES = 40 * PAGE_BYTES
COUNTED = (
    "tlb_hits",
    "tlb_misses",
    "tlb_evictions",
    "tlb_invalidations",
    "page_faults",
    "page_faults_refused",
    "remote_refused",
    "fatal_naks_sent",
    "duplicate_reads",
    "drop_duplicate_unmatched",
)
MODES = ("buffers", "process", "shell")


def wired_in(mode: str, reference: bool) -> Wired:
    """Threads that reach buffers, or the whole process, or whose shell looks at each request."""
    if mode == "shell":
        return Wired(reference, 16, CountingShell)
    return Wired(reference, 16, remote=mode)


class Wired:
    """Two threads of one process, wired beat by beat in virtual time."""

    def __init__(
        self,
        reference: bool,
        ways: int = 4,
        shell: Any = None,
        remote: str = "buffers",
        mtu: int = 4096,
        tlb: tuple[int, int] | None = None,
    ) -> None:
        self.clock = clock = VirtualClock()
        self.links = [BeatLink(bytes([10, 0, 0, last])) for last in (1, 2)]
        self.devices = [
            Device(link, tlb=Tlb(*(tlb or (2, ways))), shell=shell, seed=at, clock=clock, reference=reference, mtu=mtu)
            for at, link in enumerate(self.links)
        ]
        self.threads = [CThread(1, device=device, remote=remote) for device in self.devices]
        self.memory = [thread.getMem(BYTES) for thread in self.threads]
        numbers = [thread._number for thread in self.threads]
        for at, device in enumerate(self.devices):
            self.threads[at]._open_memory()
            peer = self.devices[1 - at].stack.pair(numbers[1 - at]).qp.qp_num
            address = int.from_bytes(bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 2 - at]), "big")
            device.stack.s_axis_qp_conn_interface(
                c.IF_CONN_REQ.pack(
                    {"qpn": numbers[at], "remote_qpn": peer, "remote_ip_address": address, "remote_udp_port": 4791}
                )
            )
            device.stack.s_axis_qp_interface(c.QP_CONTEXT.pack({"qp_num": numbers[at], "new_state": c.READY_SEND}))
        self.starts = [next(iter(thread._mappings)) for thread in self.threads]

    def move(self, read: bool, local: int, remote: int, size: int) -> None:
        """One command of the first side."""
        self.ask(read, local, remote, size)
        self.run()

    def ask(self, read: bool, local: int, remote: int, size: int) -> None:
        """One command of the first side, which has not moved yet."""
        command = {
            "opcode": c.APP_READ if read else c.APP_WRITE,
            "qpn": self.threads[0]._number,
            "host": 1,
            "last": 1,
            "cmplt": 1,
            "local_vaddr": self.starts[0] + local,
            "remote_vaddr": self.starts[1] + remote,
            "message_size": size,
        }
        assert self.devices[0].stack.s_rdma_sq(c.RDMA_SQ.pack(command))

    def carry(self, packets: int) -> None:
        """Carry this many of the packets that the first side has sent, and lose the rest."""
        self.devices[0].progress()
        for beat in self.links[0].take_tx():
            if packets > 0:
                self.links[1].s_axis_rx([beat])
            packets -= beat.last
        self.devices[1].progress()

    def lose_answers(self) -> None:
        """Carry what the first side sends, until nothing moves, and lose what the second side answers."""
        for _ in range(20):
            for device in self.devices:
                device.progress()
            self.links[1].s_axis_rx(self.links[0].take_tx())
            self.links[1].take_tx()

    def run_again(self) -> None:
        """Until nothing moves, past the times at which the first side asks again for what was lost."""
        for _ in range(60):
            self.clock.advance(50_000_000)
            self.run()

    def run(self) -> None:
        """Until nothing moves."""
        idle = 0
        while idle < 3:
            did = [device.progress() for device in self.devices]
            idle = 0 if wire(*self.links) or any(did) else idle + 1

    def image(self) -> list[Any]:
        """What two executors are compared by: memory, counts, counters and TLBs without their addresses."""
        for thread in self.threads:
            thread._settle()
        return [
            [bytes(memory) for memory in self.memory],
            [thread._counts for thread in self.threads],
            [thread._failed for thread in self.threads],
            [[device.counters[name] for name in COUNTED] for device in self.devices],
            [len(device.mmu.tlb) for device in self.devices],
        ]

    def close(self) -> None:
        for thread, device in zip(self.threads, self.devices, strict=True):
            thread.close(polite=False)
            device.close()


def run_scenario(wired: Wired, seed: int) -> list[Any]:
    """WRITEs and READs of random places, some pages forgotten between them, at last one outside."""
    rng = random.Random(seed)
    for memory in wired.memory:
        memory[:] = rng.randbytes(BYTES)
    images = []
    for _ in range(12):
        size = rng.choice((1, 100, PAGE_BYTES, 3 * PAGE_BYTES + 5))
        wired.move(rng.random() < 0.5, rng.randrange(BYTES - size), rng.randrange(BYTES - size), size)
        if rng.random() < 0.3:
            at = rng.randrange(40)
            for thread, start in zip(wired.threads, wired.starts, strict=True):
                thread.device.mmu.invalidate(thread._number, start + at * PAGE_BYTES, PAGE_BYTES)
        images.append(wired.image())
    # of a process too, whose memory may go on behind a buffer
    wired.move(False, 0, 16 - wired.starts[1], 8)
    images.append(wired.image())
    return images


@pytest.mark.skipif(use.ENGINE is None, reason="the engine is not in use")
@pytest.mark.parametrize(("ways", "remote"), [(16, "buffers"), (2, "buffers"), (16, "process")])
def test_engine_and_reference_do_the_same(ways: int, remote: str) -> None:
    """Memory, counts and all counters of the MMU; where a small TLB evicts pages depends on their addresses."""
    found = []
    for reference in (False, True):
        wired = Wired(reference, ways, remote=remote)
        assert all((device.stack.runtime.nic.engine is None) == reference for device in wired.devices)
        images = run_scenario(wired, 5)
        assert images[-1][2] == [1, 0]  # the last was refused, and nothing of it was written
        found.append(images if ways == 16 else [image[:3] for image in images])
        wired.close()
    assert found[0] == found[1]


@pytest.mark.skipif(use.ENGINE is None, reason="the engine is not in use")
@pytest.mark.parametrize("mode", MODES)
def test_engine_and_reference_answer_a_read_whose_response_was_lost(mode: str) -> None:
    found = []
    for reference in (False, True):
        wired = wired_in(mode, reference)
        wired.memory[1][:] = random.Random(4).randbytes(BYTES)
        wired.move(True, 0, 0, 100)
        wired.ask(True, 200, 300, 3 * PAGE_BYTES)
        wired.lose_answers()
        wired.run_again()
        assert wired.memory[0][200 : 200 + 3 * PAGE_BYTES] == wired.memory[1][300 : 300 + 3 * PAGE_BYTES]
        found.append(wired.image())
        wired.close()
    assert found[0] == found[1]
    counters = dict(zip(COUNTED, found[0][3][1], strict=True))
    assert counters["duplicate_reads"] > 0
    assert counters["drop_duplicate_unmatched"] == 0


@pytest.mark.skipif(use.ENGINE is None, reason="the engine is not in use")
@pytest.mark.parametrize("mode", MODES)
def test_engine_and_reference_refuse_a_repeated_read_of_memory_that_went(mode: str) -> None:
    found = []
    for reference in (False, True):
        wired = wired_in(mode, reference)
        wired.move(True, 0, 0, 100)
        wired.ask(True, 0, 0, 100)
        wired.lose_answers()
        wired.threads[1].freeMem(wired.memory.pop())
        wired.run_again()
        found.append(wired.image())
        wired.close()
    assert found[0] == found[1]
    counters = dict(zip(COUNTED, found[0][3][1], strict=True))
    if mode != "process":  # whose pages are still there
        assert counters["remote_refused"] == counters["drop_duplicate_unmatched"] > 0


@pytest.mark.parametrize("reference", [False, True])
def test_a_message_ends_with_the_buffer_that_it_began_in(reference: bool) -> None:
    """Another buffer at the same addresses is another region, though it was bound as often."""
    wired = Wired(reference, 16, mtu=256)
    thread, memory = wired.threads[1], wired.memory[1]
    wired.move(False, 0, 0, 100)
    wired.memory[0][:] = random.Random(6).randbytes(BYTES)
    wired.ask(False, 0, 0, BYTES)
    wired.carry(20)
    thread.userUnmap(memory)
    thread.userMap(memory)
    before = bytes(memory)
    wired.run_again()
    assert wired.threads[0]._failed == 1
    assert bytes(memory) == before
    wired.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reference", [False, True])
def test_a_message_counts_once(mode: str, reference: bool) -> None:
    wired = wired_in(mode, reference)
    for read in (False, False, True):
        wired.move(read, 0, 0, 3 * PAGE_BYTES)
    wired.image()
    assert (wired.threads[1]._counts["local_write"], wired.threads[1]._counts["local_read"]) == (2, 1)
    assert (wired.threads[0]._counts["local_write"], wired.threads[0]._counts["local_read"]) == (1, 2)
    wired.close()


@pytest.mark.skipif(use.ENGINE is None, reason="the engine is not in use")
def test_messages_of_known_pages_never_reach_the_reference(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1 << 16
    # the first of each kind may: the state that a connection begins in
    for oper in (WRITE, READ):
        hosts.client.invoke(oper, rdmaSg(len=size))
        hosts.client.wait(oper)
    seen: list[object] = []
    take = Responder.receive

    def receive(self: Responder, packet: Any, now_ns: int) -> None:
        seen.append(packet)
        take(self, packet, now_ns)

    monkeypatch.setattr(Responder, "receive", receive)
    hosts.client.clearCompleted()
    hosts.client_memory[:size] = random.Random(3).randbytes(size)
    hosts.server.checkCompleted(LOCAL_READ)
    before = hosts.server.device.counters["tlb_hits"]
    for _ in range(20):
        hosts.client.invoke(WRITE, rdmaSg(len=size))
    hosts.client.wait(WRITE, 20)
    assert hosts.server.wait(LOCAL_WRITE, 20) >= 20
    assert hosts.server_memory == hosts.client_memory
    assert seen == []
    assert all(thread.device.stack.runtime._engine_polls for thread in (hosts.client, hosts.server))
    assert hosts.server.device.counters["tlb_hits"] - before == 20 * size // PAGE_BYTES


@pytest.mark.skipif(use.ENGINE is None, reason="the engine is not in use")
@pytest.mark.parametrize(("order", "ways"), [(0, 1), (1, 2), (2, 2), (5, 1)])
def test_the_engine_handles_faults_as_the_mmu_does(order: int, ways: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer's messages, by the whole TLB and its counts, where most of them drive pages out."""
    wired = Wired(False, tlb=(order, ways))
    device, thread, start = wired.devices[1], wired.threads[1], wired.starts[1]
    twin = Mmu(Counters(), Tlb(order, ways))
    twin.attach(thread._number, SpaceTable(thread._process.space))
    rng = random.Random(order * 4 + ways)
    wired.move(False, 0, 0, 1)
    faults = 0
    for _ in range(15):
        twin.tlb.words[:] = device.mmu.tlb.words
        before = [[counters[name] for name in COUNTED[:3]] for counters in (device.counters, twin.counters)]
        size = rng.choice((1, PAGE_BYTES, 3 * PAGE_BYTES + 5, 20 * PAGE_BYTES))
        read, at = rng.random() < 0.5, rng.randrange(BYTES - size)
        wired.move(read, 0, at, size)
        with monkeypatch.context() as plain:
            plain.setattr(use, "ENGINE", None)
            assert twin.translate(thread._number, start + at, size, not read)
        after = [[counters[name] for name in COUNTED[:3]] for counters in (device.counters, twin.counters)]
        found, wanted = (
            [now - then for now, then in zip(*both, strict=True)] for both in zip(after, before, strict=True)
        )
        assert found == wanted
        assert device.mmu.tlb.words[FIRST_SET:] == twin.tlb.words[FIRST_SET:]
        faults += wanted[1]
    assert faults
    wired.close()


@pytest.mark.skipif(use.ENGINE is None, reason="the engine is not in use")
@pytest.mark.parametrize("how", ["nobody", "observe", "handler"])
def test_pages_that_the_tlb_lost_are_the_engines_where_nobody_watches(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    size = 1 << 14
    server, client = hosts.server, hosts.client
    for oper in (WRITE, READ):
        client.invoke(oper, rdmaSg(len=size))
        client.wait(oper)
    seen: list[object] = []
    asked: list[Fault] = []
    mmu = server.device.mmu
    handle, take = mmu.handler, Responder.receive

    def receive(self: Responder, packet: Any, now_ns: int) -> None:
        seen.append(packet)
        take(self, packet, now_ns)

    if how == "observe":
        mmu.observe = lambda fault, done: asked.append(fault)
    elif how == "handler":

        def another(fault: Fault) -> bool:
            asked.append(fault)
            return handle(fault)

        mmu.handler = another
    monkeypatch.setattr(Responder, "receive", receive)
    client.clearCompleted()
    server.checkCompleted(LOCAL_READ)
    names = ("tlb_misses", "page_faults", "tlb_evictions", "tlb_hits")
    before = [server.device.counters[name] for name in names]
    hosts.client_memory[:size] = random.Random(3).randbytes(size)
    for number in range(1, 11):
        with server.device.stack.runtime.lock:
            mmu.invalidate(server._number, next(iter(server._mappings)), size)
        client.invoke(WRITE if number % 2 else READ, rdmaSg(len=size))
        client.wait(WRITE if number % 2 else READ, (number + 1) // 2)
    server.checkCompleted(LOCAL_READ)
    assert hosts.server_memory == hosts.client_memory
    found = [server.device.counters[name] - was for name, was in zip(names, before, strict=True)]
    assert found == [10, 10, 0, 10 * (size // PAGE_BYTES - 1)]
    assert (len(asked), bool(seen)) == ((0, False) if how == "nobody" else (10, True))


def test_a_shell_that_looks_sees_each_request() -> None:
    seen: list[str] = []

    class Looking(CountingShell):
        def __init__(self, memory: Mmu) -> None:
            super().__init__(memory)

        def m_rdma_rd_req(self, request: bytes) -> Any:
            seen.append("read")
            return super().m_rdma_rd_req(request)

        def m_rdma_wr_req(self, request: bytes, data: Any) -> bool:
            seen.append("write")
            return super().m_rdma_wr_req(request, data)

    wired = Wired(reference=False, shell=Looking)
    wired.memory[0][:5] = b"looks"
    wired.move(False, 0, 100, 5)
    assert bytes(wired.memory[1][100:105]) == b"looks"
    assert seen == ["read", "write"]
    wired.move(True, 200, 100, 5)
    assert bytes(wired.memory[0][200:205]) == b"looks"
    assert seen == ["read", "write", "read", "write"]
    assert wired.threads[1]._counts["local_write"] == 1
    wired.close()


def test_memory_that_is_mapped_again_is_reached_once_and_unmapped_once(hosts: Hosts) -> None:
    given = bytearray(100)
    va = hosts.server.userMap(given)
    assert hosts.server.userMap(given) == va
    hosts.server.userUnmap(given)
    queue = hosts.client.remote_queue
    assert queue is not None
    hosts.client.remote_queue = queue._replace(vaddr=va)
    hosts.client.invoke(WRITE, rdmaSg(len=16))
    with pytest.raises(CoyoteError, match="failed"):
        hosts.client.wait(WRITE)
    assert given == bytes(100)


def test_a_command_outside_all_regions_goes_by_the_page_table() -> None:
    """The process has the memory, and the NIC has no region of it: the data are fetched when the command is taken."""
    wired = Wired(reference=False)
    thread, pair = wired.threads[0], wired.devices[0].stack.pair(wired.threads[0]._number)
    command = {"host": 1, "message_size": 8, "local_vaddr": wired.starts[0], "opcode": c.APP_WRITE, "mode": 0}
    assert pair.region(command) is not None
    pair.shut(thread._mappings[wired.starts[0]][0])
    assert pair.region(command) is None
    wired.memory[0][:8] = b"from now"
    wired.move(False, 0, 0, 8)
    assert bytes(wired.memory[1][:8]) == b"from now"
    wired.close()


def test_memory_that_goes_under_a_command_fails_it() -> None:
    """Data are read as they leave: until the command is done its memory is the NIC's."""
    wired = Wired(reference=False)
    thread = wired.threads[0]
    command = {"opcode": c.APP_WRITE, "qpn": thread._number, "host": 1, "cmplt": 1, "message_size": 8}
    command |= {"local_vaddr": wired.starts[0], "remote_vaddr": wired.starts[1]}
    assert wired.devices[0].stack.s_rdma_sq(c.RDMA_SQ.pack(command))  # it waits for one with `last`
    thread.freeMem(wired.memory[0])
    before = bytes(wired.memory[1][:8])
    wired.devices[0].stack.s_rdma_sq(c.RDMA_SQ.pack(command | {"last": 1, "opcode": c.APP_SEND, "message_size": 0}))
    wired.run()
    assert thread._failed > 0
    assert bytes(wired.memory[1][:8]) == before
    wired.close()


def test_what_has_the_device_never_waits_for_commands() -> None:
    """A page fault is handled under the device's lock, and a command of another thread waits for that with its own."""
    wired = Wired(reference=use.ENGINE is None)
    thread, stack = wired.threads[0], wired.devices[0].stack
    size = 16
    command = {"opcode": c.APP_WRITE, "mode": 0, "qpn": thread._number, "host": 1, "cmplt": 1, "last": 1}
    command |= {
        "message_size": size,
        "offs": 0,
        "ssn": 0,
        "local_vaddr": wired.starts[0],
        "remote_vaddr": wired.starts[1],
    }
    wired.memory[0][: 2 * size] = random.Random(7).randbytes(2 * size)
    second = command | {"local_vaddr": wired.starts[0] + size, "remote_vaddr": wired.starts[1] + size}

    def handle() -> Beside:
        with stack.runtime.lock:
            other = Beside(lambda: stack.take(command))
            while stack.lock.acquire(blocking=False):  # until the other has it, and waits for the device
                stack.lock.release()
                time.sleep(0.001)
            given = bytearray(PAGE_BYTES)
            thread.userMap(given)
            assert stack.take(second)
            assert thread.checkCompleted(WRITE) == 0
            thread.userUnmap(given)
            thread.clearCompleted()
        return other

    assert Beside(handle).result().result()
    wired.run()
    assert thread.checkCompleted(WRITE) == 2
    assert wired.memory[1][: 2 * size] == wired.memory[0][: 2 * size]
    wired.close()


def test_commands_queued_meanwhile_keep_order_and_fit_the_queue() -> None:
    wired = Wired(reference=use.ENGINE is None)
    thread, stack = wired.threads[0], wired.devices[0].stack
    command = {"opcode": c.APP_WRITE, "mode": 0, "qpn": thread._number, "host": 1, "cmplt": 1, "last": 1}
    command |= {"message_size": 1, "offs": 0, "ssn": 0, "remote_vaddr": wired.starts[1]}
    wired.memory[0][: DEPTH + 2] = bytes(range(1, DEPTH + 3))
    with stack.lock:
        taken = Beside(
            lambda: [stack.take(command | {"local_vaddr": wired.starts[0] + at}) for at in range(DEPTH + 1)]
        ).result()
    assert taken == [True] * DEPTH + [False]
    assert stack.take(command | {"local_vaddr": wired.starts[0] + DEPTH}) is False  # 64 before it have no end yet
    wired.run()
    assert wired.memory[1][0] == DEPTH
    assert thread.checkCompleted(WRITE) == DEPTH
    wired.close()
