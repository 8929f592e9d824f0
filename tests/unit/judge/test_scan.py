"""The compiled scanner finds what plain Python finds, whatever it takes itself, and whatever the file."""

from __future__ import annotations

import importlib
import importlib.util
import io
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rnic
from rnic.judge import Finding, Judge
from rnic.judge.state import TWIN
from rnic.link.pcap import CaptureError, PcapngWriter, read_capture
from rnic.spec import opcodes as op
from rnic.spec import twins
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal

pytestmark = pytest.mark.skipif(TWIN is None, reason="rnic.judge._scan is not compiled")

_spec = importlib.util.spec_from_file_location("recordings", Path(__file__).with_name("recordings.py"))
assert _spec is not None
assert _spec.loader is not None
recordings = sys.modules["recordings"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(recordings)


def _plain_judge() -> type[Judge]:
    """The judge from modules of its own, as they are where nothing is compiled: its streams and packets, too."""
    compiled = {name: sys.modules.pop(name) for name in list(sys.modules) if f"{name}.".startswith("rnic.judge.")}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(twins, "FORCED_PLAIN", True)
            patch.setattr(twins, "in_use", {})
            judge: type[Judge] = importlib.import_module("rnic.judge").Judge
        return judge
    finally:
        for name in [name for name in sys.modules if f"{name}.".startswith("rnic.judge.")]:
            del sys.modules[name]
        sys.modules.update(compiled)
        rnic.judge = compiled["rnic.judge"]


JUDGES: dict[bool, type[Judge]] = {True: Judge, False: _plain_judge()}
"""By whether they are compiled."""
CLIENT, SERVER = bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2))
ASK, REPLY = Flow(CLIENT, SERVER, 50_000), Flow(SERVER, CLIENT, 50_001)
ASK_6 = Flow(bytes(15) + b"\1", bytes(15) + b"\2", 50_000)
REPLY_6 = Flow(ASK_6.dst, ASK_6.src, 50_001)
Frames = list[tuple[int, bytes]]
Result = tuple[list[Finding], dict[str, Any]]


def _result(judge: Judge, found: list[Finding]) -> Result:
    judge.finish()
    state = {
        stream.name: (
            {name: (count, stream.facts.first[name]) for name, count in stream.facts.counts.items()},
            (stream.front, stream.highest, stream.acked, stream.total, stream.base, stream.left, stream.lsn),
            [(psn, seen.frame, seen.done, seen.header, seen.tail) for psn, seen in stream.history.items()],
        )
        for stream in judge.streams()
    }
    return found, {**state, "": (judge.frames, judge.packets, judge.unjudged, dict(judge.kinds))}


def judged(frames: Frames, compiled: bool) -> Result:
    """What a judge says about Ethernet frames, compiled or not."""
    found: list[Finding] = []
    judge = JUDGES[compiled](found.append)
    for time_ns, frame in frames:
        judge.frame(time_ns, 1, frame, len(frame))
    return _result(judge, found)


