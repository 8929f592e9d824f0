"""What a NETLINK_RDMA socket answers, message by message."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from rnic import enums as e
from rnic.device.inspect import look
from rnic.nic_process import netlink as n
from rnic.testing import QpPair
from rnic.verbs.attrs import QPAttr

DUMP = 1 | n.NLM_F_DUMP


def device(pair: QpPair) -> Any:
    """What stands for a device of the NIC process: one of a pair."""

    runtime = pair.a.ctx.runtime
    return SimpleNamespace(
        runtime=runtime, bypass=SimpleNamespace(slots={}, inspect=lambda what: look(runtime.nic, what))
    )


def request(command: int, flags: int = DUMP, **told: int) -> bytes:
    body = b"".join(n.attribute(name, value) for name, value in told.items())
    return n.HEADER.pack(n.HEADER.size + len(body), n.CLIENT << 10 | command, flags, 77, 0) + body


def taken(datagrams: list[bytes]) -> list[tuple[int, dict[str, bytes]]]:
    """Type and attributes of each."""
    found = []
    for each in datagrams:
        length, kind, _, seq, port = n.HEADER.unpack_from(each)
        assert (length, seq, port) == (len(each), 77, 0)
        found.append((kind, n.attributes(each[n.HEADER.size :])))
    return found


def number(data: bytes) -> int:
    return int.from_bytes(data, "little")


@pytest.fixture
def answers() -> Any:
    with QpPair() as pair:
        yield n.Answers({"mlx5_0": device(pair)}, ())


def test_devices_and_ports(answers: n.Answers) -> None:
    (kind, seen), (last, _) = taken(answers.of(request(n.GET)))
    assert (kind, last) == (n.CLIENT << 10 | n.GET, n.NLMSG_DONE)
    assert seen["DEV_NAME"] == b"sim0\0"
    assert (number(seen["DEV_INDEX"]), number(seen["PORT_INDEX"]), number(seen["DEV_NODE_TYPE"])) == (0, 1, 1)
    assert seen["DEV_PROTOCOL"] == b"roce\0"
    (_, port), _ = taken(answers.of(request(n.PORT_GET)))
    assert (number(port["PORT_STATE"]), number(port["PORT_PHYS_STATE"])) == (4, 5)


def test_one_device_is_acknowledged(answers: n.Answers) -> None:
    datagrams = answers.of(request(n.GET, 1 | n.NLM_F_ACK, DEV_INDEX=0))
    assert [n.HEADER.unpack_from(each)[1] for each in datagrams] == [n.CLIENT << 10 | n.GET, n.NLMSG_ERROR]
    assert struct.unpack_from("=i", datagrams[1], n.HEADER.size)[0] == 0


def entries(data: bytes) -> list[dict[str, bytes]]:
    """The entries of a table."""
    found, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 2], "little")
        found.append(n.attributes(data[at + 4 : at + length]))
        at += length + -length % 4
    return found


def test_resources(answers: n.Answers) -> None:
    (_, seen), _ = taken(answers.of(request(n.RES_GET)))
    counts = {
        each["RES_SUMMARY_ENTRY_NAME"].rstrip(b"\0").decode(): number(each["RES_SUMMARY_ENTRY_CURR"])
        for each in entries(seen["RES_SUMMARY"])
    }
    assert counts == {"qp": 1, "cm_id": 0, "cq": 1, "pd": 1, "mr": 1, "ctx": 1, "srq": 0}
    (_, seen), _ = taken(answers.of(request(n.RES_QP_GET)))
    (qp,) = entries(seen["RES_QP"])
    assert (number(qp["RES_TYPE"]), number(qp["RES_STATE"]), len(qp["RES_STATE"])) == (2, 3, 1)
    assert number(qp["RES_RQPN"])
    (_, seen), _ = taken(answers.of(request(n.RES_MR_GET)))
    assert number(entries(seen["RES_MR"])[0]["RES_MRLEN"]) == 1 << 20
    for command, name in ((n.RES_CQ_GET, "RES_CQ"), (n.RES_PD_GET, "RES_PD")):
        (_, seen), _ = taken(answers.of(request(command)))
        assert len(entries(seen[name])) == 1
    assert len(taken(answers.of(request(n.RES_CM_ID_GET)))) == 1, "nothing but the end"


def test_long_tables_come_in_parts_that_fit_a_page() -> None:
    with QpPair() as pair:
        from rnic.verbs.attrs import QPCap, QPInitAttr
        from rnic.verbs.qp import QP

        side = pair.a
        for _ in range(60):
            qp = QP(side.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(1, 1, 1, 1, 0), side.cq, side.cq))
            qp.to_init(QPAttr())
        datagrams = n.Answers({"a": device(pair)}, ()).of(request(n.RES_QP_GET))
        assert len(datagrams) > 2
        assert max(map(len, datagrams)) < 4096
        assert sum(len(entries(seen["RES_QP"])) for _, seen in taken(datagrams)[:-1]) == 61


def test_what_is_not_there_is_refused(answers: n.Answers) -> None:
    def code(datagrams: list[bytes]) -> int:
        assert n.HEADER.unpack_from(datagrams[0])[1] == n.NLMSG_ERROR
        return -int(struct.unpack_from("=i", datagrams[0], n.HEADER.size)[0])

    assert code(answers.of(request(3))) == errno.EOPNOTSUPP, "NEWLINK"
    assert code(answers.of(request(n.GET, 1))) == errno.EINVAL, "no device is named"
    assert code(answers.of(request(n.GET, 1, DEV_INDEX=9))) == errno.EINVAL
    assert code(answers.of(n.HEADER.pack(16, 2 << 10 | 1, 1, 77, 0))) == errno.EOPNOTSUPP, "another client"
    assert answers.of(b"short") == []
    wild = n.HEADER.pack(0xFFFF_FFFF, n.CLIENT << 10 | n.GET, DUMP, 77, 0) + b"\xff" * 40
    assert len(answers.of(wild)) == 2


def test_a_program_sees_its_own_devices_alone() -> None:
    with QpPair() as pair:
        assert len(n.Answers({"mlx5_0": device(pair)}, ["rnic7"]).of(request(n.GET))) == 1


def test_only_one_end_of_a_pair_is_served() -> None:

    with selectors.DefaultSelector() as selector, socket.socket() as stream:
        sockets = n.NetlinkSockets({}, selector, SimpleNamespace())  # type: ignore[arg-type]
        with pytest.raises(OSError, match="one end of a pair"):
            sockets.add(stream.fileno(), ())
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here, there:
            sockets.add(there.fileno(), ())
            here.send(request(n.GET))
            ((key, _),) = selector.select(1)
            key.data()
            assert n.HEADER.unpack_from(here.recv(4096))[1] == n.NLMSG_DONE
            here.shutdown(socket.SHUT_RDWR)
            ((key, _),) = selector.select(1)
            key.data()
            assert not selector.get_map()
        sockets.close()


def test_a_netlink_dump_continues_as_the_program_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    dump = [number.to_bytes(2_000, "little") for number in range(1_000)]
    monkeypatch.setattr(n.Answers, "of", lambda answers, request: dump)
    with selectors.DefaultSelector() as selector:
        sockets = n.NetlinkSockets({}, selector, SimpleNamespace())  # type: ignore[arg-type]
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here:
            with there:
                sockets.add(there.fileno(), ())
            here.setblocking(False)
            for _ in range(2):
                here.send(request(n.GET))
            found: list[bytes] = []
            while len(found) < 2 * len(dump):
                for key, _ in selector.select(1):
                    key.data()
                with contextlib.suppress(BlockingIOError):
                    while True:
                        found.append(here.recv(4_096))
            assert found == 2 * dump
        ((key, _),) = selector.select(1)
        key.data()
        assert not selector.get_map(), "the program is gone"


def test_a_program_that_reads_no_answers_costs_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(n.Answers, "of", lambda answers, request: [bytes(2_000)] * 1_000)
    with selectors.DefaultSelector() as selector:
        sockets = n.NetlinkSockets({}, selector, SimpleNamespace())  # type: ignore[arg-type]
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here, there:
            sockets.add(there.fileno(), ())
            for _ in range(5):
                here.send(request(n.GET))
            ((key, _),) = selector.select(1)
            key.data()
            assert selector.select(0) == []
        sockets.close()
