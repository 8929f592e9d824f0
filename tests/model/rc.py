"""What the model of the RC transport speaks of: work requests, packets, bounds, and what both ends have in common.

The ends are ``requester.py`` and ``responder.py``, with the steps and names of ``rnic.transport``.

What the NIC decides by PSNs the model decides by PSNs modulo :attr:`Config.space`. It holds them whole, so it knows
what the NIC cannot: a :class:`ViolationError` says that a packet was taken for another. Time is left out: a deadline is
running or not, and may pass whenever it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

SEND, WRITE, WRITE_IMM, READ, ATOMIC = "SEND", "WRITE", "WRITE_IMM", "READ", "ATOMIC"
ACK, NAK, RNR = "ACK", "NAK", "RNR"
"""Kinds of acknowledgement; of responses, READ and ATOMIC are the others."""
READS = (READ, ATOMIC)
RECEIVES = (SEND, WRITE_IMM)
NONE = -1


class ViolationError(Exception):
    """The transport did what it must not."""


class Work(NamedTuple):
    """A work request. ``va`` is where a READ or atomic begins; without a ``length`` its packets are full."""

    kind: str
    packets: int = 1
    signaled: bool = True
    fence: bool = False
    va: int = 0
    length: int = NONE
    args: tuple[Any, ...] = ()


class Request(NamedTuple):
    """A request packet. ``start`` and ``end`` say where in its message it is; a READ has a range."""

    kind: str
    psn: int
    ask: bool = True
    start: bool = True
    end: bool = True
    va: int = 0
    length: int = 0
    args: tuple[Any, ...] = ()


class Response(NamedTuple):
    """A response packet. ``orig`` is what an atomic found, or the address of a READ response's first byte."""

    kind: str
    psn: int
    start: bool = True
    end: bool = True
    orig: int = 0


class Piece(NamedTuple):
    """A READ or atomic request that waits for responses (``ReadPiece``)."""

    message: int
    first_psn: int
    packets: int
    got: int = 0
    asked: bool = False


class Resource(NamedTuple):
    """An executed READ or atomic request (``Resource``)."""

    kind: str
    psn: int
    packets: int
    va: int
    length: int
    args: tuple[Any, ...]
    orig: int


class Reply(NamedTuple):
    """A reply that waits to be sent (``Reply``)."""

    kind: str
    psn: int
    packets: int = 1
    sent: int = 0
    again: bool = False
    orig: int = 0
    va: int = 0
    """Where a READ begins."""


@dataclass
class Config:
    """The bounds of a model, and the choices that the NIC makes from its settings.

    ``unit`` is a path MTU, ``base`` the first PSN. ``judged`` says that the responses are those of this program; then
    each READ that gives no address reads memory of its own.
    """

    program: list[Work]
    space: int = 8
    window: int = 3
    ack_every: int = 0
    read_chunk: int = 2
    max_rd_atomic: int = 2
    max_dest_rd_atomic: int = 2
    replies: int = 3
    entries: int = 64
    ack_each_after_probe: int = 1
    probing: bool = True
    timeout: bool = True
    unit: int = 1
    base: int = 0
    judged: bool = True
    first: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first = [self.base]
        program, self.program = self.program, []
        for work in program:
            own = self.judged and work.kind == READ and not work.va
            self.add(work._replace(va=(1 + self.first[-1]) * self.unit) if own else work)

    def add(self, work: Work) -> None:
        """Append to the program."""
        self.program.append(work)
        self.first.append(self.first[-1] + work.packets)

    def diff(self, a: int, b: int) -> int:
        """``psn_diff`` of this PSN space."""
        half = self.space >> 1
        return (a - b + half) % self.space - half


class Half:
    """One end of a connection: its words are attributes while a step runs, and a tuple between two steps."""

    WORDS: ClassVar[tuple[str, ...]]

    def __init__(self, config: Config, words: tuple[Any, ...]) -> None:
        self.config = config
        for name, value in zip(self.WORDS, words, strict=True):
            setattr(self, name, value)

    def freeze(self) -> tuple[Any, ...]:
        """Return the words."""
        return tuple([getattr(self, name) for name in self.WORDS])
