"""Limits on packets in flight: one for the NIC, one for each peer (``design.md``, "Many at once").

Per-QP windows alone are not enough: a thousand queue pairs overflow any receive buffer, and all of them retransmit what
overflowed. So a requester reserves packets here before it sends, and releases acknowledged ones. The unit is the
packet, whatever its size; a READ counts its response packets.

**The NIC's limit** is fixed: half of the packets that its receive buffer is sure to hold, or all if those are few. READ
responses and ACKs use this half; the other half is for requests of peers.

**A peer's limit** is learned, since its buffer, its speed and the number of its senders are unknown. It starts at
:data:`FIRST` and grows by half of the acknowledged packets, or a quarter after a loss, until the queuing delay is a
quarter of :data:`QUEUE_NS`; then by :data:`STEP` packets per round trip until it is :data:`QUEUE_NS`. The queuing
delay is the round-trip time minus the shortest recent one. All senders to a peer see the same delay, so together they
queue no more than the peer serves in that time. Three events cut the limit, each at most once per round trip:

* a longer queuing delay, :data:`SAMPLES` times in a row: in proportion, at most by half and not below :data:`CROWDED`.
* a loss: by half, not below :data:`LOSSY`.
* no response within an ACK timeout: to :data:`LEAST`, so that a dead peer does not hold packets that others could use.

A queue pair that finds no room waits here and gets a turn once there is room for a whole :data:`QUANTUM`. So a few
queue pairs send full bursts instead of all of them sending single packets, since a turn and its ACK cost as much as
many packets. Programs are served round robin, and so are the queue pairs of each; one that gets a turn while others
wait sends its quantum and waits again. A queue pair normally queues behind those that wait, with one exception: if it
has nothing in flight and needs at most :data:`LEAST` packets, it overtakes them, since a short message should not wait
for the round trip of a quantum. Up to :data:`OVERTAKE` packets may do so between two turns of waiting queue pairs, even
beyond the limits.

If programs run the data path themselves, each has its own accounts, and a page shared by all programs of a device
bounds their total in flight (:mod:`rnic.transport.budget`).
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
"""Initial limit of packets in flight to a peer."""
LOSSY = 32
"""Lowest limit of packets in flight after losses on the path to a peer."""
CROWDED = 64
"""Lowest limit of packets in flight to a slow peer: with fewer, our packets are not the cause of long round trips."""
LEAST = 4
"""Limit of packets in flight to a peer that does not answer."""
STEP = 4
"""Packets by which a limit grows per round trip once it has been cut."""
QUANTUM = 64
"""Room in packets that a waiting queue pair needs to get a turn; less if limits are small."""
SMALL_QUANTUM = 16
OVERTAKE = 16
"""Most packets of short messages that overtake waiting queue pairs and exceed the limits."""
QUEUE_NS = 1_500_000
"""Target queuing delay at a peer in nanoseconds: 400 to 750 packets at 2 to 4 us each."""
SAMPLES = 8
"""Consecutive long round trips required for a cut: a single one may be due to the CPU scheduler."""
LOW_NS = 100_000_000
"""The shortest round trip is remembered for one to two such intervals, so that a machine that became slower is not
taken for a queue."""
_MAX_PEERS = 4_096
"""Number of accounts above which unused ones are freed."""


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
        """Count acknowledged packets, and raise the limit if packets were held back by it.

        A waiting queue pair also shows this: turns are granted in whole quanta, which short messages do not fill.
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

    If it is ``shared``, a turn is half of the limit, so that one turn is in flight while the next is built. A single
    sender sends a few packets at a time, so that later packets reveal a loss.
    """
    small = min(SMALL_QUANTUM, limit)
    return max(small, min(QUANTUM, limit >> 1)) if shared else small


class Entries(Protocol):
    """Allocates entries of the device's budget page."""

    def enter(self, address: bytes, port: int) -> int:
        """Add a user to a peer's entry, which is allocated if needed. Return the entry; 0 if none is left."""

    def leave(self, address: bytes, port: int) -> None:
        """Remove one user from the peer's entry."""


NOBODY = Peer(memoryview(bytearray(PEER.size)), 0, FIRST, FIRST)
"""The peer of a queue pair that is not connected; nothing is ever in flight to it."""


@view(INFLIGHT)
class InflightRecord(Record):
    """Record of the NIC's packets in flight."""

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
        """Start to use the device's budget page: allocate entries for all known peers."""
        self._budget, self._entries = budget, entries
        for (address, port), peer in self._known.items():
            peer.entry = entries.enter(address, port)
        self.show()

    def begin_wide(self) -> None:
        """Start new peers at the NIC's limit, for peers that buffer all packets, as hardware NICs do."""
        self._first = self.limit

    def show(self) -> None:
        """Update this slot's shares in the budget page, if there is one."""
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
        """Return the number of packets that this slot may have in flight to a peer, considering other slots of the
        device."""
        limit, budget = peer.limit_16 >> FRACTION_BITS, self._budget
        if budget is None:
            return limit
        entry = peer.entry
        return budget.limit(entry, limit, self._account.limit) if entry else limit

    def limit_of_all(self) -> int:
        """Return the number of packets that this slot may have in flight in total, considering other slots of the
        device."""
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
        """Packets granted to turns and not sent yet."""
        return self._account.promised

    @property
    def overtaken(self) -> int:
        """Packets that overtook waiting queue pairs since one of these got a turn."""
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
        """Return how many of ``want`` packets, at least 1, a requester may send now; 0 if it must wait."""
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
        # unresponsive peers may use up the NIC's limit: a peer with nothing in flight still gets a few packets
        return self._slips(requester, want, limit, nic) if inflight else min(want, LEAST, limit)

    def _slips(self, requester: SendQueue, want: int, limit: int, nic: int) -> int:
        """Return ``want`` if it is small enough to overtake waiting queue pairs, else 0."""
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
        """Return whether others have packets in flight or wait for room, and may take free room."""
        return self._account.packets > requester.inflight or bool(self._account.waited_for) or self.crowded()

    def enough(self, requester: SendQueue, packets: int, want: int) -> bool:
        """Return whether a queue pair that sends ``packets`` now will find room for more of ``want`` before they are
        acknowledged.

        Another one may take room in the meantime and will return it, but then there must be room for a whole turn.
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
        """Count ``packets`` more in flight for a requester."""
        own = requester.admitted
        if own:
            own = min(own, packets)
            requester.admitted -= own
        self.took(requester.peer, packets, own)

    def took(self, peer: Peer, packets: int, own: int) -> None:
        """Count ``packets`` more in flight to a peer, of which ``own`` were promised."""
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
        """Queue the requester for room; its queue pair gets a turn once there is room."""
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
        """Add or remove a peer in the list of peers with waiting queue pairs."""
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
        """End a requester's turn: release the unused part of its promise."""
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
