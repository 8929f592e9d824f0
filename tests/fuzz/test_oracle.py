"""The engine against the reference on packets from live connections: every byte of two NICs is equal throughout.

The long form: ``python -m tests.fuzz.run_live --oracle --packets 10000000 --done FILE``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rnic.engine import use
from rnic.transport import responder
from rnic.transport.responder import Responder
from tests.fuzz import run_live
from tests.fuzz.lockstep import FindingError, Lockstep
from tests.fuzz.rounds import Rounds

pytestmark = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")
KINDS: dict[str, dict[str, Any]] = {"idents seen": {}, "idents unseen": {"seen": False}, "IPv6": {"ipv6": True}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("service", ["RC", "UC", "UD"])
def test_engine_and_reference_leave_the_same(service: str, kind: str) -> None:
    with Lockstep(service, 1, **KINDS[kind]) as peer:
        peer.run(1_500)
        assert peer.quick.taken > 600, "the engine took too few for it to mean anything"


@pytest.mark.slow
@pytest.mark.parametrize("selective", [False, True])
def test_engine_and_reference_answer_naks_and_disorder_alike(selective: bool) -> None:
    with Lockstep("RC", 4, storms=0.4, selective=selective) as peer:
        peer.run(3_000)
        assert min(peer.counts["NAKs"], peer.counts["disordered"]) > 200
        assert peer.quick.taken > 600


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_the_reorder_buffer_holds_is_executed_once_and_in_order(seed: int) -> None:
    """By datagrams through compiled rounds; connections end while packets are held, and begin anew at their PSN."""
    with Rounds(seed) as peer:
        peer.run(1_500)
        assert peer.held > 40
        assert peer.reconnects > 5
        assert peer.nic.counters["drop_psn_gap"] + peer.nic.counters["drop_naked"] > 40


@pytest.mark.slow
def test_the_smallest_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that counts one message too many, now and then."""
    complete = Responder.complete

    def twice(self: Responder, packet: Any) -> bool:
        done = complete(self, packet)
        if packet.psn % 64 == 0:
            self.msn = self.msn + 1 & 0xFFFFFF
        return done

    steps = tuple(twice if step is complete else step for step in responder.STEPS)
    monkeypatch.setattr(responder, "STEPS", steps)
    with Lockstep("RC", 1) as peer, pytest.raises(FindingError, match="by the engine"):
        peer.run(3_000)


@pytest.mark.slow
def test_a_long_run_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_live, "EACH", 100)
    done = tmp_path / "done"
    arguments = ["--oracle", "--json", "--done", str(done)]
    assert run_live.main([*arguments, "--packets", "200"]) == 0
    first = done.read_text()
    assert run_live.main([*arguments, "--packets", "300"]) == 0
    assert done.read_text().startswith(first)
    assert [line["seed"] for line in run_live.noted(done, oracle=True)] == [1, 2, 3]
