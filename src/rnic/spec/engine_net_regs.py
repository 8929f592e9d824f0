"""Registers, codes and table entry of the descriptor engine's network half (``hardware.md`` 1c).

Offsets are relative to the block's window of the AXI4-Lite slave. The registers and codes after the documented ones are
rnic's own: the documents do not cover a disabled block, a missing endpoint, an IP fragment and a packet of the wrong
length.
"""

from __future__ import annotations

from typing import Final

from rnic.spec.engine_regs import (
    ERR_NET_DISABLED,
    ERR_NET_LENGTH,
    ERR_NET_LOOKUP,
    ERR_NET_META,
    ERR_NONE,
)
from rnic.spec.layout import Layout, bits, flag, wide, word
from rnic.spec.registers import Register

# ---------------------------------------------------------------- fixed values

MAX_UDP_PAYLOAD: Final = 1472
"""Largest length in META: an Ethernet payload of 1500 bytes less 28 of IP and UDP headers."""
MAX_IP_BYTES: Final = 1500
IP_TTL: Final = 64

DEFAULT_SRC_IP: Final = 0xAC1F09CA
DEFAULT_DST_IP: Final = 0xAC1F09C9
DEFAULT_SRC_PORT: Final = 0xCE06
DEFAULT_DST_PORT: Final = 0x138D
DEFAULT_SRC_MAC: Final = 0x0123456789AB
DEFAULT_DST_MAC: Final = 0x000A35010203
BROADCAST_MAC: Final = 0xFFFFFFFFFFFF

# ---------------------------------------------------------------- codes

META_OK: Final = 0
META_LENGTH_ZERO: Final = 1
META_LENGTH_LONG: Final = 2
META_SRC_IP: Final = 3
META_DST_IP: Final = 4
META_SRC_PORT: Final = 5
META_DST_PORT: Final = 6
TX_DISABLED: Final = 7
TX_LOOKUP_MISS: Final = 8
TX_PACKET_LENGTH: Final = 9

ENCAP_ERROR_NAMES: Final = {
    META_OK: "none",
    META_LENGTH_ZERO: "META length 0",
    META_LENGTH_LONG: f"META length above {MAX_UDP_PAYLOAD}",
    META_SRC_IP: "source IP 0",
    META_DST_IP: "destination IP 0",
    META_SRC_PORT: "source port 0",
    META_DST_PORT: "destination port 0",
    TX_DISABLED: "the encapsulator is not enabled",
    TX_LOOKUP_MISS: "the destination IP has no endpoint entry",
    TX_PACKET_LENGTH: "the packet has another length than its META",
}
"""STATUS.code of the encapsulator: 1 to 6 are the documented META check, in its order."""

NET_ERROR_OF: Final = {
    META_OK: ERR_NONE,
    META_LENGTH_ZERO: ERR_NET_LENGTH,
    META_LENGTH_LONG: ERR_NET_LENGTH,
    META_SRC_IP: ERR_NET_META,
    META_DST_IP: ERR_NET_META,
    META_SRC_PORT: ERR_NET_META,
    META_DST_PORT: ERR_NET_META,
    TX_DISABLED: ERR_NET_DISABLED,
    TX_LOOKUP_MISS: ERR_NET_LOOKUP,
    TX_PACKET_LENGTH: ERR_NET_LENGTH,
}
"""The engine's error for a WRITE whose packet the encapsulator refused with this code."""

RX_OK: Final = 0
RX_MAC: Final = 1
RX_NOT_IPV4: Final = 2
RX_IP_VERSION: Final = 3
RX_IP_IHL: Final = 4
RX_IP_CHECKSUM: Final = 5
RX_NOT_UDP: Final = 6
RX_PORT: Final = 7
RX_LENGTH: Final = 8
RX_FRAME: Final = 9
RX_DISABLED: Final = 10
RX_FRAGMENT: Final = 11
RX_ADDRESS: Final = 12
RX_UDP_CHECKSUM: Final = 13
RX_FULL: Final = 14
RX_MODE: Final = 15

