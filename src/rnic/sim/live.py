"""A fabric in real time: the switches and links of a topology connect the NICs of running programs.

The NIC process holds all NICs of a fabric and the fabric itself. Sent packets wait at the NIC's port, and the events of
:mod:`rnic.sim.port` and :mod:`rnic.sim.switch` run once the clock has passed their times. So delays, queues, marks, PFC
and losses are those of a simulation, but packets carry their payload. On a busy machine an event may run late; the
fabric records by how much packets are late.

If this machine is slower than the links, time runs slower on the fabric and in its NICs: programs see rates divided and
delays multiplied; everything else is unchanged.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnic.link.base import LinkError, format_address
from rnic.runtime.loop import Runtime
from rnic.sim.fabric import Fabric, host_address
from rnic.sim.host import ROOM, Uplink
from rnic.sim.native import Plain
from rnic.sim.scenario import Scenario
from rnic.sim.telemetry import Echoes
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.trace.counters import Counters
from rnic.verbs.devices import nic_on
from rnic.wire.bursts import TxBurst

if TYPE_CHECKING:
    from rnic.device.nic import Nic
    from rnic.link.base import Link
    from rnic.link.loopback import Fabric as Memory
    from rnic.link.loopback import LoopbackLink
    from rnic.sim.port import Packet, Port
    from rnic.sim.topology import Topology

LIVE_NET = 127
"""First byte of the hosts' addresses: host 0 is 127.0.0.1, to which programs can also connect with TCP."""
PACKETS_S = 8_000
"""Packets of the path MTU that all NICs together may send per second: about the capacity of one core."""
AWAKE_S = 100e-6
"""Time before an event in which the NIC process spins, since it would wake up too late."""
_BITS = 8


def slowness(topology: Topology) -> int:
    """Return the factor by which time must run slower for one core to carry the traffic of all hosts."""
    whole = sum(topology.links[topology.ends[host.name][0]].bits_s for host in topology.hosts)
    return max(1, ceil(whole / (PACKETS_S * topology.mtu * _BITS)))


class LiveHost:
    """A host of the fabric, whose NIC changes as programs start and exit.

    Args:
        name: name of the host in the topology.
        address: its IP address.
        port: its end of its one link.

    ``counters`` are the sums over all its NICs so far; ``nic`` is the current one.
    """

    def __init__(self, name: str, address: bytes, port: Port) -> None:
        self.name = name
        self.address = address
        self.port = port
        self.counters = Counters()
        self.nic: Nic | None = None
        self.link: LiveLink | None = None
        port.left = self._left

    def room(self) -> bool:
        """Return whether the NIC should build packets."""
        return self.port.waiting < ROOM

    def arrive(self, packet: Packet) -> None:
        """Process a packet that arrived over the link."""
        if self.link is None:
            self.counters.bump("drop_rx_no_nic")
        else:
            self.link.arrive(packet)

    def _left(self, packet: Packet) -> None:
        """Do nothing: the NIC process polls for room."""

    def count(self, name: str) -> int:
        """Return a counter."""
        return (self.counters if self.nic is None else self.nic.counters)[name]


