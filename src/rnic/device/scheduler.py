"""Select the queue pair that sends next: deficit round robin by bytes, among programs, and among the queue pairs of
each.

A program's share does not depend on how many queue pairs it has, nor a queue pair's on the size of its messages.
An idle program accumulates no credit. But a program that becomes busy is a *newcomer*: it may send a little before
those in the rotation continue, since a short message would otherwise wait for the turns of all busy programs. Newcomers
together send no more than the others, even if a program stops and restarts often.
"""

from __future__ import annotations

from typing import Self

from rnic.spec.rounds import NEWCOMER_PART
from rnic.state import lists
from rnic.state.arena import Arena
from rnic.state.queue_pair import QP
from rnic.state.record import WORD_SHIFT, Record, Word, place, view
from rnic.state.scheduler import PROGRAM, SCHEDULER

_LINK = place(QP, "next_ready")
_QP_PROGRAM = place(QP, "program_record")
_QP_DEFICIT = place(QP, "deficit")
_TURN = place(QP, "turn")
_NEXT = place(PROGRAM, "next")
_QUEUE = place(PROGRAM, "first")
_DEFICIT = place(PROGRAM, "deficit")
_LISTED = place(PROGRAM, "listed")
_USERS = place(PROGRAM, "users")
_NUMBER = place(PROGRAM, "number")
_FIRST = place(SCHEDULER, "first")
_CREDIT = place(SCHEDULER, "credit")
_IN_ROTATION, _NEWCOMER = 1, 2


