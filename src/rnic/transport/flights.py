"""What is in flight at once: one budget for the NIC, one for each peer (``design.md``, "Many at once").

A window for each queue pair alone bounds nothing: a thousand queue pairs with a window each fill any receive buffer,
and what overflows there is sent again, by all of them. So a requester asks here before it sends, and gives back what
was acknowledged. The unit is the packet, whatever its size, and a READ counts the responses that it draws.

**The NIC's limit** is fixed: half of the packets that its own receive buffer surely holds. READ responses and ACKs
come back to it; the other half is for what peers send unasked.

**A peer's limit** is learned, since its buffer, its pace and the number of others that send to it are unknown. It
starts at :data:`FIRST` and grows by half of what is acknowledged, by a quarter once something was lost, until packets
queue for a quarter of :data:`QUEUE_NS`; then by :data:`STEP` packets a round trip until they queue for all of it.
Packets queue for as long as a round trip is longer than the shortest of late. Since
everybody who sends to a peer sees the same delay, all of them together keep no more there than it serves in that time.
Three things make the limit smaller, at most once a round trip each:

* longer queues, :data:`_SAMPLES` times in a row: in proportion, by half at most and not below :data:`CROWDED`.
* a loss: half, not below :data:`LOSSY`.
* no sign of life within an ACK timeout: down to :data:`LEAST`, so that a peer that is gone does not hold what others
  could use.

Who finds no room waits here, and is given a turn when there is room for a whole :data:`QUANTUM`: a few queue pairs at a
time send long bursts, instead of all of them a packet each, since each turn and its ACK cost as much as many packets.
Programs take turns, and so do the queue pairs of each; who is given a turn while others wait sends its quantum and
waits again. A queue pair that does not wait yet queues up behind those that do.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnic.transport.outstanding import Outstanding
    from rnic.wire.flow import Flow

FIRST = 16
"""Packets in flight to a peer of which nothing is known."""
LOSSY = 32
"""Packets in flight to a peer on whose way packets are lost."""
CROWDED = 64
"""Packets in flight to a peer that is slow to answer: below, longer round trips are not of our making."""
LEAST = 4
"""Packets in flight to a peer that does not answer."""
STEP = 4
"""Packets by which a limit grows in a round trip, once it has been cut."""
QUANTUM = 64
"""Packets that there must be room for before a queue pair that waits is given a turn; fewer where limits are small."""
_SMALL_QUANTUM = 16
QUEUE_NS = 1_500_000
"""Nanoseconds that packets may queue at a peer: at 2 to 4 us for each, 400 to 750 of them."""
_SAMPLES = 8
"""Round trips in a row of which each must be too long: a single one may be the scheduler's doing."""
_LOW_NS = 100_000_000
"""The shortest round trip is remembered for one to two times this long: a machine that became slower is no queue."""
_MAX_PEERS = 4_096
"""Accounts above which those that no queue pair uses are forgotten."""


