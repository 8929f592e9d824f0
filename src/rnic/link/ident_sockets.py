"""Recover three bits of the IP ID, which no socket reports, with eight sockets, one for each value of these bits.

The sockets share the address and port of a device (:mod:`rnic.link.steering`) and receive only from senders that count
their IP IDs. So a packet can only have one of 8 IP IDs instead of 64.

Packets are returned in order of arrival. The kernel timestamps each packet, and one call reports which sockets have
packets. Packets are returned once a second check has shown that no socket has an earlier one, since a packet that
arrived earlier is already in its socket when a later one can be read. So the kernel's order is preserved, unless its
clock is set back in between, which may swap packets once, as a network may.

These sockets do not use UDP_GRO: consecutive packets have different IP IDs, and may belong to different sockets.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from operator import itemgetter

from rnic.link.steering import IDENT_SHIFT, IDENT_SOCKETS
from rnic.wire.bursts import RxBurst

MASK = (IDENT_SOCKETS - 1) << IDENT_SHIFT
"""Bits of an IP ID that the socket determines."""
_ONE_SOCKET = 8
"""Most packets that one pass reads from a socket."""
_BUFFER_BYTES = 8_192
"""Size of a buffer, above the longest packet; a longer packet is truncated and dropped because of its length."""

_Buffer = tuple[memoryview]
Read = Callable[[_Buffer], tuple[bool, RxBurst | None, int]]
"""Function that reads a packet into a buffer: returns whether the socket was empty, the packet if valid, and its
arrival time."""


class IdentSockets:
    """The receiving side of the sockets for IP IDs.

    Args:
        sockets: one for each value of the bits, from 0 on.
        reads: the function that reads from each of them.
    """

    def __init__(self, sockets: Sequence[socket.socket], reads: Sequence[Read]) -> None:
        self._reads = reads
        self._ready = select.epoll()
        for sock in sockets:
            self._ready.register(sock.fileno(), select.EPOLLIN)
        self._values = {sock.fileno(): value for value, sock in enumerate(sockets)}
        self._waiting: list[tuple[int, RxBurst, _Buffer]] = []
        """Packets that were read and not returned yet, in order of arrival."""
        self._sure = 0
        """Number of leading ones that no packet still in a socket can precede."""
        self._given: list[_Buffer] = []
        """Buffers of the packets that the last call returned."""
        self._free: list[_Buffer] = []

    def fileno(self) -> int:
        """Return a descriptor that polls readable when one of the sockets does."""
        return self._ready.fileno()

    @property
    def pending(self) -> bool:
        """True if packets were read and not returned yet."""
        return bool(self._waiting)

    def receive(self, limit: int) -> list[RxBurst]:
        """Return up to ``limit`` packets, none if nothing is left; the buffer of each is valid until the next call."""
        self._free += self._given
        self._given = []
        if not self._sure:
            if not self._waiting:
                self._look(None)
            if not self._waiting:
                return []
            until = self._look(self._waiting[-1][0])
            self._sure = sum([stamp <= until for stamp, _, _ in self._waiting])
        count = min(limit, self._sure)
        self._sure -= count
        given, self._waiting = self._waiting[:count], self._waiting[count:]
        self._given = [buffer for _, _, buffer in given]
        return [burst for _, burst, _ in given]

    def _look(self, last: int | None) -> int:
        """Read from the sockets that have packets: some from each, until one is later than ``last``.

        Returns:
            Time up to which all packets have been read, not later than ``last``.
        """
        until = 0 if last is None else last
        for fd, _ in self._ready.poll(0):
            value = self._values[fd]
            stamp = 0
            for _ in range(_ONE_SOCKET):
                buffer = self._free.pop() if self._free else (memoryview(bytearray(_BUFFER_BYTES)),)
                empty, burst, stamp = self._reads[value](buffer)
                if burst is None:
                    self._free.append(buffer)
                    if empty:
                        break
                    continue
                burst.known = MASK, value << IDENT_SHIFT
                self._waiting.append((stamp, burst, buffer))
                if last is not None and stamp > last:
                    break
            else:
                until = min(until, stamp)
        self._waiting.sort(key=itemgetter(0))
        return until

    def close(self) -> None:
        """Close the descriptor; the sockets belong to the group."""
        self._ready.close()


__all__ = ["MASK", "IdentSockets"]
