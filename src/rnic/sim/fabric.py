"""The fabric: a topology with NICs at its edge, run until all flows have ended."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

from rnic.device.config import NicConfig
from rnic.device.nic import Nic
from rnic.device.paths import source_port
from rnic.link import loopback
from rnic.sim.agenda import Agenda
from rnic.sim.bare import BareFlows
from rnic.sim.host import BURST, CONTROL_PRIORITY, Host
from rnic.sim.native import parts
from rnic.sim.port import IPV4_WIRE_BYTES, PRIORITIES, Port
from rnic.sim.switch import Switch, mixed
from rnic.sim.tasks import Program, Signal, Tasks
from rnic.sim.topology import Link, Routes, Topology, TopologyError
from rnic.sim.traffic import Channel, FlowResult, Traffic
from rnic.sim.workloads import Flow
from rnic.spec.limits import BTH_BYTES, GO_BACK_N, ICRC_BYTES
from rnic.trace.counters import Counters
from rnic.wire.crc import crc32
from rnic.wire.flow import ECT

DEFAULT_LIMIT_NS = 10_000_000_000
MAX_BURST = 64
NET = 10
"""First byte of the addresses of NICs."""
_MAX_IDEALS = 1 << 16
_MAX_MRS = 256
"""Memory regions of a NIC: one for its flows, the others for programs."""
ASKED_EVERY = 512
"""Events between two calls of ``go_on``."""
_RETH_BYTES = 16
_AETH_BYTES = 4
_BIT_NS = 8_000_000_000


class Fabric:
    """Switches, links and NICs in virtual time.

    Args:
        topology: the hosts, switches and links.
        seed: seed of all random choices.
        settings: further fields of :class:`~rnic.device.config.NicConfig`, the same for all NICs.
        traffic_class: traffic class of the NICs' packets; by default with ECT, so that switches may mark them. Its
            upper three bits are the default priority of flows.
        control_priority: priority of ACKs and CNPs, 0 to 7.
        burst_packets: packets that a NIC sends at once, 1 to 64; packets of other queue pairs wait for them.
        bare: true if flows may have queue pairs that exist only in the compiled engine; the run is the same.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
        traffic_class: int = ECT,
        control_priority: int = CONTROL_PRIORITY,
        burst_packets: int = BURST,
        bare: bool = True,
    ) -> None:
        if control_priority not in range(PRIORITIES):
            raise TopologyError(f"control_priority={control_priority} cannot be: give 0 to {PRIORITIES - 1}")
        if not 1 <= burst_packets <= MAX_BURST:
            raise TopologyError(f"burst_packets={burst_packets} cannot be: give 1 to {MAX_BURST}")
        self.topology = topology
        recovery = (settings or {}).get("recovery", GO_BACK_N)
        self.parts = self._make_parts(control_priority, burst_packets, recovery)
        self.agenda: Agenda = self.parts.agenda
        self.traffic = Traffic(self.agenda, self.ideal_ns, topology.mtu, traffic_class)
        self.switches: dict[str, Switch] = {}
        self.hosts: dict[str, Host] = {}
        self.ports: dict[tuple[str, str], Port] = {}
        """Ports by the names of sending and receiving node; of parallel links, the newest."""
        self._rng = random.Random(seed)
        settings = {"turn_bytes": topology.mtu, "max_mrs": _MAX_MRS, **(settings or {})}
        self._tasks = Tasks()
        self._salts: dict[str, int] = {}
        self._down: set[int] = set()
        """Links that are down, by number."""
        self._ideals: dict[tuple[object, ...], int] = {}
        self._edges: dict[str, tuple[str, int, int, int]] = {}
        self._weights = {host.name: host.weights for host in topology.hosts}
        self._weights |= {row.name: row.weights for row in topology.switches}
        self._links: list[dict[str, Port]] = [self._connect(number) for number in range(len(topology.links))]
        with _collector_off():
            self._build(dict(settings))
        if bare and self.parts.compiled:
            self.traffic.bare = BareFlows(settings, topology.mtu, traffic_class)

    def _make_parts(self, control: int, burst: int, recovery: str) -> Any:
        return parts(control, burst, len(self.topology.hosts), recovery)

    def _random(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    # ------------------------------------------------------------------------------------------ building

    def _build(self, settings: dict[str, Any]) -> None:
        topology = self.topology
        memory = loopback.Fabric()
        for salt, row in enumerate(topology.switches):
            ports = [self._links[number][row.name] for number in topology.ends[row.name]]
            self._salts[row.name] = salt * 0x9E37_79B1 & 0xFFFF_FFFF
            headrooms = topology.headrooms(row)
            made = self.parts.switch(row, self._random(), self._salts[row.name], ports, headrooms)
            self.switches[row.name] = made
        for index, host in enumerate(topology.hosts):
            self._add_host(host.name, index, memory, dict(settings))
        self._route()

    def _connect(self, number: int) -> dict[str, Port]:
        link = self.topology.links[number]
        delays = self.topology.delays
        ports = {}
        for here, there in ((link.a, link.b), (link.b, link.a)):
            name = f"{here} > {there}"
            port = self.parts.port(name, link, self._random(), delays[there], self._weights[here])
            ports[here] = self.ports[here, there] = port
        ports[link.a].peer, ports[link.b].peer = ports[link.b], ports[link.a]
        return ports

    def _add_host(self, name: str, index: int, memory: loopback.Fabric, settings: dict[str, Any]) -> None:
        port = self._links[self.topology.ends[name][0]][name]
        address = host_address(NET, index)
        counters = Counters()
        link = memory.attach(address, max_segments=1, counters=counters)
        config = NicConfig(address, name=name, **self._nic_settings(port, settings))
        nic = Nic(config, rng=self._random(), counters=counters)
        nic.inflight.begin_wide()
        host = self.hosts[name] = self.parts.host(name, nic, link, port)
        host.after = lambda: self.traffic.completed(host)

    def _nic_settings(self, port: Port, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of the NIC at a port."""
        made = {"fixed_sport": False, "mtu": self.topology.mtu, **settings}
        if "congestion" in made:
            # the reaction point must not exceed the link rate
            dcqcn = replace(made["congestion"].dcqcn, line_rate=port.window_bytes)
            made["congestion"] = replace(made["congestion"], dcqcn=dcqcn)
        return made

    def _route(self, routes: Routes | None = None) -> None:
        for name, switch in self.switches.items():
            for targets, numbers in self.topology.groups(name, routes):
                ways = tuple(self._links[number][name] for number in numbers)
                self.parts.route(switch, [self.hosts[target] for target in targets], ways)

    def change(self, a: str, b: str, *, gbps: float | None = None, up: bool | None = None) -> None:
        """Change all links between two nodes.

        A link that is down loses packets sent over it, and switches use other paths at once, if there are any.

        Args:
            a: one end.
            b: the other end.
            gbps: the new rate; packets in transmission keep the old one.
            up: whether the links carry packets.

        Raises:
            TopologyError: there is no such link, or no such rate.
        """
        numbers = [at for at, link in enumerate(self.topology.links) if {link.a, link.b} == {a, b}]
        if not numbers:
            raise TopologyError(f"link {a} - {b}: there is none: the topology names them")
        for number in numbers:
            for port in self._links[number].values():
                if gbps is not None:
                    port.bits_s = replace(self.topology.links[number], gbps=gbps).bits_s
                if up is not None:
                    port.down = not up
        if up is not None:
            (self._down.difference_update if up else self._down.update)(numbers)
            self._route(self.topology.routes(self._down))

    # ------------------------------------------------------------------------------------------- flows

    @property
    def results(self) -> list[FlowResult]:
        """Finished flows, in the order of completion."""
        return self.traffic.results

    @property
    def left(self) -> int:
        """Number of unfinished flows and programs."""
        return self.traffic.left + self._tasks.running

    def add(self, flows: Iterable[Flow]) -> None:
        """Add flows to run. Each gets queue pairs and is posted at its start, and frees the queue pairs at its end.

        Raises:
            TopologyError: an unknown host, a flow to itself, no bytes, or a start in the past.
        """
        with _collector_off():
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
        if flow.priority not in range(PRIORITIES):
            raise TopologyError(f"{flow}: priority={flow.priority} cannot be: give 0 to {PRIORITIES - 1}")
        return self.hosts[flow.src], self.hosts[flow.dst]

    def _beginning(self, source: Host, target: Host, flow: Flow) -> Callable[[], None]:
        def begin() -> None:
            post = self.traffic.begin(source, target, flow)
            post()

        return begin

    # ---------------------------------------------------------------------------------------- programs

    def start(self, program: Program) -> Signal[Any]:
        """Run a coroutine in virtual time; the run waits for it. Await the returned signal for its end.

        It may await the signals that :meth:`write`, :meth:`sleep`, :meth:`start` and a channel's methods return.
        """
        return self._tasks.start(program)

    def serve(self, program: Program) -> None:
        """Run a coroutine as :meth:`start` does, but the run does not wait for its end."""
        self._tasks.start(program, waited_for=False)

    def sleep(self, time_ns: int) -> Signal[int]:
        """Return a signal that is set after ``time_ns``; its value is the time then."""
        over: Signal[int] = Signal()
        self.agenda.once(self.agenda.now_ns + time_ns, lambda: over.set(self.agenda.now_ns))
        return over

    def write(self, src: str, dst: str, size: int, label: str = "", priority: int = 0) -> Signal[FlowResult]:
        """Start a flow now. Await the returned signal for its end.

        Raises:
            TopologyError: as :meth:`add`.
        """
        flow = Flow(src, dst, size, self.agenda.now_ns, label, priority)
        source, target = self._checked(flow)
        self.traffic.left += 1
        over: Signal[FlowResult] = Signal()
        self.traffic.begin(source, target, flow, over)()
        return over

    def channel(self, src: str, dst: str, size: int, priority: int = 0) -> Channel:
        """Open a persistent connection, for messages of up to ``size`` bytes from ``src`` to ``dst``.

        Raises:
            TopologyError: as :meth:`add`.
        """
        flow = Flow(src, dst, size, self.agenda.now_ns, priority=priority)
        return Channel(self.traffic, *self._checked(flow), size, priority)

    def ideal_ns(self, flow: Flow) -> int:
        """Return the ideal time of a flow: its packets back to back through the slowest link, and the ACK back."""
        key = self._edge(flow.src), self._edge(flow.dst), flow.size
        found = self._ideals.get(key)
        if found is None:
            if len(self._ideals) >= _MAX_IDEALS:
                self._ideals.clear()
            found = self._ideals[key] = self._compute_ideal_ns(flow)
        return found

    def _edge(self, name: str) -> tuple[str, int, int, int]:
        """Return all properties of a host on which a flow's ideal time depends."""
        found = self._edges.get(name)
        if found is None:
            topology = self.topology
            link = topology.links[topology.ends[name][0]]
            found = topology.gateway(name), link.bits_s, link.delay_ns, topology.delays[name]
            self._edges[name] = found
        return found

    def _compute_ideal_ns(self, flow: Flow) -> int:
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

    def path(self, result: FlowResult) -> list[str]:
        """Return the names of the nodes on a flow's path, from the hash of its addresses and ports.

        Empty for a channel's flow. It is the path of the fabric as built, with no link down.
        """
        if result.qps is None:
            return []
        flow, topology = result.flow, self.topology
        source, target = (self.hosts[name].nic.config for name in (flow.src, flow.dst))
        ports = source_port(*result.qps) << 16 | target.port
        way = crc32(source.address + target.address + ports.to_bytes(4, "big"))
        path = [flow.src]
        while path[-1] != flow.dst:
            ways = topology.ways(path[-1], flow.dst)
            at = mixed(way ^ self._salts[path[-1]]) % len(ways) if len(ways) > 1 else 0
            path.append(topology.other_end(ways[at], path[-1]))
        return path

    def _way(self, flow: Flow) -> list[tuple[Link, int]]:
        """Return the links of one of a flow's paths, each with the sum of its end nodes' delays, for each direction."""
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
        """Run until all flows and programs have ended.

        Args:
            limit_ns: limit in virtual time, from now.
            go_on: called every :data:`ASKED_EVERY` events; the run ends if it returns false.

        Returns:
            The results of the flows, in the order of completion.

        Raises:
            TimeoutError: ``limit_ns`` was too short; ``results`` has the finished flows.
        """
        end = self.agenda.now_ns + limit_ns
        freezes = not gc.get_freeze_count()  # keep objects frozen that the program froze
        if freezes:
            gc.freeze()  # garbage collections would traverse the whole fabric repeatedly
        try:
            while self.left:
                if not self.agenda.run(ASKED_EVERY, end, self._busy):
                    raise TimeoutError(
                        f"{self.left} flows are not over after {limit_ns / 1e9:g} s of virtual time: "
                        "give more, or less to do"
                    )
                if self.left and go_on is not None and not go_on():
                    break
        finally:
            if freezes:
                gc.unfreeze()
        return self.results

    def _busy(self) -> int:
        return self.left

    def every(self, period_ns: int, call: Callable[[int], None]) -> None:
        """Call ``call`` with the time every ``period_ns``, to sample queues."""

        def act() -> None:
            call(self.agenda.now_ns)
            self.agenda.at(self.agenda.now_ns + period_ns, actor)

        actor = self.agenda.actor(act)
        self.agenda.at(self.agenda.now_ns, actor)

    def count(self, name: str) -> int:
        """Return a counter, summed over all NICs."""
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


def host_address(net: int, index: int) -> bytes:
    """Return the address of a host by its number, starting at 0."""
    return (net << 24 | index + 1).to_bytes(4, "big")


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Suspend garbage collection: while a fabric grows, each collection would traverse all of it and free nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
