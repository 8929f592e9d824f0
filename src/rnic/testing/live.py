"""Packets made from the state of a live connection: right, or right in all but one thing.

A :class:`LivePeer` is the far end of one queue pair. It knows what the queue pair expects next
(:mod:`rnic.testing.live_model`), so what it sends reaches the checks that come last, and it knows what each packet may
do. After every packet it holds the NIC to that: a right packet moves exactly its bytes, a bad one costs one drop
counter and nothing else, a refused one moves no byte. The same seed gives the same packets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from rnic.rings.queue_block import RQ_HEAD
from rnic.spec.drops import DropReason
from rnic.spec.opcodes import (
    RC,
    READ_RESPONSE_MIDDLE,
    UD,
)
from rnic.spec.psn import PSN_MASK, psn_diff
from rnic.spec.states import RTS
from rnic.testing.live_model import (
    ARENA,
    RECEIVES,
    REGION,
    RESULTS,
    WRITTEN,
    FindingError,
    LiveModel,
    Right,
    say,
    size_of,
)
from rnic.testing.malformed import FLAWS, Flaw, Verdict, frame
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow
from rnic.wire.packet import seal

_STEP_NS = 2_000
_LEAP_NS = 20_000_000
_POLL_STEPS = 32
_DRAWS = 4
_SWARM = (8, 25)
"""Packets of a swarm: at least, and fewer than."""
_DROPS = tuple(reason.value for reason in DropReason)


class LivePeer(LiveModel):
    """The far end of one queue pair of a NIC of its own.

    Args:
        service: ``"RC"``, ``"UC"`` or ``"UD"``.
        seed: of everything random.
        ipv6: addresses of that kind.
        seen: the link shows IPv4 idents; without, the ICRC of what is damaged may be right for another ident, so
            that no damage is tried.
        only: names of the flaws to try; all by default.
        swarms: how often, from 0 to 1, a burst is many packets, each wrong in one thing and none of them to be taken:
            several times as many packets a second.
        settings: further fields of :class:`~rnic.device.config.NicConfig`.

    ``counts`` says how many packets of each flaw were sent, ``""`` standing for none; ``digest`` is a CRC over
    everything that the NIC answered and stored, equal for equal seeds.
    """

    def __init__(
        self,
        service: str = "RC",
        seed: int = 1,
        *,
        ipv6: bool = False,
        seen: bool = True,
        only: frozenset[str] | None = None,
        swarms: float = 0.0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(service, seed, ipv6=ipv6, seen=seen, settings=settings)
        self.counts: dict[str, int] = {}
        damage = seen or ipv6
        flaws = [f for f in FLAWS if (only is None or f.name in only) and (damage or not f.damage)]
        self._flaws = _weighted(flaws)
        self._same_size = _weighted([flaw for flaw in flaws if flaw.keeps_size])
        swarm = [f for f in flaws if f.keeps_size and f.verdict is Verdict.DROPPED and f.flow is None]
        self._swarming = _weighted(swarm)
        self._swarms = swarms

    several = 0.15
    """How often a burst has more packets than one."""
    flawed = 0.7
    """How often something is wrong."""

    # -------------------------------------------------------------------------------------- stepping

    def run(self, packets: int) -> None:
        """Send at least so many packets. Raises :class:`FindingError`."""
        sent = 0
        while sent < packets:
            sent += self.step()

    def step(self) -> int:
        """One burst, mostly of one packet, often with one flaw; how many packets. Raises :class:`FindingError`."""
        rng = self.rng
        self.steps += 1
        if self.device_qp.ctx.state != RTS:
            self._connect()
        elif not self.steps % _POLL_STEPS:
            self._poll()
        self._post()
        self.now += _STEP_NS
        if rng.random() < 0.005:
            self.now += _LEAP_NS
        deadline = self.nic.next_deadline_ns()
        if deadline is not None and deadline <= self.now:
            self.nic.handle_timers(self.now)
        self._produce()
        if self.device_qp.ctx.state != RTS:
            return 0
        return self._send_swarm() if self._swarms and rng.random() < self._swarms else self._send()

    def _send_swarm(self) -> int:
        """Many packets in a burst, all made from the one that would be right and each wrong in one thing."""
        rng = self.rng
        made = self._burst(1)[0]
        flaws, weights = self._swarming
        drawn = rng.choices(flaws, cum_weights=weights, k=rng.randrange(*_SWARM)) if flaws else []
        swarm = [flaw for flaw in drawn if flaw.fits(self, made)]
        frames: list[bytes] = []
        for place, flaw in enumerate(swarm):
            fields: dict[str, Any] = {"dqpn": self.qp.qp_num, "psn": self.epsn, "ackreq": True, "solicited": False}
            fields |= made.fields
            frames.append(flaw.make(self, made, made.opcode, fields, self.flow, place))
            self.counts[flaw.name] = self.counts.get(flaw.name, 0) + 1
        if not frames:
            return 0
        before, drops = self._look(), self._drops()
        self._receive(self.flow, frames)
        names = ", ".join(flaw.name for flaw in swarm)
        if (dropped := self._drops() - drops) != len(swarm):
            self._find(f"{dropped} drops counted after {names} in {say(made)}")
        if self._look() != before:
            self._find(f"{before} became {self._look()} after {names} in {say(made)}")
        if self.arena != self.shadow:
            self._find(f"memory differs from {self._difference()} on after {names} in {say(made)}")
        return len(frames)

    def _send(self) -> int:
        rng = self.rng
        rights = self._burst(rng.randrange(2, 9) if rng.random() < self.several else 1)
        bad = len(rights)
        flaw: Flaw | None = None
        if rng.random() < self.flawed:
            bad = rng.randrange(len(rights))
            flaw = self._draw(rights[bad], len(rights) > 1)
            if flaw is None:
                bad = len(rights)
        flow = self.flow
        psn = self.epsn
        asks = rng.random() < 0.5
        frames: list[bytes] = []
        for place, made in enumerate(rights):
            fields: dict[str, Any] = {
                "dqpn": self.qp.qp_num,
                "psn": psn,
                "ackreq": asks,
                "solicited": not place and rng.random() < 0.1,
            }
            fields |= made.fields
            opcode = made.opcode
            psn = psn + made.packets & PSN_MASK
            if place != bad or flaw is None:
                frames.append(seal(frame(opcode, **fields), flow, place))
                continue
            if flaw.flow is not None:
                flow = flaw.flow(self)
            frames.append(flaw.make(self, made, opcode, fields, flow, place))
        checked = flaw is not None and flaw.verdict is Verdict.DROPPED
        before = self._look() if checked else ()
        drops = self._drops() if checked else 0
        self._receive(flow, frames)
        name = "" if flaw is None else flaw.name
        self.counts[name] = self.counts.get(name, 0) + len(frames)
        for made in rights[:bad]:
            self._judge_right(made)
        if flaw is None:
            self._check(name, rights[-1])
        else:
            self._judge(flaw, rights, bad, before, drops)
        return len(frames)

    def _draw(self, made: Right, several: bool) -> Flaw | None:
        """A flaw that fits the packet; in a burst, one that leaves its size. ``None`` where none was found soon."""
        if several and self._bits == UD:
            return None
        flaws, weights = self._same_size if several else self._flaws
        for flaw in self.rng.choices(flaws, cum_weights=weights, k=_DRAWS) if flaws else ():
            if flaw.fits(self, made):
                return flaw
        return None

    def _burst(self, length: int) -> list[Right]:
        """Up to ``length`` packets that are right one after another and of equal size."""
        rights: list[Right] = []
        model = self._model()
        while len(rights) < length:
            last = rights[-1] if rights else None
            if last is not None and last.response:
                request = next(request for request in self.requests if request.kind != "DATA")
                if request.got + 1 == request.packets:
                    break
                made = self._answer(request)
            else:
                made = self.right()
            if last is not None and (
                made.reads or made.response is not last.response or size_of(made) != size_of(last)
            ):
                break
            rights.append(made)
            if made.reads or (made.response and made.opcode != READ_RESPONSE_MIDDLE):
                break
            self._foresee(made)
        self._restore(model)
        return rights

    def _receive(self, flow: Flow, frames: list[bytes]) -> None:
        data = memoryview(b"".join(frames))
        ident = 0 if self._seen else None
        try:
            self.nic.receive(RxBurst(flow, data, len(frames[0]), len(data), ident), self.now)
        except Exception as error:
            raise FindingError(f"{self._where()}: receive raised {error!r} for {[f.hex() for f in frames]}") from error

    def _model(self) -> tuple[Any, ...]:
        return self.epsn, self.open, deque(self.posted), [request.got for request in self.requests]

    def _restore(self, model: tuple[Any, ...]) -> None:
        self.epsn, self.open, self.posted, got = model
        for request, count in zip(self.requests, got, strict=True):
            request.got = count

    def _foresee(self, made: Right) -> None:
        """Make the packet behind this one right too."""
        if made.response:
            next(request for request in self.requests if request.kind != "DATA").got += 1
            return
        if self._bits != UD:
            self.epsn = self.epsn + made.packets & PSN_MASK
            self.open = made.after
        if made.takes:
            self.posted.popleft()

    # --------------------------------------------------------------------------------------- judging

    def _look(self) -> tuple[int, ...]:
        """What a packet could move, but for memory."""
        qp = self.device_qp
        ctx = qp.ctx
        return (
            ctx.state,
            ctx.expected_psn,
            ctx.next_send_psn,
            ctx.last_acked_psn,
            ctx.rmsn,
            len(qp.responder.replies),
            qp.regs.get(RQ_HEAD),
            qp.cqs[0].tail,
        )

    def _drops(self) -> int:
        counters = self.nic.counters
        return sum(map(counters.__getitem__, _DROPS))

    def _judge_right(self, made: Right) -> None:
        if made.response and self.unsure:
            self._resync()
        else:
            self._accept(made)

    def _resync(self) -> None:
        """The NIC started READs again: any of its results may or may not have changed."""
        self.shadow[RESULTS : RESULTS + REGION] = self.arena[RESULTS : RESULTS + REGION]
        acked = self.device_qp.ctx.last_acked_psn
        while self.requests and psn_diff(self.requests[0].psn + self.requests[0].packets & PSN_MASK, acked) <= 0:
            del self.requests[0]
        if not self.requests:
            self.unsure = False

    def _check(self, name: str, made: Right) -> None:
        """The NIC is where the model is."""
        ctx = self.device_qp.ctx
        if self.arena != self.shadow:
            self._find(
                f"memory differs from {self._difference()} on after a packet {name or 'that is right'}: {say(made)}"
            )
        if made.response and ctx.state != RTS and self.unsure:
            return
        if ctx.state != RTS:
            self._find(f"state {ctx.state} after a packet {name or 'that is right'}: {say(made)}")
        if self._bits != UD and ctx.expected_psn != self.epsn:
            self._find(f"expects PSN {ctx.expected_psn}, not {self.epsn}, after {say(made)} {name}")

    def _judge(self, flaw: Flaw, rights: list[Right], bad: int, before: tuple[int, ...], drops: int) -> None:
        made = rights[bad]
        ctx = self.device_qp.ctx
        if flaw.verdict is Verdict.LOOSE:
            for start, end in ((0, WRITTEN), (WRITTEN + REGION, RECEIVES), (RECEIVES + REGION, RESULTS)):
                if self.arena[start:end] != self.shadow[start:end]:
                    self._find(f"memory that no key gives changed: {flaw.name} in {say(made)}")
            if self.arena[RESULTS + REGION :] != self.shadow[RESULTS + REGION :]:
                self._find(f"memory that no key gives changed: {flaw.name} in {say(made)}")
            self.shadow[:] = self.arena
            self._produce()
            self._connect()
            return
        if flaw.verdict is Verdict.RIGHT:
            self._judge_right(made)
            self._check(flaw.name, made)
            return
        several = len(rights) > 1
        if several and self._bits != RC:  # what begins a message behind the bad packet is taken
            self.shadow[:] = self.arena
            self._connect()
            return
        if several and made.response and self.unsure:
            self._resync()
        if self.arena != self.shadow:
            self._find(f"memory differs from {self._difference()} on after {flaw.name} in {say(made)}")
        if flaw.verdict is Verdict.REFUSED:
            if self._bits != RC:  # the message is given up, and its PSN used up
                self.epsn, self.open = ctx.expected_psn, ("", 0, 0)
            self.unsure |= made.response
        elif several:
            self.unsure |= made.response
            if not made.response and (dropped := self._drops() - drops) != len(rights) - bad:
                self._find(f"{dropped} drops counted after {flaw.name} in {bad} of {len(rights)}: {say(made)}")
        else:
            if (dropped := self._drops() - drops) != 1:
                self._find(f"{dropped} drops counted after {flaw.name} in {say(made)}")
            if self._look() != before:
                self._find(f"{before} became {self._look()} after {flaw.name} in {say(made)}")
        if self._bits != UD and ctx.expected_psn != self.epsn:
            self._find(f"PSN {ctx.expected_psn} expected, not {self.epsn}, after {flaw.name} in {say(made)}")

    def _difference(self) -> int:
        return next(at for at in range(ARENA) if self.arena[at] != self.shadow[at])


def _weighted(flaws: list[Flaw]) -> tuple[list[Flaw], list[float]]:
    return flaws, list(accumulate(flaw.weight for flaw in flaws))


__all__ = ["FindingError", "LivePeer"]
