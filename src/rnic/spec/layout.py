"""Layouts as data: one table of fields per structure, and a generic codec over it.

Every byte-exact structure of the project (wire headers, ring entries, contexts, registers) is one :class:`Layout`.
Documentation pages, the C header, the gateware and the tests read the table. The data path uses hand-written ``struct``
codecs; property tests check that both agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Endian = Literal["little", "big"]
_NOWHERE = (0, 0, 1, 0)


@dataclass(frozen=True, slots=True)
class Field:
    """Bits ``msb`` to ``lsb`` of the ``unit``-byte integer at offset ``byte``.

    ``access`` is free text from the source document (``RW``, ``RO``, ``W1C``, ``WR``, ...).
    """

    name: str
    byte: int
    msb: int
    lsb: int
    doc: str
    unit: int = 4
    access: str = "RW"

    @property
    def width(self) -> int:
        """Width in bits."""
        return self.msb - self.lsb + 1

    @property
    def mask(self) -> int:
        """The largest value that the field holds."""
        return (1 << self.width) - 1


class Layout:
    """A structure of ``size`` bytes with named bit fields.

    Raises:
        ValueError: at construction, if fields overlap, exceed the structure or repeat a name; when packing, if
            a value does not fit its field or its name is unknown.
    """

    def __init__(self, name: str, size: int, endian: Endian, source: str, fields: tuple[Field, ...]) -> None:
        self.name = name
        self.size = size
        self.endian: Endian = endian
        self.source = source
        self.fields = fields
        self._by_name = {field.name: field for field in fields}
        self._parts = {field.name: (field.byte, field.byte + field.unit, field.lsb, field.mask) for field in fields}
        """Start, end, shift and mask of each field, precomputed for the codecs."""
        if len(self._by_name) != len(fields):
            raise ValueError(f"layout {name}: a field name appears twice")
        taken = 0
        for field in fields:
            if not (0 <= field.lsb <= field.msb < field.unit * 8 and field.byte + field.unit <= size):
                raise ValueError(f"layout {name}: field {field.name} lies outside its {size} bytes")
            bits = self._bits(field)
            if taken & bits:
                other = next(other for other in fields if self._bits(other) & bits)
                raise ValueError(f"layout {name}: fields {other.name} and {field.name} overlap")
            taken |= bits

    def _bits(self, field: Field) -> int:
        """Return a mask of the structure's bits that a field occupies; bit 0 is the lowest of byte 0."""
        own = (field.mask << field.lsb).to_bytes(field.unit, self.endian)
        return int.from_bytes(own, "little") << 8 * field.byte

    def __getitem__(self, name: str) -> Field:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def get(self, buffer: bytes | bytearray | memoryview, name: str, offset: int = 0) -> int:
        """Return one field of the structure at ``buffer[offset:]``."""
        start, end, lsb, mask = self._parts[name]
        return int.from_bytes(buffer[offset + start : offset + end], self.endian) >> lsb & mask

    def put(self, buffer: bytearray | memoryview, name: str, value: int, offset: int = 0) -> None:
        """Store one field; other bits are unchanged."""
        part = self._parts.get(name)
        if part is None:
            raise ValueError(f"layout {self.name} has no field {name!r}; it has: {', '.join(self._by_name)}")
        start, end, lsb, mask = part
        if not 0 <= value <= mask:
            raise ValueError(f"{self.name}.{name}={value:#x} does not fit in {mask.bit_length()} bits")
        place = slice(offset + start, offset + end)
        word = int.from_bytes(buffer[place], self.endian) & ~(mask << lsb) | value << lsb
        buffer[place] = word.to_bytes(end - start, self.endian)

    def pack(self, values: Mapping[str, int]) -> bytes:
        """Return the bytes of the structure; fields not named are zero."""
        out = bytearray(self.size)
        parts, endian = self._parts, self.endian
        for name, value in values.items():
            start, end, lsb, mask = parts.get(name, _NOWHERE)
            if lsb or not 0 <= value <= mask or mask.bit_length() != (end - start) * 8:
                self.put(out, name, value)
            else:
                out[start:end] = value.to_bytes(end - start, endian)
        return bytes(out)

    def unpack(self, buffer: bytes | bytearray | memoryview, offset: int = 0) -> dict[str, int]:
        """Return all fields by name, in table order. ``ValueError`` if the buffer is too short."""
        if len(buffer) - offset < self.size:
            raise ValueError(f"{self.name} needs {self.size} bytes, got {max(0, len(buffer) - offset)}")
        data, endian, number = bytes(buffer[offset : offset + self.size]), self.endian, int.from_bytes
        return {
            name: number(data[start:end], endian) >> lsb & mask for name, (start, end, lsb, mask) in self._parts.items()
        }


def bits(name: str, byte: int, msb: int, lsb: int, doc: str, access: str = "RW") -> Field:
    """Return a field of bits of the 32-bit word at ``byte``."""
    return Field(name, byte, msb, lsb, doc, 4, access)


def flag(name: str, bit: int, doc: str, access: str = "RW") -> Field:
    """Return a field of one bit of a 32-bit register."""
    return bits(name, 0, bit, bit, doc, access)


def word(name: str, byte: int, doc: str, access: str = "RW") -> Field:
    """Return a field of a whole 32-bit word."""
    return Field(name, byte, 31, 0, doc, 4, access)


def half(name: str, byte: int, doc: str, access: str = "RW") -> Field:
    """Return a field of a whole 16-bit half word."""
    return Field(name, byte, 15, 0, doc, 2, access)


def octet(name: str, byte: int, doc: str, access: str = "RW") -> Field:
    """Return a field of a whole byte."""
    return Field(name, byte, 7, 0, doc, 1, access)


def wide(name: str, byte: int, doc: str, unit: int = 8, access: str = "RW") -> Field:
    """Return a field of a whole integer of ``unit`` bytes: an address (8), a GID (16)."""
    return Field(name, byte, unit * 8 - 1, 0, doc, unit, access)
