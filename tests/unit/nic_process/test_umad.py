"""Programs' management datagrams on one port: agents, transaction IDs, LIDs, path records, timeouts."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rnic.device.mad_agent import METHOD_GET
from rnic.nic_process import umad as u
from rnic.nic_process.sysfs_tree import SM_LID
from rnic.spec import attach
from rnic.spec.gids import gid_from_address
from rnic.trace.counters import Counters
from rnic.trace.guard import Guard
from rnic.wire.mad import CLASS_CM, CLASS_PERF, MAD_BYTES, Mad

OWN, PEER = (gid_from_address(bytes((127, 0, 0, last))) for last in (1, 2))
PING = 0x32
"""A vendor class with an OUI, that of ibping."""
OUI = b"\x00\x14\x05"


class Port:
    """The device, what it sent, and files of programs."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes]] = []
        config = SimpleNamespace(gid=OWN, gid_table=[OWN], address=OWN[12:], pkeys=[0xFFFF], index=0)

        def send(datagram: bytes, gid: bytes, tclass: int) -> None:
            self.sent.append((datagram, gid))

        gsi = SimpleNamespace(programs=None, mtu_code=5, send=send)
        self.nic: Any = SimpleNamespace(
            config=config, gsi=gsi, counters=Counters(), now_ns=0, globals=SimpleNamespace(dead=False)
        )
        device: Any = SimpleNamespace(runtime=SimpleNamespace(nic=self.nic))
        self.selector = selectors.DefaultSelector()
        self.files = u.UmadFiles({"rnic0": device}, self.selector, Guard(Counters()))

    def ask(self, what: int, number: int, argument: bytes = b"", *fds: int) -> int:
        client: Any = None
        answer = self.files.handle(client, struct.pack("=II", what, number) + argument, list(fds), [])
        return int.from_bytes(answer, "little")

    def open(self) -> tuple[socket.socket, int]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            return ours, self.ask(attach.UMAD_OPEN, 0, b"", theirs.fileno())

    def register(self, file: int, mgmt_class: int, methods: int = 0, oui: bytes = bytes(3), qpn: int = 1) -> int:
        argument = u._REGISTER.pack(0, methods.to_bytes(16, "little"), qpn, mgmt_class, 1, oui, 0)
        return self.ask(attach.UMAD_REGISTER, file, argument)

    def serve(self) -> None:
        for key, _ in self.selector.select(0):
            key.data()


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.files.close()
    made.selector.close()


def mad(mgmt_class: int, method: int, tid: int = 7, attr: int = 0x12) -> bytes:
    header = Mad.parse(bytes((1, mgmt_class, 1, method)).ljust(24, b"\0"))
    header.tid, header.attr_id = tid, attr
    data = bytearray(header.pack().ljust(MAD_BYTES, b"\0"))
    data[u._OUI_AT : u._OUI_AT + 3] = OUI
    return bytes(data)


def message(agent: int, datagram: bytes, lid: int = 0, timeout_ms: int = 0, retries: int = 0) -> bytes:
    words = u._WORDS.pack(agent, 0, timeout_ms, retries, 0)
    return words + u._ADDRESS.pack(1, 0, lid, 0, 0, 0, 0, 0, 0, bytes(16), 0) + bytes(8) + datagram


def taken(file: socket.socket) -> tuple[int, int, int, bytes]:
    """Agent, status, LID and datagram of what a program reads next."""
    data = file.recv(1024, socket.MSG_DONTWAIT)
    agent, status, _, _, length = u._WORDS.unpack_from(data)
    assert length == len(data)
    return agent, status, u._ADDRESS.unpack_from(data, u._WORDS.size)[2], data[u.HEADER_BYTES :]


def path_record(port: Port, file: socket.socket, agent: int, gid: bytes) -> int:
    """Ask for the path to a GID, and return its LID."""
    asked = bytearray(mad(u.CLASS_SA, METHOD_GET, attr=0x35))
    asked[u._DGID : u._SGID] = gid
    file.send(message(agent, bytes(asked), SM_LID))
    port.serve()
    got, status, _, answer = taken(file)
    header = Mad.parse(answer)
    assert (got, status, header.method, header.status, header.tid) == (agent, 0, 0x81, 0, 7)
    return int.from_bytes(answer[u._DLID : u._DLID + 2], "big")


