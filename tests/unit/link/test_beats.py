"""The 512-bit data path of 003: packets and beats, and a link over them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.link.base import Link, LinkError
from rnic.link.beats import BEAT_BYTES, FULL_KEEP, QUEUE_FRAMES, Beat, BeatLink, Reassembler, payload_of, to_beats, wire
from rnic.trace.counters import Counters
from rnic.wire.bursts import TxBurst
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet

A, B = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
A6, B6 = bytes(15) + b"\1", bytes(15) + b"\2"
GROUP = bytes([239, 1, 1, 1])


@given(st.binary(min_size=1, max_size=500))
def test_beats_hold_the_packet(packet: bytes) -> None:
    beats = list(to_beats(packet))
    assert len(beats) == -(-len(packet) // 64)
    assert all(len(beat.data) == 64 for beat in beats)
    assert [beat.last for beat in beats] == [False] * (len(beats) - 1) + [True]
    assert all(beat.keep == FULL_KEEP for beat in beats[:-1])
    assert payload_of(beats) == packet
    inward = Reassembler(Counters())
    assert [inward.push(beat) for beat in beats] == [None] * (len(beats) - 1) + [packet]


FULL = Beat(bytes(64), FULL_KEEP, False)
END = Beat(bytes(64), 1, True)


@pytest.mark.parametrize(
    "bad",
    [
        Beat(bytes(63), FULL_KEEP, False),
        Beat(bytes(64), FULL_KEEP >> 1, False),
        Beat(bytes(64), 0, True),
        Beat(bytes(64), 0b101, True),
        Beat(bytes(64), 0b110, True),
        Beat(bytes(64), FULL_KEEP + 1, True),
        Beat(bytes(64), -1, True),
    ],
    ids=["short data", "hole before the end", "nothing", "gap", "not from bit 0", "too wide", "negative"],
)
def test_a_packet_with_a_bad_beat_is_dropped_and_the_next_one_is_whole(bad: Beat) -> None:
    counters = Counters()
    inward = Reassembler(counters)
    for beat in (FULL, bad) if bad.last else (FULL, bad, END):
        assert inward.push(beat) is None
    assert counters["drop_rx_bad_beats"] == 1
    assert inward.push(END) == b"\0"


def test_a_stream_without_an_end_is_bounded() -> None:
    counters = Counters()
    inward = Reassembler(counters, limit=3 * BEAT_BYTES)
    for _ in range(1000):
        assert inward.push(FULL) is None
    assert inward.push(END) is None
    assert counters["drop_rx_bad_beats"] == 1


@pytest.mark.parametrize(("one", "other"), [(A, B), (A6, B6)], ids=["IPv4", "IPv6"])
def test_packets_cross_with_all_that_the_header_says(one: bytes, other: bytes) -> None:
    a, b = BeatLink(one), BeatLink(other)
    flow = a.local_flow(other, b.port)
    flow.tclass, flow.hop_limit = 3, 9
    a.send([TxBurst(flow, [b"x" * 12, b"y" * 100], 112, 1, 112)])
    assert wire(a, b) == -(-(len(ip_packet(flow, bytes(112)))) // 64)
    (got,) = b.receive(8)
    assert (bytes(got.buf), got.segment, got.length) == (b"x" * 12 + b"y" * 100, 112, 112)
    assert (got.flow.src, got.flow.dst, got.flow.sport) == (one, other, a.port)
    assert (got.ident, got.tclass, got.hop_limit) == (0, 3, 9)
    assert b.receive(8) == []


def test_bursts_are_taken_apart() -> None:
    a, b = BeatLink(A), BeatLink(B)
    assert a.max_segments(a.local_flow(B, b.port)) == 1
    a.send([TxBurst(a.local_flow(B, b.port), [bytes(40)], 16, 3, 40)])
    wire(a, b)
    assert [got.length for got in b.receive(8)] == [16, 16, 8]


@pytest.mark.parametrize(
    ("packet", "counter"),
    [
        (b"\x45" + bytes(10), "drop_bad_ip"),
        (b"\x15" + bytes(60), "drop_bad_ip"),
        (ip_packet(Flow(A, B, 1, 4792), bytes(20)), "drop_not_roce"),
        (ip_packet(Flow(A, B, 1, 4791), bytes(20))[:-1], "drop_bad_ip"),
        (ip_packet(Flow(A, bytes([10, 0, 0, 9]), 1, 4791), bytes(20)), "drop_wrong_address"),
        (ip_packet(Flow(A, GROUP, 1, 4791), bytes(20)), "drop_wrong_address"),
        (ip_packet(Flow(A, B, 1, 4791), bytes(20), frag=0x2000), "drop_bad_ip"),
    ],
    ids=["too short", "no IP", "other port", "cut", "other address", "group not joined", "fragment"],
)
def test_what_is_not_for_this_link_is_counted(packet: bytes, counter: str) -> None:
    link = BeatLink(B)
    link.s_axis_rx(to_beats(packet))
    assert link.receive(4) == []
    assert link.counters[counter] == 1


def test_groups() -> None:
    link = BeatLink(B)
    packet = ip_packet(Flow(A, GROUP, 1, 4791), bytes(20))
    link.join(GROUP)
    link.s_axis_rx(to_beats(packet))
    assert len(link.receive(4)) == 1
    link.leave(GROUP)
    link.s_axis_rx(to_beats(packet))
    assert link.receive(4) == []
    with pytest.raises(LinkError, match=r"10\.0\.0\.9"):
        link.join(bytes([10, 0, 0, 9]))


def test_the_queue_is_bounded() -> None:
    link = BeatLink(B)
    beats = list(to_beats(ip_packet(Flow(A, B, 1, 4791), bytes(20))))
    for _ in range(QUEUE_FRAMES + 3):
        link.s_axis_rx(beats)
    assert link.counters["drop_rx_queue_full"] == 3


def test_a_closed_link_refuses_to_send() -> None:
    link: Link = BeatLink(A)
    flow = link.local_flow(B, 4791)
    link.allow_gso(flow)
    link.close()
    link.close()
    with pytest.raises(LinkError, match="closed"):
        link.send([TxBurst(flow, [bytes(16)], 16, 1, 16)])
    assert (link.fileno(), link.filenos(), link.next_deadline_ns()) == (None, [], None)
