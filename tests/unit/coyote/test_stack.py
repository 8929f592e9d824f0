"""The front door of 003: two devices that see nothing but its structures."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import EINVAL, ENOENT
from typing import Any

import pytest

from rnic.arrays.handshake import BufferInfo
from rnic.cm.line_socket import LineSocket
from rnic.coyote.ibvq import connect
from rnic.coyote.pair import DEPTH, SEND_BYTES
from rnic.coyote.shell import HostShell
from rnic.coyote.stack import RoceStack
from rnic.link.beats import Beat, BeatLink, to_beats, wire
from rnic.mem.space import SimAddressSpace
from rnic.rings import coyote as c
from rnic.runtime.virtual import VirtualClock
from rnic.spec.errors import VerbsError

MEMORY = 70_000


class LoggingShell(HostShell):
    """Keeps every memory request as it came."""

    def __init__(self, space: SimAddressSpace) -> None:
        super().__init__(space)
        self.reads: list[dict[str, int]] = []
        self.writes: list[dict[str, int]] = []

    def m_rdma_rd_req(self, request: bytes) -> Sequence[Beat] | None:
        self.reads.append(c.RDMA_RD_REQ.unpack(request))
        return super().m_rdma_rd_req(request)

    def m_rdma_wr_req(self, request: bytes, data: Iterable[Beat]) -> bool:
        self.writes.append(c.RDMA_WR_REQ.unpack(request))
        return super().m_rdma_wr_req(request, data)


class Side:
    def __init__(self, last_byte: int, clock: VirtualClock) -> None:
        space = SimAddressSpace()
        self.memory = bytearray(random.Random(last_byte).randbytes(MEMORY))
        self.va = space.map(self.memory, writable=True).va
        self.shell = LoggingShell(space)
        self.link = BeatLink(bytes([10, 0, 0, last_byte]))
        self.stack = RoceStack(self.link, self.shell, seed=last_byte, clock=clock)
        self.peer: BufferInfo | None = None

    def command(self, **values: int) -> None:
        default = {"qpn": 0x123, "cmplt": 1, "last": 1, "host": 1, "ssn": 0xABCDEF}
        self.stack.s_rdma_sq(c.RDMA_SQ.pack(default | values))

    def acks(self) -> list[dict[str, int]]:
        out = [c.RDMA_ACK.unpack(ack) for ack in self.stack.m_rdma_ack]
        self.stack.m_rdma_ack.clear()
        return out


class Two:
    """Two sides, wired and connected: queue pair 0x123 of the first to 7 of the second."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.a, self.b = Side(1, self.clock), Side(2, self.clock)
        ends = socket.socketpair()
        lines = [LineSocket(end, name) for end, name in zip(ends, "ba", strict=True)]

        def answer() -> None:
            self.b.peer = connect(self.b.stack, 7, self.b.va, MEMORY, lines[1], passive=True, psn=5)

        thread = threading.Thread(target=answer)
        thread.start()
        self.a.peer = connect(self.a.stack, 0x123, self.a.va, MEMORY, lines[0], passive=False, psn=0xFFFFFE)
        thread.join()
        for line in lines:
            line.close()
        self.remote = self.a.peer.addr

    def run(self) -> list[dict[str, int]]:
        """Until nothing moves; the acknowledgements of the first side."""
        idle = 0
        while idle < 3:
            did = self.a.stack.progress() | self.b.stack.progress() | bool(wire(self.a.link, self.b.link))
            idle = 0 if did else idle + 1
        return self.a.acks()

    def run_briefly(self) -> None:
        """A few rounds."""
        for _ in range(30):
            self.a.stack.progress()
            self.b.stack.progress()
            wire(self.a.link, self.b.link)

    def close(self) -> None:
        self.a.stack.close()
        self.b.stack.close()


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.close()


DONE = {"ssn": 0xABCDEF, "vfid": 1, "pid": 0x23, "cmplt": 1, "rd": 0}
FAILED = DONE | {"cmplt": 0}


