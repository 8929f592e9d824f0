"""The fabric in C, where the engine is compiled: agenda, ports, switches and the rounds of the NICs at the edge.

It does what :mod:`~rnic.sim.agenda`, :mod:`~rnic.sim.port`, :mod:`~rnic.sim.switch` and :mod:`~rnic.sim.host` do, event
for event; they are the truth, and :class:`Plain` is the fabric made of them. Here packets are headers and lengths:
nobody looks at the payload of a flow, and links lose or mark packets but change none, so payload and ICRC are neither
made nor checked. A packet that somebody looks at (a capture, or the reference where it takes over from the engine) is
whole again: zeros, which is what a flow's memory holds, with the right ICRC.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from rnic.engine import use
from rnic.mem.space import SimAddressSpace
from rnic.sim.agenda import Agenda
from rnic.sim.host import Host, HostRuntime, Uplink
from rnic.sim.port import Packet, Port
from rnic.sim.switch import Switch
from rnic.spec.limits import GO_BACK_N
from rnic.verbs.context import Context

if TYPE_CHECKING:
    from rnic.device.nic import Nic
    from rnic.link.loopback import LoopbackLink
    from rnic.sim import topology
    from rnic.sim.native import _fabric
    from rnic.wire.bursts import TxBurst


class Module(Protocol):
    """What the compiled module has, whose types stand in ``_fabric.pyi``."""

    FabricAgenda: type[_fabric.FabricAgenda]
    FabricFlow: type[_fabric.FabricFlow]
    FabricHost: type[_fabric.FabricHost]
    FabricPattern: type[_fabric.FabricPattern]
    FabricPort: type[_fabric.FabricPort]
    FabricSwitch: type[_fabric.FabricSwitch]


if TYPE_CHECKING:
    _module: Module = _fabric  # mypy compares the two

FABRIC: Module | None = None if use.COMPILED is None else use.compiled("rnic.sim.native", "rnic.sim.native._fabric")
"""The compiled fabric, or ``None``."""


def compiled() -> Module:
    """The compiled fabric, for parts that are made of it."""
    assert FABRIC is not None
    return FABRIC


class Plain:
    """The fabric's parts in Python."""

    compiled = False

    def __init__(self) -> None:
        self.agenda = Agenda()

    def port(self, name: str, link: topology.Link, rng: Random, extra_ns: int) -> Port:
        """One end of a link."""
        return Port(self.agenda, name, link, rng, extra_ns)

    def switch(self, row: topology.Switch, rng: Random, salt: int, ports: list[Port]) -> Switch:
        """A switch with its ports, whose links are connected at both ends."""
        switch = Switch(row, rng, salt)
        for port in ports:
            switch.join(port)
        return switch

    def host(self, name: str, nic: Nic, link: LoopbackLink, port: Port) -> Host:
        """A NIC at its port."""
        host = Host(name, nic, link, port, self.agenda)
        port.peer.arrive = host.arrive
        return host

    def route(self, switch: Switch, targets: list[Host], ports: tuple[Port, ...]) -> None:
        """What is for these hosts leaves a switch by one of these."""
        for target in targets:
            switch.routes[target.nic.config.address] = ports

    def count(self) -> None:
        """Bring the NICs' counters up to date."""


class EngineHost:
    """:class:`~rnic.sim.host.Host`, whose rounds are C's: what is here is what C leaves to Python."""

    def __init__(self, name: str, nic: Nic, link: LoopbackLink, port: Any, agenda: Any) -> None:
        self.name = name
        self.nic = nic
        self.port = port
        self.after: Callable[[], None] | None = None
        self._uplink = Uplink(link, port)
        self._runtime = HostRuntime(nic, self._uplink, agenda, self)
        self.engine = compiled().FabricHost(agenda, nic, port, self)
        self.wake = self.engine.wake
        self.ctx = Context(runtime=self._runtime, space=SimAddressSpace())

    def take(self, packet: Packet) -> None:
        """The reference takes a packet."""
        self._uplink.take(packet)
        self._runtime.deliver()

    def send(self, out: list[TxBurst]) -> None:
        """Send what the reference made."""
        self._runtime.carry(out)

    def interrupts(self) -> None:
        """Deliver the NIC's interrupts."""
        while (vector := self.nic.next_event()) is not None:
            self._runtime.interrupt(vector)


class Compiled:
    """The fabric's parts in C.

    Args:
        traffic_class: of what the NICs send.
        hosts: how many there will be.
    """

    compiled = True

    def __init__(self, traffic_class: int, hosts: int) -> None:
        self.agenda = compiled().FabricAgenda(traffic_class, Packet)
        self._count = hosts
        self._hosts: list[EngineHost] = []

    def port(self, name: str, link: topology.Link, rng: Random, extra_ns: int) -> _fabric.FabricPort:
        """See :meth:`Plain.port`."""
        return compiled().FabricPort(self.agenda, name, link, rng, extra_ns)

    def switch(
        self, row: topology.Switch, rng: Random, salt: int, ports: list[_fabric.FabricPort]
    ) -> _fabric.FabricSwitch:
        """See :meth:`Plain.switch`."""
        return compiled().FabricSwitch(self.agenda, row, rng, salt, ports, self._count)

    def host(self, name: str, nic: Nic, link: LoopbackLink, port: _fabric.FabricPort) -> EngineHost:
        """See :meth:`Plain.host`."""
        host = EngineHost(name, nic, link, port, self.agenda)
        self._hosts.append(host)
        return host

    def route(
        self, switch: _fabric.FabricSwitch, targets: list[EngineHost], ports: tuple[_fabric.FabricPort, ...]
    ) -> None:
        """See :meth:`Plain.route`."""
        switch.route([target.engine.number for target in targets], list(ports))

    def count(self) -> None:
        """See :meth:`Plain.count`."""
        for host in self._hosts:
            host.engine.count()


def parts(traffic_class: int, hosts: int, recovery: str) -> Any:
    """The parts to make a fabric of: C's where the engine is there and knows how losses are repeated."""
    return Plain() if FABRIC is None or use.ENGINE is None or recovery != GO_BACK_N else Compiled(traffic_class, hosts)
