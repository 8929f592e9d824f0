"""One direction of a queue pair: the requests that one side sends, and what the other's responses say about them.

The PSN is the only clock. Packets may arrive here twice, late or never, since the capture stands anywhere on their way:
so each is judged by the PSN that it has, against the packets known before and behind it, and ``front``, the first PSN
that was not seen, moves only over packets that were.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from rnic.judge.findings import Facts
from rnic.judge.packet import Seen
from rnic.spec.psn import PSN_MASK

KEEP = 8_192
"""Packets behind the newest that a stream remembers at least, and half of what it does at most."""
MAX_READS = 512
"""READs that a stream remembers."""


class Read:
    """A READ that was asked for: PSNs ``first`` to before ``first + packets``; ``packets`` is 0 while unknown."""

    __slots__ = ("answered", "ends", "first", "length", "packets", "rkey", "starts", "va")

    def __init__(self, first: int, packets: int, va: int, rkey: int, length: int) -> None:
        self.first = first
        self.packets = packets
        self.va = va
        self.rkey = rkey
        self.length = length
        self.answered = False
        self.starts = {first}
        """PSNs from which it was asked for, again perhaps, or a part of it."""
        self.ends: set[int] = set()
        """PSNs at which a part that was asked for ends."""

    def overlaps(self, other: Read) -> bool:
        """Whether a PSN belongs to both."""
        return (other.first - self.first) & PSN_MASK < self.packets or (
            self.first - other.first
        ) & PSN_MASK < other.packets


class Stream:
    """State of one direction. ``-1`` stands for what is not known yet."""

    __slots__ = (
        "acked",
        "atomics",
        "base",
        "candidates",
        "cnp_copied",
        "cnp_ident",
        "cnp_ns",
        "expected_psn",
        "facts",
        "fatal",
        "front",
        "highest",
        "history",
        "holes",
        "jump",
        "key",
        "late_start",
        "left",
        "limited",
        "lost",
        "lsn",
        "mtu",
        "nak_ident",
        "nak_psn",
        "name",
        "peer",
        "pkey",
        "reading",
        "reads",
        "refused_end",
        "rnr_psn",
        "response_ident",
        "rnr_until",
        "steady",
        "time_ns",
        "total",
    )

    def __init__(self, name: str, key: tuple[bytes, bytes, int]) -> None:
        self.name = name
        self.key = key
        self.facts = Facts()
        self.peer: Stream | None = None
        """The other direction of the same connection."""
        self.candidates: set[Stream] | None = None
        """Which streams the responses seen here may belong to."""
        self.forget()

    def forget(self) -> None:
        """Another connection uses these numbers from now on."""
        self.lost = False
        """It cannot be followed."""
        self.history: dict[int, Seen] = {}
        self.reads: deque[Read] = deque(maxlen=MAX_READS)
        self.reading: Read | None = None
        """The one that responses belonged to last, while it is sure that no newer one has its PSNs too."""
        self.atomics: dict[int, int] = {}
        """Values that atomics were answered with, by PSN."""
        self.mtu = 0
        self.pkey = self.cnp_ns = self.cnp_ident = self.time_ns = -1
        self.cnp_copied = False
        """The last CNP may have been a copy of the one before."""
        self.expected_psn = -1
        """The first PSN that connection management agreed on."""
        self.front = -1
        """The first PSN that was not seen."""
        self.highest = -1
        """The PSN behind the newest that was seen."""
        self.acked = -1
        """The first PSN that was not acknowledged."""
        self.total = 0
        """Messages that have ended before ``front``, since the stream was first seen."""
        self.base = -1
        """The peer's MSN when the stream was first seen."""
        self.left = -1
        """Bytes that the open WRITE still has to bring, at ``front``."""
        self.lsn = -1
        """The limit sequence number that credits allow; -1 for none."""
        self.limited = -1
        """The last packet that was sent without a credit."""
        self.nak_psn = self.nak_ident = self.rnr_psn = self.fatal = -1
        self.rnr_until = 0
        self.refused_end = -1
        """The PSN behind the newest packet that a sequence NAK refused, while it is not acknowledged."""
        self.response_ident = 0
        """Ident of the last response that acknowledged something; 0 where its sender counts none."""
        self.steady = True
        """Nothing was repeated or late yet."""
        self.holes = False
        """The capture lacks packets of this direction that its peer has surely received."""
        self.late_start: Seen | None = None
        """The first request, behind the PSN that was agreed on: what its peer counts says if the capture lacks some."""
        self.jump: Seen | None = None
        """A packet whose PSN led nowhere; what follows it says what it was."""

    def lose(self) -> None:
        """The capture holds too little of a request to follow the connection: nothing more is said about it."""
        self.forget()
        self.lost = True

    def prune(self) -> None:
        """Forget packets far behind the newest; insertion order is nearly PSN order."""
        for psn in list(islice(self.history, KEEP)):
            del self.history[psn]
            self.atomics.pop(psn, None)

    def incomplete(self) -> bool:
        """Whether the capture lacks packets of this connection: what was not seen may have been sent all the same."""
        return self.holes or (self.peer is not None and self.peer.holes)

    def partly_asked(self) -> bool:
        """Whether a READ waits of which a part was asked for again: its responder may count one message, or two."""
        reads = self.reads
        return bool(reads) and any(read.ends and not read.answered for read in reads)

    def read_at(self, psn: int) -> Read | None:
        """The READ whose responses ``psn`` belongs to; the newest, where numbers went round."""
        last = self.reading
        if last is not None and (psn - last.first) & PSN_MASK < last.packets:
            return last
        newer: list[Read] = []
        for read in reversed(self.reads):
            if (psn - read.first) & PSN_MASK < read.packets:
                self.reading = None if any(read.overlaps(other) for other in newer) else read
                return read
            newer.append(read)
        return None
