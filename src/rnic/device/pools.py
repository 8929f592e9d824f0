"""Numbers that the device hands out: of queue blocks, protection domains, queues."""

from __future__ import annotations

from collections import deque

from rnic.device.uar import Uar


class NumberPool:
    """The numbers ``first`` to ``first + count - 1``, each owned by one driver context while it is out.

    A number is used again only when no fresh one is left, and then the one given back longest ago, so that what
    is late for an old queue pair does not meet a new one.
    """

    __slots__ = ("_end", "_fresh", "_returned", "first", "owners")

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self._fresh = first
        self._end = first + count
        self._returned: deque[int] = deque()
        self.owners: dict[int, Uar] = {}

    def resize(self, count: int) -> None:
        """Start anew with ``count`` numbers, where none is out."""
        assert not self.owners
        self._fresh = self.first
        self._end = self.first + count
        self._returned.clear()

    @property
    def fresh(self) -> int:
        """The lowest number that was never out."""
        return self._fresh

    def take(self, owner: Uar) -> int | None:
        """A free number, or ``None``."""
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
        """Free a number that is out."""
        del self.owners[number]
        self._returned.append(number)