def read(file: bytes, compiled: bool, piece: int = 1 << 20) -> tuple[Result, str]:
    """The same of a capture file that comes in pieces, and what is wrong with it."""
    found: list[Finding] = []
    judge = JUDGES[compiled](found.append)

    class Pieces(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return self.read(min(piece, size or piece))

    error = ""
    try:
        for packet in read_capture(Pieces(file), "capture", judge.taker):
            judge.frame(packet.time_ns, packet.linktype, packet.data, packet.length)
    except CaptureError as caught:
        error = str(caught)
    return _result(judge, found), error


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_each_side_has_classes_of_its_own(compiled: bool) -> None:
    judge = JUDGES[compiled](lambda finding: None)
    _, frame = _traffic(51, 1)[0]
    judge.frame(0, 1, frame, len(frame))
    stream = next(judge.streams())
    ((_, seen),) = stream.history.items()
    for thing, name in ((judge, "Judge"), (stream, "Stream"), (seen, "Seen"), (seen.form, "Form")):
        assert isinstance(thing, getattr(TWIN, f"{name}State")) is compiled
    assert (judge.taker is not None) is compiled


@pytest.mark.parametrize("name", recordings.NAMES)
def test_recordings(name: str) -> None:
    frames = [(packet.time_ns, packet.frame()) for packet in recordings.load(name)]
    assert judged(frames, True) == judged(frames, False)


@pytest.mark.slow
@pytest.mark.parametrize("rule", recordings.BROKEN)
def test_broken_rules(rule: str) -> None:
    for _, _, packets in recordings.broken(rule):
        frames = [(packet.time_ns, packet.frame()) for packet in packets]
        assert judged(frames, True) == judged(frames, False)


def _traffic(seed: int, count: int, ask: Flow = ASK, reply: Flow = REPLY) -> Frames:
    """Messages of all kinds with losses, repetitions, copies, credits and damage."""
    rng = random.Random(seed)
    frames: Frames = []
    psn, msn, ident = 0xFFFFF0, 0, rng.randrange(1 << 16)

    def put(flow: Flow, body: bytearray) -> None:
        nonlocal ident
        ident = ident + 1 & 0xFFFF
        packet = bytearray(ip_packet(flow, seal(body, flow, ident), ident))
        fate = rng.random()
        if fate < 0.02:
            return
        if fate < 0.03:
            packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)
        if fate > 0.97 and len(flow.src) == 16:
            packet[46:48] = (bytes(2), b"\1\2")[fate > 0.985]
        elif fate > 0.97:
            whole = int.from_bytes(CLIENT + SERVER, "big") + 17 + len(packet) - 20 + int.from_bytes(packet[20:], "big")
            packet[26:28] = (0xFFFF - whole % 0xFFFF or 0xFFFF).to_bytes(2, "big")
        kind = b"\x08\0" if len(flow.src) == 4 else b"\x86\xdd"
        frame = bytes(12) + kind + bytes(packet) + bytes(rng.choice((0, 0, 0, 9)))
        frames.extend([(len(frames) * 1_000, frame)] * (2 if fate > 0.99 else 1))

    for _ in range(count):
        kind = rng.choice(("send", "write", "write", "read", "atomic"))
        packets = rng.choice((1, 1, 2, 3, 9))
        last = rng.randrange(1, 257)
        length = 256 * (packets - 1) + last
        start = psn
        if kind in ("send", "write"):
            first, middle, end, only = (
                (op.SEND_FIRST, op.SEND_MIDDLE, op.SEND_LAST, op.SEND_ONLY)
                if kind == "send"
                else (op.WRITE_FIRST, op.WRITE_MIDDLE, op.WRITE_LAST, op.WRITE_ONLY)
            )
            for index in range(packets):
                final = index == packets - 1
                code = (only if packets == 1 else end) if final else first if not index else middle
                body = build(
                    code, dqpn=17, psn=psn, ackreq=final, payload=rng.randbytes(last if final else 256),
                    va=8, rkey=1, dma_length=length + (rng.random() < 0.01),
                )  # fmt: skip
                put(ask, body)
                psn = psn + 1 & 0xFFFFFF
            msn += 1
            syndrome = rng.choice((0x1F, 0x1F, 0x05, 0x60, 0x2E, 0x61))
            put(reply, build(op.ACKNOWLEDGE, dqpn=16, psn=psn - 1 & 0xFFFFFF, msn=msn, syndrome=syndrome))
        elif kind == "read":
            put(ask, build(op.READ_REQUEST, dqpn=17, psn=psn, va=8, rkey=1, dma_length=length))
            psn = psn + packets & 0xFFFFFF
            msn += 1
            for index in range(packets):
                final = index == packets - 1
                code = 0x10 if packets == 1 else 0x0F if final else 0x0D if not index else 0x0E
                data = rng.randbytes(last if final else 256)
                put(reply, build(code, dqpn=16, psn=start + index & 0xFFFFFF, msn=msn, syndrome=0x1F, payload=data))
        else:
            put(ask, build(op.FETCH_ADD, dqpn=17, psn=psn, va=8, rkey=1, swap_add=1))
            psn = psn + 1 & 0xFFFFFF
            msn += 1
            put(reply, build(op.ATOMIC_ACKNOWLEDGE, dqpn=16, psn=start, msn=msn, syndrome=0x1F, orig=rng.randrange(9)))
    return frames


@pytest.mark.parametrize("seed", range(8))
def test_random_traffic(seed: int) -> None:
    frames = _traffic(seed, 60)
    assert judged(frames, True) == judged(frames, False)


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_of_ipv6(seed: int) -> None:
    frames = _traffic(seed, 30, ASK_6, REPLY_6)
    assert judged(frames, True) == judged(frames, False)


