"""Every state, transition and service type of IBA table 91."""

from __future__ import annotations

import pytest

from rnic.context import modify as m
from rnic.context.modify import COMMAND_FOR, CREATION_FIELDS, FIELDS, TRANSITIONS, check, fields
from rnic.context.qpc import QPC
from rnic.spec import commands as cmd
from rnic.spec.states import (
    ERR,
    INIT,
    RESET,
    RTR,
    RTS,
    SERVICE_NAMES,
    SQD,
    SQE,
    ST_RC,
    ST_UC,
    ST_UD,
    STATE_NAMES,
)

ALL_STATES = frozenset(STATE_NAMES)
CONNECTED = (ST_RC, ST_UC)
EVERY = (ST_RC, ST_UC, ST_UD)

# Typed from the table, not from the module: source state, target, service, required, optional (device's choice of
# the optional ones: no alternate path).
TABLE = {
    (cmd.RST2INIT, ST_RC): (RESET, INIT, {"PKEY_INDEX", "PORT", "ACCESS_FLAGS"}, set()),
    (cmd.RST2INIT, ST_UC): (RESET, INIT, {"PKEY_INDEX", "PORT", "ACCESS_FLAGS"}, set()),
    (cmd.RST2INIT, ST_UD): (RESET, INIT, {"PKEY_INDEX", "PORT", "QKEY"}, set()),
    (cmd.INIT2INIT, ST_RC): (INIT, INIT, set(), {"PKEY_INDEX", "PORT", "ACCESS_FLAGS"}),
    (cmd.INIT2INIT, ST_UC): (INIT, INIT, set(), {"PKEY_INDEX", "PORT", "ACCESS_FLAGS"}),
    (cmd.INIT2INIT, ST_UD): (INIT, INIT, set(), {"PKEY_INDEX", "PORT", "QKEY"}),
    (cmd.INIT2RTR, ST_RC): (
        INIT,
        RTR,
        {"AV", "PATH_MTU", "DEST_QPN", "RQ_PSN", "MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER"},
        {"ACCESS_FLAGS", "PKEY_INDEX"},
    ),
    (cmd.INIT2RTR, ST_UC): (
        INIT,
        RTR,
        {"AV", "PATH_MTU", "DEST_QPN", "RQ_PSN"},
        {"ACCESS_FLAGS", "PKEY_INDEX"},
    ),
    (cmd.INIT2RTR, ST_UD): (INIT, RTR, set(), {"PKEY_INDEX", "QKEY"}),
    (cmd.RTR2RTS, ST_RC): (
        RTR,
        RTS,
        {"TIMEOUT", "RETRY_CNT", "RNR_RETRY", "SQ_PSN", "MAX_QP_RD_ATOMIC"},
        {"CUR_STATE", "ACCESS_FLAGS", "MIN_RNR_TIMER"},
    ),
    (cmd.RTR2RTS, ST_UC): (RTR, RTS, {"SQ_PSN"}, {"CUR_STATE", "ACCESS_FLAGS"}),
    (cmd.RTR2RTS, ST_UD): (RTR, RTS, {"SQ_PSN"}, {"CUR_STATE", "QKEY"}),
    (cmd.RTS2RTS, ST_RC): (RTS, RTS, set(), {"CUR_STATE", "ACCESS_FLAGS", "MIN_RNR_TIMER"}),
    (cmd.RTS2RTS, ST_UC): (RTS, RTS, set(), {"CUR_STATE", "ACCESS_FLAGS"}),
    (cmd.RTS2RTS, ST_UD): (RTS, RTS, set(), {"CUR_STATE", "QKEY"}),
    (cmd.SQERR2RTS, ST_UC): (SQE, RTS, set(), {"CUR_STATE", "ACCESS_FLAGS"}),
    (cmd.SQERR2RTS, ST_UD): (SQE, RTS, set(), {"CUR_STATE", "QKEY"}),
    (cmd.SQD2RTS, ST_RC): (SQD, RTS, set(), {"CUR_STATE", "ACCESS_FLAGS", "MIN_RNR_TIMER"}),
    (cmd.SQD2RTS, ST_UC): (SQD, RTS, set(), {"CUR_STATE", "ACCESS_FLAGS"}),
    (cmd.SQD2RTS, ST_UD): (SQD, RTS, set(), {"CUR_STATE", "QKEY"}),
    (cmd.SQD2SQD, ST_RC): (
        SQD,
        SQD,
        set(),
        {
            "PORT",
            "AV",
            "TIMEOUT",
            "RETRY_CNT",
            "RNR_RETRY",
            "MAX_QP_RD_ATOMIC",
            "MAX_DEST_RD_ATOMIC",
            "ACCESS_FLAGS",
            "PKEY_INDEX",
            "MIN_RNR_TIMER",
        },
    ),
    (cmd.SQD2SQD, ST_UC): (SQD, SQD, set(), {"AV", "ACCESS_FLAGS", "PKEY_INDEX"}),
    (cmd.SQD2SQD, ST_UD): (SQD, SQD, set(), {"PKEY_INDEX", "QKEY"}),
    **{(cmd.RTS2SQD, st): (RTS, SQD, set(), {"EN_SQD_ASYNC_NOTIFY"}) for st in EVERY},
    **{(cmd.TOERR, st): (None, ERR, set(), set()) for st in EVERY},
    **{(cmd.ERR2RST, st): (None, RESET, set(), set()) for st in EVERY},
}
ATTRIBUTES = (
    *("STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX", "PORT", "QKEY", "AV"),
    *("PATH_MTU", "TIMEOUT", "RETRY_CNT", "RNR_RETRY", "RQ_PSN", "MAX_QP_RD_ATOMIC", "ALT_PATH"),
    *("MIN_RNR_TIMER", "SQ_PSN", "MAX_DEST_RD_ATOMIC", "PATH_MIG_STATE", "CAP", "DEST_QPN"),
)


