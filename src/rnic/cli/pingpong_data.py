"""Data of ping-pong messages, and checks of the returned data."""

from __future__ import annotations

import random
from typing import Protocol

PAGE = 4096
"""Page size: ibv pingpongs check that the first byte of each page is 0."""
FILL = 0x7B
"""Byte with which ibv pingpongs fill their buffer."""


class DataError(Exception):
    """A message has wrong data; the text says where."""


class Data(Protocol):
    """Fills and checks the messages of each queue pair."""

    def fill(self, queue: int, out: memoryview) -> None:
        """Write the next message of queue pair number ``queue``."""

    def check(self, queue: int, got: memoryview) -> None:
        """Check a received message; raise :class:`DataError` if it is wrong."""


class Unchecked:
    """A constant fill; received messages are not checked."""

    def fill(self, queue: int, out: memoryview) -> None:
        """Write the fill of ibv pingpongs."""
        out[:] = bytes((FILL,)) * len(out)

    def check(self, queue: int, got: memoryview) -> None:
        """Do nothing."""


class Streams:
    """Random bytes that both sides can generate: each direction of each queue pair has its own stream.

    Args:
        mine: seed of what this side sends.
        theirs: seed of what the peer sends.
        queues: number of queue pairs.
    """

    def __init__(self, mine: str, theirs: str, queues: int) -> None:
        self._out = [random.Random(f"{mine} {queue}") for queue in range(queues)]
        self._in = [random.Random(f"{theirs} {queue}") for queue in range(queues)]

    def fill(self, queue: int, out: memoryview) -> None:
        """Write the next bytes of the stream."""
        out[:] = self._out[queue].randbytes(len(out))

    def check(self, queue: int, got: memoryview) -> None:
        """Compare with the peer's stream."""
        compare(got, self._in[queue].randbytes(len(got)))


class Echo:
    """Data for ibv pingpongs, which send from the buffer into which they receive, and so return what was sent.

    A server cannot check the first message of each queue pair fully. If that message is not an ibv pingpong's, the
    client is rnic and does the checking: the server returns the client's own messages.

    Args:
        rng: generates the messages.
        queues: number of queue pairs. The peer has one buffer for all of them: with more than one, all messages
            hold the same bytes.
        serving: whether the peer speaks first.
    """

    def __init__(self, rng: random.Random, queues: int, serving: bool) -> None:
        self._rng = rng
        self._constant: bytes | None = None
        self._many = queues > 1
        self._sent: list[bytes | None] = [None] * queues
        self._new = [serving] * queues
        self._returning: list[bytes | None] | None = None
        self._any_came = False

    def fill(self, queue: int, out: memoryview) -> None:
        """Write random bytes with a 0 at the start of each page; to an rnic client, what it sent."""
        if self._returning is not None:
            out[:] = self._returning[queue] or b""
            return
        if self._constant is None:
            data = bytearray(self._rng.randbytes(len(out)))
            data[::PAGE] = bytes(-(-len(data) // PAGE))
            if self._many:
                self._constant = bytes(data)
            self._sent[queue] = bytes(data)
        else:
            self._sent[queue] = self._constant
        out[:] = self._sent[queue] or b""

    def check(self, queue: int, got: memoryview) -> None:
        """Compare with the last message sent."""
        if not self._any_came:
            self._any_came = True
            if self._new[queue] and not _is_fill(got):
                self._returning = [None] * len(self._sent)
        if self._returning is not None:
            if any(got[::PAGE]):
                raise DataError("the first byte of a page is not 0")
            self._returning[queue] = bytes(got)
            return
        if self._new[queue]:
            self._new[queue] = False
            self._check_first(got)
            return
        compare(got, self._sent[queue] or b"")

    def _check_first(self, got: memoryview) -> None:
        """Check that a client's first message holds its fill, or data that another of its queue pairs has received."""
        ours = self._constant
        if _is_fill(got):
            return
        if ours is None:
            compare(got, bytes((FILL,)) * len(got))
        else:
            for at, (a, b) in enumerate(zip(got, ours, strict=True)):
                if a not in (b, 0, FILL):
                    raise DataError(f"byte {at} is {a:#04x}, neither {b:#04x} nor the fill")


def compare(got: memoryview, wanted: bytes) -> None:
    """Raise :class:`DataError` with the first byte in which two messages differ, if they do."""
    if got == wanted:
        return
    for at, (a, b) in enumerate(zip(got, wanted, strict=False)):
        if a != b:
            raise DataError(f"byte {at} is {a:#04x}, not {b:#04x}")
    raise DataError(f"it has {len(got)} bytes, not {len(wanted)}")


def _is_fill(got: memoryview) -> bool:
    """Return whether a message is the initial buffer of an ibv pingpong."""
    return not bytes(got).translate(None, bytes((0, FILL)))
