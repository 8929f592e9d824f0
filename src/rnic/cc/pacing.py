"""Rates that software sets and the device keeps (``hardware.md`` 4): bytes a window, a bucket that fills evenly."""

from __future__ import annotations

from rnic.spec.congestion_regs import WINDOW_NS

BURST_WINDOWS = 64
"""The bucket holds what this many windows bring, 65,536 ns: the longest window of the core's successor."""


class Pace:
    """One queue pair's bucket.

    Args:
        rate: bytes a window, at least 1.
        now_ns: when it begins, full.
        packet_bytes: the largest packet; the bucket holds at least one.

    Credit is counted in bytes times :data:`WINDOW_NS`, so that nothing is lost to rounding.
    """

    __slots__ = ("_credit", "_most", "_since_ns", "rate")

    def __init__(self, rate: int, now_ns: int, packet_bytes: int) -> None:
        self.rate = rate
        self._since_ns = now_ns
        self._most = max(packet_bytes, rate * BURST_WINDOWS) * WINDOW_NS
        self._credit = self._most

    def allowance(self, now_ns: int, packet_bytes: int) -> int:
        """How many packets of this size may leave now; 0 also where a probe has left more than the bucket held."""
        # the path MTU may have become known, or larger, since the rate was set
        self._most = max(self._most, packet_bytes * WINDOW_NS)
        self._credit = min(self._most, self._credit + (now_ns - self._since_ns) * self.rate)
        self._since_ns = now_ns
        return max(0, self._credit // (packet_bytes * WINDOW_NS))

    def spend(self, sent_bytes: int) -> None:
        """So much has left."""
        self._credit -= sent_bytes * WINDOW_NS

    def ready_ns(self, packet_bytes: int) -> int:
        """When the next packet of this size may leave."""
        missing = packet_bytes * WINDOW_NS - self._credit
        return self._since_ns - (-missing // self.rate) if missing > 0 else self._since_ns
