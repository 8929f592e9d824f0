"""Network topology: tables of hosts, switches and links, from TOML or by name."""

from __future__ import annotations

import inspect
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self, TypeVar

from rnic.sim.port import IPV4_WIRE_BYTES, PAUSE_WIRE_BYTES, PRIORITIES
from rnic.sim.profiles import HOSTS, SWITCHES, Profile
from rnic.sim.units import near, plain_table
from rnic.spec.errors import RnicError, shown
from rnic.spec.limits import BTH_BYTES, ICRC_BYTES, MTU_CODES

DEFAULT_GBPS = 25.0
DEFAULT_DELAY_NS = 1_000
Settings = dict[str, Any] | None
"""Fields, other than the name, of all hosts or switches of a named topology."""
Routes = dict[str, dict[str, tuple[int, ...]]]
"""Links of each switch that lie on a shortest path, by gateway (the node at the other end of a host's link)."""
MOST = 1e15
"""Upper bound of numbers without a specific bound: bytes, nanoseconds."""
MAX_GBPS = 1e6
MAX_WEIGHT = 1_000
_HEADERS = IPV4_WIRE_BYTES + BTH_BYTES + 16 + 4 + ICRC_BYTES
"""Overhead bytes of the largest packet on the wire: with RETH and immediate data."""
MAX_NODES = 100_000
"""Most hosts, and most switches, of a named topology."""


class TopologyError(RnicError):
    """Invalid topology. The message is one line: the thing, its value, the remedy."""


def _check(what: str, value: object, least: float, most: float = MOST) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TopologyError(f"{what}={shown(value)} is not a number: give one")
    if not least <= value <= most:  # nan is in no range
        raise TopologyError(f"{what}={shown(value)} cannot be: give {least:g} to {most:g}")


def _is_path_mtu(value: object) -> bool:
    return isinstance(value, int) and value in MTU_CODES


def _profiled(row: Host | Switch, what: str, profiles: Mapping[str, Profile]) -> None:
    """Fill in the delay of a row that names a profile."""
    if not row.profile:
        return
    if row.profile not in list(profiles):
        raise TopologyError(f"{what}: profile={shown(row.profile)} is not known: use {', '.join(profiles)}")
    delay_ns = profiles[row.profile].delay_ns
    if row.delay_ns not in (0, delay_ns):
        raise TopologyError(f"{what}: delay_ns={row.delay_ns} and profile={shown(row.profile)}: give one of them")
    object.__setattr__(row, "delay_ns", delay_ns)


def _weigh(row: Host | Switch, what: str) -> None:
    """Check the weights of a row's ports."""
    weights: object = row.weights
    if not isinstance(weights, list | tuple) or len(weights) not in (0, PRIORITIES):
        raise TopologyError(f"{what}: weights={shown(weights)} cannot be: give {PRIORITIES} numbers, 0 for strict")
    for priority, weight in enumerate(weights):
        _check(f"{what}: weight of priority {priority}", weight, 0, MAX_WEIGHT)
        if not isinstance(weight, int):
            raise TopologyError(f"{what}: weight of priority {priority}={weight} is not a whole number: give one")
    object.__setattr__(row, "weights", tuple(weights))


@dataclass(frozen=True, slots=True)
class Host:
    """A NIC. ``delay_ns`` is a packet's time from the wire to the transport; a ``profile`` can name it instead.
    ``weights`` are those of its port, as for a switch.
    """

    name: str
    delay_ns: int = 0
    profile: str = ""
    weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check(f"host {self.name}: delay_ns", self.delay_ns, 0)
        _weigh(self, f"host {self.name}")
        _profiled(self, f"host {self.name}", HOSTS)


