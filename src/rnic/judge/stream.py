"""One direction of a queue pair: the requests of one side, and the state that the other side's responses give them.

The PSN is the only clock. The capture point may be anywhere on the path, so packets may be seen twice, late or never.
Each packet is judged by its PSN against its known neighbors, and ``front``, the first PSN not seen, moves only over
packets that were seen.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from rnic.judge.findings import Facts
from rnic.judge.packet import Seen
from rnic.judge.state import StreamState
from rnic.spec.limits import MTU_CODES
from rnic.spec.psn import PSN_MASK, psn_count, psn_diff

KEEP = 8_192
"""Fewest packets before the newest that a stream remembers; it forgets old ones at twice this number."""
MAX_READS = 512
"""Most READs that a stream remembers."""
_LEAST_MTU = min(MTU_CODES)
_USED = 1 << 22
"""Most PSNs before the newest that a stream knows to be used."""
REWRITTEN = "ICRC fits source port"


class Read:
    """A requested READ of ``packets`` PSNs from ``first`` on; ``packets`` is 0 while unknown."""

    __slots__ = ("answered", "continues", "ends", "first", "length", "packets", "rkey", "starts", "va")

    def __init__(self, first: int, packets: int, va: int, rkey: int, length: int, *, continues: bool = False) -> None:
        self.first = first
        self.packets = packets
        self.va = va
        self.rkey = rkey
        self.length = length
        self.answered = False
        self.continues = continues
        """True if it may be the rest of a READ whose first request the capture lacks but whose responses it has."""
        self.starts = {first}
        """First PSNs of the request and of its repetitions."""
        self.ends: set[int] = set()
        """PSNs at which repeated parts end."""

    def overlaps(self, other: Read) -> bool:
        """Return whether both share a PSN."""
        return (other.first - self.first) & PSN_MASK < self.packets or (
            self.first - other.first
        ) & PSN_MASK < other.packets


class Pair:
    """State shared by all streams from one address to another."""

    __slots__ = ("stray",)

    def __init__(self) -> None:
        self.stray: Seen | None = None
        """The newest request that did not fit its stream; it may belong to another one."""


class Ahead:
    """A request with too high a PSN, sent right after ``before`` by its ident, and the one that went back after it."""

    __slots__ = ("back", "before", "packet")

    def __init__(self, before: Seen, packet: Seen) -> None:
        self.before = before
        self.packet = packet
        self.back: Seen | None = None


class Stream(StreamState):
    """State of one direction. ``-1`` stands for what is not known yet."""

    __slots__ = (
        "ahead",
        "atomics",
        "candidates",
        "cnp_copied",
        "cnp_ident",
        "cnp_ns",
        "expected_psn",
        "facts",
        "holes",
        "key",
        "limited",
        "lost",
        "nak_ident",
        "name",
        "oldest",
        "pair",
        "rnr_until",
        "steady",
        "time_ns",
    )

    history: dict[int, Seen]
    jump: Seen | None
    late_start: Seen | None
    peer: Stream | None
    reading: Read | None
    reads: deque[Read]

    def __init__(self, name: str, key: tuple[bytes, bytes, int], pair: Pair) -> None:
        self.name = name
        self.key = key
        self.pair = pair
        self.facts = Facts()
        self.peer = None
        """The other direction of the same connection."""
        self.candidates: tuple[int, ...] = ()
        """Candidate queue pairs of the other direction, whose requests the responses seen here may answer, if few."""
        self.forget()

    def forget(self) -> None:
        """Reset the stream for a new connection on the same QPNs."""
        self.lost = False
        """True if the stream cannot be followed."""
        self.history = {}
        self.reads = deque(maxlen=MAX_READS)
        self.reading = None
        """READ that the last response belonged to, while no newer READ can share its PSNs."""
        self.atomics: dict[int, int] = {}
        """Results of atomics, by PSN."""
        self.mtu = 0
        self.pkey = self.cnp_ns = self.cnp_ident = self.time_ns = -1
        self.constant = self.response_port = -1
        """``Form.constant`` of all requests (:class:`rnic.judge.packet.Form`), and the source port of all responses."""
        self.cnp_copied = False
        """True if the last CNP may have been a duplicate of the one before."""
        self.expected_psn = -1
        """First PSN agreed on by connection management."""
        self.front = -1
        """First PSN not seen."""
        self.highest = -1
        """PSN after the newest one seen."""
        self.oldest = -1
        """Start of a range of used PSNs, which ends at ``highest``."""
        self.acked = -1
        """First PSN not acknowledged."""
        self.total = 0
        """Messages completed before ``front`` since the stream was first seen."""
        self.base = -1
        """The peer's MSN when the stream was first seen."""
        self.odd_base = -1
        """Deviating ``base`` of one response; a second response that agrees replaces ``base``."""
        self.left = -1
        """Bytes left of the open WRITE at ``front``."""
        self.lsn = -1
        """Limit sequence number from credits; -1 without credits."""
        self.limited = -1
        """Last packet sent without a credit."""
        self.nak_psn = self.nak_ident = self.rnr_psn = self.fatal = -1
        self.rnr_until = 0
        self.refused_end = -1
        """PSN after the newest packet refused by a sequence NAK, until it is acknowledged."""
        self.response_ident = 0
        """Ident of the last response that acknowledged something; 0 if its sender does not count idents."""
        self.steady = True
        """True until a packet is retransmitted or late."""
        self.holes = False
        """True if the capture lacks packets of this direction that the peer must have received."""
        self.late_start = None
        """First request, if its PSN is after the agreed one; the peer's MSN tells whether earlier ones are missing."""
        self.jump = None
        """Packet with an isolated PSN; the next packet decides whether it was wrong."""
        self.ahead: Ahead | None = None
        """Packet sent too early by its ident; whether it is retransmitted tells why."""

    def lose(self) -> None:
        """Stop judging the connection: the capture holds too little of a request to follow it."""
        self.forget()
        self.lost = True

    def prune(self) -> None:
        """Forget packets far behind the newest; insertion order is nearly PSN order."""
        for psn in list(islice(self.history, KEEP)):
            del self.history[psn]
            self.atomics.pop(psn, None)
        if not 0 <= psn_diff(self.highest, self.oldest) <= _USED:
            self.oldest = self.highest - _USED & PSN_MASK

    def has_used(self, psn: int) -> bool:
        """Return whether a packet with this PSN was sent before, even if forgotten: the new one is late, or a copy."""
        return self.oldest >= 0 and psn_diff(psn, self.oldest) >= 0 > psn_diff(psn, self.highest)

    @property
    def path_mtu(self) -> int:
        """Path MTU of the connection, in either direction; 0 while it is not known."""
        return self.mtu or (self.peer.mtu if self.peer is not None else 0)

    def rewritten(self, captured: int, port: int, frame: int) -> None:
        """Note that a recorder replaced ``port`` by ``captured``, also in packets whose truncated ICRC cannot prove it.

        A capture may have all 65,536 ports: the fact names only the first.
        """
        name = f"{REWRITTEN} {port}: the recorder rewrote it"
        if name not in self.facts.counts and any(fact.startswith(REWRITTEN) for fact in self.facts.counts):
            name = "ICRC fits further source ports: the recorder rewrote them"
        self.facts.add(name, frame)
        if self.constant >= 0 and self.constant >> 17 == captured:
            self.constant ^= (captured ^ port) << 17
        if self.response_port == captured:
            self.response_port = port

    def incomplete(self) -> bool:
        """True if the capture lacks packets of this connection: an unseen packet may still have been sent."""
        return self.holes or (self.peer is not None and self.peer.holes)

    def unknown_span(self) -> bool:
        """True if the end of the newest READ is unknown because the path MTU is."""
        return not self.mtu and bool(self.reads) and not self.reads[-1].packets

    def in_unknown_read(self, psn: int) -> bool:
        """True if ``psn`` may belong to a READ of unknown span, which is longest with the smallest path MTU."""
        if not self.unknown_span():
            return False
        read = self.reads[-1]
        return 0 <= psn_diff(psn, read.first) < psn_count(read.length, _LEAST_MTU)

    def partly_asked(self) -> bool:
        """True if a partly repeated READ is open: its responder may count one message or two."""
        reads = self.reads
        return bool(reads) and any(read.ends and not read.answered for read in reads)

    def read_at(self, psn: int) -> Read | None:
        """Return the READ whose responses include ``psn``; the newest one if PSNs wrapped."""
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
