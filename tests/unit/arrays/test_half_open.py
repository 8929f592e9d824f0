"""Clients that never finish their line keep out nobody else, of the same address or of another."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import rnic
from rnic.arrays import half_open
from rnic.arrays.half_open import HalfOpen
from rnic.cm.line_socket import LineSocket


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_open, "MAX_OF_ADDRESS", 3)
    monkeypatch.setattr(half_open, "MAX_HALF_OPEN", 5)


@pytest.fixture
def pairs() -> Iterator[list[tuple[LineSocket, socket.socket]]]:
    with ExitStack() as stack:
        made = [socket.socketpair() for _ in range(8)]
        for ends in made:
            for end in ends:
                stack.enter_context(end)
        yield [(LineSocket(ours, f"client {at}"), theirs) for at, (ours, theirs) in enumerate(made)]


def test_the_newest_of_an_address_makes_room(pairs: list[tuple[LineSocket, socket.socket]]) -> None:
    clients, lines = HalfOpen(), [ours for ours, _ in pairs]
    for each in lines[:4]:
        clients.admit(each, "192.0.2.1")
    assert lines[2].sock.recv(1) == b"", "the wait for its line ends"
    assert clients.leave(lines[2], "192.0.2.1") == (
        "3 clients of 192.0.2.1 have not sent their line yet: this one made room for the next; try again"
    )
    assert [clients.leave(lines[at], "192.0.2.1") for at in (0, 1, 3)] == [None] * 3


def test_of_all_addresses_the_one_with_most_makes_room(pairs: list[tuple[LineSocket, socket.socket]]) -> None:
    clients, lines = HalfOpen(), [ours for ours, _ in pairs]
    for each, address in zip(lines, ("a", "b", "b", "c", "b", "d"), strict=False):
        clients.admit(each, address)
    gone = [clients.leave(each, address) for each, address in zip(lines, ("a", "b", "b", "c", "b", "d"), strict=False)]
    assert [at for at, reason in enumerate(gone) if reason] == [4]
    assert str(gone[4]).startswith("5 clients have not")


def test_who_left_is_no_longer_counted(pairs: list[tuple[LineSocket, socket.socket]]) -> None:
    clients, lines = HalfOpen(), [ours for ours, _ in pairs]
    for each in lines:
        clients.admit(each, "a")
        assert clients.leave(each, "a") is None


@pytest.mark.slow
def test_a_right_client_comes_in_beside_half_lines() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(rnic.listen("127.0.0.1", 0, udp_port=0, share={"word": bytearray(8)}))
        stuck = []
        for _ in range(40):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
            client.sendall(b'{"half": ')
            stuck.append(client)
        began = time.monotonic()
        with rnic.connect("127.0.0.1", listener.port, udp_port=0) as right:
            assert bytes(right.read("word")) == bytes(8)
        assert time.monotonic() - began < 8, "it waited for the others' timeout"
        stuck[-3].settimeout(20)
        assert b"3 clients of 127.0.0.1 have not sent their line yet" in stuck[-3].recv(1000)


@pytest.mark.slow
def test_the_same_on_an_event_loop() -> None:
    async def main() -> bytes:
        async with rnic.alisten(port=0, udp_port=0, share={"word": bytearray(8)}) as listener:
            with ExitStack() as stack:
                for _ in range(40):
                    client = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
                    client.sendall(b'{"half": ')
                async with asyncio.timeout(8), rnic.aconnect("127.0.0.1", listener.port, udp_port=0) as right:
                    return bytes(await right.aread("word"))

    assert asyncio.run(main()) == bytes(8)
