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

* longer queues, :data:`SAMPLES` times in a row: in proportion, by half at most and not below :data:`CROWDED`.
* a loss: half, not below :data:`LOSSY`.
* no sign of life within an ACK timeout: down to :data:`LEAST`, so that a peer that is gone does not hold what others
  could use.

Who finds no room waits here, and is given a turn when there is room for a whole :data:`QUANTUM`: a few queue pairs at a
time send long bursts, instead of all of them a packet each, since each turn and its ACK cost as much as many packets.
Programs take turns, and so do the queue pairs of each; who is given a turn while others wait sends its quantum and
waits again. A queue pair that does not wait yet queues up behind those that do, but with a little: who has nothing in
flight and wants no more than :data:`LEAST` packets goes past them, and up to :data:`SLIP` beyond the limits, since it
would wait for a quantum's round trip with a message that takes none. No more than that many packets go past between two
turns of those who wait.

Where programs run the data path themselves, each has accounts of its own, and a page that all of a device share bounds
what they have in flight together (:mod:`rnic.transport.budget`): room is then what the others leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rnic.state import links
from rnic.state.arena import Arena
from rnic.state.budget import ENTRIES, NIC_ENTRY
from rnic.state.flights import FLIGHTS, FRACTION_BITS, LINE, PEER
from rnic.state.queue_pair import QP
from rnic.state.record import WORD_SHIFT, Word, place, view

if TYPE_CHECKING:
    from rnic.transport.budget import Budget
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
SMALL_QUANTUM = 16
SLIP = 16
"""Packets of short messages that go past those who wait, and beyond the limits."""
QUEUE_NS = 1_500_000
"""Nanoseconds that packets may queue at a peer: at 2 to 4 us for each, 400 to 750 of them."""
SAMPLES = 8
"""Round trips in a row of which each must be too long: a single one may be the scheduler's doing."""
LOW_NS = 100_000_000
"""The shortest round trip is remembered for one to two times this long: a machine that became slower is no queue."""
_MAX_PEERS = 4_096
"""Accounts above which those that no queue pair uses are forgotten."""


_ONE = 1 << FRACTION_BITS
_WAITING = place(QP, "next_waiting")
_QP_LINE = place(QP, "line")
_INFLIGHT = place(PEER, "inflight")
_PROMISED = place(PEER, "promised")
_LIMIT = place(PEER, "limit_16")
_MOST = place(PEER, "most")
_SRTT, _RTTVAR = place(PEER, "srtt"), place(PEER, "rttvar")
_LOW, _LOW_BEFORE, _LOW_SINCE = (place(PEER, name) for name in ("low", "low_before", "low_since"))
_QUEUE_NS, _LEAST_NS, _SAMPLED = (place(PEER, name) for name in ("queue_ns", "least", "samples"))
_LOSSY_PATH = place(PEER, "lossy")
_LINES = place(PEER, "first_line")
_COUNT = place(PEER, "waiting")
_NEXT_PEER = place(PEER, "next_peer")
_LINE = place(LINE, "next")
_QUEUE = place(LINE, "first")
_PROGRAM = place(LINE, "program")
_PEERS = place(FLIGHTS, "first_peer")
_ALL_INFLIGHT = place(FLIGHTS, "inflight")
_ALL_PROMISED = place(FLIGHTS, "promised")
_ALL_LIMIT = place(FLIGHTS, "limit")
_WAITED_FOR = place(FLIGHTS, "waited_for")
_SLIPPED = place(FLIGHTS, "slipped")
_SPARE_LINE = place(FLIGHTS, "spare_line")
_ENTRY = place(PEER, "entry")


