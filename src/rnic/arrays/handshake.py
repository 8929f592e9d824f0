"""The out-of-band handshake over TCP that precedes RoCEv2 (003 "Meta Interfaces for Connection Setup").

Each side sends one JSON object on one line. The client speaks first; the server brings its queue pair up, then
answers, so that no packet of the client arrives before the queue pair is ready. All input is bounded and checked: a
bad line raises :class:`ExchangeError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NoReturn

from rnic.cm.line_socket import ExchangeError
from rnic.spec.json_text import json_value
from rnic.spec.limits import MAX_RD_ATOMIC, MTU_CODES
from rnic.spec.psn import PSN_MASK

VERSION = 1
MAX_BUFFERS = 4_096
MAX_NAME = 200
MAX_DIMENSIONS = 32

DTYPE_PATTERN = re.compile(r"[<>|=][biufcSUVmM][1-9]\d{0,8}(\[\w{1,12}\])?")
"""Array types as ``numpy.dtype.str`` writes them. Types that hold Python objects are excluded: their bytes
would be used as pointers."""
_SHOWN = 200


Fields = list[list[Any]]
"""Name, type (text, or fields again) and, for a field that is an array, its shape."""
_MAX_FIELDS = 512
_MAX_DEPTH = 8


def fields_bytes(fields: object, depth: int = 0) -> int:
    """Return the number of bytes of one element of a structured type.

    Raises:
        ValueError: ``fields`` do not describe a structured type.
    """
    if isinstance(fields, str) and DTYPE_PATTERN.fullmatch(fields):
        return item_bytes(fields)
    if not isinstance(fields, list) or not 0 < len(fields) <= _MAX_FIELDS or depth > _MAX_DEPTH:
        raise ValueError(fields)
    size = 0
    for one in fields:
        if not isinstance(one, list) or len(one) not in (2, 3) or not isinstance(one[0], str):
            raise ValueError(one)
        shape = one[2] if len(one) == 3 else []
        if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
            raise ValueError(one)
        if not all(type(extent) is int and 0 < extent <= 1 << 32 for extent in shape):
            raise ValueError(one)
        size += prod(shape) * fields_bytes(one[1], depth + 1)
    return size


@dataclass(frozen=True, slots=True)
class BufferInfo:
    """A shared buffer as the peer sees it: address, rkey, and the type and shape of its array.

    Args:
        name: name of the shared buffer.
        addr: address in the peer's memory, 64 bits.
        length: bytes.
        rkey: the key that opens it, 32 bits.
        dtype: NumPy's type string.
        shape: elements along each axis; empty for bytes.
        writable: it may be written.
        fields: names and types of a structured type.
    """

    name: str
    addr: int
    length: int
    """Bytes."""
    rkey: int
    dtype: str = "|u1"
    """Element type, as ``numpy.dtype.str``."""
    shape: tuple[int, ...] = ()
    writable: bool = True
    fields: Fields | None = None
    """Fields of a structured type, as ``numpy.lib.format.dtype_to_descr`` writes them; ``dtype`` is then ``|V`` and
    its size."""

    def to_dict(self) -> dict[str, object]:
        """Return the buffer's JSON object for the line."""
        more = {} if self.fields is None else {"fields": self.fields}
        return {
            "name": self.name,
            "addr": self.addr,
            "length": self.length,
            "rkey": self.rkey,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "writable": self.writable,
            **more,
        }


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One side of a connection that is being set up."""

    qpn: int
    psn: int
    """PSN of the first packet that this end sends."""
    gid: bytes
    """GID, 16 bytes; an IPv4 address as ``::ffff:a.b.c.d``."""
    udp_port: int
    mtu: int
    """Largest path MTU of this end, in bytes. The smaller of the two sides' values is used."""
    gso: bool = False
    """This end accepts segments with IP IDs 0, 1, 2 ...; segmentation is used if both ends agree."""
    max_rd_atomic: int = 1
    """READs and atomics that this end serves concurrently."""
    message_bytes: int = 0
    """Longest SEND that fits this end's receives."""
    receives: int = 0
    """Receives that this end keeps posted."""
    buffers: tuple[BufferInfo, ...] = field(default=())
    selective_repeat: bool = False
    """This end keeps out-of-order packets; if both do, only lost packets are retransmitted."""

    def to_line(self) -> bytes:
        """Return the line for the peer."""
        return to_line(
            {
                "rnic": VERSION,
                "qpn": self.qpn,
                "psn": self.psn,
                "gid": self.gid.hex(),
                "udp_port": self.udp_port,
                "mtu": self.mtu,
                "gso": self.gso,
                "keeps": self.selective_repeat,
                "max_rd_atomic": self.max_rd_atomic,
                "message_bytes": self.message_bytes,
                "receives": self.receives,
                "buffers": [buffer.to_dict() for buffer in self.buffers],
            }
        )


def refusal_line(reason: str) -> bytes:
    """Return the line that refuses a connection."""
    return to_line({"rnic": VERSION, "error": reason[:_SHOWN]})


