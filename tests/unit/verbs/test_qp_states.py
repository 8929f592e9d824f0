"""Changes of a queue pair's state as verbs spell them, against the device's table of transitions."""

from __future__ import annotations

import pytest

from rnic.context.modify import FIELDS, Attribute
from rnic.context.qpc import QPC
from rnic.spec import commands as cmd
from rnic.spec import states as s
from rnic.verbs.attrs import QPAttr
from rnic.verbs.qp_states import (
    RANGES,
    STATE_FROM_DEVICE,
    STATE_TO_DEVICE,
    command_between,
)


def test_the_command_between_two_states_is_the_one_that_leads_there() -> None:
    wanted = {
        (s.RESET, s.INIT): cmd.RST2INIT,
        (s.INIT, s.INIT): cmd.INIT2INIT,
        (s.INIT, s.RTR): cmd.INIT2RTR,
        (s.RTR, s.RTS): cmd.RTR2RTS,
        (s.RESET, s.RTS): None,
        (s.RTS, s.INIT): None,
    }
    assert {pair: command_between(*pair) for pair in wanted} == wanted
    assert {command_between(state, s.ERR) for state in STATE_FROM_DEVICE} - {None} == {cmd.TOERR}


def test_states_are_told_apart_both_ways() -> None:
    assert len(STATE_FROM_DEVICE) == len(STATE_TO_DEVICE) == 7
    assert all(STATE_FROM_DEVICE[STATE_TO_DEVICE[state]] == state for state in STATE_TO_DEVICE)


@pytest.mark.parametrize("row", RANGES, ids=lambda row: row.verbs)
def test_an_attribute_fits_the_field_that_its_bit_of_the_mask_carries(row: Attribute) -> None:
    assert row.field in FIELDS.get(row.bit, [row.field])
    assert row.largest < 1 << QPC[row.field].width
    assert hasattr(QPAttr(), row.verbs)
