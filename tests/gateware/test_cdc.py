"""Clocks that have nothing to do with each other: frames and bus beats between them, and the whole engine on three."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from rnic.gateware.axi_model import Timing
from rnic.gateware.cdc import MacRxCrossing, MacTxCrossing
from rnic.gateware.params import EngineParams
from rnic.gateware.sim_bus import Stalls, StreamSink, StreamSource
from rnic.gateware.simulate import Job, run_job

pytestmark = pytest.mark.slow
PERIODS = [(1.0, 0.317), (1.0, 1.003), (1.0, 3.19)]
"""Of the engine's clock and of the MAC's."""


def simulate(
    dut: Any, source: StreamSource, sink: StreamSink, into: str, periods: tuple[float, float], cycles: int
) -> None:
    """Run ``cycles`` of the slower clock; the stream goes into domain ``into``."""
    source.domain, sink.domain = ("mac", "sync") if into == "sync" else ("sync", "mac")
    sim = Simulator(dut)
    sim.add_clock(periods[0] * 1e-8)
    sim.add_clock(periods[1] * 1e-8, phase=periods[1] * 0.37e-8, domain="mac")
    sim.add_testbench(source.run, background=True)
    sim.add_testbench(sink.run, background=True)

    async def wait(ctx: Any) -> None:
        await ctx.tick("sync" if periods[0] > periods[1] else "mac").repeat(cycles)

    sim.add_testbench(wait)
    sim.run()


@pytest.mark.parametrize("periods", PERIODS)
@pytest.mark.parametrize("width", [32, 512])
def test_a_frame_reaches_the_mac_without_a_gap(width: int, periods: tuple[float, float]) -> None:
    """However slowly it comes, and however much faster the MAC's clock is."""
    rng = random.Random(width)
    dut = MacTxCrossing(EngineParams(bus_width=width))
    source = StreamSource(dut.s_axis, Stalls(rng, 0.5))
    sink = StreamSink(dut.m_axis, keep_beats=True)
    frames = [rng.randbytes(size) for size in (70, 1094, 71, 128, 300)]
    for number, frame in enumerate(frames):
        source.send(frame, bad=number == 2)
    simulate(dut, source, sink, "mac", periods, 1700 * 32 // width + 300)
    assert [(each.data, each.bad) for each in sink.frames] == [(frame, n == 2) for n, frame in enumerate(frames)]
    for each in sink.frames:
        edges = [edge for edge, _count in each.beats]
        assert edges == list(range(edges[0], edges[0] + len(edges))), "a gap inside a frame"


def test_a_mac_that_waits_loses_nothing() -> None:
    rng = random.Random(3)
    dut = MacTxCrossing(EngineParams(bus_width=64))
    source, sink = StreamSource(dut.s_axis), StreamSink(dut.m_axis, Stalls(rng, 0.6))
    frames = [rng.randbytes(rng.randrange(70, 400)) for _ in range(20)]
    for frame in frames:
        source.send(frame)
    simulate(dut, source, sink, "mac", PERIODS[1], 2000)
    assert [each.data for each in sink.frames] == frames


@pytest.mark.parametrize("periods", PERIODS[1:])
def test_frames_from_the_mac_come_whole_where_the_clock_can_follow(periods: tuple[float, float]) -> None:
    rng = random.Random(4)
    dut = MacRxCrossing(EngineParams(bus_width=64))
    source, sink = StreamSource(dut.s_axis), StreamSink(dut.m_axis)
    frames = [rng.randbytes(rng.randrange(60, 300)) for _ in range(20)]
    for number, frame in enumerate(frames):
        source.send(frame, bad=number == 7)
    # 1.003: the clocks are all but equal, and there are gaps between frames
    source.stalls = Stalls(rng, 0.1)
    simulate(dut, source, sink, "sync", periods, 1200)
    assert [(each.data, each.bad) for each in sink.frames] == [(frame, n == 7) for n, frame in enumerate(frames)]


def test_a_frame_that_the_clock_cannot_follow_is_marked_and_none_waits() -> None:
    """A MAC three times as fast: every frame comes whole or ends as a bad one, in order, and none is missing."""
    rng = random.Random(5)
    dut = MacRxCrossing(EngineParams(bus_width=64))
    source, sink = StreamSource(dut.s_axis), StreamSink(dut.m_axis)
    frames = [bytes([number]) * rng.randrange(60, 400) for number in range(1, 25)]
    for frame in frames:
        source.send(frame)
    beats = len(source.queue)
    simulate(dut, source, sink, "sync", PERIODS[0], 450)
    assert source.moved == beats, "the MAC was made to wait"
    assert len(sink.frames) == len(frames)
    good = [each.data for each in sink.frames if not each.bad]
    whole = iter(frames)
    assert all(frame in whole for frame in good), "other frames, or in another order"
    assert 0 < len(good) < len(frames) - 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"serial": True}, id="serial", marks=pytest.mark.full),
        pytest.param({"serial": False, "in_flight": 4}, id="several"),
    ],
)
def test_two_engines_on_three_clocks_each(parameters: dict[str, Any]) -> None:
    """MACs at 156.25 MHz with a line of 5 Gb/s, memory at 61.7 MHz and slow, the engine at 100 MHz."""
    params = EngineParams(
        bus_width=64, block_size=256, boundary=256, mac_clock_mhz=156.25, bus_clock_mhz=61.7, **parameters
    )
    job = Job(sizes=(1, 700, 64), remote_offsets=(0, 5), count=4, network=True, line_gbps=5, timing=Timing(5))
    result = run_job(job, params)
    assert result.wrong == []
    assert len(result.frames) == 6


def test_params_refuse_clocks_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="bus_clock_mhz=-1"):
        EngineParams(bus_clock_mhz=-1)
    with pytest.raises(ValueError, match="there is no MAC"):
        EngineParams(mac_clock_mhz=100, network=False)
