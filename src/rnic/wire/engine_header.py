"""The seven-beat header of the descriptor engine (000 section 5.3.3, 001 section 5), seven little-endian words.

It carries no remote key; access is bounded by configured address windows. The upper half of beat 3, reserved
in the documents, carries bits 31:16 of the fragment offset (``design.md``): identical up to 64 KiB.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Self

from rnic.spec.layout import Layout, bits, half, octet, word
from rnic.wire.header import Buffer, Header

BEATS = 7
ENGINE_HEADER_BYTES = 4 * BEATS
MARKER = 0xABABAB
"""Constant in the upper bits of beat 6. The receiver does not look at it, as the documented one does not."""

ENGINE_HEADER = Layout(
    "seven-beat header",
    ENGINE_HEADER_BYTES,
    "little",
    "000 5.3.3; design.md",
    (
        octet("opcode", 0, "work-request opcode of the descriptor"),
        bits("psn", 0, 31, 8, "packet sequence number"),
        bits("dqpn", 4, 23, 0, "destination QP number"),
        word("remote_addr", 8, "destination address, bits 31:0"),
        word("fragment_offset", 12, "offset of this fragment from remote_addr"),
        word("length", 16, "payload bytes after this header"),
        half("pkey", 20, "partition key"),
        octet("service_level", 24, "service level"),
        bits("marker", 24, 31, 8, "ABABABh"),
    ),
)


class EngineHeader(Header):
    """One packet's header in the descriptor engine, 28 bytes. ``marker`` is ABABABh unless set."""

    __slots__ = tuple(field.name for field in ENGINE_HEADER.fields)

    layout = ENGINE_HEADER
    FORMAT = "7I"
    CONSTANTS: ClassVar[dict[str, int]] = {"marker": MARKER}
    opcode: int
    psn: int
    dqpn: int
    remote_addr: int
    fragment_offset: int
    length: int
    pkey: int
    service_level: int
    marker: int

    @classmethod
    def parse(cls, buf: Buffer, offset: int = 0) -> Self:
        """See :meth:`Header.parse`. Reserved bits are ignored."""
        header = cls.__new__(cls)
        first, dqpn, header.remote_addr, header.fragment_offset, header.length, pkey, last = _STRUCT.unpack_from(
            buf, offset
        )
        header.opcode = first & 0xFF
        header.psn = first >> 8
        header.dqpn = dqpn & 0xFFFFFF
        header.pkey = pkey & 0xFFFF
        header.service_level = last & 0xFF
        header.marker = last >> 8
        return header

    def pack(self) -> bytes:
        """See :meth:`Header.pack`."""
        self.check()
        return _STRUCT.pack(
            self.psn << 8 | self.opcode,
            self.dqpn,
            self.remote_addr,
            self.fragment_offset,
            self.length,
            self.pkey,
            self.marker << 8 | self.service_level,
        )


_STRUCT = struct.Struct(f"<{EngineHeader.FORMAT}")
