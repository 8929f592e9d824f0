"""Recordings of Soft-RoCE keep every rule; with one rule broken, that rule is named."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from rnic.judge import RULES, Finding, Judge
from rnic.spec.opcodes import CNP, RC, WRITE_ONLY
from rnic.wire.dissect import LINKTYPE_ETHERNET
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal

_spec = importlib.util.spec_from_file_location("recordings", Path(__file__).with_name("recordings.py"))
assert _spec is not None
assert _spec.loader is not None
recordings = sys.modules["recordings"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(recordings)


_WAY = Flow(bytes(4), bytes((0, 0, 0, 1)), 50_000)


@pytest.mark.parametrize("name", recordings.NAMES)
def test_a_recording_keeps_every_rule(name: str) -> None:
    assert recordings.judge(recordings.load(name)) == []


@pytest.mark.parametrize("name", recordings.NAMES)
@pytest.mark.parametrize("snaplen", [54, 58, 68, 74, 96, 128])
def test_a_cut_recording_keeps_every_rule(name: str, snaplen: int) -> None:
    """Sizes are those on the wire; a connection whose extended headers are not all there is not judged."""
    found: list[Finding] = []
    judge = Judge(found.append)
    for packet in recordings.load(name):
        frame = packet.frame()
        judge.frame(packet.time_ns, LINKTYPE_ETHERNET, frame[:snaplen], len(frame))
    judge.finish()
    assert found == []
    lost = sum(stream.facts.counts.get("packets cut in their headers", 0) for stream in judge.streams())
    if name in ("write_bw.pcap", "read_bw.pcap"):
        assert bool(lost) == (snaplen < 70)


@pytest.mark.parametrize("name", recordings.NAMES)
def test_a_recording_that_lacks_packets_keeps_every_rule(name: str) -> None:
    """One packet missing by itself, and every second one, third one, ... at once."""
    whole = recordings.load(name)
    for at in range(0, len(whole), 1 + len(whole) // 64):
        assert recordings.judge(whole[:at] + whole[at + 1 :]) == [], at
    for step in range(2, min(8, len(whole))):
        for first in range(0, step, 1 + len(whole) // 64):
            kept = [packet for index, packet in enumerate(whole) if index % step != first]
            assert recordings.judge(kept) == [], (step, first)


def test_a_rule_that_headers_show_is_called_broken_in_a_cut_packet() -> None:
    """A WRITE that carries another length than its RETH says, of which nothing but the headers was captured."""
    found: list[Finding] = []
    judge = Judge(found.append)
    for psn, length in enumerate((301, 302)):
        body = build(RC | WRITE_ONLY, dqpn=17, psn=psn, payload=bytes(301), dma_length=length)
        frame = bytes(12) + b"\x08\0" + ip_packet(_WAY, seal(body, _WAY))
        judge.frame(0, LINKTYPE_ETHERNET, frame[:70], len(frame))
    assert [(finding.rule, finding.detail) for finding in found] == [
        ("dma-length", "RC_WRITE_ONLY: 1 bytes fewer than its RETH says")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_named(rule: str) -> None:
    tried = 0
    for name, at, packets in recordings.broken(rule):
        found = recordings.judge(packets)
        assert rule in {finding.rule for finding in found}, (name, at, found[:3])
        if name != "loss_write.pcap":
            # said of the packet itself or of what follows, where nothing came late
            assert next(finding for finding in found if finding.rule == rule).frame > at
        tried += 1
    assert tried


@pytest.mark.slow
def test_two_hundred_of_them() -> None:
    assert sum(1 for rule in RULES for _ in recordings.broken(rule)) >= 200


@pytest.mark.parametrize(("idents", "count"), [((1, 1), 0), ((0, 0), 0), ((1, 2), 1), ((0, 0, 0), 1)])
def test_one_cnp_may_be_a_copy(idents: tuple[int, ...], count: int) -> None:
    way = Flow(bytes(4), bytes((0, 0, 0, 1)), 50_000)
    found: list[Finding] = []
    judge = Judge(found.append)
    for number, ident in enumerate(idents):
        packet = ip_packet(way, seal(build(CNP, dqpn=17, psn=0, becn=True, payload=bytes(16)), way, ident), ident)
        judge.frame(number, 101, packet, len(packet))
    assert [finding.rule for finding in found] == ["cnp-rate"] * count


def _written(payload: bytes, *, psn: int = 7, ident: int = 0, ackreq: bool = False, pad: bytes = b"\0\0\0") -> bytes:
    """A WRITE with a byte of payload, as a whole IPv4 packet whose ICRC is right."""
    body = bytearray(build(RC | WRITE_ONLY, dqpn=17, psn=psn, ackreq=ackreq, payload=payload, dma_length=len(payload)))
    body[-3:] = pad
    return ip_packet(_WAY, seal(bytes(body), _WAY, ident), ident)


@pytest.mark.parametrize(
    ("again", "rules"),
    [
        ({}, []),
        ({"ident": 0x1234, "ackreq": True}, []),
        ({"ident": 9, "pad": b"\1\2\3"}, []),
        ({"payload": b"x"}, ["repeat-payload"]),
        ({"payload": b"x", "ident": 9, "ackreq": True, "pad": b"\1\2\3"}, ["repeat-payload"]),
    ],
    ids=["a copy", "other ident and AckReq", "other padding", "other byte", "all of it"],
)
@pytest.mark.parametrize("between", [False, True], ids=["at once", "a second time"])
def test_a_repetition_is_compared_by_its_payload_alone(again: dict[str, Any], rules: list[str], between: bool) -> None:
    found: list[Finding] = []
    judge = Judge(found.append)
    sent = [{}, {"ident": 5, "ackreq": True}, again] if between else [{}, again]
    for number, change in enumerate(sent):
        packet = _written(**{"payload": b"a", **change})
        judge.frame(number, 101, packet, len(packet))
    assert [finding.rule for finding in found] == rules


def test_a_cut_packet_that_is_repeated_is_not_compared() -> None:
    found: list[Finding] = []
    judge = Judge(found.append)
    for payload in (b"a" * 301, b"b" * 301):
        frame = bytes(12) + b"\x08\0" + _written(payload)
        judge.frame(0, LINKTYPE_ETHERNET, frame[:100], len(frame))
    assert "repeat-payload" not in {finding.rule for finding in found}
    facts = next(stream.facts.counts for stream in judge.streams())
    assert facts["repeated packets"] == 1