def test_connecting_brings_both_to_ready_send(two: Two) -> None:
    assert two.a.stack.state(0x123) == two.b.stack.state(7) == c.READY_SEND
    assert two.a.stack.state(5) == c.RESET
    assert two.a.stack.keys.full(1) == two.a.peer.rkey if two.a.peer else False
    assert two.a.stack.qpns.full(0x123) > 1


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4096, 4097, 60_001])
def test_write(two: Two, size: int) -> None:
    before = bytes(two.b.memory)
    two.a.command(opcode=c.APP_WRITE, message_size=size, local_vaddr=two.a.va + 3, remote_vaddr=two.remote + 9)
    assert two.run() == [DONE]
    assert two.b.memory[9 : 9 + size] == two.a.memory[3 : 3 + size]
    assert two.b.memory[:9] + two.b.memory[9 + size :] == before[:9] + before[9 + size :]
    for requests, first in ((two.a.shell.reads, two.a.va + 3), (two.b.shell.writes, two.remote + 9)):
        data = [request for request in requests if first <= request["vaddr"] < first + size]
        assert sum(request["len"] for request in data) == size
        assert all((request["host"], request["stream"]) == (1, 0) for request in data)
        # the last request of the message, and no other
        assert [request["ctl"] for request in data] == [0] * (len(data) - 1) + [1] * bool(data)
    assert {(request["pid"], request["vfid"]) for request in two.a.shell.reads} == {(0x23, 1)}
    assert {(request["pid"], request["vfid"]) for request in two.b.shell.writes} <= {(7, 0)}


@pytest.mark.parametrize("size", [1, 4096, 30_001])
def test_read(two: Two, size: int) -> None:
    two.a.command(opcode=c.APP_READ, message_size=size, local_vaddr=two.a.va, remote_vaddr=two.remote + 30_000)
    assert two.run() == [DONE | {"rd": 1}]
    assert two.a.memory[:size] == two.b.memory[30_000 : 30_000 + size]


@pytest.mark.parametrize("size", [0, 1, 5000, SEND_BYTES])
def test_send_arrives_as_a_stream(two: Two, size: int) -> None:
    two.a.command(opcode=c.APP_SEND, message_size=size, local_vaddr=two.a.va)
    assert two.run() == [DONE]
    assert list(two.b.shell.streams) == [(7, bytes(two.a.memory[:size]))]
    request = two.b.shell.writes[-1]
    assert (request["stream"], request["host"], request["ctl"], request["len"]) == (1, 0, 1, size)


def test_many_sends_in_order(two: Two) -> None:
    for number in range(40):
        two.a.command(opcode=c.APP_SEND, message_size=8, local_vaddr=two.a.va + 8 * number, ssn=number)
    assert [ack["ssn"] for ack in two.run()] == list(range(40))
    assert b"".join(data for _, data in two.b.shell.streams) == two.a.memory[:320]


def test_host_0_takes_and_gives_streams(two: Two) -> None:
    two.a.shell.outgoing[0x123, 0] = bytes(range(200))
    two.a.command(opcode=c.APP_WRITE, message_size=100, local_vaddr=50, remote_vaddr=two.remote, host=0)
    assert two.run() == [DONE]
    assert two.b.memory[:100] == bytes(range(50, 150))
    two.a.command(opcode=c.APP_READ, message_size=77, remote_vaddr=two.remote + 1000, host=0)
    assert two.run() == [DONE | {"rd": 1}]
    assert two.a.shell.streams.pop() == (0x123, bytes(two.b.memory[1000:1077]))
    two.a.command(opcode=c.APP_WRITE, message_size=201, remote_vaddr=two.remote, host=0)
    assert two.run() == [FAILED]


def test_offs_sync_and_dest_are_of_the_commands_own_data(two: Two) -> None:
    """As the shell's code has them: ``dest`` is the command's ``offs``, ``sync`` 1; the peer's have neither."""
    two.a.shell.outgoing[0x123, 5] = bytes(range(200))
    for shell in (two.a.shell, two.b.shell):
        shell.reads.clear()  # what registering asked for
    two.a.command(opcode=c.APP_WRITE, message_size=100, remote_vaddr=two.remote, host=0, offs=5)
    assert two.run() == [DONE]
    assert two.b.memory[:100] == bytes(range(100))
    two.a.command(opcode=c.APP_WRITE, message_size=100, local_vaddr=two.a.va, remote_vaddr=two.remote, offs=15)
    two.a.command(opcode=c.APP_READ, message_size=100, local_vaddr=two.a.va, remote_vaddr=two.remote, offs=15)
    assert [ack["cmplt"] for ack in two.run()] == [1, 1]
    said = [(request["dest"], request["sync"]) for request in two.a.shell.reads]
    assert said == [(5, 1), (15, 1)]
    assert {(request["dest"], request["sync"]) for request in two.b.shell.writes} == {(0, 0)}
    assert [(request["dest"], request["sync"]) for request in two.b.shell.reads] == [(0, 0)]
    assert {(request["dest"], request["sync"]) for request in two.a.shell.writes} == {(0, 0)}
    two.a.command(opcode=c.APP_WRITE, message_size=100, remote_vaddr=two.remote, host=0, offs=6)
    assert two.run() == [FAILED]  # that stream gives nothing


