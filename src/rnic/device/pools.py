"""Numbers that the device allocates: queue blocks, protection domains, queues."""

from __future__ import annotations

from collections import deque

from rnic.device.uar import Uar


class NumberPool:
    """The numbers ``first`` to ``first + count - 1``, each owned by one driver context while allocated.

    A number is only reused when no unused one is left, and then the one freed first, so that a late packet for an old
    queue pair does not reach a new one.
    """

    __slots__ = ("_end", "_fresh", "_returned", "first", "owners")

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self._fresh = first
        self._end = first + count
        self._returned: deque[int] | None = None
        """Freed numbers, oldest first; ``None`` until there are any, since an empty deque takes 760 bytes."""
        self.owners: dict[int, Uar] = {}

    def resize(self, count: int) -> None:
        """Resize to ``count`` numbers, while none is allocated."""
        assert not self.owners
        self._fresh = self.first
        self._end = self.first + count
        self._returned = None

    @property
    def fresh(self) -> int:
        """The lowest number that was never allocated."""
        return self._fresh

    def take(self, owner: Uar) -> int | None:
        """Return a free number, or ``None``."""
        if self._fresh < self._end:
            number = self._fresh
            self._fresh += 1
        elif self._returned:
            number = self._returned.popleft()
        else:
            return None
        self.owners[number] = owner
        return number

    def give_back(self, number: int) -> None:
        """Free an allocated number."""
        del self.owners[number]
        if self._returned is None:
            self._returned = deque()
        self._returned.append(number)
