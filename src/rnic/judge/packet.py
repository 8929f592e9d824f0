"""A packet as the judge sees it: the fields that rules need, decoded once. Streams remember requests in this form."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rnic.judge.state import FormState, SeenState
from rnic.spec.opcodes import ACKNOWLEDGE, CNP
from rnic.wire.bth import MIGREQ
from rnic.wire.crc import crc32

if TYPE_CHECKING:
    from rnic.judge.stream import Stream
    from rnic.wire.opcode import OpcodeRow

ICRC_BYTES = 4
ACK_REQUEST = 0x8000_0000
"""AckReq bit in the last word of the BTH."""
_SEEDED = struct.Struct(">HH12xH7xBHxxxxI")
"""Fields from the IPv4 ident to the extended headers that the ICRC covers and in which two packets with one PSN may
differ: ident, fragment field, source port, BTH flags, P_Key, and the word with AckReq and PSN."""
_BEHIND = 12
"""Size of the BTH in bytes."""


class Form(FormState):
    """Properties shared by packets of one path with the same length and the same first eight bytes of the BTH.

    They are computed once. ``stream`` is the packets' stream, ``row`` their opcode, ``request`` true for requests of RC
    or UC, ``middle`` true for packets neither first nor last of a message. ``total`` is the length in the IPv4 header,
    ``length`` that of the UDP payload, ``size`` that of the message payload. ``seed`` and ``residue`` are the CRC
    before and after a correct packet with ident 0, and ``tail`` is the distance of the padding from the end.
    ``constant`` holds what all requests of a connection share: P_Key, MigReq and source port. ``header_sum`` is the sum
    of the constant words of the IPv4 header, ``pseudo_sum`` that of the UDP pseudo header, -1 if unknown.
    ``fit`` is the path MTU with which a request of this form satisfies all rules that depend on nothing else, or -1.
    """

    __slots__ = ()

    stream: Stream

    def __init__(
        self,
        stream: Stream,
        row: OpcodeRow,
        sport: int,
        frag: int,
        flags: int,
        pkey: int,
        dqpn: int,
        length: int,
        size: int,
    ) -> None:
        self.stream = stream
        self.row = row
        self.request = row.request and not row.deth and row.opcode != CNP
        self.middle = not (row.start or row.end)
        self.start, self.end, self.send, self.write = row.start, row.end, row.send, row.write
        self.ack, self.read_response = row.response and row.operation == ACKNOWLEDGE, row.read_response
        self.header_bytes, self.rest_at = row.header_bytes, row.rest_at
        self.sport = sport
        self.frag = frag
        self.flags = flags
        self.pad = flags >> 4 & 3
        self.tail = -ICRC_BYTES - self.pad
        self.solicited = flags & 0x80 != 0
        self.pkey = pkey
        self.constant = pkey | (flags & MIGREQ) << 10 | sport << 17
        self.dqpn = dqpn
        self.length = length
        self.total = length + 28
        self.size = size
        self.seed = self.residue = self.header_sum = 0
        self.pseudo_sum = -1
        self.fit = -1


class Seen(SeenState):
    """A captured RoCEv2 packet whose ICRC is correct or cannot be checked.

    ``header`` holds the bytes between BTH and payload, ``tail`` padding and ICRC (empty if the packet was cut), and
    ``word`` the last four bytes of the BTH. ``ident`` distinguishes a retransmission from a duplicate by the network,
    if the sender counts idents. A request also has a state: ``packets`` is the number of PSNs that it uses, 0 while
    unknown; ``done`` the number of messages completed with it, -1 while an earlier packet is missing; ``refused`` is
    true after a sequence NAK for it or an earlier packet, and ``repeated`` after a retransmission.
    """

    __slots__ = ()

    form: Form

    def __init__(self, form: Form, frame: int, time_ns: int, ident: int, word: int, header: bytes, tail: bytes) -> None:
        self.form = form
        self.frame = frame
        self.time_ns = time_ns
        self.ident = ident
        self.word = word
        self.psn = word & 0xFF_FFFF
        self.header = header
        self.tail = tail
        self.packets = 1
        self.done = -1
        self.refused = self.repeated = False

    @property
    def row(self) -> OpcodeRow:
        """Row of its opcode."""
        return self.form.row

    @property
    def size(self) -> int:
        """Bytes of payload."""
        return self.form.size

    @property
    def pad(self) -> int:
        """Bytes of padding."""
        return self.form.pad

    @property
    def ackreq(self) -> bool:
        """True if it asks for an acknowledgement."""
        return self.word & ACK_REQUEST != 0

    @property
    def solicited(self) -> bool:
        """True if it asks for an event."""
        return self.form.solicited

    def carries_other_bytes(self, other: Seen) -> bool:
        """Return whether the payload differs from another packet's with the same PSN, extended headers and size.

        CRCs are linear: the exclusive or of two ICRCs is the CRC of the difference. All other fields that the ICRC
        covers are known of both packets, so no payload has to be kept.
        """
        if not self.tail or not other.tail:
            return False
        one, two = self.form, other.form
        pads = zip(self.tail[:-ICRC_BYTES], other.tail[:-ICRC_BYTES], strict=True)
        known = self._difference(
            bytes([pad ^ other_pad for pad, other_pad in pads]),
            self.ident ^ other.ident,
            one.frag ^ two.frag,
            one.sport ^ two.sport,
            one.flags ^ two.flags,
            one.pkey ^ two.pkey,
            self.word ^ other.word,
        )
        return self._icrc() ^ other._icrc() != known

    def repeated_with(self, ident: int) -> None:
        """Note a retransmission, and rebase the ICRC to its ident."""
        if self.tail:
            icrc = self._icrc() ^ self._difference(b"", self.ident ^ ident, 0, 0, 0, 0, 0)
            self.tail = self.tail[:-ICRC_BYTES] + icrc.to_bytes(ICRC_BYTES, "little")
        self.ident = ident
        self.repeated = True

    def _icrc(self) -> int:
        return int.from_bytes(self.tail[-ICRC_BYTES:], "little")

    def _difference(self, pads: bytes, *fields: int) -> int:
        """Return the change of the ICRC if :data:`_SEEDED` and the padding differ by these values."""
        changed = _SEEDED.pack(*fields) + bytes(self.form.length - ICRC_BYTES - _BEHIND - len(pads)) + pads
        return crc32(changed) ^ crc32(bytes(len(changed)))
