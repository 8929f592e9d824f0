"""The seven-beat header of the descriptor engine (000 section 5.3.3, 001 section 5), seven little-endian words.

It has no remote key: configured address windows bound the access. The upper half of beat 3, reserved in the documents,
carries bits 31:16 of the fragment offset (``design.md``). Up to 64 KiB this makes no difference.

Engines with more than 32 address bits send bits 63:32 of the address in the remaining 24 reserved bits and in the top
byte of the offset. This leaves 24 bits for the offset, so the sender adds multiples of 16 MiB to the address instead.
Both headers are equal if the address is below 4 GiB and the offset below 16 MiB.
"""

from __future__ import annotations

from typing import ClassVar

from rnic.spec.layout import Layout, bits, half, octet, word
from rnic.wire.header import Header

BEATS = 7
ENGINE_HEADER_BYTES = 4 * BEATS
MARKER = 0xABABAB
"""Constant in the upper bits of beat 6. As in the documents, the receiver does not check it."""

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

ENGINE_HEADER_WIDE = Layout(
    "seven-beat header, 64-bit address",
    ENGINE_HEADER_BYTES,
    "little",
    "000 5.3.3; ours",
    (
        octet("opcode", 0, "work-request opcode of the descriptor"),
        bits("psn", 0, 31, 8, "packet sequence number"),
        bits("dqpn", 4, 23, 0, "destination QP number"),
        bits("remote_addr_39_32", 4, 31, 24, "destination address, bits 39:32"),
        word("remote_addr", 8, "destination address, bits 31:0"),
        bits("fragment_offset", 12, 23, 0, "offset of this fragment from the address"),
        bits("remote_addr_63_56", 12, 31, 24, "destination address, bits 63:56"),
        word("length", 16, "payload bytes after this header"),
        half("pkey", 20, "partition key"),
        half("remote_addr_55_40", 22, "destination address, bits 55:40"),
        octet("service_level", 24, "service level"),
        bits("marker", 24, 31, 8, "ABABABh"),
    ),
)
"""The header between engines with more than 32 address bits."""
ADDRESS_PARTS = (
    ("remote_addr", 0, 32), ("remote_addr_39_32", 32, 8), ("remote_addr_55_40", 40, 16), ("remote_addr_63_56", 56, 8),
)  # fmt: skip
"""Fields of :data:`ENGINE_HEADER_WIDE` that make up the address, lowest bits first: name, first bit, width."""


class EngineHeader(Header):
    """One packet's header in the descriptor engine, 28 bytes. ``marker`` is ABABABh unless set."""

    __slots__ = tuple(field.name for field in ENGINE_HEADER.fields)

    layout = ENGINE_HEADER
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

    @property
    def address(self) -> int:
        """Destination address of offset 0; the wide header has this property too."""
        return self.remote_addr


class EngineHeaderWide(Header):
    """The header between engines with more than 32 address bits; ``address`` is the whole destination address."""

    __slots__ = tuple(field.name for field in ENGINE_HEADER_WIDE.fields)

    layout = ENGINE_HEADER_WIDE
    CONSTANTS: ClassVar[dict[str, int]] = {"marker": MARKER}
    opcode: int
    psn: int
    dqpn: int
    remote_addr_39_32: int
    remote_addr: int
    fragment_offset: int
    remote_addr_63_56: int
    length: int
    pkey: int
    remote_addr_55_40: int
    service_level: int
    marker: int

    @property
    def address(self) -> int:
        """Destination address, 64 bits, of offset 0."""
        return sum(getattr(self, name) << low for name, low, _bits in ADDRESS_PARTS)
