"""The model of the RC transport, checked whole: no violation, progress from every state; and that the checker works.

docs/proof.md says what this proves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.model import rc
from tests.model.explore import Network, System, Way
from tests.model.programs import FULL, QUIET, SHORT, Row
from tests.model.rc import ATOMIC, NONE, READ, WRITE, Config, Reply, Request, Work
from tests.model.requester import Requester
from tests.model.responder import Responder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "proof.md"
LONG_ROWS = [pytest.param(row, marks=pytest.mark.full) for row in FULL]


@pytest.mark.parametrize("row", [*SHORT, *LONG_ROWS], ids=lambda row: row.name)
def test_every_state_keeps_the_rules_and_leads_to_the_end(row: Row) -> None:
    report = row.system().explore()
    assert not report.violation, "\n".join([report.violation, *report.trace])
    assert (report.states, report.transitions) == (row.states, row.transitions), "see programs.py, proof.md"


@pytest.mark.parametrize("row", [*SHORT, *FULL], ids=lambda row: row.name)
def test_the_page_has_the_figures(row: Row) -> None:
    assert f"| {row.name} | {row.states:,} | {row.transitions:,} |" in PAGE.read_text()


# ------------------------------------------------------------------------------- what the checker finds

_check_psn, _advance, _find, _produce = Responder.check_psn, Requester._advance, Responder.find, Requester.produce
_duplicate, _response = Responder._duplicate, Requester._response


def _takes(ahead: int) -> Callable[[Responder, Request], bool]:
    """Take a packet so far from the expected one for the expected one."""

    def check_psn(self: Responder, packet: Request) -> bool:
        if self.config.diff(packet.psn, self.expected_psn) == ahead:
            return True
        return _check_psn(self, packet)

    return check_psn


def _executes_again(self: Responder, packet: Request) -> None:
    """Carry out a duplicate, since nothing is kept."""
    if packet.kind == ATOMIC:
        self._new(Reply(ATOMIC, packet.psn, again=True, orig=self.value))
        self.value += 1
    else:
        self._reply(rc.ACK, self.expected_psn - 1)


def _oldest(self: Responder, packet: Request) -> rc.Resource | None:
    """Find the oldest resource, as rnic did before the model found it."""
    self.resources = self.resources[::-1]
    found = _find(self, packet)
    self.resources = self.resources[::-1]
    return found


def _starts_over(self: Responder, packet: Request) -> None:
    """Answer a duplicate with the bytes from where the saved READ begins, not from where the duplicate does."""
    found = self.find(packet) if packet.kind == READ else None
    _duplicate(self, packet)
    if found is not None and self.replies and self.replies[-1].again:
        self.replies = (*self.replies[:-1], self.replies[-1]._replace(va=found.va))


def _forgets(self: Requester, budget: int = 1) -> None:
    """Ask again for all of a READ that a probe asked for in part, as rnic did before the model found it."""
    asked_psn, self.asked_psn = self.asked_psn, NONE
    _produce(self, budget)
    if self.asked_psn == NONE:
        self.asked_psn = asked_psn


def _disarms(self: Requester, psn: int) -> None:
    """Leave no deadline running behind an ACK."""
    _advance(self, psn)
    self.ack_armed = self.probe_armed = False


def _sleeps(self: Requester) -> None:
    """Let a timeout pass, and take no turn."""
    self.ack_armed = False
    self._rewind(self.una)
    self.scheduled = False


def _immortal(self: Way, way: int, oldest: int) -> int:
    """Deliver packets however old they are."""
    return way


def _answers_for_more(self: Requester, packet: rc.Response, psn: int) -> None:
    """Take the answer to a probe for all up to the next response that is due, as rnic did before a soak found it."""
    asked = self.pieces[0].asked if self.pieces else False
    _response(self, packet, psn)
    if asked and self.pieces:
        self._implied_nak(self.pieces[0].first_psn + self.pieces[0].got)


WRITES, ATOMICS = [Work(WRITE)] * 3, [Work(ATOMIC), Work(ATOMIC)]
LAP = [Work(ATOMIC), Work(WRITE, 7), Work(ATOMIC)]
FLAWS: dict[str, tuple[list[Work], tuple[Any, str, Any] | None, dict[str, Any], str]] = {
    "a duplicate is new": (WRITES, (Responder, "check_psn", _takes(-1)), {}, "is taken for PSN"),
    "a gap is taken": (WRITES, (Responder, "check_psn", _takes(1)), {}, "is taken for PSN"),
    "an atomic is executed twice": (
        ATOMICS,
        (Responder, "_duplicate", _executes_again),
        {},
        "is taken for the response",
    ),
    "the oldest resource answers": (LAP, (Responder, "find", _oldest), {"window": 2}, "for the response"),
    "a duplicate READ begins at the wrong place": (
        [Work(READ, 2)],
        (Responder, "_duplicate", _starts_over),
        {},
        "is taken for the response",
    ),
    "an ACK covers a READ": ([Work(READ), QUIET], (Requester, "_read_due", lambda self: NONE), {}, "completes"),
    "a READ is asked for in other parts": ([Work(READ, 2)], (Requester, "produce", _forgets), {}, "not all completes"),
    "the answer to a probe covers a WRITE": (
        [Work(READ, 2), Work(WRITE), Work(ATOMIC)],
        (Requester, "_response", _answers_for_more),
        {"ahead": 3},
        "acknowledges up to PSN",
    ),
    "no deadline runs": (WRITES, (Requester, "_advance", _disarms), {}, "not all completes"),
    "nobody is woken": (WRITES, (Requester, "ack_timeout", _sleeps), {"probing": False}, "not all completes"),
    "nothing finds a loss": (WRITES, None, {"probing": False, "timeout": False}, "not all completes"),
    "the window is more than half of the PSNs": ([Work(WRITE, 6)], None, {"space": 4}, "not all completes"),
    "packets live too long": ([Work(WRITE, 9)], (Way, "expire", _immortal), {"window": 1}, "is open"),
}


LONG = ("the oldest resource answers", "the window is more than half of the PSNs", "packets live too long")


@pytest.mark.parametrize("flaw", [pytest.param(flaw, marks=[pytest.mark.full] * (flaw in LONG)) for flaw in FLAWS])
def test_the_checker_finds(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, change, bounds, expected = FLAWS[flaw]
    if change is not None:
        monkeypatch.setattr(*change)
    ahead = {"ahead": bounds["ahead"]} if "ahead" in bounds else {}
    config = Config(program, **{name: value for name, value in bounds.items() if name != "ahead"})
    report = System(config, Network(2 if "live" in flaw else 1), **ahead).explore(most=200_000)
    assert expected in report.violation, report
    assert report.trace
