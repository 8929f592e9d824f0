"""Packets in disorder that come by a real socket: the engine's rounds and their reorder buffer, beside the reference.

:class:`Rounds` is a :class:`~rnic.testing.live.LivePeer` whose packets reach the NIC by datagrams and its compiled
rounds (``engine/io/poll.c``), with selective repeat: what lies beyond a gap is held, and executed when the gap is
filled. The peer repeats PSNs with other bytes, before and behind the gap. Its model says which of them count: the first
one held, and what comes in its turn. A NIC that has the reference alone gets just those, in order, and has the same
memory, PSNs, receives and completions afterwards.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from typing import Any

from rnic.engine import use
from rnic.link.udp import UdpLink
from rnic.link.udp_socket import raw_address
from rnic.spec.psn import PSN_MASK
from rnic.spec.states import RTS
from rnic.testing.executors import executed_by
from rnic.testing.live import LivePeer
from rnic.testing.live_model import Right
from rnic.testing.malformed import frame
from rnic.wire.bursts import DONT_FRAGMENT, RxBurst
from rnic.wire.packet import seal
from tests.fuzz.lockstep import SETTINGS

_BUDGET = 256
_ENDS = 0.05
"""How often a connection ends while packets are held."""
_LOOPBACK = "127.0.0.1"


class _Link(UdpLink):
    """A socket whose packets are the peer's, as if they came from its address."""

    peer: LivePeer
    raw: bytes

    def make_burst(self, sender: bytes, buf: memoryview, *how: int) -> RxBurst:
        segment, tclass, hop_limit, label = how
        flow = self.peer.flow
        flow.settled = True
        return RxBurst(flow, buf, segment, len(buf), None, DONT_FRAGMENT, tclass, hop_limit, label)

    def tx_path(self, flow: Any) -> tuple[Any, bytes, int]:
        return self.outlets[0], self.raw, 1


class _Twin(LivePeer):
    """A NIC that has the reference alone, with the same PSNs."""

    first: int | None = None

    def _first_psn(self) -> int:
        return super()._first_psn() if self.first is None else self.first


