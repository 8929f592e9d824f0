"""A scenario file: TOML with topology, workloads, congestion control, seed and limits."""

from __future__ import annotations

import runpy
import tomllib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self

from rnic.cc.dcqcn import DcqcnSettings
from rnic.cc.settings import CongestionSettings
from rnic.sim.fabric import MAX_BURST, Fabric
from rnic.sim.port import PRIORITIES
from rnic.sim.tasks import Program
from rnic.sim.topology import MAX_GBPS, Topology
from rnic.sim.units import near, paper_dcqcn, plain
from rnic.sim.workloads import (
    SIZES,
    Distribution,
    Flow,
    all_to_all,
    incast,
    permutation,
    pipeline,
    poisson,
    read_flows,
    ring_all_gather,
    ring_all_reduce,
    tree_all_reduce,
)
from rnic.spec.errors import RnicError, shown
from rnic.spec.limits import RECOVERIES

NIC_SETTINGS = (
    "window_packets",
    "window_bytes",
    "flight_packets",
    "ack_every",
    "probe",
    "turn_bytes",
    "log_max_qps",
    "recovery",
)
"""Fields of :class:`~rnic.device.config.NicConfig` that a scenario may set."""
EDGE_SETTINGS = {"control_priority": (0, PRIORITIES - 1), "burst_packets": (1, MAX_BURST)}
"""Further arguments of :class:`~rnic.sim.fabric.Fabric` that a scenario may set, with their bounds."""
KINDS = (
    *("flow", "incast", "permutation", "all-to-all", "poisson", "flow-file"),
    *("ring-all-reduce", "tree-all-reduce", "all-gather", "pipeline", "program"),
)
_WITH_FILES = ("program", "flow-file")
"""Workload kinds whose files belong to the scenario."""
_MOST = {"seed": 1 << 63, "limit_ms": 3_600_000, "sample_us": 1_000_000}


class ScenarioError(RnicError):
    """Invalid scenario. The message is one line: the thing, its value, the remedy."""


