"""An AXI4 memory and a protocol checker, independent of simulators: they get the wires at each clock edge.

:mod:`rnic.gateware.sim_bus` connects them to Amaranth's simulator, the Verilog benches to cocotb. :class:`AxiSlave`
uses every freedom of an AXI slave: it may require data before it takes the address, both in one cycle, or either alone;
it may reorder responses of different ids and interleave their read beats; and its latency is configurable.
:class:`AxiChecker` asserts AXI's rules for both sides.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from rnic.spec.axi import BOUNDARY_BYTES, Burst, Resp

ORDERS = ("address_first", "data_first", "together", "any")
"""When the slave takes beats of AW and W: data only after its address; an address only after all its data; an address
only in a cycle with valid data; in any order."""


class BusError(Exception):
    """Violation of a bus rule: a bug of the gateware or of a model, not of its user."""


class Memory(Protocol):
    """Memory that an AXI4 memory model reads and writes; an address outside raises ``LookupError``."""

    def read(self, address: int, count: int) -> bytes:
        """Return ``count`` bytes from ``address``."""

    def write(self, address: int, data: bytes) -> None:
        """Store ``data`` at ``address``."""


class Stalls:
    """Decide in each cycle whether a channel stalls, with probability ``rate``."""

    def __init__(self, rng: random.Random | None = None, rate: float = 0.0) -> None:
        self.rng = rng
        self.rate = rate

    def __call__(self) -> bool:
        """Return whether the channel stalls in this cycle."""
        return self.rng is not None and self.rate > 0 and self.rng.random() < self.rate


class Address(NamedTuple):
    """A beat of AR or AW; ``beats`` is the length plus one."""

    address: int
    beats: int
    size: int
    burst: int
    ident: int


class Data(NamedTuple):
    """A beat of W."""

    data: int
    strobe: int
    last: int


class Read(NamedTuple):
    """A beat of R."""

    data: int
    response: int
    ident: int
    last: int


class Answer(NamedTuple):
    """A beat of B."""

    ident: int
    response: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing of a memory. ``latency``: cycles from an address, or a burst's last data, to the response.

    ``depth``: most outstanding bursts. ``mix_ids``: reorder responses of different ids and interleave their read beats;
    otherwise all responses are in order.
    """

    latency: int = 0
    order: str = "any"
    depth: int = 64
    mix_ids: bool = False


@dataclass(frozen=True, slots=True)
class Trouble:
    """Random faults of a memory.

    ``errors``: probability that a beat gets SLVERR or DECERR; a read beat then has random data, and a write beat may
    still be stored. ``silences``: probability, in each cycle, that reads or writes stop for up to ``longest`` cycles.
    """

    errors: float = 0.0
    silences: float = 0.0
    longest: int = 200


@dataclass(slots=True)
class _ReadBurst:
    due: int
    ident: int
    beats: deque[tuple[int, int]]


@dataclass(slots=True)
class _WriteBurst:
    ident: int
    address: int
    beats: int
    worst: int = Resp.OKAY.value


