"""The front door of 003: two devices that see nothing but its structures."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import EINVAL, ENOENT
from typing import Any

import pytest

from rnic.cm.coyote import DEPTH, SEND_BYTES, HostShell, RoceStack, connect
from rnic.cm.exchange import BufferInfo, LineSocket
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

    def close(self) -> None:
        self.a.stack.close()
        self.b.stack.close()


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.close()


DONE = {"ssn": 0xABCDEF, "vfid": 3, "pid": 0x12, "cmplt": 1, "rd": 0}
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
    assert (two.b.memory[:9], two.b.memory[9 + size :]) == (before[:9], before[9 + size :])
    for requests, first in ((two.a.shell.reads, two.a.va + 3), (two.b.shell.writes, two.remote + 9)):
        data = [request for request in requests if first <= request["vaddr"] < first + size]
        assert sum(request["len"] for request in data) == size
        assert all((request["host"], request["stream"]) == (1, 0) for request in data)
    assert {(request["pid"], request["vfid"]) for request in two.a.shell.reads} == {(0x12, 3)}
    assert {(request["pid"], request["vfid"]) for request in two.b.shell.writes} <= {(0, 7)}


@pytest.mark.parametrize("size", [1, 4096, 30_001])
def test_read(two: Two, size: int) -> None:
    two.a.command(opcode=c.APP_READ, message_size=size, local_vaddr=two.a.va, remote_vaddr=two.remote + 30_000)
    assert two.run() == [DONE | {"rd": 1}]
    assert two.a.memory[:size] == two.b.memory[30_000 : 30_000 + size]


@pytest.mark.parametrize("size", [0, 1, 5000, SEND_BYTES])
def test_send_arrives_as_a_stream(two: Two, size: int) -> None:
    two.a.command(opcode=c.APP_SEND, message_size=size, local_vaddr=two.a.va)
    assert two.run() == [DONE]
    if size:
        assert list(two.b.shell.streams) == [(7, bytes(two.a.memory[:size]))]
        request = two.b.shell.writes[-1]
        assert (request["stream"], request["host"], request["ctl"], request["len"]) == (1, 0, 1, size)


def test_many_sends_in_order(two: Two) -> None:
    for number in range(40):
        two.a.command(opcode=c.APP_SEND, message_size=8, local_vaddr=two.a.va + 8 * number, ssn=number)
    assert [ack["ssn"] for ack in two.run()] == list(range(40))
    assert b"".join(data for _, data in two.b.shell.streams) == two.a.memory[:320]


def test_host_0_takes_and_gives_streams(two: Two) -> None:
    two.a.shell.outgoing[0x123] = bytes(range(200))
    two.a.command(opcode=c.APP_WRITE, message_size=100, local_vaddr=50, remote_vaddr=two.remote, host=0)
    assert two.run() == [DONE]
    assert two.b.memory[:100] == bytes(range(50, 150))
    two.a.command(opcode=c.APP_READ, message_size=77, remote_vaddr=two.remote + 1000, host=0)
    assert two.run() == [DONE | {"rd": 1}]
    assert two.a.shell.streams.pop() == (0x123, bytes(two.b.memory[1000:1077]))
    two.a.command(opcode=c.APP_WRITE, message_size=201, remote_vaddr=two.remote, host=0)
    assert two.run() == [FAILED]


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
    "offset into a command": lambda two: {"offs": 1},
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
