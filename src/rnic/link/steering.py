"""Several sockets on one address and port, each for a range of queue pairs: Linux's ``SO_REUSEPORT`` with a filter.

The socket that was there first serves all that no other has a range for: management datagrams, multicast, numbers that
nobody has. The others follow in the order in which they came, and none is closed before all are: closing one would move
the last into its place. A classic BPF program reads the destination queue pair of the first packet of what arrives, so
a burst goes whole to one socket.

The first socket is bound alone, which fails where anybody has the port, and lets members of the same user join only
afterwards: two NICs cannot share a port by accident.
"""

from __future__ import annotations

import ctypes
import socket
import struct

from rnic.link.base import LinkError
from rnic.link.udp_socket import open_socket

FIRST_STEERED_QPN = 0x80_0000
"""The first number of the first range; those below are the first socket's."""
LOG_RANGE = 15
"""log2 of the queue pair numbers of each range."""
MAX_MEMBERS = 64
"""Sockets beside the first."""
_DQPN_AT = 4
"""The last four bytes of a BTH's first eight: reserved bits and the destination queue pair."""
_SO_ATTACH_REUSEPORT_CBPF = 51

_LOAD_WORD = 0x20
_AND = 0x54
_SUBTRACT = 0x14
_SHIFT_RIGHT = 0x74
_ADD = 0x04
_JUMP_IF_AT_LEAST = 0x35
_RETURN = 0x06
_RETURN_A = 0x16
_INSTRUCTION = struct.Struct("=HBBI")


def first_qpn(member: int) -> int:
    """The first queue pair number of a member's range, the first member being 1."""
    return FIRST_STEERED_QPN + (member - 1 << LOG_RANGE)


def member_of(qpn: int) -> int:
    """Which member a queue pair number is for; 0 for the first socket."""
    return 0 if qpn < FIRST_STEERED_QPN else (qpn - FIRST_STEERED_QPN >> LOG_RANGE) + 1


def program(members: int) -> list[tuple[int, int, int, int]]:
    """The filter for so many members: (code, jump if true, jump if false, operand) each.

    It works on the UDP payload and returns the number of a socket in the order of joining. One out of range would be
    taken for no answer, and the system would choose by addresses: such are the first socket's.
    """
    return [
        (_LOAD_WORD, 0, 0, _DQPN_AT),
        (_AND, 0, 0, 0xFF_FFFF),
        (_JUMP_IF_AT_LEAST, 0, 5, FIRST_STEERED_QPN),
        (_SUBTRACT, 0, 0, FIRST_STEERED_QPN),
        (_SHIFT_RIGHT, 0, 0, LOG_RANGE),
        (_ADD, 0, 0, 1),
        (_JUMP_IF_AT_LEAST, 1, 0, members + 1),
        (_RETURN_A, 0, 0, 0),
        (_RETURN, 0, 0, 0),
    ]


def refusal(address: bytes) -> str:
    """Why this system steers nothing on a local address, in words; empty where it does."""
    try:
        first = open_socket(address, 0, 0, 0)
    except LinkError as error:
        return str(error)
    group = None
    try:
        group = Group(first, address, first.getsockname()[1], 0)
        group.join()
    except (OSError, LinkError, AttributeError) as error:
        return f"the system refuses sockets that share a port: {error}"
    finally:
        if group is not None:
            group.close()
        first.close()
    return ""


class Group:
    """The sockets of one address and port.

    Args:
        first: the socket that is bound there alone.
        buffer_bytes: socket buffers to ask for.

    Raises:
        OSError: this system has no such groups, or forbids their filters.
    """

    def __init__(self, first: socket.socket, address: bytes, port: int, buffer_bytes: int) -> None:
        self._first = first
        self._where = address, port, 0, buffer_bytes
        self._members: list[socket.socket] = []
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)

    def join(self) -> int:
        """The number of a new member.

        Raises:
            LinkError, OSError: the system refuses; those that are there go on.
        """
        member = open_socket(*self._where, member=True)
        self._members.append(member)  # it is in the group, whatever follows
        self.steer()
        return len(self._members)

    def socket_of(self, member: int) -> socket.socket:
        """A member's socket, the first member being 1. It is the group's: whoever uses it duplicates it."""
        return self._members[member - 1]

    def __len__(self) -> int:
        return len(self._members)

    def steer(self) -> None:
        """Attach the filter, anew where a member has taken it away.

        Raises:
            OSError: the system refuses.
        """
        rows = program(len(self._members))
        code = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(op, yes, no, k) for op, yes, no, k in rows))
        filter_ = struct.pack("@HP", len(rows), ctypes.addressof(code))
        self._first.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, filter_)

    def close(self) -> None:
        """Close all members."""
        for member in self._members:
            member.close()
        self._members.clear()
