"""Changes of a queue pair's state as verbs spell them, against the device's table of transitions."""

from __future__ import annotations

import pytest

from rnic.context.modify import FIELDS, TRANSITIONS
from rnic.context.qpc import QPC
from rnic.spec import commands as cmd
from rnic.spec import states as s
from rnic.verbs import enums as e
from rnic.verbs.qp_states import (
    INIT_MASK,
    RANGES,
    RTR_MASK,
    RTS_MASK,
    STATE_FROM_DEVICE,
    STATE_TO_DEVICE,
    command_between,
)

SERVICES = {e.IBV_QPT_RC: s.ST_RC, e.IBV_QPT_UC: s.ST_UC, e.IBV_QPT_UD: s.ST_UD}


@pytest.mark.parametrize(
    ("masks", "command"), [(INIT_MASK, cmd.RST2INIT), (RTR_MASK, cmd.INIT2RTR), (RTS_MASK, cmd.RTR2RTS)]
)
def test_what_each_step_to_rts_asks_for_is_what_the_device_needs(masks: dict[int, int], command: int) -> None:
    needed = TRANSITIONS[command].attributes
    assert masks == {qp_type: needed[service].required | e.IBV_QP_STATE for qp_type, service in SERVICES.items()}


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


@pytest.mark.parametrize("name", RANGES)
def test_an_attribute_fits_the_field_that_its_bit_of_the_mask_carries(name: str) -> None:
    bit, field, largest = RANGES[name]
    assert field in FIELDS.get(bit, [field])
    assert largest < 1 << QPC[field].width
