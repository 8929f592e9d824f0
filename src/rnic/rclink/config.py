"""Parameters of an RC Link endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from rnic.rclink.numbers import (
    CC_WINDOW_NS,
    MAX_PKT_LEN,
    PSN_WINDOW,
    QP_NUM,
    RETRY_UNIT_NS,
    TYPE1_OST_N,
    TYPE1_PKT_LEN,
    TYPE1_UDP_PORT,
    TYPE2_UDP_PORT,
    RcLinkError,
)

_RANGES = {
    "port": (1, 0xFFFF),
    "type2_port": (1, 0xFFFF),
    "qp_num": (1, 1 << 13),
    "ost": (1, PSN_WINDOW),
    "pkt_len": (1, MAX_PKT_LEN),
    "rx_packets": (1, 1 << 20),
    "retry_limit": (0, 15),
    "retry_timer_ns": (RETRY_UNIT_NS, RETRY_UNIT_NS * 0x1FFF),
    "rnr_limit": (0, 7),
    "rnr_timer": (0, 31),
    "cc_window": (0, len(CC_WINDOW_NS) - 1),
    "ack_merge_ns": (0, 0xFFFF_FFFF),
    "cnp_timer_ns": (0, 0xFFFF_FFFF),
    "ident": (0, 0xFFFF),
    "tclass": (0, 0xFF),
}


@dataclass(slots=True)
class RcLinkConfig:
    """Parameters (upper part, fixed) and reset values of registers (lower part).

    Raises:
        RcLinkError: a value is out of its range.
    """

    port: int = TYPE1_UDP_PORT
    """UDP destination port of TYPE1 packets."""
    type2_port: int = TYPE2_UDP_PORT
    """UDP destination port by which TYPE2 packets are recognized and refused."""
    qp_num: int = QP_NUM
    """Queue pairs, 1 to 8192."""
    ost: int = TYPE1_OST_N
    """Send slots: most packets of all QPs that wait or are outstanding, 1 to 2047."""
    pkt_len: int = TYPE1_PKT_LEN
    """Longest payload in bytes, 1 to 4096."""
    rx_packets: int = 1_024
    """Most received packets that wait for the host; further ones get an RNR NAK. Choice."""
    icrc: bool = True
    """True if packets end with an ICRC. Both sides must agree."""
    ident: int = 0
    """IPv4 identification of packets if the link does not report it: Linux sends 0 with DF."""

    retry_limit: int = 15
    """Retries without progress after which a QP stops, 0 to 15."""
    retry_timer_ns: int = RETRY_UNIT_NS * 244
    """Retry timeout (Go-Back-N), rounded to units of 4.096 us; 1 ms. Choice."""
    rnr_limit: int = 7
    """Consecutive RNR NAKs after which a QP stops; 7 for no limit. Choice."""
    rnr_timer: int = 1
    """RNR timer code in RNR NAKs sent by this side, 0 to 31; 1 is 10 us. Choice."""
    cc_window: int = 0
    """Rate window, 4.096 us shifted left by 0 to 4."""
    ack_merge_ns: int = 4_096
    """Longest time that an unforced ACK waits to be merged. Choice."""
    cnp_merge: bool = True
    """True to filter CNPs of one QP."""
    cnp_timer_ns: int = 50_000
    """TIMER_THR: shortest time between two CNPs of one QP that pass the filter. Choice."""
    cnp_halves: bool = False
    """True if a received CNP halves the QP's rate until TIMER_THR after the last one. Choice, after 004 7.4."""
    tclass: int = 2
    """Traffic class of sent packets, 0 to 255; ECT(0) by default, so that switches may mark them. Choice."""
    bank_rr: bool = False
    """True if the four banks (the two low bits of the QP number) send in turn."""
    ack_time: bool = False
    """True if every ACK carries a timestamp, not only those forced by FACK."""

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise RcLinkError(f"{name}={value!r} is out of range: use {least} to {most}")