DECAP_ERROR_NAMES: Final = {
    RX_OK: "none",
    RX_MAC: "destination MAC is neither ours nor broadcast",
    RX_NOT_IPV4: "not IPv4",
    RX_IP_VERSION: "IP version is not 4",
    RX_IP_IHL: "IP header length is not 5 words",
    RX_IP_CHECKSUM: "wrong IP header checksum",
    RX_NOT_UDP: "not UDP",
    RX_PORT: "UDP destination port is not LOCAL_PORT",
    RX_LENGTH: "IP or UDP length too short, too long or unequal",
    RX_FRAME: "the MAC marked the frame bad, or it ends before its IP length",
    RX_DISABLED: "the decapsulator is not enabled",
    RX_FRAGMENT: "IP fragment",
    RX_ADDRESS: "IP destination is not LOCAL_IP",
    RX_UDP_CHECKSUM: "wrong UDP checksum",
    RX_FULL: "no room for the frame",
    RX_MODE: "the engine is not in network mode",
}
"""STATUS.code of the decapsulator: 1 to 9 are documented, and the checks run in their order."""

ENCAP_STATES: Final = ("IDLE", "CHECK", "LOOKUP", "GATHER", "PREFIX", "PAYLOAD", "TAIL", "DRAIN")
DECAP_STATES: Final = ("GATHER", "SUM", "CHECK", "HEADER", "PAYLOAD", "FINISH", "DRAIN")
"""State names: STATUS.fsm is the index in these tuples."""

# ---------------------------------------------------------------- registers


_HERE = "hardware.md 1c"
_CONTROL_FIELDS = (
    flag("enable", 0, "pass packets; without it they are drained"),
    flag("soft_reset", 2, "write 1: counters and errors to 0; reads 0"),
)
ENCAP_CTRL_FIELDS: Final = (
    *_CONTROL_FIELDS,
    flag("start", 1, "write 1: run the META check on these registers, sending nothing; reads 0"),
)
STATUS_FIELDS: Final = (
    flag("busy", 0, "processing a packet", "RO"),
    flag("error", 1, "a packet was refused since the last clear", "RO"),
    flag("lookup_error", 2, "the endpoint table had no entry, since the last clear", "RO"),
    bits("code", 0, 7, 4, "code of the last error", "RO"),
    bits("fsm", 0, 10, 8, "state", "RO"),
)

