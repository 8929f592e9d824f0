"""The fabric: a topology with NICs at its edge, run until the flows are over."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

from rnic.device.config import NicConfig
from rnic.device.nic import Nic
from rnic.link import loopback
from rnic.sim.agenda import Agenda
from rnic.sim.host import Host
from rnic.sim.port import IPV4_WIRE_BYTES, Packet, Port
from rnic.sim.switch import Switch
from rnic.sim.topology import Link, Topology, TopologyError
from rnic.sim.workloads import Flow
from rnic.spec.limits import BTH_BYTES, ICRC_BYTES, MTU_CODES
from rnic.spec.opcodes import WR_WRITE
from rnic.trace.counters import Counters
from rnic.verbs import CQ, MR, PD, QP, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr
from rnic.verbs import enums as e
from rnic.wire.flow import ECT

DEFAULT_LIMIT_NS = 10_000_000_000
_RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
_RETH_BYTES = 16
_AETH_BYTES = 4
_BIT_NS = 8_000_000_000


class FlowResult(NamedTuple):
    """A flow that is over: from its start to its completion at the sender."""

    flow: Flow
    end_ns: int
    ideal_ns: int
    """What it would take alone."""
    status: int
    """Of its completion."""

    @property
    def took_ns(self) -> int:
        """Its completion time."""
        return self.end_ns - self.flow.start_ns

    @property
    def slowdown(self) -> float:
        """Its completion time over what it would take alone."""
        return self.took_ns / self.ideal_ns


class _Running:
    """A flow on its queue pair."""

    __slots__ = ("flow", "post")

    def __init__(self, flow: Flow, post: Callable[[], None]) -> None:
        self.flow = flow
        self.post = post


class Fabric:
    """Switches, links and NICs in virtual time.

    Args:
        topology: who is connected with whom.
        seed: of everything random.
        settings: further fields of :class:`~rnic.device.config.NicConfig`, the same for all NICs.
        traffic_class: of what the NICs send; says by default that they understand marks.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
        traffic_class: int = ECT,
    ) -> None:
        self.topology = topology
        self.agenda = Agenda()
        self.results: list[FlowResult] = []
        self.switches: dict[str, Switch] = {}
        self.hosts: dict[str, Host] = {}
        self.ports: dict[tuple[str, str], Port] = {}
        """By the names of the node that sends and of the one that it sends to; the newest of parallel links."""
        self._traffic_class = traffic_class
        self._rng = random.Random(seed)
        self._running: dict[str, dict[int, Flow]] = {host.name: {} for host in topology.hosts}
        self._left = 0
        self._ends: dict[str, tuple[PD, CQ, MR]] = {}
        self._links: list[dict[str, Port]] = [self._connect(number) for number in range(len(topology.links))]
        memory = loopback.Fabric()
        for salt, row in enumerate(topology.switches):
            self._add_switch(row.name, Switch(row, self._random(), salt * 0x9E37_79B1 & 0xFFFF_FFFF))
        for index, host in enumerate(topology.hosts):
            self._add_host(host.name, index, memory, dict(settings or {}))
        self._route()

    def _random(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    # ------------------------------------------------------------------------------------------ building

    def _connect(self, number: int) -> dict[str, Port]:
        link = self.topology.links[number]
        delays = self.topology.delays
        ports = {}
        for here, there in ((link.a, link.b), (link.b, link.a)):
            port = Port(self.agenda, f"{here} > {there}", link, self._random(), delays[there])
            ports[here] = self.ports[here, there] = port
        ports[link.a].peer, ports[link.b].peer = ports[link.b], ports[link.a]
        return ports

    def _add_switch(self, name: str, switch: Switch) -> None:
        self.switches[name] = switch
        for link, ports in zip(self.topology.links, self._links, strict=True):
            if name in (link.a, link.b):
                number = switch.add(ports[name])
                ports[name].left = switch.left
                ports[name].peer.arrive = _arriving(switch, number)

    def _add_host(self, name: str, index: int, memory: loopback.Fabric, settings: dict[str, Any]) -> None:
        port = next(ports[name] for ports in self._links if name in ports)
        address = b"\x0a" + (index + 1).to_bytes(3, "big")
        counters = Counters()
        link = memory.attach(address, max_segments=1, counters=counters)
        if "congestion" in settings:
            # a rate is found below what the wire takes
            dcqcn = replace(settings["congestion"].dcqcn, line_rate=port.window_bytes)
            settings["congestion"] = replace(settings["congestion"], dcqcn=dcqcn)
        config = NicConfig(address, name=name, mtu=self.topology.mtu, **{"fixed_sport": False, **settings})
        nic = Nic(config, rng=self._random(), counters=counters)
        host = self.hosts[name] = Host(name, nic, link, port, self.agenda)
        host.after = lambda: self._completed(host)
        port.peer.arrive = host.arrive

    def _route(self) -> None:
        for name, switch in self.switches.items():
            for target, numbers in self.topology.routes[name].items():
                address = self.hosts[target].nic.config.address
                switch.routes[address] = tuple(self._links[number][name] for number in numbers)

    # ------------------------------------------------------------------------------------------- flows

    def add(self, flows: Iterable[Flow]) -> None:
        """Flows to run; each gets its queue pairs now, and is posted at its start.

        Raises:
            TopologyError: a host that is not there, a flow to itself, no bytes, or a start that has passed.
        """
        for flow in flows:
            for name in (flow.src, flow.dst):
                if name not in self.hosts:
                    raise TopologyError(f"flow {flow.src} > {flow.dst}: there is no host {name}")
            if flow.src == flow.dst or flow.size < 1 or flow.start_ns < self.agenda.now_ns:
                raise TopologyError(f"{flow} cannot be: give two hosts, 1 byte or more and a start that is to come")
            self._begin(flow)

    def _begin(self, flow: Flow) -> None:
        source, target = (self._end(name, flow.size) for name in (flow.src, flow.dst))
        one, other = (
            QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(1, 1), scq=cq, rcq=cq)) for pd, cq, _ in (source, target)
        )
        for qp, peer, name in ((one, other, flow.dst), (other, one, flow.src)):
            attr = QPAttr()
            attr.path_mtu, attr.timeout, attr.retry_cnt, attr.rnr_retry = MTU_CODES[self.topology.mtu], 14, 7, 7
            attr.max_rd_atomic = attr.max_dest_rd_atomic = 16
            attr.dest_qp_num, attr.qp_access_flags = peer.qp_num, _RIGHTS
            ctx = self.hosts[name].ctx
            route = GlobalRoute(ctx.query_gid(), traffic_class=self._traffic_class)
            attr.ah_attr = AHAttr(route, udp_dport=ctx.udp_port)
            qp.to_rts(attr)
        self._running[flow.src][one.qp_num] = flow
        self._left += 1
        mr, there = source[2], target[2]

        def post() -> None:
            one.post_rdma(WR_WRITE, mr.buf, flow.size, mr.lkey, there.buf, there.rkey)
            self.hosts[flow.src].wake()

        self.agenda.at(flow.start_ns, self.agenda.actor(post))

    def _end(self, name: str, size: int) -> tuple[PD, CQ, MR]:
        """A host's domain, completion queue, and a region that is large enough for a flow."""
        end = self._ends.get(name)
        if end is None or len(memoryview(end[2].buffer)) < size:
            ctx = self.hosts[name].ctx
            pd, cq = (PD(ctx), CQ(ctx, 4_096)) if end is None else end[:2]
            end = self._ends[name] = (pd, cq, MR(pd, bytearray(size), _RIGHTS))
        return end

    def _completed(self, host: Host) -> None:
        end = self._ends.get(host.name)
        if end is None or not self._running[host.name]:
            return
        count, completions = end[1].poll(64)
        for completion in completions[:count]:
            flow = self._running[host.name].pop(completion.qp_num)
            self._left -= 1
            self.results.append(FlowResult(flow, self.agenda.now_ns, self.ideal_ns(flow), completion.status))

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
            number = self.topology.routes[name][flow.dst][0]
            following = self.topology.other_end(number, name)
            way.append((self.topology.links[number], nodes[name] + nodes[following]))
            name = following
        return way

    # ------------------------------------------------------------------------------------------- running

    def run(self, limit_ns: int = DEFAULT_LIMIT_NS) -> list[FlowResult]:
        """Run until all flows are over.

        Returns:
            What became of them, in the order of their ends.

        Raises:
            TimeoutError: ``limit_ns`` of virtual time were not enough.
        """
        end = self.agenda.now_ns + limit_ns
        while self._left:
            if not self.agenda.step() or self.agenda.now_ns > end:
                raise TimeoutError(f"{self._left} flows are not over after {limit_ns / 1e9:g} s of virtual time")
        return self.results

    def every(self, period_ns: int, call: Callable[[int], None]) -> None:
        """Call ``call`` with the time each ``period_ns``, from now on, to look at queues."""

        def act() -> None:
            call(self.agenda.now_ns)
            self.agenda.at(self.agenda.now_ns + period_ns, actor)

        actor = self.agenda.actor(act)
        self.agenda.at(self.agenda.now_ns, actor)

    def count(self, name: str) -> int:
        """A counter, of all NICs together."""
        return sum(host.nic.counters[name] for host in self.hosts.values())

    def close(self) -> None:
        """Close all contexts."""
        for host in self.hosts.values():
            host.ctx.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _arriving(switch: Switch, number: int) -> Callable[[Packet], None]:
    return lambda packet: switch.arrive(packet, number)