class LiveLink(Uplink):
    """The link of a NIC on a live fabric."""

    frame_sender = None
    """None: these switches carry only RDMA packets."""

    def __init__(self, inner: LoopbackLink, host: LiveHost, fabric: LiveFabric) -> None:
        super().__init__(inner, host.port, fabric.control_priority)
        self._host = host
        self._fabric = fabric
        self.waiting = False
        """True if arrived packets wait to be received."""

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Put packets on the wire, or queue them. Packets for unknown hosts are dropped and counted."""
        self._fabric.begin()
        self._fabric.advance()
        out = []
        for burst in bursts:
            if burst.flow.dst == self.address:
                self.inner.send([burst])
                self.waiting = True
            elif burst.flow.dst not in self._fabric.addresses:
                self.counters.bump("drop_tx_unreachable", burst.count)
            else:
                whole = b"".join(burst.buffers)  # it must stay valid while the packet is in flight
                out.append(TxBurst(burst.flow, [whole], burst.segment, burst.count, burst.length))
        super().send(out)

    def arrive(self, packet: Packet) -> None:
        """Process a packet that arrived over the link."""
        self.waiting = True
        self._fabric.note_arrival()
        echoes = self.echoes
        self.take(packet, None if echoes is None else echoes.take(packet, self._fabric.agenda.now_ns))

    def receive(self, limit: int) -> Any:
        """See :meth:`rnic.link.base.Link.receive`."""
        found = self.inner.receive(limit)
        self.waiting = len(found) >= limit
        return found

    def next_deadline_ns(self) -> int | None:
        """Return the time of the fabric's next event."""
        return self._fabric.agenda.next_ns()

    def join(self, group: bytes) -> None:
        """Refuse: these switches have no multicast groups."""
        raise LinkError(f"group {format_address(group)}: a simulated fabric has no multicast: use UDP links for that")

    def close(self) -> None:
        """Release the host for another NIC."""
        if self._host.link is self:
            self._host.link = None
        super().close()


class LiveRuntime(Runtime):
    """The loop of a NIC on a live fabric, which sends only what its wire has room for."""

    def __init__(self, nic: Nic, link: Link, host: LiveHost, fabric: LiveFabric) -> None:
        self._host = host
        self._fabric = fabric
        super().__init__(nic, link, fabric.now)

    def has_turn(self) -> bool:
        """See :meth:`rnic.runtime.rounds.Rounds.has_turn`."""
        return self._host.room() and self.nic.has_work()

    def _round(self, now: int) -> bool:
        self._fabric.advance()
        link, nic = self._host.link, self.nic
        due = nic.next_deadline_ns()
        idle = (due is None or due > now) and (link is None or not link.waiting)
        if idle and not self.has_turn() and not nic.resources.interrupts:
            return False
        return super()._round(now)

    def seconds_until_due(self) -> float:
        """See :meth:`rnic.runtime.rounds.Rounds.seconds_until_due`: in real time."""
        return max(0.0, super().seconds_until_due() * self._fabric.slower - AWAKE_S)

    def _transmit(self, now: int) -> bool:
        whole = self.budget
        self.budget = min(whole, self._fabric.burst_packets) if self._host.room() else 0
        try:
            return super()._transmit(now)
        finally:
            self.budget = whole

    def close(self) -> None:
        """See :meth:`rnic.runtime.loop.Runtime.close`."""
        if self._host.nic is self.nic:
            self._host.count("")  # bring them up to date
            self._host.nic = None
        super().close()