class _Table:
    """A table of a file; each key is taken once, and a remaining key is an error."""

    def __init__(self, name: str, rows: object) -> None:
        if not isinstance(rows, Mapping):
            raise ScenarioError(f"{name}={shown(rows)} is not a table: write [{name}]")
        self.name = name
        self._rows = dict(rows)
        self._known: list[str] = []

    def has(self, key: str) -> bool:
        """Return whether the table has this key."""
        self._known.append(key)
        return key in self._rows

    def take(self, key: str, default: Any = None) -> Any:
        """Take a value of any kind from the table; a quantity becomes a number."""
        self._known.append(key)
        if key not in self._rows and default is None:
            raise ScenarioError(f"{self.name}: there is no {key}: give one")
        try:
            return plain(key, self._rows.pop(key, default))
        except ValueError as error:
            raise ScenarioError(f"{self.name}: {error}") from None

    def number(self, key: str, default: float | None = None, least: float = 0, most: float = 1e18) -> float:
        """Return a number within bounds."""
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ScenarioError(f"{self.name}: {key}={shown(value)} cannot be: give {least:g} to {most:g}")
        return value

    def whole(self, key: str, default: int | None = None, least: int = 0, most: int = 1 << 48) -> int:
        """Return a whole number within bounds."""
        value = self.number(key, default, least, most)
        if not isinstance(value, int):
            raise ScenarioError(f"{self.name}: {key}={shown(value)} is not a whole number: give one")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self.take(key, default)
        if not isinstance(value, str):
            raise ScenarioError(f"{self.name}: {key}={shown(value)} is not text: write it in quotes")
        return value

    def nodes(self, key: str, hosts: list[str], default: int | None = None) -> list[str]:
        """Return hosts, given by names or as a number of the first hosts."""
        value = self.take(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            if not 1 <= value <= len(hosts):
                raise ScenarioError(f"{self.name}: {key}={value}: there are {len(hosts)} hosts: give 1 to {len(hosts)}")
            return hosts[:value]
        if not isinstance(value, list) or not value:
            raise ScenarioError(f"{self.name}: {key}={shown(value)}: give how many hosts, or a list of their names")
        for name in value:
            if name not in hosts:
                raise ScenarioError(f"{self.name}: {key}: there is no host {shown(name)}: the topology names them")
        return list(value)

    def end(self) -> None:
        """Raise an error if a key is left."""
        if self._rows:
            known, name = sorted(set(self._known)), next(iter(self._rows))
            raise ScenarioError(f"{self.name} has no {name}: {near(name, known)}it has {', '.join(known)}")


Work = Callable[[Fabric, Random], None]
"""Function that adds a workload to a fabric."""


class _Common(NamedTuple):
    """Keys of every workload."""

    label: str
    start_ns: int
    priority: int


class Change(NamedTuple):
    """A change of a link during a run; ``None`` leaves a value as it is."""

    time_ns: int
    a: str
    b: str
    gbps: float | None
    up: bool | None


@dataclass
class Scenario:
    """A run to make. ``programs`` are the sources of its programs, to compare runs."""

    topology: Topology
    works: list[Work]
    name: str = "scenario"
    seed: int = 1
    limit_ns: int = 1_000_000_000
    sample_ns: int = 10_000
    """Time between two samples of queues and progress; 0 for none."""
    congestion: CongestionSettings = field(default_factory=CongestionSettings)
    nic: dict[str, Any] = field(default_factory=dict)
    edge: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the fabric (:data:`EDGE_SETTINGS`)."""
    plot: str = ""
    """PNG file that `rnic sim` draws in addition to its tables."""
    programs: tuple[bytes, ...] = ()
    changes: tuple[Change, ...] = ()

    @classmethod
    def load(cls, path: Path, changes: Mapping[str, Any] | None = None, *, live: bool = False) -> Self:
        """Read a file.

        Args:
            path: path of the file; programs and other files that it names lie in the same directory.
            changes: values that override the file's, by dotted key: ``congestion.mode``, ``workload.0.size_bytes``.
            live: real programs are its workload; those of the file are ignored.

        Raises:
            ScenarioError: it is not valid TOML, or has an invalid value.
            TopologyError: its topology is invalid.
            OSError: it cannot be read.
        """
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        # invalid TOML, invalid encoding, or a number with too many digits
        except (ValueError, RecursionError) as error:
            raise ScenarioError(f"{path} is not valid TOML: {error}") from None
        for key, value in (changes or {}).items():
            put(table, key, value)
        if live:
            table["workload"] = []
        return cls.from_table(table, path.parent, path.stem, live=live)

    @classmethod
    def from_table(cls, table: dict[str, Any], folder: Path, name: str = "scenario", *, live: bool = False) -> Self:
        """Read a table as if it were a file in the directory ``folder``.

        Raises:
            ScenarioError, TopologyError: as :meth:`load`.
        """
        topology = Topology.take(table)
        if not topology.hosts:
            raise ScenarioError("there is no host: write [topology] with a kind, or [[host]], [[switch]] and [[link]]")
        whole = _Table("the file", table)
        rows = whole.take("workload", [])
        works = [] if live else _works(rows, topology, folder)
        made = cls(
            topology,
            works,
            whole.text("name", name),
            whole.whole("seed", 1, 0, _MOST["seed"]),
            round(whole.number("limit_ms", 1_000, 1e-6, _MOST["limit_ms"]) * 1e6),
            round(whole.number("sample_us", 10, 0, _MOST["sample_us"]) * 1e3),
            _congestion(whole.take("congestion", {}), folder),
            *_nic(whole.take("nic", {})),
            whole.text("plot", ""),
            tuple((folder / row["file"]).read_bytes() for row in rows if row["kind"] in _WITH_FILES),
            _changes(whole.take("change", []), topology),
        )
        whole.end()
        return made

    def fabric(self, seed: int | None = None) -> Fabric:
        """Return the fabric, with all workloads added.

        Raises:
            ScenarioError: the NICs refuse a value.
        """
        seed = self.seed if seed is None else seed
        settings = {**self.nic, "congestion": self.congestion}
        fabric = Fabric(self.topology, seed=seed, settings=settings, **self.edge)
        self.plan(fabric)
        rng = Random(seed)
        for work in self.works:
            work(fabric, Random(rng.getrandbits(64)))
        return fabric

    def plan(self, fabric: Fabric) -> None:
        """Schedule the file's link changes on a fabric."""
        for time_ns, *ends, gbps, up in self.changes:
            fabric.agenda.once(time_ns, partial(fabric.change, *ends, gbps=gbps, up=up))


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at a dotted key of nested tables and lists.

    Raises:
        ScenarioError: there is no such key.
    """
    *path, last = key.split(".")
    at: Any = table
    for part in path:
        if isinstance(at, list) and part.isdigit() and int(part) < len(at):
            at = at[int(part)]
        elif isinstance(at, dict):
            at = at.setdefault(part, {})
        else:
            at = None
    if isinstance(at, list) and last.isdigit() and int(last) < len(at):
        at[int(last)] = value
    elif isinstance(at, dict):
        at[last] = value
    else:
        raise ScenarioError(
            f"{key}={shown(value)}: the file has no such place: write keys and numbers of rows with dots"
        )


def _congestion(rows: object, folder: Path) -> CongestionSettings:
    table = _Table("congestion", rows)
    known = {each.name for each in fields(CongestionSettings)} - {"dcqcn", "limiter"}
    given = {name: table.take(name) for name in sorted(known) if table.has(name)}
    if table.has("dcqcn"):
        try:
            inner = _Table("congestion.dcqcn", paper_dcqcn(table.take("dcqcn")))
        except ValueError as error:
            raise ScenarioError(f"congestion.dcqcn: {error}") from None
        names = [each.name for each in fields(DcqcnSettings)]
        try:
            given["dcqcn"] = DcqcnSettings(**{each: inner.whole(each) for each in names if inner.has(each)})
        except ValueError as error:
            raise ScenarioError(f"congestion.dcqcn: {error}") from None
        inner.end()
    table.end()
    mode = given.get("mode")
    if isinstance(mode, str) and ":" in mode and "/" not in mode:
        given["mode"] = f"{folder.resolve()}/{mode}"  # the module may be in the file's directory
    try:
        return CongestionSettings(**given)
    except (RnicError, TypeError) as error:
        raise ScenarioError(f"congestion: {error}") from None


def _nic(rows: object) -> tuple[dict[str, Any], dict[str, Any]]:
    table = _Table("nic", rows)
    given = {name: table.take(name) for name in NIC_SETTINGS if table.has(name)}
    edge = {name: table.whole(name, None, *bounds) for name, bounds in EDGE_SETTINGS.items() if table.has(name)}
    table.end()
    for name, value in given.items():
        if name == "recovery":
            if value not in RECOVERIES:
                raise ScenarioError(f"nic: recovery={shown(value)} is not known: use {' or '.join(RECOVERIES)}")
        elif name == "probe":
            if not isinstance(value, bool):
                raise ScenarioError(f"nic: probe={shown(value)} cannot be: give true or false")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ScenarioError(f"nic: {name}={shown(value)} cannot be: give 1 or more")
    return given, edge


def _changes(rows: object, topology: Topology) -> tuple[Change, ...]:
    if not isinstance(rows, list):
        raise ScenarioError(f"change={shown(rows)} is not a list of tables: write [[change]]")
    ends = [{link.a, link.b} for link in topology.links]
    made = []
    for at, row in enumerate(rows):
        table = _Table(f"change {at}", row)
        change = Change(
            round(table.number("at_us", None, 0, 1e9) * 1e3),
            table.text("a"),
            table.text("b"),
            table.number("gbps", None, 0.001, MAX_GBPS) if table.has("gbps") else None,
            table.take("up") if table.has("up") else None,
        )
        table.end()
        if {change.a, change.b} not in ends:
            raise ScenarioError(f"{table.name}: there is no link {change.a} - {change.b}: the topology names them")
        if change.up not in (None, True, False):
            raise ScenarioError(f"{table.name}: up={shown(change.up)} cannot be: give true or false")
        if change.gbps is None and change.up is None:
            raise ScenarioError(f"{table.name}: nothing changes: give gbps or up")
        made.append(change)
    return tuple(made)


def _works(rows: object, topology: Topology, folder: Path) -> list[Work]:
    if not isinstance(rows, list) or not rows:
        raise ScenarioError("there is nothing to do: write [[workload]] with a kind")
    hosts = [host.name for host in topology.hosts]
    return [_work(_Table(f"workload {at}", row), hosts, topology, folder) for at, row in enumerate(rows)]


def _work(table: _Table, hosts: list[str], topology: Topology, folder: Path) -> Work:
    kind = table.text("kind")
    if kind not in KINDS:
        raise ScenarioError(f"{table.name}: kind={shown(kind)} is not known: {near(kind, KINDS)}use {', '.join(KINDS)}")
    common = _Common(
        table.text("name", kind),
        round(table.number("start_us", 0, 0, 1e9) * 1e3),
        table.whole("priority", 0, 0, PRIORITIES - 1),
    )
    made = _MAKERS[kind](table, hosts, topology, folder, common)
    table.end()
    return made


def _flows(make: Callable[[Random], list[Flow]], common: _Common) -> Work:
    return lambda fabric, rng: fabric.add(
        flow._replace(label=common.label, priority=common.priority) for flow in make(rng)
    )


def _flow(table: _Table, hosts: list[str], _: Topology, __: Path, common: _Common) -> Work:
    src, dst = (table.text(key) for key in ("src", "dst"))
    size, count = table.whole("size_bytes", None, 1), table.whole("count", 1, 1, 1_000_000)
    return _flows(lambda rng: [Flow(src, dst, size, common.start_ns)] * count, common)


def _incast(table: _Table, hosts: list[str], _: Topology, __: Path, common: _Common) -> Work:
    target = table.text("target", hosts[-1])
    sources = table.nodes("sources", [name for name in hosts if name != target], len(hosts) - 1)
    size = table.whole("size_bytes", None, 1)
    every_ns = round(table.number("stagger_us", 0, 0, 1e9) * 1e3)

    def flows(rng: Random) -> list[Flow]:
        made = incast(sources, target, size, start_ns=common.start_ns)
        return [flow._replace(start_ns=common.start_ns + at * every_ns) for at, flow in enumerate(made)]

    return _flows(flows, common)


def _permutation(table: _Table, hosts: list[str], _: Topology, __: Path, common: _Common) -> Work:
    who, size = table.nodes("hosts", hosts, len(hosts)), table.whole("size_bytes", None, 1)
    return _flows(lambda rng: permutation(who, size, rng=rng, start_ns=common.start_ns), common)


def _all_to_all(table: _Table, hosts: list[str], _: Topology, __: Path, common: _Common) -> Work:
    who, size = table.nodes("hosts", hosts, len(hosts)), table.whole("size_bytes", None, 1)
    return _flows(lambda rng: all_to_all(who, size, start_ns=common.start_ns), common)


def _poisson(table: _Table, hosts: list[str], topology: Topology, __: Path, common: _Common) -> Work:
    who = table.nodes("hosts", hosts, len(hosts))
    sizes = table.take("sizes")
    if isinstance(sizes, str) and sizes not in SIZES:
        raise ScenarioError(
            f"{table.name}: sizes={shown(sizes)} is not known: use {', '.join(SIZES)} or [bytes, share] rows"
        )
    try:
        drawn = Distribution(SIZES[sizes] if isinstance(sizes, str) else [(int(a), float(b)) for a, b in sizes])
    except (TypeError, ValueError, OverflowError) as error:
        raise ScenarioError(f"{table.name}: sizes: {error}") from None
    if len(who) < 2:
        raise ScenarioError(f"{table.name}: hosts={who}: flows need two hosts or more")
    load = table.number("load", None, 0.001, 1)
    duration_ns = round(table.number("duration_ms", None, 1e-6, 3.6e6) * 1e6)
    most = table.whole("flows", 0, 0, 10_000_000) or None
    rate = next(link.bits_s for link in topology.links if who[0] in (link.a, link.b))
    return _flows(
        lambda rng: poisson(
            who, drawn, load=load, bits_s=rate, duration_ns=duration_ns, rng=rng, start_ns=common.start_ns, most=most
        ),
        common,
    )


def _collective(
    call: Callable[..., Coroutine[Any, Any, int]],
    table: _Table,
    hosts: list[str],
    _: Topology,
    __: Path,
    common: _Common,
) -> Work:
    who, size = table.nodes("hosts", hosts, len(hosts)), table.whole("size_bytes", None, 1)
    if len(who) < 2:
        raise ScenarioError(f"{table.name}: hosts={who}: a collective needs two hosts or more")

    more = {"batches": table.whole("batches", None, 1, 1_000_000)} if call is pipeline else {}

    async def program(fabric: Fabric) -> None:
        await fabric.sleep(common.start_ns)
        await call(fabric, who, size, label=common.label, priority=common.priority, **more)

    def work(fabric: Fabric, rng: Random) -> None:
        fabric.start(program(fabric))

    return work


def _flow_file(table: _Table, hosts: list[str], _: Topology, folder: Path, common: _Common) -> Work:
    where = table.text("file")
    try:
        flows = read_flows(folder / where)
    except (ValueError, OSError, ImportError) as error:
        raise ScenarioError(f"{table.name}: file={shown(where)}: {error}") from None

    def work(fabric: Fabric, rng: Random) -> None:
        fabric.add(
            flow._replace(
                start_ns=common.start_ns + flow.start_ns,
                label=flow.label or common.label,
                priority=flow.priority or common.priority,
            )
            for flow in flows
        )

    return work


def _program(table: _Table, hosts: list[str], _: Topology, folder: Path, common: _Common) -> Work:
    where = table.text("file")
    name = table.text("call", "main")
    arguments = table.take("arguments", {})
    path = folder / where
    if not path.is_file():
        raise ScenarioError(f"{table.name}: file={shown(where)}: there is no {path}")
    main = runpy.run_path(str(path), run_name="rnic_sim_program").get(name)
    if not callable(main):
        raise ScenarioError(f"{table.name}: call={shown(name)}: {path} has no such function: async def {name}(fabric)")

    async def program(fabric: Fabric) -> None:
        await fabric.sleep(common.start_ns)
        running: Program = main(fabric, **arguments)
        await running

    def work(fabric: Fabric, rng: Random) -> None:
        fabric.start(program(fabric))

    return work


_MAKERS: dict[str, Callable[[_Table, list[str], Topology, Path, _Common], Work]] = {
    "flow": _flow,
    "incast": _incast,
    "permutation": _permutation,
    "all-to-all": _all_to_all,
    "poisson": _poisson,
    "ring-all-reduce": partial(_collective, ring_all_reduce),
    "tree-all-reduce": partial(_collective, tree_all_reduce),
    "all-gather": partial(_collective, ring_all_gather),
    "pipeline": partial(_collective, pipeline),
    "flow-file": _flow_file,
    "program": _program,
}
