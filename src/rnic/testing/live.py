"""Generate packets from the state of a live connection: valid, or with exactly one flaw.

A :class:`LivePeer` is the far end of one queue pair. It knows what the queue pair expects next
(:mod:`rnic.testing.live_model`), so its packets reach the last checks, and it knows the allowed effect of each packet.
After every packet it verifies the NIC: a valid packet moves exactly its bytes, a bad one only increments one drop
counter, a refused one moves no byte. The same seed gives the same packets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from rnic.rings.queue_block import RQ_HEAD
from rnic.spec.drops import DropReason
from rnic.spec.opcodes import (
    ACKNOWLEDGE,
    RC,
    READ_RESPONSE_MIDDLE,
    UD,
)
from rnic.spec.psn import PSN_MASK, psn_diff
from rnic.spec.states import RTS
from rnic.spec.syndromes import AETH_RNR_NAK, CREDITS_INVALID, NAK_PSN_SEQUENCE
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
"""Packets of a swarm: lower limit, and exclusive upper limit."""
_MOST_NAKS = 9
_DROPS = tuple(reason.value for reason in DropReason)


class LivePeer(LiveModel):
    """The far end of one queue pair of a private NIC.

    Args:
        service: ``"RC"``, ``"UC"`` or ``"UD"``.
        seed: seed of all random choices.
        ipv6: use IPv6 addresses.
        seen: the link shows IP IDs; otherwise the ICRC of a corrupt packet may be right for another IP ID, so no packet
            is corrupted.
        only: names of the flaws to try; all by default.
        swarms: probability that a burst is a swarm: many packets with one flaw each, none of which may be accepted.
            This gives several times as many packets per second.
        storms: probability that a burst to an RC queue pair consists of random NAKs, or of valid packets reordered,
            duplicated and with other bytes.
        selective: the connection has selective repeat (``QPAttr.selective_repeat``).
        settings: further fields of :class:`~rnic.device.config.NicConfig`.

    ``counts`` holds the number of packets sent with each flaw, ``""`` for none; ``digest`` is a CRC over
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
        storms: float = 0.0,
        selective: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(service, seed, ipv6=ipv6, seen=seen, selective=selective, settings=settings)
        self.counts: dict[str, int] = {}
        damage = seen or ipv6
        flaws = [f for f in FLAWS if (only is None or f.name in only) and (damage or not f.damage)]
        self._flaws = _weighted(flaws)
        self._same_size = _weighted([flaw for flaw in flaws if flaw.keeps_size])
        swarm = [f for f in flaws if f.keeps_size and f.verdict is Verdict.DROPPED and f.flow is None]
        self._swarming = _weighted(swarm)
        self._swarms = swarms
        self._storms = storms if service == "RC" else 0.0

    several = 0.15
    """Probability that a burst has more than one packet."""
    flawed = 0.7
    """Probability that a burst has a flaw."""

    # -------------------------------------------------------------------------------------- stepping

    def run(self, packets: int) -> None:
        """Send at least ``packets`` packets. Raises :class:`FindingError`."""
        sent = 0
        while sent < packets:
            sent += self.step()

    def step(self) -> int:
        """Send one burst, mostly of one packet, often with a flaw. Return its packets. Raises :class:`FindingError`."""
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
        if self._storms and rng.random() < self._storms:
            return self._send_naks() if rng.random() < 0.5 else self._send_disordered()
        return self._send_swarm() if self._swarms and rng.random() < self._swarms else self._send()

    def _send_swarm(self) -> int:
        """Send a burst of many packets, all made from one valid packet, each with one flaw."""
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

    def _send_naks(self) -> int:
        """Send NAKs for sent and unsent PSNs, repeatedly: no byte moves, and no receive is used."""
        rng = self.rng
        oldest = self.device_qp.ctx.last_acked_psn
        sent = psn_diff(self.sent_psn, oldest)
        psn, frames = oldest, list[bytes]()
        for place in range(rng.randrange(1, _MOST_NAKS)):
            where = rng.random()
            if where < 0.6:
                psn = oldest + rng.randrange(sent + 1)
            elif where < 0.8:
                psn += rng.choice((0, 0, 1, -1))
            else:
                psn = rng.choice((oldest - rng.randrange(1, 300), self.sent_psn + rng.randrange(1, 300), 1 << 23))
            syndrome = rng.choices((NAK_PSN_SEQUENCE, AETH_RNR_NAK | 1, CREDITS_INVALID), (8, 1, 1))[0]
            data = frame(
                ACKNOWLEDGE,
                dqpn=self.qp.qp_num,
                psn=psn & PSN_MASK,
                ackreq=rng.random() < 0.5,
                solicited=False,
                syndrome=syndrome,
                msn=rng.getrandbits(24),
            )
            frames.append(seal(data, self.flow, place))
        self._receive(self.flow, frames)
        self.counts["NAKs"] = self.counts.get("NAKs", 0) + len(frames)
        ctx = self.device_qp.ctx
        if self.arena != self.shadow:
            self._find(f"memory differs from {self._difference()} on after {len(frames)} NAKs")
        if ctx.expected_psn != self.epsn:
            self._find(f"expects PSN {ctx.expected_psn}, not {self.epsn}, after {len(frames)} NAKs")
        self.unsure = True
        self._resync()
        return len(frames)

    def _send_disordered(self) -> int:
        """Send valid packets reordered, duplicated, and with other bytes: each PSN is executed once, in order."""
        rng = self.rng
        rights = [made for made in self._burst(rng.randrange(3, 9)) if not (made.reads or made.response)]
        came = [(place + rng.random() * rng.choice((0, 1, 4)), place) for place in range(len(rights))]
        came += [(place + rng.random() * 6, place) for place in range(len(rights)) if rng.random() < 0.4]
        frames, done, asks = list[bytes](), 0, rng.random() < 0.5
        for where, (_, place) in enumerate(sorted(came)):
            made, psn = rights[place], self.epsn + place - done & PSN_MASK
            if rng.random() < 0.3 and made.effects:
                ((at, data),) = made.effects
                data = rng.randbytes(len(data))
                made = made.alike([(at, data)], payload=data)
            fields = {"dqpn": self.qp.qp_num, "psn": psn, "ackreq": asks, "solicited": False}
            frames.append(seal(frame(made.opcode, **fields | made.fields), self.flow, where))
            if place == done:
                done += 1
                self._accept(made)
        if not frames:
            return 0
        self._receive(self.flow, frames)
        self.counts["disordered"] = self.counts.get("disordered", 0) + len(frames)
        self._check("of those in disorder", rights[-1])
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
        """Return a flaw that fits the packet; in a burst, one that keeps its size. ``None`` if none is found soon."""
        if several and self._bits == UD:
            return None
        flaws, weights = self._same_size if several else self._flaws
        for flaw in self.rng.choices(flaws, cum_weights=weights, k=_DRAWS) if flaws else ():
            if flaw.fits(self, made):
                return flaw
        return None

    def _burst(self, length: int) -> list[Right]:
        """Return up to ``length`` packets of equal size that are valid in sequence."""
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
        """Advance the model so that the packet after this one is valid too."""
        if made.response:
            next(request for request in self.requests if request.kind != "DATA").got += 1
            return
        if self._bits != UD:
            self.epsn = self.epsn + made.packets & PSN_MASK
            self.open = made.after
        if made.takes:
            self.posted.popleft()

    # --------------------------------------------------------------------------------------- checks

    def _look(self) -> tuple[int, ...]:
        """Return all state that a packet could change, except memory."""
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
        """Note that the NIC retransmitted READs: any of its results may have changed."""
        self.shadow[RESULTS : RESULTS + REGION] = self.arena[RESULTS : RESULTS + REGION]
        acked = self.device_qp.ctx.last_acked_psn
        while self.requests and psn_diff(self.requests[0].psn + self.requests[0].packets & PSN_MASK, acked) <= 0:
            del self.requests[0]
        if not self.requests:
            self.unsure = False

    def _check(self, name: str, made: Right) -> None:
        """Check that the NIC's state equals the model's."""
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
        if several and self._bits != RC:  # a packet that begins a message after the bad one is accepted
            self.shadow[:] = self.arena
            self._connect()
            return
        if several and made.response and self.unsure:
            self._resync()
        if self.arena != self.shadow:
            self._find(f"memory differs from {self._difference()} on after {flaw.name} in {say(made)}")
        if flaw.verdict is Verdict.REFUSED:
            if self._bits != RC:  # the message is abandoned, and its PSN used
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
