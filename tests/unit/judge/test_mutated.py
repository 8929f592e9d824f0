"""Recordings of Soft-RoCE keep every rule; with one rule broken, that rule is named."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rnic.judge import RULES

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