def mask_of(names: set[str]) -> int:
    return sum(1 << ATTRIBUTES.index(name) for name in names)


def sources(opcode: int, state: int | None) -> frozenset[int]:
    if state is not None:
        return frozenset({state})
    return ALL_STATES - {RESET} if opcode == cmd.TOERR else ALL_STATES


def test_attribute_bits() -> None:
    for bit, name in enumerate(ATTRIBUTES):
        assert getattr(m, name) == 1 << bit, name


@pytest.mark.parametrize("service", EVERY, ids=SERVICE_NAMES.get)
@pytest.mark.parametrize("opcode", sorted(TRANSITIONS), ids=cmd.COMMAND_NAMES.get)
def test_every_state_and_attribute(opcode: int, service: int) -> None:
    row = TABLE.get((opcode, service))
    for state in ALL_STATES:
        if row is None or state not in sources(opcode, row[0]):
            assert check(opcode, state, service, 0) == cmd.ST_BAD_QP_STATE
            assert check(opcode, state, service, (1 << 21) - 1) == cmd.ST_BAD_QP_STATE
            continue
        _, target, required, optional = row
        assert TRANSITIONS[opcode].target == target
        least, most = mask_of(required), mask_of(required | optional | {"STATE"})
        assert check(opcode, state, service, least) == cmd.ST_OK
        assert check(opcode, state, service, most) == cmd.ST_OK
        for name in ATTRIBUTES:
            bit = mask_of({name})
            if name in required:
                assert check(opcode, state, service, most & ~bit) == cmd.ST_BAD_PARAM, f"without {name}"
            elif name not in optional and name != "STATE":
                assert check(opcode, state, service, least | bit) == cmd.ST_BAD_PARAM, f"with {name}"
        for bit in range(21, 32):
            assert check(opcode, state, service, least | 1 << bit) == cmd.ST_BAD_PARAM


def test_no_other_command_or_service() -> None:
    assert {opcode for opcode, _ in TABLE} == set(TRANSITIONS)
    assert check(cmd.NOP, RTS, ST_RC, 0) == cmd.ST_BAD_OP
    assert check(cmd.TOERR, RTS, 2, 0) == cmd.ST_BAD_QP_STATE


def test_command_for_each_pair_of_states() -> None:
    legal = {
        RESET: {RESET, INIT},
        INIT: {RESET, INIT, RTR, ERR},
        RTR: {RESET, RTS, ERR},
        RTS: {RESET, RTS, SQD, ERR},
        SQD: {RESET, RTS, SQD, ERR},
        SQE: {RESET, RTS, ERR},
        ERR: {RESET, ERR},
    }
    assert {(a, b) for a, targets in legal.items() for b in targets} == set(COMMAND_FOR)
    for (source, target), opcode in COMMAND_FOR.items():
        assert source in TRANSITIONS[opcode].sources
        assert TRANSITIONS[opcode].target == target


def test_fields_are_of_the_qpc() -> None:
    carried = [name for names in FIELDS.values() for name in names]
    assert len(set(carried)) == len(carried), "one field, one attribute"
    for name in (*carried, *CREATION_FIELDS):
        assert name in QPC
    never = set(CREATION_FIELDS) & set(carried)
    assert never == {"options", "window_packets"}
    assert fields(m.STATE) == ()
    assert fields(m.SQ_PSN | m.TIMEOUT) == ("ackto", "next_send_psn")
