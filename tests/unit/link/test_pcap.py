"""Reading pcap and pcapng of every flavour, whole and damaged; writing pcapng."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import pytest

from rnic.link import pcap
from rnic.link.pcap import CapturedPacket, CaptureError, PcapngWriter, read_capture, read_packets

PACKETS = [b"first packet", b"x", b""]


def classic(order: str = "<", nano: bool = False, linktype: int = 1) -> bytes:
    out = struct.pack(f"{order}IHHiIII", 0xA1B23C4D if nano else 0xA1B2C3D4, 2, 4, 0, 0, 65_535, linktype)
    for number, data in enumerate(PACKETS):
        out += struct.pack(f"{order}IIII", 10 + number, 5, len(data), len(data) + number) + data
    return out


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(f"{order}I", len(body) + 12)
    return struct.pack(f"{order}I", kind) + size + body + size


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(order: str = "<", linktype: int = 1, snaplen: int = 0, options: bytes = b"") -> bytes:
    return block(1, struct.pack(f"{order}HHI", linktype, 0, snaplen) + options, order)


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)


def enhanced(data: bytes, ticks: int = 0, number: int = 0, order: str = "<", length: int | None = None) -> bytes:
    head = struct.pack(f"{order}IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), length or len(data))
    return block(6, head + data, order)


def read(data: bytes) -> list[CapturedPacket]:
    return list(read_capture(io.BytesIO(data), "x.pcap"))


def read_until_error(data: bytes) -> tuple[list[CapturedPacket], str]:
    """Packets before the error, and the error."""
    got: list[CapturedPacket] = []
    with pytest.raises(CaptureError) as caught:
        got.extend(read_capture(io.BytesIO(data), "x.pcap"))
    assert "\n" not in str(caught.value)
    return got, str(caught.value)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
def test_classic(order: str, nano: bool) -> None:
    fraction = 5 if nano else 5_000
    assert read(classic(order, nano, 101)) == [
        CapturedPacket((10 + number) * 1_000_000_000 + fraction, 101, data, len(data) + number)
        for number, data in enumerate(PACKETS)
    ]


def test_classic_link_type_may_carry_checksum_bits() -> None:
    assert read(classic(linktype=0x5400_0001))[0].linktype == 1


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng(order: str) -> None:
    data = section(order) + interface(order, 101) + block(5, bytes(12), order)
    for number, packet in enumerate(PACKETS):
        data += enhanced(packet, (1 << 32) + number, order=order, length=len(packet) + 7)
    assert read(data) == [
        CapturedPacket(((1 << 32) + number) * 1_000, 101, packet, len(packet) + 7)
        for number, packet in enumerate(PACKETS)
    ]


def test_pcapng_times() -> None:
    data = (
        section()
        + interface(options=option(2, b"eth0") + option(9, b"\x09"))
        + interface(options=option(9, b"\x8a") + option(0, b"") + option(9, b"\x00"))
        + interface(options=option(14, struct.pack("<q", -3)))
    )
    data += enhanced(b"", 123, 0) + enhanced(b"", 512, 1) + enhanced(b"", 5_000_000, 2)
    assert [packet.time_ns for packet in read(data)] == [123, 500_000_000, 2_000_000_000]


def test_pcapng_old_and_simple_packets() -> None:
    old = block(2, struct.pack("<HHIIII", 0, 0, 0, 7, 3, 9) + b"abc")
    simple = block(3, struct.pack("<I", 6) + b"defg")
    assert read(section() + interface(snaplen=4) + old + simple) == [
        CapturedPacket(7_000, 1, b"abc", 9),
        CapturedPacket(0, 1, b"defg", 6),
    ]
    assert read(section() + interface() + block(3, struct.pack("<I", 2) + b"de"))[0].data == b"de"


def test_pcapng_sections_start_anew() -> None:
    data = section() + interface(linktype=101) + enhanced(b"a") + section(">") + interface(">", 1)
    data += enhanced(b"b", order=">")
    assert [(packet.linktype, packet.data) for packet in read(data)] == [(101, b"a"), (1, b"b")]


@pytest.mark.parametrize("whole", [classic(), section() + interface() + enhanced(b"a") + enhanced(b"bcd")])
def test_cut_short_anywhere(whole: bytes) -> None:
    packets = read(whole)
    ends = []
    for size in range(4, len(whole)):
        try:
            got = read(whole[:size])
        except CaptureError:
            got, message = read_until_error(whole[:size])
            assert message.startswith("x.pcap: cut short: ")
        else:
            ends.append(size)
        assert got == packets[: len(got)]
    assert len(ends) < 6, "a cut shows, unless it falls between two packets"


def test_what_was_readable_comes_before_the_error() -> None:
    got, message = read_until_error(classic()[:-17])
    assert len(got) == 1
    assert message == "x.pcap: cut short: a packet needs 1 bytes and 0 are left, at byte 68, after 1 packets"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x.pcap: is empty: not a capture file; give a .pcap or .pcapng"),
        (b"GIF89a", "x.pcap: starts with 47 49 46 38: not a capture file; give a .pcap or .pcapng"),
    ],
)
def test_foreign(data: bytes, message: str) -> None:
    assert read_until_error(data) == ([], message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (classic()[:24] + struct.pack("<IIII", 0, 0, 1 << 30, 1 << 30), "a packet of 1073741824 bytes"),
        (section() + struct.pack("<II", 6, 13), "a block of 13 bytes"),
        (section() + struct.pack("<II", 6, 8), "a block of 8 bytes"),
        (section() + struct.pack("<II", 6, 1 << 28), "a block of 268435456 bytes"),
        (section()[:4] + struct.pack("<II", 28, 0x55555555), "byte-order magic 55555555"),
        (section()[:4] + struct.pack("<II", 12, 0x1A2B3C4D), "a block of 12 bytes"),
        (section() + interface()[:-4] + bytes(4), "a block's two lengths differ"),
        (section() + enhanced(b"a"), "a block of type 6 does not hold what it says"),
        (section() + interface() + enhanced(b"a", number=1), "a block of type 6 does not hold"),
        (section() + interface() + block(6, struct.pack("<IIIII", 0, 0, 0, 99, 99)), "a block of type 6 does not hold"),
        (section() + interface() + block(6, bytes(8)), "a block of type 6 does not hold"),
        (section() + block(1, bytes(4)), "a block of type 1 does not hold"),
        (section() + interface(options=option(9, b"")), "a block of type 1 does not hold"),
        (section() + interface(options=option(14, b"1234")), "a block of type 1 does not hold"),
        (section() + block(3, struct.pack("<I", 1) + b"a"), "a block of type 3 does not hold"),
        (
            section() + interface(options=option(9, b"\0")) + enhanced(b"a", (1 << 64) - 1),
            "5000000000 ns,",
        ),
        (
            section() + interface(options=option(14, struct.pack("<q", -1))) + enhanced(b"a", 999_999),
            "of -1000 ns,",
        ),
        (
            section() + interface(options=option(14, struct.pack("<q", 1 << 34))) + enhanced(b"a"),
            "from 1970 to 2262,",
        ),
    ],
)
def test_damaged(data: bytes, message: str) -> None:
    got, found = read_until_error(data)
    assert got == []
    assert found.startswith("x.pcap: damaged: ")
    assert message in found


def test_writer_golden() -> None:
    file = io.BytesIO()
    with PcapngWriter(file, 101, "eth0") as writer:
        writer.write(0x0000_0001_0000_0002, b"abcde")
    assert file.getvalue().hex(" ", 4) == (
        "0a0d0d0a 28000000 4d3c2b1a 01000000 ffffffff ffffffff 04000400 726e6963 00000000 28000000 "
        "01000000 28000000 65000000 00000000 02000400 65746830 09000100 09000000 00000000 28000000 "
        "06000000 28000000 00000000 01000000 02000000 05000000 05000000 61626364 65000000 28000000"
    )


def test_writer_and_reader_agree(tmp_path: Path) -> None:
    path = tmp_path / "own.pcapng"
    with path.open("wb") as file, PcapngWriter(file) as writer:
        writer.write(1_700_000_000_123_456_789, memoryview(b"abc"))
        writer.write(0, bytearray(b"defg"), 99)
    assert list(read_packets(path)) == [
        CapturedPacket(1_700_000_000_123_456_789, 1, b"abc", 3),
        CapturedPacket(0, 1, b"defg", 99),
    ]


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"no\.pcap: cannot be opened: No such file or directory"):
        next(read_packets(tmp_path / "no.pcap"))


def test_limit_is_far_above_any_packet() -> None:
    assert pcap._MAX_RECORD > 1 << 18


def test_a_million_interfaces_alike_cost_one() -> None:
    body = struct.pack("<HHI", 1, 0, 0) + struct.pack("<HH", 1, 0) * 2_000
    block = struct.pack("<II", 1, 12 + len(body)) + body + struct.pack("<I", 12 + len(body))
    section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    before = pcap._parse_interface.cache_info().misses
    assert list(read_capture(io.BytesIO(section + block * 1_000), "x")) == []
    assert pcap._parse_interface.cache_info().misses <= before + 1


def test_packets_of_several_link_types_and_their_comments(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    with path.open("wb") as file, PcapngWriter(file, 1) as writer:
        writer.write(5, b"abcde", comments=("one", "two: \u00e4"))
        writer.write(6, b"abc", 9, linktype=101)
        writer.write(7, b"abcd", linktype=1, comments=["x" * 70_000])
    assert [tuple(packet) for packet in read_packets(path)] == [
        (5, 1, b"abcde", 5), (6, 101, b"abc", 9), (7, 1, b"abcd", 4),
    ]  # fmt: skip


class Taking:
    """A taker that takes nothing, and what it was told about interfaces."""

    def __init__(self) -> None:
        self.told: list[list[tuple[int, int, int] | None]] = []

    def classic(self, chunk: bytes, at: int, big: bool, unit_ns: int, linktype: int, most: int, /) -> tuple[int, int]:
        return at, 0

    def blocks(
        self, chunk: bytes, at: int, big: bool, interfaces: list[tuple[int, int, int] | None], /
    ) -> tuple[int, int]:
        self.told.append(interfaces)
        return at, 0


def test_a_taker_is_told_no_interface_whose_packets_may_be_before_1970() -> None:
    taker = Taking()
    offsets = (-1, 0, 1 << 32, (1 << 32) + 1)
    data = section() + b"".join(interface(options=option(14, struct.pack("<q", each))) for each in offsets)
    assert list(read_capture(io.BytesIO(data + enhanced(b"a", number=1) * 2), "x", taker))
    assert [each is None for each in taker.told[-1]] == [True, False, False, True]


class Given(io.BytesIO):
    """A file that comes in given pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        super().__init__(self.pieces.pop(0))

    def read1(self, size: int | None = -1) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


