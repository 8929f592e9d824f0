"""The shell's TCP interfaces against ordinary sockets of this machine."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from errno import EINVAL
from typing import Any

import pytest

from rnic.coyote import tcp as t
from rnic.link.beats import BEAT_BYTES, Beat, payload_of, to_beats
from rnic.rings import coyote as c
from rnic.spec.errors import VerbsError
from rnic.testing import own_network

NET = own_network()
ADDRESS = f"{NET}.1"
NUMBER = int.from_bytes(socket.inet_aton(ADDRESS), "big")


class Echo:
    """A shell's logic that sends back whatever arrives: what a kernel on the FPGA would be."""

    def __init__(self, service: t.TcpService) -> None:
        self.service = service
        self.packages: list[tuple[int, bytes]] = []
        self.closed: list[int] = []
        self._beats: list[Beat] = []

    def step(self) -> None:
        s = self.service
        s.progress(0.001)
        while s.tcp_notify:
            said = c.TCP_NOTIFY.unpack(s.tcp_notify.popleft())
            if said["len"]:
                assert s.tcp_rd_pkg(c.TCP_RD_PKG.pack({"sid": said["sid"], "len": said["len"]}))
            if said["closed"]:
                self.closed.append(said["sid"])
        while s.tcp_rx_meta:
            sid = c.TCP_RX_META.unpack(s.tcp_rx_meta.popleft())["sid"]
            beats: list[Any] = []
            while not beats or not beats[-1].last:
                beats.append(s.axis_tcp_rx.popleft())
            self.packages.append((sid, payload_of(beats)))
        while self.packages:
            sid, data = self.packages[0]
            assert s.tcp_tx_meta(c.TCP_TX_META.pack({"sid": sid, "len": len(data)}))
            error = c.TCP_TX_STAT.get(s.tcp_tx_stat.popleft(), "error")
            if error == t.NO_ROOM:
                break
            self.packages.pop(0)
            if error == t.OK:
                s.axis_tcp_tx(list(to_beats(data)))
        if not self.packages:
            for sid in self.closed:
                s.tcp_close_req(c.TCP_CLOSE_REQ.pack({"sid": sid}))
            self.closed.clear()


@pytest.fixture
def service() -> Iterator[t.TcpService]:
    made = t.TcpService(ADDRESS)
    yield made
    made.close()


def free_port() -> int:
    with socket.create_server((ADDRESS, 0)) as sock:
        return int(sock.getsockname()[1])


def listen(service: t.TcpService) -> int:
    port = free_port()
    assert service.tcp_listen_req(c.TCP_LISTEN_REQ.pack({"port": port}))
    assert c.TCP_LISTEN_RSP.unpack(service.tcp_listen_rsp.popleft()) == {"success": 1}
    return port


def until(step: Callable[[], object], done: Callable[[], bool]) -> None:
    for _ in range(3_000):  # waits: in steps of simulated time
        if done():
            return
        step()
    raise AssertionError("it does not happen")


def notified(service: t.TcpService) -> list[dict[str, int]]:
    found = [c.TCP_NOTIFY.unpack(said) for said in service.tcp_notify]
    service.tcp_notify.clear()
    return found


@pytest.mark.parametrize("size", [1, 64, 65, 5_000, 300_000])
def test_echo_to_an_ordinary_client(service: t.TcpService, size: int) -> None:
    echo = Echo(service)
    port = listen(service)
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    with socket.create_connection((ADDRESS, port)) as client:
        client.setblocking(False)
        unsent, got = memoryview(data), bytearray()

        def step() -> None:
            nonlocal unsent
            echo.step()
            if unsent:
                with contextlib.suppress(BlockingIOError):
                    unsent = unsent[client.send(unsent) :]
            with contextlib.suppress(BlockingIOError):
                got.extend(client.recv(1 << 16))

        until(step, lambda: len(got) == size)
        assert got == data
        client.shutdown(socket.SHUT_WR)
        until(echo.step, lambda: service.sessions == 0)
        client.setblocking(True)
        assert client.recv(1) == b""


