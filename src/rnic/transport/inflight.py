"""Budget of packets in flight at once: one for the NIC, one for each peer (``design.md``, "Many at once").

A window for each queue pair alone bounds nothing: a thousand queue pairs with a window each fill any receive buffer,
and what overflows there is retransmitted by all of them. So a requester asks here before it sends, and returns what
was acknowledged. The unit is the packet, whatever its size; a READ counts its response packets.

**The NIC's limit** is fixed: half of the packets that its own receive buffer surely holds, or all where those are few.
READ responses and ACKs come back to it; the other half is for what peers send unasked.

**A peer's limit** is learned, since its buffer, its pace and the number of others that send to it are unknown. It
starts at :data:`FIRST` and grows by half of what is acknowledged, by a quarter once something was lost, until packets
queue for a quarter of :data:`QUEUE_NS`; then by :data:`STEP` packets a round trip until they queue for all of it.
Packets queue for as long as a round trip is longer than the shortest of late. Since
all senders to a peer see the same delay, all of them together keep no more there than it serves in that time.
Three things make the limit smaller, at most once a round trip each:

* longer queues, :data:`SAMPLES` times in a row: in proportion, by half at most and not below :data:`CROWDED`.
* a loss: half, not below :data:`LOSSY`.
* no sign of life within an ACK timeout: down to :data:`LEAST`, so that a peer that is gone does not hold what others
  could use.

A queue pair that finds no room waits here, and gets a turn once there is room for a whole :data:`QUANTUM`: a few queue
pairs at a time send full bursts, in place of all of them single packets, since each turn and its ACK cost as much as
many packets. Programs take turns, and so do the queue pairs of each; one that gets a turn while others wait sends its
quantum and waits again. A queue pair that does not wait yet
queues up behind those that do, with one exception: one that has nothing in flight and wants no more than :data:`LEAST`
packets passes them, up to :data:`OVERTAKE` packets beyond the limits, since it would wait for a quantum's round trip
with a message that takes none. No more than that many packets pass between two turns of waiting queue pairs.

Where programs run the data path themselves, each has accounts of its own, and a page that all of a device share bounds
what they have in flight together (:mod:`rnic.transport.budget`): room is then what the others leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rnic.state import lists
from rnic.state.arena import Arena
from rnic.state.budget import ENTRIES, NIC_ENTRY
from rnic.state.inflight import FRACTION_BITS, INFLIGHT, LINE, PEER
from rnic.state.queue_pair import QP
from rnic.state.record import WORD_SHIFT, Record, Word, place, view

if TYPE_CHECKING:
    from rnic.transport.budget import Budget
    from rnic.transport.send_queue import SendQueue
    from rnic.wire.flow import Flow

FIRST = 16
"""Limit of packets in flight to a new peer."""
LOSSY = 32
"""Lowest limit of packets in flight after losses on the path to a peer."""
CROWDED = 64
"""Lowest limit of packets in flight to a slow peer: below it, our packets do not cause the longer round trips."""
LEAST = 4
"""Limit of packets in flight to a peer that does not answer."""
STEP = 4
"""Packets by which a limit grows in a round trip, once it has been cut."""
QUANTUM = 64
"""Packets that there must be room for before a queue pair that waits is given a turn; fewer where limits are small."""
SMALL_QUANTUM = 16
OVERTAKE = 16
"""Packets of short messages that pass waiting queue pairs, and exceed the limits."""
QUEUE_NS = 1_500_000
"""Nanoseconds that packets may queue at a peer: at 2 to 4 us for each, 400 to 750 of them."""
SAMPLES = 8
"""Round trips in a row that must all be too long: a single one may be due to the CPU scheduler."""
LOW_NS = 100_000_000
"""The shortest round trip is remembered for one to two times this long: a machine that became slower is no queue."""
_MAX_PEERS = 4_096
"""Accounts above which those that no queue pair uses are forgotten."""


_ONE = 1 << FRACTION_BITS
_WAITING = place(QP, "next_waiting")
_QP_LINE = place(QP, "line")
_LINES = place(PEER, "first_line")
_NEXT_PEER = place(PEER, "next_peer")
_LINE = place(LINE, "next")
_QUEUE = place(LINE, "first")
_PROGRAM = place(LINE, "program")
_PEERS = place(INFLIGHT, "first_peer")


@view(PEER)
class Peer(Record):
    """One peer's account: packets in flight to it, their limit, its round-trip times, its waiting queue pairs.

    Args:
        memory: memory of its record, all zeros.
        record: offset of the record.
        first: initial limit in packets.
        most: upper bound of the limit.
    """

    __slots__ = ("record",)

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

    def __init__(self, memory: memoryview, record: int, first: int, most: int) -> None:
        self.record = record
        self.most, self.limit_16 = most, min(first, most) << FRACTION_BITS

    @property
    def limit(self) -> float:
        """Packets that may be in flight to the peer."""
        return self.limit_16 / _ONE

    @limit.setter
    def limit(self, packets: float) -> None:
        self.limit_16 = int(packets * _ONE)

    def measured(self, sample_ns: int, now_ns: int) -> None:
        """Add a measured round trip: update mean and deviation as in RFC 6298."""
        srtt = self.srtt
        if srtt == 0:
            self.srtt, self.rttvar = sample_ns, sample_ns >> 1
        else:
            self.rttvar += (abs(sample_ns - srtt) - self.rttvar) >> 2
            self.srtt += (sample_ns - srtt) >> 3
        low = self.low
        if low == 0 or now_ns - self.low_since > LOW_NS:
            self.low_before, self.low, self.low_since = low or sample_ns, sample_ns, now_ns
        elif sample_ns < low:
            self.low = sample_ns
        shortest = min(self.low, self.low_before)
        self.queue_ns = sample_ns - shortest
        samples = self.samples + 1
        self.least = sample_ns if samples == 1 else min(self.least, sample_ns)
        self.samples = samples
        if samples == SAMPLES:
            self.samples = 0
            queue_ns = self.least - shortest
            if queue_ns > QUEUE_NS:
                limit = self.limit_16
                self._cut(max(limit >> 1, limit * QUEUE_NS // queue_ns), CROWDED, now_ns)

    def acknowledged(self, packets: int) -> None:
        """Count acknowledged packets, and raise the limit if it was what held packets back.

        A waiting queue pair shows that too: turns are given for whole quanta, and short messages leave most of one
        empty.
        """
        limit = self.limit_16
        most = self.most << FRACTION_BITS
        if limit < most and (self.waiting or self.inflight << FRACTION_BITS + 1 > limit):
            queue_ns = self.queue_ns
            if queue_ns <= QUEUE_NS >> 2:
                limit += (packets << FRACTION_BITS) >> (2 if self.lossy else 1)
            elif queue_ns <= QUEUE_NS:
                limit += (packets * STEP << 2 * FRACTION_BITS) // limit
            self.limit_16 = min(limit, most)

    def lost(self, now_ns: int) -> None:
        """Cut the limit after a loss."""
        self.lossy = 1
        self._cut(self.limit_16 >> 1, LOSSY, now_ns)

    def timed_out(self, now_ns: int) -> None:
        """Cut the limit after an ACK timeout without a response."""
        self._cut(0, LEAST, now_ns)

    def _cut(self, limit_16: int, least: int, now_ns: int) -> None:
        if now_ns - self.cut_ns > self.srtt:
            self.cut_ns = now_ns
            self.limit_16 = max(limit_16, min(least << FRACTION_BITS, self.limit_16))


def _quantum(limit: int, shared: bool) -> int:
    """Return the number of packets in one turn, given a peer's limit.

    Where it is ``shared``, half of what may be in flight, so that one turn is in flight while the next is made.
    A single sender sends a few packets at a time: a loss shows by the packets after it.
    """
    small = min(SMALL_QUANTUM, limit)
    return max(small, min(QUANTUM, limit >> 1)) if shared else small


class Entries(Protocol):
    """Hands out the entries of the page that a whole device shares."""

    def enter(self, address: bytes, port: int) -> int:
        """Enter a peer. Return its entry, which has one more user; 0 if no entry is left."""

    def leave(self, address: bytes, port: int) -> None:
        """Remove one user from the peer's entry."""


