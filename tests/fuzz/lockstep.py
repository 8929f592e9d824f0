"""Two NICs that are done the same to, one with the engine, one with the reference alone: equal bytes after each call.

:class:`Lockstep` is a :class:`~rnic.testing.live.LivePeer` whose NIC has a twin. What the peer does to its NIC (a
packet, a work request, a deadline, a turn) is done to the twin as well; then all that an executor may change is
compared: the arena with every context and record, memory and rings, queue blocks, counters, interrupts, packets made.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any
from unittest import mock

from rnic.mem.space import SimAddressSpace
from rnic.rings.queue_block import BLOCK_BYTES
from rnic.state.inflight import INFLIGHT
from rnic.state.queue_pair import QP
from rnic.state.scheduler import SCHEDULER, TIMERS
from rnic.testing.executors import executed_by, steps_alone
from rnic.testing.live import FindingError, LivePeer
from rnic.wire.bursts import RxBurst, TxBurst

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
SETTINGS = {"log_max_qps": 4, "max_mrs": 64}
"""Of both NICs: small, since every byte of them is compared after every packet."""
_STATE_LEAST = 1 << 20
_COLD_EVERY = 64
"""Calls after which all is compared, and not only what calls often change."""
_CONTEXTS = 16_384
"""Bytes at the arena's start, where the memory table and the contexts of small NICs lie."""


