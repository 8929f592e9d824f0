"""Numbers of RC Link (004's opening note; ``hardware.md`` §4), its 12-bit PSN arithmetic, and what is refused.

What §4 does not say was chosen here; the docs page ``rclink`` lists each choice as one.
"""

from __future__ import annotations

from typing import Final

from rnic.spec.errors import RnicError

TYPE1_UDP_PORT: Final = 4793
"""Choice: the documents say 4791, which is RoCEv2's; here the two never meet on one port."""
TYPE2_UDP_PORT: Final = 4794
"""Choice: the port by which a TYPE2 packet is told (the documents have a register for it)."""

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
"""The longest RH and payload whose length the header carries; longer ones carry 0."""
BANKS: Final = 4

ECN_CONGESTED: Final = 3

CC_WINDOW_NS: Final = tuple(4_096 << code for code in range(5))
"""The rate windows: 4.096 to 65.536 us."""
MAX_LENGTH_THR: Final = (1 << 22) - 1

CNP_QPIDS: Final = 8
"""QPs that one CNP filter remembers."""
ACK_GROUP: Final = 4
"""QPs that the ACK merger looks at together."""

PSN_BITS: Final = 12
PSN_MASK: Final = (1 << PSN_BITS) - 1
PSN_WINDOW: Final = (1 << PSN_BITS - 1) - 1
"""The most packets of a QP that may be outstanding, so that a duplicate can be told from a future packet."""
_HALF: Final = 1 << PSN_BITS - 1

RETRY_UNIT_NS: Final = 4_096
"""Choice: what the timer field of RETRY_TIMER_CFG counts in."""
RNR_FOREVER: Final = 7
TIMESTAMP_SHIFT: Final = 10
"""Choice: timestamps count units of 1.024 us, so that 16 bits span 67 ms."""


class RcLinkError(RnicError):
    """A caller asked RC Link for what it cannot do. One line: the thing, its value, the remedy."""


REFUSED: Final = {
    "TYPE2": "TYPE2 (multicast, never repeated) is not carried: send TYPE1 to each receiver",
    "TYPE3": "TYPE3 (raw Ethernet from memory descriptors) is not carried: the system's own network stack does that",
    "FACK": "FACK is a flag of SEND packets, where it forces an ACK: an ACK, NAK or CNP that has it is not taken",
    "CREDITS": "credits (CBFC, or a count in an ACK) are not kept: the rate window and Go-Back-N stand in for them",
}
"""What RC Link has and this one decodes but does not do, in the words of every refusal."""


def psn_add(psn: int, count: int) -> int:
    """``psn + count`` modulo 2^12; ``count`` may be negative."""
    return (psn + count) & PSN_MASK


def psn_diff(a: int, b: int) -> int:
    """Signed distance from ``b`` to ``a``, -2048 to 2047: negative where ``a`` lies before ``b``."""
    return ((a - b + _HALF) & PSN_MASK) - _HALF


def timestamp(now_ns: int) -> int:
    """The 16 bits that a packet sent at ``now_ns`` carries."""
    return now_ns >> TIMESTAMP_SHIFT & 0xFFFF
