"""The fabric in C, if the engine is compiled: agenda, ports, switches and the rounds of the NICs at the edge.

It matches :mod:`~rnic.sim.agenda`, :mod:`~rnic.sim.port`, :mod:`~rnic.sim.switch` and :mod:`~rnic.sim.host` event for
event; these are the reference, and :class:`Plain` is the fabric built from them. Packets here are headers and lengths:
no code reads the payload of a flow, and links drop or mark packets but do not change them, so payload and ICRC are
neither built nor checked. A capture, or the reference when it takes over from the engine, gets a complete packet:
zeros, as in a flow's memory, with the right ICRC.
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
    from rnic.cc.controlled import Arrival
    from rnic.device.nic import Nic
    from rnic.link.loopback import LoopbackLink
    from rnic.sim import topology
    from rnic.sim.native import _fabric
    from rnic.wire.bursts import TxBurst


class Module(Protocol):
    """Interface of the compiled module; its types are in ``_fabric.pyi``."""

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
    """Return the compiled fabric, for parts that are built on it."""
    assert FABRIC is not None
    return FABRIC


class Plain:
    """The fabric's parts in Python."""

    compiled = False

    def __init__(self, control: int, burst: int) -> None:
        self.agenda = Agenda()
        self._control = control
        self._burst = burst

    def port(self, name: str, link: topology.Link, rng: Random, extra_ns: int, weights: tuple[int, ...]) -> Port:
        """Return one end of a link."""
        return Port(self.agenda, name, link, rng, extra_ns, weights)

    def switch(self, row: topology.Switch, rng: Random, salt: int, ports: list[Port], headrooms: list[int]) -> Switch:
        """Return a switch with its ports, whose links are connected at both ends, and their headroom."""
        switch = Switch(row, rng, salt)
        for port, headroom_bytes in zip(ports, headrooms, strict=True):
            switch.join(port, headroom_bytes)
        return switch

    def host(self, name: str, nic: Nic, link: LoopbackLink, port: Port) -> Host:
        """Return a NIC at its port."""
        host = Host(name, nic, link, port, self.agenda, self._control, self._burst)
        port.peer.arrive = host.arrive
        return host

    def route(self, switch: Switch, targets: list[Host], ports: tuple[Port, ...]) -> None:
        """Route packets for these hosts from a switch through one of these ports."""
        for target in targets:
            switch.routes[target.address] = ports

    def count(self) -> None:
        """Bring the NICs' counters up to date."""


class EngineHost:
    """:class:`~rnic.sim.host.Host` with rounds in C; this class does what C delegates to Python."""

    def __init__(
        self, name: str, nic: Nic, link: LoopbackLink, port: Any, agenda: Any, control: int, burst: int
    ) -> None:
        self.name = name
        self.nic = nic
        self.port = port
        self.after: Callable[[], None] | None = None
        self._uplink = Uplink(link, port, control)
        self._runtime = HostRuntime(nic, self._uplink, agenda, self, burst)
        self.engine = compiled().FabricHost(agenda, nic, port, self)
        self.wake = self.engine.wake
        self.ctx = Context(runtime=self._runtime, space=SimAddressSpace())

    def take(self, packet: Packet, arrival: Arrival | None) -> None:
        """Pass a packet and its telemetry to the reference."""
        self._uplink.take(packet, arrival)
        self._runtime.deliver()

    def send(self, out: list[TxBurst]) -> None:
        """Send the reference's packets."""
        self._runtime.carry(out)

    def use(self, priority: int) -> None:
        """Note that it has a flow of this priority."""
        self.engine.use(priority)

    def room(self) -> bool:
        """Do nothing: C determines it."""
        return False

    def interrupts(self) -> None:
        """Deliver the NIC's interrupts."""
        while (vector := self.nic.next_event()) is not None:
            self._runtime.interrupt(vector)


class Compiled:
    """The fabric's parts in C.

    Args:
        control: priority of ACKs and CNPs.
        burst: packets that a NIC builds at once.
        hosts: number of hosts.
    """

    compiled = True

    def __init__(self, control: int, burst: int, hosts: int) -> None:
        self.agenda = compiled().FabricAgenda(control, burst, Packet)
        self._control = control
        self._burst = burst
        self._count = hosts
        self._hosts: list[EngineHost] = []

    def port(
        self, name: str, link: topology.Link, rng: Random, extra_ns: int, weights: tuple[int, ...]
    ) -> _fabric.FabricPort:
        """See :meth:`Plain.port`."""
        return compiled().FabricPort(self.agenda, name, link, rng, extra_ns, weights)

    def switch(
        self, row: topology.Switch, rng: Random, salt: int, ports: list[_fabric.FabricPort], headrooms: list[int]
    ) -> _fabric.FabricSwitch:
        """See :meth:`Plain.switch`."""
        return compiled().FabricSwitch(self.agenda, row, rng, salt, ports, headrooms, self._count)

    def host(self, name: str, nic: Nic, link: LoopbackLink, port: _fabric.FabricPort) -> EngineHost:
        """See :meth:`Plain.host`."""
        host = EngineHost(name, nic, link, port, self.agenda, self._control, self._burst)
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


def parts(control: int, burst: int, hosts: int, recovery: str) -> Any:
    """Return the parts of a fabric: those in C if the engine is compiled and implements this loss recovery."""
    plain = FABRIC is None or use.ENGINE is None or recovery != GO_BACK_N
    return Plain(control, burst) if plain else Compiled(control, burst, hosts)
