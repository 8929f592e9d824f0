"""Any number of NICs in one process and in virtual time: the same seed gives the same run, addresses included."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rnic.device.channels import make_nic
from rnic.device.config import NicConfig
from rnic.device.nic import Nic
from rnic.link.base import Link
from rnic.link.faults import NO_FAULTS, FaultRates, FaultyLink
from rnic.link.loopback import Fabric, LoopbackLink
from rnic.link.pacing import PacedLink
from rnic.link.verbs_faults import VerbsFaults, parse_verbs_rules
from rnic.mem.space import SimAddressSpace
from rnic.runtime.loop import Runtime
from rnic.runtime.virtual import SimLoop, VirtualClock
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.testing.faults import FaultMethods
from rnic.trace.counters import Counters
from rnic.trace.tracer import Tracer
from rnic.verbs.context import Context
from rnic.wire.bursts import RxBurst

QUIET_POLLS = 100_000
"""Consecutive polls, with no event left, after which the caller must be waiting forever."""
DEFAULT_LIMIT_NS = 10_000_000_000
"""Default limit of a wait in virtual time: twice the time in which a requester gives up."""

_ALL = 1 << 30
Script = Sequence[Mapping[str, object]]


class VirtualRuntime(Runtime):
    """A runtime whose ``progress`` drives the whole :class:`SimNet`, and advances its time if nothing else happens.

    So verbs code that polls or waits runs unchanged, without real delays. There is no thread.
    """

    def __init__(self, nic: Nic, link: Link, net: SimNet) -> None:
        super().__init__(nic, link, net.clock)
        self._net = net

    def progress(self) -> bool:
        """Run one turn of the simulation."""
        if not self._net.driving:
            return self._net.turn()
        self.busy()  # yielding the core would not help: all NICs run in this thread
        return super().progress()

    def receive(self, limit: int) -> list[RxBurst]:
        """Receive at most ``limit`` bursts, or all that have arrived (:attr:`SimNet.receives_all`)."""
        return super().receive(_ALL if self._net.receives_all else limit)

    def _read_all(self, count: int) -> bool:
        return super()._read_all(0 if self._net.receives_all else count)

    def start(self) -> None:
        """Do nothing: the waiting side drives."""


class Node(FaultMethods):
    """One NIC of a :class:`SimNet` with an opened context.

    ``link`` is its faulty link; ``counters`` are those of NIC and link. Fault events are methods
    (:class:`~rnic.testing.faults.FaultMethods`), which apply to all its objects by default.
    """

    def __init__(self, index: int, ctx: Context, link: FaultyLink) -> None:
        self.index = index
        self.ctx = ctx
        self.link = link
        self.nic: Nic = ctx.nic
        self.counters: Counters = ctx.nic.counters

    def fault(self, name: str, *values: object) -> None:
        """See :meth:`rnic.testing.faults.FaultMethods.fault`."""
        self.ctx.runtime.faults().do(name, *values)

    def __repr__(self) -> str:
        return f"<Node {self.index} {self.ctx.address}>"


class SimNet:
    """NICs on one fabric.

    Args:
        nodes: number of NICs.
        seed: seed of all random choices.
        faults: fault script (:mod:`rnic.link.fault_script`) of node 0's link, or scripts by node number. Directions are
            node 0's: ``"tx"`` is what it sends.
        tx: fault rates of every node's sent packets.
        ipv6: addresses fd00::1, fd00::2 ... instead of 10.0.0.1, 10.0.0.2 ...
        clock: virtual time to share with others.
        tracer: tracer of all NICs and links.
        max_segments: most packets of one burst, 1 to 64.
        packet_ns: time for which a packet keeps its sender's wire busy; 0 for no wire.
        latency_ns: delay of a packet on that wire.
        round_ns: duration of one round of all NICs; longer rounds make slow wires cheaper to simulate.
        mark_packets: a packet with ECT is sent with ECN CE if this many wait for that wire.
        settings: further fields of :class:`~rnic.device.config.NicConfig`, the same for all.
        make_nic: creates each device, as :class:`~rnic.device.nic.Nic` does.

    Raises:
        ValueError: a bad rule, in one line.
    """

    def __init__(
        self,
        nodes: int = 2,
        *,
        seed: int = 1,
        faults: Script | Mapping[int, Script] = (),
        tx: FaultRates = NO_FAULTS,
        ipv6: bool = False,
        clock: VirtualClock | None = None,
        tracer: Tracer | None = None,
        max_segments: int = 64,
        packet_ns: int = 0,
        latency_ns: int = 0,
        mark_packets: int | None = None,
        round_ns: int = 1_000,
        settings: Mapping[str, Any] | None = None,
        make_nic: Callable[..., Nic] = make_nic,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.fabric = Fabric()
        self.driving = False
        self.receives_all = False
        """If true, a round receives all packets that arrived, so that their grouping into bursts has no effect."""
        self._loop = SimLoop(self.clock, round_ns)
        self._quiet = 0
        scripts = faults if isinstance(faults, Mapping) else {0: faults}
        rng = random.Random(seed)
        self.nodes: list[Node] = []
        for index in range(nodes):
            address = (bytes((0xFD, *bytes(13))) if ipv6 else b"\x0a\0") + (index + 1).to_bytes(2, "big")
            counters = Counters()
            inner = self.fabric.attach(address, max_segments=max_segments, counters=counters)
            link = FaultyLink(
                inner,
                clock=self.clock,
                rng=random.Random(rng.getrandbits(64)),
                tx=tx,
                script=scripts.get(index, ()),
                tracer=tracer,
            )
            config = NicConfig(address, name=f"sim{index}", **(settings or {}))
            nic = make_nic(config, rng=random.Random(rng.getrandbits(64)), counters=counters, tracer=tracer)
            # a packet lost on the path has still used the wire
            wire: Link = link
            if packet_ns or latency_ns:
                wire = PacedLink(
                    link, clock=self.clock, packet_ns=packet_ns, latency_ns=latency_ns, mark_packets=mark_packets
                )
            runtime = VirtualRuntime(nic, wire, self)
            if rules := parse_verbs_rules(scripts.get(index, ()), seed):
                runtime.fail_verbs(VerbsFaults(rules))
            self._loop.add(runtime)
            self.nodes.append(Node(index, Context(runtime=runtime, space=SimAddressSpace()), link))

    def outsider(self, address: bytes, port: int = ROCE_UDP_PORT) -> LoopbackLink:
        """Return a bare link on the fabric: a peer without a NIC, for packets made by hand."""
        return self.fabric.attach(address, port)

    def turn(self) -> bool:
        """Run one round of every NIC. If nothing happens, advance time to the next deadline.

        Returns:
            False if nothing can happen anymore.

        Raises:
            TimeoutError: too many calls in that state: the caller must be waiting forever.
        """
        self.driving = True
        try:
            moved = self._loop.step()
        finally:
            self.driving = False
        if not moved:
            deadline = self._loop.next_deadline_ns()
            if deadline is None:
                self._quiet += 1
                if self._quiet > QUIET_POLLS:
                    raise TimeoutError("waited for something that cannot come: no NIC has work or a timer left")
                return False
            self.clock.now_ns = max(self.clock.now_ns, deadline)
        self._quiet = 0
        return True

    def run(self, until: Callable[[], bool] | None = None, limit_ns: int = DEFAULT_LIMIT_NS) -> bool:
        """Run until ``until()`` is true, or everything is idle.

        Returns:
            Whether ``until`` became true; true without it.

        Raises:
            TimeoutError: ``limit_ns`` of virtual time were not enough.
        """
        end = self.clock.now_ns + limit_ns
        while until is None or not until():
            if not self.turn():
                return until is None or until()
            if self.clock.now_ns > end:
                raise TimeoutError(f"{limit_ns / 1e9:g} s of virtual time were not enough; give a larger limit_ns")
        return True

    def close(self) -> None:
        """Close all contexts."""
        for node in self.nodes:
            node.ctx.close()

    def __enter__(self) -> SimNet:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


__all__ = ["Node", "SimNet", "VirtualRuntime"]
