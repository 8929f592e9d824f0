"""One run, written down: a TOML file with topology, workloads, congestion control, seed and limits."""

from __future__ import annotations

import runpy
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import Random
from typing import Any, Self

from rnic.cc.dcqcn import DcqcnSettings
from rnic.cc.settings import CongestionSettings
from rnic.sim.fabric import Fabric
from rnic.sim.tasks import Program
from rnic.sim.topology import Topology
from rnic.sim.workloads import (
    SIZES,
    Distribution,
    Flow,
    all_to_all,
    incast,
    permutation,
    poisson,
    ring_all_reduce,
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
KINDS = ("flow", "incast", "permutation", "all-to-all", "poisson", "ring-all-reduce", "program")
_MOST = {"seed": 1 << 63, "limit_ms": 3_600_000, "sample_us": 1_000_000}


class ScenarioError(RnicError):
    """A scenario that cannot be. One line: the thing, its value, the remedy."""


class _Table:
    """A table of a file; each key is taken once, and what is left over is a mistake."""

    def __init__(self, name: str, rows: object) -> None:
        if not isinstance(rows, Mapping):
            raise ScenarioError(f"{name}={shown(rows)} is no table: write [{name}]")
        self.name = name
        self._rows = dict(rows)
        self._known: list[str] = []

    def has(self, key: str) -> bool:
        """Whether it has this key."""
        self._known.append(key)
        return key in self._rows

    def take(self, key: str, default: Any = None) -> Any:
        """Whatever there is."""
        self._known.append(key)
        if key not in self._rows and default is None:
            raise ScenarioError(f"{self.name}: there is no {key}: give one")
        return self._rows.pop(key, default)

    def number(self, key: str, default: float | None = None, least: float = 0, most: float = 1e18) -> float:
        """A number within bounds."""
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ScenarioError(f"{self.name}: {key}={shown(value)} cannot be: give {least:g} to {most:g}")
        return value

    def whole(self, key: str, default: int | None = None, least: int = 0, most: int = 1 << 48) -> int:
        """A whole number within bounds."""
        value = self.number(key, default, least, most)
        if not isinstance(value, int):
            raise ScenarioError(f"{self.name}: {key}={shown(value)} is no whole number: give one")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self.take(key, default)
        if not isinstance(value, str):
            raise ScenarioError(f"{self.name}: {key}={shown(value)} is no text: write it in quotes")
        return value

    def nodes(self, key: str, hosts: list[str], default: int | None = None) -> list[str]:
        """Hosts, by names or by how many of the first."""
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
        """Nothing may be left."""
        if self._rows:
            known = ", ".join(sorted(set(self._known)))
            raise ScenarioError(f"{self.name} has no {next(iter(self._rows))}: it has {known}")


Work = Callable[[Fabric, Random], None]
"""What puts a workload on a fabric."""


@dataclass
class Scenario:
    """A run to make. ``programs`` are the texts of those that it names, for who compares runs."""

    topology: Topology
    works: list[Work]
    name: str = "scenario"
    seed: int = 1
    limit_ns: int = 1_000_000_000
    sample_ns: int = 10_000
    """How often queues and progress are looked at; 0 is never."""
    congestion: CongestionSettings = field(default_factory=CongestionSettings)
    nic: dict[str, Any] = field(default_factory=dict)
    plot: str = ""
    """A PNG that `rnic sim` draws beside its tables."""
    programs: tuple[bytes, ...] = ()

    @classmethod
    def load(cls, path: Path, changes: Mapping[str, Any] | None = None) -> Self:
        """Read a file.

        Args:
            path: of the file; programs and other files that it names lie beside it.
            changes: values in place of the file's, by dotted key: ``congestion.mode``, ``workload.0.size_bytes``.

        Raises:
            ScenarioError: it is no TOML, or says what cannot be.
            TopologyError: its topology cannot be.
            OSError: it cannot be read.
        """
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:  # of TOML, of its encoding, of a number of too many digits
            raise ScenarioError(f"{path} is not valid TOML: {error}") from None
        for key, value in (changes or {}).items():
            put(table, key, value)
        return cls.from_table(table, path.parent, path.stem)

    @classmethod
    def from_table(cls, table: dict[str, Any], folder: Path, name: str = "scenario") -> Self:
        """Read a table that stands for a file in ``folder``.

        Raises:
            ScenarioError, TopologyError: as :meth:`load`.
        """
        topology = Topology.take(table)
        if not topology.hosts:
            raise ScenarioError("there is no host: write [topology] with a kind, or [[host]], [[switch]] and [[link]]")
        whole = _Table("the file", table)
        rows = whole.take("workload", [])
        works = _works(rows, topology, folder)
        made = cls(
            topology,
            works,
            whole.text("name", name),
            whole.whole("seed", 1, 0, _MOST["seed"]),
            round(whole.number("limit_ms", 1_000, 1e-6, _MOST["limit_ms"]) * 1e6),
            round(whole.number("sample_us", 10, 0, _MOST["sample_us"]) * 1e3),
            _congestion(whole.take("congestion", {})),
            _nic(whole.take("nic", {})),
            whole.text("plot", ""),
            tuple((folder / row["file"]).read_bytes() for row in rows if row["kind"] == "program"),
        )
        whole.end()
        return made

    def fabric(self, seed: int | None = None) -> Fabric:
        """The fabric, with all work on it.

        Raises:
            ScenarioError: the NICs do not take a value.
        """
        seed = self.seed if seed is None else seed
        settings = {**self.nic, "congestion": self.congestion}
        fabric = Fabric(self.topology, seed=seed, settings=settings)
        rng = Random(seed)
        for work in self.works:
            work(fabric, Random(rng.getrandbits(64)))
        return fabric


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at a dotted key of nested tables and lists.

    Raises:
        ScenarioError: there is no such place.
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


def _congestion(rows: object) -> CongestionSettings:
    table = _Table("congestion", rows)
    known = {each.name for each in fields(CongestionSettings)} - {"dcqcn", "limiter"}
    given = {name: table.take(name) for name in sorted(known) if table.has(name)}
    if table.has("dcqcn"):
        inner = _Table("congestion.dcqcn", table.take("dcqcn"))
        names = [each.name for each in fields(DcqcnSettings)]
        try:
            given["dcqcn"] = DcqcnSettings(**{each: inner.whole(each) for each in names if inner.has(each)})
        except ValueError as error:
            raise ScenarioError(f"congestion.dcqcn: {error}") from None
        inner.end()
    table.end()
    try:
        return CongestionSettings(**given)
    except (RnicError, TypeError) as error:
        raise ScenarioError(f"congestion: {error}") from None


def _nic(rows: object) -> dict[str, Any]:
    table = _Table("nic", rows)
    given = {name: table.take(name) for name in NIC_SETTINGS if table.has(name)}
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
    return given


def _works(rows: object, topology: Topology, folder: Path) -> list[Work]:
    if not isinstance(rows, list) or not rows:
        raise ScenarioError("there is nothing to do: write [[workload]] with a kind")
    hosts = [host.name for host in topology.hosts]
    return [_work(_Table(f"workload {at}", row), hosts, topology, folder) for at, row in enumerate(rows)]


def _work(table: _Table, hosts: list[str], topology: Topology, folder: Path) -> Work:
    kind = table.text("kind")
    if kind not in KINDS:
        raise ScenarioError(f"{table.name}: kind={shown(kind)} is not known: use {', '.join(KINDS)}")
    label = table.text("name", kind)
    start_ns = round(table.number("start_us", 0, 0, 1e9) * 1e3)
    made = _MAKERS[kind](table, hosts, topology, folder, label, start_ns)
    table.end()
    return made


def _flows(make: Callable[[Random], list[Flow]], label: str) -> Work:
    return lambda fabric, rng: fabric.add(flow._replace(label=label) for flow in make(rng))


def _flow(table: _Table, hosts: list[str], _: Topology, __: Path, label: str, start_ns: int) -> Work:
    src, dst = (table.text(key) for key in ("src", "dst"))
    size, count = table.whole("size_bytes", None, 1), table.whole("count", 1, 1, 1_000_000)
    return _flows(lambda rng: [Flow(src, dst, size, start_ns)] * count, label)


def _incast(table: _Table, hosts: list[str], _: Topology, __: Path, label: str, start_ns: int) -> Work:
    target = table.text("target", hosts[-1])
    sources = table.nodes("sources", [name for name in hosts if name != target], len(hosts) - 1)
    size = table.whole("size_bytes", None, 1)
    every_ns = round(table.number("stagger_us", 0, 0, 1e9) * 1e3)

    def flows(rng: Random) -> list[Flow]:
        made = incast(sources, target, size, start_ns=start_ns)
        return [flow._replace(start_ns=start_ns + at * every_ns) for at, flow in enumerate(made)]

    return _flows(flows, label)


def _permutation(table: _Table, hosts: list[str], _: Topology, __: Path, label: str, start_ns: int) -> Work:
    who, size = table.nodes("hosts", hosts, len(hosts)), table.whole("size_bytes", None, 1)
    return _flows(lambda rng: permutation(who, size, rng=rng, start_ns=start_ns), label)


def _all_to_all(table: _Table, hosts: list[str], _: Topology, __: Path, label: str, start_ns: int) -> Work:
    who, size = table.nodes("hosts", hosts, len(hosts)), table.whole("size_bytes", None, 1)
    return _flows(lambda rng: all_to_all(who, size, start_ns=start_ns), label)


def _poisson(table: _Table, hosts: list[str], topology: Topology, __: Path, label: str, start_ns: int) -> Work:
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
            who, drawn, load=load, bits_s=rate, duration_ns=duration_ns, rng=rng, start_ns=start_ns, most=most
        ),
        label,
    )


def _ring(table: _Table, hosts: list[str], _: Topology, __: Path, label: str, start_ns: int) -> Work:
    who, size = table.nodes("hosts", hosts, len(hosts)), table.whole("size_bytes", None, 1)
    if len(who) < 2:
        raise ScenarioError(f"{table.name}: hosts={who}: a ring needs two hosts or more")

    async def program(fabric: Fabric) -> None:
        await fabric.sleep(start_ns)
        await ring_all_reduce(fabric, who, size, label=label)

    def work(fabric: Fabric, rng: Random) -> None:
        fabric.start(program(fabric))

    return work


def _program(table: _Table, hosts: list[str], _: Topology, folder: Path, label: str, start_ns: int) -> Work:
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
        await fabric.sleep(start_ns)
        running: Program = main(fabric, **arguments)
        await running

    def work(fabric: Fabric, rng: Random) -> None:
        fabric.start(program(fabric))

    return work


_MAKERS: dict[str, Callable[[_Table, list[str], Topology, Path, str, int], Work]] = {
    "flow": _flow,
    "incast": _incast,
    "permutation": _permutation,
    "all-to-all": _all_to_all,
    "poisson": _poisson,
    "ring-all-reduce": _ring,
    "program": _program,
}