@view(SCHEDULER)
class Scheduler(Record):
    """Queue pairs with something to send, referred to by the offsets of their records.

    A queue pair's quantum is its word ``turn``, in bytes; ``deficit`` is the number of bytes that it may still send.

    Args:
        arena: arena of all records.
        quantum: bytes that a program may send before the next program.

    Raises:
        MemoryError: the arena is full.
    """

    __slots__ = ("_arena", "_at", "_cells", "_programs", "_signed", "record")

    first: Word
    last: Word
    count: Word
    quantum: Word
    turn: Word
    newest: Word
    credit: Word
    over: Word

    def __new__(cls, arena: Arena, quantum: int) -> Self:
        """Allocate the record in the arena."""
        at = arena.take(SCHEDULER.size, "the scheduler")
        self = super().__new__(cls, arena.memory, at)
        self.record = at
        return self

    def __init__(self, arena: Arena, quantum: int) -> None:
        self._arena = arena
        self._cells = arena.cells
        self._signed = arena.signed
        self._at = self.record >> WORD_SHIFT
        self.first = self.last = 0
        self.count, self.quantum = 0, quantum
        self.turn = self.newest = self.over = 0
        self._signed[self._at + _CREDIT] = quantum
        self._programs: dict[int, int] = {}
        """Records of the programs that have queue pairs, by number."""

    def __len__(self) -> int:
        """Return the number of waiting queue pairs."""
        return self.count

    def enroll(self, qp: int, program: int, turn: int) -> None:
        """Register ``qp``, a queue pair of a program, with a quantum of ``turn`` bytes; it does not wait yet.

        Raises:
            MemoryError: the arena is full.
        """
        cells = self._cells
        record = self._programs.get(program)
        if record is None:
            record = self._programs[program] = self._arena.take(PROGRAM.size, "a program")
            self._arena.words(record, PROGRAM.size)[:] = memoryview(bytes(PROGRAM.size)).cast("Q")
            cells[(record >> WORD_SHIFT) + _NUMBER] = program
        cells[(record >> WORD_SHIFT) + _USERS] += 1
        at = qp >> WORD_SHIFT
        cells[at + _QP_PROGRAM] = record
        cells[at + _TURN] = turn
        self._signed[at + _QP_DEFICIT] = 0

    def dismiss(self, qp: int) -> None:
        """Remove ``qp``, which does not wait and is destroyed."""
        cells = self._cells
        record = cells[(qp >> WORD_SHIFT) + _QP_PROGRAM]
        at = record >> WORD_SHIFT
        cells[(qp >> WORD_SHIFT) + _QP_PROGRAM] = 0
        cells[at + _USERS] -= 1
        if not cells[at + _USERS]:
            del self._programs[cells[at + _NUMBER]]
            self._arena.free(record, PROGRAM.size)

    def add(self, qp: int) -> None:
        """Queue ``qp`` for its turn; it must not be queued already."""
        cells = self._cells
        program = cells[(qp >> WORD_SHIFT) + _QP_PROGRAM]
        at = program >> WORD_SHIFT
        if not cells[at + _LISTED]:
            if self._signed[self._at + _CREDIT] > 0:
                self._welcome(program)
            else:
                self._list(program, self.quantum)
        lists.append(cells, at + _QUEUE, _LINK, qp)
        self.count += 1

    def _list(self, program: int, deficit: int) -> None:
        """Append a program to the rotation."""
        at = program >> WORD_SHIFT
        self._cells[at + _LISTED] = _IN_ROTATION
        self._signed[at + _DEFICIT] = deficit
        lists.append(self._cells, self._at + _FIRST, _NEXT, program)

    def _welcome(self, program: int) -> None:
        """Append a program to the newcomers, which are served before the others."""
        at = program >> WORD_SHIFT
        self._cells[at + _LISTED] = _NEWCOMER
        self._signed[at + _DEFICIT] = self.quantum // NEWCOMER_PART
        lists.insert(self._cells, self._at + _FIRST, _NEXT, program, self.newest)
        self.newest = program

    def _unlist(self, program: int) -> None:
        cells = self._cells
        at = program >> WORD_SHIFT
        if self.newest == program:
            self.newest = cells[at + _NEXT + 1]
        cells[at + _LISTED] = 0
        lists.unlink(cells, self._at + _FIRST, _NEXT, program)

    def take(self) -> int:
        """Return the queue pair whose turn it is; at least one must wait. :meth:`spend` ends the turn.

        A program that sent more than its quantum, by at most a packet if others waited, skips turns to compensate.
        """
        cells, signed = self._cells, self._signed
        while True:
            program = self.first
            at = program >> WORD_SHIFT
            deficit = signed[at + _DEFICIT]
            if deficit <= 0:
                self._unlist(program)
                self._list(program, deficit + self.quantum)
                continue
            qp = cells[at + _QUEUE]
            self.turn = program
            lists.unlink(cells, at + _QUEUE, _LINK, qp)
            own = (qp >> WORD_SHIFT) + _QP_DEFICIT
            if signed[own] <= 0:
                signed[own] += cells[(qp >> WORD_SHIFT) + _TURN]
            if signed[own] > 0:
                self.count -= 1
                return qp
            lists.append(cells, at + _QUEUE, _LINK, qp)

    def allowance(self, qp: int) -> int | None:
        """Return the number of bytes that the queue pair taken last may send now; ``None`` if no other waits."""
        if not self.count:
            return None
        signed = self._signed
        own = signed[(qp >> WORD_SHIFT) + _QP_DEFICIT]
        if self.first == self.last:
            return own
        return min(own, signed[(self.first >> WORD_SHIFT) + _DEFICIT])

    def spend(self, qp: int, size: int, again: bool) -> None:
        """End the turn after ``size`` bytes; ``again``: there is more to send."""
        cells, signed = self._cells, self._signed
        program = self.turn
        at = program >> WORD_SHIFT
        alone = not self.count
        newcomer = cells[at + _LISTED] == _NEWCOMER
        deficit = signed[at + _DEFICIT] - size
        own = (qp >> WORD_SHIFT) + _QP_DEFICIT
        signed[own] = signed[own] - size if again and not alone else 0
        credit = self._at + _CREDIT
        signed[credit] = min(signed[credit] + (-size if newcomer else size), self.quantum)
        self.turn = 0
        if again:
            if signed[own] > 0:  # its program's deficit was used up before its own
                lists.insert(cells, at + _QUEUE, _LINK, qp, 0)
            else:
                lists.append(cells, at + _QUEUE, _LINK, qp)
            self.count += 1
        if deficit > 0 and cells[at + _QUEUE]:
            signed[at + _DEFICIT] = deficit
            return
        self._unlist(program)
        self.over = bool(newcomer and self.first and not self.newest)
        if cells[at + _QUEUE]:
            self._list(program, self.quantum + (0 if alone else min(deficit, 0)))

    def remove(self, qp: int) -> None:
        """Remove a waiting queue pair from the queue."""
        cells = self._cells
        program = cells[(qp >> WORD_SHIFT) + _QP_PROGRAM]
        at = program >> WORD_SHIFT
        lists.unlink(cells, at + _QUEUE, _LINK, qp)
        self.count -= 1
        if not cells[at + _QUEUE] and self.turn != program:
            self._unlist(program)


__all__ = ["Scheduler"]
