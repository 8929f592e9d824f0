"""Capture files: a reader for pcap and pcapng, a writer of pcapng (draft-ietf-opsawg-pcapng).

The reader takes classic pcap of both byte orders with microseconds or nanoseconds, and pcapng of both byte
orders with enhanced, simple and the obsolete packet blocks. The writer makes what Wireshark and tshark open
without complaint: one interface, nanosecond timestamps.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from types import TracebackType
from typing import BinaryIO, NamedTuple, Protocol, Self

from rnic.spec.errors import RnicError
from rnic.wire.dissect import LINKTYPE_ETHERNET

_MAX_RECORD = 1 << 26
"""No packet or block is longer; a bigger number is a damaged file, and not to be allocated for."""

_CLASSIC = {
    b"\xd4\xc3\xb2\xa1": ("<", 1_000),
    b"\xa1\xb2\xc3\xd4": (">", 1_000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
"""Magic number of classic pcap: byte order, and nanoseconds in a unit of the timestamps' fraction."""

_SECTION = 0x0A0D0D0A
_INTERFACE = 1
_OLD_PACKET = 2
_SIMPLE_PACKET = 3
_ENHANCED_PACKET = 6
_BYTE_ORDER_MAGIC = 0x1A2B3C4D
_OPT_END = 0
_OPT_USERAPPL = 4
_OPT_IF_NAME = 2
_OPT_TSRESOL = 9
_OPT_TSOFFSET = 14


class CaptureError(RnicError):
    """A file is no capture, or is damaged or cut short. One line that names the file and the place."""


class CapturedPacket(NamedTuple):
    """One packet of a capture file."""

    time_ns: int
    """Nanoseconds since 1970; 0 where the file has no time for it."""
    linktype: int
    """What ``data`` starts with (tcpdump.org/linktypes.html); 1 is Ethernet."""
    data: bytes
    """The captured bytes."""
    length: int
    """Bytes on the wire; more than ``len(data)`` where the capture cut the packet."""


class _Interface(NamedTuple):
    linktype: int
    snaplen: int
    base: int
    """Timestamp units are ``base ** -exponent`` seconds."""
    exponent: int
    offset_s: int


def read_capture(file: BinaryIO, name: str) -> Iterator[CapturedPacket]:
    """Yield the packets of an open capture file, in the file's order.

    Args:
        file: opened for reading bytes; need not be seekable.
        name: what errors call it.

    Raises:
        CaptureError: at once, where the file is neither pcap nor pcapng; after the last readable packet, where it
            is damaged or cut short.
    """
    magic = file.read(4)
    if magic in _CLASSIC:
        return _read_classic(file, name, *_CLASSIC[magic])
    if magic == struct.pack("<I", _SECTION):
        return _read_pcapng(file, name)
    found = f"starts with {magic.hex(' ')}" if magic else "is empty"
    raise CaptureError(f"{name}: {found}: not a capture file; give a .pcap or .pcapng")


def read_packets(path: str | os.PathLike[str]) -> Iterator[CapturedPacket]:
    """Yield the packets of a capture file by path.

    Raises:
        CaptureError: as :func:`read_capture`, and where the file cannot be opened.
    """
    name = os.fspath(path)
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise CaptureError(f"{name}: cannot be opened: {error.strerror}") from None
    with file:
        yield from read_capture(file, name)


class _Source:
    """Reads exact numbers of bytes and knows where it is, for the errors."""

    def __init__(self, file: BinaryIO, name: str, at: int) -> None:
        self.file = file
        self.name = name
        self.at = at
        self.packets = 0

    def error(self, what: str) -> CaptureError:
        return CaptureError(f"{self.name}: {what} at byte {self.at}, after {self.packets} packets")

    def short(self, what: str, count: int, left: int) -> CaptureError:
        return self.error(f"cut short: {what} needs {count} bytes and {left} are left,")

    def take(self, count: int, what: str) -> bytes:
        """Exactly ``count`` bytes."""
        data = self.file.read(count)
        if len(data) != count:
            raise self.short(what, count, len(data))
        self.at += count
        return data

    def take_or_end(self, count: int, what: str) -> bytes:
        """``count`` bytes, or none where the file ends here."""
        data = self.file.read(count)
        if data and len(data) != count:
            raise self.short(what, count, len(data))
        self.at += len(data)
        return data


def _read_classic(file: BinaryIO, name: str, order: str, unit_ns: int) -> Iterator[CapturedPacket]:
    source = _Source(file, name, 4)
    header = struct.Struct(f"{order}IIII")
    *_, linktype = struct.unpack(f"{order}HHiIII", source.take(20, "the file header"))
    linktype &= 0xFFFF  # the upper half may say how long the Ethernet checksums are
    read, unpack = file.read, header.unpack
    while record := read(16):
        if len(record) != 16:
            raise source.short("a packet header", 16, len(record))
        source.at += 16
        seconds, fraction, captured, length = unpack(record)
        if captured > _MAX_RECORD:
            raise source.error(f"damaged: a packet of {captured} bytes")
        data = read(captured)
        if len(data) != captured:
            raise source.short("a packet", captured, len(data))
        source.at += captured
        source.packets += 1
        yield CapturedPacket(seconds * 1_000_000_000 + fraction * unit_ns, linktype, data, length)


