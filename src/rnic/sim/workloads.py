"""Who sends how much to whom, and when."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rnic.sim.fabric import Fabric


class Flow(NamedTuple):
    """One RDMA WRITE of ``size`` bytes from host ``src`` to host ``dst`` on a queue pair of its own."""

    src: str
    dst: str
    size: int
    start_ns: int = 0
    label: str = ""
    """What it belongs to, for tables."""


def incast(sources: Sequence[str], target: str, size: int, *, start_ns: int = 0) -> list[Flow]:
    """All sources send to one target at once."""
    return [Flow(source, target, size, start_ns) for source in sources]


def permutation(hosts: Sequence[str], size: int, *, rng: Random, start_ns: int = 0) -> list[Flow]:
    """Each host sends to another, each of which gets from one: a random cycle through all of them."""
    order = list(hosts)
    rng.shuffle(order)
    following = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [Flow(host, following[host], size, start_ns) for host in hosts]


def all_to_all(hosts: Sequence[str], size: int, *, start_ns: int = 0) -> list[Flow]:
    """Each host sends to every other."""
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
"""Flow sizes of the literature: points of the distribution, bytes and the share of flows that are no larger.

``web-search`` was measured by Alizadeh and others (DCTCP, SIGCOMM 2010, figure 4), ``fb-hadoop`` by Roy and others
(Inside the Social Network's Network, SIGCOMM 2015, figure 6); the points are those that Li and others published with
HPCC (SIGCOMM 2019, ``traffic_gen`` of alibaba-edu/High-Precision-Congestion-Control).
"""


class Distribution:
    """Sizes by a distribution given by points, straight lines between them.

    Args:
        points: bytes and share, both rising, the share from 0 to 1.

    Raises:
        ValueError: they do not rise, or do not go from 0 to 1.
    """

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        if len(points) < 2 or points[0][1] != 0 or points[-1][1] != 1:
            raise ValueError(
                f"points={list(points)!r} are no distribution: give [bytes, share] with shares from 0 to 1"
            )
        for (low, less), (high, more) in pairwise(points):
            if high < low or more < less:
                raise ValueError(f"points {low}, {less:g} and {high}, {more:g} do not rise: sort them")
        self._points = tuple(points)

    @property
    def mean(self) -> float:
        """Bytes of a flow on average."""
        return sum((high + low) / 2 * (more - less) for (low, less), (high, more) in pairwise(self._points))

    def draw(self, rng: Random) -> int:
        """The size of a flow, 1 or more."""
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
    """Flows that arrive at random, each between two hosts chosen at random, as the literature's traces are made.

    Args:
        hosts: two or more.
        sizes: of the flows.
        load: how much of each host's link they fill on average, headers apart.
        bits_s: of a host's link.
        duration_ns: how long flows arrive.
        rng: what chooses.
        start_ns: when it begins.
        most: no more flows than these.
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


async def ring_all_reduce(fabric: Fabric, hosts: Sequence[str], size: int, *, label: str = "all-reduce") -> int:
    """All hosts add up ``size`` bytes and get the sum: 2 (N - 1) steps round a ring with a part of 1/N each.

    Each host sends the part that it has just received, so its next step begins when that has arrived.

    Returns:
        How long it took, in nanoseconds.
    """
    begun_ns = fabric.agenda.now_ns
    count = len(hosts)
    part = max(1, -(-size // count))
    channels = [fabric.channel(host, hosts[(at + 1) % count], part) for at, host in enumerate(hosts)]

    async def member(at: int) -> None:
        written = []
        for step in range(2 * (count - 1)):
            if step:
                await channels[at - 1].arrival()
            written.append(channels[at].write(part, label))
        await channels[at - 1].arrival()
        for each in written:
            await each

    for over in [fabric.start(member(at)) for at in range(count)]:
        await over
    return fabric.agenda.now_ns - begun_ns
