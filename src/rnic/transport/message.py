"""Send work requests in flight."""

from __future__ import annotations

from rnic.spec.opcodes import (
    WR_CMP_SWAP,
    WR_FETCH_ADD,
    WR_READ,
    WR_SEND,
    WR_SEND_IMM,
    WR_SEND_INV,
    WR_WRITE,
    WR_WRITE_IMM,
)
from rnic.spec.psn import PSN_MASK
from rnic.spec.status import SUCCESS
from rnic.transport.payload import Payload
from rnic.transport.wqe import Wqe

SENDS = frozenset({WR_SEND, WR_SEND_IMM, WR_SEND_INV})
WRITES = frozenset({WR_WRITE, WR_WRITE_IMM})
ATOMICS = frozenset({WR_CMP_SWAP, WR_FETCH_ADD})
TAKES_RECEIVE = frozenset({WR_SEND, WR_SEND_IMM, WR_SEND_INV, WR_WRITE_IMM})


class Message:
    """One work request between fetch and completion.

    ``first_psn`` and ``packets`` are the PSNs it uses; ``sent`` counts the packets sent since the last rewind.
    For a READ they count response packets, since that is what its PSNs stand for, and ``received`` is how many
    of them have been placed. ``begun`` says that a packet of it was ever sent: before, no PSN says anything about it.
    A message without packets is local: ``executed`` says that it has had its effect.
    ``status`` other than success is what it completes with once everything before it has completed.
    """

    __slots__ = (
        "begun",
        "executed",
        "first_psn",
        "opcode",
        "packets",
        "payload",
        "reads",
        "received",
        "sent",
        "ssn",
        "status",
        "takes_receive",
        "wqe",
    )

    def __init__(self, wqe: Wqe, payload: Payload, first_psn: int, packets: int) -> None:
        self.wqe = wqe
        self.opcode = wqe.opcode
        self.payload = payload
        self.first_psn = first_psn
        self.packets = packets
        self.sent = 0
        self.received = 0
        self.reads = wqe.opcode == WR_READ or wqe.opcode in ATOMICS
        self.takes_receive = wqe.opcode in TAKES_RECEIVE
        self.ssn = 0
        self.status = SUCCESS
        self.executed = False
        self.begun = False

    @property
    def due_psn(self) -> int:
        """Of a READ or atomic: PSN of the first response packet that has not come."""
        return self.first_psn + self.received & PSN_MASK


class ReadPiece:
    """One READ or atomic request on the wire, waiting for its responses.

    A long READ goes out as several requests with consecutive PSN ranges, so that no more response packets are
    under way than the receive buffer takes. ``got`` counts the response packets taken in order. ``asked`` says that
    its one response was part of a longer request's and has been asked for again alone.
    """

    __slots__ = ("asked", "first_psn", "got", "message", "offset", "packets")

    def __init__(self, message: Message, first_psn: int, offset: int, packets: int) -> None:
        self.message = message
        self.first_psn = first_psn
        self.offset = offset
        self.packets = packets
        self.got = 0
        self.asked = False

    @property
    def next_psn(self) -> int:
        """PSN of the response that is due."""
        return self.first_psn + self.got & PSN_MASK

    def split(self, mtu: int) -> ReadPiece:
        """Take the response that is due out, as a piece of its own; this one keeps what is behind it."""
        due = ReadPiece(self.message, self.next_psn, self.offset + self.got * mtu, 1)
        due.asked = self.packets > 1 or self.asked
        taken = self.got + 1
        self.first_psn = self.first_psn + taken & PSN_MASK
        self.offset += taken * mtu
        self.packets -= taken
        self.got = 0
        return due
