"""Pages that are lent (engine/io/tx_zerocopy.c): when a tx page is written to again, and what a socket makes of one."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rnic.engine import use
from rnic.link.udp import UdpLink
from rnic.link.udp_socket import open_socket, raw_address, socket_address
from rnic.mem.space import address_of
from rnic.spec import opcodes as op
from rnic.verbs import CQ, MR, PD, QP, AHAttr, Context, GlobalRoute, QPAttr, QPCap, QPInitAttr
from rnic.verbs import enums as e
from tests.unit.engine.test_udp import NAME_BYTES, Outlet, Path_

SEGMENT, COUNT = 4112, 15
LENGTH = SEGMENT * COUNT
LONG = 1 << 20


@pytest.mark.slow
def test_a_tx_page_is_written_to_again_once_its_packets_are_acknowledged(c_program: Callable[..., Path]) -> None:
    said = subprocess.run(
        [c_program("tx_zerocopy_reuse.c", "io/tx_zerocopy.c")], capture_output=True, text=True, timeout=60, check=False
    )
    assert (said.stdout, said.returncode) == ("held\n", 0)


class Splice(ctypes.Structure):
    """``struct tx_splice``."""

    _fields_ = (
        ("into", ctypes.c_int),
        ("out", ctypes.c_int),
        ("broken", ctypes.c_uint32),
        ("failures", ctypes.c_uint32),
        ("inode", ctypes.c_uint64),
    )


@pytest.fixture(scope="session")
def pump(builds: Callable[..., ctypes.CDLL], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return builds(tmp_path_factory.mktemp("splice") / "pump.so", "io/udp.c", "io/loopback.c")


class Sender:
    """A link's socket that bursts leave by their pages, and a plain one that they come to."""

    def __init__(self, pump: ctypes.CDLL, address: str) -> None:
        self.pump = pump
        self.link = UdpLink(address, 0)
        self.taker = UdpLink(address, 0, gro=False)
        self.outlet = Outlet(self.link.fileno() or 0, len(self.link.address) == 4, -1, -1)
        raw = raw_address(socket_address(self.taker.address, self.taker.port, 0))
        name = (ctypes.c_uint8 * NAME_BYTES)(*raw)
        self.path = Path_(ctypes.pointer(self.outlet), None, name, len(raw), 0, 64)
        self.path.hop_limit = 64
        self.splice = Splice()
        self.pump.tx_splice_open(ctypes.byref(self.splice))
        self.memory = bytearray(1 << 18)
        base = address_of(memoryview(self.memory))
        self.at = -base % 4096

    def send(self, data: bytes, segment: int, offset: int = 0) -> int:
        first = self.at + offset
        self.memory[first : first + len(data)] = data
        place = ctypes.c_void_p(address_of(memoryview(self.memory)) + first)
        return int(
            self.pump.tx_splice_send(
                ctypes.byref(self.splice), ctypes.byref(self.path), place, ctypes.c_size_t(len(data)), segment
            )
        )

    def came(self) -> list[bytes]:
        sock = socket.socket(fileno=self.taker.fileno())
        try:
            packets = []
            while True:
                try:
                    packets.append(sock.recv(1 << 16, socket.MSG_DONTWAIT))
                except BlockingIOError:
                    return packets
        finally:
            sock.detach()

    def close(self) -> None:
        self.pump.tx_splice_close(ctypes.byref(self.splice))
        self.link.close()
        self.taker.close()


@pytest.fixture(params=["127.0.0.1", "::1"])
def sender(request: pytest.FixtureRequest, pump: ctypes.CDLL) -> Iterator[Sender]:
    made = Sender(pump, request.param)
    if made.splice.broken:
        pytest.skip("this system has no pipe of 32 pages")
    yield made
    made.close()


def bursts(length: int) -> bytes:
    return bytes(n * 31 >> 3 & 0xFF for n in range(length))