class AxiSlave:
    """A memory behind an AXI4 port of ``lanes`` bytes. Its attributes are the signals to drive until the next edge."""

    def __init__(
        self, lanes: int, memory: Memory, stalls: Stalls | None = None, timing: Timing | None = None, seed: int = 0
    ) -> None:
        self.lanes = lanes
        self.memory = memory
        self.stalls = stalls or Stalls()
        self.timing = timing or Timing()
        if self.timing.order not in ORDERS:
            raise ValueError(f"order={self.timing.order!r}: one of {', '.join(ORDERS)}")
        self.faults: dict[tuple[str, int], int] = {}
        """Responses to inject: ("read" or "write", page number) -> response."""
        self.silent: set[str] = set()
        """"read" or "write" while the memory does not respond to it."""
        self.trouble = Trouble()
        self.moved = 0
        """Beats read and written."""
        self.last_stored = 0
        """Edge of the last stored data, counted from the first."""
        self.most_reads = 0
        """Most outstanding read bursts so far."""
        self.arready = self.awready = self.wready = False
        self.r: Read | None = None
        self.b: Answer | None = None
        self._rng = random.Random(seed)
        self._luck = random.Random(seed + 1)
        self._silent_until = {"read": 0, "write": 0}
        self._now = 0
        self._reads: deque[_ReadBurst] = deque()
        self._addresses: deque[_WriteBurst] = deque()
        self._data: deque[Data] = deque()
        self._bursts_of_data = 0
        self._answers: deque[tuple[int, Answer]] = deque()

    def edge(self, aw: Address | None, w: Data | None, bready: bool, ar: Address | None, rready: bool) -> None:
        """Take the master's signals (``None`` if valid was low) at a rising edge, and update this slave's signals."""
        self._now += 1
        self._take(aw, w, bready, ar, rready)
        self._store()
        self._drive(aw, w)

    def _take(self, aw: Address | None, w: Data | None, bready: bool, ar: Address | None, rready: bool) -> None:
        if self.r is not None and rready:
            self.moved += 1
            self.r = None
        if self.b is not None and bready:
            self.b = None
        if ar is not None and self.arready:
            self._reads.append(_ReadBurst(self._now + self.timing.latency, ar.ident, self._fetch(ar)))
            self.most_reads = max(self.most_reads, len(self._reads))
        if aw is not None and self.awready:
            self._addresses.append(_WriteBurst(aw.ident, aw.address & -self.lanes, aw.beats))
        if w is not None and self.wready:
            self.moved += 1
            self.last_stored = self._now
            self._data.append(w)
            self._bursts_of_data += w.last

    def _store(self) -> None:
        """Store data whose address is known."""
        while self._addresses and self._data:
            burst, beat = self._addresses[0], self._data.popleft()
            burst.beats -= 1
            if bool(beat.last) != (burst.beats == 0):
                raise BusError(f"WLAST={beat.last} with {burst.beats} beats to go")
            burst.worst = max(burst.worst, self._write(burst.address, beat.data, beat.strobe))
            burst.address += self.lanes
            if beat.last:
                self._bursts_of_data -= 1
                self._answers.append((self._now + self.timing.latency, Answer(burst.ident, burst.worst)))
                self._addresses.popleft()

    def _drive(self, aw: Address | None, w: Data | None) -> None:
        reading, writing = self._answers_now("read"), self._answers_now("write")
        order, depth, stalls = self.timing.order, self.timing.depth, self.stalls
        if self.r is None and reading and not stalls():
            self.r = self._next_read()
        if self.b is None and writing and not stalls():
            self.b = self._next_answer()
        self.arready = reading and len(self._reads) < depth and not stalls()
        room = writing and len(self._addresses) + len(self._answers) < depth
        if order == "data_first":
            self.awready = room and self._bursts_of_data > len(self._addresses) and not stalls()
            self.wready = writing and self._bursts_of_data < 2 and not stalls()
        elif order == "together":
            # an address is taken beside data, never before any were shown
            unaddressed = not self._addresses
            both = aw is not None and w is not None and not self.awready
            self.awready = self.wready = room and unaddressed and both and not stalls()
            if self._addresses:
                self.wready = writing and not stalls()
        elif order == "address_first":
            self.awready = room and not stalls()
            self.wready = writing and bool(self._addresses) and not stalls()
        else:
            self.awready = room and not stalls()
            self.wready = writing and len(self._data) < 4 and not stalls()

    def _answers_now(self, kind: str) -> bool:
        if self.trouble.silences and self._luck.random() < self.trouble.silences:
            self._silent_until[kind] = self._now + self._luck.randint(1, self.trouble.longest)
        return kind not in self.silent and self._now >= self._silent_until[kind]

    def _error_at_random(self) -> int | None:
        if self.trouble.errors and self._luck.random() < self.trouble.errors:
            return self._luck.choice((Resp.SLVERR, Resp.DECERR)).value
        return None

    def _next_read(self) -> Read | None:
        burst = _choose(self._reads, lambda each: each.ident, lambda each: each.due, self._now, self._mixer())
        if burst is None:
            return None
        data, response = burst.beats.popleft()
        if not burst.beats:
            self._reads.remove(burst)
        return Read(data, response, burst.ident, int(not burst.beats))

    def _next_answer(self) -> Answer | None:
        found = _choose(self._answers, lambda each: each[1].ident, lambda each: each[0], self._now, self._mixer())
        if found is None:
            return None
        self._answers.remove(found)
        return found[1]

    def _mixer(self) -> random.Random | None:
        return self._rng if self.timing.mix_ids else None

    def _fetch(self, burst: Address) -> deque[tuple[int, int]]:
        """Return (data, response) of each beat."""
        lanes, out = self.lanes, deque[tuple[int, int]]()
        base = burst.address & -lanes
        fault = self.faults.get(("read", burst.address // BOUNDARY_BYTES))
        for at in range(base, base + burst.beats * lanes, lanes):
            error = self._error_at_random()
            if error is not None:
                out.append((self._luck.getrandbits(lanes * 8), error))
                continue
            try:
                data = int.from_bytes(self.memory.read(at, lanes), "little")
                out.append((data, Resp.OKAY.value) if fault is None else (0, int(fault)))
            except LookupError:
                out.append((0, Resp.DECERR.value))
        return out

    def _write(self, at: int, data: int, strobe: int) -> int:
        """Store one beat; return the response."""
        fault = self.faults.get(("write", at // BOUNDARY_BYTES))
        if fault is not None:
            return int(fault)
        error = self._error_at_random()
        if error is not None and self._luck.random() < 0.5:
            return error
        raw, lane, lanes = data.to_bytes(self.lanes, "little"), 0, self.lanes
        try:
            while lane < lanes:
                if not strobe >> lane & 1:
                    lane += 1
                    continue
                end = lane
                while end < lanes and strobe >> end & 1:
                    end += 1
                self.memory.write(at + lane, raw[lane:end])
                lane = end
        except LookupError:
            return Resp.DECERR.value
        return Resp.OKAY.value if error is None else error


Entry = TypeVar("Entry")


def _choose(
    queue: deque[Entry],
    ident: Callable[[Entry], int],
    due: Callable[[Entry], int],
    now: int,
    rng: random.Random | None,
) -> Entry | None:
    """Return the first entry if it is due; with ``rng``, the first due entry of a random id."""
    if rng is None:
        return queue[0] if queue and due(queue[0]) <= now else None
    heads: dict[int, Entry] = {}
    for entry in queue:
        heads.setdefault(ident(entry), entry)
    ready = [entry for entry in heads.values() if due(entry) <= now]
    return rng.choice(ready) if ready else None


class Wires(NamedTuple):
    """All five channels at a rising edge; a payload is ``None`` if its valid is low."""

    aw: Address | None
    awready: bool
    w: Data | None
    wready: bool
    b: Answer | None
    bready: bool
    ar: Address | None
    arready: bool
    r: Read | None
    rready: bool


@dataclass
class AxiChecker:
    """Assert AXI4's rules for both sides, and the engine's guarantee of full-width INCR bursts.

    ``patience``: edges for which AWVALID may be high without any WVALID. It detects a master that waits for AWREADY
    while the slave waits for WVALID. 0 disables the check, for a master whose data comes from elsewhere.
    """

    lanes: int
    patience: int = 0
    edges: int = 0
    bursts: int = 0
    data_ahead: int = 0
    """Data beats taken before their address."""
    _held: dict[str, object] = field(default_factory=dict)
    _reads: dict[int, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    _addressed: deque[list[int]] = field(default_factory=deque)
    _data: deque[Data] = field(default_factory=deque)
    _answers: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _without_data: int = 0

    def edge(self, wires: Wires) -> None:
        """Check one rising edge out of reset.

        Raises:
            BusError: a rule is violated; the message names it.
        """
        self.edges += 1
        for name, payload, ready in (
            ("AW", wires.aw, wires.awready), ("W", wires.w, wires.wready), ("B", wires.b, wires.bready),
            ("AR", wires.ar, wires.arready), ("R", wires.r, wires.rready),
        ):  # fmt: skip
            before = self._held.get(name)
            if before is not None and payload != before:
                raise BusError(f"{name}VALID fell or its payload changed before {name}READY: {before} became {payload}")
            self._held[name] = None if payload is None or ready else payload
        for name, address in (("AR", wires.ar), ("AW", wires.aw)):
            if address is not None:
                self._burst(name, address)
        # responses first: those taken at this edge belong to earlier requests
        self._read_beat(wires)
        self._answer(wires)
        if wires.ar is not None and wires.arready:
            self._reads[wires.ar.ident].append(wires.ar.beats)
            self.bursts += 1
        if wires.aw is not None and wires.awready:
            self._addressed.append([wires.aw.address & -self.lanes, wires.aw.beats, wires.aw.ident])
            self.bursts += 1
        if wires.w is not None and wires.wready:
            self._data.append(wires.w)
            self.data_ahead += not self._addressed
        self._match()
        waits = wires.aw is not None and wires.w is None and not self._addressed and not self._data
        self._without_data = self._without_data + 1 if waits else 0
        if self.patience and self._without_data > self.patience:
            raise BusError(f"AWVALID for {self._without_data} cycles without WVALID: data wait for AWREADY")

    def quiet(self) -> None:
        """Check at the end of a test that nothing is outstanding.

        Raises:
            BusError: something is outstanding.
        """
        owed = sum(map(len, self._reads.values())), len(self._addressed), len(self._data), sum(self._answers.values())
        if any(owed):
            raise BusError(f"owed at the end: {owed} read bursts, write bursts, data beats, answers")

    def _burst(self, name: str, each: Address) -> None:
        if each.burst != Burst.INCR or 1 << each.size != self.lanes:
            raise BusError(f"{name}: burst type {each.burst}, size {each.size}; the engine sends full-width INCR")
        if not 1 <= each.beats <= 256:
            raise BusError(f"{name}: {each.beats} beats")
        end = (each.address & -self.lanes) + each.beats * self.lanes - 1
        if each.address // BOUNDARY_BYTES != end // BOUNDARY_BYTES:
            raise BusError(f"{name}: burst of {each.beats} beats at {each.address:#x} crosses a 4 KB boundary")

    def _read_beat(self, wires: Wires) -> None:
        if wires.r is None:
            return
        asked = self._reads[wires.r.ident]
        if not asked:
            raise BusError(f"RVALID with id {wires.r.ident}, which asked for nothing")
        if not wires.rready:
            return
        asked[0] -= 1
        if bool(wires.r.last) != (asked[0] == 0):
            raise BusError(f"RLAST={wires.r.last} with {asked[0]} beats to go")
        if wires.r.last:
            asked.popleft()

    def _answer(self, wires: Wires) -> None:
        if wires.b is None:
            return
        if not self._answers[wires.b.ident]:
            raise BusError(f"BVALID with id {wires.b.ident}, which is owed no answer")
        self._answers[wires.b.ident] -= bool(wires.bready)

    def _match(self) -> None:
        """Match data and addresses, in either order."""
        while self._addressed and self._data:
            burst, beat = self._addressed[0], self._data.popleft()
            burst[1] -= 1
            if bool(beat.last) != (burst[1] == 0):
                raise BusError(f"WLAST={beat.last} with {burst[1]} beats to go at {burst[0]:#x}")
            if beat.strobe >> self.lanes:
                raise BusError(f"WSTRB={beat.strobe:#x} on {self.lanes} lanes")
            if beat.last:
                self._answers[burst[2]] += 1
                self._addressed.popleft()
