"""Counters in a slot's record, limited to plausible values: the program may write anything there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MAX_PACKETS_PER_S = 200_000_000
"""Upper limit of packets, punts and drops per second: 800 Gbit/s are 97 million packets of 1 KiB."""
MAX_BYTES_PER_S = 200_000_000_000
"""Upper limit of bytes per second: twice 800 Gbit/s, more than memory bandwidth."""
_GRACE_NS = 1_000_000
"""Tolerance: the program counts slightly before or after the clock is read."""
_WORD = 1 << 64
_NS = 1_000_000_000


class SlotCounters:
    """The counters of one slot, each limited to a plausible increase since the last check.

    A value that decreases, or increases by more than that, is ignored.

    Args:
        words: words of the slot's record, which the program writes.
        places: indices of the counters' words, by name.
        now_ns: time when all of them were 0.

    ``believable`` is false once a value was impossible.
    """

    def __init__(self, words: Sequence[int], places: Mapping[str, int], now_ns: int) -> None:
        self._words = words
        self._places = places
        self._seen = dict.fromkeys(places, 0)
        self._counted = dict.fromkeys(places, 0)
        self._looked_ns = now_ns
        self.believable = True

    def read(self, now_ns: int) -> dict[str, int]:
        """Read the words, and return the counter values."""
        passed = now_ns - self._looked_ns + _GRACE_NS
        self._looked_ns = now_ns
        packets, size = passed * MAX_PACKETS_PER_S // _NS, passed * MAX_BYTES_PER_S // _NS
        for name, at in self._places.items():
            value = int(self._words[at])  # read once: the program may change it meanwhile
            more = value - self._seen[name]
            self._seen[name] = value
            if 0 <= more <= (size if name.endswith("bytes") else packets):
                self._counted[name] += more
            else:
                self.believable = False
        return dict(self._counted)


def add(first: int, second: int) -> int:
    """Add two counters, which wrap as words do."""
    return (first + second) % _WORD
