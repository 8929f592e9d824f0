"""The bridge: AXI transactions in, RDMA work requests out, and answers back. No I/O, no clock, no thread.

Each transaction takes one of a bounded number of slots, and 4 KB of staging memory with it. A read is one RDMA READ; a
write is one RDMA WRITE for each run of strobed bytes. B and R are given once the remote acknowledged. Answers of one ID
keep the order of their addresses, those of different IDs, and of reads and writes, do not (IHI 0022 A5.3); the beats of
one read stay together.

When a work request fails, the queue pair is at an end, and so are the requests behind it. Whoever owns it asks the
remote up to which PSN it executed, and :meth:`Bridge.resume` then settles each request exactly: what was executed
counts, what the remote refused is answered, the rest is posted again on the new connection.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from rnic.paxi import slots as s
from rnic.paxi.axi import BUS_BITS, Address, ReadBeat, WriteBeat, WriteResponse, beat_bytes, fault, runs, span
from rnic.spec.axi import BOUNDARY_BYTES, Resp
from rnic.spec.psn import psn_add, psn_count, psn_diff
from rnic.trace.counters import Counters

MAX_SLOTS: Final = 256
"""Of each direction."""
MAX_RECOVERIES: Final = 3
"""Connections in a row that may break before anything got done."""

UP: Final = 0
BROKEN: Final = 1
"""Nothing is posted until the connection has been made anew."""
DOWN: Final = 2
"""The remote is lost: everything is answered SLVERR."""

SUCCESS: Final = 0
REFUSED: Final = 1
"""The remote's check of key, rights and range said no."""
FAILED: Final = 2
"""The remote, or this end, could not carry it out."""
UNKNOWN: Final = 3
"""No answer, or flushed: the remote may have executed it or not."""

OKAY, SLVERR, DECERR = (each.value for each in (Resp.OKAY, Resp.SLVERR, Resp.DECERR))

IRQ_RETRY_ERROR: Final = 1
IRQ_LATENCY_DONE: Final = 3
IRQ_RETRY_CLEARED: Final = 10
"""Bits of the interrupt indicator."""


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """What a bridge is built as.

    Raises:
        ValueError: a value out of range, in one line.
    """

    size: int = 0
    """Bytes of the window; 0: whatever the remote has."""
    data_bits: int = 512
    """Width of the bus: 8 to 512, a power of two."""
    base: int = 0
    """Bus address of the window's first byte."""
    remote: int = 0
    """Address of that byte at the remote."""
    read_slots: int = 16
    write_slots: int = 16
    """Transactions of each direction at a time, 1 to 256 (004 7.4 has 16 outstanding)."""
    requests: int = 64
    """Work requests under way, 1 to 32767."""

    def __post_init__(self) -> None:
        if self.data_bits not in BUS_BITS:
            raise ValueError(f"data_bits={self.data_bits}: choose one of {', '.join(map(str, BUS_BITS))}")
        limits = {
            "size": (0, 1 << 63),
            "base": (0, (1 << 64) - self.size),
            "remote": (0, (1 << 64) - self.size),
            "read_slots": (1, MAX_SLOTS),
            "write_slots": (1, MAX_SLOTS),
            "requests": (1, 0x7FFF),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}={value}: {low} to {high}")

    @property
    def staging_bytes(self) -> int:
        """Memory that the slots need."""
        return (self.read_slots + self.write_slots) * BOUNDARY_BYTES


class Request(NamedTuple):
    """One work request to be posted."""

    serial: int
    write: bool
    """RDMA WRITE, else READ."""
    offset: int
    """Of its bytes in the staging memory."""
    remote: int
    length: int


class _Slot:
    """One outstanding transaction."""

    __slots__ = ("address", "base", "beat", "born_ns", "failed", "flying", "order", "pieces", "resp", "state", "write")

    def __init__(self, base: int, write: bool) -> None:
        self.base = base
        self.write = write
        self.state = s.EMPTY
        self.address = Address(0, 0, 0, 0)
        self.beat = 0
        """Beats of W taken, or of R given."""
        self.resp = OKAY
        self.failed = False
        """A piece of it failed: no other is posted."""
        self.pieces: deque[tuple[int, int]] = deque()
        """(first byte, end) on the bus of what no work request carries."""
        self.flying = 0
        """Work requests under way."""
        self.order = 0
        self.born_ns = 0


