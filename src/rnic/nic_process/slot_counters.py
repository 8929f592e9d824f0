"""Counters in a slot's record, bounded by what is possible: the program may write anything there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MAX_PACKETS_PER_S = 200_000_000
"""No program moves as many packets, punts as often or drops as many: 800 Gbit/s are 97 million packets of 1 KiB."""
MAX_BYTES_PER_S = 200_000_000_000
"""Twice 800 Gbit/s: more than memory is copied."""
_GRACE_NS = 1_000_000
"""The program counted a little later, or earlier, than the clock was read."""
_WORD = 1 << 64
_NS = 1_000_000_000


class SlotCounters:
    """The counters of one slot, each bounded by what is possible since the last look.

    A value that goes back, or on by more than that, counts nothing.

    Args:
        words: of the slot's record, which the program writes.
        places: indices of the counters' words, by name.
        now_ns: when all of them were 0.

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
        """Look at the words, and return what they have counted."""
        passed = now_ns - self._looked_ns + _GRACE_NS
        self._looked_ns = now_ns
        packets, size = passed * MAX_PACKETS_PER_S // _NS, passed * MAX_BYTES_PER_S // _NS
        for name, at in self._places.items():
            value = int(self._words[at])  # once: the program may change it meanwhile
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
