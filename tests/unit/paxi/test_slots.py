"""The slot's table: every state with every event."""

from __future__ import annotations

import itertools

import pytest

from rnic.paxi import slots as s

LISTED = {
    ("EMPTY", "READ"): "POST",
    ("EMPTY", "WRITE"): "FILL",
    ("EMPTY", "REFUSED"): "DONE",
    ("FILL", "FILLED"): "POST",
    ("FILL", "VOID"): "DONE",
    ("POST", "POSTED"): "WAIT",
    ("POST", "SETTLED"): "DONE",
    ("POST", "REPLAY"): "POST",
    ("WAIT", "SETTLED"): "DONE",
    ("WAIT", "REPLAY"): "POST",
    ("DONE", "ANSWERED"): "EMPTY",
}


@pytest.mark.parametrize(
    ("state", "event"), list(itertools.product(range(len(s.STATE_NAMES)), range(len(s.EVENT_NAMES))))
)
def test_every_state_with_every_event(state: int, event: int) -> None:
    expected = LISTED.get((s.STATE_NAMES[state], s.EVENT_NAMES[event]))
    if expected is None:
        with pytest.raises(s.SlotError, match=f"slot in {s.STATE_NAMES[state]} met {s.EVENT_NAMES[event]}"):
            s.step(state, event)
    else:
        assert s.STATE_NAMES[s.step(state, event)] == expected
