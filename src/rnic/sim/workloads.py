"""Who sends how much to whom, and when."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple


class Flow(NamedTuple):
    """One RDMA WRITE of ``size`` bytes from host ``src`` to host ``dst`` on a queue pair of its own."""

    src: str
    dst: str
    size: int
    start_ns: int = 0


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