def parse_endpoint(line: bytes, where: str) -> Endpoint:
    """Read a peer's line.

    Args:
        line: without the newline.
        where: name of the peer, for error messages.

    Raises:
        ExchangeError: the line is malformed, of another version, has a bad value, or is a refusal.
    """
    received = PeerObject(json_object(line, where), where)
    version = received.values.get("rnic")
    if version != VERSION:
        raise ExchangeError(
            f"{where} speaks version {_show(version)} of the exchange, this end {VERSION}: use the same rnic on both"
        )
    if "error" in received.values:
        raise ExchangeError(f"{where} refused: {_plain(received.text('error', _SHOWN))}")
    gid = received.text("gid", 32)
    if not re.fullmatch(r"[0-9a-f]{32}", gid):
        received.refuse("gid", gid, "32 hexadecimal digits")
    mtu = received.number("mtu", 0, 1 << 16)
    if mtu not in MTU_CODES:
        received.refuse("mtu", mtu, f"one of {', '.join(map(str, MTU_CODES))}")
    listed = received.values.get("buffers")
    if not isinstance(listed, list) or len(listed) > MAX_BUFFERS:
        received.refuse("buffers", listed, f"a list of at most {MAX_BUFFERS}")
    buffers = tuple(_buffer(item, where) for item in listed)
    if len({buffer.name for buffer in buffers}) != len(buffers):
        received.refuse("buffers", [buffer.name for buffer in buffers], "names that differ")
    return Endpoint(
        qpn=received.number("qpn", 2, 0xFFFFFE),
        psn=received.number("psn", 0, PSN_MASK),
        gid=bytes.fromhex(gid),
        udp_port=received.number("udp_port", 1, 0xFFFF),
        mtu=mtu,
        gso=received.flag("gso"),
        selective_repeat="keeps" in received.values and received.flag("keeps"),
        max_rd_atomic=received.number("max_rd_atomic", 0, MAX_RD_ATOMIC),
        message_bytes=received.number("message_bytes", 0, 1 << 31),
        receives=received.number("receives", 0, 1 << 16),
        buffers=buffers,
    )


def _buffer(item: object, where: str) -> BufferInfo:
    if not isinstance(item, dict):
        raise ExchangeError(f"{where} sent {_show(item)} as a buffer; allowed: an object")
    received = PeerObject(item, where)
    name = received.text("name", MAX_NAME)
    addr = received.number("addr", 0, (1 << 64) - 1)
    length = received.number("length", 1, 1 << 48)
    if addr + length > 1 << 64:
        received.refuse("addr", addr, f"an address that {length} bytes fit behind")
    dtype = received.text("dtype", 40)
    if not DTYPE_PATTERN.fullmatch(dtype):
        received.refuse("dtype", dtype, "a plain array type such as <f8")
    shape = received.values.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_DIMENSIONS
        or not all(type(extent) is int and 0 < extent <= length for extent in shape)
        or prod(shape) * item_bytes(dtype) != length
    ):
        received.refuse("shape", shape, f"up to {MAX_DIMENSIONS} extents that make {length} bytes of {dtype}")
    fields = received.values.get("fields")
    if fields is not None:
        try:
            if isinstance(fields, str) or dtype != f"|V{fields_bytes(fields)}":
                raise ValueError(fields)
        except (ValueError, RecursionError):
            received.refuse("fields", fields, f"fields that make {dtype}")
    rkey = received.number("rkey", 0, 0xFFFFFFFF)
    return BufferInfo(name, addr, length, rkey, dtype, tuple(shape), received.flag("writable"), fields)  # type: ignore[arg-type] # checked above


def item_bytes(dtype: str) -> int:
    """Return the number of bytes of one array element: the digits of its type, four times as many for Unicode."""
    digits = dtype[2:].partition("[")[0]
    return int(digits) * (4 if dtype[1] == "U" else 1)


class PeerObject:
    """A JSON object from a peer; each getter checks one of its values, and raises :class:`ExchangeError`."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self._where = where

    def number(self, name: str, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high``."""
        value = self.values.get(name)
        if type(value) is not int or not low <= value <= high:
            self.refuse(name, value, f"a whole number from {low} to {high}")
        return value

    def text(self, name: str, limit: int) -> str:
        """Return a string of 1 to ``limit`` characters."""
        value = self.values.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= limit:
            self.refuse(name, value, f"1 to {limit} characters")
        return value

    def flag(self, name: str) -> bool:
        """Return a Boolean."""
        value = self.values.get(name)
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return value

    def refuse(self, name: str, value: object, allowed: str) -> NoReturn:
        """Raise for a value that is not allowed."""
        raise ExchangeError(f"{self._where} sent {name}={_show(value)}; allowed: {allowed}")


def json_object(line: bytes, where: str) -> dict[str, object]:
    """Parse a line; raise :class:`ExchangeError` if it is not a JSON object."""
    try:
        values = json_value(line)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ExchangeError(f"{where} does not speak the exchange of rnic; it sent {_show(line[:40])}")
    return values


def to_line(values: Mapping[str, object]) -> bytes:
    """Return one line that a peer can read with :func:`json_object`."""
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _plain(text: str) -> str:
    """Make text from a peer safe to print, in one line."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _show(value: object) -> str:
    text = _plain(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."
