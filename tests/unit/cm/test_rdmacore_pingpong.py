from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from rnic.cm.line_socket import ExchangeError, listen_socket
from rnic.cm.rdmacore_pingpong import DONE, Destination, connect, parse_destination, serve

GID = bytes(10) + b"\xff\xff\x0a\x37\0\1"
# As ibv_rc_pingpong of rdma-core 44 prints it: "%04x:%06x:%06x:%s" and a NUL.
GOLDEN = b"0000:000011:a1b2c3:00000000000000000000ffff0a370001\0"


def test_golden_bytes() -> None:
    ours = Destination(0x11, 0xA1B2C3, GID)
    assert ours.to_bytes() == GOLDEN
    assert len(GOLDEN) == 52
    assert parse_destination(GOLDEN, "peer") == ours


@pytest.mark.parametrize(
    "message",
    [b"", GOLDEN[:-1], GOLDEN + b"\0", GOLDEN.replace(b":", b";"), b"x" * 52, GOLDEN.upper()[:-1] + b" "],
)
def test_other_bytes_are_refused(message: bytes) -> None:
    with pytest.raises(ExchangeError, match="peer sent"):
        parse_destination(message, "peer")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen_socket("127.0.0.1", 0) as sock:
        sock.settimeout(5)
        yield sock


def ends(base: int, count: int) -> list[Destination]:
    return [Destination(base + index, base, GID) for index in range(count)]


@pytest.mark.parametrize("count", [1, 16])
def test_both_sides_learn_of_the_other(listener: socket.socket, count: int) -> None:
    order: list[str] = []
    learned: list[list[Destination]] = []

    def server() -> None:
        learned.append(serve(listener, ends(100, count), lambda theirs: order.append(f"up {theirs[0].qpn}")))

    thread = threading.Thread(target=server)
    thread.start()
    theirs = connect("127.0.0.1", listener.getsockname()[1], ends(200, count))
    # the server was brought up before the client got its answer
    assert order == ["up 200"]
    thread.join()
    assert theirs == ends(100, count)
    assert learned == [ends(200, count)]


def test_the_client_says_done(listener: socket.socket) -> None:
    heard: list[bytes] = []

    def pingpong() -> None:
        sock, _ = listener.accept()
        with sock:
            heard.append(sock.recv(52, socket.MSG_WAITALL))
            sock.sendall(GOLDEN)
            heard.append(sock.recv(5, socket.MSG_WAITALL))

    thread = threading.Thread(target=pingpong)
    thread.start()
    assert connect("127.0.0.1", listener.getsockname()[1], ends(7, 1)) == [parse_destination(GOLDEN, "")]
    thread.join()
    assert heard == [ends(7, 1)[0].to_bytes(), DONE]


def test_a_server_that_says_half_is_told_of(listener: socket.socket) -> None:
    def pingpong() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(52, socket.MSG_WAITALL)
            sock.sendall(GOLDEN[:20])

    thread = threading.Thread(target=pingpong)
    thread.start()
    with pytest.raises(ExchangeError, match="after 20 of 52 bytes"):
        connect("127.0.0.1", listener.getsockname()[1], ends(7, 1))
    thread.join()


def test_a_silent_client_is_given_up_on(listener: socket.socket) -> None:
    with (
        socket.create_connection(listener.getsockname()),
        pytest.raises(ExchangeError, match=r"0 of 52 bytes within 0\.01 s"),
    ):
        serve(listener, ends(1, 1), lambda theirs: None, timeout_s=0.01)


def test_no_client(listener: socket.socket) -> None:
    listener.settimeout(0.01)
    with pytest.raises(ExchangeError, match="no client came"):
        serve(listener, ends(1, 1), lambda theirs: None)