NOBODY = Peer(memoryview(bytearray(PEER.size)), 0, FIRST, FIRST)
"""The peer of a queue pair that is not connected; nothing is ever in flight to it."""


@view(INFLIGHT)
class InflightRecord(Record):
    """The record of all packets in flight."""

    __slots__ = ()

    limit: Word
    packets: Word
    promised: Word
    first_peer: Word
    last_peer: Word
    waited_for: Word
    overtaken: Word
    spare_line: Word


class Inflight:
    """The account of one NIC.

    Args:
        arena: arena that holds the records.
        limit: most packets in flight from this NIC, READ responses to it included.
        first: initial limit of a peer.

    Raises:
        MemoryError: the arena is full.
    """

    __slots__ = (
        "_account",
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
    )

    def __init__(self, arena: Arena, limit: int, first: int = FIRST) -> None:
        self._arena = arena
        self._cells = arena.cells
        self.record = _cleared(arena, arena.take(INFLIGHT.size, "what is in flight"), INFLIGHT.size)
        self._account = InflightRecord(arena.memory, self.record)
        self._account.limit = limit
        self.reserve_line()
        self._first = first
        self._known: dict[tuple[bytes, int], Peer] = {}
        self._peers: dict[int, Peer] = {}
        """Peers by the offsets of their records."""
        self._sweep_at = _MAX_PEERS
        self._members: dict[int, SendQueue] = {}
        """Requesters by the offsets of their queue pairs' records."""
        self._budget: Budget | None = None
        self._entries: Entries | None = None

    def share(self, budget: Budget, entries: Entries) -> None:
        """Obey the device's budget page from now on: enter all known peers in it."""
        self._budget, self._entries = budget, entries
        for (address, port), peer in self._known.items():
            peer.entry = entries.enter(address, port)
        self.show()

    def begin_wide(self) -> None:
        """Let new peers begin with the NIC's limit, as NICs in hardware do: their buffers hold what arrives."""
        self._first = self.limit

    def show(self) -> None:
        """Update what this slot shows in the budget page, if there is one."""
        for peer in self._known.values():
            self._show(peer)
        self._show_all()

    def leave_budget(self) -> None:
        """Release the slot: clear its shares in the budget page, and free its peers' entries."""
        if self._budget is not None and self._entries is not None:
            self._budget.clear()
            for address, port in self._known:
                self._entries.leave(address, port)
            self._budget = self._entries = None

    def entries(self) -> set[int]:
        """Return the entries of its peers in the budget page."""
        return {peer.entry for peer in self._known.values()}

    def _show(self, peer: Peer) -> None:
        budget, entry = self._budget, peer.entry
        if budget is not None and entry:
            held = peer.inflight + peer.promised
            budget.show(entry, held, peer.limit_16 >> FRACTION_BITS, peer.waiting > 0)

    def _show_all(self) -> None:
        if self._budget is not None:
            account = self._account
            held = account.packets + account.promised
            self._budget.show(NIC_ENTRY, held, account.limit, account.waited_for > 0)

    def limit_to(self, peer: Peer) -> int:
        """Return the number of packets that this slot may have in flight to a peer, less what the device's other slots
        have in flight to it."""
        limit, budget = peer.limit_16 >> FRACTION_BITS, self._budget
        if budget is None:
            return limit
        entry = peer.entry
        return budget.limit(entry, limit, self._account.limit) if entry else limit

    def limit_of_all(self) -> int:
        """Return the number of packets that this slot may have in flight in all, as :meth:`limit_to`."""
        limit: int = self._account.limit
        return limit if self._budget is None else self._budget.nic_limit(limit)

    def crowded(self) -> bool:
        """True if other slots of the device have packets in flight or wait for room."""
        return self._budget is not None and self._budget.crowded()

    @property
    def limit(self) -> int:
        """Packets that may be in flight from this NIC."""
        return self._account.limit

    @property
    def packets(self) -> int:
        """Packets in flight."""
        return self._account.packets

    @property
    def promised(self) -> int:
        """Packets for which turns were given that have not been sent."""
        return self._account.promised

    @property
    def overtaken(self) -> int:
        """Packets that passed waiting queue pairs since one of these was given a turn."""
        return self._account.overtaken

    @property
    def queued(self) -> int:
        """Number of peers with waiting queue pairs."""
        return self._account.waited_for

    def add_requester(self, requester: SendQueue) -> None:
        """Add a requester with nothing in flight."""
        self._members[requester.record] = requester

    def remove_requester(self, requester: SendQueue) -> None:
        """Remove a requester, which has nothing in flight and does not wait."""
        self._members.pop(requester.record, None)

    def peer(self, flow: Flow) -> Peer:
        """Return the account of the peer that ``flow`` leads to.

        Raises:
            MemoryError: the arena is full.
        """
        key = flow.dst, flow.dport
        peer = self._known.get(key)
        if peer is None:
            if len(self._known) >= self._sweep_at:
                self._sweep()
            record = self._arena.take(PEER.size, "a peer")
            peer = Peer(self._arena.memory, _cleared(self._arena, record, PEER.size), self._first, self.limit)
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

    def room(self, requester: SendQueue, want: int) -> int:
        """Return the number of packets that a requester may send now, if it has ``want``, at least 1, to send; 0 if it
        has to wait."""
        peer = requester.peer
        account = self._account
        own = requester.admitted
        limit, nic = self.limit_to(peer), self.limit_of_all()
        if not own and peer.waiting:
            return self._slips(requester, want, limit, nic)
        # packets promised to this queue pair count as room; those promised to others do not
        inflight = peer.inflight
        room = own + min(limit - inflight - peer.promised, nic - account.packets - account.promised)
        if own and peer.waiting:
            room = min(room, own)
            want = min(want, own)
        if room >= want or room >= min(_quantum(limit, self.shared(requester)), nic):
            return room
        # peers that do not answer may use up the NIC's limit: a peer with nothing in flight still gets a little
        return self._slips(requester, want, limit, nic) if inflight else min(want, LEAST, limit)

    def _slips(self, requester: SendQueue, want: int, limit: int, nic: int) -> int:
        """Return ``want`` if it is small enough to pass waiting queue pairs, else 0."""
        account, peer = self._account, requester.peer
        if requester.admitted or requester.inflight + want > LEAST:
            return 0
        if peer.waiting and account.overtaken + want > OVERTAKE:
            return 0
        room = min(
            limit + min(OVERTAKE, limit) - peer.inflight - peer.promised,
            nic + min(OVERTAKE, nic) - account.packets - account.promised,
        )
        return want if room >= want else 0

    def shared(self, requester: SendQueue) -> bool:
        """Return whether others have packets in flight or wait for room, and may take the room that is left."""
        return self._account.packets > requester.inflight or bool(self._account.waited_for) or self.crowded()

    def enough(self, requester: SendQueue, packets: int, want: int) -> bool:
        """Return whether a queue pair that sends ``packets`` now finds room for more of ``want`` without an answer to
        them.

        One that joins meanwhile and takes some room gives it back; but then it has to be room for a whole turn.
        """
        peer, account = requester.peer, self._account
        limit, nic = self.limit_to(peer), self.limit_of_all()
        room = requester.admitted - packets
        room += min(
            limit - peer.inflight - peer.promised,
            nic - account.packets - account.promised,
        )
        return room >= min(want, _quantum(limit, True), nic)

    def take(self, requester: SendQueue, packets: int) -> None:
        """Count ``packets`` more of a requester in flight."""
        own = requester.admitted
        if own:
            own = min(own, packets)
            requester.admitted -= own
        self.took(requester.peer, packets, own)

    def took(self, peer: Peer, packets: int, own: int) -> None:
        """Count ``packets`` more in flight to a peer, of which ``own`` had been promised."""
        account = self._account
        peer.inflight += packets
        account.packets += packets
        if own:
            peer.promised -= own
            account.promised -= own
        elif peer.waiting:
            account.overtaken += packets
        if self._budget is not None:
            self._show(peer)
            self._show_all()

    def release(self, peer: Peer, packets: int) -> None:
        """Count ``packets`` fewer in flight to a peer, and give turns to queue pairs that wait for room."""
        peer.inflight -= packets
        self._account.packets -= packets
        self._show(peer)
        if self._account.waited_for:
            self._admit()
        self._show_all()

    def wait(self, requester: SendQueue) -> None:
        """Queue the requester for room; its queue pair is given a turn once there is."""
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
            self.reserve_line()
            line = self._account.spare_line
            if not line:
                requester.parked = 0
                raise MemoryError(f"no room for a line in {self._arena.size} bytes of state")
            self._account.spare_line = cells[(line >> WORD_SHIFT) + _LINE]
            cells[(_cleared(self._arena, line, LINE.size) >> WORD_SHIFT) + _PROGRAM] = program
            lists.append(cells, at + _LINES, _LINE, line)
            self.reserve_line()
        lists.append(cells, (line >> WORD_SHIFT) + _QUEUE, _WAITING, requester.record)
        cells[(requester.record >> WORD_SHIFT) + _QP_LINE] = line
        if not peer.waiting:
            self._queue(lists.append, peer)
        peer.waiting += 1
        self._show(peer)
        self._show_all()

    def reserve_line(self) -> None:
        """Allocate a spare line if the arena has room: the engine cannot allocate one itself."""
        if not self._account.spare_line:
            line = self._arena.allocate(LINE.size)
            if line is not None:
                _cleared(self._arena, line, LINE.size)
                self._account.spare_line = line

    def _queue(self, how: Callable[[memoryview, int, int, int], None], peer: Peer) -> None:
        """Add a peer to the queue of peers with waiting queue pairs, or remove it."""
        how(self._cells, (self.record >> WORD_SHIFT) + _PEERS, _NEXT_PEER, peer.record)
        self._account.waited_for += 1 if how is lists.append else -1

    def _leave_line(self, peer: Peer, record: int) -> int:
        """Remove a queue pair from its line. Return the line, or 0 if it is empty and was freed."""
        cells = self._cells
        line = cells[(record >> WORD_SHIFT) + _QP_LINE]
        lists.unlink(cells, (line >> WORD_SHIFT) + _QUEUE, _WAITING, record)
        cells[(record >> WORD_SHIFT) + _QP_LINE] = 0
        peer.waiting -= 1
        if cells[(line >> WORD_SHIFT) + _QUEUE]:
            return line
        lists.unlink(cells, (peer.record >> WORD_SHIFT) + _LINES, _LINE, line)
        cells[(line >> WORD_SHIFT) + _LINE] = self._account.spare_line
        self._account.spare_line = line
        return 0

    def turn_over(self, requester: SendQueue) -> None:
        """End a requester's turn: return the unused rest of its promise to the others."""
        own = requester.admitted
        if own:
            requester.admitted = 0
            requester.peer.promised -= own
            self._account.promised -= own
            self._show(requester.peer)
        if self._account.waited_for:
            self._admit()
        if self._budget is not None:
            self._show_all()

    def leave(self, requester: SendQueue) -> None:
        """Remove a requester from its line."""
        peer = requester.peer
        if requester.parked:
            requester.parked = 0
            self._leave_line(peer, requester.record)
            if not peer.waiting:
                self._queue(lists.unlink, peer)
            self._show(peer)
        self.turn_over(requester)

    def _next(self, peer: Peer) -> SendQueue:
        """Return the next queue pair that waits for this peer, and move its program's line to the end."""
        cells, at = self._cells, peer.record >> WORD_SHIFT
        line = peer.first_line
        record = cells[(line >> WORD_SHIFT) + _QUEUE]
        if self._leave_line(peer, record):
            lists.unlink(cells, at + _LINES, _LINE, line)
            lists.append(cells, at + _LINES, _LINE, line)
        return self._members[record]

    def _admit(self) -> None:
        """Give turns to waiting queue pairs, peer by peer, while there is room that is not promised."""
        account = self._account
        blocked = 0
        while blocked < account.waited_for:
            peer = self._peers[account.first_peer]
            self._queue(lists.unlink, peer)
            limit, nic = self.limit_to(peer), self.limit_of_all()
            quantum = _quantum(limit, peer.waiting > 1 or bool(account.waited_for) or peer.users > 1)
            full = nic - account.packets - account.promised < min(quantum, nic)
            used = peer.inflight + peer.promised
            if used and (full or limit - used < quantum):
                self._queue(lists.append, peer)
                blocked += 1
                continue
            requester = self._next(peer)
            if peer.waiting:
                self._queue(lists.append, peer)
            requester.parked = 0
            requester.admitted = quantum
            peer.promised += quantum
            account.promised += quantum
            account.overtaken = 0
            self._show(peer)
            blocked = 0
            requester.host.schedule(requester.qp)


def _cleared(arena: Arena, record: int, size: int) -> int:
    """Zero a record and return its offset."""
    arena.memory[record : record + size] = bytes(size)
    return record
