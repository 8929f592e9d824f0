"""Who is connected with whom: a table of hosts, switches and links, written as TOML or made by name."""

from __future__ import annotations

import tomllib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

from rnic.sim.profiles import HOSTS, SWITCHES, Profile
from rnic.spec.errors import RnicError, shown
from rnic.spec.limits import MTU_CODES

DEFAULT_GBPS = 25.0
DEFAULT_DELAY_NS = 1_000
Settings = dict[str, Any] | None
"""Of all hosts or switches of a topology by name, besides their names."""
MOST = 1e15
"""Of any number that has no bound of its own: bytes, nanoseconds."""
MAX_GBPS = 1e6
MAX_NODES = 100_000
"""Of one kind in a topology by name."""


class TopologyError(RnicError):
    """A topology that cannot be. One line: the thing, its value, the remedy."""


def _check(what: str, value: object, least: float, most: float = MOST) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TopologyError(f"{what}={shown(value)} is not a number: give one")
    if not least <= value <= most:  # nan is in no range
        raise TopologyError(f"{what}={shown(value)} cannot be: give {least:g} to {most:g}")


def _is_path_mtu(value: object) -> bool:
    return isinstance(value, int) and value in MTU_CODES


def _profiled(row: Host | Switch, what: str, profiles: Mapping[str, Profile]) -> None:
    """A row that names a profile has its delay."""
    if not row.profile:
        return
    if row.profile not in list(profiles):
        raise TopologyError(f"{what}: profile={shown(row.profile)} is not known: use {', '.join(profiles)}")
    delay_ns = profiles[row.profile].delay_ns
    if row.delay_ns not in (0, delay_ns):
        raise TopologyError(f"{what}: delay_ns={row.delay_ns} and profile={shown(row.profile)}: give one of them")
    object.__setattr__(row, "delay_ns", delay_ns)


@dataclass(frozen=True, slots=True)
class Host:
    """A NIC. ``delay_ns`` is what it takes a packet from the wire to the transport, or a ``profile`` names it."""

    name: str
    delay_ns: int = 0
    profile: str = ""

    def __post_init__(self) -> None:
        _check(f"host {self.name}: delay_ns", self.delay_ns, 0)
        _profiled(self, f"host {self.name}", HOSTS)


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch that stores and forwards, with one buffer for all its ports and one class of traffic.

    ECN marks a packet whose sender declared ECT where the queue that it joins holds more than ``kmin_bytes``, with a
    probability that rises to ``pmax`` at ``kmax_bytes`` and is 1 above (the DCQCN paper's figure 5). PFC, with
    ``xoff_bytes`` above 0, pauses a link of which so much is in the buffer until it is ``xon_bytes`` or less; what
    still arrives has ``headroom_bytes`` of its own for each link. What finds no room is dropped.
    ``delay_ns`` is what it takes a packet besides, or a ``profile`` names it (:mod:`rnic.sim.profiles`).
    """

    name: str
    buffer_bytes: int = 4 << 20
    kmin_bytes: int = 0
    kmax_bytes: int = 0
    pmax: float = 0.0
    xoff_bytes: int = 0
    xon_bytes: int = 0
    headroom_bytes: int = 0
    delay_ns: int = 0
    profile: str = ""

    def __post_init__(self) -> None:
        _check(f"switch {self.name}: buffer_bytes", self.buffer_bytes, 1)
        _check(f"switch {self.name}: kmin_bytes", self.kmin_bytes, 0)
        _check(f"switch {self.name}: kmax_bytes", self.kmax_bytes, self.kmin_bytes)
        _check(f"switch {self.name}: pmax", self.pmax, 0, 1)
        _check(f"switch {self.name}: xoff_bytes", self.xoff_bytes, 0)
        _check(f"switch {self.name}: xon_bytes", self.xon_bytes, 0, self.xoff_bytes)
        _check(f"switch {self.name}: headroom_bytes", self.headroom_bytes, 0)
        _check(f"switch {self.name}: delay_ns", self.delay_ns, 0)
        _profiled(self, f"switch {self.name}", SWITCHES)

    @property
    def marks(self) -> bool:
        """Whether it marks at all."""
        return self.kmax_bytes > 0


@dataclass(frozen=True, slots=True)
class Link:
    """A cable, the same in both directions. ``loss`` is the share of packets that it loses.

    ``mtu`` is the largest path MTU that it carries, in bytes; 0 bounds nothing.
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
                f"link {self.a} - {self.b}: mtu={shown(self.mtu)} is no path MTU: "
                f"use one of {', '.join(map(str, MTU_CODES))}"
            )
        _check(f"link {self.a} - {self.b}: gbps", self.gbps, 0.001, MAX_GBPS)
        _check(f"link {self.a} - {self.b}: delay_ns", self.delay_ns, 0)
        _check(f"link {self.a} - {self.b}: loss", self.loss, 0, 1)

    @property
    def bits_s(self) -> int:
        """Bits a second."""
        return round(self.gbps * 1e9)


