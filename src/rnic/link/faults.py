"""A faulty network in front of any link: seeded loss, duplication, reordering, corruption and delay, and scripts.

Each packet of each direction is judged on its own, first by the rules of the script in their order, then by the
rates. The faults depend only on the packets, the seed and the clock, so equal runs get equal faults. Bursts without
faults pass unchanged; in other bursts, consecutive packets without faults stay together, like segments from a hardware
NIC.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rnic.link.base import Link
from rnic.link.fault_events import FaultEvent
from rnic.link.fault_rules import DIRECTIONS, UNCOVERED_BYTE, Counts, PacketFacts, Rule, mix, pack_rules
from rnic.link.fault_script import HOLD_NS, parse_script
from rnic.link.middleware import Middleware
from rnic.link.packets import cut_received, cut_to_send, joined, kept, marked_received, marked_to_send
from rnic.state.fault_table import MAX_HELD
from rnic.trace.counters import Counters
from rnic.trace.tracer import NullTracer, Tracer
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow

_MAX_ROUNDS = 1_024
"""Most empty rounds of one ``receive`` before it returns."""

_ACTIONS = ("drop", "corrupt", "duplicate", "delay", "reorder", "mark")
_Faults = Mapping[str, Mapping[str, int | None]]
"""Faults of one packet: actions, each with its parameters."""
_Burst = TypeVar("_Burst", TxBurst, RxBurst)


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Probabilities for each packet of one direction, 0 to 1; several faults may apply to the same packet.

    Delays are drawn evenly from ``delay_ns`` (low, high). A reordered packet waits for 1 to ``behind`` packets to
    overtake it, but no longer than ``hold_ns``.

    Raises:
        ValueError: a probability outside 0 to 1, or a range that is empty or negative.
    """

    drop: float = 0.0
    corrupt: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    reorder: float = 0.0
    mark: float = 0.0
    delay_ns: tuple[int, int] = (10_000, 1_000_000)
    behind: int = 4
    hold_ns: int = HOLD_NS

    def __post_init__(self) -> None:
        for name in _ACTIONS:
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"fault rate {name}={value!r} is not a probability: give 0 to 1")
        low, high = self.delay_ns
        if not 0 <= low <= high:
            raise ValueError(f"fault rate delay_ns={self.delay_ns!r} is not a range: give (low, high) in nanoseconds")
        if self.behind < 1:
            raise ValueError(f"fault rate behind={self.behind!r} lets nothing overtake: give 1 or more")
        if self.hold_ns < 0:
            raise ValueError(f"fault rate hold_ns={self.hold_ns!r} lies in the past: give 0 or more")


NO_FAULTS = FaultRates()
_NEVER = 1e18


