"""Ring arithmetic, and the consumer of completions and events.

Every index counts from 0 to ``size - 1`` and then starts again (001 section 3.2): a ring is empty when
``head == tail`` and full when ``(tail + 1) % size == head``, so it holds at most ``size - 1`` entries.
In completion and event rings, a phase bit marks an entry as valid; their size is a power of two.

The other side's index is read from a register that any program can write, so a value beyond the ring means an empty
ring to a consumer and a full one to a producer.
"""

from __future__ import annotations

import struct
from errno import EINVAL

from rnic.mem.order import shared_words
from rnic.rings.cqe import CQE_BYTES, CQE_PHASE
from rnic.spec.errors import VerbsError
from rnic.spec.limits import LOG_MAX_CQ

MAX_ENTRIES = 1 << LOG_MAX_CQ

_ENTRY = struct.Struct("<8I")
_ENTRY_WORDS = CQE_BYTES // 4

Entry = tuple[int, int, int, int, int, int, int, int]
"""The eight words of a CQ or EQ entry."""


def next_index(index: int, size: int) -> int:
    """Return the index after ``index`` (001 3.2 "Circular Buffer Wraparound")."""
    index += 1
    return 0 if index == size else index


def waiting(head: int, tail: int, size: int) -> int:
    """Return the number of entries available to a consumer at ``head``, given the producer's ``tail``."""
    return (tail - head) % size if tail < size else 0


def room(head: int, tail: int, size: int) -> int:
    """Return the number of entries free to a producer at ``tail``, given the consumer's ``head``."""
    return (head - tail - 1) % size if head < size else 0


class PhaseConsumer:
    """The consumer of CQ or EQ entries of 32 bytes.

    The memory starts as zeros and the producer's first pass writes phase 1, so no entry is valid before it is stored.

    Args:
        view: memory of at least ``size * 32`` bytes.
        size: entries, a power of two from 2 to 65,536.

    Raises:
        VerbsError: ``EINVAL`` if the size is not allowed, or the memory is too small.
    """

    __slots__ = ("_words", "head", "phase", "size", "view")

    def __init__(self, view: memoryview, size: int) -> None:
        if size & (size - 1):
            raise VerbsError(EINVAL, f"size={size} is not a power of two; completion and event rings need one")
        if not 2 <= size <= MAX_ENTRIES:
            raise VerbsError(EINVAL, f"size={size} is not a ring size; use 2 to {MAX_ENTRIES} entries")
        if view.nbytes < size * CQE_BYTES:
            need = size * CQE_BYTES
            raise VerbsError(EINVAL, f"ring of {size} entries needs {need} bytes, not {view.nbytes}")
        self.view = view.cast("B")
        self._words = shared_words(self.view[: size * CQE_BYTES])
        self.size = size
        self.head = 0
        self.phase = CQE_PHASE

    def ready(self) -> bool:
        """Return whether the entry at the head is valid. Later reads see what its producer stored before."""
        return self._words[self.head * _ENTRY_WORDS + 3] & CQE_PHASE == self.phase

    def pop(self) -> Entry | None:
        """Take the next entry, including the phase, or return ``None``. The caller publishes ``head``."""
        if not self.ready():
            return None
        entry: Entry = _ENTRY.unpack_from(self.view, self.head * CQE_BYTES)
        self.skip(1)
        return entry

    def skip(self, count: int) -> None:
        """Skip the next ``count`` entries, which must be valid and not pass the ring's end."""
        head = self.head + count
        if head == self.size:
            head = 0
            self.phase ^= CQE_PHASE
        self.head = head
