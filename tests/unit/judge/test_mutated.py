"""Recordings of Soft-RoCE keep every rule; with one rule broken, that rule is named."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rnic.judge import RULES, Finding, Judge
from rnic.spec.opcodes import CNP
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal

_spec = importlib.util.spec_from_file_location("recordings", Path(__file__).with_name("recordings.py"))
assert _spec is not None
assert _spec.loader is not None
recordings = sys.modules["recordings"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(recordings)


@pytest.mark.parametrize("name", recordings.NAMES)
def test_a_recording_keeps_every_rule(name: str) -> None:
    assert recordings.judge(recordings.load(name)) == []


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