@pytest.mark.parametrize("place", range(14, 62))
def test_no_header_of_ipv6_is_taken_that_plain_python_does_not_know(place: int) -> None:
    """Each byte of IPv6 and UDP headers wrong, behind a packet that is right."""
    frame = bytearray(
        b"".join((bytes(12), b"\x86\xdd", ip_packet(ASK_6, seal(build(op.SEND_ONLY, dqpn=17, psn=1), ASK_6))))
    )
    bad = frame[:place] + bytes((frame[place] ^ 0x11,)) + frame[place + 1 :]
    frames = [(at, bytes(each)) for at, each in enumerate((frame, bad, frame + bytes(9), frame[:-1]))]
    assert judged(frames, True) == judged(frames, False)


LINKS = {
    "IP": (101, b""),
    "VLAN": (1, bytes(12) + b"\x81\0\0\5\x08\0"),
    "Linux cooked": (113, bytes(14) + b"\x08\0"),
    "Linux cooked 2": (276, b"\x08\0" + bytes(18)),
    "QinQ": (1, bytes(12) + b"\x88\xa8\0\5\x81\0\0\6\x08\0"),
    "BSD null": (0, b"\2\0\0\0"),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("link", LINKS)
def test_what_stands_in_front_of_the_packets_changes_nothing(link: str, compiled: bool) -> None:
    linktype, front = LINKS[link]
    frames = _traffic(50, 30)
    found: list[Finding] = []
    judge = JUDGES[compiled](found.append)
    for time_ns, frame in frames:
        judge.frame(time_ns, linktype, front + frame[14:], len(front) + len(frame) - 14)
    result, expected = _result(judge, found), judged(frames, False)
    # damage that hits the kind of packet is found by another way where it is not plain Ethernet
    assert [finding[:4] for finding in result[0]] == [finding[:4] for finding in expected[0]]
    assert {name: state for name, state in result[1].items() if name} == {
        name: state for name, state in expected[1].items() if name
    }


def _classic(frames: Frames, order: str = "<", magic: int = 0xA1B23C4D) -> bytes:
    unit = 1 if magic == 0xA1B23C4D else 1_000
    out = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65_535, 1)
    for time_ns, frame in frames:
        seconds, rest = divmod(time_ns, 1_000_000_000)
        out += struct.pack(f"{order}IIII", seconds, rest // unit, len(frame), len(frame)) + frame
    return out


def _pcapng(frames: Frames) -> bytes:
    out = io.BytesIO()
    with PcapngWriter(out) as writer:
        for time_ns, frame in frames:
            writer.write(time_ns, frame)
    return out.getvalue()


FILES: dict[str, Callable[[Frames], bytes]] = {
    "classic": _classic,
    "classic, big end first": lambda frames: _classic(frames, ">"),
    "classic, microseconds": lambda frames: _classic(frames, magic=0xA1B2C3D4),
    "pcapng": _pcapng,
    "pcapng, two sections": lambda frames: _pcapng(frames[:9]) + _pcapng(frames[9:]),
}


@pytest.mark.parametrize("piece", [1 << 20, 1_000, 37])
@pytest.mark.parametrize("kind", FILES)
def test_files(kind: str, piece: int) -> None:
    file = FILES[kind](_traffic(46, 40))
    assert read(file, True, piece) == read(file, False)


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_cut_or_damaged(kind: str) -> None:
    file = bytearray(FILES[kind](_traffic(47, 12)))
    rng = random.Random(48)
    for _ in range(30):
        cut = bytes(file[: rng.randrange(24, len(file))])
        assert read(cut, True) == read(cut, False)
        bad = bytearray(file)
        at = rng.randrange(24, len(file))
        bad[at : at + 4] = rng.randbytes(4)
        assert read(bytes(bad), True) == read(bytes(bad), False)


def test_frames_of_any_size_are_looked_at_within_their_bounds() -> None:
    frames = _traffic(49, 6)
    for _, frame in list(frames):
        for size in range(0, len(frame), 7):
            frames.append((0, frame[:size]))
    assert judged(frames, True) == judged(frames, False)


def test_a_scanner_that_took_forms_forgets_them_with_its_judge() -> None:
    judge = Judge(lambda finding: None)
    for flow, kind in ((ASK, b"\x08\0"), (ASK_6, b"\x86\xdd")):
        frame = bytes(12) + kind + ip_packet(flow, seal(build(op.SEND_ONLY, dqpn=17, psn=1), flow))
        judge.frame(0, 1, frame, len(frame))
        assert judge._scan.take(frame)
        judge._forget_forms()
        assert not judge._scan.take(frame)
