"""The slot state machine: every state with every input."""

from __future__ import annotations

import itertools

import pytest

from rnic.rclink.qp import Slot
from rnic.rclink.slots import TRANSITIONS, SlotError, SlotInput, SlotState, next_state

# typed from hardware.md §4: the seven edges of its picture
DOCUMENTED = {
    ("EMPTY", "WRITE"): "WAIT_GRANT",
    ("WAIT_GRANT", "GRANT"): "WAIT_ACK",
    ("WAIT_ACK", "RETRY"): "WAIT_GRANT",
    ("WAIT_ACK", "ACK"): "EMPTY",
    ("WAIT_GRANT", "BLOCK"): "WAIT_CRD",
    ("WAIT_CRD", "UNBLOCK"): "WAIT_GRANT",
}
CHOSEN = {
    ("WAIT_GRANT", "ACK"): "EMPTY",
    ("WAIT_CRD", "ACK"): "EMPTY",
    ("WAIT_GRANT", "FREE"): "EMPTY",
    ("WAIT_ACK", "FREE"): "EMPTY",
    ("WAIT_CRD", "FREE"): "EMPTY",
}
CASES = list(itertools.product(SlotState, SlotInput))


@pytest.mark.parametrize(("state", "happened"), CASES, ids=lambda one: one.name)
def test_every_state_with_every_input(state: SlotState, happened: SlotInput) -> None:
    """What is listed leads where the list says; all else is an error, and nothing happens."""
    after = {**DOCUMENTED, **CHOSEN}.get((state.name, happened.name))
    slot = Slot(0, 1, 2, b"x", False, None)
    slot.state = state
    if after is None:
        with pytest.raises(SlotError, match=f"{state.name}: input {happened.name} is not valid"):
            slot.happen(happened)
        assert slot.state is state
    else:
        assert next_state(state, happened) is SlotState[after]
        slot.happen(happened)
        assert slot.state is SlotState[after]


def test_the_table_holds_nothing_else() -> None:
    assert {(state.name, happened.name) for state, happened in TRANSITIONS} == {*DOCUMENTED, *CHOSEN}
    assert len(SlotState) == 4
