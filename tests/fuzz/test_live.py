"""Packets from the state of a live connection, each right or wrong in one thing: the NIC does what each allows.

The long form, for as many packets and processes as there is time: ``python -m tests.fuzz.run_live --help``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rnic.device import receiving
from rnic.device.icrc import IcrcCheck
from rnic.engine import use
from rnic.mem.table import MemoryTable
from rnic.testing.live import FindingError, LivePeer
from rnic.testing.malformed import FLAWS
from rnic.transport import responder, runs
from rnic.transport.completer import Completer
from rnic.transport.encap import BTH_STRUCT

ROOT = Path(__file__).resolve().parents[2]
SHORT = 700
LONG = 100_000
KINDS: dict[str, dict[str, Any]] = {"idents seen": {}, "idents unseen": {"seen": False}, "IPv6": {"ipv6": True}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("service", ["RC", "UC", "UD"])
def test_the_nic_does_what_each_packet_allows(service: str, kind: str) -> None:
    with LivePeer(service, 1, **KINDS[kind]) as peer:
        peer.run(SHORT)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("service", ["RC", "UC", "UD"])
def test_the_nic_does_what_a_great_many_packets_allow(service: str, kind: str) -> None:
    with LivePeer(service, 1000, **KINDS[kind]) as peer:
        peer.run(LONG)


@pytest.mark.slow
@pytest.mark.parametrize("service", ["RC", "UC", "UD"])
def test_many_that_are_wrong_at_once_cost_a_drop_each(service: str) -> None:
    with LivePeer(service, 2, swarms=0.5) as peer:
        peer.run(8 * SHORT)
        met = {name for name, count in peer.counts.items() if count > 20}
    assert len(met) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("selective", [False, True])
def test_naks_and_disorder_move_no_byte_twice(selective: bool) -> None:
    """A peer that asks for anything again, and repeats PSNs with other bytes."""
    with LivePeer("RC", 4, storms=0.4, selective=selective) as peer:
        peer.run(6 * SHORT)
        assert peer.counts["NAKs"] > SHORT / 3
        assert peer.counts["disordered"] > SHORT / 3
        assert peer.nic.counters["retransmitted_packets"] > 20


@pytest.mark.slow
def test_every_flaw_is_met() -> None:
    met: Counter[str] = Counter()
    for service in ("RC", "UC", "UD"):
        with LivePeer(service, 5) as peer:
            peer.run(4 * SHORT)
            met.update(peer.counts)
    assert {flaw.name for flaw in FLAWS} | {""} == set(met)


def test_an_ack_with_a_pad_is_none() -> None:
    with LivePeer("RC", 1, only=frozenset({"pad of what has no payload"})) as peer:
        peer.run(SHORT)
        assert peer.counts["pad of what has no payload"] > 10
        assert peer.nic.counters["drop_too_short"] >= 10


def test_equal_seeds_give_equal_runs() -> None:
    digests = []
    for _ in range(2):
        with LivePeer("RC", 7) as peer:
            peer.run(300)
            digests.append((peer.digest, peer.counts, bytes(peer.arena)))
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_plain_and_compiled_answer_alike() -> None:
    """The same packets in the same order, whichever of the twins sends them."""
    found = []
    for plain_only in ("0", "1"):
        command = [sys.executable, "-m", "tests.fuzz.run_live", "--packets", "40000", "--seed", "5000004", "--json"]
        env = {**os.environ, "RNIC_PLAIN": plain_only}
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
        figures = json.loads(done.stdout)
        found.append((figures["digest"], figures["flaws"]))
    assert found[0] == found[1]


# What the peer must notice.


def _no_check(*args: Any) -> bool:
    return True


def _next_step(name: str) -> Any:
    """Without one of the responder's steps."""
    return tuple(step for step in responder.STEPS if step.__name__ != name)


def _no_rights(
    self: MemoryTable, key: int, pd: int, va: int, length: int, rights: int, *more: Any, **named: Any
) -> Any:
    return _CHECK(self, key, pd, va, length, 0, *more, **named)


def _any_pd(self: MemoryTable, key: int, pd: int, va: int, length: int, rights: int, *more: Any, **named: Any) -> Any:
    entry = self.lookup(key)
    return _CHECK(self, key, pd if entry is None else entry.pd, va, length, rights, *more, **named)


def _place_unchecked(*args: Any) -> Any:
    """As :func:`rnic.transport.runs.place_run`, but no ICRC is looked at."""
    buf, start, segment, count, head, psn, _, _, _, dest = args
    taken = 0
    while taken < count:
        at = start + taken * segment
        got, word = BTH_STRUCT.unpack_from(buf, at)
        if got != head or word & 0xFFFFFF != psn + taken & 0xFFFFFF:
            break
        dest[taken * (segment - 16) : (taken + 1) * (segment - 16)] = buf[at + 12 : at + segment - 4]
        taken += 1
    return taken, True


_CHECK = MemoryTable.check
HOLES: dict[str, tuple[object, str, Any]] = {
    "runs: no ICRC": (runs, "place_run", _place_unchecked),
    "full path: no ICRC": (IcrcCheck, "accepts", _no_check),
    "any partition": (receiving, "_same_partition", _no_check),
    "no rights": (MemoryTable, "check", _no_rights),
    "no length": (responder, "STEPS", _next_step("check_length")),
    "no key": (responder, "STEPS", _next_step("check_rkey")),
    "no sequence": (responder, "STEPS", _next_step("check_op_seq")),
    "no PSN": (responder, "STEPS", _next_step("check_psn")),
    "any protection domain": (MemoryTable, "check", _any_pd),
    "an answer to anything": (Completer, "receive", lambda self, packet, now_ns: self._response(packet, now_ns)),
    "an ACK of anything": (Completer, "receive", lambda self, packet, now_ns: self._acknowledge(packet, now_ns)),
}


@pytest.mark.slow
@pytest.mark.parametrize("hole", HOLES)
def test_a_missing_check_is_found(hole: str, monkeypatch: pytest.MonkeyPatch, own_errors: object) -> None:
    """What gets past a check that is not there may trip the product itself: the guard's catch is a finding too."""
    monkeypatch.setattr(use, "ENGINE", None)  # the holes are the reference's
    owner, name, instead = HOLES[hole]
    monkeypatch.setattr(owner, name, instead)
    with LivePeer("RC", 3) as peer, pytest.raises(FindingError):
        peer.run(4 * SHORT)
