"""RC Link packets as text."""

from __future__ import annotations

from rnic.rclink.header import Rh
from rnic.rclink.numbers import ICRC_BYTES, OP_ACK, OP_CNP, OP_NAMES, OP_SEND, RH_BYTES
from rnic.wire.header import Header
from rnic.wire.pretty import syndrome_text

_DECIMAL = frozenset(("psn", "dest_qp", "pad", "fack", "ts_en", "timestamp", "reserved"))


def headers(buf: memoryview) -> list[Header]:
    """Return RH, or nothing if the packet is too short."""
    return [Rh.parse(buf)] if len(buf) >= RH_BYTES else []


def payload_bytes(buf: memoryview) -> int:
    """Return the number of bytes between RH and pad in a whole UDP payload with ICRC."""
    return max(0, len(buf) - RH_BYTES - ICRC_BYTES - (buf[0] >> 3 & 3 if len(buf) else 0))


def name(buf: memoryview) -> str:
    """Return ``"RCLINK_SEND"``, ``"RCLINK_ACK"``, ``"RCLINK_NAK"``, ``"RCLINK_CNP"`` or ``"RCLINK opcode 3"``."""
    opcode = buf[0] >> 6
    if opcode == OP_ACK and len(buf) >= RH_BYTES:
        return f"RCLINK_{syndrome_text(Rh.parse(buf).len_syndrome).split()[0].upper()}"
    return f"RCLINK_{OP_NAMES[opcode]}" if opcode in OP_NAMES else f"RCLINK opcode {opcode}"


def text(header: Rh, field: str) -> str:
    """Return the value of a field as text."""
    value: int = getattr(header, field)
    if field == "opcode":
        return f"{value} ({OP_NAMES.get(value, 'reserved')})"
    if field == "len_syndrome":
        if header.opcode == OP_SEND:
            return f"{value} (bytes of RH and payload)" if value else "0 (more than 127 bytes)"
        return f"0x{value:02x}" if header.opcode == OP_CNP else f"0x{value:02x} ({syndrome_text(value)})"
    if field in _DECIMAL:
        return str(value)
    return f"0x{value:0{-(-header.layout[field].width // 4)}x}"