def test_incoming_messages_are_signalled_and_can_be_counted(two: Two) -> None:
    """Of each message the last request alone has ``ctl``: WRITEs of the peer, its READs, and this side's own READs."""
    two.b.shell.writes.clear()
    two.b.shell.reads.clear()
    sizes = [1, 5000, 60_000, 4096, 12_289]
    for size in sizes:
        two.a.command(opcode=c.APP_WRITE, message_size=size, local_vaddr=two.a.va, remote_vaddr=two.remote)
    assert two.run() == [DONE] * 5
    ends = [request["vaddr"] + request["len"] for request in two.b.shell.writes if request["ctl"]]
    assert ends == [two.remote + size for size in sizes]
    assert sum(request["len"] for request in two.b.shell.writes) == sum(sizes)
    assert [request["len"] for request in two.a.shell.reads if request["ctl"]] == sizes
    two.a.shell.writes.clear()
    for size in sizes:
        two.a.command(opcode=c.APP_READ, message_size=size, local_vaddr=two.a.va, remote_vaddr=two.remote)
    assert two.run() == [DONE | {"rd": 1}] * 5
    assert [request["len"] for request in two.a.shell.writes if request["ctl"]] == sizes
    assert sum(request["ctl"] for request in two.b.shell.reads) == 5


def test_signals_are_exact_under_loss(two: Two) -> None:
    """A packet that is sent again is neither read from the host again nor signalled again."""
    rng = random.Random(3)
    two.b.shell.writes.clear()
    two.a.shell.reads.clear()
    lost = 0
    for number in range(20):
        two.a.command(opcode=c.APP_WRITE, message_size=9000, local_vaddr=two.a.va, remote_vaddr=two.remote, ssn=number)
    acks: list[dict[str, int]] = []
    for _ in range(20_000):  # waits: in steps of simulated time
        two.a.stack.progress()
        two.b.stack.progress()
        for one, other in ((two.a.link, two.b.link), (two.b.link, two.a.link)):
            packet = []
            while one.m_axis_tx:
                packet.append(one.m_axis_tx.popleft())
                if packet[-1].last:
                    if rng.random() < 0.1:
                        lost += 1
                    else:
                        other.s_axis_rx(packet)
                    packet = []
        two.clock.advance(10_000)
        acks += two.a.acks()
        if len(acks) == 20:
            break
    assert [ack["ssn"] for ack in acks] == list(range(20))
    assert lost > 5
    assert two.a.stack.runtime.nic.counters["rewinds"] > 0
    assert [request["len"] for request in two.a.shell.reads] == [9000] * 20
    assert sum(request["ctl"] for request in two.b.shell.writes) == 20
    assert sum(request["len"] for request in two.b.shell.writes) == 20 * 9000


def test_s_rdma_sq_exerts_back_pressure(two: Two) -> None:
    """100 commands at once: 64 are taken, the rest when there is room; all complete, in order."""
    taken = 0
    acks: list[dict[str, int]] = []
    refused = 0
    while taken < 100:
        values = {"qpn": 0x123, "cmplt": 1, "last": 1, "host": 1, "ssn": taken, "opcode": c.APP_WRITE}
        values |= {"message_size": 5000, "local_vaddr": two.a.va, "remote_vaddr": two.remote}
        if two.a.stack.s_rdma_sq(c.RDMA_SQ.pack(values)):
            taken += 1
        else:
            if not refused:
                assert taken == DEPTH
            refused += 1
            acks += two.run()
    acks += two.run()
    assert refused
    assert [(ack["ssn"], ack["cmplt"]) for ack in acks] == [(number, 1) for number in range(100)]


