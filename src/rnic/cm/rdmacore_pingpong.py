"""The TCP exchange of rdma-core's ping-pong programs (``ibv_rc_pingpong`` and similar, version 44).

Each end sends ``LID:QPN:PSN:GID`` in hexadecimal with fixed widths and a final NUL, 52 bytes, once for each queue
pair: one, or many for ``ibv_srq_pingpong``. The client speaks first and ends the exchange with ``done``.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rnic.cm.line_socket import DEFAULT_TIMEOUT_S, ExchangeError, LineSocket, dial
from rnic.spec.psn import PSN_MASK

DEFAULT_PORT = 18515
MESSAGE_BYTES = 52
DONE = b"done\0"

_MESSAGE = re.compile(rb"([0-9a-fA-F]{4}):([0-9a-fA-F]{6}):([0-9a-fA-F]{6}):([0-9a-fA-F]{32})\0")


@dataclass(frozen=True, slots=True)
class Destination:
    """One queue pair, as described to the other side. ``lid`` is 0 on RoCE."""

    qpn: int
    psn: int
    gid: bytes
    """GID, 16 bytes."""
    lid: int = 0

    def to_bytes(self) -> bytes:
        """Return the message of 52 bytes."""
        return b"%04x:%06x:%06x:%s\0" % (self.lid, self.qpn, self.psn & PSN_MASK, self.gid.hex().encode())


def parse_destination(message: bytes, where: str) -> Destination:
    """Parse a message of 52 bytes; raise :class:`ExchangeError` if it is malformed."""
    match = _MESSAGE.fullmatch(message)
    if match is None:
        raise ExchangeError(f"{where} sent {message[:60]!r}; allowed: LID:QPN:PSN:GID of an ibv pingpong, 52 bytes")
    return Destination(int(match[2], 16), int(match[3], 16), bytes.fromhex(match[4].decode()), int(match[1], 16))


def connect(
    host: str, port: int, mine: Sequence[Destination], timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[Destination]:
    """Run the client's side.

    On return the server's queue pairs are ready to receive, and the server knows that this side's are.

    Raises:
        ExchangeError: the server is absent, too slow, or another program.
    """
    with contextlib.closing(dial(host, port, timeout_s)) as stream:
        _send_all(stream, mine, timeout_s)
        theirs = _receive_all(stream, len(mine), timeout_s)
        stream.send(DONE, timeout_s)
    return theirs


def serve(
    listener: socket.socket,
    mine: Sequence[Destination],
    bring_up: Callable[[list[Destination]], None],
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[Destination]:
    """Run the server's side, for one client.

    Args:
        listener: a listening socket; its own timeout bounds the wait for a client.
        mine: one destination for each queue pair.
        bring_up: called with the client's destinations before they get ours: it makes the queue pairs ready, since
            the client may send as soon as it has our answer.
        timeout_s: for each step once the client is there.

    Raises:
        ExchangeError: no client came in time, or it is too slow or another program.
    """
    try:
        sock, address = listener.accept()
    except TimeoutError:
        raise ExchangeError(f"no client came within {listener.gettimeout():g} s") from None
    with contextlib.closing(LineSocket(sock, f"client {address[0]}")) as stream:
        theirs = _receive_all(stream, len(mine), timeout_s)
        bring_up(theirs)
        _send_all(stream, mine, timeout_s)
        stream.receive_bytes(len(DONE), timeout_s)
    return theirs


def _send_all(stream: LineSocket, mine: Sequence[Destination], timeout_s: float) -> None:
    stream.send(b"".join(end.to_bytes() for end in mine), timeout_s)


def _receive_all(stream: LineSocket, count: int, timeout_s: float) -> list[Destination]:
    return [parse_destination(stream.receive_bytes(MESSAGE_BYTES, timeout_s), stream.where) for _ in range(count)]
