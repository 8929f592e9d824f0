"""Several sockets on one address and port, selected by queue pair or IP ID: Linux's ``SO_REUSEPORT`` with a filter.

The first socket receives everything outside the ranges of the others: management datagrams, multicast, unused queue
pair numbers. The others follow in order of joining. They are closed all at once, since closing one would move the last
into its place. A classic BPF program reads the destination queue pair of the first packet of a burst, so a whole burst
goes to one socket.

Packets from senders that count their IP IDs go to eight further sockets, regardless of queue pair, selected by three
bits of the IP ID, which sockets do not report (:mod:`rnic.link.ident_sockets`). These are opened for the first such
sender.

The first socket is bound exclusively, which fails if the port is in use, and only then allows sockets of the same user
to join. So two NICs cannot share a port by accident.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Sequence

from rnic.link.base import LinkError
from rnic.link.udp_socket import open_socket

FIRST_STEERED_QPN = 0x80_0000
"""First number of the first range; lower numbers go to the first socket."""
LOG_RANGE = 15
"""log2 of the size of each range."""
MAX_MEMBERS = (1 << 23 >> LOG_RANGE) - 1
"""Most sockets in addition to the first: one for each range in the upper half of the queue pair numbers, except the
last, which contains the multicast QPN."""
_DQPN_AT = 4
"""The last four bytes of a BTH's first eight: reserved bits and the destination queue pair."""
IDENT_SOCKETS = 8
IDENT_SHIFT = 3
"""Position of the IP ID bits that select the socket: eight consecutive packets go to the same socket."""
MAX_SENDERS = 64
"""Most senders with counting IP IDs; each costs an instruction per packet."""
_HEADER_AT = 0xFFF0_0000
"""SKF_NET_OFF: offset at which a filter reads the IP header."""
_IDENT_AT, _SOURCE_AT = _HEADER_AT + 4, _HEADER_AT + 12
_SO_ATTACH_REUSEPORT_CBPF = 51

_LOAD_WORD = 0x20
_LOAD_HALF = 0x28
_AND = 0x54
_SUBTRACT = 0x14
_SHIFT_RIGHT = 0x74
_ADD = 0x04
_JUMP = 0x05
_JUMP_IF_EQUAL = 0x15
_JUMP_IF_AT_LEAST = 0x35
_RETURN = 0x06
_RETURN_A = 0x16
_INSTRUCTION = struct.Struct("=HBBI")


def first_qpn(member: int) -> int:
    """Return the first queue pair number of a member's range; members count from 1."""
    return FIRST_STEERED_QPN + (member - 1 << LOG_RANGE)


def member_of(qpn: int) -> int:
    """Return the member for a queue pair number; 0 for the first socket."""
    return 0 if qpn < FIRST_STEERED_QPN else (qpn - FIRST_STEERED_QPN >> LOG_RANGE) + 1


_Row = tuple[int, int, int, int]


def program(members: int, senders: Sequence[bytes] = (), first: int = 0) -> list[_Row]:
    """Return the filter for this many members: (code, jump if true, jump if false, operand) each.

    The filter reads the UDP payload and returns the index of a socket in order of joining. For an index out of range,
    the kernel would select by address hash, so such packets go to the first socket.

    Args:
        senders: IPv4 addresses, at most 64, whose packets go to the sockets for IP IDs.
        first: the number of the first of these sockets, 0 if there are none.
    """
    own = members + 1
    behind: list[_Row] = []
    if 0 < first < own:  # members that joined after the sockets for IP IDs
        own += IDENT_SOCKETS
        behind = [(_JUMP_IF_AT_LEAST, 0, 1, first), (_ADD, 0, 0, IDENT_SOCKETS)]
    return [
        *_by_ident(senders, first),
        (_LOAD_WORD, 0, 0, _DQPN_AT),
        (_AND, 0, 0, 0xFF_FFFF),
        (_JUMP_IF_AT_LEAST, 0, 5 + len(behind), FIRST_STEERED_QPN),
        (_SUBTRACT, 0, 0, FIRST_STEERED_QPN),
        (_SHIFT_RIGHT, 0, 0, LOG_RANGE),
        (_ADD, 0, 0, 1),
        *behind,
        (_JUMP_IF_AT_LEAST, 1, 0, own),
        (_RETURN_A, 0, 0, 0),
        (_RETURN, 0, 0, 0),
    ]


