"""Fault rules of a device whose programs run the data path themselves: they judge their own packets."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rnic
from rnic import enums as e
from rnic.runtime.attach import ask, fault
from rnic.testing import own_network
from rnic.verbs import SGE, SendWR
from tests.verbs import test_bypass
from tests.verbs.test_bypass import Side, opened, slots, until
from tests.verbs.test_nic_process import needs_engine

pytestmark = [pytest.mark.slow, needs_engine]
nic = test_bypass.nic
NET = own_network()
DOWN_S = 0.1
"""How long a port is down: many times what a message takes there and back."""
PATIENT = 17
"""An ACK timeout of 0.5 s: with 7 retries, a message outlasts a port that is down, however late it comes up."""
EVERY_KIND: list[dict[str, Any]] = [
    {"every": 31, "action": "drop"},
    {"match": {"opcode": "RC_ACKNOWLEDGE"}, "every": 9, "action": "drop"},
    {"every": 17, "action": "reorder", "behind": 2, "hold_ns": 100_000},
    {"every": 23, "action": "duplicate"},
    {"match": {"direction": "tx"}, "every": 29, "action": "corrupt"},
    {"every": 37, "action": "delay", "delay_ns": 200_000},
    {"probability": 0.02, "action": "mark"},
    {"every": 41, "action": "truncate", "bytes": 20},
]


def exchange(directory: Path, host: int, rounds: int) -> list[dict[str, Any]]:
    """Messages there and back, whose bytes are right; return what the slots of both programs counted."""
    rng = random.Random(host)
    with opened(directory, host, events=False) as (side, _):
        for size in (2, 8, 4096, 5000, 100_000) * rounds:
            said = rng.randbytes(size)
            side.mr.buffer[:size] = said
            side.send(size)
            assert side.receive() == size
            assert bytes(side.mr.buffer[:size]) == said[::-1]
        counted = [slot["counters"] for slot in slots(directory) if slot["counters"].get("rx_packets", 0) > 50]
        own = ask(directory, "rnic0", "counters")
    assert own["slot_0_rx_packets"] < 20, "the NIC process takes those alone whose queue pair number was harmed"
    return counted


@pytest.mark.parametrize("shm", ["0", "1"], ids=["wire", "rings"])
def test_programs_judge_their_own_packets(nic: Path, monkeypatch: pytest.MonkeyPatch, shm: str) -> None:
    monkeypatch.setenv("RNIC_SHM", shm)
    host = 81 + int(shm)
    script = json.dumps(EVERY_KIND)
    with rnic.open(f"{NET}.{host}", port=4000, directory=nic, faults=script, bypass=True) as first:
        assert first.bypass
        counted = exchange(nic, host, 12)
    assert len(counted) == 2
    for counters in counted:
        for name in (
            "fault_rx_drop",
            "fault_rx_reorder",
            "fault_rx_duplicate",
            "fault_rx_delay",
            "fault_tx_corrupt",
            "fault_rx_truncate",
        ):
            assert counters[name] > 0, name
        assert shm == "0" or counters["shm_packets"] > 0


def test_long_messages_go_by_reference_unless_a_rule_strikes_them(nic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules see the packets that a run without its bytes stands for, and have it sent as packets to strike one."""
    monkeypatch.setenv("RNIC_SHM", "1")
    script = json.dumps([{"match": {"opcode": "RC_SEND_MIDDLE", "direction": "rx"}, "every": 100, "action": "drop"}])
    with rnic.open(f"{NET}.83", port=4000, directory=nic, faults=script, bypass=True):
        counted = exchange(nic, 83, 20)
    for counters in counted:
        # 20 messages of 23 MIDDLE packets, and what is sent again
        assert 4 <= counters["fault_rx_drop"] <= 8
        assert counters["shm_refused"] >= 1
        assert counters["shm_bytes"] > 1_000_000, "most of them went by reference"