def _read_pcapng(file: BinaryIO, name: str) -> Iterator[CapturedPacket]:
    source = _Source(file, name, 4)
    order = "<"
    interfaces: list[_Interface] = []
    first = struct.pack("<I", _SECTION)
    while first:
        (kind,) = struct.unpack(f"{order}I", first)
        size_bytes = source.take(4, "a block's length")
        lead = b""
        if kind == _SECTION:
            lead = source.take(4, "a section's byte order")
            order = "<" if lead == struct.pack("<I", _BYTE_ORDER_MAGIC) else ">"
            if lead != struct.pack(f"{order}I", _BYTE_ORDER_MAGIC):
                raise source.error(f"damaged: byte-order magic {lead.hex()}")
            interfaces = []
        (size,) = struct.unpack(f"{order}I", size_bytes)
        if size % 4 or not 12 + len(lead) <= size <= _MAX_RECORD:
            raise source.error(f"damaged: a block of {size} bytes")
        body = source.take(size - 12 - len(lead), "a block")
        if source.take(4, "a block's end") != size_bytes:
            raise source.error("damaged: a block's two lengths differ")
        try:
            if kind == _INTERFACE:
                interfaces.append(_parse_interface(body, order))
            elif kind in (_ENHANCED_PACKET, _OLD_PACKET, _SIMPLE_PACKET):
                packet = _parse_packet(kind, body, order, interfaces)
                source.packets += 1
                yield packet
        except (struct.error, IndexError):
            raise source.error(f"damaged: a block of type {kind} does not hold what it says") from None
        first = source.take_or_end(4, "a block")


@lru_cache(1024)  # a file may hold a million that are alike
def _parse_interface(body: bytes, order: str) -> _Interface:
    linktype, _, snaplen = struct.unpack_from(f"{order}HHI", body)
    base, exponent, offset_s = 10, 6, 0
    at = 8
    while at + 4 <= len(body):
        code, size = struct.unpack_from(f"{order}HH", body, at)
        value = body[at + 4 : at + 4 + size]
        if code == _OPT_END:
            break
        if code == _OPT_TSRESOL:
            base, exponent = (2, value[0] & 0x7F) if value[0] & 0x80 else (10, value[0])
        elif code == _OPT_TSOFFSET:
            (offset_s,) = struct.unpack(f"{order}q", value)
        at += 4 + (size + 3 & ~3)
    return _Interface(linktype, snaplen, base, exponent, offset_s)


def _parse_packet(kind: int, body: bytes, order: str, interfaces: list[_Interface]) -> CapturedPacket:
    """A packet block. ``struct.error`` or ``IndexError`` where it contradicts itself or the interfaces."""
    if kind == _SIMPLE_PACKET:
        interface = interfaces[0]
        (length,) = struct.unpack_from(f"{order}I", body)
        captured = min(length, interface.snaplen) if interface.snaplen else length
        data = body[4 : 4 + captured]
        time_ns = 0
    else:
        fields = f"{order}IIIII" if kind == _ENHANCED_PACKET else f"{order}HxxIIII"
        number, high, low, captured, length = struct.unpack_from(fields, body)
        interface = interfaces[number]
        data = body[20 : 20 + captured]
        ticks = (high << 32 | low) * 1_000_000_000
        time_ns = ticks // interface.base**interface.exponent + interface.offset_s * 1_000_000_000
    if len(data) != captured:
        raise IndexError
    return CapturedPacket(time_ns, interface.linktype, data, length)


class Sink(Protocol):
    """What a capture is written to."""

    def write(self, data: bytes, /) -> object:
        """Take a whole block."""


class PcapngWriter:
    """Writes packets of one interface to an open file. Also a context manager, which flushes.

    Args:
        file: opened for writing bytes; stays the caller's.
        linktype: what packets start with: 1 Ethernet, 101 a raw IP header.
        interface: name shown for the interface.
    """

    def __init__(self, file: BinaryIO | Sink, linktype: int = LINKTYPE_ETHERNET, interface: str = "rnic0") -> None:
        self.linktype = linktype
        self._file = file
        section = (
            struct.pack("<IHHq", _BYTE_ORDER_MAGIC, 1, 0, -1) + _option(_OPT_USERAPPL, b"rnic") + _option(_OPT_END)
        )
        self._block(_SECTION, section)
        options = _option(_OPT_IF_NAME, interface.encode()) + _option(_OPT_TSRESOL, b"\x09") + _option(_OPT_END)
        self._block(_INTERFACE, struct.pack("<HHI", linktype, 0, 0) + options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if hasattr(self._file, "flush"):
            self._file.flush()

    def write(self, time_ns: int, packet: bytes | bytearray | memoryview, length: int | None = None) -> None:
        """Add one packet.

        Args:
            time_ns: nanoseconds since 1970, or since any start.
            packet: the bytes, from the link type's header on.
            length: bytes on the wire, if ``packet`` is only the start of it.
        """
        size = len(packet)
        head = struct.pack("<IIIII", 0, time_ns >> 32, time_ns & 0xFFFF_FFFF, size, size if length is None else length)
        self._block(_ENHANCED_PACKET, head + bytes(packet) + bytes(-size % 4))

    def _block(self, kind: int, body: bytes) -> None:
        size = len(body) + 12
        self._file.write(struct.pack("<II", kind, size) + body + struct.pack("<I", size))


def _option(code: int, value: bytes = b"") -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)
