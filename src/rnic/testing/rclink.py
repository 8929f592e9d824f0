"""RC Link endpoints on one fabric in virtual time: the same seed gives the same run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rnic.link.base import Link
from rnic.link.faults import NO_FAULTS, FaultRates, FaultyLink
from rnic.link.loopback import Fabric, LoopbackLink
from rnic.link.pacing import PacedLink
from rnic.rclink import Path, RcLinkConfig, RcLinkPort, set_up
from rnic.rclink.numbers import TYPE1_UDP_PORT
from rnic.runtime.virtual import SimLoop, VirtualClock
from rnic.trace.tracer import Tracer

Script = Sequence[Mapping[str, object]]


class RcLinkNet:
    """Endpoints at 10.0.0.1, 10.0.0.2 ..., each with a faulty link and an optional wire.

    Args:
        nodes: number of endpoints.
        seed: seed of all random choices.
        faults: fault script of node 0's link.
        tx: fault rates of every node's sent packets.
        packet_ns: time for which a packet keeps its sender's wire busy; 0 for no wire.
        latency_ns: delay of a packet on that wire.
        mark_packets: a packet is sent with ECN CE if this many wait for that wire.
        round_ns: duration of one round of all nodes.
        tracer: tracer of all endpoints and links.
        settings: fields of :class:`~rnic.rclink.RcLinkConfig`, the same for all.
    """

    def __init__(
        self,
        nodes: int = 2,
        *,
        seed: int = 1,
        faults: Script = (),
        tx: FaultRates = NO_FAULTS,
        packet_ns: int = 0,
        latency_ns: int = 0,
        mark_packets: int | None = None,
        round_ns: int = 1_000,
        tracer: Tracer | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.loop = SimLoop(self.clock, round_ns)
        self.fabric = Fabric()
        self.ports: list[RcLinkPort] = []
        rng = random.Random(seed)
        for index in range(nodes):
            inner = self.fabric.attach(self.address(index), TYPE1_UDP_PORT)
            own = random.Random(rng.getrandbits(64))
            script = () if index else faults
            faulty = FaultyLink(inner, clock=self.clock, rng=own, tx=tx, script=script, tracer=tracer)
            link: Link = faulty
            if packet_ns or latency_ns:
                link = PacedLink(
                    faulty,
                    clock=self.clock,
                    packet_ns=packet_ns,
                    latency_ns=latency_ns,
                    mark_packets=mark_packets,
                )
            port = RcLinkPort(link, RcLinkConfig(**(settings or {})), self.clock, tracer)
            self.loop.add(port)
            self.ports.append(port)

    @staticmethod
    def address(index: int) -> bytes:
        """Return the address of one node."""
        return b"\x0a\0" + (index + 1).to_bytes(2, "big")

    def connect(self, one: int, one_qp: int, two: int, two_qp: int, psn: int = 0, remote_psn: int = 0) -> None:
        """Set up a QP of node ``one``, which starts with ``psn``, and one of node ``two``, which starts with
        ``remote_psn``."""
        set_up(self.ports[one].endpoint, one_qp, self.path(two, two_qp, psn, remote_psn))
        set_up(self.ports[two].endpoint, two_qp, self.path(one, one_qp, remote_psn, psn))

    def path(self, node: int, qpid: int, psn: int = 0, remote_psn: int = 0) -> Path:
        """Return the path to a QP of a node."""
        return Path(self.address(node), qpid, psn=psn, remote_psn=remote_psn)

    def outsider(self, address: bytes, port: int = TYPE1_UDP_PORT) -> LoopbackLink:
        """Return a bare link on the fabric, for packets made by hand."""
        return self.fabric.attach(address, port)

    def run(self, until: Callable[[], bool] | None = None, limit_ns: int = 60_000_000_000) -> bool:
        """Run until ``until()`` is true, or everything is idle; see :meth:`SimLoop.run`."""
        return self.loop.run(until, limit_ns)

    def run_for(self, time_ns: int) -> None:
        """Let exactly ``time_ns`` of virtual time pass."""
        end = self.clock.now_ns + time_ns
        while self.clock.now_ns < end:
            if not self.loop.step():
                deadline = self.loop.next_deadline_ns()
                self.clock.now_ns = end if deadline is None else min(max(deadline, self.clock.now_ns), end)
