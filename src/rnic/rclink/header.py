"""RH, RC Link's 64-bit header, and the 128-bit memory descriptor of TYPE3 (``hardware.md`` §4).

§4 numbers the bits of one 64-bit word but gives no byte order; here it is big-endian, as in IP. The descriptor is not
sent: it is in host memory, little-endian.
"""

from __future__ import annotations

import struct
from typing import Self

from rnic.spec.layout import Field, Layout
from rnic.wire.header import Buffer, Header

_SOURCE = "hardware.md §4, RC Link"


def _bits(name: str, msb: int, lsb: int, doc: str, unit: int = 8) -> Field:
    return Field(name, 0, msb, lsb, doc, unit)


RH = Layout(
    "RH",
    8,
    "big",
    _SOURCE,
    (
        _bits("opcode", 63, 62, "0 SEND, 1 ACK or NAK, 2 CNP, 3 reserved"),
        _bits("fack", 61, 61, "in a SEND: the receiver shall acknowledge at once"),
        _bits("pad", 60, 59, "pad bytes after the payload, up to a whole word"),
        _bits("reserved", 58, 57, "reserved, 0"),
        _bits("ts_en", 56, 56, "the timestamp counts"),
        _bits("timestamp", 55, 40, "send time of the packet; in an ACK, that of the SEND it answers"),
        _bits("pkey", 39, 32, "partition key"),
        _bits("len_syndrome", 31, 25, "in a SEND: bytes of RH and payload, 0 above 127; in an ACK: AETH syndrome"),
        _bits("psn", 24, 13, "packet sequence number"),
        _bits("dest_qp", 12, 0, "destination QP"),
    ),
)

MD = Layout(
    "TYPE3 memory descriptor",
    16,
    "little",
    f"{_SOURCE}; positions within the 128 bits from the RC Link register description",
    (
        _bits("type", 1, 0, "0: a descriptor", 16),
        _bits("data_size", 19, 4, "bytes of data in the buffer", 16),
        _bits("sf", 20, 20, "a packet starts here", 16),
        _bits("lf", 21, 21, "a packet ends here", 16),
        _bits("crc_error", 22, 22, "received with a wrong CRC", 16),
        _bits("length_error", 23, 23, "received with a wrong length", 16),
        _bits("buffer_size", 63, 48, "bytes of the buffer", 16),
        _bits("address", 127, 64, "address of the buffer", 16),
    ),
)


class Rh(Header):
    """RC Link header, 8 bytes."""

    __slots__ = tuple(field.name for field in RH.fields)

    layout = RH
    opcode: int
    fack: int
    pad: int
    reserved: int
    ts_en: int
    timestamp: int
    pkey: int
    len_syndrome: int
    psn: int
    dest_qp: int

    @classmethod
    def parse(cls, buf: Buffer, offset: int = 0) -> Self:
        """See :meth:`Header.parse`."""
        header = cls.__new__(cls)
        (word,) = _STRUCT.unpack_from(buf, offset)
        header.opcode = word >> 62
        header.fack = word >> 61 & 1
        header.pad = word >> 59 & 3
        header.reserved = word >> 57 & 3
        header.ts_en = word >> 56 & 1
        header.timestamp = word >> 40 & 0xFFFF
        header.pkey = word >> 32 & 0xFF
        header.len_syndrome = word >> 25 & 0x7F
        header.psn = word >> 13 & 0xFFF
        header.dest_qp = word & 0x1FFF
        return header

    def pack(self) -> bytes:
        """See :meth:`Header.pack`."""
        self.check()
        return self.encode()

    def encode(self) -> bytes:
        """Return the bytes of a header, without range checks."""
        return _STRUCT.pack(
            self.opcode << 62
            | self.fack << 61
            | self.pad << 59
            | self.reserved << 57
            | self.ts_en << 56
            | self.timestamp << 40
            | self.pkey << 32
            | self.len_syndrome << 25
            | self.psn << 13
            | self.dest_qp
        )


class Md(Header):
    """TYPE3 memory descriptor, 16 bytes; decoded only, since TYPE3 is refused."""

    __slots__ = tuple(field.name for field in MD.fields)

    layout = MD
    type: int
    data_size: int
    sf: int
    lf: int
    crc_error: int
    length_error: int
    buffer_size: int
    address: int


_STRUCT = struct.Struct(">Q")