@pytest.mark.parametrize("offset", [0, 4128, 1056, 3868])
@pytest.mark.parametrize(("length", "segment"), [(LENGTH, SEGMENT), (LENGTH - 100, SEGMENT), (64480, 1040), (40, 20)])
def test_a_burst_arrives_as_it_lay_there(sender: Sender, offset: int, length: int, segment: int) -> None:
    data = bursts(length)
    if (offset + 12) % 4096 + length - 12 > 65536:
        assert sender.send(data, segment, offset) == errno.EMSGSIZE
        assert not sender.came(), "more pages than the system takes: it is not begun"
        offset = 0
    assert sender.send(data, segment, offset) == 0
    assert sender.came() == [data[at : at + segment] for at in range(0, length, segment)]
    assert not sender.splice.broken


def test_long_rows_of_bursts_arrive_and_so_does_what_is_copied_between_them(sender: Sender) -> None:
    """The socket's option says after a while at which length they are cut."""
    data = bursts(LENGTH)
    for n in range(100):
        assert sender.send(data, SEGMENT) == 0
        assert b"".join(sender.came()) == data, n
    sock = socket.socket(fileno=sender.link.fileno())
    sock.sendto(b"by itself", socket_address(sender.taker.address, sender.taker.port, 0))
    sock.detach()
    assert sender.came() == [b"by itself"]


def test_what_is_refused_leaves_nothing_behind(sender: Sender) -> None:
    data = bursts(LENGTH)
    assert sender.send(data[:SEGMENT], SEGMENT) == errno.EINVAL, "one packet"
    assert sender.send(data + data, SEGMENT) == errno.EINVAL, "more than a datagram holds"
    sender.path.max_segments = 14
    assert sender.send(data, SEGMENT) == errno.EINVAL, "more packets than the path takes at once"
    sender.path.max_segments = 64
    (there,) = sender.path.name[2:3]
    sender.path.name[0] = 0xFE
    assert sender.send(data, SEGMENT), "no such family of addresses"
    sender.path.name[0] = raw_address(socket_address(sender.taker.address, sender.taker.port, 0))[0]
    assert there == sender.path.name[2]
    if sender.splice.broken:
        sender.pump.tx_splice_open(ctypes.byref(sender.splice))
    assert sender.send(data, SEGMENT) == 0
    assert b"".join(sender.came()) == data, "nothing of what was refused before it"


def by_itself(sender: Sender) -> list[bytes]:
    """What comes where one datagram is sent by the burst's socket."""
    sock = socket.socket(fileno=sender.link.fileno())
    sock.sendto(b"by itself", socket_address(sender.taker.address, sender.taker.port, 0))
    sock.detach()
    return sender.came()


def test_where_the_pipe_takes_too_little_nothing_is_begun(sender: Sender) -> None:
    data = bursts(LENGTH)
    fcntl.fcntl(sender.splice.into, fcntl.F_SETPIPE_SZ, 4096)
    assert sender.send(data, SEGMENT) == errno.EIO
    assert by_itself(sender) == [b"by itself"]
    assert sender.send(data, SEGMENT) == 0, "by another pipe"
    assert b"".join(sender.came()) == data


def test_what_was_begun_and_got_no_pages_is_ended(sender: Sender) -> None:
    """Its place is taken by the end of another pipe, which is empty."""
    data = bursts(LENGTH)
    for tried in range(8):
        assert not sender.splice.broken, tried
        ends = [os.dup(sender.splice.out), *os.pipe2(os.O_NONBLOCK)]
        os.dup2(ends[1], sender.splice.out)
        assert sender.send(data, SEGMENT) == errno.EAGAIN
        for end in ends:
            os.close(end)
        assert sender.came() == [data[:12]]
        assert by_itself(sender) == [b"by itself"]
    assert sender.splice.broken, "not for ever"
    assert sender.send(data, SEGMENT) == errno.EINVAL


RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