class FaultyLink(Middleware):
    """Drops, corrupts and delays packets on their way to and from ``inner``.

    Args:
        inner: the underlying link.
        clock: the time in nanoseconds, for delays; the runtime's own or a virtual one.
        rng: seeds one generator for each direction, so that the directions do not disturb each other.
        tx: rates for packets that this NIC sends.
        rx: rates for packets that it receives.
        script: rules as :mod:`rnic.link.fault_script` defines them.
        tracer: receives every fault, at stage ``"fault"``.
        counts: counters of the rules, which other links may share.
        seed: 64 bits for rules with a probability and no seed of their own; drawn from ``rng`` by default.
        by_clock: false to leave out the script's timed events, which another link of the device has.

    Counters are named ``fault_tx_drop``, ``fault_rx_delay`` and so on; ``fault_tx_full`` and ``fault_rx_full`` count
    packets lost because too many were held back already.

    Raises:
        ValueError: a bad rule, in one line.
    """

    def __init__(
        self,
        inner: Link,
        *,
        clock: Callable[[], int],
        rng: random.Random,
        tx: FaultRates = NO_FAULTS,
        rx: FaultRates = NO_FAULTS,
        script: Sequence[Mapping[str, object]] = (),
        tracer: Tracer | None = None,
        counts: Counts | None = None,
        seed: int | None = None,
        by_clock: bool = True,
    ) -> None:
        super().__init__(inner)
        self._clock = clock
        judges = []
        seeds = {direction: rng.getrandbits(64) for direction in DIRECTIONS}
        self.script = script
        self.counts = Counts() if counts is None else counts
        """Counters of the rules."""
        self._by_rules_alone = tx == rx == NO_FAULTS and tracer is None
        self.seed = mix(*seeds.values()) if seed is None else seed
        rules, timed = parse_script(script, self.seed, self.counts)
        self.rules = rules
        self.timed = timed if by_clock else []
        self.has_events_by_packets = any(rule.event is not None for rule in rules)
        """True if packets trigger events of the device."""
        self.has_events = bool(self.timed) or self.has_events_by_packets
        """True if the script has any events of the device (:mod:`rnic.runtime.faults` handles them)."""
        for direction, rates in (("tx", tx), ("rx", rx)):
            own = random.Random(seeds[direction])
            comes_back = self._comes_back if direction == "tx" else None
            judges.append(_Judge(direction, rules, rates, own, inner.counters, tracer or NullTracer(), comes_back))
        self.struck: Callable[[FaultEvent], None] = lambda event: None
        """Called with each event of the script that a packet triggers."""
        self.corrupted: Callable[[bytes], None] | None = None
        """Called with each packet that was corrupted or truncated, from the BTH on."""
        for judge in judges:
            judge.struck = self._struck
            judge.corrupted = self._corrupted
        self._tx = _TxLane(judges[0])
        self._rx = _RxLane(judges[1])
        self._ready: deque[RxBurst] = deque()

    def set_rates(self, *, tx: FaultRates = NO_FAULTS, rx: FaultRates = NO_FAULTS) -> None:
        """Use these rates from now on; packets already held back are released as planned."""
        self._by_rules_alone &= tx == rx == NO_FAULTS
        self._tx.judge.set_rates(tx)
        self._rx.judge.set_rates(rx)

    def table(self) -> bytes | None:
        """Return the table with which the engine judges like this link; ``None`` if it cannot."""
        if self.has_events or not self._by_rules_alone:
            return None
        try:
            return pack_rules(self.rules)
        except ValueError:
            return None

    def _struck(self, event: FaultEvent) -> None:
        self.struck(event)

    def _corrupted(self, packet: bytes) -> None:
        if self.corrupted is not None:
            self.corrupted(packet)

    def _comes_back(self, flow: Flow) -> bool:
        """Return whether packets sent on this path arrive at this device."""
        return flow.dst == self.address and flow.dport == self.port

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Judge the packets; pass on those that remain, and held ones that are due."""
        now_ns = self._clock()
        out = self._tx.release(now_ns)
        for burst in bursts:
            self._tx.take(burst, now_ns, out)
        if out:
            self.inner.send(out)

    def judge(self, bursts: Sequence[RxBurst]) -> list[RxBurst]:
        """Judge packets that were not received by :meth:`receive`; return those that pass now."""
        if self._rx.idle:
            return list(bursts)
        judged: list[RxBurst] = []
        for burst in bursts:
            self._rx.take(burst, self._clock(), judged)
        return judged

    def receive(self, limit: int) -> list[RxBurst]:
        """See :meth:`rnic.link.base.Link.receive`; packets to send that are due are sent, too."""
        now_ns = self._clock()
        due = self._tx.release(now_ns)
        if due:
            self.inner.send(due)
        ready = self._ready
        if self._rx.idle and not ready:
            return self.inner.receive(limit)
        ready += self._rx.release(now_ns)
        for _ in range(_MAX_ROUNDS):
            if len(ready) >= limit:
                break
            arrived = self.inner.receive(limit - len(ready))
            judged: list[RxBurst] = []
            for burst in arrived:
                self._rx.take(burst, now_ns, judged)
            ready += judged
            # a second call would reuse the memory of bursts that the first one returned
            if judged or not arrived:
                break
        out = [ready.popleft() for _ in range(min(limit, len(ready)))]
        if ready:
            self._ready = deque(kept(burst) for burst in ready)
        return out

    def next_deadline_ns(self) -> int | None:
        """Return when the next packet held back here or in the inner link is due."""
        if self._ready:
            return self._clock()
        first = self.inner.next_deadline_ns()
        for deadline in (self._tx.deadline_ns(), self._rx.deadline_ns()):
            if deadline is not None and (first is None or deadline < first):
                first = deadline
        return first


class _Judge:
    """Decides the faults of each packet of one direction."""

    def __init__(
        self,
        direction: str,
        rules: list[Rule],
        rates: FaultRates,
        rng: random.Random,
        counters: Counters,
        tracer: Tracer,
        comes_back: Callable[[Flow], bool] | None,
    ) -> None:
        self.rng = rng
        self._rngs = {action: random.Random(rng.getrandbits(64)) for action in _ACTIONS}
        """One generator per action, so that faults do not depend on how packets share bursts."""
        self._direction = direction
        self._rules = rules
        self.set_rates(rates)
        self._counters = counters
        self._tracer = tracer
        self._comes_back = comes_back
        self.struck: Callable[[FaultEvent], None] = lambda event: None
        self.corrupted: Callable[[bytes], None] = lambda packet: None

    def set_rates(self, rates: FaultRates) -> None:
        """Use these rates from now on."""
        self.idle = not self._rules and rates == NO_FAULTS
        self._rates = rates
        self._gaps = {action: self._gap(action, rate) for action in _ACTIONS if (rate := getattr(rates, action))}
        """For each action with a rate above 0, the number of packets before its next one."""

    def verdicts(self, burst: _Burst, lane: _Lane[_Burst], now_ns: int) -> list[_Faults]:
        """Return the faults of each packet of a burst, usually none; the script's take precedence over those of the
        same kind."""
        segment = burst.segment
        count = -(-burst.length // segment)
        drawn = self._drawn(count)
        verdicts: list[_Faults] = [{}] * count
        if not self._rules and not drawn:
            return verdicts
        data = lane.data(burst)
        comes_back = self._comes_back is not None and self._comes_back(burst.flow)
        for at in range(count) if self._rules else sorted(drawn):
            packet = data[at * segment : (at + 1) * segment]
            facts = PacketFacts(packet, self._direction, burst.flow, comes_back)
            verdicts[at] = self._verdict(facts, drawn.get(at, {}), now_ns)
        return verdicts

    def _verdict(self, facts: PacketFacts, drawn: _Faults, now_ns: int) -> _Faults:
        struck = {}
        for rule in self._rules:
            if rule.strikes(facts):
                if rule.event is None:
                    struck[rule.action] = rule.struck(facts.length)
                else:
                    self.struck(rule.event)
        faults = {**drawn, **struck}
        for action, told in faults.items():
            self._counters.bump(f"fault_{self._direction}_{action}")
            self._tracer.event(
                now_ns,
                "fault",
                max(facts.dqpn, 0),
                direction=self._direction,
                action=action,
                opcode=facts.name,
                psn=facts.psn,
                **{key: value for key, value in told.items() if value is not None},
            )
        return faults

    def overflowed(self) -> None:
        """Count a packet that could not be held back because too many are."""
        self._counters.bump(f"fault_{self._direction}_full")

    def _gap(self, action: str, rate: float) -> int:
        """Return the number of packets before the next faulted one: one draw replaces a draw per packet."""
        return int(min(math.log(1 - self._rngs[action].random()) / math.log1p(-rate), _NEVER)) if rate < 1 else 0

    def _drawn(self, count: int) -> dict[int, dict[str, Mapping[str, int | None]]]:
        """Return the faults that the rates give the next ``count`` packets, by packet index."""
        struck: dict[int, dict[str, Mapping[str, int | None]]] = {}
        for action, gap in self._gaps.items():
            while gap < count:
                struck.setdefault(gap, {})[action] = self._told(action)
                gap += 1 + self._gap(action, getattr(self._rates, action))
            self._gaps[action] = gap - count
        return struck

    def _told(self, action: str) -> Mapping[str, int | None]:
        rates, rng = self._rates, self._rngs[action]
        if action == "corrupt":
            return {"byte": None}
        if action == "duplicate":
            return {"delay_ns": 0}
        if action == "delay":
            return {"delay_ns": rng.randint(*rates.delay_ns)}
        if action == "reorder":
            return {"behind": rng.randint(1, rates.behind), "hold_ns": rates.hold_ns}
        return {}


class _Held(Generic[_Burst]):
    """A reordered packet that waits for others to overtake it."""

    __slots__ = ("behind", "deadline_ns", "packet")

    def __init__(self, packet: _Burst, behind: int, deadline_ns: int) -> None:
        self.packet: _Burst = packet
        self.behind = behind
        self.deadline_ns = deadline_ns


class _Lane(Generic[_Burst]):
    """One direction: judges bursts, and has the held packets."""

    def __init__(self, judge: _Judge) -> None:
        self.judge = judge
        self._delayed: list[tuple[int, int, _Burst]] = []
        self._held: list[_Held[_Burst]] = []
        self._serial = 0

    @property
    def idle(self) -> bool:
        """True if every burst passes as it is."""
        return self.judge.idle and not self._held and not self._delayed

    def data(self, burst: _Burst) -> memoryview:
        """Return the payloads of a burst, contiguous."""
        raise NotImplementedError

    def cut(self, burst: _Burst, firsts: Sequence[int]) -> list[_Burst]:
        """Return the parts of a burst that start with the packets ``firsts``; there may be more parts."""
        raise NotImplementedError

    def count(self, part: _Burst) -> int:
        """Return the number of packets of a part."""
        raise NotImplementedError

    def own(self, packet: _Burst) -> _Burst:
        """Return a packet that stays valid."""
        raise NotImplementedError

    def with_data(self, packet: _Burst, data: bytearray) -> _Burst:
        """Return the packet with other data, which is not longer."""
        raise NotImplementedError

    def marked(self, packet: _Burst) -> _Burst:
        """Return the packet with ECN CE."""
        raise NotImplementedError

    def take(self, burst: _Burst, now_ns: int, out: list[_Burst]) -> None:
        """Judge a burst and append the packets that pass to ``out``."""
        if self.judge.idle:
            out.append(burst)
            return
        verdicts = self.judge.verdicts(burst, self, now_ns)
        if not self._held and not any(verdicts):
            out.append(burst)
            return
        # packets that overtake a reordered one are counted, so pass them one by one
        alone = bool(self._held) or any("reorder" in verdict for verdict in verdicts)
        firsts = [at for at, verdict in enumerate(verdicts) if alone or not at or verdict or verdicts[at - 1]]
        at = 0
        for part in self.cut(burst, firsts):
            self._apply(part, verdicts[at], now_ns, out)
            at += self.count(part)

    def _apply(self, packet: _Burst, faults: _Faults, now_ns: int, out: list[_Burst]) -> None:
        if "drop" in faults:
            return
        if "corrupt" in faults:
            packet = self._corrupted(packet, faults["corrupt"])
        if "mark" in faults:
            packet = self.marked(packet)
        if "truncate" in faults:
            left = bytearray(self.data(packet)[: faults["truncate"]["bytes"]])
            self.judge.corrupted(bytes(left))
            packet = self.with_data(packet, left)
        if "duplicate" in faults:
            later = faults["duplicate"]["delay_ns"]
            if not later:
                self._pass(packet, out)
            elif self._room():
                self._delay(self.own(packet), now_ns + later)
        if ("delay" in faults or "reorder" in faults) and not self._room():
            return
        if "delay" in faults:
            self._delay(self.own(packet), now_ns + (faults["delay"]["delay_ns"] or 0))
        elif "reorder" in faults:
            told = faults["reorder"]
            self._held.append(_Held(self.own(packet), told["behind"] or 1, now_ns + (told["hold_ns"] or 0)))
        else:
            self._pass(packet, out)

    def _pass(self, packet: _Burst, out: list[_Burst]) -> None:
        out.append(packet)
        waiting = []
        for held in self._held:
            held.behind -= 1
            if held.behind:
                waiting.append(held)
            else:
                out.append(held.packet)
        self._held = waiting

    def _room(self) -> bool:
        """Return whether another packet may be held back; if not, count it as lost."""
        if len(self._delayed) + len(self._held) < MAX_HELD:
            return True
        self.judge.overflowed()
        return False

    def _delay(self, packet: _Burst, due_ns: int) -> None:
        # the serial number preserves the order of packets due at the same time
        heapq.heappush(self._delayed, (due_ns, self._serial, packet))
        self._serial += 1

    def _corrupted(self, packet: _Burst, told: Mapping[str, int | None]) -> _Burst:
        data = bytearray(self.data(packet))
        at, xor = told["byte"], told.get("xor") or 0
        if at is None:
            rng = self.judge.rng
            at = rng.randrange(max(1, len(data) - 1))
            at += at >= UNCOVERED_BYTE
            xor = 1 << rng.randrange(8)
        if -len(data) <= at < len(data):
            data[at] ^= xor
        self.judge.corrupted(bytes(data))
        return self.with_data(packet, data)

    def release(self, now_ns: int) -> list[_Burst]:
        """Return the packets whose delay or wait is over."""
        out: list[_Burst] = []
        if not self._delayed and not self._held:
            return out
        while self._delayed and self._delayed[0][0] <= now_ns:
            out.append(heapq.heappop(self._delayed)[2])
        if self._held:
            out += [held.packet for held in self._held if held.deadline_ns <= now_ns]
            self._held = [held for held in self._held if held.deadline_ns > now_ns]
        return out

    def deadline_ns(self) -> int | None:
        """Return the time at which :meth:`release` has packets to return, unless other packets come first."""
        if not self._held and not self._delayed:
            return None
        deadlines = [held.deadline_ns for held in self._held]
        if self._delayed:
            deadlines.append(self._delayed[0][0])
        return min(deadlines, default=None)


class _TxLane(_Lane[TxBurst]):
    def data(self, burst: TxBurst) -> memoryview:
        buffers = burst.buffers
        return memoryview(buffers[0] if len(buffers) == 1 else joined(burst))

    def cut(self, burst: TxBurst, firsts: Sequence[int]) -> list[TxBurst]:
        return cut_to_send(burst, firsts)

    def count(self, part: TxBurst) -> int:
        return part.count

    def own(self, packet: TxBurst) -> TxBurst:
        return packet

    def with_data(self, packet: TxBurst, data: bytearray) -> TxBurst:
        return TxBurst(packet.flow, [data], len(data), packet.count, len(data))

    def marked(self, packet: TxBurst) -> TxBurst:
        return marked_to_send(packet)


class _RxLane(_Lane[RxBurst]):
    def data(self, burst: RxBurst) -> memoryview:
        return burst.buf[: burst.length]

    def cut(self, burst: RxBurst, firsts: Sequence[int]) -> list[RxBurst]:
        return cut_received(burst, firsts)

    def count(self, part: RxBurst) -> int:
        return max(1, -(-part.length // max(1, part.segment)))

    def own(self, packet: RxBurst) -> RxBurst:
        return kept(packet)

    def with_data(self, packet: RxBurst, data: bytearray) -> RxBurst:
        return kept(packet, data)

    def marked(self, packet: RxBurst) -> RxBurst:
        return marked_received(packet)
