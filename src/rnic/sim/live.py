"""A fabric in real time: the switches and links of a topology between the NICs of programs that run now.

The NIC process has all NICs of a fabric, and the fabric between them. What a NIC sends waits at its port, and the
events of :mod:`rnic.sim.port` and :mod:`rnic.sim.switch` happen once the clock has passed their times. Delays, queues,
marks, PFC and losses are thus those of a simulation, and packets carry their payload. An event may happen late, where
this machine is busy; the fabric counts by how much packets do.

Where this machine cannot carry what the links can, time passes more slowly on the fabric and in its NICs: programs find
rates divided and delays multiplied, and all else is as it would be.
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
"""First byte of the hosts' addresses: host 0 is 127.0.0.1, to which programs can connect by TCP, too."""
PACKETS_S = 8_000
"""Packets of the path MTU that all NICs together may send in a second: about what one core moves through switches."""
AWAKE_S = 100e-6
"""Time before an event in which the NIC process does not sleep, since it would wake too late."""
_BITS = 8


def slowness(topology: Topology) -> int:
    """Return how many times slower than the clock time must pass for this machine to carry what all hosts send."""
    whole = sum(topology.links[topology.ends[host.name][0]].bits_s for host in topology.hosts)
    return max(1, ceil(whole / (PACKETS_S * topology.mtu * _BITS)))


class LiveHost:
    """The place of a NIC at the edge; programs come and go.

    Args:
        name: name of the host in the topology.
        address: its IP address.
        port: its end of its one link.

    ``counters`` are those of all NICs that were there. ``nic`` is the one that is there now.
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
        """Return whether the NIC is to make packets."""
        return self.port.waiting < ROOM

    def arrive(self, packet: Packet) -> None:
        """Take a packet that came over the link."""
        if self.link is None:
            self.counters.bump("drop_rx_no_nic")
        else:
            self.link.arrive(packet)

    def _left(self, packet: Packet) -> None:
        """Do nothing: the NIC process asks whether there is room."""

    def count(self, name: str) -> int:
        """Return a counter."""
        return (self.counters if self.nic is None else self.nic.counters)[name]


class LiveLink(Uplink):
    """The link of a NIC on a live fabric."""

    frame_sender = None
    """None: switches here carry RDMA packets alone."""

    def __init__(self, inner: LoopbackLink, host: LiveHost, fabric: LiveFabric) -> None:
        super().__init__(inner, host.port, fabric.control_priority)
        self._host = host
        self._fabric = fabric
        self.waiting = False
        """True if packets have arrived that were not received."""

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Put packets on the wire, or queue them for it. Those for no host of the fabric are dropped and counted."""
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
                whole = b"".join(burst.buffers)  # it stays while the packet is on its way
                out.append(TxBurst(burst.flow, [whole], burst.segment, burst.count, burst.length))
        super().send(out)

    def arrive(self, packet: Packet) -> None:
        """Take a packet that came over the link."""
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
        """Return when the next event of the fabric is due."""
        return self._fabric.agenda.next_ns()

    def join(self, group: bytes) -> None:
        """Refuse: switches here have no multicast groups."""
        raise LinkError(f"group {format_address(group)}: a simulated fabric has no multicast: use UDP links for that")

    def close(self) -> None:
        """Leave the host's place to another NIC."""
        if self._host.link is self:
            self._host.link = None
        super().close()


class LiveRuntime(Runtime):
    """The loop of a NIC on a live fabric, which sends no more than its wire has room for."""

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
        """See :meth:`rnic.runtime.rounds.Rounds.seconds_until_due`: by the clock of programs."""
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
        slower: how many times slower than the clock time passes; 0 takes what :func:`slowness` says.
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
        """True if a NIC is there, or the fabric is to stay without one."""
        return self.kept or any(host.link is not None for host in self._places)

    @property
    def _places(self) -> list[LiveHost]:
        places: Any = self.hosts.values()
        return list(places)

    def host(self, number: int) -> LiveHost:
        """Return a host by its number, from 0 on.

        Raises:
            LinkError: there is none.
        """
        places = self._places
        if not 0 <= number < len(places):
            raise LinkError(f"host {number} is not on the fabric: give 0 to {len(places) - 1}")
        return places[number]

    def connect(self, host: LiveHost) -> LiveLink:
        """Return the link of a new NIC in a host's place.

        Raises:
            LinkError: there is a NIC already.
        """
        inner = self._memory.attach(host.address, ROCE_UDP_PORT, max_segments=1, counters=host.counters)
        host.link = LiveLink(inner, host, self)
        return host.link

    def runtime(self, host: LiveHost, link: Link, **settings: Any) -> Runtime:
        """Return a NIC with its loop.

        Args:
            host: its place.
            link: what :meth:`connect` returned, or middleware before it.
            settings: fields of :class:`~rnic.device.config.NicConfig` that go before those of the scenario.

        Raises:
            VerbsError: it refuses a value.
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
        """Let time begin, if it has not."""
        if self._begun_ns is None:
            self._begun_ns = self._clock()

    def now(self) -> int:
        """Return the time on the fabric, which begins with the first packet."""
        return 0 if self._begun_ns is None else (self._clock() - self._begun_ns) // self.slower

    def advance(self) -> None:
        """Let everything happen that is due."""
        agenda = self.agenda
        now_ns = self.now()
        due = agenda.next_ns()
        self._seen_ns = now_ns
        while due is not None and due <= now_ns:
            agenda.step()
            due = agenda.next_ns()
        agenda.now_ns = max(agenda.now_ns, now_ns)

    def note_arrival(self) -> None:
        """Count by how much a packet that arrives now is late."""
        late_ns = self._seen_ns - self.agenda.now_ns
        self.late[late_ns.bit_length()] += 1
        self.late_max_ns = max(self.late_max_ns, late_ns)

    def lateness(self) -> dict[str, int]:
        """Return by how much packets arrived late, by the fabric's time: at most, and 99 of 100."""
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
        """End what is on its way."""
        self._tasks.close()
        self.traffic.close()


_of_files: dict[str, LiveFabric] = {}
"""Fabrics of this process by their files."""


def live_fabric(path: str, slower: int = 0) -> LiveFabric:
    """Return the fabric of a scenario file; replace one that no NIC uses anymore.

    Raises:
        OSError: the file cannot be read.
        RnicError: it is wrong, or its fabric runs with another ``slower``.
    """
    found = _of_files.get(path)
    if found is None or not found.used:
        found = _of_files[path] = LiveFabric(Scenario.load(Path(path), live=True), slower)
    elif slower not in (0, found.slower):
        raise LinkError(f"fabric {path} runs {found.slower} times slower already: wait until its NICs are gone")
    return found


def keep_fabric(path: str, fabric: LiveFabric) -> None:
    """Have NICs of a file's fabric come to this one, even while none is on it."""
    fabric.kept = True
    _of_files[path] = fabric