class Pair:
    """Two NICs of this process, joined by their sockets; the first WRITEs into the other's memory."""

    def __init__(self, mtu: int, sock: socket.socket | None = None, qps: int = 1, keeps: bool = False) -> None:
        self.ctxs = [Context(link=UdpLink("127.0.0.1", 0, sock=sock)), Context(addr="127.0.0.1", port=0)]
        self.sides = []
        for ctx in self.ctxs:
            pd, cq = PD(ctx), CQ(ctx, 64)
            made = [QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(16, 1), scq=cq, rcq=cq)) for _ in range(qps)]
            mr = MR(pd, bytearray(LONG), RIGHTS)
            self.sides.append((made, cq, mr, ctx))
        for (mine, *_), (theirs, _, _, other) in (self.sides, self.sides[::-1]):
            for qp, peer in zip(mine, theirs, strict=True):
                attr = QPAttr()
                attr.path_mtu = mtu
                attr.dest_qp_num = peer.qp_num
                attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
                attr.max_rd_atomic = attr.max_dest_rd_atomic = 16
                attr.gso, attr.selective_repeat = True, keeps
                attr.ah_attr = AHAttr(GlobalRoute(other.query_gid()), udp_dport=other.udp_port)
                qp.to_rts(attr)

    def write(self, data: bytes) -> bytes:
        """What is there once ``data`` is written, a share of it by each queue pair, all of them at once."""
        self.sides[0][2].buffer[:] = data
        self.move(op.WR_WRITE)
        return bytes(self.sides[1][2].buffer)

    def read(self, data: bytes) -> bytes:
        """What the first has once it has read ``data``."""
        self.sides[1][2].buffer[:] = data
        self.move(op.WR_READ)
        return bytes(self.sides[0][2].buffer)

    def move(self, opcode: int) -> None:
        (qps, cq, mr, _), (_, _, target, other) = self.sides
        share = LONG // len(qps)
        for at, qp in zip(range(0, LONG, share), qps, strict=True):
            qp.post_rdma(opcode, mr.buf + at, share, mr.lkey, target.buf + at, target.rkey)
        end, left = time.monotonic() + 10, len(qps)
        while left:
            count, got = cq.poll(left)
            assert all(wc.status == e.IBV_WC_SUCCESS for wc in got)
            left -= count
            other.runtime.progress()
            assert time.monotonic() < end, f"{left} do not complete"

    def torn(self) -> int:
        """Packets that came with other bytes than they were made of: their page was written to again too early."""
        return sum(int(ctx.runtime.nic.counters["drop_bad_icrc"]) for ctx in self.ctxs)

    def lent(self, side: int = 0) -> int:
        io_poll = self.ctxs[side].runtime._io_poll
        assert io_poll is not None
        return int(io_poll.spliced)

    def close(self) -> None:
        for ctx in self.ctxs:
            ctx.close()


needs_engine = pytest.mark.skipif(use.ENGINE is None, reason="the engine is not in use")


@needs_engine
@pytest.mark.parametrize("mtu", [e.IBV_MTU_1024, e.IBV_MTU_4096])
def test_long_messages_are_lent_and_arrive(mtu: int) -> None:
    pair = Pair(mtu)
    try:
        for n in range(12):
            data = random.Random(n).randbytes(LONG)
            assert pair.write(data) == data
        assert pair.lent() > 12 * LONG // (1 << 16) // 2
        assert pair.torn() == 0
    finally:
        pair.close()


@needs_engine
@pytest.mark.parametrize("keeps", [True, False])
def test_long_reads_are_lent_to_who_has_agreed_to_it(keeps: bool) -> None:
    pair = Pair(e.IBV_MTU_4096, keeps=keeps)
    try:
        for n in range(12):
            data = random.Random(n).randbytes(LONG)
            assert pair.read(data) == data
        assert (pair.lent(1) > 12 * LONG // (1 << 16) // 2) == keeps
        assert pair.lent(1) > 0 or not keeps
        assert pair.torn() == 0
    finally:
        pair.close()


@needs_engine
def test_many_queue_pairs_take_turns_on_the_tx_pages() -> None:
    """One is laid out as the turn of another comes: there is less room left than a turn may ask for."""
    pair = Pair(e.IBV_MTU_4096, qps=16)
    try:
        for n in range(12):
            data = random.Random(n).randbytes(LONG)
            assert pair.write(data) == data
        assert pair.lent() > 0
        assert pair.torn() == 0
    finally:
        pair.close()


@needs_engine
def test_nothing_is_lent_to_a_socket_that_is_others_too() -> None:
    """What another process sends by it would become part of a burst that is begun."""
    pair = Pair(e.IBV_MTU_4096, open_socket(bytes((127, 0, 0, 1)), 0, 0, 1 << 22))
    try:
        data = random.Random(1).randbytes(LONG)
        for _ in range(4):
            assert pair.write(data) == data
        assert pair.lent() == 0
    finally:
        pair.close()
