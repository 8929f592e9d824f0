"""Flows whose queue pairs exist only in the engine, so that a hundred thousand fit in memory and start quickly.

A queue pair created through verbs has Python objects: 20 KB, and 2 ms to connect a pair. For a flow the engine needs
only a record, a context and slots. Here one pair is connected through verbs, between two separate NICs. The queue pairs
of every flow start as copies of its state, with their own numbers, path, in-flight accounts and memory. Numbers, ports,
scheduling and accounts are those of the device as for any queue pair, so the run is the same.

The engine also handles marks, CNPs and rates (``congestion.c``); it calls a congestion control in Python for its
events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rnic.device.paths import source_port
from rnic.rings.sqe import SQE_BYTES
from rnic.sim.native import compiled
from rnic.sim.topology import Topology
from rnic.spec import commands as cmd

if TYPE_CHECKING:
    from rnic.sim.host import Host
    from rnic.sim.native import _fabric
    from rnic.sim.traffic import FlowPair, Traffic
    from rnic.sim.workloads import Flow


class _Taken:
    """Work request identifiers of a bare flow: only 0."""

    def take_send(self, index: int) -> int:
        """See :class:`rnic.verbs.QP`."""
        return 0


class _Bare:
    """A bare flow's queue pairs: the engine's, and their entries in the device and in verbs."""

    __slots__ = ("_flow", "_number", "_source", "_target", "_traffic", "number", "other", "write")

    def __init__(self, flow: _fabric.FabricFlow, traffic: Traffic, source: Host, target: Host) -> None:
        self._flow = flow
        self._traffic = traffic
        self._source, self._target = source, target
        self.number, self.other = flow.number, flow.other
        self.write = flow.write

    @property
    def received_psn(self) -> int:
        """See :class:`rnic.sim.traffic.FlowPair`."""
        return self._flow.received_psn

    def close(self) -> None:
        """See :class:`rnic.sim.traffic.FlowPair`."""
        flow, traffic = self._flow, self._traffic
        flow.close()
        for host, number in ((self._source, flow.number), (self._target, flow.other)):
            traffic.end(host).cq.detach(number)
            host.nic.resources.pools[cmd.RES_QP].give_back(number)


class BareFlows:
    """Factory of bare flows, a :data:`rnic.sim.traffic.Bare`.

    Args:
        settings: settings of the NICs.
        mtu: path MTU.
        traffic_class: traffic class of their packets.
    """

    def __init__(self, settings: Mapping[str, Any] | None, mtu: int, traffic_class: int) -> None:
        self._settings = dict(settings or {})
        self._mtu = mtu
        self._class = traffic_class
        self._pattern: _fabric.FabricPattern | None = None

    def _make_pattern(self) -> _fabric.FabricPattern:
        from rnic.sim.fabric import Fabric  # noqa: PLC0415 - which makes these
        from rnic.sim.traffic import Pair  # noqa: PLC0415

        topology = Topology.pair(mtu=self._mtu)
        with Fabric(topology, settings=self._settings, traffic_class=self._class, bare=False) as fabric:
            source, target = (fabric.hosts[name] for name in ("h0", "h1"))
            pair = Pair(fabric.traffic, source, target, 1, 0)
            sender, receiver = source.nic.qps[pair.sender.qp_num], target.nic.qps[pair.receiver.qp_num]
            made = compiled().FabricPattern(sender, receiver, b"")
            pair.write(1)
            ring = sender.send_ring.view
            assert ring is not None  # the connected pair has just posted to it
            made.descriptor = bytes(ring[:SQE_BYTES])
            pair.close()
        return made

    def __call__(self, traffic: Traffic, source: Any, target: Any, row: Flow, failed: Callable[[], None]) -> FlowPair:
        """Return the queue pairs of one flow between two hosts.

        Raises:
            MemoryError: a NIC has no queue pair left, or no memory for one.
        """
        if self._pattern is None:
            self._pattern = self._make_pattern()
        here, there = (traffic.region(host, row.size) for host in (source, target))
        ends = traffic.end(source), traffic.end(target)
        numbers = []
        for host, end in zip((source, target), ends, strict=True):
            number = host.nic.resources.pools[cmd.RES_QP].take(host.ctx.driver.uar)
            if number is None:
                raise MemoryError(f"{host.name} has no queue pair left: give its log_max_qps more")
            end.cq.attach(number, _TAKEN)
            numbers.append(number)
        ports = source_port(*numbers), source.nic.config.port, source_port(*reversed(numbers))
        source.use(row.priority)
        tclass = self._class | row.priority << 5
        flow = compiled().FabricFlow(
            self._pattern, source.engine, target.engine, ends, here, there, tuple(numbers), ports, tclass, failed
        )
        for host in (source, target):
            host.wake()  # as a driver rings a doorbell after changing a queue pair
        return _Bare(flow, traffic, source, target)


_TAKEN = _Taken()
