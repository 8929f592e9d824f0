"""The hosts' binary exchange: golden bytes of ``ibvQ``, and a Coyote host played by hand over a plain socket."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import pytest

from rnic.cm.line_socket import ExchangeError
from rnic.coyote.ibvq import DEF_PORT, IBVQ_BYTES, OLDER_BYTES, IbvQ, OutOfBand, exchange, unpack_ibvq
from rnic.coyote.oper import CoyoteOper, rdmaSg
from rnic.coyote.thread import CThread
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP
from tests.unit.coyote.conftest import CLIENT, SERVER, Beside, connect, free_port

# typed by hand from the declaration: four 32-bit words, pointer, 64-bit size, 33 characters, 7 bytes of padding
GOLDEN = (
    "02 00 00 0a" "42 00 00 00" "56 34 12 00" "00 00 00 00" "00 70 56 34 12 7f 00 00" "00 00 20 00 00 00 00 00"
    + "30 61 30 30 30 30 30 32" * 4
    + "00" * 8
)  # fmt: skip


def test_golden_bytes() -> None:
    queue = IbvQ(0x0A000002, 0x42, 0x123456, 0, 0x7F1234567000, 2 << 20)
    data = bytes.fromhex(GOLDEN.replace(" ", ""))
    assert queue.pack() == data
    assert IBVQ_BYTES == len(data) == 72
    assert unpack_ibvq(data, "peer") == queue._replace(gid="0a000002" * 4)
    assert queue.address == "10.0.0.2"
    assert DEF_PORT == 18488


# the same of the hosts before: a 32-bit size, and so 3 bytes of padding
OLDER = (
    "02 00 00 0a" "42 00 00 00" "56 34 12 00" "00 00 00 00" "00 70 56 34 12 7f 00 00" "00 00 20 00"
    + "30 61 30 30 30 30 30 32" * 4
    + "00" * 4
)  # fmt: skip


def test_golden_bytes_of_an_older_host() -> None:
    queue = IbvQ(0x0A000002, 0x42, 0x123456, 0, 0x7F1234567000, 2 << 20, older=True)
    data = bytes.fromhex(OLDER.replace(" ", ""))
    assert queue.pack() == data
    assert OLDER_BYTES == len(data) == 64
    assert unpack_ibvq(data, "peer") == queue._replace(gid="0a000002" * 4)
    with pytest.raises(ExchangeError, match=r"size=4294967296: an older host's ibvQ has 32 bits"):
        queue._replace(size=1 << 32).pack()


def _exchange(sent: bytes, client: IbvQ | None = None) -> tuple[IbvQ, bytes]:
    """What ``exchange`` makes of the peer's bytes, and what the peer has then heard."""
    here, there = socket.socketpair()
    with here, there:
        there.sendall(sent)
        own = IbvQ(0x0A000001, 7, 8, 9, 0x1000, 100) if client is None else client
        found = exchange(OutOfBand(here, "peer"), own, client=client is not None, timeout_s=2)
        there.settimeout(2)
        return found, there.recv(100)


@pytest.mark.parametrize("gid", ["", "0a000002" * 4])
@pytest.mark.parametrize("size", [0, 5, 0x3030_3030, 0xFFFF_FFFF])
@pytest.mark.parametrize("older", [False, True])
def test_a_server_answers_as_its_client_speaks(older: bool, size: int, gid: str) -> None:
    """By what arrives, with a GID and without; words of ``connSync`` that follow stay in the stream."""
    client = IbvQ(0x0A000002, 0x42, 0x123456, 3, 0x7F1234567000, size, older=older)
    sent = bytearray(client.pack())
    if not gid:
        sent[28 if older else 32 :] = bytes(len(sent) - (28 if older else 32))
    found, heard = _exchange(bytes(sent))
    assert found == client._replace(gid=gid)
    assert len(heard) == (64 if older else 72)
    assert unpack_ibvq(heard, "us")._replace(gid="") == IbvQ(0x0A000001, 7, 8, 9, 0x1000, 100, older=older)