def _by_ident(senders: Sequence[bytes], first: int) -> list[_Row]:
    """Return the part of the filter for packets of these senders; the following part handles others."""
    if not senders:
        return []
    found = [
        (_LOAD_HALF, 0, 0, _IDENT_AT),
        (_SHIFT_RIGHT, 0, 0, IDENT_SHIFT),
        (_AND, 0, 0, IDENT_SOCKETS - 1),
        (_ADD, 0, 0, first),
        (_RETURN_A, 0, 0, 0),
    ]
    asked = [
        (_JUMP_IF_EQUAL, len(senders) - place, 0, int.from_bytes(sender, "big")) for place, sender in enumerate(senders)
    ]
    return [(_LOAD_WORD, 0, 0, _SOURCE_AT), *asked, (_JUMP, 0, 0, len(found)), *found]


def refusal(address: bytes, scope_id: int = 0) -> str:
    """Return the reason why this system cannot steer packets on a local address; empty if it can."""
    try:
        first = open_socket(address, 0, scope_id, 0)
    except LinkError as error:
        return str(error)
    group = None
    try:
        group = Group(first, address, first.getsockname()[1], 0, scope_id)
        group.join()
    except (OSError, LinkError, AttributeError) as error:
        return f"the system refuses sockets that share a port: {error}"
    finally:
        if group is not None:
            group.close()
        first.close()
    return ""


def _drain(member: socket.socket) -> None:
    """Drop packets that arrived before the filter was attached."""
    with contextlib.suppress(BlockingIOError):
        while True:
            member.recv(1)


class Group:
    """The sockets of one address and port.

    Args:
        first: the exclusively bound socket.
        buffer_bytes: size of socket buffers to request.
        scope_id: the interface of an IPv6 address of link scope.

    Raises:
        OSError: this system does not support such groups, or forbids their filters.
    """

    def __init__(self, first: socket.socket, address: bytes, port: int, buffer_bytes: int, scope_id: int = 0) -> None:
        self._first = first
        self._where = address, port, scope_id, buffer_bytes
        self._members: list[socket.socket] = []
        self._of_idents: list[socket.socket] = []
        self._before = 0
        """Number of members that joined before the sockets for IP IDs."""
        self._senders: list[bytes] = []
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    def join(self) -> int:
        """Return the number of a new member.

        Raises:
            LinkError, OSError: the kernel refuses; existing members continue to work.
        """
        member = open_socket(*self._where, member=True)
        self._members.append(member)  # it is in the group even if the next step fails
        self.steer()
        return len(self._members)

    def socket_of(self, member: int) -> socket.socket:
        """Return a member's socket; members count from 1. The group owns it: duplicate it before use."""
        return self._members[member - 1]

    def separate(self, sender: bytes) -> None:
        """Steer an IPv4 sender's packets to the sockets for IP IDs (:meth:`open_for_idents`).

        Senders beyond :data:`MAX_SENDERS` and repeated calls are ignored.

        Raises:
            OSError: the kernel refuses; its packets are received as before.
        """
        if sender not in self._senders and len(self._senders) < MAX_SENDERS:
            self._senders.append(sender)
            try:
                self.steer()
            except OSError:
                self._senders.remove(sender)
                raise

    def open_for_idents(self) -> list[socket.socket]:
        """Open the sockets for IP IDs, to which no packets are steered yet; the group owns them.

        Raises:
            LinkError, OSError: the kernel refuses, and there are none.
        """
        opened: list[socket.socket] = []
        try:
            while len(opened) < IDENT_SOCKETS:
                opened.append(open_socket(*self._where, member=True))
                self.steer()  # a group that has no filter spreads packets over its sockets
        except (OSError, LinkError):
            for member in reversed(opened):  # last first, so that no member changes its index
                member.close()
            raise
        self._before, self._of_idents = len(self._members), opened
        for member in opened:
            _drain(member)
        return opened

    def __len__(self) -> int:
        return len(self._members)

    def steer(self) -> None:
        """Attach the filter, again if a new member has replaced it.

        Raises:
            OSError: the kernel refuses.
        """
        rows = program(len(self._members), self._senders, self._before + 1 if self._of_idents else 0)
        code = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(op, yes, no, k) for op, yes, no, k in rows))
        filter_ = struct.pack("@HP", len(rows), ctypes.addressof(code))
        self._first.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, filter_)

    def close(self) -> None:
        """Close all members."""
        for member in (*self._members, *self._of_idents):
            member.close()
        self._members.clear()
        self._of_idents.clear()