class Line:
    """Requesters that wait: programs in turn, and those of each program in order."""

    __slots__ = ("_count", "_programs")

    def __init__(self) -> None:
        self._programs: dict[int, deque[Outstanding]] = {}
        """The first has the next turn."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, requester: Outstanding) -> None:
        """``requester`` waits behind those of its program."""
        self._programs.setdefault(requester.qp.program, deque()).append(requester)
        self._count += 1

    def popleft(self) -> Outstanding:
        """Who is next."""
        program, waiting = next(iter(self._programs.items()))
        del self._programs[program]
        requester = waiting.popleft()
        if waiting:
            self._programs[program] = waiting
        self._count -= 1
        return requester

    def remove(self, requester: Outstanding) -> None:
        """``requester`` waits no more."""
        program = requester.qp.program
        waiting = self._programs[program]
        waiting.remove(requester)
        if not waiting:
            del self._programs[program]
        self._count -= 1


class Peer:
    """One peer's account: packets in flight to it, how many may be, its measured round trips, who waits."""

    __slots__ = (
        "_cut_ns",
        "_least",
        "_low",
        "_low_before",
        "_lossy",
        "_low_since",
        "_queue_ns",
        "_samples",
        "inflight",
        "limit",
        "most",
        "promised",
        "rttvar",
        "srtt",
        "users",
        "waiting",
    )

    def __init__(self, first: int, most: int) -> None:
        self.inflight = 0
        self.promised = 0
        self.most = most
        self.limit = float(min(first, most))
        self.srtt = 0
        self.rttvar = 0
        self.waiting = Line()
        self.users = 0
        """Queue pairs whose path leads here."""
        self._lossy = False
        self._cut_ns = 0
        self._low = self._low_before = 0
        self._low_since = 0
        self._least = self._samples = 0
        self._queue_ns = 0

    def quantum(self, shared: bool) -> int:
        """Packets of one turn.

        Where it is ``shared``, half of what may be in flight, so that one turn is under way while the next is made.
        Who is alone sends little by little: a loss shows by the packets behind it.
        """
        limit = int(self.limit)
        small = min(_SMALL_QUANTUM, limit)
        return max(small, min(QUANTUM, limit >> 1)) if shared else small

    def measured(self, sample_ns: int, now_ns: int) -> None:
        """A round trip was measured. Mean and deviation as RFC 6298 has them."""
        if self.srtt == 0:
            self.srtt, self.rttvar = sample_ns, sample_ns >> 1
        else:
            self.rttvar += (abs(sample_ns - self.srtt) - self.rttvar) >> 2
            self.srtt += (sample_ns - self.srtt) >> 3
        if self._low == 0 or now_ns - self._low_since > _LOW_NS:
            self._low_before, self._low, self._low_since = self._low or sample_ns, sample_ns, now_ns
        elif sample_ns < self._low:
            self._low = sample_ns
        queue_ns = sample_ns - min(self._low, self._low_before)
        self._queue_ns = queue_ns
        self._least = min(self._least, sample_ns) if self._samples else sample_ns
        self._samples += 1
        if self._samples == _SAMPLES:
            self._samples = 0
            queue_ns = self._least - min(self._low, self._low_before)
            if queue_ns > QUEUE_NS:
                self._cut(max(0.5, QUEUE_NS / queue_ns), CROWDED, now_ns)

    def acknowledged(self, packets: int) -> None:
        """Packets arrived: more may be in flight, if the limit is what held them back."""
        limit = self.limit
        if limit < self.most and 2 * self.inflight > limit:
            if self._queue_ns <= QUEUE_NS >> 2:
                limit += packets / (4 if self._lossy else 2)
            elif self._queue_ns <= QUEUE_NS:
                limit += packets * STEP / limit
            self.limit = min(limit, float(self.most))

    def lost(self, now_ns: int) -> None:
        """A packet was lost."""
        self._lossy = True
        self._cut(0.5, LOSSY, now_ns)

    def silent(self, now_ns: int) -> None:
        """Nothing came for an ACK timeout."""
        self._cut(0.0, LEAST, now_ns)

    def _cut(self, factor: float, least: int, now_ns: int) -> None:
        if now_ns - self._cut_ns > self.srtt:
            self._cut_ns = now_ns
            self.limit = max(self.limit * factor, min(float(least), self.limit))


NOBODY = Peer(FIRST, FIRST)
"""The peer of a queue pair that is not connected; nothing ever flies to it."""


