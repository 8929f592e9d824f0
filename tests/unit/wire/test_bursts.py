"""Bursts hold what links and devices agree on."""

from __future__ import annotations

from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow

FLOW = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152)


def test_rx_burst() -> None:
    burst = RxBurst(FLOW, memoryview(b"abcd"), 2, 4, tclass=0x6B)
    assert (burst.segment, burst.length, burst.ident, burst.frag) == (2, 4, None, 0x4000)
    assert (burst.ecn, burst.tclass, burst.hop_limit) == (3, 0x6B, 64)


def test_tx_burst() -> None:
    burst = TxBurst(FLOW, [b"ab", b"cd"], 2, 2, 4)
    assert (burst.flow, burst.buffers, burst.segment, burst.count, burst.length) == (FLOW, [b"ab", b"cd"], 2, 2, 4)
