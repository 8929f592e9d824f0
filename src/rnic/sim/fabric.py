"""The fabric: a topology with NICs at its edge, run until the flows are over."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from rnic.device.config import NicConfig
from rnic.device.nic import Nic
from rnic.link import loopback
from rnic.sim.agenda import Agenda
from rnic.sim.bare import BareFlows
from rnic.sim.host import Host
from rnic.sim.native import parts
from rnic.sim.port import IPV4_WIRE_BYTES, Port
from rnic.sim.switch import Switch
from rnic.sim.tasks import Program, Signal, Tasks
from rnic.sim.topology import Link, Topology, TopologyError
from rnic.sim.traffic import Channel, FlowResult, Traffic
from rnic.sim.workloads import Flow
from rnic.spec.limits import BTH_BYTES, GO_BACK_N, ICRC_BYTES
from rnic.trace.counters import Counters
from rnic.wire.flow import ECT

DEFAULT_LIMIT_NS = 10_000_000_000
ASKED_EVERY = 512
"""Events between two questions whether to go on."""
_RETH_BYTES = 16
_AETH_BYTES = 4
_BIT_NS = 8_000_000_000


class Fabric:
    """Switches, links and NICs in virtual time.

    Args:
        topology: who is connected with whom.
        seed: of everything random.
        settings: further fields of :class:`~rnic.device.config.NicConfig`, the same for all NICs.
        traffic_class: of what the NICs send; says by default that they understand marks.
        bare: whether flows may have queue pairs that are the engine's alone, where the fabric is compiled; the run is
            the same.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
        traffic_class: int = ECT,
        bare: bool = True,
    ) -> None:
        self.topology = topology
        recovery = (settings or {}).get("recovery", GO_BACK_N)
        self.parts = parts(traffic_class, len(topology.hosts), recovery)
        self.agenda: Agenda = self.parts.agenda
        self.traffic = Traffic(self.agenda, self.ideal_ns, topology.mtu, traffic_class)
        self.switches: dict[str, Switch] = {}
        self.hosts: dict[str, Host] = {}
        self.ports: dict[tuple[str, str], Port] = {}
        """By the names of the node that sends and of the one that it sends to; the newest of parallel links."""
        self._rng = random.Random(seed)
        self._tasks = Tasks()
        self._links: list[dict[str, Port]] = [self._connect(number) for number in range(len(topology.links))]
        memory = loopback.Fabric()
        for salt, row in enumerate(topology.switches):
            ports = [self._links[number][row.name] for number in topology.ends[row.name]]
            mixed = salt * 0x9E37_79B1 & 0xFFFF_FFFF
            self.switches[row.name] = self.parts.switch(row, self._random(), mixed, ports)
        for index, host in enumerate(topology.hosts):
            self._add_host(host.name, index, memory, dict(settings or {}))
        self._route()
        marks = any(row.marks for row in topology.switches)
        if bare and self.parts.compiled and not (marks and _by_reference(settings)):
            self.traffic.bare = BareFlows(settings, topology.mtu, traffic_class)

    def _random(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    # ------------------------------------------------------------------------------------------ building

    def _connect(self, number: int) -> dict[str, Port]:
        link = self.topology.links[number]
        delays = self.topology.delays
        ports = {}
        for here, there in ((link.a, link.b), (link.b, link.a)):
            port = self.parts.port(f"{here} > {there}", link, self._random(), delays[there])
            ports[here] = self.ports[here, there] = port
        ports[link.a].peer, ports[link.b].peer = ports[link.b], ports[link.a]
        return ports

    def _add_host(self, name: str, index: int, memory: loopback.Fabric, settings: dict[str, Any]) -> None:
        port = self._links[self.topology.ends[name][0]][name]
        address = b"\x0a" + (index + 1).to_bytes(3, "big")
        counters = Counters()
        link = memory.attach(address, max_segments=1, counters=counters)
        if "congestion" in settings:
            # a rate is found below what the wire takes
            dcqcn = replace(settings["congestion"].dcqcn, line_rate=port.window_bytes)
            settings["congestion"] = replace(settings["congestion"], dcqcn=dcqcn)
        config = NicConfig(address, name=name, mtu=self.topology.mtu, **{"fixed_sport": False, **settings})
        nic = Nic(config, rng=self._random(), counters=counters)
        host = self.hosts[name] = self.parts.host(name, nic, link, port)
        host.after = lambda: self.traffic.completed(host)

    def _route(self) -> None:
        for name, switch in self.switches.items():
            for targets, numbers in self.topology.groups(name):
                ways = tuple(self._links[number][name] for number in numbers)
                self.parts.route(switch, [self.hosts[target] for target in targets], ways)

    # ------------------------------------------------------------------------------------------- flows

    @property
    def results(self) -> list[FlowResult]:
        """What is over, in the order of the ends."""
        return self.traffic.results

    @property
    def left(self) -> int:
        """Flows and programs that are not over."""
        return self.traffic.left + self._tasks.running

    def add(self, flows: Iterable[Flow]) -> None:
        """Flows to run; each gets its queue pairs and is posted at its start, and gives them back at its end.

        Raises:
            TopologyError: a host that is not there, a flow to itself, no bytes, or a start that has passed.
        """
        for flow in flows:
            source, target = self._checked(flow)
            self.traffic.left += 1
            if flow.start_ns == self.agenda.now_ns:
                begin = self.traffic.begin(source, target, flow)
            else:
                begin = self._beginning(source, target, flow)
            self.agenda.once(flow.start_ns, begin)

    def _checked(self, flow: Flow) -> tuple[Host, Host]:
        for name in (flow.src, flow.dst):
            if name not in self.hosts:
                raise TopologyError(f"flow {flow.src} > {flow.dst}: there is no host {name}: the topology names them")
        if flow.src == flow.dst or flow.size < 1 or flow.start_ns < self.agenda.now_ns:
            raise TopologyError(f"{flow} cannot be: give two hosts, 1 byte or more and a start that is to come")
        return self.hosts[flow.src], self.hosts[flow.dst]

    def _beginning(self, source: Host, target: Host, flow: Flow) -> Callable[[], None]:
        def begin() -> None:
            post = self.traffic.begin(source, target, flow)
            post()

        return begin

    # ---------------------------------------------------------------------------------------- programs

    def start(self, program: Program) -> Signal[Any]:
        """Run a coroutine in virtual time; the run is not over before it is. Await what is returned for its end.

        It may await what :meth:`write`, :meth:`sleep` and a channel's methods return, and other such ends.
        """
        return self._tasks.start(program)

    def serve(self, program: Program) -> None:
        """Run a coroutine as :meth:`start` does, but the run does not wait for its end."""
        self._tasks.start(program, waited_for=False)

    def sleep(self, time_ns: int) -> Signal[int]:
        """Await it for so long; its value is the time then."""
        over: Signal[int] = Signal()
        self.agenda.once(self.agenda.now_ns + time_ns, lambda: over.set(self.agenda.now_ns))
        return over

    def write(self, src: str, dst: str, size: int, label: str = "") -> Signal[FlowResult]:
        """A flow that starts now; await it for its end.

        Raises:
            TopologyError: as :meth:`add`.
        """
        flow = Flow(src, dst, size, self.agenda.now_ns, label)
        source, target = self._checked(flow)
        self.traffic.left += 1
        over: Signal[FlowResult] = Signal()
        self.traffic.begin(source, target, flow, over)()
        return over

    def channel(self, src: str, dst: str, size: int) -> Channel:
        """A connection that stays, for messages of up to ``size`` bytes from ``src`` to ``dst``.

        Raises:
            TopologyError: as :meth:`add`.
        """
        return Channel(self.traffic, *self._checked(Flow(src, dst, size, self.agenda.now_ns)), size)

    def ideal_ns(self, flow: Flow) -> int:
        """What a flow takes alone: its packets one behind the other through the slowest link, and its ACK back."""
        mtu = self.topology.mtu
        full, rest = divmod(flow.size, mtu)
        count = full + (rest > 0)
        frame = BTH_BYTES + ICRC_BYTES + IPV4_WIRE_BYTES
        total = flow.size + -flow.size % 4 + count * frame + _RETH_BYTES
        first = min(flow.size, mtu) + frame + (_RETH_BYTES if count == 1 else 0)
        way = self._way(flow)
        slowest = min(link.bits_s for link, _ in way)
        at_first = sum(first * _BIT_NS // link.bits_s for link, _ in way)
        ack = sum((frame + _AETH_BYTES) * _BIT_NS // link.bits_s for link, _ in way)
        delays = sum(2 * link.delay_ns for link, _ in way) + sum(delay for _, delay in way)
        return at_first + (total - first) * _BIT_NS // slowest + ack + delays

    def _way(self, flow: Flow) -> list[tuple[Link, int]]:
        """The links of one of its ways, and what the nodes at their ends take, both directions together."""
        nodes = self.topology.delays
        name = flow.src
        way: list[tuple[Link, int]] = []
        while name != flow.dst:
            number = self.topology.ways(name, flow.dst)[0]
            following = self.topology.other_end(number, name)
            way.append((self.topology.links[number], nodes[name] + nodes[following]))
            name = following
        return way

    # ------------------------------------------------------------------------------------------- running

    def run(self, limit_ns: int = DEFAULT_LIMIT_NS, go_on: Callable[[], bool] | None = None) -> list[FlowResult]:
        """Run until all flows and programs are over.

        Args:
            limit_ns: of virtual time, from now.
            go_on: asked each :data:`ASKED_EVERY` events; the run ends where it says no.

        Returns:
            What became of the flows, in the order of their ends.

        Raises:
            TimeoutError: ``limit_ns`` were not enough; ``results`` has what is over.
        """
        end = self.agenda.now_ns + limit_ns
        while self.left:
            if not self.agenda.run(ASKED_EVERY, end, self._busy):
                raise TimeoutError(
                    f"{self.left} flows are not over after {limit_ns / 1e9:g} s of virtual time: "
                    "give more, or less to do"
                )
            if self.left and go_on is not None and not go_on():
                break
        return self.results

    def _busy(self) -> int:
        return self.left

    def every(self, period_ns: int, call: Callable[[int], None]) -> None:
        """Call ``call`` with the time each ``period_ns``, from now on, to look at queues."""

        def act() -> None:
            call(self.agenda.now_ns)
            self.agenda.at(self.agenda.now_ns + period_ns, actor)

        actor = self.agenda.actor(act)
        self.agenda.at(self.agenda.now_ns, actor)

    def count(self, name: str) -> int:
        """A counter, of all NICs together."""
        self.parts.count()
        return sum(host.nic.counters[name] for host in self.hosts.values())

    def close(self) -> None:
        """End programs and close all contexts."""
        self._tasks.close()
        self.traffic.close()
        for host in self.hosts.values():
            host.ctx.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _by_reference(settings: Mapping[str, Any] | None) -> bool:
    """Whether the reference alone knows what NICs with these settings do when marks come."""
    congestion = (settings or {}).get("congestion")
    return congestion is not None and (congestion.mode == "limit" or congestion.limiter)
