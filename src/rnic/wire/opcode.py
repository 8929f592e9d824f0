"""The opcode table: one row per BTH opcode, with its extended headers and properties (IBA table 38).

Other code tests the row, never the number. The rows are built from service x operation x headers.
"""

from __future__ import annotations

import struct

from rnic.spec import opcodes as op
from rnic.spec.access import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from rnic.wire.aeth import Aeth
from rnic.wire.atomiceth import AtomicAckEth, AtomicEth
from rnic.wire.bth import Bth
from rnic.wire.deth import Deth
from rnic.wire.feth import Feth
from rnic.wire.header import Header
from rnic.wire.ieth import Ieth
from rnic.wire.immdt import ImmDt
from rnic.wire.reth import Reth
from rnic.wire.xrceth import Xrceth


class OpcodeRow:
    """Meaning of one BTH opcode.

    ``unpack`` reads the BTH and all extended headers at once, except an XRCETH, which follows the BTH; ``extended`` are
    the record classes of those headers, in order. ``rest_at`` is the offset, after the BTH, of the headers behind an
    XRCETH. ``resource`` is true if a request takes a responder resource and gets responses. ``rights`` are the
    ``IBV_ACCESS_*`` bits that it needs; for a FLUSH they depend on its FETH. ``work_request`` is the opcode of the work
    request whose message ends with this packet, 0 if there are several or none.
    """

    __slots__ = (
        "aeth",
        "atomic",
        "atomicacketh",
        "atomiceth",
        "deth",
        "end",
        "extended",
        "feth",
        "header_bytes",
        "ieth",
        "immdt",
        "name",
        "opcode",
        "operation",
        "payload",
        "read_response",
        "request",
        "resource",
        "response",
        "rest_at",
        "reth",
        "rights",
        "send",
        "service",
        "start",
        "takes_receive",
        "unpack",
        "work_request",
        "write",
        "xrceth",
    )

    def __init__(self, opcode: int, name: str, service: int, operation: int, headers: str, flags: str) -> None:
        words = flags.split()
        extended = headers.split()
        self.opcode = opcode
        self.name = name
        self.service = service
        self.operation = operation
        self.start = "start" in words
        self.end = "end" in words
        self.payload = "payload" in words
        self.send = "send" in words
        self.write = "write" in words
        self.read_response = "read_response" in words
        self.atomic = "atomic" in words
        self.resource = "resource" in words
        self.response = "response" in words
        self.request = not self.response
        self.deth = "deth" in extended
        self.xrceth = "xrceth" in extended
        self.feth = "feth" in extended
        self.reth = "reth" in extended
        self.aeth = "aeth" in extended
        self.atomiceth = "atomiceth" in extended
        self.atomicacketh = "atomicacketh" in extended
        self.immdt = "immdt" in extended
        self.ieth = "ieth" in extended
        self.rights = _RIGHTS.get(operation, REMOTE_WRITE if self.write else 0)
        self.work_request = _WORK_REQUEST_OF.get(operation, 0)
        self.takes_receive = self.end and (self.send or (self.write and self.immdt))
        self.extended: tuple[type[Header], ...] = tuple(_HEADERS[header] for header in extended)
        unpacked = [header.FORMAT for header in self.extended if header is not Xrceth]
        self.unpack = struct.Struct(">" + Bth.FORMAT + "".join(unpacked))
        self.rest_at = Xrceth.layout.size if self.xrceth else 0
        self.header_bytes = self.unpack.size + self.rest_at

    def __repr__(self) -> str:
        return f"<OpcodeRow {self.name} {self.opcode:#04x}>"


_WORK_REQUEST_OF = {packet: row.opcode for row in op.WORK_REQUESTS for packet in row.packets[2:]}
_RIGHTS = {
    op.READ_REQUEST: REMOTE_READ,
    op.COMPARE_SWAP: REMOTE_ATOMIC,
    op.FETCH_ADD: REMOTE_ATOMIC,
    op.ATOMIC_WRITE: REMOTE_WRITE,
}
_HEADERS: dict[str, type[Header]] = {
    "xrceth": Xrceth,
    "deth": Deth,
    "feth": Feth,
    "reth": Reth,
    "aeth": Aeth,
    "atomiceth": AtomicEth,
    "atomicacketh": AtomicAckEth,
    "immdt": ImmDt,
    "ieth": Ieth,
}