class _Flight:
    """A work request under way."""

    __slots__ = ("end", "first", "outcome", "packets", "psn", "slot")

    def __init__(self, slot: _Slot, first: int, end: int, psn: int, packets: int) -> None:
        self.slot = slot
        self.first = first
        self.end = end
        self.psn = psn
        self.packets = packets
        self.outcome: int | None = None


class _Direction:
    """Slots of reads or of writes, and the order of their answers."""

    def __init__(self, first: int, count: int, write: bool) -> None:
        self.free = deque(_Slot((first + index) * BOUNDARY_BYTES, write) for index in range(count))
        self.by_id: dict[int, deque[_Slot]] = {}
        """Slots of each ID, oldest first."""
        self.ready: deque[_Slot] = deque()
        """Slots that may answer now, in the order in which they came to it."""

    def take(self, address: Address, order: int, now_ns: int) -> _Slot:
        slot = self.free.popleft()
        slot.address, slot.order, slot.born_ns = address, order, now_ns
        slot.beat, slot.resp, slot.failed = 0, OKAY, False
        self.by_id.setdefault(address.id, deque()).append(slot)
        return slot

    def done(self, slot: _Slot) -> None:
        if self.by_id[slot.address.id][0] is slot:
            self.ready.append(slot)

    def answered(self) -> None:
        """The slot at the head of ``ready`` has given its last beat."""
        slot = self.ready.popleft()
        slot.state = s.step(slot.state, s.ANSWERED)
        line = self.by_id[slot.address.id]
        line.popleft()
        if not line:
            del self.by_id[slot.address.id]
        elif line[0].state == s.DONE:
            self.ready.append(line[0])
        self.free.append(slot)


