"""Quantities with units in scenario files, and suggestions for misspelt keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rnic.cc.dcqcn import DcqcnSettings
from rnic.sim.scenario import Scenario, ScenarioError
from rnic.sim.topology import Topology, TopologyError
from rnic.sim.units import near, paper_dcqcn, plain

WORK = [{"kind": "incast", "size_bytes": "1 MB"}]


def dcqcn(rows: object) -> dict[str, Any]:
    made = paper_dcqcn(rows)
    assert isinstance(made, dict)
    return made


def scenario(**table: Any) -> Scenario:
    given = {"topology": {"kind": "star", "hosts": 3}, "workload": [dict(row) for row in WORK], **table}
    return Scenario.from_table(given, Path())


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("size_bytes", "64 KiB", 65_536),
        ("buffer_bytes", "12MB", 12_000_000),
        ("delay_ns", "1 us", 1_000),
        ("delay_ns", "0.6 us", 600),
        ("start_us", "2 ms", 2_000),
        ("start_us", "250 ns", 0.25),
        ("limit_ms", "1 s", 1_000),
        ("gbps", "400 Gb/s", 400),
        ("up_gbps", "1.6 Tb/s", 1_600),
        ("gbps", "2500 Mb/s", 2.5),
        ("additive_rate", "40 Mb/s", 5),
        ("least_rate", "1 b/s", 1),
        ("size_bytes", 7, 7),
        ("name", "64 KiB", "64 KiB"),
        ("kind", "star", "star"),
    ],
)
def test_a_quantity_is_in_the_unit_of_its_key(key: str, text: Any, value: float | str) -> None:
    assert plain(key, text) == value


@pytest.mark.parametrize("text", ["64 KiBB", "64 ns", "many", "", "-1 KB", "1e3 KB", "KB"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match=r"size_bytes=.* is no quantity: give a number, and one of B, KB, MB"):
        plain("size_bytes", text)


def test_dcqcn_by_the_names_of_its_paper() -> None:
    rows = {"r_ai": "40 Mb/s", "r_hai": "400 Mb/s", "g": "1/256", "f": 5, "timer": 55_000, "byte_counter": "10 MB"}
    rows |= {"alpha_timer": "55 us"}
    rows["timer"] = "55 us"
    assert DcqcnSettings(**dcqcn(rows)) == DcqcnSettings(additive_rate=5, hyper_rate=51)
    assert paper_dcqcn({"g": 1 / 16}) == {"g_shift": 4}
    for wrong in ("1/3", 0, 0.3, "x"):
        with pytest.raises(ValueError, match=r"g=.* cannot be: give one over a power of two"):
            paper_dcqcn({"g": wrong})
    assert paper_dcqcn(3) == 3


def test_a_scenario_with_units() -> None:
    topology = {"kind": "star", "hosts": 3, "gbps": "100 Gb/s", "delay_ns": "1 us", "switch": {"buffer_bytes": "1 MiB"}}
    made = scenario(
        topology=topology, limit_ms="1 s", sample_us="5 us", congestion={"mode": "dcqcn", "dcqcn": {"r_ai": "80 Mb/s"}}
    )
    assert made.topology == Topology.star(3, gbps=100, delay_ns=1_000, switch={"buffer_bytes": 1 << 20})
    assert (made.limit_ns, made.sample_ns) == (10**9, 5_000)
    assert made.congestion.dcqcn.additive_rate == 10
    rows = {
        "host": [{"name": "a", "delay_ns": "1 us"}, {"name": "b"}],
        "link": [{"a": "a", "b": "b", "gbps": "1 Gb/s"}],
    }
    assert Topology.take(rows).links[0].bits_s == 10**9


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"workload": [{"kind": "incast", "size_byte": 1, "size_bytes": 1}]}, "no size_byte: did you mean size_bytes"),
        ({"workload": [{"kind": "incats"}]}, "kind='incats' is not known: did you mean incast"),
        ({"limit_m": 3}, "the file has no limit_m: did you mean limit_ms"),
        ({"nic": {"turn_byte": 3}}, "nic has no turn_byte: did you mean turn_bytes"),
        ({"congestion": {"mod": "none"}}, "congestion has no mod: did you mean mode"),
        ({"workload": [{"kind": "incast", "size_bytes": "3 m"}]}, "workload 0: size_bytes='3 m' is no quantity"),
        ({"congestion": {"dcqcn": {"g": 3}}}, "congestion.dcqcn: g=3 cannot be"),
    ],
)
def test_a_misspelt_key_of_a_scenario(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        scenario(**table)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"topology": {"kind": "star", "host_s": 3}}, "topology star has no host_s: did you mean hosts"),
        ({"topology": {"kind": "star", "hosts": 3, "switch": {"kmin": 3}}}, "topology switch has no kmin"),
        ({"topology": {"kind": "star", "hosts": 3, "delay_ns": "3 KB"}}, "topology star: delay_ns='3 KB' is no quan"),
        ({"host": [{"name": "a", "delay": 3}]}, r"\[\[host\]\] has no delay: did you mean delay_ns"),
        ({"switch": [{"name": "a", "buffer_bytes": "3 ns"}]}, r"\[\[switch\]\].*buffer_bytes='3 ns' is no quantity"),
    ],
)
def test_a_misspelt_key_of_a_topology(table: dict[str, Any], said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        Topology.take(table)


def test_nothing_is_suggested_where_nothing_is_like_it() -> None:
    assert near("zebra", ["hosts", "size_bytes"]) == ""