class Rounds(LivePeer):
    """The far end of a queue pair of RC. To be used as a context."""

    def __init__(self, seed: int = 1, **options: Any) -> None:
        assert use.COMPILED is not None
        self.twin: _Twin | None = None
        self.first: int | None = None
        self.held = self.executed = 0
        """Packets that waited for others, and all that were executed."""
        with contextlib.ExitStack() as undo:
            with executed_by(engine=True):
                super().__init__("RC", seed, seen=False, selective=True, settings=SETTINGS, **options)
            with executed_by(engine=False):
                self.twin = _Twin("RC", seed, seen=False, selective=True, settings=SETTINGS, **options)
            undo.callback(self.twin.close)
            self.socket = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            self.socket.bind((_LOOPBACK, 0))
            self.socket.setblocking(False)
            self.link = _Link(_LOOPBACK, 0)
            undo.callback(self.link.close)
            self.link.peer, self.link.raw = self, raw_address(self.socket.getsockname())
            assert self.nic.engine_device is not None
            self.rounds = use.COMPILED.IoPoll(self.nic.engine_device, self.link, self._send_by_python)
            undo.callback(self.rounds.stop)
            self._undo = undo.pop_all()

    def _send_by_python(self, bursts: list[Any]) -> None:
        for burst in bursts:
            data = b"".join(burst.buffers)
            for at in range(0, len(data), burst.segment):
                self.socket.sendto(data[at : at + burst.segment], self.socket.getsockname())

    def _connect(self) -> None:
        super()._connect()
        if self.twin is not None:
            self.twin.first = self.epsn
            self.twin._connect()

    def _first_psn(self) -> int:
        """Now and then that of the last connection, of which packets may still be held."""
        return self.first if self.first is not None and self.rng.random() < 0.5 else super()._first_psn()

    def _poll(self) -> None:
        super()._poll()
        if self.twin is not None:
            self.twin._poll()

    def _post(self) -> None:
        """Receives alone: what the NIC asks for itself is :class:`~tests.fuzz.lockstep.Lockstep`'s to try."""
        requests, posted = self.requests, deque(self.posted)
        self.requests = [requests] * 5  # type: ignore[list-item]  # so many that none is added
        super()._post()
        self.requests = requests
        twin = self.twin
        if twin is not None:
            twin.requests, twin.posted = [None] * 5, posted  # type: ignore[list-item]
            twin._post()
            twin.requests = []

    def step(self) -> int:
        """One burst in disorder; how many packets. Raises :class:`FindingError`."""
        self.steps += 1
        if self.device_qp.ctx.state != RTS:
            self._connect()
        elif not self.steps % 32:
            self._poll()
        self._post()
        self.now += 2_000
        self.rounds.transmit(self.now, _BUDGET)
        rights = [made for made in self._burst(self.rng.randrange(1, 10)) if not (made.reads or made.response)]
        ends = self.rng.random() < _ENDS
        sent, executed = self._arrange(rights, ends)
        for packet in sent:
            self.socket.sendto(packet, (_LOOPBACK, self.link.port))
        left = len(sent)
        while left > 0:
            left -= self.rounds.poll(self.now, _BUDGET)[0]
        self.rounds.transmit(self.now, _BUDGET)
        with contextlib.suppress(BlockingIOError):
            while self.socket.recv(1 << 16):
                pass
        self.counts["in rounds"] = self.counts.get("in rounds", 0) + len(sent)
        twin = self.twin
        assert twin is not None
        for packet in executed:
            twin.nic.receive(RxBurst(twin.flow, memoryview(packet), len(packet), len(packet), 0), self.now)
        if rights:
            self._check("of those in disorder", rights[-1])
            self._same()
        if ends:
            self.first = self.epsn
            self._connect()
        return len(sent)

    def _arrange(self, rights: list[Right], ends: bool) -> tuple[list[bytes], list[bytes]]:
        """Packets as they are sent, and those that are executed, in order. The model does what they do.

        Args:
            rights: what is right one after another.
            ends: the first one is never sent, so that all others are held when the connection ends.
        """
        rng = self.rng
        order = [(place + rng.random() * rng.choice((0, 3, 9)), place) for place in range(ends, len(rights))]
        order += [(rng.random() * len(rights), place) for place in range(ends, len(rights)) if rng.random() < 0.5]
        first, asks = self.epsn, rng.random() < 0.5
        held: dict[int, tuple[Right, bytes]] = {}
        sent, executed, done = list[bytes](), list[bytes](), 0
        for _, place in sorted(order):
            made = rights[place]
            if rng.random() < 0.3 and made.effects:
                ((at, data),) = made.effects
                data = rng.randbytes(len(data))
                made = made.alike([(at, data)], payload=data)
            fields = {"dqpn": self.qp.qp_num, "psn": first + place & PSN_MASK, "ackreq": asks, "solicited": False}
            packet = seal(frame(made.opcode, **fields | made.fields), self.flow)
            sent.append(packet)
            if place >= done:
                self.held += place > done and place not in held
                held.setdefault(place, (made, packet)) if place > done else held.update({place: (made, packet)})
            while done in held:
                made, packet = held.pop(done)
                self._accept(made)
                executed.append(packet)
                done += 1
        self.executed += len(executed)
        return sent, executed

    def _same(self) -> None:
        twin = self.twin
        assert twin is not None
        if twin.arena != self.arena:
            self._find("memory differs from the reference's")
        ours, theirs = self.device_qp, twin.nic.qps[twin.qp.qp_num]
        for name in ("state", "expected_psn", "rmsn"):
            if getattr(ours.ctx, name) != getattr(theirs.ctx, name):
                self._find(f"{name} {getattr(ours.ctx, name)}, of the reference {getattr(theirs.ctx, name)}")
        if ours.cqs[0].tail != theirs.cqs[0].tail:
            self._find(f"{ours.cqs[0].tail} completions, of the reference {theirs.cqs[0].tail}")

    def close(self) -> None:
        self._undo.close()
        super().close()
