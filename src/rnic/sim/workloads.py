"""Workloads: senders, receivers, sizes and start times of flows."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rnic.sim.fabric import Fabric


_MOST_WRITTEN = 32
"""Writes of a channel that a pipeline keeps in flight."""


class Flow(NamedTuple):
    """One RDMA WRITE of ``size`` bytes from host ``src`` to host ``dst`` on its own queue pair."""

    src: str
    dst: str
    size: int
    start_ns: int = 0
    label: str = ""
    """Group that it belongs to, for tables."""
    priority: int = 0
    """Priority of its packets, 0 to 7; ACKs and CNPs have a separate one."""


def incast(sources: Sequence[str], target: str, size: int, *, start_ns: int = 0) -> list[Flow]:
    """Return flows from all sources to one target at once."""
    return [Flow(source, target, size, start_ns) for source in sources]


def permutation(hosts: Sequence[str], size: int, *, rng: Random, start_ns: int = 0) -> list[Flow]:
    """Return flows in which each host sends to one host and receives from one: a random cycle through all."""
    order = list(hosts)
    rng.shuffle(order)
    following = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [Flow(host, following[host], size, start_ns) for host in hosts]


def all_to_all(hosts: Sequence[str], size: int, *, start_ns: int = 0) -> list[Flow]:
    """Return flows from each host to every other."""
    return [Flow(one, other, size, start_ns) for one in hosts for other in hosts if one != other]


SIZES: dict[str, tuple[tuple[int, float], ...]] = {
    "web-search": (
        (0, 0), (10_000, 0.15), (20_000, 0.20), (30_000, 0.30), (50_000, 0.40), (80_000, 0.53), (200_000, 0.60),
        (1_000_000, 0.70), (2_000_000, 0.80), (5_000_000, 0.90), (10_000_000, 0.97), (30_000_000, 1),
    ),
    "fb-hadoop": (
        (0, 0), (100, 0.01), (200, 0.02), (300, 0.05), (350, 0.15), (400, 0.20), (500, 0.30), (600, 0.40), (700, 0.50),
        (1_000, 0.60), (2_000, 0.67), (7_000, 0.70), (30_000, 0.72), (50_000, 0.82), (80_000, 0.87), (120_000, 0.90),
        (300_000, 0.95), (1_000_000, 0.975), (2_000_000, 0.99), (10_000_000, 1),
    ),
}  # fmt: skip
"""Flow sizes of the literature: points of the distribution: bytes, and the fraction of flows of at most that size.

