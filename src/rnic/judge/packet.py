"""One packet as the judge looks at it: what all rules ask, taken apart once. Requests are remembered so."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rnic.spec.opcodes import CNP
from rnic.wire.crc import crc32

if TYPE_CHECKING:
    from rnic.judge.stream import Stream
    from rnic.wire.opcode import OpcodeRow

ICRC_BYTES = 4
ACK_REQUEST = 0x8000_0000
"""The bit in the last word of the BTH."""
_SEEDED = struct.Struct(">HH12xH7xBHxxxxI")
"""What may differ between two packets with one PSN, of what stands before the extended headers and is in the ICRC, from
the IPv4 ident on: ident, fragment field, source port, BTH flags, P_Key, and the word with AckReq and PSN."""
_BEHIND = 12
"""Bytes of the BTH."""


class Form:
    """What packets of one path with the same length and the same first eight bytes of the BTH have in common.

    So whatever these decide is looked at once: ``stream`` is where such packets belong, ``row`` what they are,
    ``request`` whether of RC or UC, ``middle`` whether neither first nor last of a message, ``total`` the length that
    an IPv4 header must give, ``length`` that of the UDP payload, ``size`` that of what headers, padding and ICRC leave
    of it, ``seed`` and ``residue`` the CRC before and behind one that is right, with ident 0, and ``tail`` where the
    padding starts, from the end.
    ``fit`` is the path MTU with which a request of this form keeps all rules that ask for nothing else, or -1.
    """

    __slots__ = (
        "dqpn",
        "fit",
        "flags",
        "frag",
        "header_bytes",
        "length",
        "middle",
        "pad",
        "pkey",
        "request",
        "residue",
        "row",
        "seed",
        "size",
        "solicited",
        "sport",
        "stream",
        "tail",
        "total",
    )

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
        self.header_bytes = row.header_bytes
        self.sport = sport
        self.frag = frag
        self.flags = flags
        self.pad = flags >> 4 & 3
        self.tail = -ICRC_BYTES - self.pad
        self.solicited = flags & 0x80 != 0
        self.pkey = pkey
        self.dqpn = dqpn
        self.length = length
        self.total = length + 28
        self.size = size
        self.seed = self.residue = 0
        self.fit = -1


class Seen:
    """A RoCEv2 packet of a capture whose ICRC is right, or cannot be checked.

    ``header`` is what stands between BTH and payload, ``tail`` padding and ICRC, empty where the packet was cut, and
    ``word`` the last four bytes of the BTH; ``ident`` tells a repetition from a copy that the network made, where the
    sender counts idents. A request also knows what became of it: ``packets`` is how many PSNs it uses, 0 while that is
    not known, ``done`` the messages that have ended with it, -1 while something before it is missing, and ``refused``
    that a sequence NAK for it or for something before it has come since.
    """

    __slots__ = ("done", "form", "frame", "header", "ident", "packets", "psn", "refused", "tail", "time_ns", "word")

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
        self.refused = False

    @property
    def row(self) -> OpcodeRow:
        """What its opcode means."""
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
        """Whether it asks for an acknowledgement."""
        return self.word & ACK_REQUEST != 0

    @property
    def solicited(self) -> bool:
        """Whether it asks for an event."""
        return self.form.solicited

    def carries_other_bytes(self, other: Seen) -> bool:
        """Whether two packets of one stream with the same PSN, extended headers and size differ in their payload.

        ICRCs are linear: the exclusive or of two is the CRC of what is different. So no payload is kept, nor gone over
        a second time: what else the ICRC covers is known of both.
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
        """It was sent once more; its ICRC is from now on what it would have been with that ident."""
        if self.tail:
            icrc = self._icrc() ^ self._difference(b"", self.ident ^ ident, 0, 0, 0, 0, 0)
            self.tail = self.tail[:-ICRC_BYTES] + icrc.to_bytes(ICRC_BYTES, "little")
        self.ident = ident

    def _icrc(self) -> int:
        return int.from_bytes(self.tail[-ICRC_BYTES:], "little")

    def _difference(self, pads: bytes, *fields: int) -> int:
        """What changes in the ICRC where :data:`_SEEDED` and the padding differ so."""
        changed = _SEEDED.pack(*fields) + bytes(self.form.length - ICRC_BYTES - _BEHIND - len(pads)) + pads
        return crc32(changed) ^ crc32(bytes(len(changed)))
