"""The streams of the RTL peer, cycle by cycle; cocotb itself is not needed."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rnic.trace.counters import Counters
from rnic.wire.bursts import TxBurst
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal


def _load() -> ModuleType:
    """The module by its file: the package around it needs cocotb."""
    import rnic.testing

    path = Path(rnic.testing.__file__).parent / "cocotb" / "stream.py"
    spec = importlib.util.spec_from_file_location("rnic_cocotb_stream", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


stream = _load()
ME, OTHER = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))


def joined(lanes: int, frames: list[bytes], stalls: Callable[[], bool] | None, cycles: int) -> list[bytes]:
    """What comes out of a sink behind a source after so many cycles."""
    got: list[bytes] = []
    source, sink = stream.Source(lanes, stalls), stream.Sink(lanes, got.append, stalls)
    source.frames.extend(frames)
    driven = None
    for _ in range(cycles):
        ready = sink.ready
        sink.cycle(driven)
        driven = source.cycle(ready)
    assert source.idle
    return got


@pytest.mark.parametrize("lanes", [8, 16, 32, 64])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_frames_of_every_length_pass_under_stalls(lanes: int, rate: float) -> None:
    rng = random.Random(lanes)
    frames = [rng.randbytes(length) for length in (1, 7, 8, 9, 60, 63, 64, 65, 128, 1098)]
    assert joined(lanes, frames, stream.random_stalls(rate, 3), 4000) == frames


def test_a_transfer_stays_until_it_is_taken() -> None:
    sent: list[bytes] = []
    source = stream.Source(8, None, sent.append)
    source.frames.append(bytes(range(12)))
    first = source.cycle(ready=False)
    assert [source.cycle(ready=False) for _ in range(3)] == [first] * 3
    last = source.cycle(ready=True)
    assert (last.keep, last.last, sent) == (0x0F, True, [])
    assert source.cycle(ready=True) is None
    assert sent == [bytes(range(12))]


@pytest.mark.parametrize(("keep", "last"), [(0x7F, False), (0xFD, True)])
def test_a_hole_in_a_frame_is_said(keep: int, last: bool) -> None:
    sink = stream.Sink(8, lambda frame: None)
    with pytest.raises(stream.StreamError, match="a hole in the middle"):
        sink.cycle(stream.Beat(0, keep, last))


def test_a_frame_without_end_is_said() -> None:
    sink = stream.Sink(64, lambda frame: None)
    beat = stream.Beat(0, (1 << 64) - 1, False)
    for _ in range(stream.MAX_FRAME_BYTES // 64):
        sink.cycle(beat)
    with pytest.raises(stream.StreamError, match="tlast never came"):
        sink.cycle(beat)


def link(mac: int | None) -> tuple[Any, list[bytes]]:
    out: list[bytes] = []
    return stream.FrameLink(ME, mac, Counters(), out.append), out


@pytest.mark.parametrize("mac", [None, 0x020000000001])
def test_packets_pass_as_frames(mac: int | None) -> None:
    there, out = link(mac)
    there.macs[OTHER] = 0x020000000002
    way = Flow(ME, OTHER, 4791)
    data = bytes(seal(build(0x04, dqpn=17, psn=7, payload=bytes(64)), way))
    there.send([TxBurst(way, [data], len(data), 1, len(data))])
    (frame,) = out
    assert frame[0 if mac is None else 14 :] == ip_packet(way, data)
    back = Flow(OTHER, ME, 4791)
    reply = ip_packet(back, seal(build(0x11, dqpn=3, psn=7, syndrome=0x1F, msn=1), back))
    head = b"" if mac is None else bytes.fromhex("0200000000010200000000020800")
    there.take(head + reply)
    (burst,) = there.receive(4)
    assert (burst.flow.src, burst.flow.dst, burst.length) == (OTHER, ME, 20)
    assert not there.waiting


@pytest.mark.parametrize(
    ("frame", "counter"),
    [
        ("02", "drop_short_frame"),
        ("0200000000090200000000020800" + "00" * 46, "drop_other_mac"),
        ("0200000000010200000000020806" + "00" * 46, "drop_other_ethertype"),
        ("0200000000010200000000020800" + "00" * 46, "drop_bad_ip"),
    ],
)
def test_other_frames_are_counted(frame: str, counter: str) -> None:
    there, _ = link(0x020000000001)
    there.take(bytes.fromhex(frame))
    assert there.counters[counter] == 1
    assert not there.waiting


def test_who_has_no_mac_gets_nothing() -> None:
    there, out = link(1)
    way = Flow(ME, OTHER, 4791)
    data = bytes(seal(build(0x04, dqpn=17, psn=7), way))
    there.send([TxBurst(way, [data], len(data), 1, len(data))])
    assert (out, there.counters["drop_tx_no_mac"]) == ([], 1)


def test_mac_addresses() -> None:
    assert stream.mac_number("02:00:00:00:00:0a") == stream.mac_number("02-0-0-0-0-A") == 0x02000000000A
    for bad in ("02:00", "zz:00:00:00:00:00", 1 << 48, ""):
        with pytest.raises(stream.StreamError, match="is not a MAC address"):
            stream.mac_number(bad)


def test_what_is_not_rdma_is_sent_as_a_frame_to_who_is_known() -> None:
    out: list[bytes] = []
    packet = ip_packet(Flow(ME, OTHER, 5, 53), b"question")
    link = stream.FrameLink(ME, 0xA, Counters(), out.append)
    assert not link.frame_sender(OTHER, packet)
    assert link.counters["drop_tx_no_mac"] == 1
    link.macs[OTHER] = 0xB
    assert link.frame_sender(OTHER, packet)
    assert out == [(bytes(5) + b"\x0b" + bytes(5) + b"\x0a" + b"\x08\0" + packet).ljust(60, b"\0")]
    bare = stream.FrameLink(ME, None, Counters(), out.append)
    assert bare.frame_sender(OTHER, packet)
    assert out[1] == packet
