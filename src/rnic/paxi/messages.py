"""PAXI over RC Link (SUE2.0): a bridge's requests as messages in RC Link packets. Sans I/O.

RC Link delivers packets whole, once and in order, and has no memory semantics. So a write is sent as pieces with an
address each, and a read as one request whose answer comes in pieces. Requests are answered in order. A message is one
packet: a big-endian header of 16 bytes, and data.

==========  =====================================================================================================
bytes       meaning
==========  =====================================================================================================
0           kind: WRITE, READ, DONE (a write's answer) or DATA (a piece of a read's)
1           flags: 1 for the last piece; in an answer also 2 if the memory refuses
2 to 3      bytes of data after the header; of a READ, the number of requested bytes
4 to 7      serial number of the request
8 to 15     WRITE and READ: address of the first byte; DATA: offset of the piece in the answer
==========  =====================================================================================================

The memory's side executes nothing after a request that it has refused, and counts executed requests. So after a lost
connection both sides know of each request whether it was executed.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from rnic.paxi.bridge import Request
from rnic.rclink.receiver import Received

HEADER: Final = struct.Struct(">BBHIQ")
WRITE, READ, DONE, DATA = range(1, 5)
LAST: Final = 1
REFUSED: Final = 2
MOST_WAITING: Final = 1 << 12
"""Queued answer messages at which the memory's side stops taking requests."""


class Packets(Protocol):
    """Carrier of the messages: an RC Link endpoint."""

    @property
    def free_slots(self) -> int:
        """Number of packets that :meth:`send` takes now."""

    def send(self, qpid: int, payload: bytes, /) -> None:
        """Send a packet on a QP."""

    def recv(self) -> Received | None:
        """Return the oldest received packet."""


class _Outbox:
    """Queue of messages that wait for free send slots."""

    def __init__(self, packets: Packets, qpid: int) -> None:
        self.packets = packets
        self.qpid = qpid
        self._waiting: deque[bytes] = deque()

    def put(self, kind: int, flags: int, serial: int, at: int, data: bytes | memoryview = b"", size: int = 0) -> None:
        self._waiting.append(HEADER.pack(kind, flags, len(data) or size, serial, at) + bytes(data))

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self) -> bool:
        """Send messages while there are free slots; return whether any was sent."""
        before = len(self._waiting)
        while self._waiting and self.packets.free_slots:
            self.packets.send(self.qpid, self._waiting.popleft())
        return len(self._waiting) != before


class Requester:
    """The bridge's side of one connection.

    Args:
        packets: carries the messages, on QP ``qpid``.
        piece: most bytes of data in one packet.
        staging: the bridge's staging memory.
        done: called for each request in order, with its serial number and whether it was refused.
    """

    def __init__(
        self, packets: Packets, qpid: int, piece: int, staging: memoryview, done: Callable[[int, bool], None]
    ) -> None:
        self._out = _Outbox(packets, qpid)
        self._piece = piece
        self._staging = staging
        self._done = done
        self.flying: deque[Request] = deque()
        """Outstanding requests, oldest first."""
        self._got = 0
        self.refused = False
        """True once the memory has refused a request; it does not answer later ones."""

    def post(self, request: Request) -> None:
        """Send a request as soon as there are free send slots."""
        self.flying.append(request)
        if not request.write:
            self._out.put(READ, LAST, request.serial, request.remote, size=request.length)
            return
        for at in range(0, request.length, self._piece):
            end = min(at + self._piece, request.length)
            data = self._staging[request.offset + at : request.offset + end]
            self._out.put(WRITE, int(end == request.length), request.serial, request.remote + at, data)

    def send(self) -> bool:
        """Send messages while there are free slots; return whether any was sent."""
        return self._out.send()

    def turn(self) -> bool:
        """Send messages while there are free slots, and take received ones; return whether there were any."""
        moved = self._out.send()
        while not self.refused and (received := self._out.packets.recv()) is not None:
            moved = True
            self._take(received)
        return moved

    def _take(self, received: Received) -> None:
        """Process one message; ignore it if it answers no request."""
        payload = received.payload
        if received.qpid != self._out.qpid or len(payload) < HEADER.size or not self.flying:
            return
        kind, flags, size, serial, at = HEADER.unpack_from(payload)
        request, data = self.flying[0], payload[HEADER.size :]
        if serial != request.serial or kind != (DONE if request.write else DATA):
            return
        if not flags & REFUSED and kind == DATA:
            if at != self._got or size != len(data) or at + size > request.length:
                return
            self._staging[request.offset + at : request.offset + at + size] = data
            self._got += size
            if not flags & LAST or self._got != request.length:
                return
        self._got = 0
        self.flying.popleft()
        self.refused = bool(flags & REFUSED)
        self._done(serial, self.refused)


class Memory:
    """The memory's side of one connection. Input is untrusted, so everything is checked and bounded.

    Args:
        packets: carries the messages, on QP ``qpid``.
        piece: most bytes of data in one packet.
        memory: the served memory, from address 0 on.
        readonly: true to refuse writes.
    """

    def __init__(self, packets: Packets, qpid: int, piece: int, memory: memoryview, readonly: bool) -> None:
        self._out = _Outbox(packets, qpid)
        self._piece = piece
        self._memory = memory
        self._readonly = readonly
        self._bad = False
        self.executed = 0
        """Number of executed requests."""
        self.refused = False
        """True once a request was refused; later ones are not executed."""

    def turn(self) -> bool:
        """Send messages while there are free slots, and take received ones; return whether there were any."""
        moved = self._out.send()
        while len(self._out) < MOST_WAITING and (received := self._out.packets.recv()) is not None:
            moved = True
            if not self.refused:
                self._take(received)
        return self._out.send() or moved

    def _take(self, received: Received) -> None:
        payload = received.payload
        if received.qpid != self._out.qpid or len(payload) < HEADER.size:
            return
        kind, flags, size, serial, at = HEADER.unpack_from(payload)
        data, there = payload[HEADER.size :], at + size <= len(self._memory)
        if kind == WRITE:
            fits = there and not self._readonly and size == len(data)
            if fits and not self._bad:
                self._memory[at : at + size] = data
            self._bad |= not fits
            if flags & LAST:
                self._answer(DONE, serial)
        elif kind == READ:
            self._bad |= not there or not size
            if self._bad:
                self._answer(DATA, serial)
                return
            for first in range(0, size, self._piece):
                end = min(first + self._piece, size)
                self._out.put(DATA, int(end == size), serial, first, self._memory[at + first : at + end])
            self.executed += 1

    def _answer(self, kind: int, serial: int) -> None:
        """Send an answer of one message: to a write, or a refusal."""
        self.refused = self._bad
        self.executed += not self._bad
        self._out.put(kind, LAST | (REFUSED if self._bad else 0), serial, 0)