class _Both:
    """One object and its twin: what is named is done to both, all else is asked of the first."""

    def __init__(self, first: Any, second: Any, *names: str) -> None:
        self._first = first
        for name in names:
            setattr(self, name, self._twice(getattr(first, name), getattr(second, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._first, name)

    @staticmethod
    def _twice(one: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **fields: Any) -> Any:
            got = one(*args, **fields)
            other(*args, **fields)
            return got

        return call


class _Quick:
    """A NIC whose packets and turns go through the engine's port, as rounds on a socket do it."""

    def __init__(self, nic: Any) -> None:
        self.nic = nic
        self.receiving = nic.receive
        self.taken = self.packets = 0
        """Packets that the engine took, of all that came."""
        nic.receive, nic.produce = self.receive, self.produce

    def receive(self, burst: RxBurst, now_ns: int, start: int = 0) -> None:
        nic, segment = self.nic, burst.segment
        self.packets += -(-burst.length // segment)
        while nic.enabled and start < burst.length and (burst.ident is not None or burst.flow.settled):
            taken = nic.engine_device.receive(burst, start, now_ns)
            self.taken += -(-taken // segment)
            start += taken
            if start < burst.length:  # one packet is the reference's, then it is the engine's turn again
                end = min(start + segment, burst.length)
                how = burst.frag, burst.tclass, burst.hop_limit, burst.flow_label, burst.known
                ident = None if burst.ident is None else burst.ident + start // segment
                one = RxBurst(burst.flow, burst.buf[start:end], end - start, end - start, ident, *how)
                self.receiving(one, now_ns)
                start = end
        if start < burst.length:
            self.receiving(burst, now_ns, start)

    def produce(self, now_ns: int, budget: int = 256) -> list[TxBurst]:
        nic = self.nic
        if nic.held:
            return []
        out: list[TxBurst] = nic.sending.prepare(now_ns)
        packets = sum(burst.count for burst in out)
        nic.engine_device.send(now_ns, budget, out)
        if packets:
            nic.counters["tx_packets"] += packets
            nic.note_traffic(now_ns)
        return out


class Lockstep(LivePeer):
    """A peer whose NIC, with the engine, is held against one that has the reference alone. To be used as a context."""

    several = 0.5
    flawed = 0.4

    def __init__(self, service: str = "RC", seed: int = 1, **options: Any) -> None:
        self.twin: LivePeer | None = None
        self.calls = 0
        """How often the two were compared."""
        with contextlib.ExitStack() as undo:
            undo.enter_context(steps_alone())
            undo.enter_context(mock.patch("rnic.device.config._STATE_LEAST", _STATE_LEAST))
            with executed_by(engine=True):
                super().__init__(service, seed, settings=SETTINGS, **options)
            with executed_by(engine=False):
                self.twin = twin = LivePeer(service, seed, settings=SETTINGS, **options)
            self._undo = undo.pop_all()
        self.quick = _Quick(self.nic)
        self.nics = self.nic, twin.nic
        self._spans = [self._span(*pair) for pair in zip(*map(self._memory, (self, twin)), strict=True)]
        self._hot = [self._span(*pair) for pair in zip(*map(self._often, (self, twin)), strict=True)]
        self.qp = _Both(self.qp, twin.qp, "modify", "to_rts", "post_recv", "post_send")  # type: ignore[assignment]
        self.nic = _Both(self.nic, twin.nic, "handle_timers")  # type: ignore[assignment]
        self.same()

    @staticmethod
    def _memory(peer: LivePeer) -> list[tuple[str, memoryview]]:
        nic = peer.nic
        found = [("state", nic.arena.memory[: nic.arena.used])]
        for uar in nic.resources.uars:
            assert isinstance(uar.port, SimAddressSpace)
            found += [(f"memory at {m.va:#x}", m.view) for m in uar.port._by_va._items]
            doors = nic.resources.doorbells.doors
            found += [(f"block {door}", uar.buf[door * BLOCK_BYTES :][:BLOCK_BYTES]) for door in doors]
        return found

    @staticmethod
    def _often(peer: LivePeer) -> list[tuple[str, memoryview]]:
        """What most calls change: contexts and records, the queue pair's slots, its memory, its queue block."""
        nic, state, qp = peer.nic, peer.nic.arena.memory, peer.device_qp
        pieces = {
            "contexts": (0, _CONTEXTS),
            "scheduler": (nic.sending.scheduler.record, SCHEDULER.size),
            "inflight": (nic.inflight.record, INFLIGHT.size),
            "timers": (nic.timers.record, TIMERS.size),
            "record": (qp.memory.record, QP.size),
            "slots": (qp.memory.slots, qp.memory.size),
        }
        found = [(f"{name} from {at:#x} on", state[at : at + size]) for name, (at, size) in pieces.items()]
        found.append(("memory", memoryview(peer.arena)))
        return [*found, ("block", qp.regs.buf[qp.regs.at :][:BLOCK_BYTES])]

    @staticmethod
    def _span(
        one: tuple[str, memoryview], other: tuple[str, memoryview]
    ) -> tuple[str, memoryview, memoryview, int, int]:
        def at(view: memoryview) -> int:
            return ctypes.addressof(ctypes.c_char.from_buffer(view))

        assert one[0] == other[0]
        assert len(one[1]) == len(other[1])
        return one[0], one[1], other[1], at(one[1]), at(other[1])

    # ------------------------------------------------------------------------------- what is done to both

    def _connect(self) -> None:
        super()._connect()
        if self.twin is not None:
            self.twin.device_qp = self.twin.nic.qps[self.twin.qp.qp_num]

    def _poll(self) -> None:
        super()._poll()
        if self.twin is not None:
            self.twin._poll()

    def _make(self) -> None:
        twin = self.twin
        assert twin is not None
        made = []
        for peer, nic in zip((self, twin), self.nics, strict=True):
            bursts = nic.produce(self.now) if nic.has_work() else []
            made.append([(b.segment, b.count, b.length, b"".join(b.buffers)) for b in bursts])
            if bursts:
                peer.node.link.send(bursts)
        if made[0] != made[1]:
            self._find(f"made by the engine {made[0]!r:.600}, by the reference {made[1]!r:.600}")
        while twin._link.receive(64):
            pass
        self.same()

    def _receive(self, flow: Any, frames: list[bytes]) -> None:
        super()._receive(flow, frames)
        twin = self.twin
        assert twin is not None
        twin.now = self.now
        twin._receive(twin.flow if flow is self.flow else twin.stranger, frames)
        for peer, nic in zip((self, twin), self.nics, strict=True):
            self._wake_no_earlier(peer, nic)
        self.same()

    @staticmethod
    def _wake_no_earlier(peer: LivePeer, nic: Any) -> None:
        """Arm the timer anew where it would wake too early, which is allowed: for what a later packet took back."""
        qp = peer.device_qp
        if qp.armed_ns < qp.deadline_ns:
            nic.timers.forget(qp.memory.record)
            qp.rearm()

    # ------------------------------------------------------------------------------------------ comparing

    def same(self) -> None:
        """Both NICs hold the same. Raises :class:`FindingError`."""
        self.calls += 1
        for name, one, other, at, beside in self._hot if self.calls % _COLD_EVERY else self._spans:
            if _compare(at, beside, len(one)):
                self._find(f"{name}: {self._words(one, other)}")
        ours, theirs = self.nics
        if ours.counters != theirs.counters:
            names = ours.counters.keys() | theirs.counters.keys()
            odd = {n: (ours.counters[n], theirs.counters[n]) for n in names if ours.counters[n] != theirs.counters[n]}
            if odd:
                self._find(f"counters, engine and reference: {odd}")
        if ours.write_back_at != theirs.write_back_at:
            self._find(f"write-back at {ours.write_back_at}, at {theirs.write_back_at}")
        if len(ours.resources.interrupts) != len(theirs.resources.interrupts):
            self._find("interrupts")

    def _words(self, one: memoryview, other: memoryview) -> str:
        """Where two pieces of memory differ, in words of 8 bytes."""
        records = {qp.memory.record: f"QP {qp.number}" for qp in self.nics[0].qps.values()}
        said = []
        for at in range(0, len(one), 8):
            engine, reference = bytes(one[at : at + 8]), bytes(other[at : at + 8])
            if engine != reference:
                said.append(f"{at:#x}: {engine[::-1].hex()} by the engine, {reference[::-1].hex()} by the reference")
        return "; ".join(said[:12]) + f" (records at {records})"

    def close(self) -> None:
        super().close()
        if self.twin is not None:
            self.twin.close()
        self._undo.close()


__all__ = ["FindingError", "Lockstep"]