def test_many_sessions_at_once(service: t.TcpService) -> None:
    echo = Echo(service)
    port = listen(service)
    clients = [socket.create_connection((ADDRESS, port)) for _ in range(20)]
    for number, client in enumerate(clients):
        client.sendall(b"%03d" % number * 100)
        client.setblocking(False)
    for number, client in enumerate(clients):
        got = bytearray()

        def step(client: socket.socket = client, got: bytearray = got) -> None:
            echo.step()
            with contextlib.suppress(BlockingIOError):
                got.extend(client.recv(1000))

        until(step, lambda got=got: len(got) == 300)  # type: ignore[misc]
        assert got == b"%03d" % number * 100
        client.close()


def test_opening_to_an_ordinary_server(service: t.TcpService) -> None:
    with socket.create_server((ADDRESS, 0)) as server:
        port = server.getsockname()[1]
        assert service.tcp_open_req(c.TCP_OPEN_REQ.pack({"ip_address": NUMBER, "ip_port": port}))
        until(service.progress, lambda: bool(service.tcp_open_rsp))
        said = c.TCP_OPEN_RSP.unpack(service.tcp_open_rsp.popleft())
        assert said == {"sid": 1, "success": 1, "ip_address": NUMBER, "ip_port": port}
        peer, _ = server.accept()
        with peer:
            service.tcp_tx_meta(c.TCP_TX_META.pack({"sid": 1, "len": 5}))
            stat = c.TCP_TX_STAT.unpack(service.tcp_tx_stat.popleft())
            assert stat == {"sid": 1, "len": 5, "remaining_space": t.BUFFER_BYTES - 5, "error": t.OK}
            service.axis_tcp_tx(list(to_beats(b"hello")))
            assert peer.recv(10) == b"hello"
            service.tcp_close_req(c.TCP_CLOSE_REQ.pack({"sid": 1}))
            assert peer.recv(10) == b""
    assert service.sessions == 0


def test_nobody_there_is_an_answer(service: t.TcpService) -> None:
    port = free_port()
    service.tcp_open_req(c.TCP_OPEN_REQ.pack({"ip_address": NUMBER, "ip_port": port}))
    until(lambda: service.progress(0.001), lambda: bool(service.tcp_open_rsp))
    said = c.TCP_OPEN_RSP.unpack(service.tcp_open_rsp.popleft())
    assert (said["sid"], said["success"]) == (0, 0)
    assert service.sessions == 0
    assert service.counters["tcp_open_failed"] == 1


def test_ports_that_cannot_be_had(service: t.TcpService) -> None:
    with socket.create_server((ADDRESS, 0)) as taken:
        for port in (taken.getsockname()[1], 0):
            service.tcp_listen_req(c.TCP_LISTEN_REQ.pack({"port": port}))
            assert c.TCP_LISTEN_RSP.unpack(service.tcp_listen_rsp.popleft()) == {"success": 0}
    port = listen(service)
    service.tcp_listen_req(c.TCP_LISTEN_REQ.pack({"port": port}))
    assert c.TCP_LISTEN_RSP.unpack(service.tcp_listen_rsp.popleft()) == {"success": 1}


def test_notifications_of_a_session(service: t.TcpService) -> None:
    port = listen(service)
    with socket.create_connection((ADDRESS, port), source_address=(f"{NET}.2", 0)) as client:
        until(service.progress, lambda: bool(service.tcp_notify))
        new = {"sid": 1, "len": 0, "ip_address": NUMBER + 1, "dst_port": port, "closed": 0}
        assert notified(service) == [new]
        client.sendall(b"abc")
        until(service.progress, lambda: bool(service.tcp_notify))
        assert notified(service) == [new | {"len": 3}]
        # more is asked for than has arrived: it comes when it has
        service.tcp_rd_pkg(c.TCP_RD_PKG.pack({"sid": 1, "len": 5}))
        assert not service.tcp_rx_meta
        client.sendall(b"def")
        until(service.progress, lambda: bool(service.tcp_rx_meta))
        assert payload_of(service.axis_tcp_rx) == b"abcde"
        client.shutdown(socket.SHUT_WR)
        until(service.progress, lambda: any(said["closed"] for said in notified(service)))
        for _ in range(3):
            service.progress()
        assert notified(service) == []  # said once
        assert service.sessions == 1  # until the shell closes it


