"""Whose turn it is to send: deficit round robin by bytes, between programs, and between the queue pairs of each.

A program's share does not depend on how many queue pairs it has, nor a queue pair's on the size of its messages.
Who has nothing to send saves up nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnic.device.queue_pair import DeviceQp


class _Program:
    """Queue pairs of one program that wait, and the bytes that it may still send before the next program."""

    __slots__ = ("deficit", "listed", "queue")

    def __init__(self) -> None:
        self.queue: deque[DeviceQp] = deque()
        self.deficit = 0
        self.listed = False
        """It is in the rotation."""


class Turns:
    """Queue pairs with something to send.

    Args:
        quantum: bytes that a program may send before the next has its turn. A queue pair's own is ``qp.turn``.
    """

    __slots__ = ("_count", "_programs", "_rotation", "quantum")

    def __init__(self, quantum: int) -> None:
        self.quantum = quantum
        self._programs: dict[int, _Program] = {}
        self._rotation: deque[_Program] = deque()
        """Programs with somebody who waits; the first has its turn."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, qp: DeviceQp) -> None:
        """``qp`` waits for its turn; it must not wait already."""
        program = self._programs.get(qp.uar.program)
        if program is None:
            program = self._programs[qp.uar.program] = _Program()
        if not program.listed:
            program.listed = True
            program.deficit = self.quantum
            self._rotation.append(program)
        program.queue.append(qp)
        self._count += 1

    def take(self) -> DeviceQp:
        """The queue pair whose turn it is: ``IndexError`` where none waits. :meth:`spent` ends the turn.

        Who sent more than its share, by at most a packet where others waited, sits out turns until that is made up.
        """
        while True:
            program = self._rotation[0]
            if program.deficit <= 0:
                program.deficit += self.quantum
                self._rotation.rotate(-1)
                continue
            qp = program.queue.popleft()
            qp.deficit += qp.turn
            if qp.deficit > 0:
                self._count -= 1
                return qp
            program.queue.append(qp)

    def allowance(self, qp: DeviceQp) -> int | None:
        """Bytes that the queue pair taken last may send now; ``None`` where nobody else waits."""
        if not self._count:
            return None
        return min(qp.deficit, self._rotation[0].deficit) if len(self._rotation) > 1 else qp.deficit

    def spent(self, qp: DeviceQp, size: int, again: bool) -> None:
        """The turn ends after ``size`` bytes; ``again``: there is more to send."""
        program = self._rotation[0]
        alone = not self._count
        program.deficit -= size
        qp.deficit = min(qp.deficit - size, qp.turn) if again and not alone else 0
        if again:
            program.queue.append(qp)
            self._count += 1
        if program.deficit > 0 and program.queue:
            return
        self._rotation.popleft()
        if program.queue:
            program.deficit = self.quantum + (0 if alone else min(program.deficit, 0))
            self._rotation.append(program)
        else:
            program.listed = False
            del self._programs[qp.uar.program]

    def remove(self, qp: DeviceQp) -> None:
        """``qp``, which waits, waits no more."""
        program = self._programs[qp.uar.program]
        program.queue.remove(qp)
        self._count -= 1
        if not program.queue:
            self._rotation.remove(program)
            del self._programs[qp.uar.program]


__all__ = ["Turns"]