def test_rules_that_match_nothing_leave_the_way_by_reference(nic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_SHM", "1")
    script = json.dumps([{"match": {"opcode": "UD_*"}, "every": 2, "action": "drop"}])
    with rnic.open(f"{NET}.84", port=4000, directory=nic, faults=script, bypass=True):
        counted = exchange(nic, 84, 4)
    for counters in counted:
        assert counters["shm_bytes"] > 300_000
        assert counters["shm_refused"] == counters["fault_rx_drop"] == 0


def test_the_table_is_the_nic_process_s_alone(nic: Path) -> None:
    """No program can write to the page of the rules, however it maps it."""
    with rnic.open(f"{NET}.85", port=4000, directory=nic, faults='[{"action": "mark"}]', bypass=True):
        maps = Path("/proc/self/maps").read_text().splitlines()
        (row,) = [line for line in maps if "rnic faults" in line]
        assert row.split()[1] == "r--s"


def test_a_port_that_flaps_by_the_clock_leaves_the_data_path_to_the_programs(nic: Path) -> None:
    script = json.dumps([{"at": "0s", "every": "50ms", "times": 10_000, "action": "port-down", "for": "2ms"}])
    with rnic.open(f"{NET}.88", port=4000, directory=nic, faults=script, bypass=True) as looker:
        assert looker.bypass
        with opened(nic, 88, events=False, timeout=PATIENT) as (side, _):
            for _ in range(3):
                while looker.get_async_event().event_type != e.IBV_EVENT_PORT_ERR:
                    pass
                side.send(8)
                assert side.receive() == 8
            assert len(slots(nic)) == 3
            assert not any(row["served"] for row in slots(nic))


def test_another_event_by_the_clock_has_the_nic_process_take_the_packets(nic: Path) -> None:
    """As on command."""
    script = json.dumps([{"at": "300ms", "action": "path-loss", "peer": "127.0.0.99"}])
    with rnic.open(f"{NET}.89", port=4000, directory=nic, faults=script, bypass=True):
        assert until(lambda: ask(nic, "rnic0", "counters").get("fault_event_path_loss"))
        assert all(row["served"] for row in slots(nic))


@pytest.mark.parametrize("shm", ["0", "1"], ids=["wire", "rings"])
def test_a_port_that_goes_down_and_up_leaves_the_data_path_to_the_programs(
    nic: Path, monkeypatch: pytest.MonkeyPatch, shm: str
) -> None:
    monkeypatch.setenv("RNIC_SHM", shm)
    host = 86 + int(shm)
    with rnic.open(f"{NET}.{host}", port=4000, directory=nic, bypass=True) as looker:
        with opened(nic, host, events=False, timeout=PATIENT) as (side, _):
            assert fault(nic, "rnic0", [])["port"] == "active"
            said = fault(nic, "rnic0", ["port-down"])
            assert said["port"] == "down"
            assert looker.get_async_event().event_type == e.IBV_EVENT_PORT_ERR
            assert looker.query_port(1).state == e.IBV_PORT_DOWN
            side.qp.post_send(SendWR(2, e.IBV_WR_SEND, sg=[SGE(side.mr.buf, 8, side.mr.lkey)]))
            end = time.monotonic() + DOWN_S
            while time.monotonic() < end:
                assert side.cq.poll(1) == (0, []), "nothing passes while the port is down"
            assert fault(nic, "rnic0", ["port-up"])["port"] == "active"
            side.sent()
            assert side.receive() == 8
            assert looker.get_async_event().event_type == e.IBV_EVENT_PORT_ACTIVE
            assert looker.query_port(1).state == e.IBV_PORT_ACTIVE
            rows = slots(nic)
            assert len(rows) == 3
            assert not any(row["served"] for row in rows)
            assert sum(row["counters"].get("fault_port_down", 0) for row in rows) > 0
        with rnic.open(f"{NET}.{host}", port=4000, directory=nic, bypass=True) as later:
            assert later.bypass, "events of the port leave the device's programs their data path"


@pytest.mark.parametrize("events", [False, True], ids=["polled", "events"])
def test_programs_take_their_packets_again_once_a_fault_is_over(nic: Path, events: bool) -> None:
    """They come to the NIC process only as long as the fault lasts."""
    with opened(nic, 90, events=events, timeout=PATIENT) as (side, _):
        fault(nic, "rnic0", ["path-loss", "127.0.0.99"])
        assert all(row["served"] for row in slots(nic))
        side.send(8)
        assert side.receive() == 8
        fault(nic, "rnic0", ["heal"])
        assert_taken_again(nic, side)


def test_programs_keep_their_packets_while_a_tool_watches(nic: Path) -> None:
    """It sees them by the rings of captures: each packet at both ends, and each operation with its end."""
    since = 0

    def watch() -> list[Any]:
        nonlocal since
        answer = ask(nic, "rnic0", f"tap it {since} 1")
        since = answer["next"]
        return list(answer["events"])

    with opened(nic, 91, events=False, timeout=PATIENT) as (side, _):
        watch()
        side.send(8)  # the ring is in use from here on at the latest
        assert side.receive() == 8
        assert until(watch)
        watch()
        seen: list[Any] = []
        for size in (9, 5000):
            side.send(size)
            assert side.receive() == size

        def of(stage: str) -> dict[tuple[int, int], Any]:
            return {(event[3], event[4]["index"]): event for event in seen if event[2] == stage}

        def both_have_ended() -> bool:
            seen.extend(watch())
            began = {which for which, event in of("fetched").items() if event[4]["bytes"] in (9, 5000)}
            return len(began) == 4 and began <= of("completed").keys()

        assert until(both_have_ended)
        assert_taken_again(nic, side)
    for which, event in of("fetched").items():
        assert 0 < of("completed")[which][1] - event[1] < 1_000_000_000
    names = "opcode", "psn", "src", "dst", "dqpn"
    sent, received = (
        Counter(tuple(event[4][name] for name in names) for event in seen if event[2] == stage)
        for stage in ("sent", "received")
    )
    assert sent == received


def assert_taken_again(nic: Path, side: Side) -> None:
    """Both programs take their packets, and the NIC process none."""
    assert until(lambda: not any(row["served"] for row in slots(nic)))
    before = [row["counters"]["rx_packets"] for row in slots(nic)]
    for _ in range(100):
        side.send(8)
        assert side.receive() == 8
    after = [row["counters"]["rx_packets"] for row in slots(nic)]
    assert all(now >= then + 100 for now, then in zip(after, before, strict=True))
    assert not any(row["served"] for row in slots(nic))
    assert ask(nic, "rnic0", "counters")["slot_0_rx_packets"] < 20
