"""BTH, the base transport header at the start of every packet (IBA vol. 1, 9.2; reserved bits as in Annex A17)."""

from __future__ import annotations

import struct
from typing import Self

from rnic.spec.ids import Psn, Qpn
from rnic.spec.layout import Layout, bits
from rnic.wire.header import Buffer, Header

SOLICITED = 0x80
MIGREQ = 0x40
"""Bits of byte 1; the pad count is at bits 5:4, the header version at 3:0."""
FECN = 1 << 31
BECN = 1 << 30
"""Bits of the word at byte 4, which the QP number shares."""
ACKREQ = 1 << 31
"""Bit of the word at byte 8, which the PSN shares."""

BTH = Layout(
    "BTH",
    12,
    "big",
    "IBA vol. 1, 9.2",
    (
        bits("opcode", 0, 31, 24, "service and operation"),
        bits("solicited", 0, 23, 23, "solicited event: wake a receiver that waits only for these"),
        bits("migreq", 0, 22, 22, "migration state; hardware sends 1, Soft-RoCE sends 0"),
        bits("pad", 0, 21, 20, "pad bytes between payload and ICRC"),
        bits("tver", 0, 19, 16, "transport header version, 0"),
        bits("pkey", 0, 15, 0, "partition key"),
        bits("fecn", 4, 31, 31, "forward congestion notification"),
        bits("becn", 4, 30, 30, "backward congestion notification"),
        bits("reserved6", 4, 29, 24, "reserved; like FECN and BECN, not covered by the ICRC"),
        bits("dqpn", 4, 23, 0, "destination QP number"),
        bits("ackreq", 8, 31, 31, "the responder shall acknowledge this packet"),
        bits("reserved7", 8, 30, 24, "reserved"),
        bits("psn", 8, 23, 0, "packet sequence number"),
    ),
)


class Bth(Header):
    """Base transport header, 12 bytes."""

    __slots__ = tuple(field.name for field in BTH.fields)

    layout = BTH
    FORMAT = "BBHII"
    opcode: int
    solicited: bool
    migreq: bool
    pad: int
    tver: int
    pkey: int
    fecn: bool
    becn: bool
    reserved6: int
    dqpn: Qpn
    ackreq: bool
    reserved7: int
    psn: Psn

    @classmethod
    def parse(cls, buf: Buffer, offset: int = 0) -> Self:
        """See :meth:`Header.parse`."""
        header = cls.__new__(cls)
        header.opcode, flags, header.pkey, dqpn, psn = _STRUCT.unpack_from(buf, offset)
        header.solicited = flags & SOLICITED != 0
        header.migreq = flags & MIGREQ != 0
        header.pad = flags >> 4 & 3
        header.tver = flags & 0x0F
        header.fecn = dqpn & FECN != 0
        header.becn = dqpn & BECN != 0
        header.reserved6 = dqpn >> 24 & 0x3F
        header.dqpn = dqpn & 0xFFFFFF
        header.ackreq = psn & ACKREQ != 0
        header.reserved7 = psn >> 24 & 0x7F
        header.psn = psn & 0xFFFFFF
        return header

    def pack(self) -> bytes:
        """See :meth:`Header.pack`."""
        self.check()
        return _STRUCT.pack(
            self.opcode,
            self.solicited << 7 | self.migreq << 6 | self.pad << 4 | self.tver,
            self.pkey,
            self.fecn << 31 | self.becn << 30 | self.reserved6 << 24 | self.dqpn,
            self.ackreq << 31 | self.reserved7 << 24 | self.psn,
        )


_STRUCT = struct.Struct(f">{Bth.FORMAT}")