class LiveFabric(Fabric):
    """Switches and links in real time.

    Args:
        scenario: topology, congestion control and settings of the NICs; workloads are not run.
        slower: factor by which time runs slower than the clock; 0 uses :func:`slowness`.
        clock: returns nanoseconds.
    """

    def __init__(self, scenario: Scenario, slower: int = 0, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.slower = slower or slowness(scenario.topology)
        self._clock = clock
        self._memory: Memory
        self._settings: dict[str, Any] = {}
        self.addresses: set[bytes] = set()
        self.late: Counter[int] = Counter()
        """Packets that arrived late, by the length in bits of their lateness in nanoseconds."""
        self.late_max_ns = 0
        self.kept = False
        self._begun_ns: int | None = None
        self._seen_ns = 0
        super().__init__(
            scenario.topology,
            seed=scenario.seed,
            settings={**scenario.nic, "congestion": scenario.congestion},
            bare=False,
            **scenario.edge,
        )
        scenario.plan(self)

    def _make_parts(self, control: int, burst: int, recovery: str) -> Any:
        self.control_priority, self.burst_packets = control, burst
        return Plain(control, burst)

    def _add_host(self, name: str, index: int, memory: Memory, settings: dict[str, Any]) -> None:
        self._memory, self._settings = memory, settings
        port = self._links[self.topology.ends[name][0]][name]
        host: Any = LiveHost(name, host_address(LIVE_NET, index), port)
        port.peer.arrive = host.arrive
        self.addresses.add(host.address)
        self.hosts[name] = host

    @property
    def used(self) -> bool:
        """True if the fabric has a NIC, or must be kept without one."""
        return self.kept or any(host.link is not None for host in self._places)

    @property
    def _places(self) -> list[LiveHost]:
        places: Any = self.hosts.values()
        return list(places)

    def host(self, number: int) -> LiveHost:
        """Return a host by its number, starting at 0.

        Raises:
            LinkError: there is none.
        """
        places = self._places
        if not 0 <= number < len(places):
            raise LinkError(f"host {number} is not on the fabric: give 0 to {len(places) - 1}")
        return places[number]

    def connect(self, host: LiveHost) -> LiveLink:
        """Return the link of a new NIC of a host.

        Raises:
            LinkError: the host already has a NIC.
        """
        inner = self._memory.attach(host.address, ROCE_UDP_PORT, max_segments=1, counters=host.counters)
        host.link = LiveLink(inner, host, self)
        return host.link

    def runtime(self, host: LiveHost, link: Link, **settings: Any) -> Runtime:
        """Return a NIC with its loop.

        Args:
            host: its host.
            link: what :meth:`connect` returned, or middleware before it.
            settings: fields of :class:`~rnic.device.config.NicConfig` that override the scenario's.

        Raises:
            VerbsError: a value is invalid.
        """
        chosen = self._nic_settings(host.port, {**self._settings, **settings})
        nic = nic_on(link, host.counters, **chosen)
        nic.inflight.begin_wide()
        if nic.congestion.settings.kind.telemetry and host.link is not None:
            host.link.echoes = Echoes(nic)
        host.nic = nic
        return LiveRuntime(nic, link, host, self)

    # -------------------------------------------------------------------------------------------- time

    def begin(self) -> None:
        """Start the fabric's time, if it has not started."""
        if self._begun_ns is None:
            self._begun_ns = self._clock()

    def now(self) -> int:
        """Return the fabric's time, which starts with the first packet."""
        return 0 if self._begun_ns is None else (self._clock() - self._begun_ns) // self.slower

    def advance(self) -> None:
        """Run all due events."""
        agenda = self.agenda
        now_ns = self.now()
        due = agenda.next_ns()
        self._seen_ns = now_ns
        while due is not None and due <= now_ns:
            agenda.step()
            due = agenda.next_ns()
        agenda.now_ns = max(agenda.now_ns, now_ns)

    def note_arrival(self) -> None:
        """Record by how much the packet arriving now is late."""
        late_ns = self._seen_ns - self.agenda.now_ns
        self.late[late_ns.bit_length()] += 1
        self.late_max_ns = max(self.late_max_ns, late_ns)

    def lateness(self) -> dict[str, int]:
        """Return the maximum and the 99th percentile of packet lateness, in the fabric's time."""
        left = self.late.total() // 100
        high = 0
        for bits in sorted(self.late, reverse=True):
            high = (1 << bits) - 1
            left -= self.late[bits]
            if left < 0:
                break
        return {"late_p99_ns": min(high, self.late_max_ns), "late_max_ns": self.late_max_ns}

    def count(self, name: str) -> int:
        """See :meth:`Fabric.count`."""
        return sum(host.count(name) for host in self._places)

    def close(self) -> None:
        """Discard packets in flight."""
        self._tasks.close()
        self.traffic.close()


_of_files: dict[str, LiveFabric] = {}
"""Fabrics of this process by their files."""


def live_fabric(path: str, slower: int = 0) -> LiveFabric:
    """Return the fabric of a scenario file; replace one without NICs.

    Raises:
        OSError: the file cannot be read.
        RnicError: it is invalid, or its fabric runs with another ``slower``.
    """
    found = _of_files.get(path)
    if found is None or not found.used:
        found = _of_files[path] = LiveFabric(Scenario.load(Path(path), live=True), slower)
    elif slower not in (0, found.slower):
        raise LinkError(f"fabric {path} runs {found.slower} times slower already: wait until its NICs are gone")
    return found


def keep_fabric(path: str, fabric: LiveFabric) -> None:
    """Use this fabric for a file's NICs, even while it has none."""
    fabric.kept = True
    _of_files[path] = fabric
