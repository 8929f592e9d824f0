"""The bridge: turn AXI transactions into RDMA work requests, and completions into responses. Sans I/O.

Each transaction takes one of a bounded number of slots, with 4 KB of staging memory. A read is one RDMA READ; a write
is one RDMA WRITE for each run of strobed bytes. B and R are given once the remote has acknowledged. Responses of one ID
keep the order of their addresses; there is no order between different IDs, nor between reads and writes (IHI 0022
A5.3). The beats of one read are not interleaved.

When a work request fails, the queue pair fails, and with it all later requests. The owner asks the remote up to which
PSN it executed. :meth:`Bridge.resume` then settles each request exactly: executed ones complete, a refused one gets an
error response, and the rest are posted again on the new connection.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from rnic.paxi import slots as s
from rnic.paxi.axi import BUS_BITS, Address, ReadBeat, WriteBeat, WriteResponse, beat_bytes, fault, runs, span
from rnic.spec.axi import BOUNDARY_BYTES, Burst, Resp
from rnic.spec.psn import psn_add, psn_count, psn_diff
from rnic.trace.counters import Counters

MAX_SLOTS: Final = 256
"""Most slots of each direction."""
MAX_RECOVERIES: Final = 3
"""Consecutive connections that may break without progress."""

UP: Final = 0
BROKEN: Final = 1
"""The connection is broken: nothing is posted until it is restored."""
DOWN: Final = 2
"""The remote is lost: every transaction gets SLVERR."""

SUCCESS: Final = 0
REFUSED: Final = 1
"""The remote's check of key, rights and range failed."""
FAILED: Final = 2
"""The remote or this end could not execute the request."""
UNKNOWN: Final = 3
"""No response, or flushed: the remote may or may not have executed the request."""

OKAY, SLVERR, DECERR = (each.value for each in (Resp.OKAY, Resp.SLVERR, Resp.DECERR))

IRQ_RETRY_ERROR: Final = 1
IRQ_LATENCY_DONE: Final = 3
IRQ_RETRY_CLEARED: Final = 10
"""Bits of the interrupt indicator."""


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """Parameters of a bridge.

    Raises:
        ValueError: a value is out of range.
    """

    size: int = 0
    """Bytes of the window; 0 for the size of the remote's memory."""
    data_bits: int = 512
    """Width of the bus in bits: a power of two, 8 to 1024."""
    base: int = 0
    """Bus address of the window's first byte."""
    remote: int = 0
    """Address of the window's first byte at the remote."""
    read_slots: int = 16
    write_slots: int = 16
    """Outstanding transactions of each direction, 1 to 256 (004 7.4 has 16)."""
    requests: int = 64
    """Most outstanding work requests, 1 to 32767."""

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
        """Staging memory of all slots, in bytes."""
        return (self.read_slots + self.write_slots) * BOUNDARY_BYTES


class Request(NamedTuple):
    """A work request to be posted."""

    serial: int
    write: bool
    """True for RDMA WRITE, false for READ."""
    offset: int
    """Offset of its bytes in the staging memory."""
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
        """Beats of W taken or of R given so far."""
        self.resp = OKAY
        self.failed = False
        """True once a piece failed: no other piece is posted."""
        self.pieces: deque[tuple[int, int]] = deque()
        """(first byte, end) on the bus of each piece that no work request carries yet."""
        self.flying = 0
        """Outstanding work requests."""
        self.order = 0
        self.born_ns = 0


class _Flight:
    """An outstanding work request."""

    __slots__ = ("end", "first", "outcome", "packets", "psn", "slot")

    def __init__(self, slot: _Slot, first: int, end: int, psn: int, packets: int) -> None:
        self.slot = slot
        self.first = first
        self.end = end
        self.psn = psn
        self.packets = packets
        self.outcome: int | None = None


