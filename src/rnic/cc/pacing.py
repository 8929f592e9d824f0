"""Token bucket that limits a queue pair's rate, in words shared with the engine."""

from __future__ import annotations

from math import inf
from typing import Final

from rnic.state.queue_pair import QP
from rnic.state.record import Word, view

RATE_TIME_BITS: Final = 20
"""Rates are in bytes per 2^20 ns, with a minimum of 7.6 kb/s; credit is in bytes times 2^20 ns."""
MOST_RATE: Final = 1 << 43
_WORD: Final = (1 << 64) - 1


def rate_word(bits_s: float) -> int:
    """Convert a rate in bits per second to the unit of a queue pair's record: at least 1, or 0 for no limit."""
    return 0 if bits_s == inf else min(MOST_RATE, max(1, int(bits_s * (1 << RATE_TIME_BITS) / 8e9)))


@view(QP, "Pace")
class Pace:
    """One queue pair's token bucket.

    Args:
        words: the words of the queue pair's record.

    All arithmetic is exact.
    """

    __slots__ = ("words",)

    pace_rate: Word
    pace_credit: Word
    pace_most: Word
    pace_since_ns: Word

    def __init__(self, words: memoryview) -> None:
        self.words = words

    def fill(self, now_ns: int) -> None:
        """Add the credit earned since the last call."""
        self.pace_credit, self.pace_since_ns = self.pace_most, now_ns

    def allowance(self, now_ns: int, packet_bytes: int) -> int:
        """Return the number of packets of this size that may be sent now; 0 while a probe has overdrawn the bucket."""
        one = packet_bytes << RATE_TIME_BITS
        since = max(0, now_ns - self.pace_since_ns)
        credit = min(max(self.pace_most, one), _signed(self.pace_credit) + since * self.pace_rate)
        self.pace_credit, self.pace_since_ns = credit & _WORD, now_ns
        return max(0, credit // one)

    def spend(self, sent_bytes: int) -> None:
        """Take sent bytes from the bucket."""
        self.pace_credit = self.pace_credit - (sent_bytes << RATE_TIME_BITS) & _WORD

    def ready_ns(self, packet_bytes: int) -> int:
        """Return the time at which the next packet of this size may be sent."""
        missing = (packet_bytes << RATE_TIME_BITS) - _signed(self.pace_credit)
        return self.pace_since_ns - (-missing // max(1, self.pace_rate)) if missing > 0 else self.pace_since_ns


def _signed(word: int) -> int:
    return word - (word >> 63 << 64)