@pytest.mark.parametrize("between", range(4))
def test_a_taker_is_told_the_interfaces_of_each_section(between: int) -> None:
    """Where a list of interfaces stood, that of a later section may stand, while the taker was told nothing."""
    taker = Taking()
    pieces = [section() + interface(linktype=1) + enhanced(b"a") * 2]
    for _ in range(between):
        pieces += [section(), interface(linktype=2)]
    pieces += [section(), interface(linktype=3), enhanced(b"a") * 2]
    file = Given(pieces[0][:4], pieces[0][4:], *pieces[1:])
    assert len(list(read_capture(file, "x", taker))) == 4
    assert taker.told[-1] == [(3, 1_000, 0)]


class Piece(bytes):
    """Bytes that notice when they are added to others, which copies all that came before them."""

    added = 0

    def __getitem__(self, key: Any) -> Any:
        return Piece(bytes(self)[key])

    def __radd__(self, other: bytes) -> bytes:
        Piece.added += 1
        return other + bytes(self)


class Pieces(io.BytesIO):
    """A file whose every read gives 100 bytes."""

    def read1(self, size: int | None = -1) -> bytes:
        return Piece(self.read(100))


def test_a_packet_that_comes_in_many_pieces_is_joined_once() -> None:
    size = 20_000
    data = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1) + struct.pack("<IIII", 0, 0, size, size)
    (packet,) = read_capture(Pieces(data + bytes(size)), "x", Taking())
    assert packet.data == bytes(size)
    assert Piece.added < 9