def test_a_shell_that_reads_nothing_stops_the_peer(service: t.TcpService) -> None:
    port = listen(service)
    with socket.create_connection((ADDRESS, port)) as client:
        client.setblocking(False)
        sent = 0
        for _ in range(500):
            with contextlib.suppress(BlockingIOError):
                sent += client.send(bytes(1 << 16))
            service.progress()
        (session,) = service._sessions.values()
        assert len(session.arrived) == t.BUFFER_BYTES
        assert sent < 20 << 20
        assert sum(said["len"] for said in notified(service)) == t.BUFFER_BYTES
        # and goes on when it reads
        service.tcp_rd_pkg(c.TCP_RD_PKG.pack({"sid": session.sid, "len": 1000}))
        until(service.progress, lambda: bool(service.tcp_notify))
        assert sum(said["len"] for said in notified(service)) == 1000


def test_a_peer_that_reads_nothing_fills_the_buffer(service: t.TcpService) -> None:
    port = listen(service)
    with socket.create_connection((ADDRESS, port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        until(service.progress, lambda: bool(service.tcp_notify))
        meta = c.TCP_TX_META.pack({"sid": 1, "len": 60_000})
        errors = []
        for _ in range(400):
            service.tcp_tx_meta(meta)
            errors.append(c.TCP_TX_STAT.get(service.tcp_tx_stat.popleft(), "error"))
            if errors[-1] == t.OK:
                service.axis_tcp_tx(list(to_beats(bytes(60_000))))
            service.progress()
        assert errors[0] == t.OK
        assert errors[-1] == t.NO_ROOM
        assert len(service._sessions[1].unsent) <= t.BUFFER_BYTES


@pytest.mark.parametrize("packages", [[b"abcd"], [b"abcdef"], [b""], [b"abcde", b"x"]])
def test_data_that_were_not_announced(service: t.TcpService, packages: list[bytes]) -> None:
    port = listen(service)
    with socket.create_connection((ADDRESS, port)):
        until(service.progress, lambda: bool(service.tcp_notify))
        service.tcp_tx_meta(c.TCP_TX_META.pack({"sid": 1, "len": 5}))
        for package in packages:
            service.axis_tcp_tx(list(to_beats(package)) or [Beat(bytes(BEAT_BYTES), 0, True)])
        if len(packages) == 2:
            assert (service.counters["tcp_tx_unasked"], service.sessions) == (1, 1)
        else:
            assert (service.counters["tcp_tx_wrong_length"], service.sessions) == (1, 0)


def test_unknown_sessions_and_short_requests(service: t.TcpService) -> None:
    service.tcp_rd_pkg(c.TCP_RD_PKG.pack({"sid": 9, "len": 1}))
    service.tcp_close_req(c.TCP_CLOSE_REQ.pack({"sid": 9}))
    service.tcp_tx_meta(c.TCP_TX_META.pack({"sid": 9, "len": 1}))
    assert c.TCP_TX_STAT.get(service.tcp_tx_stat.popleft(), "error") == t.NO_SESSION
    assert service.counters["tcp_unknown_sessions"] == 2
    with pytest.raises(VerbsError) as caught:
        service.tcp_open_req(b"abc")
    assert caught.value.errno == EINVAL


def test_streams_to_the_shell_are_bounded(service: t.TcpService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t, "MAX_WAITING", 3)
    for _ in range(3):
        assert service.tcp_tx_meta(c.TCP_TX_META.pack({"sid": 9, "len": 1}))
    assert not service.tcp_tx_meta(c.TCP_TX_META.pack({"sid": 9, "len": 1}))
    port = free_port()
    request = c.TCP_LISTEN_REQ.pack({"port": port})
    assert [service.tcp_listen_req(request) for _ in range(4)] == [True] * 3 + [False]
    clients = [socket.create_connection((ADDRESS, port)) for _ in range(5)]
    for _ in range(10):
        service.progress()
    assert service.sessions == 3
    service.tcp_notify.clear()
    until(service.progress, lambda: service.sessions == 5)
    for client in clients:
        client.close()


def test_a_reset_ends_a_session(service: t.TcpService) -> None:
    port = listen(service)
    client = socket.create_connection((ADDRESS, port))
    until(service.progress, lambda: bool(service.tcp_notify))
    service.tcp_notify.clear()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    until(service.progress, lambda: bool(service.tcp_notify))
    assert [said["closed"] for said in notified(service)] == [1]
    assert service.counters["tcp_resets"] == 1