class _Direction:
    """Slots of reads or of writes, and the order of their responses."""

    def __init__(self, first: int, count: int, write: bool) -> None:
        self.free = deque(_Slot((first + index) * BOUNDARY_BYTES, write) for index in range(count))
        self.by_id: dict[int, deque[_Slot]] = {}
        """Slots of each ID, oldest first."""
        self.ready: deque[_Slot] = deque()
        """Slots whose responses may be given now, in order of readiness."""

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
        """Free the slot at the head of ``ready``, whose last beat was given."""
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

    The master's side offers addresses and data while :attr:`can_read`, :attr:`can_write` and :attr:`can_data` are true,
    and takes :meth:`read_beat` and :meth:`write_response`. The queue pair's side posts each :meth:`next_request` and
    reports completions in posting order with :meth:`complete`.

    Args:
        config: its parameters.
        staging: ``config.staging_bytes`` of writable memory, the local buffer of work requests.
        counters: counters to use; names begin with ``paxi_``.
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
        """Interrupt indicator: bits of events since they were last cleared."""
        self.self_recover = True
        """True to reconnect automatically after a lost connection."""
        self.wanted_id: int | None = None
        """ID whose next read and write are timed."""
        self.latency: dict[bool, tuple[int, Address]] = {}
        """Nanoseconds and address of the timed transaction, by direction (true for write)."""
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
        """WREADY: a write burst waits for data. Data must follow their addresses."""
        return bool(self._filling)

    @property
    def idle(self) -> bool:
        """True if no transaction is outstanding."""
        config = self.config
        return len(self._reads.free) == config.read_slots and len(self._writes.free) == config.write_slots

    @property
    def waiting(self) -> bool:
        """True if a transaction waits for the remote."""
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
        """Take a beat of W for the oldest write with incomplete data. Only while :attr:`can_data`.

        WLAST ends the burst. If AWLEN implies another last beat, or a strobe is set outside the beat's lanes, the burst
        gets SLVERR and nothing of it is written.
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
        """Return the next beat of R, which the master must take; ``None`` if none is ready."""
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
        """Return the next B, which the master must take; ``None`` if none is ready."""
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
        # the bus decodes the address of each beat; bytes beyond the window's end read 0 and ignore writes
        first, end = span(address)
        last = max(first, end - (1 << address.size))
        if not (self.config.base <= first and last < self._limit):
            self._fail(slot, DECERR)
        elif self.link == DOWN:
            self._fail(slot, SLVERR)
        return slot

    def _refuse(self, slot: _Slot, why: str) -> None:
        """Refuse a burst with SLVERR."""
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
        if address.burst == Burst.FIXED and pieces:
            # all beats of a FIXED burst access the same bytes; the last write of a byte wins, so write the union
            written = sum((1 << end - container) - (1 << first - container) for first, end in pieces)
            pieces.clear()
            pieces += [(container + start, container + stop) for start, stop in runs(written | beat.strobe)]
            for start, stop in runs(beat.strobe):
                self._staging[at + start : at + stop] = beat.data[start:stop]
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
        """True if every work request has completed, successfully or not."""
        return self._flying == 0

    @property
    def pending(self) -> int:
        """Number of outstanding work requests."""
        return self._flying

    @property
    def hopeless(self) -> bool:
        """True if the connection is broken for good: only :meth:`abandon` is left."""
        return self._give_up or self._strandings >= MAX_RECOVERIES

    def connected(self, psn: int, mtu: int) -> None:
        """Start on a ready queue pair whose first packet has ``psn`` and whose path MTU is ``mtu`` bytes."""
        self._psn, self._mtu = psn, mtu
        self.link = UP
        if self._lost:
            self._lost = False
            self.interrupts |= 1 << IRQ_RETRY_CLEARED

    def next_request(self) -> Request | None:
        """Return the next request to post; ``None`` if there is none or the limit of requests is reached."""
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
        """Complete the work request ``serial``: ``SUCCESS``, ``REFUSED``, ``FAILED`` or ``UNKNOWN``."""
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
        """Break the connection (soft reset); once drained, every outstanding transaction gets SLVERR.

        Does nothing while the link is down, when no transaction is outstanding.
        """
        if self.link != DOWN:
            self.link = BROKEN
            self._give_up = True

    def resume(self, expected_psn: int, fault: bool, now_ns: int = 0) -> None:
        """Settle outstanding requests by the remote's report; :meth:`connected` then posts the rest.

        Only while :attr:`drained`.

        Args:
            expected_psn: the PSN that the remote's responder expected when it was stopped.
            fault: true if the remote refused the request with that PSN.
        """
        assert self.drained, "work requests are still outstanding"
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
        """Give up the lost remote: answer every transaction with SLVERR until :meth:`connected`."""
        assert self.drained, "work requests are still outstanding"
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
        """Queue the pieces to be posted again ahead of unposted ones, oldest slot first."""
        counts: dict[_Slot, int] = {}
        for slot in again:
            counts[slot] = counts.get(slot, 0) + 1
        for slot, count in counts.items():
            slot.pieces.rotate(count)  # they were appended after the waiting ones
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
