"""Counters of a slot count what is possible, whatever the program writes."""

from __future__ import annotations

import pytest

from rnic.nic_process.slot_counters import MAX_BYTES_PER_S, MAX_PACKETS_PER_S, SlotCounters, add

MS = 1_000_000
ALL = 2**64 - 1


def test_what_is_possible_counts() -> None:
    words = [0, 0]
    counters = SlotCounters(words, {"rx_packets": 0, "rx_bytes": 1}, 0)
    words[:] = [1_000, 1_000_000]
    assert counters.read(MS) == {"rx_packets": 1_000, "rx_bytes": 1_000_000}
    words[:] = [1_001, 1_000_000]
    assert counters.read(2 * MS) == {"rx_packets": 1_001, "rx_bytes": 1_000_000}
    assert counters.believable


@pytest.mark.parametrize("value", [ALL, 1 << 63, 10 * MAX_PACKETS_PER_S])
def test_a_leap_counts_nothing(value: int) -> None:
    words = [7]
    counters = SlotCounters(words, {"rx_packets": 0}, 0)
    assert counters.read(MS) == {"rx_packets": 7}
    words[0] = value
    assert counters.read(1_000 * MS) == {"rx_packets": 7}
    assert not counters.believable
    words[0] = value + 3 & ALL  # it goes on from there, or wraps, which goes back
    assert counters.read(1_001 * MS)["rx_packets"] in (7, 10)


def test_what_goes_back_counts_nothing() -> None:
    words = [7]
    counters = SlotCounters(words, {"punt": 0}, 0)
    counters.read(MS)
    words[0] = 0
    assert counters.read(2 * MS) == {"punt": 7}
    assert not counters.believable


def test_noise_stays_within_the_greatest_rate() -> None:
    words = [0]
    counters = SlotCounters(words, {"tx_bytes": 0}, 0)
    for turn in range(1, 1_001):
        words[0] = turn * 0x9E37_79B9_7F4A_7C15 & ALL
        total = counters.read(turn * MS)["tx_bytes"]
    assert total <= 2 * MAX_BYTES_PER_S


def test_sums_wrap() -> None:
    assert add(ALL, 3) == 2
