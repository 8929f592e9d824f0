"""Topologies by table and by name, and the ways that packets take in them."""

from __future__ import annotations

import pytest

from rnic.sim import Topology, TopologyError
from rnic.sim.topology import Host, Link, Switch

TABLE = """
mtu = 2048
[[host]]
name = "a"
delay_ns = 300
[[host]]
name = "b"
[[switch]]
name = "s"
kmin_bytes = 5000
kmax_bytes = 200000
pmax = 0.01
[[link]]
a = "a"
b = "s"
gbps = 100
[[link]]
a = "s"
b = "b"
delay_ns = 50
loss = 0.001
"""


def test_a_table() -> None:
    topology = Topology.from_toml(TABLE)
    assert topology.mtu == 2048
    assert topology.hosts == (Host("a", 300), Host("b"))
    assert topology.switches == (Switch("s", kmin_bytes=5000, kmax_bytes=200000, pmax=0.01),)
    assert topology.links == (Link("a", "s", gbps=100), Link("s", "b", delay_ns=50, loss=0.001))
    assert topology.routes["s"] == {"a": (0,), "b": (1,)}
    assert topology.routes["a"] == {"b": (0,)}


@pytest.mark.parametrize(
    ("text", "hosts", "switches", "links"),
    [
        ('kind = "pair"', 2, 0, 1),
        ('kind = "star"\nhosts = 5\ngbps = 40', 5, 1, 5),
        ('kind = "dumbbell"\nhosts = 3', 6, 2, 7),
        ('kind = "leaf-spine"\nleaves = 3\nspines = 2\nhosts = 4\nup_gbps = 100', 12, 5, 18),
        ('kind = "fat-tree"\nk = 4', 16, 20, 48),
    ],
)
def test_named_ones(text: str, hosts: int, switches: int, links: int) -> None:
    topology = Topology.from_toml("[topology]\n" + text)
    assert (len(topology.hosts), len(topology.switches), len(topology.links)) == (hosts, switches, links)


def test_ways_of_a_fat_tree() -> None:
    """Within a pod two ways up from the edge, between pods four in all, down only one."""
    topology = Topology.fat_tree(4)
    assert len(topology.routes["edge0.0"]["h1"]) == 1
    assert len(topology.routes["edge0.0"]["h2"]) == 2
    assert len(topology.routes["edge0.0"]["h15"]) == 2
    assert len(topology.routes["agg0.0"]["h15"]) == 2
    assert len(topology.routes["core0.0"]["h15"]) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[host", "is no TOML"),
        ("mtu = 1500", "mtu=1500 is no path MTU"),
        ('[[host]]\nname = "a"\n[[host]]\nname = "a"', "a is there twice"),
        ('[[host]]\nname = "a"', "host a has 0 links"),
        ('[[link]]\na = "x"\nb = "y"', "there is no x"),
        ('[[switch]]\nname = "s"\n[[link]]\na = "s"\nb = "s"', "leads nowhere"),
        ('[[host]]\nname = "a"\nspeed = 1', "[[host]] has no speed"),
        ('[[host]]\ndelay_ns = 1', "name"),
        ('[[switch]]\nname = "s"\npmax = 2', "switch s: pmax=2 cannot be: give 0 to 1"),
        ('[[switch]]\nname = "s"\nkmin_bytes = 9\nkmax_bytes = 8', "kmax_bytes=8"),
        ('[[switch]]\nname = "s"\nxon_bytes = 9', "xon_bytes=9"),
        ("colour = 1", "'colour' is no part"),
        ('[topology]\nkind = "ring"', "kind 'ring' is not known"),
        ('[topology]\nkind = "star"', "topology star"),
        ('[topology]\nkind = "star"\nhosts = 0', "how many nodes named h=0 cannot be: give 1 to 100000"),
        ('[topology]\nkind = "fat-tree"\nk = 3', "even number of ports"),
        ('[topology]\nkind = "pair"\ngbps = 0', "gbps=0 cannot be"),
        ('[topology]\nkind = "pair"\ngbps = "fast"', "gbps='fast' is no number"),
        ('[topology]\nkind = "star"\nhosts = "many"', "how many nodes named h='many' is no number"),
        ("topology = 1", "topology=1 is no table"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_a_line(text: str, says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.from_toml(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hosts_that_do_not_reach_each_other() -> None:
    links = (Link("a", "s"), Link("b", "t"))
    with pytest.raises(TopologyError, match="does not reach"):
        Topology((Host("a"), Host("b")), (Switch("s"), Switch("t")), links)