def test_a_bad_command_is_answered_in_its_turn(two: Two) -> None:
    good = {"opcode": c.APP_WRITE, "message_size": 9000, "local_vaddr": two.a.va, "remote_vaddr": two.remote}
    for number in range(6):
        two.a.command(**good | ({"opcode": 9} if number in (0, 3) else {}), ssn=number)
    assert [(ack["ssn"], ack["cmplt"]) for ack in two.run()] == [(0, 0), (1, 1), (2, 1), (3, 0), (4, 1), (5, 1)]


def test_card_memory_is_bounded(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.coyote.pair.CARD_BYTES", 1 << 17)
    values = {"qpn": 0x123, "cmplt": 1, "last": 1, "host": 1, "opcode": c.APP_WRITE, "message_size": 60_000}
    values["ssn"] = 0xABCDEF
    data = c.RDMA_SQ.pack(values | {"local_vaddr": two.a.va, "remote_vaddr": two.remote})
    assert [two.a.stack.s_rdma_sq(data) for _ in range(3)] == [True, True, False]
    # one that is larger than all of it goes alone
    large = c.RDMA_SQ.pack(values | {"local_vaddr": two.a.va, "remote_vaddr": two.remote, "message_size": MEMORY})
    monkeypatch.setattr("rnic.coyote.pair.CARD_BYTES", 1 << 16)
    assert not two.a.stack.s_rdma_sq(large)
    assert two.run() == [DONE] * 2
    assert two.a.stack.s_rdma_sq(large)
    assert two.run() == [DONE]
    assert two.a.stack.pair(0x123).card.used == 0


@pytest.mark.slow
def test_streams_that_nobody_reads_stop_the_peer(two: Two) -> None:
    """The shell holds 64 messages, the stack 16; more wait at the sender, and nothing is lost."""
    accepted = 0
    for _ in range(200):
        values = {"qpn": 0x123, "cmplt": 1, "last": 1, "host": 1, "opcode": c.APP_SEND, "message_size": 8}
        if not two.a.stack.s_rdma_sq(c.RDMA_SQ.pack(values | {"local_vaddr": two.a.va + 8 * accepted})):
            two.run_briefly()
            continue
        accepted += 1
    got: list[bytes] = []
    assert len(two.b.shell.streams) == 64
    assert two.b.stack.runtime.nic.counters["shell_stalls"] > 0
    for _ in range(400):  # waits: for credits to run out
        while two.b.shell.streams:
            got.append(two.b.shell.streams.popleft()[1])
        two.run_briefly()
        two.clock.advance(1_000_000)
        if len(got) == accepted:
            break
    assert accepted > 80
    assert got == [bytes(two.a.memory[8 * number : 8 * number + 8]) for number in range(accepted)]


def test_commands_without_last_wait_for_it(two: Two) -> None:
    for number in range(3):
        two.a.command(
            opcode=c.APP_WRITE, message_size=1, local_vaddr=two.a.va, remote_vaddr=two.remote, last=0, ssn=number
        )
    assert two.run() == []
    two.a.command(opcode=c.APP_WRITE, message_size=1, local_vaddr=two.a.va, remote_vaddr=two.remote, ssn=3)
    assert [ack["ssn"] for ack in two.run()] == [0, 1, 2, 3]


def test_a_sequence_without_an_end_is_bounded(two: Two) -> None:
    for _ in range(DEPTH):
        two.a.command(opcode=c.APP_WRITE, message_size=1, local_vaddr=two.a.va, remote_vaddr=two.remote, last=0)
    assert two.run() == [DONE] * DEPTH


def test_without_cmplt_nothing_is_acknowledged(two: Two) -> None:
    two.a.command(opcode=c.APP_WRITE, message_size=9, local_vaddr=two.a.va, remote_vaddr=two.remote, cmplt=0)
    assert two.run() == []
    assert two.b.memory[:9] == two.a.memory[:9]


@pytest.mark.parametrize(("opcode", "read"), [(0x0A, 0), (0x0C, 1), (0x04, 0)])
def test_raw_commands_are_one_packet(two: Two, opcode: int, read: int) -> None:
    values = {"opcode": opcode, "mode": c.MODE_RAW, "local_vaddr": two.a.va, "remote_vaddr": two.remote}
    two.a.command(**values, message_size=4096)
    assert two.run() == [DONE | {"rd": read}]
    two.a.command(**values, message_size=4097)
    assert two.run() == [FAILED | {"rd": read}]


BAD: dict[str, Callable[[Two], dict[str, int]]] = {
    "unknown queue pair": lambda two: {"qpn": 0x124},
    "unknown opcode": lambda two: {"opcode": 9},
    "raw opcode of a first packet": lambda two: {"opcode": 0x06, "mode": 1},
    "unknown mode": lambda two: {"mode": 2},
    "too long": lambda two: {"message_size": (1 << 31) + 1},
    "local memory not registered": lambda two: {"local_vaddr": two.a.va + MEMORY - 5},
    "local address beyond 48 bits": lambda two: {"local_vaddr": 1 << 48},
    "remote address beyond 48 bits": lambda two: {"remote_vaddr": (1 << 48) - 5},
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_commands_fail_alone(two: Two, bad: str) -> None:
    good = {"opcode": c.APP_WRITE, "message_size": 10, "local_vaddr": two.a.va, "remote_vaddr": two.remote}
    values = good | BAD[bad](two)
    two.a.command(**values)
    (ack,) = two.run()
    assert ack["cmplt"] == 0
    assert c.join_qpn(ack["pid"], ack["vfid"]) == values.get("qpn", 0x123)
    two.a.command(**good)
    assert two.run() == [DONE]


def test_the_peers_refusal_ends_the_queue_pair(two: Two) -> None:
    before = bytes(two.b.memory)
    two.a.command(
        opcode=c.APP_WRITE, message_size=10, local_vaddr=two.a.va, remote_vaddr=two.remote + MEMORY - 5, cmplt=0
    )
    assert two.run() == [FAILED]
    assert two.a.stack.state(0x123) == c.ERROR
    assert two.b.memory == before


def test_a_message_longer_than_the_staging_memory_is_refused(two: Two) -> None:
    two.a.command(opcode=c.APP_SEND, message_size=SEND_BYTES + 1, local_vaddr=two.a.va)
    assert two.run() == [FAILED]
    assert not two.b.shell.streams


def test_r_key_0_opens_what_the_process_admits(two: Two) -> None:
    """As Coyote's hosts have it: no key, addresses as they are, and the peer's shell says which are its process's."""
    asked: list[tuple[int, int, bool]] = []

    def admit(va: int, length: int, write: bool) -> bool:
        asked.append((va - two.b.va, length, write))
        return two.b.va <= va and va + length <= two.b.va + MEMORY

    two.a.stack.pair(0x123).said["r_key"] = 0
    two.b.stack.open_space(7, admit)
    two.a.command(opcode=c.APP_WRITE, message_size=9000, local_vaddr=two.a.va, remote_vaddr=two.b.va + 5)
    two.a.command(opcode=c.APP_READ, message_size=10, local_vaddr=two.a.va + 20_000, remote_vaddr=two.b.va + 40_000)
    assert two.run() == [DONE, DONE | {"rd": 1}]
    assert asked[0] == (5, 9000, True)
    assert asked[-2:] == [(40_000, 10, False)] * 2  # before the message, and before the access
    assert sum(length for _, length, write in asked[1:] if write) == 9000
    assert two.b.memory[5:9005] == two.a.memory[:9000]
    assert two.a.memory[20_000:20_010] == two.b.memory[40_000:40_010]
    before = bytes(two.b.memory)
    two.a.command(opcode=c.APP_WRITE, message_size=10, local_vaddr=two.a.va, remote_vaddr=two.b.va + MEMORY - 5)
    assert two.run() == [FAILED]
    assert two.b.memory == before
    assert two.a.stack.runtime.nic.counters["fatal_naks_received"] == 1


def test_r_key_0_is_refused_where_no_space_was_opened(two: Two) -> None:
    two.a.stack.pair(0x123).said["r_key"] = 0
    two.a.command(opcode=c.APP_WRITE, message_size=10, local_vaddr=two.a.va, remote_vaddr=two.b.va)
    assert two.run() == [FAILED]


def test_memory_that_went_away_is_an_error_and_no_crash(two: Two) -> None:
    two.a.shell.m_rdma_rd_req = lambda request: None  # type: ignore[method-assign]
    two.a.command(opcode=c.APP_WRITE, message_size=10, local_vaddr=two.a.va, remote_vaddr=two.remote)
    assert two.run() == [FAILED]


def test_data_of_the_wrong_length_are_an_error(two: Two) -> None:
    two.a.shell.m_rdma_rd_req = lambda request: list(to_beats(b"short"))  # type: ignore[method-assign]
    two.a.command(opcode=c.APP_WRITE, message_size=10, local_vaddr=two.a.va, remote_vaddr=two.remote)
    assert two.run() == [FAILED]


def test_reset_gives_the_queue_pair_back(two: Two) -> None:
    two.a.stack.s_axis_qp_interface(c.QP_CONTEXT.pack({"new_state": c.RESET, "qp_num": 0x123}))
    assert two.a.stack.state(0x123) == c.RESET
    assert len(two.a.stack.qpns) == 0
    two.a.command(opcode=c.APP_WRITE, message_size=1, local_vaddr=two.a.va, remote_vaddr=two.remote)
    assert two.run() == [FAILED]


def test_error_state_flushes(two: Two) -> None:
    two.a.command(opcode=c.APP_WRITE, message_size=1, local_vaddr=two.a.va, remote_vaddr=two.remote)
    two.a.stack.s_axis_qp_interface(c.QP_CONTEXT.pack({"new_state": c.ERROR, "qp_num": 0x123}))
    assert two.run() == [FAILED]
    assert two.a.stack.state(0x123) == c.ERROR


def context(**values: int) -> bytes:
    return c.QP_CONTEXT.pack({"qp_num": 9, "r_key": 1, "remote_psn": 1, "local_psn": 2} | values)


def connection(**values: int) -> bytes:
    address = int.from_bytes(bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 2]), "big")
    return c.IF_CONN_REQ.pack(
        {"qpn": 9, "remote_qpn": 77, "remote_ip_address": address, "remote_udp_port": 4791} | values
    )