@dataclass(frozen=True, slots=True)
class Switch:
    """A store-and-forward switch with one buffer for all its ports and eight priorities.

    ECN marks an ECT packet that joins a queue of more than ``kmin_bytes``, with a probability that rises to ``pmax`` at
    ``kmax_bytes`` and is 1 above (figure 5 of the DCQCN paper).

    PFC, if ``xoff_bytes`` is above 0, pauses a priority of a link that holds that much of the buffer, until it holds
    ``xon_bytes`` or less. Packets above the threshold use separate headroom of ``headroom_bytes`` for each link and
    priority; ``None`` gives each link what it needs (:meth:`Topology.headroom`). PFC applies to ``pfc_priorities``; the
    others lose packets.

    ``alpha`` above 0 makes thresholds dynamic: a priority of a link holds at most ``alpha`` times the free buffer, and
    no more than ``xoff_bytes``, before PFC pauses it. Without PFC the same bounds each queue, and packets above it are
    dropped.

    ``weights`` has a number for each priority, starting at 0: deficit round robin shares a port by them. Weight 0 is
    strict: it precedes all weighted priorities, the highest first. Without weights, all are strict.

    ``spray`` sends packets over equal-cost paths in turn; otherwise a hash keeps a queue pair on one path.

    ``delay_ns`` is a packet's additional delay; a ``profile`` can name it instead (:mod:`rnic.sim.profiles`).
    """

    name: str
    buffer_bytes: int = 4 << 20
    kmin_bytes: int = 0
    kmax_bytes: int = 0
    pmax: float = 0.0
    xoff_bytes: int = 0
    xon_bytes: int = 0
    headroom_bytes: int | None = None
    delay_ns: int = 0
    profile: str = ""
    alpha: float = 0.0
    weights: tuple[int, ...] = ()
    pfc_priorities: tuple[int, ...] = tuple(range(PRIORITIES))
    spray: bool = False

    def __post_init__(self) -> None:
        what = f"switch {self.name}"
        _weigh(self, what)
        _check(f"{what}: alpha", self.alpha, 0, 1 << 10)
        if not isinstance(self.spray, bool):
            raise TopologyError(f"{what}: spray={shown(self.spray)} cannot be: give true or false")
        chosen: object = self.pfc_priorities
        if not isinstance(chosen, list | tuple) or not all(each in range(PRIORITIES) for each in chosen):
            raise TopologyError(f"{what}: pfc_priorities={shown(chosen)} cannot be: give some of 0 to {PRIORITIES - 1}")
        object.__setattr__(self, "pfc_priorities", tuple(chosen))
        _check(f"switch {self.name}: buffer_bytes", self.buffer_bytes, 1)
        _check(f"switch {self.name}: kmin_bytes", self.kmin_bytes, 0)
        _check(f"switch {self.name}: kmax_bytes", self.kmax_bytes, self.kmin_bytes)
        _check(f"switch {self.name}: pmax", self.pmax, 0, 1)
        _check(f"switch {self.name}: xoff_bytes", self.xoff_bytes, 0)
        _check(f"switch {self.name}: xon_bytes", self.xon_bytes, 0, self.xoff_bytes)
        if self.headroom_bytes is not None:
            _check(f"switch {self.name}: headroom_bytes", self.headroom_bytes, 0)
        _check(f"switch {self.name}: delay_ns", self.delay_ns, 0)
        _profiled(self, f"switch {self.name}", SWITCHES)

    @property
    def marks(self) -> bool:
        """True if ECN marking is on."""
        return self.kmax_bytes > 0

    @property
    def lossless(self) -> int:
        """Bit mask of the priorities with PFC."""
        return sum(1 << priority for priority in set(self.pfc_priorities)) if self.xoff_bytes else 0


@dataclass(frozen=True, slots=True)
class Link:
    """A cable, the same in both directions. ``loss`` is the fraction of packets that it loses.

    ``mtu`` is the largest path MTU that it carries, in bytes; 0 for no limit.
    """

    a: str
    b: str
    gbps: float = DEFAULT_GBPS
    delay_ns: int = DEFAULT_DELAY_NS
    loss: float = 0.0
    mtu: int = 0

    def __post_init__(self) -> None:
        if self.mtu and not _is_path_mtu(self.mtu):
            raise TopologyError(
                f"link {self.a} - {self.b}: mtu={shown(self.mtu)} is not a path MTU: "
                f"use one of {', '.join(map(str, MTU_CODES))}"
            )
        _check(f"link {self.a} - {self.b}: gbps", self.gbps, 0.001, MAX_GBPS)
        _check(f"link {self.a} - {self.b}: delay_ns", self.delay_ns, 0)
        _check(f"link {self.a} - {self.b}: loss", self.loss, 0, 1)

    @property
    def bits_s(self) -> int:
        """Bits per second."""
        return round(self.gbps * 1e9)


