"""The layout machinery itself."""

from __future__ import annotations

import re

import pytest

from rnic.spec.layout import Field, Layout, bits, half, octet, wide, word


def make(*fields: Field, size: int = 8, endian: str = "big") -> Layout:
    return Layout("thing", size, endian, "nowhere", fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "row"),
    [
        (bits("x", 4, 7, 2, "d"), ("x", 4, 7, 2, "d", 4, "RW")),
        (word("x", 4, "d", "RO"), ("x", 4, 31, 0, "d", 4, "RO")),
        (half("x", 2, "d"), ("x", 2, 15, 0, "d", 2, "RW")),
        (octet("x", 3, "d"), ("x", 3, 7, 0, "d", 1, "RW")),
        (wide("x", 0, "d"), ("x", 0, 63, 0, "d", 8, "RW")),
        (wide("x", 0, "d", 16, "WR"), ("x", 0, 127, 0, "d", 16, "WR")),
    ],
    ids=["bits", "word", "half", "octet", "wide", "wide 16"],
)
def test_shorthands(field: Field, row: tuple[object, ...]) -> None:
    assert (field.name, field.byte, field.msb, field.lsb, field.doc, field.unit, field.access) == row


def test_width_and_mask() -> None:
    field = bits("x", 0, 12, 11, "")
    assert (field.width, field.mask) == (2, 3)


@pytest.mark.parametrize(
    ("endian", "data"),
    [("big", "0000 1234 5000 00ff"), ("little", "3412 0000 ff00 0050")],
)
def test_byte_order(endian: str, data: str) -> None:
    layout = make(bits("low", 0, 15, 0, ""), bits("top", 4, 31, 28, ""), bits("last", 4, 7, 0, ""), endian=endian)
    values = {"low": 0x1234, "top": 5, "last": 0xFF}
    assert layout.pack(values) == bytes.fromhex(data)
    assert layout.unpack(bytes.fromhex(data)) == values
    assert layout.unpack(b"??" + bytes.fromhex(data), 2) == values


def test_put_leaves_the_bits_around() -> None:
    layout = make(bits("x", 0, 15, 8, ""))
    buffer = bytearray(b"\xff" * 10)
    layout.put(buffer, "x", 0, 1)
    assert buffer.hex() == "ffffff00ffffffffffff"
    layout.put(memoryview(buffer), "x", 0x5A, 1)
    assert layout.get(buffer, "x", 1) == 0x5A


def test_lookups() -> None:
    layout = make(word("a", 0, ""))
    assert "a" in layout
    assert "b" not in layout
    assert layout["a"].byte == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((word("a", 0, ""), word("a", 4, "")), "a field name appears twice"),
        ((word("a", 0, ""), bits("b", 0, 3, 3, "")), "fields a and b overlap"),
        ((word("a", 0, ""), octet("b", 3, "")), "fields a and b overlap"),
        ((word("a", 5, ""),), "field a lies outside its 8 bytes"),
        ((bits("a", 0, 32, 0, ""),), "field a lies outside"),
        ((bits("a", 0, 3, 4, ""),), "field a lies outside"),
        ((bits("a", 0, 3, -1, ""),), "field a lies outside"),
    ],
)
def test_refuses_a_wrong_table(fields: tuple[Field, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(*fields)


def test_overlap_depends_on_the_byte_order() -> None:
    """Bits 7:0 of a word are its last byte when big-endian, its first when little-endian."""
    fields = (bits("a", 0, 7, 0, ""), octet("b", 0, ""))
    make(*fields, endian="big")
    with pytest.raises(ValueError, match="overlap"):
        make(*fields, endian="little")


@pytest.mark.parametrize("value", [-1, 4])
def test_refuses_a_value_that_does_not_fit(value: int) -> None:
    layout = make(bits("a", 0, 1, 0, ""))
    with pytest.raises(ValueError, match=rf"thing\.a={value:#x} does not fit in 2 bits"):
        layout.pack({"a": value})


def test_refuses_an_unknown_field() -> None:
    with pytest.raises(ValueError, match=re.escape("layout thing has no field 'b'; it has: a")):
        make(word("a", 0, "")).pack({"b": 1})


@pytest.mark.parametrize(("length", "offset", "got"), [(7, 0, 7), (8, 1, 7), (8, 9, 0)])
def test_refuses_a_short_buffer(length: int, offset: int, got: int) -> None:
    with pytest.raises(ValueError, match=f"thing needs 8 bytes, got {got}"):
        make(word("a", 0, "")).unpack(bytes(length), offset)
