from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rnic.arrays import handshake
from rnic.arrays.handshake import BufferInfo, Endpoint, parse_endpoint, refusal_line
from rnic.cm import line_socket
from rnic.cm.line_socket import ExchangeError, LineSocket, dial, listen_socket

BUFFER = BufferInfo("weights", 0x7F00_0000_1000, 24, 0x0102_0304, "<f8", (3,), False)
ENDPOINT = Endpoint(17, 0xFFFFFF, bytes(10) + b"\xff\xff\x7f\0\0\1", 4791, 4096, True, 16, 1 << 20, 8, (BUFFER,))


def said(**changes: Any) -> bytes:
    values = json.loads(ENDPOINT.to_line())
    values |= changes
    return json.dumps(values).encode()


def said_of_buffer(**changes: Any) -> bytes:
    return said(buffers=[BUFFER.to_dict() | changes])


def test_a_line_says_everything() -> None:
    line = ENDPOINT.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert parse_endpoint(line[:-1], "peer") == ENDPOINT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("qpn", 0),
        ("qpn", 1 << 24),
        ("qpn", "17"),
        ("qpn", True),
        ("qpn", 17.0),
        ("qpn", None),
        ("psn", -1),
        ("psn", 1 << 24),
        ("gid", "00"),
        ("gid", "g" * 32),
        ("gid", 5),
        ("udp_port", 0),
        ("udp_port", 65536),
        ("mtu", 1000),
        ("gso", 1),
        ("keeps", 1),
        ("max_rd_atomic", 129),
        ("message_bytes", -1),
        ("receives", 1 << 17),
        ("buffers", {}),
        ("buffers", [1]),
        ("buffers", [BUFFER.to_dict()] * 2),
        ("buffers", [BUFFER.to_dict()] * (handshake.MAX_BUFFERS + 1)),
    ],
)
def test_a_wrong_field_is_one_line(field: str, value: object) -> None:
    with pytest.raises(ExchangeError) as error:
        parse_endpoint(said(**{field: value}), "peer")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
    assert "peer" in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "x" * 201),
        ("addr", -1),
        ("addr", (1 << 64) - 8),
        ("length", 0),
        ("rkey", 1 << 32),
        ("dtype", "|O8"),
        ("dtype", "O"),
        ("dtype", "<f8,<f8"),
        ("dtype", "f8"),
        ("shape", [2]),
        ("shape", [-1, -3]),
        ("shape", [3.0]),
        ("shape", [True, 3]),
        ("shape", "3"),
        ("shape", [1] * 40 + [3]),
        ("shape", [0]),
        ("writable", 1),
    ],
)
def test_a_wrong_buffer_is_refused(field: str, value: object) -> None:
    with pytest.raises(ExchangeError, match=f"{field}="):
        parse_endpoint(said_of_buffer(**{field: value}), "peer")


@pytest.mark.parametrize("line", [b"", b"GET / HTTP/1.1", b"\xff\xfe", b"[]", b"3", b"[" * 100_000, b"{" * 1000])
def test_what_is_no_exchange_is_refused(line: bytes) -> None:
    with pytest.raises(ExchangeError, match="does not speak the exchange"):
        parse_endpoint(line, "peer")


def test_another_version_is_refused() -> None:
    with pytest.raises(ExchangeError, match="version 2"):
        parse_endpoint(said(rnic=2), "peer")


def test_a_refusal_is_told_without_control_characters() -> None:
    line = refusal_line("no room\x1b[31m\nfor you")
    with pytest.raises(ExchangeError, match=r"peer refused: no room\?\[31m\?for you"):
        parse_endpoint(line[:-1], "peer")


def test_item_bytes() -> None:
    assert [handshake.item_bytes(dtype) for dtype in ("<f8", "|u1", "<U5", "<M8[ns]", "<c16")] == [
        8,
        1,
        20,
        8,
        16,
    ]


# ------------------------------------------------------------------------------------------- over TCP


@pytest.fixture
def ends() -> Iterator[tuple[LineSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield LineSocket(ours, "peer"), theirs


def test_lines_arrive_however_they_are_cut(ends: tuple[LineSocket, socket.socket]) -> None:
    lines, theirs = ends
    for piece in (b"fi", b"rst\nsec", b"ond\n"):
        theirs.sendall(piece)
    assert [lines.receive(), lines.receive()] == [b"first", b"second"]


def test_a_slow_peer_is_given_up_on_whatever_it_trickles(ends: tuple[LineSocket, socket.socket]) -> None:
    lines, theirs = ends
    times = iter([0.0, 1.0, 4.0, 9.0, 11.0])
    theirs.sendall(b"x")
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.001):
            theirs.sendall(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with pytest.raises(ExchangeError, match="no whole line within 10 s"):
            lines.receive(10, clock=lambda: next(times))
    finally:
        stop.set()
        thread.join()


def test_an_endless_line_is_cut_off(ends: tuple[LineSocket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_socket, "MAX_LINE_BYTES", 1000)
    lines, theirs = ends
    theirs.sendall(b"x" * 2000)
    with pytest.raises(ExchangeError, match="longer than 1000 bytes"):
        lines.receive()


def test_hanging_up_is_told(ends: tuple[LineSocket, socket.socket]) -> None:
    lines, theirs = ends
    theirs.sendall(b"half a li")
    theirs.close()
    with pytest.raises(ExchangeError, match="hung up before"):
        lines.receive()


def test_dial_and_listen() -> None:
    with listen_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        lines = dial("127.0.0.1", port)
        accepted, _ = listener.accept()
        with accepted:
            lines.send(b"hello\n")
            assert accepted.recv(100) == b"hello\n"
        lines.close()
        with pytest.raises(ExchangeError, match=rf"127.0.0.1 port {port}.*another port"):
            listen_socket("127.0.0.1", port)
    with pytest.raises(ExchangeError, match="nobody listens"):
        dial("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("no such host", 1), ("127.0.0.1", 70_000), ("x" * 300, 5)])
def test_bad_addresses_are_one_line(host: str, port: int) -> None:
    for call in (dial, listen_socket):
        with pytest.raises(ExchangeError, match=r"\Acannot .*\Z"):
            call(host, port)


def test_listening_elsewhere_is_refused() -> None:
    with pytest.raises(ExchangeError, match=r"203\.0\.113\.1 port 0: the address is not one of this machine"):
        listen_socket("203.0.113.1", 0)
