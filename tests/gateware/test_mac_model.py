"""The model of a MAC and its line: what it carries, how long that takes, and what it does not forgive."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rnic.gateware.axi_model import BusError
from rnic.gateware.mac_model import Beat, Mac, line_bytes
from rnic.gateware.params import EngineParams
from rnic.gateware.sim_bus import Frame
from rnic.gateware.simulate import Job, run_job


def beats(frame: bytes, lanes: int, bad: bool = False) -> list[Beat]:
    parts = [frame[at : at + lanes] for at in range(0, len(frame), lanes)]
    return [Beat(part, number == len(parts), bad and number == len(parts)) for number, part in enumerate(parts, 1)]


def pair(lanes: int, rate: float) -> tuple[Mac, Mac]:
    a, b = Mac(lanes, rate), Mac(lanes, rate)
    a.peer = b
    return a, b


def carry(a: Mac, b: Mac, queue: list[Beat], limit: int = 5000) -> tuple[int, list[Frame]]:
    """Cycles until all was carried, and the frames that came out."""
    frames, data = [], bytearray()
    for cycle in range(limit):
        shown = queue[0] if queue else None
        if shown is not None and a.tx_ready:
            queue.pop(0)
            taken = shown
        else:
            taken = None
        a.edge(shown if taken else None, True)
        if b.rx is not None:
            data += b.rx.data
            if b.rx.last:
                frames.append(Frame(bytes(data), b.rx.bad))
                data.clear()
        b.edge(None, True)
        if not queue and not a.busy() and not b.busy() and b.rx is None:
            return cycle, frames
    raise AssertionError("the line did not come to rest")


@pytest.mark.parametrize(("lanes", "rate"), [(4, 1.25), (8, 8.0), (64, 50.0)])
def test_frames_take_the_lines_time_and_arrive_whole(lanes: int, rate: float) -> None:
    rng = random.Random(lanes)
    sent = [rng.randbytes(size) for size in (1, 42, 59, 60, 61, 1094, 70, 300)]
    a, b = pair(lanes, rate)
    cycles, frames = carry(a, b, [beat for frame in sent for beat in beats(frame, lanes)])
    assert [frame.data for frame in frames] == [frame.ljust(60, b"\0") for frame in sent]
    assert not any(frame.bad for frame in frames)
    assert a.frames == sent
    line = sum(map(line_bytes, map(len, sent)))
    assert line == sum(max(len(frame), 60) + 24 for frame in sent)
    assert a.line_bits == 8 * line
    stored = (1094 + 70 + 300) / lanes  # a frame is stored, then brought; the two behind the long one wait for it
    assert line / rate <= cycles <= line / rate + stored + 8


def test_a_spoilt_frame_and_one_that_the_line_changed_arrive_bad() -> None:
    a, b = pair(8, 8.0)
    frame = bytes(range(80))
    _cycles, frames = carry(a, b, beats(frame, 8, bad=True) + beats(frame, 8))
    assert [each.bad for each in frames] == [True, False]
    a.harm = lambda whole: bytes([whole[0] ^ 1]) + whole[1:]
    _cycles, frames = carry(a, b, beats(frame, 8))
    assert [each.bad for each in frames] == [True]
    a.harm = lambda _whole: None
    assert carry(a, b, beats(frame, 8))[1] == []
    assert a.lost == 1


def test_a_gap_inside_a_frame_is_an_error() -> None:
    mac = Mac(8, 8.0)
    first, *_rest = beats(bytes(80), 8)
    mac.edge(None, True)
    mac.edge(first, True)
    mac.edge(None, True)  # the beat is on the line
    with pytest.raises(BusError, match="a gap inside a frame, behind 8 bytes"):
        mac.edge(None, True)


def test_a_received_beat_does_not_wait() -> None:
    a, b = pair(8, 8.0)
    for beat in [None, *beats(bytes(60), 8)]:
        a.edge(beat, True)
    while b.rx is None:
        a.edge(None, True)
        b.edge(None, True)
    with pytest.raises(BusError, match="a MAC does not wait"):
        b.edge(None, False)


@pytest.mark.parametrize("rate", [0, 8.5])
def test_a_line_is_no_faster_than_its_stream(rate: float) -> None:
    with pytest.raises(ValueError, match="at most the stream's 8"):
        Mac(8, rate)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"serial": True}, id="serial"),
        pytest.param({"serial": False, "in_flight": 4}, id="several"),
    ],
)
def test_two_engines_over_a_line_that_loses_frames(parameters: dict[str, Any]) -> None:
    """The engine leaves no gap and never makes the MAC wait, or this ends with a BusError."""
    params = EngineParams(bus_width=64, block_size=256, boundary=256, clock_mhz=125, **parameters)
    job = Job(sizes=(1, 700, 64), remote_offsets=(0, 5), count=6, network=True, line_gbps=5, loss=0.2, seed=2)
    result = run_job(job, params)
    assert result.wrong == []
    assert 0 < result.lost < len(result.frames) == 10
    assert result.line_bits == 8 * sum(line_bytes(len(frame)) for frame in result.frames)
    assert result.line_bits / 40 < result.arrived  # 40 bits in each cycle