``web-search`` was measured by Alizadeh and others (DCTCP, SIGCOMM 2010, figure 4), ``fb-hadoop`` by Roy and others
(Inside the Social Network's Network, SIGCOMM 2015, figure 6); the points are those that Li and others published with
HPCC (SIGCOMM 2019, ``traffic_gen`` of alibaba-edu/High-Precision-Congestion-Control).
"""


class Distribution:
    """A distribution of sizes, given by points with linear interpolation.

    Args:
        points: bytes and fraction, both increasing, the fraction from 0 to 1.

    Raises:
        ValueError: they do not increase, or the fraction does not go from 0 to 1.
    """

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        if len(points) < 2 or points[0][1] != 0 or points[-1][1] != 1:
            raise ValueError(
                f"points={list(points)!r} are not a distribution: give [bytes, share] with shares from 0 to 1"
            )
        for (low, less), (high, more) in pairwise(points):
            if high < low or more < less:
                raise ValueError(f"points {low}, {less:g} and {high}, {more:g} do not rise: sort them")
        self._points = tuple(points)

    @property
    def mean(self) -> float:
        """Mean flow size in bytes."""
        return sum((high + low) / 2 * (more - less) for (low, less), (high, more) in pairwise(self._points))

    def draw(self, rng: Random) -> int:
        """Return the size of a flow, 1 or more."""
        share = rng.random()
        for (low, less), (high, more) in pairwise(self._points):
            if share < more:
                return max(1, round(low + (high - low) * (share - less) / (more - less)))
        return max(1, self._points[-1][0])


def poisson(
    hosts: Sequence[str],
    sizes: Distribution,
    *,
    load: float,
    bits_s: int,
    duration_ns: int,
    rng: Random,
    start_ns: int = 0,
    most: int | None = None,
) -> list[Flow]:
    """Return flows with Poisson arrivals, each between two random hosts, as in the literature's traces.

    Args:
        hosts: two or more.
        sizes: distribution of flow sizes.
        load: mean load of each host's link, without headers.
        bits_s: rate of a host's link.
        duration_ns: time during which flows arrive.
        rng: random numbers.
        start_ns: start of the first interval.
        most: most flows.
    """
    each_ns = sizes.mean * 8e9 / (load * bits_s * len(hosts))
    flows: list[Flow] = []
    time_ns = 0.0
    while most is None or len(flows) < most:
        time_ns += rng.expovariate(1) * each_ns
        if time_ns >= duration_ns:
            break
        source, target = rng.sample(hosts, 2)
        flows.append(Flow(source, target, sizes.draw(rng), start_ns + round(time_ns)))
    return flows


async def ring_all_reduce(
    fabric: Fabric, hosts: Sequence[str], size: int, *, label: str = "all-reduce", priority: int = 0
) -> int:
    """Reduce ``size`` bytes over all hosts (all-reduce): 2 (N - 1) steps around a ring, each with 1/N of the data.

    Each host sends the part that it has just received, so its next step begins when that part has arrived.

    Returns:
        Elapsed time in nanoseconds.
    """
    part = max(1, -(-size // len(hosts)))
    return await _ring(fabric, hosts, part, 2 * (len(hosts) - 1), label, priority)


async def ring_all_gather(
    fabric: Fabric, hosts: Sequence[str], size: int, *, label: str = "all-gather", priority: int = 0
) -> int:
    """Gather ``size`` bytes of each host at all hosts: N - 1 steps around a ring, as :func:`ring_all_reduce`.

    Returns:
        Elapsed time in nanoseconds.
    """
    return await _ring(fabric, hosts, size, len(hosts) - 1, label, priority)


async def _ring(fabric: Fabric, hosts: Sequence[str], part: int, steps: int, label: str, priority: int) -> int:
    begun_ns = fabric.agenda.now_ns
    count = len(hosts)
    channels = [fabric.channel(host, hosts[(at + 1) % count], part, priority) for at, host in enumerate(hosts)]

    async def member(at: int) -> None:
        written = []
        for step in range(steps):
            if step:
                await channels[at - 1].arrival()
            written.append(channels[at].write(part, label))
        await channels[at - 1].arrival()
        for each in written:
            await each

    for over in [fabric.start(member(at)) for at in range(count)]:
        await over
    return fabric.agenda.now_ns - begun_ns


async def tree_all_reduce(
    fabric: Fabric, hosts: Sequence[str], size: int, *, label: str = "all-reduce", priority: int = 0
) -> int:
    """Reduce ``size`` bytes over all hosts (all-reduce): up a binary tree, whose root is the first host, and down
    again.

    Returns:
        Elapsed time in nanoseconds.
    """
    begun_ns = fabric.agenda.now_ns
    parents = {at: (at - 1) // 2 for at in range(1, len(hosts))}
    up = {at: fabric.channel(hosts[at], hosts[parent], size, priority) for at, parent in parents.items()}
    down = {at: fabric.channel(hosts[parent], hosts[at], size, priority) for at, parent in parents.items()}

    async def member(at: int) -> None:
        below = [child for child, parent in parents.items() if parent == at]
        for child in below:
            await up[child].arrival()
        if at:
            await up[at].write(size, label)
            await down[at].arrival()
        for each in [down[child].write(size, label) for child in below]:
            await each

    for over in [fabric.start(member(at)) for at in range(len(hosts))]:
        await over
    return fabric.agenda.now_ns - begun_ns


async def pipeline(
    fabric: Fabric, hosts: Sequence[str], size: int, batches: int, *, label: str = "pipeline", priority: int = 0
) -> int:
    """Send ``batches`` messages of ``size`` bytes through a chain of hosts, each host forwarding on arrival.

    Returns:
        Elapsed time in nanoseconds.
    """
    begun_ns = fabric.agenda.now_ns
    channels = [fabric.channel(one, other, size, priority) for one, other in pairwise(hosts)]

    async def member(at: int) -> None:
        written = []
        for _ in range(batches):
            if at:
                await channels[at - 1].arrival()
            if at < len(channels):
                written.append(channels[at].write(size, label))
            if len(written) > _MOST_WRITTEN:
                await written.pop(0)
        for each in written:
            await each

    for over in [fabric.start(member(at)) for at in range(len(hosts))]:
        await over
    return fabric.agenda.now_ns - begun_ns


def read_flows(file: Path) -> list[Flow]:
    """Read flows from a CSV file with a header, or a Parquet file (needs pyarrow).

    Its columns are ``src``, ``dst``, ``size_bytes``, and optionally ``start_us``, ``priority``, ``name``.

    Raises:
        ValueError: a row lacks a value, or a value is not a number.
        OSError: it cannot be read.
        ImportError: Parquet without pyarrow.
    """
    if file.suffix == ".parquet":
        rows = importlib.import_module("pyarrow.parquet").read_table(file).to_pylist()
    else:
        rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
    flows = []
    for number, row in enumerate(rows, 1):
        try:
            start_ns = round(float(row.get("start_us") or 0) * 1e3)
            size, priority = int(row["size_bytes"]), int(row.get("priority") or 0)
            flows.append(Flow(row["src"], row["dst"], size, start_ns, row.get("name") or "", priority))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"flow {number}: {error!r}: give src, dst and size_bytes in each row") from None
    return flows