class Bridge:
    """AXI on one side, work requests on the other.

    A master's side offers addresses and data while :attr:`can_read`, :attr:`can_write` and :attr:`can_data` say so, and
    takes :meth:`read_beat` and :meth:`write_response`. The queue pair's side posts what :meth:`next_request` gives and
    reports each completion, in the order of posting, by :meth:`complete`.

    Args:
        config: what it is built as.
        staging: ``config.staging_bytes`` of writable memory; work requests read and write there.
        counters: where everything is counted, names beginning with ``paxi_``.
    """

    def __init__(self, config: BridgeConfig, staging: memoryview, counters: Counters | None = None) -> None:
        if len(staging) != config.staging_bytes or staging.readonly:
            raise ValueError(f"staging has {len(staging)} bytes: give {config.staging_bytes}, writable")
        self.config = config
        self.counters = Counters() if counters is None else counters
        self.lanes = config.data_bits // 8
        self._limit = config.base + config.size
        self.link = DOWN
        self.interrupts = 0
        """Bits of events since they were last cleared."""
        self.self_recover = True
        """Make the connection anew after a lost one without being told to."""
        self.wanted_id: int | None = None
        """ID whose next read and write are timed."""
        self.latency: dict[bool, tuple[int, Address]] = {}
        """By direction (true: write), nanoseconds and address of the transaction that was timed."""
        self._staging = staging
        self._reads = _Direction(0, config.read_slots, False)
        self._writes = _Direction(config.read_slots, config.write_slots, True)
        self._filling: deque[_Slot] = deque()
        self._post: deque[_Slot] = deque()
        self._flights: dict[int, _Flight] = {}
        self._flying = 0
        self._serial = 0
        self._order = 0
        self._psn = 0
        self._mtu = BOUNDARY_BYTES
        self._strandings = 0
        self._give_up = False
        self._lost = False

    # ------------------------------------------------------------------------------- the master's side

    @property
    def can_read(self) -> bool:
        """ARREADY."""
        return bool(self._reads.free)

    @property
    def can_write(self) -> bool:
        """AWREADY."""
        return bool(self._writes.free)

    @property
    def can_data(self) -> bool:
        """WREADY: a write burst waits for data. Data follow their addresses."""
        return bool(self._filling)

    @property
    def idle(self) -> bool:
        """Whether no transaction is in hand."""
        config = self.config
        return len(self._reads.free) == config.read_slots and len(self._writes.free) == config.write_slots

    @property
    def waiting(self) -> bool:
        """Whether something is in hand that only the remote can bring on."""
        return bool(self._flights or self._post)

    def address_read(self, address: Address, now_ns: int = 0) -> None:
        """Take a beat of AR. Only while :attr:`can_read`."""
        assert self.can_read, "AR was offered while ARREADY is low"
        slot = self._take(self._reads, address, now_ns)
        self.counters.bump("paxi_reads")
        if slot.failed:
            slot.state = s.step(slot.state, s.REFUSED)
            self._done(slot)
            return
        first, end = span(address)
        limit = min(end, self._limit)
        self.counters.bump("paxi_read_bytes", limit - first)
        if limit < end:
            at = slot.base + limit % BOUNDARY_BYTES
            self._staging[at : at + end - limit] = bytes(end - limit)
        slot.pieces.append((first, limit))
        slot.state = s.step(slot.state, s.READ)
        self._post.append(slot)

    def address_write(self, address: Address, now_ns: int = 0) -> None:
        """Take a beat of AW. Only while :attr:`can_write`."""
        assert self.can_write, "AW was offered while AWREADY is low"
        slot = self._take(self._writes, address, now_ns)
        self.counters.bump("paxi_writes")
        slot.state = s.step(slot.state, s.WRITE)
        self._filling.append(slot)

    def write_data(self, beat: WriteBeat) -> None:
        """Take a beat of W, of the oldest write whose data are not complete. Only while :attr:`can_data`.

        WLAST ends the burst. Where that is another beat than the address said, or a strobe is on a lane that the beat
        does not have, the burst is answered with SLVERR and nothing of it is written.
        """
        slot = self._filling[0]
        address, number = slot.address, slot.beat
        slot.beat += 1
        if beat.last != (number == address.len):
            self._refuse(slot, "last")
        if not slot.failed:
            self._store(slot, address, number, beat)
        if not beat.last:
            return
        self._filling.popleft()
        if slot.pieces:
            self.counters.bump("paxi_write_bytes", sum(end - first for first, end in slot.pieces))
            self.counters.bump("paxi_split_pieces", len(slot.pieces) - 1)
            slot.state = s.step(slot.state, s.FILLED)
            self._post.append(slot)
        else:
            slot.state = s.step(slot.state, s.VOID)
            self._done(slot)

    def read_beat(self) -> ReadBeat | None:
        """The next beat of R, which the master then must take; ``None`` where none is ready."""
        if not self._reads.ready:
            return None
        slot = self._reads.ready[0]
        address, number = slot.address, slot.beat
        slot.beat += 1
        data = bytes(self.lanes)
        if slot.resp == OKAY:
            first, end = beat_bytes(address, number)
            at = slot.base + first % BOUNDARY_BYTES
            lane = first % self.lanes
            data = bytes(lane) + self._staging[at : at + end - first] + bytes(self.lanes - lane - (end - first))
        last = number == address.len
        if last:
            self._reads.answered()
        return ReadBeat(address.id, data, slot.resp, last)

    def write_response(self) -> WriteResponse | None:
        """The next B, which the master then must take; ``None`` where none is ready."""
        if not self._writes.ready:
            return None
        slot = self._writes.ready[0]
        self._writes.answered()
        return WriteResponse(slot.address.id, slot.resp)

    def _take(self, direction: _Direction, address: Address, now_ns: int) -> _Slot:
        self._order += 1
        slot = direction.take(address, self._order, now_ns)
        why = fault(address, self.lanes)
        if why:
            self._refuse(slot, why)
            return slot
        # the bus decodes the address of each beat; what a beat has behind the window's end reads 0 and takes no store
        last = beat_bytes(address, address.len)[0]
        if not (self.config.base <= address.addr and last < self._limit):
            self._fail(slot, DECERR)
        elif self.link == DOWN:
            self._fail(slot, SLVERR)
        return slot

    def _refuse(self, slot: _Slot, why: str) -> None:
        """The burst is one that is not carried."""
        if not slot.failed:
            self.counters.bump("paxi_refused_" + why.lower().replace(" ", "_"))
            self._fail(slot, SLVERR)

    @staticmethod
    def _fail(slot: _Slot, resp: int) -> None:
        if not slot.failed:
            slot.failed, slot.resp = True, resp
            slot.pieces.clear()

    def _store(self, slot: _Slot, address: Address, number: int, beat: WriteBeat) -> None:
        first, end = beat_bytes(address, number)
        container = first & -self.lanes
        low, high = first - container, end - container
        if beat.strobe & ~((1 << high) - (1 << low)):
            self._refuse(slot, "strobe")
            return
        at = slot.base + container % BOUNDARY_BYTES
        pieces = slot.pieces
        if container + beat.strobe.bit_length() > self._limit:
            self._fail(slot, DECERR)
            return
        for start, stop in runs(beat.strobe):
            self._staging[at + start : at + stop] = beat.data[start:stop]
            if pieces and pieces[-1][1] == container + start:
                pieces[-1] = pieces[-1][0], container + stop
            else:
                pieces.append((container + start, container + stop))

    def _done(self, slot: _Slot) -> None:
        if slot.resp:
            self.counters.bump("paxi_slverr" if slot.resp == SLVERR else "paxi_decerr")
        (self._writes if slot.write else self._reads).done(slot)

    # ------------------------------------------------------------------------- the queue pair's side

    @property
    def drained(self) -> bool:
        """Whether every work request has completed, one way or the other."""
        return self._flying == 0

    @property
    def pending(self) -> int:
        """Work requests under way."""
        return self._flying

    @property
    def hopeless(self) -> bool:
        """Broken, and not to be made anew: :meth:`abandon` is what is left."""
        return self._give_up or self._strandings >= MAX_RECOVERIES

    def connected(self, psn: int, mtu: int) -> None:
        """The queue pair is ready: its first packet will have ``psn``, none more than ``mtu`` bytes of payload."""
        self._psn, self._mtu = psn, mtu
        self.link = UP
        if self._lost:
            self._lost = False
            self.interrupts |= 1 << IRQ_RETRY_CLEARED

    def next_request(self) -> Request | None:
        """What to post next; ``None`` where there is nothing, or as much under way as may be."""
        if self.link != UP or not self._post or self._flying >= self.config.requests:
            return None
        slot = self._post[0]
        first, end = slot.pieces.popleft()
        slot.flying += 1
        if not slot.pieces:
            self._post.popleft()
            slot.state = s.step(slot.state, s.POSTED)
        packets = psn_count(end - first, self._mtu)
        serial = self._serial
        self._serial = (serial + 1) & 0xFFFF_FFFF
        self._flights[serial] = _Flight(slot, first, end, self._psn, packets)
        self._flying += 1
        self._psn = psn_add(self._psn, packets)
        self.counters.bump("paxi_requests")
        config = self.config
        return Request(
            serial, slot.write, slot.base + first % BOUNDARY_BYTES, first - config.base + config.remote, end - first
        )

    def complete(self, serial: int, outcome: int, now_ns: int = 0) -> None:
        """The work request ``serial`` completed: ``SUCCESS``, ``REFUSED``, ``FAILED`` or ``UNKNOWN``."""
        flight = self._flights[serial]
        self._flying -= 1
        if outcome == SUCCESS:
            del self._flights[serial]
            self._strandings = 0
            self._settle(flight.slot, now_ns)
            return
        flight.outcome = outcome
        if self.link == UP:
            self.link = BROKEN
            if outcome == UNKNOWN:
                self.interrupts |= 1 << IRQ_RETRY_ERROR
                self._lost = True
                self.counters.bump("paxi_lost")
                self._give_up = not self.self_recover

    def stop(self) -> None:
        """Break the connection on purpose; once drained, everything in hand is answered SLVERR (soft reset).

        Does nothing while the link is down, where nothing is in hand.
        """
        if self.link != DOWN:
            self.link = BROKEN
            self._give_up = True

    def resume(self, expected_psn: int, fault: bool, now_ns: int = 0) -> None:
        """Settle what was under way, by what the remote says; afterwards :meth:`connected` posts on.

        Only while :attr:`drained`.

        Args:
            expected_psn: the PSN that the remote's responder waited for when it was stopped.
            fault: the remote refused the request with that PSN.
        """
        assert self.drained, "work requests are still under way"
        flights, self._flights = list(self._flights.values()), {}
        again: list[_Slot] = []
        before = self.counters["paxi_decerr"] + self.counters["paxi_slverr"]
        progress = False
        for flight in flights:
            slot = flight.slot
            slot.flying -= 1
            done = psn_diff(expected_psn, flight.psn)
            if flight.outcome in (REFUSED, FAILED):
                self._fail(slot, DECERR if flight.outcome == REFUSED else SLVERR)
            elif done >= flight.packets and slot.write:
                progress = True
            elif fault and 0 <= done < flight.packets:
                self._fail(slot, DECERR)
            else:
                if slot.write and done > 0:
                    flight.first += done * self._mtu
                    progress = True
                if not slot.failed:
                    slot.pieces.append((flight.first, flight.end))
                    again.append(slot)
        self._reorder([slot for slot in again if not slot.failed])
        for slot in dict.fromkeys(flight.slot for flight in flights):
            if slot.failed or not slot.pieces:
                self._finish(slot, now_ns)
        answered = self.counters["paxi_decerr"] + self.counters["paxi_slverr"] != before
        self._strandings = 0 if progress or answered else self._strandings + 1
        self.counters.bump("paxi_recoveries")
        self.counters.bump("paxi_replays", len(again))

    def abandon(self, now_ns: int = 0) -> None:
        """The remote is lost: answer everything in hand with SLVERR, and all that comes until :meth:`connected`."""
        assert self.drained, "work requests are still under way"
        flights, self._flights = list(self._flights.values()), {}
        for flight in flights:
            flight.slot.flying -= 1
            self._fail(flight.slot, DECERR if flight.outcome == REFUSED else SLVERR)
        for slot in [*dict.fromkeys(flight.slot for flight in flights), *self._post]:
            if slot.state in (s.POST, s.WAIT):
                self._fail(slot, SLVERR)
                self._finish(slot, now_ns)
        self._post.clear()
        for slot in self._filling:
            self._fail(slot, SLVERR)
        self.link = DOWN
        self._strandings = 0
        self._give_up = False
        self.counters.bump("paxi_abandoned")

    def _reorder(self, again: list[_Slot]) -> None:
        """Have slots post again what they must, before what they had not posted, oldest slot first."""
        counts: dict[_Slot, int] = {}
        for slot in again:
            counts[slot] = counts.get(slot, 0) + 1
        for slot, count in counts.items():
            slot.pieces.rotate(count)  # these were put behind those that wait
            slot.state = s.step(slot.state, s.REPLAY)
        waiting = {slot for slot in self._post if not slot.failed} | set(counts)
        self._post = deque(sorted(waiting, key=lambda slot: slot.order))

    def _settle(self, slot: _Slot, now_ns: int) -> None:
        slot.flying -= 1
        if slot.state == s.WAIT and not slot.flying:
            self._finish(slot, now_ns)

    def _finish(self, slot: _Slot, now_ns: int) -> None:
        slot.state = s.step(slot.state, s.SETTLED)
        if slot.address.id == self.wanted_id and slot.write not in self.latency:
            self.latency[slot.write] = max(0, now_ns - slot.born_ns), slot.address
            self.interrupts |= 1 << IRQ_LATENCY_DONE
        self._done(slot)