@view(PEER)
class Peer:
    """One peer's account: packets in flight to it, how many may be, its measured round trips, who waits.

    Args:
        words: its record, all zeros; ``record`` is its offset.
        first: the limit that it begins with.
        most: what the limit grows to.
    """

    __slots__ = ("record", "words")

    inflight: Word
    promised: Word
    most: Word
    limit_16: Word
    srtt: Word
    rttvar: Word
    lossy: Word
    cut_ns: Word
    low: Word
    low_before: Word
    low_since: Word
    queue_ns: Word
    least: Word
    samples: Word
    users: Word
    first_line: Word
    last_line: Word
    waiting: Word
    next_peer: Word
    previous_peer: Word
    entry: Word

    def __init__(self, words: memoryview, record: int, first: int, most: int) -> None:
        self.words = words
        self.record = record
        self.most, self.limit_16 = most, min(first, most) << FRACTION_BITS

    @property
    def limit(self) -> float:
        """Packets that may be in flight to it."""
        return self.limit_16 / _ONE

    @limit.setter
    def limit(self, packets: float) -> None:
        self.limit_16 = int(packets * _ONE)

    def measured(self, sample_ns: int, now_ns: int) -> None:
        """A round trip was measured. Mean and deviation as RFC 6298 has them."""
        words = self.words
        srtt = words[_SRTT]
        if srtt == 0:
            words[_SRTT], words[_RTTVAR] = sample_ns, sample_ns >> 1
        else:
            words[_RTTVAR] += (abs(sample_ns - srtt) - words[_RTTVAR]) >> 2
            words[_SRTT] += (sample_ns - srtt) >> 3
        low = words[_LOW]
        if low == 0 or now_ns - words[_LOW_SINCE] > LOW_NS:
            words[_LOW_BEFORE], words[_LOW], words[_LOW_SINCE] = low or sample_ns, sample_ns, now_ns
        elif sample_ns < low:
            words[_LOW] = sample_ns
        shortest = min(words[_LOW], words[_LOW_BEFORE])
        words[_QUEUE_NS] = sample_ns - shortest
        samples = words[_SAMPLED] + 1
        words[_LEAST_NS] = sample_ns if samples == 1 else min(words[_LEAST_NS], sample_ns)
        words[_SAMPLED] = samples
        if samples == SAMPLES:
            words[_SAMPLED] = 0
            queue_ns = words[_LEAST_NS] - shortest
            if queue_ns > QUEUE_NS:
                limit = words[_LIMIT]
                self._cut(max(limit >> 1, limit * QUEUE_NS // queue_ns), CROWDED, now_ns)

    def acknowledged(self, packets: int) -> None:
        """Packets arrived: more may be in flight, if the limit is what held them back.

        It is where somebody waits, too: turns are given for whole quanta, and short messages leave most of one empty.
        """
        words = self.words
        limit = words[_LIMIT]
        most = words[_MOST] << FRACTION_BITS
        if limit < most and (words[_COUNT] or words[_INFLIGHT] << FRACTION_BITS + 1 > limit):
            queue_ns = words[_QUEUE_NS]
            if queue_ns <= QUEUE_NS >> 2:
                limit += (packets << FRACTION_BITS) >> (2 if words[_LOSSY_PATH] else 1)
            elif queue_ns <= QUEUE_NS:
                limit += (packets * STEP << 2 * FRACTION_BITS) // limit
            words[_LIMIT] = min(limit, most)

    def lost(self, now_ns: int) -> None:
        """A packet was lost."""
        self.lossy = 1
        self._cut(self.limit_16 >> 1, LOSSY, now_ns)

    def silent(self, now_ns: int) -> None:
        """Nothing came for an ACK timeout."""
        self._cut(0, LEAST, now_ns)

    def _cut(self, limit_16: int, least: int, now_ns: int) -> None:
        if now_ns - self.cut_ns > self.srtt:
            self.cut_ns = now_ns
            self.limit_16 = max(limit_16, min(least << FRACTION_BITS, self.limit_16))


def _quantum(limit: int, shared: bool) -> int:
    """Packets of one turn at a peer's limit.

    Where it is ``shared``, half of what may be in flight, so that one turn is under way while the next is made.
    Who is alone sends little by little: a loss shows by the packets behind it.
    """
    small = min(SMALL_QUANTUM, limit)
    return max(small, min(QUANTUM, limit >> 1)) if shared else small


class Entries(Protocol):
    """Who hands out the entries of the page that a whole device shares."""

    def enter(self, address: bytes, port: int) -> int:
        """The entry of a peer, which has one user more; 0 where none is left."""

    def leave(self, address: bytes, port: int) -> None:
        """The peer has one user less."""


NOBODY = Peer(memoryview(bytearray(PEER.size)).cast("Q"), 0, FIRST, FIRST)
"""The peer of a queue pair that is not connected; nothing ever flies to it."""


class Flights:
    """The account of one NIC.

    Args:
        arena: where the records lie.
        limit: packets in flight from this NIC, READ responses to it included.
        first: what a peer starts with.

    Raises:
        MemoryError: the arena is full.
    """

    __slots__ = (
        "_arena",
        "_budget",
        "_cells",
        "_entries",
        "_first",
        "_known",
        "_members",
        "_peers",
        "_sweep_at",
        "record",
        "words",
    )

    def __init__(self, arena: Arena, limit: int, first: int = FIRST) -> None:
        self._arena = arena
        self._cells = arena.cells
        self.record = arena.take(FLIGHTS.size, "flights")
        self.words = _cleared(arena, self.record, FLIGHTS.size)
        self.words[_ALL_LIMIT] = limit
        self.stock()
        self._first = first
        self._known: dict[tuple[bytes, int], Peer] = {}
        self._peers: dict[int, Peer] = {}
        """The same by the offsets of their records."""
        self._sweep_at = _MAX_PEERS
        self._members: dict[int, Outstanding] = {}
        """Requesters by the offsets of their queue pairs' records."""
        self._budget: Budget | None = None
        self._entries: Entries | None = None

    def share(self, budget: Budget, entries: Entries) -> None:
        """Keep to what the whole device may have in flight from now on: peers have entries in its page."""
        self._budget, self._entries = budget, entries
        for (address, port), peer in self._known.items():
            peer.entry = entries.enter(address, port)
        self.show()

    def show(self) -> None:
        """Put right what this slot shows in that page, where there is one."""
        for peer in self._known.values():
            self._show(peer)
        self._show_all()

    def leave_budget(self) -> None:
        """The slot is given back: what it showed in that page is cleared, and its peers' entries are for others."""
        if self._budget is not None and self._entries is not None:
            self._budget.clear()
            for address, port in self._known:
                self._entries.leave(address, port)
            self._budget = self._entries = None

    def entries(self) -> set[int]:
        """The entries of its peers in that page."""
        return {peer.entry for peer in self._known.values()}

    def _show(self, peer: Peer) -> None:
        budget, words = self._budget, peer.words
        entry = words[_ENTRY]
        if budget is not None and entry:
            held = words[_INFLIGHT] + words[_PROMISED]
            budget.show(entry, held, words[_LIMIT] >> FRACTION_BITS, words[_COUNT] > 0)

    def _show_all(self) -> None:
        if self._budget is not None:
            words = self.words
            held = words[_ALL_INFLIGHT] + words[_ALL_PROMISED]
            self._budget.show(NIC_ENTRY, held, words[_ALL_LIMIT], words[_WAITED_FOR] > 0)

    def limit_to(self, peer: Peer) -> int:
        """Packets that may be in flight to a peer, from here: what others of the device have there is not for these."""
        words, budget = peer.words, self._budget
        limit: int = words[_LIMIT] >> FRACTION_BITS
        entry = words[_ENTRY]
        return limit if budget is None or not entry else budget.limit(entry, limit, self.words[_ALL_LIMIT])

    def limit_of_all(self) -> int:
        """Packets that may be in flight from here, as :meth:`limit_to`."""
        limit: int = self.words[_ALL_LIMIT]
        return limit if self._budget is None else self._budget.nic_limit(limit)

    def crowded(self) -> bool:
        """Whether others of the device, in other slots, have packets in flight or wait for room."""
        return self._budget is not None and self._budget.crowded()

    @property
    def limit(self) -> int:
        """Packets that may be in flight from this NIC."""
        return self.words[_ALL_LIMIT]

    @property
    def inflight(self) -> int:
        """Packets in flight."""
        return self.words[_ALL_INFLIGHT]

    @property
    def promised(self) -> int:
        """Packets for which turns were given that have not been sent."""
        return self.words[_ALL_PROMISED]

    @property
    def slipped(self) -> int:
        """Packets that went past those who wait since one of these was given a turn."""
        return self.words[_SLIPPED]

    @property
    def queued(self) -> int:
        """Peers that somebody waits for."""
        return self.words[_WAITED_FOR]

    def join(self, requester: Outstanding) -> None:
        """There is a requester, which neither flies nor waits."""
        self._members[requester.record] = requester

    def part(self, requester: Outstanding) -> None:
        """There is a requester no more; it neither flies nor waits."""
        self._members.pop(requester.record, None)

    def peer(self, flow: Flow) -> Peer:
        """The account of the peer that ``flow`` leads to.

        Raises:
            MemoryError: the arena is full.
        """
        key = flow.dst, flow.dport
        peer = self._known.get(key)
        if peer is None:
            if len(self._known) >= self._sweep_at:
                self._sweep()
            record = self._arena.take(PEER.size, "a peer")
            peer = Peer(_cleared(self._arena, record, PEER.size), record, self._first, self.limit)
            if self._entries is not None:
                peer.entry = self._entries.enter(*key)
            self._known[key] = self._peers[record] = peer
        return peer

    def _sweep(self) -> None:
        for key, peer in list(self._known.items()):
            if not peer.users:
                if self._budget is not None and self._entries is not None:
                    self._budget.show(peer.entry or ENTRIES, 0, 0, False)
                    self._entries.leave(*key)
                del self._known[key], self._peers[peer.record]
                self._arena.free(peer.record, PEER.size)
        self._sweep_at = max(_MAX_PEERS, 2 * len(self._known))

    def room(self, requester: Outstanding, want: int) -> int:
        """Packets that a requester may send now, if it has ``want``, at least 1, to send; 0 if it has to wait."""
        peer = requester.peer
        account, words = self.words, peer.words
        own = requester.admitted
        limit, nic = self.limit_to(peer), self.limit_of_all()
        if not own and words[_COUNT]:
            return self._slips(requester, want, limit, nic)
        # its own promise is its own; those of others are not
        room = own + min(
            limit - words[_INFLIGHT] - words[_PROMISED],
            nic - account[_ALL_INFLIGHT] - account[_ALL_PROMISED],
        )
        if own and words[_COUNT]:
            room = min(room, own)
            want = min(want, own)
        if room >= min(want, _quantum(limit, self.shared(requester)), nic):
            return room
        # peers that do not answer may hold all that there is: one with nothing in flight gets a little all the same
        return self._slips(requester, want, limit, nic) if words[_INFLIGHT] else min(want, LEAST, limit)

    def _slips(self, requester: Outstanding, want: int, limit: int, nic: int) -> int:
        """``want`` if that is so little that it need not wait for room, else 0."""
        account, words = self.words, requester.peer.words
        if requester.admitted or requester.flying + want > LEAST:
            return 0
        if words[_COUNT] and account[_SLIPPED] + want > SLIP:
            return 0
        room = min(
            limit + min(SLIP, limit) - words[_INFLIGHT] - words[_PROMISED],
            nic + min(SLIP, nic) - account[_ALL_INFLIGHT] - account[_ALL_PROMISED],
        )
        return want if room >= want else 0

    def shared(self, requester: Outstanding) -> bool:
        """Whether others have packets in flight or wait for room, and may take the next."""
        return self.words[_ALL_INFLIGHT] > requester.flying or bool(self.words[_WAITED_FOR]) or self.crowded()

    def enough(self, requester: Outstanding, packets: int, want: int) -> bool:
        """Whether who sends ``packets`` now finds room for more of ``want`` without an answer to them.

        Whoever joins meanwhile and takes some room gives it back; but then it has to be room for a whole turn.
        """
        peer = requester.peer
        account, words = self.words, peer.words
        limit, nic = self.limit_to(peer), self.limit_of_all()
        room = requester.admitted - packets
        room += min(
            limit - words[_INFLIGHT] - words[_PROMISED],
            nic - account[_ALL_INFLIGHT] - account[_ALL_PROMISED],
        )
        return room >= min(want, _quantum(limit, True), nic)

    def take(self, requester: Outstanding, packets: int) -> None:
        """``packets`` more of a requester are in flight."""
        own = min(requester.admitted, packets)
        if own:
            requester.admitted -= own
        self.took(requester.peer, packets, own)

    def took(self, peer: Peer, packets: int, own: int) -> None:
        """``packets`` more are in flight to a peer, of which ``own`` had been promised."""
        account, words = self.words, peer.words
        words[_INFLIGHT] += packets
        account[_ALL_INFLIGHT] += packets
        if own:
            words[_PROMISED] -= own
            account[_ALL_PROMISED] -= own
        elif words[_COUNT]:
            account[_SLIPPED] += packets
        self._show(peer)
        self._show_all()

    def give(self, peer: Peer, packets: int) -> None:
        """``packets`` fewer are."""
        peer.words[_INFLIGHT] -= packets
        self.words[_ALL_INFLIGHT] -= packets
        self._show(peer)
        if self.words[_WAITED_FOR]:
            self._admit()
        self._show_all()

    def wait(self, requester: Outstanding) -> None:
        """No room: the requester's queue pair is given a turn once there is."""
        if requester.parked:
            return
        requester.parked = 1
        peer = requester.peer
        cells, at = self._cells, peer.record >> WORD_SHIFT
        program = requester.qp.program
        line = peer.first_line
        while line and cells[(line >> WORD_SHIFT) + _PROGRAM] != program:
            line = cells[(line >> WORD_SHIFT) + _LINE]
        if not line:
            self.stock()
            line = self.words[_SPARE_LINE]
            if not line:
                requester.parked = 0
                raise MemoryError(f"no room for a line in {self._arena.size} bytes of state")
            self.words[_SPARE_LINE] = cells[(line >> WORD_SHIFT) + _LINE]
            _cleared(self._arena, line, LINE.size)[_PROGRAM] = program
            links.append(cells, at + _LINES, _LINE, line)
            self.stock()
        links.append(cells, (line >> WORD_SHIFT) + _QUEUE, _WAITING, requester.record)
        cells[(requester.record >> WORD_SHIFT) + _QP_LINE] = line
        if not peer.waiting:
            self._queue(links.append, peer)
        peer.waiting += 1
        self._show(peer)
        self._show_all()

    def stock(self) -> None:
        """If the arena has room there is a line for the next who waits: who works on records alone cannot make one."""
        if not self.words[_SPARE_LINE]:
            line = self._arena.allocate(LINE.size)
            if line is not None:
                _cleared(self._arena, line, LINE.size)
                self.words[_SPARE_LINE] = line

    def _queue(self, how: Callable[[memoryview, int, int, int], None], peer: Peer) -> None:
        """Put a peer into the queue of those that somebody waits for, or take it out."""
        how(self._cells, (self.record >> WORD_SHIFT) + _PEERS, _NEXT_PEER, peer.record)
        self.words[_WAITED_FOR] += 1 if how is links.append else -1

    def _leave_line(self, peer: Peer, record: int) -> int:
        """A queue pair waits no more: its line, 0 where that is empty now and gone."""
        cells = self._cells
        line = cells[(record >> WORD_SHIFT) + _QP_LINE]
        links.unlink(cells, (line >> WORD_SHIFT) + _QUEUE, _WAITING, record)
        cells[(record >> WORD_SHIFT) + _QP_LINE] = 0
        peer.waiting -= 1
        if cells[(line >> WORD_SHIFT) + _QUEUE]:
            return line
        links.unlink(cells, (peer.record >> WORD_SHIFT) + _LINES, _LINE, line)
        cells[(line >> WORD_SHIFT) + _LINE] = self.words[_SPARE_LINE]
        self.words[_SPARE_LINE] = line
        return 0

    def turn_over(self, requester: Outstanding) -> None:
        """A requester has had a turn: what it was promised and did not take is for others."""
        own = requester.admitted
        if own:
            requester.admitted = 0
            requester.peer.words[_PROMISED] -= own
            self.words[_ALL_PROMISED] -= own
            self._show(requester.peer)
        if self.words[_WAITED_FOR]:
            self._admit()
        self._show_all()

    def leave(self, requester: Outstanding) -> None:
        """A requester waits no more."""
        peer = requester.peer
        if requester.parked:
            requester.parked = 0
            self._leave_line(peer, requester.record)
            if not peer.waiting:
                self._queue(links.unlink, peer)
            self._show(peer)
        self.turn_over(requester)

    def _next(self, peer: Peer) -> Outstanding:
        """Who waits for this peer and is next; its program's line then waits behind the others."""
        cells, at = self._cells, peer.record >> WORD_SHIFT
        line = peer.first_line
        record = cells[(line >> WORD_SHIFT) + _QUEUE]
        if self._leave_line(peer, record):
            links.unlink(cells, at + _LINES, _LINE, line)
            links.append(cells, at + _LINES, _LINE, line)
        return self._members[record]

    def _admit(self) -> None:
        """Give turns to who waits, peer by peer, as long as there is room that nobody was promised."""
        account = self.words
        blocked = 0
        while blocked < account[_WAITED_FOR]:
            peer = self._peers[account[_PEERS]]
            self._queue(links.unlink, peer)
            limit, nic = self.limit_to(peer), self.limit_of_all()
            quantum = _quantum(limit, peer.waiting > 1 or bool(account[_WAITED_FOR]) or peer.users > 1)
            full = nic - account[_ALL_INFLIGHT] - account[_ALL_PROMISED] < min(quantum, nic)
            used = peer.inflight + peer.promised
            if used and (full or limit - used < quantum):
                self._queue(links.append, peer)
                blocked += 1
                continue
            requester = self._next(peer)
            if peer.waiting:
                self._queue(links.append, peer)
            requester.parked = 0
            requester.admitted = quantum
            peer.promised += quantum
            account[_ALL_PROMISED] += quantum
            account[_SLIPPED] = 0
            self._show(peer)
            blocked = 0
            requester.host.schedule(requester.qp)


def _cleared(arena: Arena, record: int, size: int) -> memoryview:
    """The words of a record, zero."""
    arena.memory[record : record + size] = bytes(size)
    return arena.words(record, size)
