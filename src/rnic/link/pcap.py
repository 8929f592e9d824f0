"""Capture files: a reader for pcap and pcapng, and a writer for pcapng (draft-ietf-opsawg-pcapng).

The reader accepts classic pcap in both byte orders with microseconds or nanoseconds, and pcapng in both byte orders
with enhanced, simple and obsolete packet blocks. Wireshark and tshark open files of the writer without warnings: one
interface, nanosecond timestamps.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from io import BufferedReader
from types import TracebackType
from typing import BinaryIO, NamedTuple, Protocol, Self, cast

from rnic.spec.errors import RnicError
from rnic.wire.dissect import LINKTYPE_ETHERNET
from rnic.wire.header import Buffer

_MAX_RECORD = 1 << 26
"""Longest packet or block; a larger number means a damaged file and is not allocated."""

_MAX_TIME_NS = (1 << 63) - 1
"""Latest time of a packet, in 2262; a time after it or before 1970 means a damaged file."""

_CLASSIC = {
    b"\xd4\xc3\xb2\xa1": ("<", 1_000),
    b"\xa1\xb2\xc3\xd4": (">", 1_000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
"""Byte order and timestamp resolution in nanoseconds, by magic number of classic pcap."""

_SECTION = 0x0A0D0D0A
_INTERFACE = 1
_OLD_PACKET = 2
_SIMPLE_PACKET = 3
_PACKET_HEAD = struct.Struct("<7I")
_ENHANCED_PACKET = 6
_BYTE_ORDER_MAGIC = 0x1A2B3C4D
_OPT_END = 0
_OPT_COMMENT = 1
_MAX_COMMENT = 4_096
_OPT_USERAPPL = 4
_OPT_IF_NAME = 2
_OPT_TSRESOL = 9
_OPT_TSOFFSET = 14
_STATISTICS = 5
_OPT_IF_RECV, _OPT_IF_DROP = 4, 5


class CaptureError(RnicError):
    """A file is not a capture, or is damaged or truncated. The message is one line with the file name and the
    offset."""


class CapturedPacket(NamedTuple):
    """One packet of a capture file."""

    time_ns: int
    """Nanoseconds since 1970; 0 if the file has no time for it."""
    linktype: int
    """Type of the header that ``data`` starts with (tcpdump.org/linktypes.html); 1 is Ethernet."""
    data: bytes
    """The captured bytes."""
    length: int
    """Bytes on the wire; more than ``len(data)`` if the packet is truncated in the capture."""


class _Interface(NamedTuple):
    linktype: int
    snaplen: int
    base: int
    """Timestamp units are ``base ** -exponent`` seconds."""
    exponent: int
    offset_s: int


class Taker(Protocol):
    """Processes many packets of a capture file at once; the others are returned one by one."""

    def classic(self, chunk: bytes, at: int, big: bool, unit_ns: int, linktype: int, most: int, /) -> tuple[int, int]:
        """Take whole packets of classic pcap in ``chunk`` from ``at`` on. Return where the rest starts, and the number
        taken."""

    def blocks(
        self, chunk: bytes, at: int, big: bool, interfaces: list[tuple[int, int, int] | None], /
    ) -> tuple[int, int]:
        """Take whole enhanced packet blocks of pcapng; ``interfaces`` are link type, ns a tick, offset in ns."""


def read_capture(file: BinaryIO, name: str, taker: Taker | None = None) -> Iterator[CapturedPacket]:
    """Yield the packets of an open capture file, in the file's order.

    Args:
        file: opened for reading bytes; need not be seekable.
        name: name of the file in errors.
        taker: processes packets instead of the caller, in the same order.

    Raises:
        CaptureError: at once if the file is neither pcap nor pcapng; after the last readable packet if it is damaged or
            cut short.
    """
    magic = file.read(4)
    source = _Source(file, name, 4) if taker is None else _Ahead(file, name, 4, taker)
    if magic in _CLASSIC:
        return _read_classic(source, *_CLASSIC[magic])
    if magic == struct.pack("<I", _SECTION):
        return _read_pcapng(source)
    found = f"starts with {magic.hex(' ')}" if magic else "is empty"
    raise CaptureError(f"{name}: {found}: not a capture file; give a .pcap or .pcapng")


def read_packets(path: str | os.PathLike[str]) -> Iterator[CapturedPacket]:
    """Yield the packets of a capture file by path.

    Raises:
        CaptureError: as :func:`read_capture`, and if the file cannot be opened.
    """
    name = os.fspath(path)
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise CaptureError(f"{name}: cannot be opened: {error.strerror}") from None
    with file:
        yield from read_capture(file, name)


class _Source:
    """Reads exact numbers of bytes and tracks the offset for errors."""

    def __init__(self, file: BinaryIO, name: str, at: int) -> None:
        self.file = file
        self.read: Callable[[int], bytes] = file.read
        self.name = name
        self.at = at
        self.packets = 0

    def error(self, what: str) -> CaptureError:
        return CaptureError(f"{self.name}: {what} at byte {self.at}, after {self.packets} packets")

    def short(self, what: str, count: int, left: int) -> CaptureError:
        return self.error(f"cut short: {what} needs {count} bytes and {left} are left,")

    def take(self, count: int, what: str) -> bytes:
        """Return exactly ``count`` bytes."""
        data = self.read(count)
        if len(data) != count:
            raise self.short(what, count, len(data))
        self.at += count
        return data

    def take_or_end(self, count: int, what: str) -> bytes:
        """Return ``count`` bytes, or none if the file ends here."""
        data = self.read(count)
        if data and len(data) != count:
            raise self.short(what, count, len(data))
        self.at += len(data)
        return data

    def classic(self, order: str, unit_ns: int, linktype: int) -> None:
        """Let the taker process as many packets as it can."""

    def blocks(self, order: str, interfaces: list[_Interface]) -> None:
        """Let the taker process as many packets as it can."""


class _Ahead(_Source):
    """Reads ahead for a taker."""

    _CHUNK = 1 << 18

    def __init__(self, file: BinaryIO, name: str, at: int, taker: Taker) -> None:
        super().__init__(file, name, at)
        self.read = self._read
        self._taker = taker
        self._chunk = b""
        self._place = 0
        self._known: tuple[list[_Interface], list[tuple[int, int, int] | None]] = ([], [])
        """Interfaces of the last call, and their description for the taker."""

    def _read(self, count: int) -> bytes:
        """Return bytes of the chunk; at its end read the missing bytes and then another chunk."""
        end = self._place + count
        data = self._chunk[self._place : end]
        self._place = end
        if len(data) == count:
            return data
        parts, missing = [data], count - len(data)
        while missing > 0:
            self._chunk = cast("BufferedReader", self.file).read1(self._CHUNK)
            if not self._chunk:
                self._place = 0
                break
            self._place = missing
            parts.append(self._chunk[:missing])
            missing -= len(parts[-1])
        return b"".join(parts)

    def classic(self, order: str, unit_ns: int, linktype: int) -> None:
        """Let the taker process as many packets as it can."""
        if self._place < len(self._chunk):
            self._took(self._taker.classic(self._chunk, self._place, order == ">", unit_ns, linktype, _MAX_RECORD))

    def blocks(self, order: str, interfaces: list[_Interface]) -> None:
        """Let the taker process as many packets as it can."""
        if self._place >= len(self._chunk):
            return
        if self._known[0] is not interfaces or len(self._known[1]) != len(interfaces):
            self._known = interfaces, [_ticks(interface) for interface in interfaces]
        self._took(self._taker.blocks(self._chunk, self._place, order == ">", self._known[1]))

    def _took(self, taken: tuple[int, int]) -> None:
        place, count = taken
        self.at += place - self._place
        self.packets += count
        self._place = place


def _ticks(interface: _Interface) -> tuple[int, int, int] | None:
    """Return link type, tick and offset in nanoseconds, if ticks are whole nanoseconds and no time is before 1970."""
    units = interface.base**interface.exponent
    if 1_000_000_000 % units or not 0 <= interface.offset_s <= 1 << 32:
        return None
    return interface.linktype, 1_000_000_000 // units, interface.offset_s * 1_000_000_000


def _read_classic(source: _Source, order: str, unit_ns: int) -> Iterator[CapturedPacket]:
    header = struct.Struct(f"{order}IIII")
    *_, linktype = struct.unpack(f"{order}HHiIII", source.take(20, "the file header"))
    linktype &= 0xFFFF  # the upper half may contain the length of Ethernet checksums
    read, unpack = source.read, header.unpack
    while True:
        source.classic(order, unit_ns, linktype)
        record = read(16)
        if not record:
            return
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


def _read_pcapng(source: _Source) -> Iterator[CapturedPacket]:
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
                if not 0 <= packet.time_ns <= _MAX_TIME_NS:
                    raise source.error(f"damaged: a packet of {packet.time_ns} ns, which is not from 1970 to 2262,")
                source.packets += 1
                yield packet
        except (struct.error, IndexError):
            raise source.error(f"damaged: a block of type {kind} does not hold what it says") from None
        source.blocks(order, interfaces)
        first = source.take_or_end(4, "a block")


@lru_cache(1024)  # a file may hold a million identical blocks
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
    """Parse a packet block. Raise ``struct.error`` or ``IndexError`` if it is inconsistent."""
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
    """Destination of a capture."""

    def write(self, data: bytes, /) -> object:
        """Take a whole block."""


class PcapngWriter:
    """Writes packets of one interface to an open file. Also a context manager, which flushes.

    Args:
        file: opened for writing bytes; the caller closes it.
        linktype: header that packets start with: 1 Ethernet, 101 a raw IP header.
        interface: name shown for the interface.
    """

    def __init__(self, file: BinaryIO | Sink, linktype: int = LINKTYPE_ETHERNET, interface: str = "rnic0") -> None:
        self.linktype = linktype
        self._file = file
        self._name = interface
        self._interfaces: dict[int, int] = {}
        section = (
            struct.pack("<IHHq", _BYTE_ORDER_MAGIC, 1, 0, -1) + _option(_OPT_USERAPPL, b"rnic") + _option(_OPT_END)
        )
        self._block(_SECTION, section)
        self._interface(linktype)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if hasattr(self._file, "flush"):
            self._file.flush()

    def write(
        self,
        time_ns: int,
        packet: bytes | bytearray | memoryview,
        length: int | None = None,
        *,
        linktype: int | None = None,
        comments: Sequence[str] = (),
    ) -> None:
        """Add one packet.

        Args:
            time_ns: nanoseconds since 1970, or since any start.
            packet: the bytes, from the link type's header on.
            length: bytes on the wire, if ``packet`` is only the start of it.
            linktype: header that the packet starts with, if it differs from the default; it gets its own interface.
            comments: comments that viewers show with the packet.
        """
        size = len(packet)
        place = 0 if linktype is None else self._interface(linktype)
        full = size if length is None else length
        if not place and not comments:
            self._file.write(b"".join(packet_block(time_ns, (packet,), full)))
            return
        head = struct.pack("<IIIII", place, time_ns >> 32, time_ns & 0xFFFF_FFFF, size, full)
        options = b"".join(_option(_OPT_COMMENT, comment.encode()[:_MAX_COMMENT]) for comment in comments)
        if options:
            options += _option(_OPT_END)
        self._block(_ENHANCED_PACKET, head + bytes(packet) + bytes(-size % 4) + options)

    def statistics(self, received: int, dropped: int) -> None:
        """Add the statistics of the interface: packets seen, and packets missing in the file."""
        options = _option(_OPT_IF_RECV, struct.pack("<Q", received)) + _option(_OPT_IF_DROP, struct.pack("<Q", dropped))
        self._block(_STATISTICS, struct.pack("<III", 0, 0, 0) + options + _option(_OPT_END))

    def _interface(self, linktype: int) -> int:
        """Return the number of the interface with a link type; write its description before its first packet."""
        number = self._interfaces.get(linktype)
        if number is None:
            number = self._interfaces[linktype] = len(self._interfaces)
            name = self._name if not number else f"{self._name}-{linktype}"
            options = _option(_OPT_IF_NAME, name.encode()) + _option(_OPT_TSRESOL, b"\x09") + _option(_OPT_END)
            self._block(_INTERFACE, struct.pack("<HHI", linktype, 0, 0) + options)
        return number

    def _block(self, kind: int, body: bytes) -> None:
        size = len(body) + 12
        self._file.write(struct.pack("<II", kind, size) + body + struct.pack("<I", size))


def packet_block(time_ns: int, pieces: Sequence[Buffer], length: int) -> tuple[Buffer, ...]:
    """Return the pieces of the block of one packet of a pcapng file.

    Args:
        time_ns: nanoseconds since 1970, or since any start.
        pieces: the packet's bytes.
        length: its bytes on the wire.
    """
    size = sum([len(piece) for piece in pieces])
    total = (size + 3 & ~3) + _PACKET_HEAD.size + 4
    head = _PACKET_HEAD.pack(_ENHANCED_PACKET, total, 0, time_ns >> 32, time_ns & 0xFFFF_FFFF, size, length)
    return head, *pieces, bytes(-size % 4) + total.to_bytes(4, "little")


def _option(code: int, value: bytes = b"") -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)