@dataclass(frozen=True)
class Topology:
    """Hosts, switches and links; ``mtu`` is the path MTU of all in bytes: what is given, or a link's that is less.

    Raises:
        TopologyError: names that are there twice or not at all, a host with no link or several, hosts that do not
            reach each other, a value out of its range.
    """

    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()
    mtu: int = 1024
    ends: dict[str, list[int]] = field(init=False, repr=False, compare=False)
    """For each node, its links by number."""
    _near: dict[str, dict[str, tuple[int, ...]]] = field(init=False, repr=False, compare=False)
    """By gateway, the node that a host's link leads to: for each switch, its links that lie on a shortest way there."""

    def __post_init__(self) -> None:
        if not _is_path_mtu(self.mtu):
            raise TopologyError(f"mtu={shown(self.mtu)} is no path MTU: use one of {', '.join(map(str, MTU_CODES))}")
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

    def _find_routes(self, ends: dict[str, list[int]]) -> dict[str, dict[str, tuple[int, ...]]]:
        """Ways to gateways alone: all hosts of one share them, so that ten thousand hosts have few."""
        hosts = {host.name for host in self.hosts}
        gateways = {self.gateway(host.name): host.name for host in self.hosts}
        near: dict[str, dict[str, tuple[int, ...]]] = {}
        for gateway, target in gateways.items():
            hops = {gateway: 0}
            waiting = deque([gateway])
            while waiting:
                name = waiting.popleft()
                if name in hosts and name != gateway:
                    continue  # a host forwards nothing
                for number in ends[name]:
                    other = self.other_end(number, name)
                    if other not in hops:
                        hops[other] = hops[name] + 1
                        waiting.append(other)
            for host in self.hosts:
                if host.name not in hops:
                    raise TopologyError(f"host {host.name} does not reach {target}: connect their switches")
            near[gateway] = {
                name: tuple(n for n in ends[name] if hops.get(self.other_end(n, name), len(hops)) == hops[name] - 1)
                for name in hops.keys() - hosts - {gateway}
            }
        return near

    def gateway(self, host: str) -> str:
        """The node that a host's one link leads to."""
        return self.other_end(self.ends[host][0], host)

    def ways(self, name: str, target: str) -> tuple[int, ...]:
        """The links of a node, by number, that lie on a shortest way to a host."""
        gateway = self.gateway(target)
        if name == gateway:
            return (self.ends[target][0],)
        return self._near[gateway].get(name) or (self.ends[name][0],)

    def groups(self, name: str) -> Iterable[tuple[list[str], tuple[int, ...]]]:
        """All hosts but those that a switch has no way to, in groups with the same ways: hosts, links by number."""
        behind: dict[str, list[str]] = {}
        for host in self.hosts:
            behind.setdefault(self.gateway(host.name), []).append(host.name)
        for gateway, hosts in behind.items():
            if gateway == name:
                yield from (([host], self.ways(name, host)) for host in hosts)
            elif name in self._near[gateway]:
                yield hosts, self._near[gateway][name]

    @property
    def delays(self) -> dict[str, int]:
        """What each node takes for a packet, in nanoseconds."""
        return {host.name: host.delay_ns for host in self.hosts} | {each.name: each.delay_ns for each in self.switches}

    def other_end(self, number: int, name: str) -> str:
        """Who is at the other end of a link."""
        link = self.links[number]
        return link.b if link.a == name else link.a

    # ------------------------------------------------------------------------------------------ by name

    @classmethod
    def pair(cls, *, mtu: int = 1024, host: Settings = None, **link: Any) -> Self:
        """Two hosts back to back."""
        return cls(_hosts(_names("h", 2), host), (), (Link("h0", "h1", **link),), mtu)

    @classmethod
    def star(cls, hosts: int, *, mtu: int = 1024, switch: Settings = None, host: Settings = None, **link: Any) -> Self:
        """``hosts`` on one switch."""
        names = _names("h", hosts)
        links = tuple(Link(name, "s0", **link) for name in names)
        return cls(_hosts(names, host), (Switch("s0", **(switch or {})),), links, mtu)

    @classmethod
    def dumbbell(
        cls, hosts: int, *, mtu: int = 1024, switch: Settings = None, host: Settings = None, **link: Any
    ) -> Self:
        """``hosts`` on either side of one link between two switches; the first half sits on the left."""
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
        **link: Any,
    ) -> Self:
        """``hosts`` on each of ``leaves`` switches, each of which is linked to all ``spines``."""
        names = _names("h", leaves * hosts)
        leaf_names, spine_names = _names("leaf", leaves), _names("spine", spines)
        switches = tuple(Switch(name, **(switch or {})) for name in (*leaf_names, *spine_names))
        links = [Link(name, leaf_names[index // hosts], **link) for index, name in enumerate(names)]
        up = link if up_gbps is None else {**link, "gbps": up_gbps}
        links += [Link(leaf, spine, **up) for leaf in leaf_names for spine in spine_names]
        return cls(_hosts(names, host), switches, tuple(links), mtu)

    @classmethod
    def fat_tree(cls, k: int, *, mtu: int = 1024, switch: Settings = None, host: Settings = None, **link: Any) -> Self:
        """The three-level tree of switches with ``k`` ports: ``k`` pods, ``k^3 / 4`` hosts."""
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

        ``kind`` is ``pair``, ``star``, ``dumbbell``, ``leaf-spine`` or ``fat-tree``; the other keys of the table are
        the arguments of the method of that name.

        Raises:
            TopologyError: as the class says, and for TOML that is none, or keys that do not exist.
        """
        try:
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # of TOML, and of a number of too many digits
            raise TopologyError(f"topology is not valid TOML: {error}") from None
        made = cls.take(table)
        if table:
            raise TopologyError(f"{next(iter(table))!r} is no part of a topology: use mtu, host, switch and link")
        return made

    @classmethod
    def take(cls, table: dict[str, Any]) -> Self:
        """What :meth:`from_toml` makes, from a table read already; its keys are taken out.

        Raises:
            TopologyError: as :meth:`from_toml`.
        """
        named = table.pop("topology", None)
        if named is not None:
            if not isinstance(named, dict):
                raise TopologyError(f"topology={shown(named)} is no table: write [topology] and kind = ... below it")
            return cls._named(dict(named))
        hosts = tuple(_rows(Host, "host", table.pop("host", [])))
        switches = tuple(_rows(Switch, "switch", table.pop("switch", [])))
        links = tuple(_rows(Link, "link", table.pop("link", [])))
        return cls(hosts, switches, links, table.pop("mtu", 1024))

    @classmethod
    def _named(cls, arguments: dict[str, Any]) -> Self:
        kinds: dict[object, Callable[..., Self]] = {
            "pair": cls.pair,
            "star": cls.star,
            "dumbbell": cls.dumbbell,
            "leaf-spine": cls.leaf_spine,
            "fat-tree": cls.fat_tree,
        }
        kind = arguments.pop("kind", None)
        if not isinstance(kind, str) or kind not in kinds:
            raise TopologyError(f"topology kind {shown(kind)} is not known: use {', '.join(map(str, kinds))}")
        try:
            return kinds[kind](**arguments)
        except (TypeError, AttributeError) as error:
            raise TopologyError(f"topology {kind}: {error}") from None


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
            raise TopologyError(f"[[{name}]] has no {min(unknown)}: use {', '.join(sorted(known))}")
        try:
            yield kind(**row)
        except TypeError as error:
            raise TopologyError(f"[[{name}]] {row}: {error}") from None