ENCAP_REGISTERS: Final = (
    Register("CTRL", 0x00, "RW", "enable, start, soft reset", ENCAP_CTRL_FIELDS, source=_HERE),
    Register("STATUS", 0x04, "RO", "current state, and the last error", STATUS_FIELDS, source=_HERE),
    Register("META_LEN", 0x08, "RW", "UDP payload bytes for CTRL.start; 16 bits", source=_HERE),
    Register("SRC_IP", 0x0C, "RW", "source address", reset=DEFAULT_SRC_IP, source=_HERE),
    Register("DST_IP", 0x10, "RW", "destination address", reset=DEFAULT_DST_IP, source=_HERE),
    Register("SRC_PORT", 0x14, "RW", "source UDP port; 16 bits", reset=DEFAULT_SRC_PORT, source=_HERE),
    Register("DST_PORT", 0x18, "RW", "destination UDP port; 16 bits", reset=DEFAULT_DST_PORT, source=_HERE),
    Register("PKT_CNT", 0x1C, "RO", "frames sent", source=_HERE),
    Register("DROP_CNT", 0x20, "RO", "packets refused", source="ours"),
    Register("BYTE_CNT_LO", 0x24, "RO", "frame bytes sent, low half", source=_HERE),
    Register("BYTE_CNT_HI", 0x28, "RO", "frame bytes sent, high half", source=_HERE),
    Register("IRQ_ACK", 0x40, "PULSE", "any write clears STATUS.error, lookup_error and code; reads 0", source=_HERE),
)
DECAP_REGISTERS: Final = (
    Register("CTRL", 0x00, "RW", "enable, soft reset", _CONTROL_FIELDS, source=_HERE),
    Register("STATUS", 0x04, "RO", "current state, and the last error", STATUS_FIELDS, source=_HERE),
    Register("RX_SRC_IP", 0x08, "RO", "last good frame: source address", source=_HERE),
    Register("RX_DST_IP", 0x0C, "RO", "last good frame: destination address", source=_HERE),
    Register("RX_SRC_PORT", 0x10, "RO", "last good frame: source port", source=_HERE),
    Register("RX_DST_PORT", 0x14, "RO", "last good frame: destination port", source=_HERE),
    Register("RX_LEN", 0x18, "RO", "last good frame: UDP payload bytes", source=_HERE),
    Register("PKT_CNT", 0x1C, "RO", "good frames", source=_HERE),
    Register("DROP_CNT", 0x20, "RO", "frames dropped", source=_HERE),
    Register("HDR_VALID", 0x24, "RO", "1: a good frame came since the last read, which clears it", source=_HERE),
    Register("HEARTBEAT", 0x28, "RO", "counts cycles", source=_HERE),
    Register("LOCAL_PORT", 0x2C, "RW", "local UDP port; 16 bits", reset=DEFAULT_DST_PORT, source=_HERE),
    Register(
        "LOCAL_MAC_LO", 0x30, "RW", "our MAC address, bits 31:0", reset=DEFAULT_SRC_MAC & 0xFFFFFFFF, source="ours"
    ),
    Register("LOCAL_MAC_HI", 0x34, "RW", "our MAC address, bits 47:32", reset=DEFAULT_SRC_MAC >> 32, source="ours"),
    Register("LOCAL_IP", 0x38, "RW", "our IP address", reset=DEFAULT_SRC_IP, source="ours"),
    Register("IRQ_ACK", 0x40, "PULSE", "any write clears STATUS.error and code; reads 0", source="ours"),
)

ENCAP_OFFSETS: Final = {register.name: register.offset for register in ENCAP_REGISTERS}
DECAP_OFFSETS: Final = {register.name: register.offset for register in DECAP_REGISTERS}
"""Byte offset of each register by name, from the block's window."""

WRITABLE_BITS: Final = {
    "META_LEN": 16,
    "SRC_PORT": 16,
    "DST_PORT": 16,
    "LOCAL_PORT": 16,
    "LOCAL_MAC_HI": 16,
}
"""Valid bits of RW registers with fewer than 32; the others read 0."""


def _as_layout(name: str, registers: tuple[Register, ...]) -> Layout:
    fields = tuple(word(register.name, register.offset, register.doc, register.access) for register in registers)
    return Layout(name, registers[-1].offset + 4, "little", _HERE, fields)


ENCAP_LAYOUT = _as_layout("encapsulator registers", ENCAP_REGISTERS)
DECAP_LAYOUT = _as_layout("decapsulator registers", DECAP_REGISTERS)
ENCAP_CTRL = Layout("encapsulator CTRL", 4, "little", _HERE, ENCAP_CTRL_FIELDS)
NET_STATUS = Layout("encapsulator and decapsulator STATUS", 4, "little", _HERE, STATUS_FIELDS)

# ---------------------------------------------------------------- endpoint table

ENDPOINT_ENTRY = Layout(
    "endpoint entry",
    32,
    "little",
    _HERE,
    (
        # bits 79:32, 127:80 and 159:128 of the 256-bit entry; the 48-bit addresses straddle words
        wide("src_mac", 4, "source MAC address", 6),
        wide("dst_mac", 10, "destination MAC address", 6),
        word("dst_ip", 16, "IP address that this entry is for"),
        bits("valid", 20, 31, 31, "the entry is in use"),
    ),
)
ENDPOINT_ENTRIES: Final = 256


def endpoint_index(ip: int) -> int:
    """Return the slot of an IP address in the endpoint table: its two low bytes, XORed."""
    return (ip ^ ip >> 8) & 0xFF