class Flights:
    """The account of one NIC.

    Args:
        limit: packets in flight from this NIC, READ responses to it included.
        first: what a peer starts with.
    """

    __slots__ = ("_first", "_peers", "_queue", "_sweep_at", "inflight", "limit", "promised")

    def __init__(self, limit: int, first: int = FIRST) -> None:
        self.limit = limit
        self.inflight = 0
        self.promised = 0
        self._first = first
        self._peers: dict[tuple[bytes, int], Peer] = {}
        self._sweep_at = _MAX_PEERS
        self._queue: deque[Peer] = deque()
        """Peers that somebody waits for, in turn."""

    def peer(self, flow: Flow) -> Peer:
        """The account of the peer that ``flow`` leads to."""
        key = flow.dst, flow.dport
        peer = self._peers.get(key)
        if peer is None:
            if len(self._peers) >= self._sweep_at:
                self._peers = {known: account for known, account in self._peers.items() if account.users}
                self._sweep_at = max(_MAX_PEERS, 2 * len(self._peers))
            peer = self._peers[key] = Peer(self._first, self.limit)
        return peer

    def room(self, requester: Outstanding, want: int) -> int:
        """Packets that a requester may send now, if it has ``want``, at least 1, to send; 0 if it has to wait."""
        peer = requester.peer
        limit = int(peer.limit)
        own = requester.admitted
        if own:
            # its own promise is its own; those of others are not
            room = min(limit - peer.inflight - peer.promised, self.limit - self.inflight - self.promised) + own
            if peer.waiting:
                room = min(room, own)
                want = min(want, own)
        elif peer.waiting:
            return 0
        else:
            room = min(limit - peer.inflight - peer.promised, self.limit - self.inflight - self.promised)
        if room >= min(want, peer.quantum(self.shared(requester)), self.limit):
            return room
        # peers that do not answer may hold all that there is: one with nothing in flight gets a little all the same
        return min(want, LEAST, limit) if not peer.inflight else 0

    def shared(self, requester: Outstanding) -> bool:
        """Whether others have packets in flight or wait for room, and may take the next."""
        return self.inflight > requester.flying or bool(self._queue)

    @property
    def queued(self) -> int:
        """Peers that somebody waits for."""
        return len(self._queue)

    def take(self, requester: Outstanding, packets: int) -> None:
        """``packets`` more of a requester are in flight."""
        own = min(requester.admitted, packets)
        if own:
            requester.admitted -= own
        self.took(requester.peer, packets, own)

    def took(self, peer: Peer, packets: int, own: int) -> None:
        """``packets`` more are in flight to a peer, of which ``own`` had been promised."""
        peer.inflight += packets
        self.inflight += packets
        peer.promised -= own
        self.promised -= own

    def give(self, peer: Peer, packets: int) -> None:
        """``packets`` fewer are."""
        peer.inflight -= packets
        self.inflight -= packets
        if self._queue:
            self._admit()

    def wait(self, requester: Outstanding) -> None:
        """No room: the requester's queue pair is given a turn once there is."""
        if requester.parked:
            return
        requester.parked = 1
        peer = requester.peer
        if not peer.waiting:
            self._queue.append(peer)
        peer.waiting.append(requester)

    def turn_over(self, requester: Outstanding) -> None:
        """A requester has had a turn: what it was promised and did not take is for others."""
        own = requester.admitted
        if own:
            requester.admitted = 0
            requester.peer.promised -= own
            self.promised -= own
        if self._queue:
            self._admit()

    def leave(self, requester: Outstanding) -> None:
        """A requester waits no more."""
        peer = requester.peer
        if requester.parked:
            requester.parked = 0
            peer.waiting.remove(requester)
            if not peer.waiting:
                self._queue.remove(peer)
        self.turn_over(requester)

    def _admit(self) -> None:
        """Give turns to who waits, peer by peer, as long as there is room that nobody was promised."""
        queue = self._queue
        blocked = 0
        while queue and blocked < len(queue):
            peer = queue.popleft()
            quantum = peer.quantum(len(peer.waiting) > 1 or bool(queue) or peer.users > 1)
            full = self.limit - self.inflight - self.promised < min(quantum, self.limit)
            if peer.inflight + peer.promised and (full or int(peer.limit) - peer.inflight - peer.promised < quantum):
                queue.append(peer)
                blocked += 1
                continue
            requester = peer.waiting.popleft()
            if peer.waiting:
                queue.append(peer)
            requester.parked = 0
            requester.admitted = quantum
            peer.promised += quantum
            self.promised += quantum
            blocked = 0
            requester.host.schedule(requester.qp)
