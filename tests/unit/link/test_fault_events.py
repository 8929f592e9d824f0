"""Words and scripts that say what happens to a device."""

from __future__ import annotations

import random

import pytest

from rnic.link.fault_events import EVENTS, duration_ns, from_words, make_event, timed_event, usage
from rnic.link.fault_script import parse_script
from rnic.link.faults import FaultyLink
from rnic.link.loopback import Fabric
from rnic.spec.status import RETRY_EXC_ERR


@pytest.mark.parametrize(
    ("said", "ns"), [("2s", 2_000_000_000), ("1.5ms", 1_500_000), ("50us", 50_000), ("7ns", 7), (12, 12), (0, 0)]
)
def test_durations(said: object, ns: int) -> None:
    assert duration_ns(said) == ns


@pytest.mark.parametrize("said", ["", "2", "s", "-1s", "2 s", "2m", -1, 1.5, True, None])
def test_no_durations(said: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        duration_ns(said)


@pytest.mark.parametrize("said", ["9" * 400 + "s", "5000000000s", 1 << 63, int("9" * 400)])
def test_too_long_durations(said: object) -> None:
    with pytest.raises(ValueError, match="is too long for a duration: give at most 4611686018s"):
        duration_ns(said)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("port-down",), {"for": None}),
        (("port-down", "2s"), {"for": 2_000_000_000}),
        (("flap", "3", "5ms"), {"times": 3, "down": 5_000_000, "up": 100_000_000}),
        (("gid", "1", "none"), {"index": 1, "value": bytes(16), "for": None}),
        (
            ("gid", "0", "10.0.0.1", "1s"),
            {"index": 0, "value": bytes(10) + b"\xff\xff\x0a\0\0\1", "for": 1_000_000_000},
        ),
        (("pkey", "0", "0x8001"), {"index": 0, "value": 0x8001, "for": None}),
        (("qp-error", "17"), {"qp": 17}),
        (("qp-error", "all"), {"qp": "all"}),
        (("completion-error", "17", "IBV_WC_RETRY_EXC_ERR"), {"qp": 17, "status": RETRY_EXC_ERR}),
        (("path-loss", "fd00::2", "1ms"), {"peer": bytes((0xFD, *bytes(14), 2)), "for": 1_000_000}),
        (("interrupt-lost",), {"times": 1}),
        (("heal",), {}),
    ],
)
def test_words(words: tuple[str, ...], told: dict[str, object]) -> None:
    event = from_words(words)
    assert (event.name, event.told) == (words[0], told)
    assert event.for_ns == told.get("for")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no event: give one of port-down"),
        (("bang",), "'bang' is not an event"),
        (("port-down", "2s", "3s"), r"2 values are too many; it takes \[FOR\]"),
        (("port-up", "2s"), "it takes none"),
        (("gid", "8", "none"), "gid: index: '8' is not a whole number from 0 to 7"),
        (("gid", "0"), "gid: value is missing"),
        (("gid", "0", "ten"), "'ten' is not an IP address"),
        (("pkey", "0", "0x10000"), "is not a whole number"),
        (("qp-error", "some"), "qp-error: qp: 'some'"),
        (("completion-error", "1", "SUCCESS"), "'SUCCESS' is not a status: give one of LOC_LEN_ERR"),
        (("slow-dma",), "slow-dma: delay is missing"),
    ],
)
def test_bad_words(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        from_words(words)
    assert "\n" not in str(refused.value)


def test_values_by_name() -> None:
    assert make_event("port-down", for_="2s") == make_event("port-down", "2s")
    with pytest.raises(ValueError, match="unknown value 'down'"):
        make_event("port-down", down="2s")


def test_every_event_says_how_it_is_used() -> None:
    for name, kind in EVENTS.items():
        assert kind.meaning
        assert usage(name).count(" ") == max(0, len(kind.parameters) - 1)


def test_events_by_the_clock() -> None:
    timed = timed_event({"at": "1s", "every": "500ms", "times": 4, "action": "port-down", "for": "20ms"})
    assert (timed.at_ns, timed.every_ns, timed.times) == (1_000_000_000, 500_000_000, 4)
    own = timed_event({"at": 0, "action": "flap", "times": 4})
    assert (own.times, own.event.told["times"]) == (None, 4)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"at": "1s", "action": "drop"}, "fault rule 1: 'drop' is not an event"),
        ({"at": "soon", "action": "heal"}, "'soon' is not a duration"),
        ({"at": "1s", "every": 0, "action": "heal"}, "every: 0 would never end"),
        ({"at": "1s", "times": 2, "action": "heal"}, "times: only what has every"),
        ({"at": "1s", "match": {}, "action": "heal"}, "unknown value 'match'"),
        ({"action": "port-down", "for": "x"}, "fault rule 1: port-down: for"),
        ({"action": "explode"}, "allowed: one of drop, .*, heal"),
    ],
)
def test_bad_scripts(rule: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_script([rule])


def test_times_bounds_how_often_packets_strike_or_is_the_events_own() -> None:
    bounded, own = parse_script(
        [
            {"every": 2, "times": 3, "action": "port-down", "for": "1ms"},
            {"every": 2, "times": 3, "action": "interrupt-lost"},
        ]
    ).rules
    assert (bounded.times, bounded.event) == (3, make_event("port-down", "1ms"))
    assert (own.times, own.event) == (None, make_event("interrupt-lost", 3))


def test_a_link_says_whether_the_device_is_wanted() -> None:
    def link(*script: dict[str, object]) -> FaultyLink:
        inner = Fabric().attach(bytes((10, 0, 0, 1)))
        return FaultyLink(inner, clock=lambda: 0, rng=random.Random(1), script=script)

    assert not link({"action": "drop"}).has_events
    assert link({"action": "heal"}).has_events
    assert link({"at": 0, "action": "heal"}).has_events
