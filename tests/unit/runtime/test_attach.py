"""A program's messages to its NIC process, with a socket pair in place of the process."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from rnic.runtime.attach import ProcessConnection
from rnic.spec import attach
from rnic.spec.errors import VerbsError

pytestmark = pytest.mark.skipif(not hasattr(socket, "SOCK_SEQPACKET"), reason="a NIC process needs Linux")
KIND = attach.MSG_INFO


class Ends:
    """A connection, and the NIC process's end of it, whose answers may be there before they are asked for."""

    def __init__(self) -> None:
        sock, self.there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection = ProcessConnection(sock)

    def answer(self, token: int, body: bytes = b"", fds: tuple[int, ...] = (), kind: int = KIND) -> None:
        socket.send_fds(self.there, [struct.pack("<III", kind, token, 0) + body], fds)

    def close(self) -> None:
        self.connection.close()
        self.there.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def interrupted(ends: Ends, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """One question whose answer a signal handler that raises leaves behind."""

    def receive(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(socket, "recv_fds", receive)
        with pytest.raises(type(error)):
            ends.connection.request(KIND)


@pytest.mark.parametrize("signals", [1, 2, 3])
@pytest.mark.parametrize("before", [0, 0xFFFF_FFFD, 0xFFFF_FFFE, 0xFFFF_FFFF])
def test_answers_that_a_signal_left_behind_are_dropped(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, signals: int, before: int
) -> None:
    ends.connection._token = before
    read, write = os.pipe()
    for number in range(1, signals + 1):
        interrupted(ends, monkeypatch, KeyboardInterrupt())
        ends.answer(before + number & 0xFFFF_FFFF, b"late", (write,))
    os.close(write)
    ends.answer(before + signals + 1 & 0xFFFF_FFFF, b"in time")
    assert ends.connection.request(KIND) == (b"in time", [])
    assert not ends.connection.ended
    assert os.read(read, 1) == b""  # nobody has the other end any more
    os.close(read)


def test_what_a_signal_handler_raises_is_no_end_of_the_nic_process(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(ends, monkeypatch, TimeoutError("the program's own alarm"))
    ends.answer(1)
    ends.answer(2, b"in time")
    assert ends.connection.request(KIND)[0] == b"in time"


@pytest.mark.parametrize(("kind", "token"), [(KIND + 1, 1), (KIND, 2), (KIND, 1 + (1 << 31))])
def test_an_answer_that_nobody_asked_for_ends_the_connection(ends: Ends, kind: int, token: int) -> None:
    ends.answer(token, kind=kind)
    with pytest.raises(VerbsError, match="has ended") as error:
        ends.connection.request(KIND)
    assert error.value.errno == errno.ENODEV
    assert ends.connection.ended


def test_a_nic_process_that_hangs_up_has_ended(ends: Ends) -> None:
    ends.there.close()
    with pytest.raises(VerbsError, match="has ended"):
        ends.connection.request(KIND)
    assert ends.connection.ended
