"""Constants of RC Link (004's opening note; ``hardware.md`` §4), 12-bit PSN arithmetic, and refused features.

Where §4 leaves something open, rnic chooses; the docs page ``rclink`` lists these choices.
"""

from __future__ import annotations

from typing import Final

from rnic.spec.errors import RnicError

TYPE1_UDP_PORT: Final = 4793
"""Choice: the documents say 4791, which is RoCEv2's; here the two do not share a port."""
TYPE2_UDP_PORT: Final = 4794
"""Choice: the port by which TYPE2 packets are recognized (the documents have a register for it)."""

RH_BYTES: Final = 8
ICRC_BYTES: Final = 4

OP_SEND: Final = 0
OP_ACK: Final = 1
OP_CNP: Final = 2
OP_NAMES: Final = {OP_SEND: "SEND", OP_ACK: "ACK", OP_CNP: "CNP"}

QP_NUM: Final = 1_024
TYPE1_OST_N: Final = 512
TYPE1_PKT_LEN: Final = 1_344
MAX_PKT_LEN: Final = 4_096
SHORT_LENGTH: Final = 127
"""Largest length of RH and payload that fits in the header; for longer packets the field is 0."""
BANKS: Final = 4

ECN_CONGESTED: Final = 3

CC_WINDOW_NS: Final = tuple(4_096 << code for code in range(5))
"""Rate windows: 4.096 to 65.536 us."""
MAX_LENGTH_THR: Final = (1 << 22) - 1

CNP_QPIDS: Final = 8
"""QPs that one CNP filter remembers."""
ACK_GROUP: Final = 4
"""QPs that the ACK merger scans together."""

PSN_BITS: Final = 12
PSN_MASK: Final = (1 << PSN_BITS) - 1
PSN_WINDOW: Final = (1 << PSN_BITS - 1) - 1
"""Most outstanding packets of a QP, so that a duplicate can be distinguished from a new packet."""
_HALF: Final = 1 << PSN_BITS - 1

RETRY_UNIT_NS: Final = 4_096
"""Choice: unit of the timer field of RETRY_TIMER_CFG."""
RNR_FOREVER: Final = 7
TIMESTAMP_SHIFT: Final = 10
"""Choice: timestamps count units of 1.024 us, so that 16 bits span 67 ms."""


class RcLinkError(RnicError):
    """Invalid request to RC Link. The message is one line: the thing, its value, the remedy."""


REFUSED: Final = {
    "TYPE2": "TYPE2 (unreliable multicast) is not supported: send TYPE1 to each receiver",
    "TYPE3": "TYPE3 (raw Ethernet from memory descriptors) is not supported: use the system's network stack",
    "FACK": "FACK is a flag of SEND packets that forces an ACK: it is ignored in an ACK, NAK or CNP",
    "CREDITS": "credits (CBFC, or a count in an ACK) are not supported: the rate window and Go-Back-N replace them",
}
"""Parts of RC Link that this implementation decodes but does not support, with their error messages."""


def psn_add(psn: int, count: int) -> int:
    """Return ``psn + count`` modulo 2^12; ``count`` may be negative."""
    return (psn + count) & PSN_MASK


def psn_diff(a: int, b: int) -> int:
    """Return the signed distance from ``b`` to ``a``, -2048 to 2047: negative if ``a`` precedes ``b``."""
    return ((a - b + _HALF) & PSN_MASK) - _HALF


def timestamp(now_ns: int) -> int:
    """Return the 16-bit timestamp of a packet sent at ``now_ns``."""
    return now_ns >> TIMESTAMP_SHIFT & 0xFFFF
