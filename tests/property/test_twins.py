"""The compiled burst loops against the plain ones, on whatever buffers and numbers: results, bytes and refusals."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.burst import COMPILED, LOOPS, plain
from rnic.wire.flow import Flow, residue, tx_delta

pytestmark = pytest.mark.skipif(not COMPILED, reason="the loops are not compiled here")

FLOWS = {
    4: Flow(bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)), 49152),
    6: Flow(bytes(15) + b"\1", bytes(15) + b"\2", 49152),
}
MTUS = (256, 512, 1024, 2048, 4096)
HEAD = 0x07 << 56 | 1 << 54 | 0xFFFF << 32 | 0x123456
PSNS = st.one_of(st.integers(0, 0xFFFFFF), st.integers(0xFFFFF0, 0xFFFFFF))

runs = st.fixed_dictionaries(
    {
        "version": st.sampled_from((4, 6)),
        "mtu": st.one_of(st.sampled_from(MTUS), st.integers(0, 600)),
        "count": st.integers(0, 9),
        "first": st.one_of(st.integers(0, 4), st.just(55)),
        "psn": PSNS,
        "ack_every": st.integers(0, 5),
        "head": st.one_of(st.just(HEAD), st.integers(0, (1 << 64) - 1)),
        "fill": st.integers(0, 1 << 32),
    }
)


def frames(loops: Any, run: dict[str, Any]) -> tuple[bytes, bytes]:
    """What a twin makes of a run, and the payload that it was made of."""
    mtu, count = run["mtu"], run["count"]
    length = mtu + 16
    payload = (struct.pack("<Q", run["fill"] * 0x9E3779B97F4A7C15 & (1 << 64) - 1) * (count * mtu // 8 + 1))[
        : count * mtu
    ]
    buffers: list[Any] = []
    seeds = FLOWS[run["version"]].seeds(length)
    loops.segment_run(
        run["head"], run["psn"], count, memoryview(payload), mtu, seeds, run["first"], tx_delta(length),
        run["ack_every"], buffers,
    )  # fmt: skip
    return b"".join(buffers), payload


@given(runs)
def test_packets_made_are_the_same(run: dict[str, Any]) -> None:
    assert frames(LOOPS, run) == frames(plain, run)


@given(
    runs,
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=2),
    st.integers(0, 40),
    st.integers(-1, 1),
)
def test_packets_placed_are_the_same(
    run: dict[str, Any], damage: list[tuple[int, int]], start: int, psn_off: int
) -> None:
    """Whole runs, runs with damaged bytes anywhere, and runs that are not the expected ones."""
    made, _ = frames(plain, run)
    wire = bytearray(bytes(start) + made)
    for place, bits in damage:
        if made:
            wire[start + place % len(made)] ^= bits
    segment = run["mtu"] + 16
    seeds = FLOWS[run["version"]].seeds(segment)
    psn = run["psn"] + psn_off & 0xFFFFFF
    answers = []
    for loops in (plain, LOOPS):
        dest = bytearray(b"\xee" * (run["count"] * run["mtu"] + 8))
        answers.append((
            loops.place_run(
                memoryview(wire), start, segment, run["count"], run["head"], psn, seeds, run["first"],
                residue(segment, run["head"] >> 24 & 0xFF), memoryview(dest),
            ),
            bytes(dest),
        ))  # fmt: skip
    assert answers[0] == answers[1]
    # the byte of FECN and BECN is 0 in what is sent: only then is what was made also right
    if not damage and not psn_off and not run["head"] >> 24 & 0xFF:
        assert answers[0][0][0] == run["count"]


@pytest.mark.parametrize(
    ("start", "segment", "count", "first", "room"),
    [
        (0, 272, 4, 0, 4 * 256),
        (-1, 272, 2, 0, 4 * 256),
        (272 * 2 + 1, 272, 1, 0, 4 * 256),
        (1 << 62, 272, 2, 0, 4 * 256),
        (0, 15, 2, 0, 4 * 256),
        (0, 1 << 40, 2, 0, 4 * 256),
        (0, 272, 3, 0, 2 * 256),
        (0, 272, 2, 63, 4 * 256),
        (0, 272, 2, -1, 4 * 256),
        (0, 272, 65, 0, 65 * 256),
        (0, 272, -1, 0, 4 * 256),
    ],
)
def test_nothing_out_of_bounds_is_touched(start: int, segment: int, count: int, first: int, room: int) -> None:
    """A caller's wrong arithmetic is an exception before the first byte, never an access."""
    seeds = FLOWS[4].seeds(272)
    dest = bytearray(room)
    with pytest.raises((ValueError, IndexError)):
        LOOPS.place_run(memoryview(bytes(3 * 272)), start, segment, count, HEAD, 0, seeds, first, 0, memoryview(dest))
    assert dest == bytes(room)


@pytest.mark.parametrize(("size", "count", "mtu", "first"), [(1023, 4, 256, 0), (0, 1, 1, 0), (1 << 20, 2, -1, 0),
                                                            (1 << 20, 2, 1 << 40, 0), (1 << 20, 65, 256, 0),
                                                            (1 << 20, 2, 256, 63)])  # fmt: skip
def test_a_payload_that_is_too_short_is_not_read(size: int, count: int, mtu: int, first: int) -> None:
    buffers: list[Any] = []
    with pytest.raises((ValueError, IndexError)):
        LOOPS.segment_run(HEAD, 0, count, memoryview(bytes(size)), mtu, FLOWS[4].seeds(272), first, 0, 0, buffers)
    assert buffers == []


def test_memory_that_cannot_be_written_is_refused() -> None:
    with pytest.raises((BufferError, TypeError)):
        LOOPS.place_run(memoryview(bytes(272)), 0, 272, 1, HEAD, 0, FLOWS[4].seeds(272), 0, 0, memoryview(bytes(256)))


def test_frames_that_someone_holds_are_not_written_again() -> None:
    """Long buffers are used again, but only once nobody sees them: more runs than the pool has places."""
    mtu, count = 4096, 5
    seeds = FLOWS[4].seeds(mtu + 16)
    held: list[Any] = []
    expected: list[bytes] = []
    for fill in range(80):
        payload = memoryview(bytes([fill]) * (mtu * count))
        want: list[Any] = []
        plain.segment_run(HEAD, fill, count, payload, mtu, seeds, 0, tx_delta(mtu + 16), 0, want)
        made: list[Any] = []
        LOOPS.segment_run(HEAD, fill, count, payload, mtu, seeds, 0, tx_delta(mtu + 16), 0, made)
        if fill % 3:
            held.append(memoryview(made[0]) if fill % 2 else made[0])
            expected.append(b"".join(want))
        assert b"".join(made) == b"".join(want)
    assert [bytes(each) for each in held] == expected