@pytest.mark.parametrize("context_first", [True, False])
def test_the_order_of_the_two_structures_does_not_count(two: Two, context_first: bool) -> None:
    stack = two.a.stack
    steps: list[Callable[[], Any]] = [
        lambda: stack.s_axis_qp_interface(context(new_state=c.READY_RECV)),
        lambda: stack.s_axis_qp_conn_interface(connection()),
    ]
    for step in steps if context_first else steps[::-1]:
        step()
    assert stack.state(9) == c.READY_RECV
    stack.s_axis_qp_interface(context(new_state=c.READY_SEND))
    assert stack.state(9) == c.READY_SEND
    assert two.run() == []


@pytest.mark.parametrize(
    ("data", "errno"),
    [
        (context(new_state=c.INIT)[:-1], EINVAL),
        (context(new_state=c.SQ_ERROR), EINVAL),
        (context(new_state=6), EINVAL),
        (context(new_state=c.INIT, qp_num=0x1000), EINVAL),
        (context(new_state=c.READY_SEND, r_key=99), ENOENT),
    ],
    ids=["short", "SQ_ERROR", "no state", "13-bit number", "unknown key"],
)
def test_bad_contexts_change_nothing(two: Two, data: bytes, errno: int) -> None:
    with pytest.raises(VerbsError) as caught:
        two.a.stack.s_axis_qp_interface(data)
    assert caught.value.errno == errno
    assert two.a.stack.state(9) == c.RESET
    assert len(two.a.stack.qpns) == 1


def test_bad_connections_change_nothing(two: Two) -> None:
    for data in (connection()[:-1], connection(qpn=0x1000), connection(qpn=0x123)):
        with pytest.raises(VerbsError) as caught:
            two.a.stack.s_axis_qp_conn_interface(data)
        assert caught.value.errno == EINVAL
    two.a.command(opcode=c.APP_WRITE, message_size=1, local_vaddr=two.a.va, remote_vaddr=two.remote)
    assert two.run() == [DONE]


@pytest.mark.parametrize(("vaddr", "length"), [(-1, 5), (0, 0), ((1 << 48) - 1, 2), (0x10, 5)])
def test_memory_that_cannot_be_registered(two: Two, vaddr: int, length: int) -> None:
    with pytest.raises(VerbsError) as caught:
        two.a.stack.register(0x123, vaddr, length)
    assert caught.value.errno == EINVAL


def test_a_short_command_is_refused(two: Two) -> None:
    with pytest.raises(VerbsError, match="s_rdma_sq has 35 bytes, not 3"):
        two.a.stack.s_rdma_sq(b"abc")
