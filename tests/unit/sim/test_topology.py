"""Topologies by table and by name, and the ways that packets take in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rnic.sim import Topology, TopologyError
from rnic.sim.profiles import HOSTS, SWITCHES, Profile
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
    assert list(topology.groups("s")) == [(["a"], (0,)), (["b"], (1,))]
    assert topology.ways("s", "b") == (1,)
    assert topology.ways("a", "b") == (0,)


def test_the_least_mtu_of_links_and_file_is_the_path_mtu() -> None:
    assert Topology.from_toml(TABLE + "mtu = 4096").mtu == 2048
    assert Topology.from_toml(TABLE + "mtu = 512").mtu == 512
    assert Topology.star(3, mtu=4096).mtu == 4096
    with pytest.raises(TopologyError, match="link s - b: mtu=1500 is not a path MTU: use one of 256"):
        Topology.from_toml(TABLE + "mtu = 1500")


@pytest.mark.parametrize(
    ("text", "hosts", "switches", "links"),
    [
        ('kind = "pair"', 2, 0, 1),
        ('kind = "star"\nhosts = 5\ngbps = 40', 5, 1, 5),
        ('kind = "dumbbell"\nhosts = 3', 6, 2, 7),
        ('kind = "leaf-spine"\nleaves = 3\nspines = 2\nhosts = 4\nup_gbps = 100', 12, 5, 18),
        ('kind = "rails"\nhosts = 4\nrails = 3\nspines = 2', 12, 5, 18),
        ('kind = "fat-tree"\nk = 4', 16, 20, 48),
    ],
)
def test_named_ones(text: str, hosts: int, switches: int, links: int) -> None:
    topology = Topology.from_toml("[topology]\n" + text)
    assert (len(topology.hosts), len(topology.switches), len(topology.links)) == (hosts, switches, links)


def test_rails_join_the_nics_of_one_number() -> None:
    topology = Topology.rails(2, 2, 1, gbps=40, oversubscription=2)
    assert [host.name for host in topology.hosts] == ["h0.0", "h0.1", "h1.0", "h1.1"]
    assert topology.gateway("h0.1") == topology.gateway("h1.1") == "rail1"
    assert {link.gbps for link in topology.links if "spine0" in (link.a, link.b)} == {40}


def test_oversubscription_sets_the_rate_of_the_links_up() -> None:
    topology = Topology.leaf_spine(2, 2, 8, gbps=100, oversubscription=4)
    assert {link.gbps for link in topology.links if link.b.startswith("spine")} == {100}
    assert Topology.leaf_spine(2, 1, 3, oversubscription=1).links[-1].gbps == 75
    with pytest.raises(TopologyError, match="give one of them"):
        Topology.leaf_spine(2, 2, 8, up_gbps=100, oversubscription=4)
    with pytest.raises(TopologyError, match="oversubscription=0 cannot be"):
        Topology.leaf_spine(2, 2, 8, oversubscription=0)


def test_rows_of_links_change_a_named_topology() -> None:
    text = '[topology]\nkind = "star"\nhosts = 2\ndelay_ns = 7\n[[link]]\na = "s0"\nb = "h1"\ngbps = 3\n'
    topology = Topology.from_toml(text)
    assert [(link.gbps, link.delay_ns) for link in topology.links] == [(25, 7), (3, 7)]
    with pytest.raises(TopologyError, match="h0 - h1: the named topology has no such link"):
        Topology.from_toml(text.replace("s0", "h0"))


def test_ways_without_a_link() -> None:
    topology = Topology.leaf_spine(2, 2, 1)
    (down,) = (at for at, link in enumerate(topology.links) if (link.a, link.b) == ("leaf0", "spine1"))
    ways = {hosts[0]: ways for hosts, ways in topology.groups("leaf0", topology.routes({down}))}
    assert ways["h1"] == tuple(at for at in topology.ways("leaf0", "h1") if at != down)
    (edge,) = topology.ends["h1"]
    assert {hosts[0]: ways for hosts, ways in topology.groups("leaf1", topology.routes({edge}))}["h1"] == (edge,)


def test_ways_of_a_fat_tree() -> None:
    """Within a pod two ways up from the edge, between pods four in all, down only one."""
    topology = Topology.fat_tree(4)
    assert len(topology.ways("edge0.0", "h1")) == 1
    assert len(topology.ways("edge0.0", "h2")) == 2
    assert len(topology.ways("edge0.0", "h15")) == 2
    assert len(topology.ways("agg0.0", "h15")) == 2
    assert len(topology.ways("core0.0", "h15")) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[host", "is not valid TOML"),
        ("mtu = 1500", "mtu=1500 is not a path MTU"),
        ('[[host]]\nname = "a"\n[[host]]\nname = "a"', "a is there twice"),
        ('[[host]]\nname = "a"', "host a has 0 links"),
        ('[[link]]\na = "x"\nb = "y"', "there is no x"),
        ('[[switch]]\nname = "s"\n[[link]]\na = "s"\nb = "s"', "leads nowhere"),
        ('[[host]]\nname = "a"\nspeed = 1', "[[host]] has no speed"),
        ('[[host]]\ndelay_ns = 1', "name"),
        ('[[switch]]\nname = "s"\npmax = 2', "switch s: pmax=2 cannot be: give 0 to 1"),
        ('[[switch]]\nname = "s"\nkmin_bytes = 9\nkmax_bytes = 8', "kmax_bytes=8"),
        ('[[switch]]\nname = "s"\nxon_bytes = 9', "xon_bytes=9"),
        ("colour = 1", "'colour' is not part"),
        ('[topology]\nkind = "ring"', "kind 'ring' is not known"),
        ('[topology]\nkind = "star"', "topology star"),
        ('[topology]\nkind = "star"\nhosts = 0', "how many nodes named h=0 cannot be: give 1 to 100000"),
        ('[topology]\nkind = "fat-tree"\nk = 3', "even number of ports"),
        ('[topology]\nkind = "pair"\ngbps = 0', "gbps=0 cannot be"),
        ('[topology]\nkind = "pair"\ngbps = "fast"', "gbps='fast' is no quantity"),
        ('[topology]\nkind = "star"\nhosts = "many"', "how many nodes named h='many' is not a number"),
        ("topology = 1", "topology=1 is not a table"),
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


def test_a_profile_is_a_published_delay() -> None:
    topology = Topology.from_toml(
        """
        [[host]]
        name = "a"
        profile = "connectx-5"
        [[host]]
        name = "b"
        delay_ns = 7
        [[switch]]
        name = "s"
        profile = "spectrum-2"
        [[link]]
        a = "a"
        b = "s"
        [[link]]
        a = "b"
        b = "s"
        """
    )
    assert topology.delays == {"a": 600, "b": 7, "s": 300}


def test_topologies_by_name_take_profiles() -> None:
    text = """
    [topology]
    kind = "star"
    hosts = 2
    host = { profile = "connectx-2" }
    switch = { profile = "nexus-3548", buffer_bytes = 65536 }
    """
    assert Topology.from_toml(text).delays == {"h0": 1_300, "h1": 1_300, "s0": 250}


@pytest.mark.parametrize(
    ("row", "says"),
    [({"profile": "abacus"}, "use connectx-2"), ({"profile": "connectx-5", "delay_ns": 9}, "give one of them")],
)
def test_a_profile_that_cannot_be(row: dict[str, Any], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        Host("h0", **row)


@pytest.mark.parametrize("profiles", [HOSTS, SWITCHES], ids=["hosts", "switches"])
def test_each_profile_says_where_it_was_published(profiles: dict[str, Profile]) -> None:
    for name, profile in profiles.items():
        assert profile.delay_ns > 0, name
        assert ":" in profile.published, name


def test_the_page_has_each_profile() -> None:
    page = (Path(__file__).parents[3] / "docs" / "fabric.md").read_text(encoding="utf-8")
    for kind, profiles in (("host", HOSTS), ("switch", SWITCHES)):
        for name, profile in profiles.items():
            assert f"| {kind} | `{name}` | {profile.delay_ns:,} | {profile.published} |" in page


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308, -1, 10**4000, True, "x", [], {}])
@pytest.mark.parametrize("key", ["gbps", "delay_ns", "loss", "mtu", "hosts"])
def test_no_value_ends_in_a_traceback(key: str, value: object) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.take({"topology": {"kind": "star", "hosts": 2, key: value}})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["mtu = " + "9" * 5000, "mtu = " + "[" * 60_000])
def test_text_that_the_parser_cannot_bear_is_one_line(text: str) -> None:
    with pytest.raises(TopologyError, match=r"^topology is not valid TOML: "):
        Topology.from_toml(text)


def test_link_headroom_is_round_trip_pause_and_two_packets() -> None:
    topology = Topology.star(2, gbps=100, delay_ns=1_000, switch={"xoff_bytes": 15_000, "xon_bytes": 12_000})
    assert topology.headroom(0) == (2_001 * 100 + 7) // 8 + 84 + 2 * (1024 + 66 + 12 + 16 + 4 + 4)
    assert topology.headrooms(topology.switches[0]) == [topology.headroom(0)] * 2
    assert topology.warnings() == []
    slow = Topology.star(2, gbps=100, host={"delay_ns": 600}, switch={"xoff_bytes": 15_000, "headroom_bytes": 30_000})
    assert slow.headroom(0) - topology.headroom(0) == 600 * 100 // 8
    assert slow.headrooms(slow.switches[0]) == [30_000] * 2
    (line,) = slow.warnings()
    assert line.startswith(f"switch s0: headroom_bytes=30000 may lose packets: link h0 - s0 needs {slow.headroom(0)}")
    plain = Topology.star(2)
    assert plain.headrooms(plain.switches[0]) == [0, 0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"weights": [1, 2]}, "weights=\\[1, 2\\] cannot be: give 8 numbers"),
        ({"weights": [0.5] * 8}, "weight of priority 0=0.5 is not a whole number"),
        ({"weights": [-1] * 8}, "weight of priority 0=-1 cannot be"),
        ({"pfc_priorities": [8]}, "pfc_priorities=\\[8\\] cannot be: give some of 0 to 7"),
        ({"alpha": -1}, "alpha=-1 cannot be"),
        ({"headroom_bytes": -1}, "headroom_bytes=-1 cannot be"),
    ],
)
def test_priorities_that_cannot_be(row: dict[str, Any], said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        Switch("s", **row)