_OPERATIONS = (
    # operation, name, extended headers, flags
    (op.SEND_FIRST, "SEND_FIRST", "", "send start payload"),
    (op.SEND_MIDDLE, "SEND_MIDDLE", "", "send payload"),
    (op.SEND_LAST, "SEND_LAST", "", "send end payload"),
    (op.SEND_LAST_IMM, "SEND_LAST_IMM", "immdt", "send end payload"),
    (op.SEND_ONLY, "SEND_ONLY", "", "send start end payload"),
    (op.SEND_ONLY_IMM, "SEND_ONLY_IMM", "immdt", "send start end payload"),
    (op.WRITE_FIRST, "WRITE_FIRST", "reth", "write start payload"),
    (op.WRITE_MIDDLE, "WRITE_MIDDLE", "", "write payload"),
    (op.WRITE_LAST, "WRITE_LAST", "", "write end payload"),
    (op.WRITE_LAST_IMM, "WRITE_LAST_IMM", "immdt", "write end payload"),
    (op.WRITE_ONLY, "WRITE_ONLY", "reth", "write start end payload"),
    (op.WRITE_ONLY_IMM, "WRITE_ONLY_IMM", "reth immdt", "write start end payload"),
    (op.READ_REQUEST, "READ_REQUEST", "reth", "resource start end"),
    (op.READ_RESPONSE_FIRST, "READ_RESPONSE_FIRST", "aeth", "response read_response start payload"),
    (op.READ_RESPONSE_MIDDLE, "READ_RESPONSE_MIDDLE", "", "response read_response payload"),
    (op.READ_RESPONSE_LAST, "READ_RESPONSE_LAST", "aeth", "response read_response end payload"),
    (op.READ_RESPONSE_ONLY, "READ_RESPONSE_ONLY", "aeth", "response read_response start end payload"),
    (op.ACKNOWLEDGE, "ACKNOWLEDGE", "aeth", "response start end"),
    (op.ATOMIC_ACKNOWLEDGE, "ATOMIC_ACKNOWLEDGE", "aeth atomicacketh", "response start end"),
    (op.COMPARE_SWAP, "COMPARE_SWAP", "atomiceth", "atomic resource start end"),
    (op.FETCH_ADD, "FETCH_ADD", "atomiceth", "atomic resource start end"),
    (op.SEND_LAST_INV, "SEND_LAST_INV", "ieth", "send end payload"),
    (op.SEND_ONLY_INV, "SEND_ONLY_INV", "ieth", "send start end payload"),
    (op.FLUSH, "FLUSH", "feth reth", "resource start end"),
    (op.ATOMIC_WRITE, "ATOMIC_WRITE", "reth", "resource start end payload"),
)
_UC_OPERATIONS = range(op.SEND_FIRST, op.WRITE_ONLY_IMM + 1)
_UD_OPERATIONS = (op.SEND_ONLY, op.SEND_ONLY_IMM)


def _build() -> tuple[OpcodeRow | None, ...]:
    rows: list[OpcodeRow | None] = [None] * 256
    for operation, name, headers, flags in _OPERATIONS:
        rows[op.RC | operation] = OpcodeRow(op.RC | operation, f"RC_{name}", op.RC, operation, headers, flags)
        own = headers if "response" in flags.split() else f"xrceth {headers}"
        rows[op.XRC | operation] = OpcodeRow(op.XRC | operation, f"XRC_{name}", op.XRC, operation, own, flags)
        if operation in _UC_OPERATIONS:
            rows[op.UC | operation] = OpcodeRow(op.UC | operation, f"UC_{name}", op.UC, operation, headers, flags)
        if operation in _UD_OPERATIONS:
            headers = f"deth {headers}"
            rows[op.UD | operation] = OpcodeRow(op.UD | operation, f"UD_{name}", op.UD, operation, headers, flags)
    rows[op.CNP] = OpcodeRow(
        op.CNP, "CNP", op.CNP & op.SERVICE_MASK, op.CNP & op.OPERATION_MASK, "", "payload start end"
    )
    return tuple(rows)


OPCODES: tuple[OpcodeRow | None, ...] = _build()
"""Row of each opcode; ``None`` for reserved opcodes and services that rnic does not support."""


def _unsupported(opcode: int) -> OpcodeRow:
    return OpcodeRow(opcode, f"RC_UNSUPPORTED_{opcode:02X}", op.RC, opcode & op.OPERATION_MASK, "", "payload start end")


UNSUPPORTED: dict[int, OpcodeRow] = {
    opcode: _unsupported(opcode) for opcode in range(op.RC, op.RC | op.OPERATION_MASK + 1) if OPCODES[opcode] is None
}
"""Rows of RC opcodes that are reserved or not supported. A responder must refuse them with a NAK (IBA 9.7.4.1.4).
Everything after their BTH is payload."""


_RESYNC = 0x15
_RD = 0x40
_MANUFACTURERS = range(0xC0, 0x100)
_OWN = "manufacturer's"
SERVICE_NAMES = {op.RC: "RC", op.UC: "UC", _RD: "RD", op.UD: "UD", op.XRC: "XRC", 0xC0: _OWN, 0xE0: _OWN}
"""Service names by the high three bits of an opcode."""


def _legal() -> dict[int, str]:
    """Return the names of all opcodes that the standard defines or reserves for manufacturers, such as those of Dynamic
    Connections."""
    names = {_RD | _RESYNC: "RD_RESYNC", _RD | op.FLUSH: "RD_FLUSH"}
    for operation, name, *_ in _OPERATIONS:
        if operation <= op.FETCH_ADD:
            names[_RD | operation] = f"RD_{name}"
    return names | {opcode: f"{_OWN} opcode {opcode:#04x}" for opcode in _MANUFACTURERS}


NOT_DECODED: dict[int, str] = {opcode: name for opcode, name in _legal().items() if OPCODES[opcode] is None}
"""Names of legal opcodes that have no row: headers after their BTH are not parsed."""