@dataclass(frozen=True)
class Topology:
    """Hosts, switches and links; ``mtu`` is the common path MTU in bytes: the given one, or a smaller one of a link.

    Raises:
        TopologyError: duplicate or unknown names, a host with no link or several, hosts that cannot reach each other, a
            value out of range.
    """

    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()
    mtu: int = 1024
    ends: dict[str, list[int]] = field(init=False, repr=False, compare=False)
    """Link numbers of each node."""
    _near: Routes = field(init=False, repr=False, compare=False)
    """Links of each switch that lie on a shortest path, by gateway (the node at the other end of a host's link)."""

    def __post_init__(self) -> None:
        if not _is_path_mtu(self.mtu):
            raise TopologyError(f"mtu={shown(self.mtu)} is not a path MTU: use one of {', '.join(map(str, MTU_CODES))}")
        object.__setattr__(self, "mtu", min([self.mtu, *(link.mtu for link in self.links if link.mtu)]))
        names = [host.name for host in self.hosts] + [switch.name for switch in self.switches]
        for name in (*names, *(end for link in self.links for end in (link.a, link.b))):
            if not isinstance(name, str):
                raise TopologyError(f"name {shown(name)} is not text: write it in quotes")
        for name, count in Counter(names).items():
            if count > 1:
                raise TopologyError(f"{name} is there twice: give each host and switch a name of its own")
        ends: dict[str, list[int]] = {name: [] for name in names}
        for number, link in enumerate(self.links):
            for name in (link.a, link.b):
                if name not in ends:
                    raise TopologyError(f"link {link.a} - {link.b}: there is no {name}: add it as a host or switch")
                ends[name].append(number)
            if link.a == link.b:
                raise TopologyError(f"link {link.a} - {link.b} leads nowhere: connect two")
        for host in self.hosts:
            if len(ends[host.name]) != 1:
                raise TopologyError(f"host {host.name} has {len(ends[host.name])} links: give each host one")
        object.__setattr__(self, "ends", ends)
        object.__setattr__(self, "_near", self._find_routes(ends))

    def routes(self, down: Collection[int]) -> Routes:
        """Return the shortest paths with the links of these numbers down; a switch has none to unreachable hosts."""
        left = {name: [number for number in ends if number not in down] for name, ends in self.ends.items()}
        return self._find_routes(left, whole=False)

    def _find_routes(self, ends: dict[str, list[int]], whole: bool = True) -> Routes:
        """Find paths to gateways only: all hosts of a gateway share them, so ten thousand hosts need few."""
        hosts = {host.name for host in self.hosts}
        gateways = {self.gateway(host.name): host.name for host in self.hosts}
        near: Routes = {}
        for gateway, target in gateways.items():
            hops = {gateway: 0}
            waiting = deque([gateway])
            while waiting:
                name = waiting.popleft()
                if name in hosts and name != gateway:
                    continue  # hosts do not forward
                for number in ends[name]:
                    other = self.other_end(number, name)
                    if other not in hops:
                        hops[other] = hops[name] + 1
                        waiting.append(other)
            for host in self.hosts if whole else ():
                if host.name not in hops:
                    raise TopologyError(f"host {host.name} does not reach {target}: connect their switches")
            near[gateway] = {
                name: tuple(n for n in ends[name] if hops.get(self.other_end(n, name), len(hops)) == hops[name] - 1)
                for name in hops.keys() - hosts - {gateway}
            }
        return near

    def gateway(self, host: str) -> str:
        """Return the node at the other end of a host's only link."""
        return self.other_end(self.ends[host][0], host)

    def ways(self, name: str, target: str) -> tuple[int, ...]:
        """Return the numbers of a node's links that lie on a shortest path to a host."""
        gateway = self.gateway(target)
        if name == gateway:
            return (self.ends[target][0],)
        return self._near[gateway].get(name) or (self.ends[name][0],)

    def groups(self, name: str, routes: Routes | None = None) -> Iterable[tuple[list[str], tuple[int, ...]]]:
        """Return the hosts reachable from a switch, grouped by path: host names, link numbers.

        Args:
            name: name of the switch.
            routes: what :meth:`routes` returned; by default all links are up.
        """
        near = self._near if routes is None else routes
        behind: dict[str, list[str]] = {}
        for host in self.hosts:
            behind.setdefault(self.gateway(host.name), []).append(host.name)
        for gateway, hosts in behind.items():
            if gateway == name:
                yield from (([host], self.ways(name, host)) for host in hosts)
            elif name in near[gateway]:
                yield hosts, near[gateway][name]

    def headroom(self, number: int) -> int:
        """Return the bytes of headroom that PFC needs at either end of a link, for each priority.

        It holds the packets that arrive after the one that makes the switch pause the link: those sent during the round
        trip of the PFC frame, including nodes' delays, and the largest packet at each end.

        Args:
            number: number of the link.
        """
        link = self.links[number]
        delay_ns = 2 * link.delay_ns + self.delays[link.a] + self.delays[link.b]
        # one more, since times are rounded to nanoseconds
        in_flight = -(-(delay_ns + 1) * link.bits_s // 8_000_000_000)
        return in_flight + PAUSE_WIRE_BYTES + 2 * (self.mtu + _HEADERS)

    def headrooms(self, row: Switch) -> list[int]:
        """Return the headroom of each link of a switch, in the order of its links."""
        if not row.lossless:
            return [0] * len(self.ends[row.name])
        given = row.headroom_bytes
        return [self.headroom(number) if given is None else given for number in self.ends[row.name]]

    def warnings(self) -> list[str]:
        """Return a line for each switch that may lose packets in spite of PFC."""
        found = []
        for row in self.switches:
            number = max(self.ends[row.name], key=self.headroom, default=None)
            if number is None or not row.lossless or row.headroom_bytes is None:
                continue
            needed, link = self.headroom(number), self.links[number]
            if row.headroom_bytes < needed:
                found.append(
                    f"switch {row.name}: headroom_bytes={row.headroom_bytes} may lose packets: "
                    f"link {link.a} - {link.b} needs {needed}: give as much, or leave it out"
                )
        return found

    @cached_property
    def delays(self) -> dict[str, int]:
        """Per-packet delay of each node in nanoseconds."""
        return {host.name: host.delay_ns for host in self.hosts} | {each.name: each.delay_ns for each in self.switches}

    def other_end(self, number: int, name: str) -> str:
        """Return the node at the other end of a link."""
        link = self.links[number]
        return link.b if link.a == name else link.a

    # ------------------------------------------------------------------------------------------ by name

    @classmethod
    def pair(cls, *, mtu: int = 1024, host: Settings = None, **link: Any) -> Self:
        """Return two hosts back to back."""
        return cls(_hosts(_names("h", 2), host), (), (Link("h0", "h1", **link),), mtu)

    @classmethod
    def star(cls, hosts: int, *, mtu: int = 1024, switch: Settings = None, host: Settings = None, **link: Any) -> Self:
        """Return ``hosts`` on one switch."""
        names = _names("h", hosts)
        links = tuple(Link(name, "s0", **link) for name in names)
        return cls(_hosts(names, host), (Switch("s0", **(switch or {})),), links, mtu)

    @classmethod
    def dumbbell(
        cls, hosts: int, *, mtu: int = 1024, switch: Settings = None, host: Settings = None, **link: Any
    ) -> Self:
        """Return ``hosts`` on both sides of one link between two switches; the first half is on the left."""
        names = _names("h", 2 * hosts)
        switches = tuple(Switch(name, **(switch or {})) for name in ("s0", "s1"))
        links = [Link(name, f"s{index // hosts}", **link) for index, name in enumerate(names)]
        return cls(_hosts(names, host), switches, (*links, Link("s0", "s1", **link)), mtu)

    @classmethod
    def leaf_spine(
        cls,
        leaves: int,
        spines: int,
        hosts: int,
        *,
        mtu: int = 1024,
        switch: Settings = None,
        host: Settings = None,
        up_gbps: float | None = None,
        oversubscription: float | None = None,
        **link: Any,
    ) -> Self:
        """Return ``hosts`` on each of ``leaves`` switches, each of which is linked to all ``spines``.

        ``up_gbps`` is the rate of links to spines, by default the same as for hosts. ``oversubscription`` can set it
        instead: the total rate of a leaf's hosts, divided by that of its links to spines.
        """
        up_gbps = _up_gbps(up_gbps, oversubscription, hosts, spines, link)
        names = _names("h", leaves * hosts)
        leaf_names, spine_names = _names("leaf", leaves), _names("spine", spines)
        switches = tuple(Switch(name, **(switch or {})) for name in (*leaf_names, *spine_names))
        links = [Link(name, leaf_names[index // hosts], **link) for index, name in enumerate(names)]
        up = link if up_gbps is None else {**link, "gbps": up_gbps}
        links += [Link(leaf, spine, **up) for leaf in leaf_names for spine in spine_names]
        return cls(_hosts(names, host), switches, tuple(links), mtu)

    @classmethod
    def rails(
        cls,
        hosts: int,
        rails: int,
        spines: int,
        *,
        mtu: int = 1024,
        switch: Settings = None,
        host: Settings = None,
        up_gbps: float | None = None,
        oversubscription: float | None = None,
        **link: Any,
    ) -> Self:
        """Return ``hosts`` with a NIC on each of ``rails`` switches, each of which is linked to all ``spines``.

        ``h3.1`` is the NIC of host 3 on rail 1. Traffic between rails passes a spine; ``up_gbps`` and
        ``oversubscription`` are as for :meth:`leaf_spine`.
        """
        up_gbps = _up_gbps(up_gbps, oversubscription, hosts, spines, link)
        names = [f"{name}.{rail}" for name in _names("h", hosts) for rail in range(rails)]
        rail_names, spine_names = _names("rail", rails), _names("spine", spines)
        switches = tuple(Switch(name, **(switch or {})) for name in (*rail_names, *spine_names))
        links = [Link(name, rail_names[index % rails], **link) for index, name in enumerate(names)]
        up = link if up_gbps is None else {**link, "gbps": up_gbps}
        links += [Link(rail, spine, **up) for rail in rail_names for spine in spine_names]
        return cls(_hosts(names, host), switches, tuple(links), mtu)

    @classmethod
    def fat_tree(cls, k: int, *, mtu: int = 1024, switch: Settings = None, host: Settings = None, **link: Any) -> Self:
        """Return the three-level tree of switches with ``k`` ports: ``k`` pods, ``k^3 / 4`` hosts."""
        if k < 2 or k % 2:
            raise TopologyError(f"k={k}: a fat tree has switches with an even number of ports: give 2, 4, 6 ...")
        half = k // 2
        edge = [[f"edge{pod}.{i}" for i in range(half)] for pod in range(k)]
        middle = [[f"agg{pod}.{i}" for i in range(half)] for pod in range(k)]
        core = [[f"core{i}.{j}" for j in range(half)] for i in range(half)]
        hosts = _names("h", k * half * half)
        links = [Link(name, edge[at // half // half][at // half % half], **link) for at, name in enumerate(hosts)]
        for pod in range(k):
            links += [Link(low, up, **link) for low in edge[pod] for up in middle[pod]]
            links += [Link(middle[pod][i], core[i][j], **link) for i in range(half) for j in range(half)]
        names = [name for rows in (*edge, *middle, *core) for name in rows]
        return cls(_hosts(hosts, host), tuple(Switch(name, **(switch or {})) for name in names), tuple(links), mtu)

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Read ``mtu`` and the tables ``[[host]]``, ``[[switch]]`` and ``[[link]]``, or ``[topology]`` with a ``kind``.

        ``kind`` is ``pair``, ``star``, ``dumbbell``, ``leaf-spine``, ``rails`` or ``fat-tree``; the other keys of the
        table are the arguments of the method of that name. Additional rows of ``[[link]]`` change its links.

        Raises:
            TopologyError: as for the class, and for invalid TOML or unknown keys.
        """
        try:
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # invalid TOML, or a number with too many digits
            raise TopologyError(f"topology is not valid TOML: {error}") from None
        made = cls.take(table)
        if table:
            raise TopologyError(f"{next(iter(table))!r} is not part of a topology: use mtu, host, switch and link")
        return made

    @classmethod
    def take(cls, table: dict[str, Any]) -> Self:
        """Build a topology as :meth:`from_toml` does, from a parsed table, whose keys are removed.

        Raises:
            TopologyError: as :meth:`from_toml`.
        """
        named = table.pop("topology", None)
        if named is not None:
            if not isinstance(named, dict):
                raise TopologyError(f"topology={shown(named)} is not a table: write [topology] and kind = ... below it")
            return cls._named(dict(named))._with_links(table.pop("link", []))
        hosts = tuple(_rows(Host, "host", table.pop("host", [])))
        switches = tuple(_rows(Switch, "switch", table.pop("switch", [])))
        links = tuple(_rows(Link, "link", table.pop("link", [])))
        return cls(hosts, switches, links, table.pop("mtu", 1024))

    def _with_links(self, rows: list[dict[str, Any]]) -> Self:
        """Return the topology with changed links: each row names both ends and the changed values."""
        links = list(self.links)
        for row, link in zip(rows, _rows(Link, "link", rows), strict=True):
            numbers = [at for at, each in enumerate(links) if {each.a, each.b} == {link.a, link.b}]
            if not numbers:
                raise TopologyError(f"[[link]] {link.a} - {link.b}: the named topology has no such link: give its ends")
            for number in numbers:
                links[number] = replace(links[number], **{key: getattr(link, key) for key in row})
        return replace(self, links=tuple(links)) if rows else self

    @classmethod
    def _named(cls, arguments: dict[str, Any]) -> Self:
        kinds: dict[object, Callable[..., Self]] = {
            "pair": cls.pair,
            "star": cls.star,
            "dumbbell": cls.dumbbell,
            "leaf-spine": cls.leaf_spine,
            "rails": cls.rails,
            "fat-tree": cls.fat_tree,
        }
        kind = arguments.pop("kind", None)
        if not isinstance(kind, str) or kind not in kinds:
            raise TopologyError(f"topology kind {shown(kind)} is not known: use {', '.join(map(str, kinds))}")
        allowed = [*inspect.signature(kinds[kind]).parameters, "gbps", "delay_ns", "loss"]
        allowed.remove("link")
        for name in arguments:
            if name not in allowed:
                hint = near(name, allowed)
                raise TopologyError(f"topology {kind} has no {name}: {hint}it has {', '.join(sorted(allowed))}")
        for what, row in (("host", Host), ("switch", Switch)):
            known = [each.name for each in fields(row)]
            given = arguments.get(what)
            for name in given if isinstance(given, dict) else ():
                if name not in known:
                    raise TopologyError(f"topology {what} has no {name}: {near(name, known)}it has {', '.join(known)}")
        try:
            return kinds[kind](**plain_table(arguments))
        except (TypeError, ValueError, AttributeError) as error:
            raise TopologyError(f"topology {kind}: {error}") from None


def _up_gbps(
    up_gbps: float | None, oversubscription: float | None, hosts: int, spines: int, link: Mapping[str, Any]
) -> float | None:
    """Return the rate of a leaf's links to spines; ``None`` for the hosts' rate."""
    if oversubscription is None:
        return up_gbps
    _check("oversubscription", oversubscription, 0.001, 1e6)
    _check("how many spines", spines, 1, MAX_NODES)
    if up_gbps is not None:
        raise TopologyError(f"up_gbps={up_gbps} and oversubscription={oversubscription}: give one of them")
    return float(link.get("gbps", DEFAULT_GBPS)) * hosts / (spines * oversubscription)


def _hosts(names: list[str], settings: Settings) -> tuple[Host, ...]:
    return tuple(Host(name, **(settings or {})) for name in names)


def _names(prefix: str, count: int) -> list[str]:
    _check(f"how many nodes named {prefix}", count, 1, MAX_NODES)
    return [f"{prefix}{index}" for index in range(count)]


Row = TypeVar("Row", Host, Switch, Link)


def _rows(kind: type[Row], name: str, rows: Iterable[dict[str, Any]]) -> Iterable[Row]:
    known = {each.name for each in fields(kind)}
    for row in rows:
        unknown = row.keys() - known
        if unknown:
            hint = near(min(unknown), known)
            raise TopologyError(f"[[{name}]] has no {min(unknown)}: {hint}use {', '.join(sorted(known))}")
        try:
            yield kind(**plain_table(row))
        except (TypeError, ValueError) as error:
            raise TopologyError(f"[[{name}]] {row}: {error}") from None