def test_a_request_finds_its_peer_by_a_path_record_and_its_response_its_agent(port: Port) -> None:
    file, number = port.open()
    with file:
        administration, agent = port.register(number, u.CLASS_SA), port.register(number, CLASS_PERF)
        by_guid = bytes.fromhex("fe80000000000000") + PEER[8:]
        lid = path_record(port, file, administration, by_guid)
        assert lid == path_record(port, file, administration, PEER) == 1
        assert path_record(port, file, administration, OWN) == 0
        file.send(message(agent, mad(CLASS_PERF, 1), lid, timeout_ms=100))
        port.serve()
        sent, to = port.sent.pop()
        asked = Mad.parse(sent)
        assert (to, asked.tid & 0xFFFF_FFFF) == (PEER, 7)
        answered = mad(CLASS_PERF, 0x81, asked.tid)
        programs = port.nic.gsi.programs
        programs.receive(answered, OWN, 0)
        assert port.nic.counters["drop_mad_unattended"] == 1, "of another port"
        programs.receive(answered, PEER, 0)
        assert taken(file) == (agent, 0, lid, answered)
        programs.receive(answered, PEER, 0)
        assert port.nic.counters["drop_mad_unattended"] == 2, "a second time"
        assert programs.next_deadline_ns() is None


def test_requests_go_to_the_agent_of_their_class_and_oui(port: Port) -> None:
    file, number = port.open()
    with file:
        agent = port.register(number, PING, 1 << 1, OUI)
        port.nic.gsi.programs.receive(mad(PING, 1), PEER, 0)
        got, status, lid, asked = taken(file)
        assert (got, status, asked) == (agent, 0, mad(PING, 1))
        file.send(message(agent, mad(PING, 0x81), lid))
        port.serve()
        assert port.sent == [(mad(PING, 0x81), PEER)], "with the transaction ID that came"
        for other in (mad(PING, 2), mad(PING + 1, 1), mad(PING, 1).replace(OUI, b"\1\2\3")):
            port.nic.gsi.programs.receive(other, PEER, 0)
        assert port.nic.counters["drop_mad_unattended"] == 3


def test_without_a_response_a_request_is_repeated_and_comes_back(port: Port) -> None:
    file, number = port.open()
    with file:
        agent = port.register(number, CLASS_PERF)
        file.send(message(agent, mad(CLASS_PERF, 1), timeout_ms=100, retries=1))
        port.serve()
        programs = port.nic.gsi.programs
        assert programs.next_deadline_ns() == 100_000_000
        programs.handle_timers(100_000_000)
        assert len(port.sent) == 2
        programs.handle_timers(200_000_000)
        got, status, _, header = taken(file)
        assert (got, status, len(header), len(port.sent)) == (agent, errno.ETIMEDOUT, 24, 2)


def test_what_cannot_be_sent_comes_back_with_an_errno(port: Port) -> None:
    file, number = port.open()
    with file:
        agent = port.register(number, CLASS_PERF)
        for wrong, code in (
            (message(agent, mad(CLASS_PERF, 1), lid=77), errno.EHOSTUNREACH),
            (message(agent, mad(PING, 1)), errno.EINVAL),
        ):
            file.send(wrong)
            port.serve()
            assert taken(file)[1] == code
        file.send(message(9, mad(CLASS_PERF, 1)))
        file.send(b"short")
        port.serve()
        port.serve()
        assert port.sent == []


def test_registrations_are_refused_as_the_kernel_does(port: Port) -> None:
    file, number = port.open()
    other, second = port.open()
    with file, other:
        assert [port.register(number, PING, 2, OUI), port.register(number, PING)] == [0, 1]
        for wrong in ((second, PING, 2, OUI), (second, CLASS_CM, 2), (second, PING, 0, OUI, 2), (99, PING)):
            with pytest.raises(OSError) as refused:
                port.register(*wrong)
            assert refused.value.errno == errno.EINVAL
        assert port.register(second, PING, 4, OUI) == 0, "another method"
        port.ask(attach.UMAD_UNREGISTER, number, struct.pack("=I", 0))
        assert port.register(second, PING, 2, OUI) == 1
        with pytest.raises(OSError, match="is not registered"):
            port.ask(attach.UMAD_UNREGISTER, number, struct.pack("=I", 0))
        for _ in range(u.MAX_AGENTS - 1):
            port.register(number, PING)
        with pytest.raises(OSError) as full:
            port.register(number, PING)
        assert full.value.errno == errno.ENOMEM


def test_a_closed_file_takes_its_agents_along(port: Port) -> None:
    file, number = port.open()
    port.register(number, PING, 2, OUI)
    assert port.nic.gsi.programs.view() == {"agents": [{"class": PING, "file": number}]}
    file.close()
    port.serve()
    assert port.nic.gsi.programs.view() == {"agents": []}


def test_only_a_device_that_is_there_and_a_socket_can_be_opened(port: Port) -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(OSError) as absent:
            port.ask(attach.UMAD_OPEN, 5, b"", read)
        assert absent.value.errno == errno.ENXIO
        with pytest.raises(OSError) as other:
            port.ask(attach.UMAD_OPEN, 0, b"", read)
        assert other.value.errno == errno.ENOTSOCK
    finally:
        os.close(read)
        os.close(write)