@pytest.mark.parametrize("older", [False, True])
def test_a_client_says_which_host_it_calls(older: bool) -> None:
    own = IbvQ(0x0A000001, 7, 8, 9, 0x1000, 100, older=older)
    server = IbvQ(0x0A000002, 1, 2, 3, 4, 5, older=older)
    found, heard = _exchange(server.pack(), own)
    assert (found._replace(gid=""), heard) == (server, own.pack())
    with pytest.raises(ExchangeError, match=f"connect with older={not older}"):
        _exchange(server._replace(older=not older).pack(), own)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"ip_addr": 0}, "ip_addr=0.0.0.0"),
        ({"ip_addr": 0xE0000001}, "ip_addr=224.0.0.1"),
        ({"ip_addr": 0xFFFFFFFF}, "ip_addr=255.255.255.255"),
        ({"qpn": 0}, "qpn=0x0"),
        ({"qpn": 1 << 24}, "qpn=0x1000000"),
        ({"psn": 1 << 24}, "psn=0x1000000"),
        ({"vaddr": 1 << 48}, "vaddr=0x1000000000000"),
        ({"size": 1 << 63}, "size=9223372036854775808"),
    ],
)
def test_what_cannot_be_connected_is_refused(wrong: dict[str, Any], named: str) -> None:
    data = IbvQ(0x0A000002, 1, 2, 3, 4, 5)._replace(**wrong).pack()
    with pytest.raises(ExchangeError, match=named):
        unpack_ibvq(data, "peer")


@pytest.mark.parametrize(
    ("sent", "words"), [(b"", "hung up before its ibvQ"), (b"x" * 71, "hung up before"), (b"\xff" * 72, "ip_addr=")]
)
def test_a_server_outlives_nonsense(sent: bytes, words: str) -> None:
    port = free_port()
    with CThread(device=SERVER, timeout=30) as thread:
        accepted = Beside(lambda: thread.initRDMA(100, port, timeout=30))
        with _dial(port) as sock:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
            with pytest.raises(ExchangeError, match=words):
                accepted.result()


def _dial(port: int) -> socket.socket:
    for _ in range(6000):  # waits: for the server to listen
        try:
            return socket.create_connection((SERVER, port), timeout=30)
        except ConnectionRefusedError:
            threading.Event().wait(0.005)
    raise AssertionError("the server does not listen")


def test_a_verbs_program_of_another_make() -> None:
    """A host without a shell: ibvQ by hand over TCP, keys of its own, both sides with the client's PSN."""
    port = free_port()
    with Context(addr=CLIENT) as ctx:
        pd, memory = PD(ctx), bytearray(1000)
        rights = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        region = MR(pd, memory, rights)
        cq = CQ(ctx, 8)
        qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(4, 4), scq=cq, rcq=cq))
        with CThread(device=SERVER, timeout=60) as thread:
            accepted = Beside(lambda: thread.initRDMA(4096, port, timeout=60))
            with _dial(port) as sock:
                ip = int.from_bytes(socket.inet_aton(CLIENT), "big")
                own = struct.pack("<4I2Q33s7x", ip, qp.qp_num, 0x777, region.rkey, region.buf, 1000, b"")
                sock.sendall(own)
                data = b""
                while len(data) < 72:
                    data += sock.recv(72 - len(data))
                ip, qpn, psn, rkey, vaddr, size = struct.unpack("<4I2Q", data[:32])
                assert (socket.inet_ntoa(ip.to_bytes(4, "big")), rkey, size) == (SERVER, 0, 4096)
                attr = QPAttr()
                attr.dest_qp_num, attr.rq_psn, attr.sq_psn, attr.path_mtu = qpn, psn, 0x777, e.IBV_MTU_4096
                attr.qp_access_flags = rights
                attr.ah_attr = AHAttr(GlobalRoute(GID(bytes(10) + b"\xff\xff" + ip.to_bytes(4, "big"))))
                attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
                attr.max_rd_atomic = attr.max_dest_rd_atomic = 16
                for step in (qp.to_init, qp.to_rtr, qp.to_rts):
                    step(attr)
                buffer = accepted.result()
                buffer[:6] = b"coyote"
                ctx.runtime.start()
                thread.invoke(CoyoteOper.REMOTE_RDMA_WRITE, rdmaSg(len=6, remote_offs=10))
                thread.wait(CoyoteOper.REMOTE_RDMA_WRITE)
                assert memory[10:16] == b"coyote"
                # and the other way, with R_Key 0
                qp.post_rdma(0x0A, region.buf + 10, 6, region.lkey, vaddr + 100, 0, 1, 1)
                thread.wait(CoyoteOper.LOCAL_WRITE)
                assert bytes(buffer[100:106]) == b"coyote"
                sock.sendall(bytes(4))


def test_a_buffer_of_the_programs_own() -> None:
    port = free_port()
    with CThread(device=SERVER, timeout=60) as server, CThread(device=CLIENT, timeout=10) as client:
        accepted = Beside(lambda: server.initRDMA(64, port, timeout=60))
        mine = bytearray(64)
        view = connect(client, port, 64, buffer=mine)
        accepted.result()
        view[:5] = b"mine!"
        assert mine[:5] == b"mine!"
        client.invoke(CoyoteOper.REMOTE_RDMA_WRITE, rdmaSg(len=5))
        client.wait(CoyoteOper.REMOTE_RDMA_WRITE)
        assert bytes(accepted.result()[:5]) == b"mine!"
        client.close()
