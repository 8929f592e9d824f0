"""Queue pair state transitions of the modify commands, and their attributes (IBA 10.3.1).

These tables alone decide whether a modify command is legal: :data:`TRANSITIONS` for the commands, :data:`FIELDS` for
the context fields of each attribute. Anything not listed is refused.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from rnic.spec import commands as cmd
from rnic.spec.limits import MAX_RD_ATOMIC
from rnic.spec.psn import PSN_MASK
from rnic.spec.states import (
    ERR,
    INIT,
    RESET,
    RTR,
    RTS,
    SQD,
    SQE,
    ST_RC,
    ST_UC,
    ST_UD,
    ST_XRC_INI,
    ST_XRC_TGT,
)

# --- attributes, the bits of opt_param_mask: those of ibv_qp_attr_mask (hardware.md 2a)
STATE: Final = 1 << 0
CUR_STATE: Final = 1 << 1
EN_SQD_ASYNC_NOTIFY: Final = 1 << 2
ACCESS_FLAGS: Final = 1 << 3
PKEY_INDEX: Final = 1 << 4
PORT: Final = 1 << 5
QKEY: Final = 1 << 6
AV: Final = 1 << 7
PATH_MTU: Final = 1 << 8
TIMEOUT: Final = 1 << 9
RETRY_CNT: Final = 1 << 10
RNR_RETRY: Final = 1 << 11
RQ_PSN: Final = 1 << 12
MAX_QP_RD_ATOMIC: Final = 1 << 13
ALT_PATH: Final = 1 << 14
MIN_RNR_TIMER: Final = 1 << 15
SQ_PSN: Final = 1 << 16
MAX_DEST_RD_ATOMIC: Final = 1 << 17
PATH_MIG_STATE: Final = 1 << 18
CAP: Final = 1 << 19
DEST_QPN: Final = 1 << 20

ATTRIBUTE_NAMES: dict[int, str] = {
    value: name for name, value in list(globals().items()) if name.isupper() and isinstance(value, int)
}
"""Attribute names by bit. State constants can have the same values, but they are defined earlier, so attributes replace
them."""

BITS: Final = tuple(1 << place for place in range(DEST_QPN.bit_length()))
"""Bits of the attributes."""


class Attribute(NamedTuple):
    """An attribute that is one field of the context: bit, member of ``ibv_qp_attr``, field, largest value."""

    bit: int
    verbs: str
    field: str
    largest: int


ATTRIBUTES: Final = (
    Attribute(PKEY_INDEX, "pkey_index", "pkey_index", 127),
    Attribute(PORT, "port_num", "port", 7),
    Attribute(QKEY, "qkey", "qkey", 0xFFFF_FFFF),
    Attribute(ACCESS_FLAGS, "qp_access_flags", "access_flags", 0xFFFF),
    Attribute(PATH_MTU, "path_mtu", "mtu", 5),
    Attribute(TIMEOUT, "timeout", "ackto", 31),
    Attribute(RETRY_CNT, "retry_cnt", "retry_cnt", 7),
    Attribute(RNR_RETRY, "rnr_retry", "rnr_retry", 7),
    Attribute(RQ_PSN, "rq_psn", "expected_psn", PSN_MASK),
    Attribute(SQ_PSN, "sq_psn", "next_send_psn", PSN_MASK),
    Attribute(MAX_QP_RD_ATOMIC, "max_rd_atomic", "max_rd_atomic", MAX_RD_ATOMIC),
    Attribute(MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", "max_dest_rd_atomic", MAX_RD_ATOMIC),
    Attribute(MIN_RNR_TIMER, "min_rnr_timer", "rnr_nak_timer", 31),
    Attribute(DEST_QPN, "dest_qp_num", "remote_qpn", 0xFF_FFFF),
)

FIELDS: dict[int, tuple[str, ...]] = {
    STATE: (),
    CUR_STATE: (),
    EN_SQD_ASYNC_NOTIFY: (),
    # UDP ports and rnic's options belong to the path: both ends agree on them when they connect
    AV: (
        "rgid",
        "mgid_index",
        "hop_limit",
        "tclass",
        "flow_label",
        "sl",
        "static_rate",
        "has_grh",
        "my_lmc",
        "dlid",
        "slid",
        "smac_hi",
        "dmac_hi",
        "sip",
        "dip",
        "udp_sport",
        "udp_dport",
        "options",
        "window_packets",
    ),
    **{each.bit: (each.field,) for each in ATTRIBUTES},
}
"""QPC fields of each attribute. Missing attributes are not supported: CAP, since rings are not resized, and the
alternate path, which RoCE does not have."""

SUPPORTED = sum(FIELDS)

CREATION_FIELDS = (
    "servtype",
    "flags_27_24",
    "flags_15_13",
    "mig_state",
    "flags_10_0",
    "msgmax",
    "rq_entry_sz_log",
    "sq_entry_sz_log",
    "rlkey_arbel_sched_queue",
    "usr_page",
    "pd",
    "wqe_base",
    "wqe_lkey",
    "cqn_snd",
    "snd_wqe_base_lkey",
    "snd_wqe_length",
    "cqn_rcv",
    "rcv_wqe_base_lkey",
    "rcv_wqe_length",
    "sq_base",
    "rq_base",
    "options",
    "sq_max_sge",
    "rq_max_sge",
    "srqn",
    "sq_slab_bytes",
    "window_packets",
    "xrcd",
)
"""Fields that RST2INIT sets in addition to its attributes, since this command creates the queue pair."""

_ANY_STATE = frozenset({RESET, INIT, RTR, RTS, SQD, SQE, ERR})
_ALIVE = _ANY_STATE - {RESET}
_PATH = AV | PATH_MTU | DEST_QPN | RQ_PSN
_CONNECTED = (ST_RC, ST_UC, ST_XRC_INI, ST_XRC_TGT)


IGNORED: Final = {
    ST_XRC_INI: MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
    ST_XRC_TGT: MAX_QP_RD_ATOMIC | RETRY_CNT | RNR_RETRY,
}
"""Attributes that do not apply to one half of an RC queue pair; the kernel removes them from a mask for XRC
(uverbs)."""


class Attributes(NamedTuple):
    """Required and optional attributes of a transition. STATE is always allowed."""

    required: int
    optional: int


class Transition(NamedTuple):
    """One modify command: its source states, its target state, its attributes by service type."""

    sources: frozenset[int]
    target: int
    attributes: dict[int, Attributes]


_SERVICES = (ST_RC, ST_UC, ST_UD, ST_XRC_INI, ST_XRC_TGT)
_NONE = dict.fromkeys(_SERVICES, Attributes(0, 0))
_RUNNING = {
    ST_RC: Attributes(0, CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER),
    ST_XRC_INI: Attributes(0, CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE),
    ST_XRC_TGT: Attributes(0, CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER),
    ST_UC: Attributes(0, CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE),
    ST_UD: Attributes(0, CUR_STATE | QKEY),
}

TRANSITIONS: dict[int, Transition] = {
    cmd.RST2INIT: Transition(
        frozenset({RESET}),
        INIT,
        {
            **dict.fromkeys(_CONNECTED, Attributes(PKEY_INDEX | PORT | ACCESS_FLAGS, 0)),
            ST_UD: Attributes(PKEY_INDEX | PORT | QKEY, 0),
        },
    ),
    cmd.INIT2INIT: Transition(
        frozenset({INIT}),
        INIT,
        {
            **dict.fromkeys(_CONNECTED, Attributes(0, PKEY_INDEX | PORT | ACCESS_FLAGS)),
            ST_UD: Attributes(0, PKEY_INDEX | PORT | QKEY),
        },
    ),
    cmd.INIT2RTR: Transition(
        frozenset({INIT}),
        RTR,
        {
            **dict.fromkeys(
                (ST_RC, ST_XRC_TGT),
                Attributes(_PATH | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX),
            ),
            **dict.fromkeys((ST_UC, ST_XRC_INI), Attributes(_PATH, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX)),
            ST_UD: Attributes(0, PKEY_INDEX | QKEY),
        },
    ),
    cmd.RTR2RTS: Transition(
        frozenset({RTR}),
        RTS,
        {
            ST_RC: Attributes(
                TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
                CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE,
            ),
            ST_XRC_INI: Attributes(
                TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
                CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE,
            ),
            ST_XRC_TGT: Attributes(
                TIMEOUT | SQ_PSN, CUR_STATE | ALT_PATH | ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE
            ),
            ST_UC: Attributes(SQ_PSN, CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE),
            ST_UD: Attributes(SQ_PSN, CUR_STATE | QKEY),
        },
    ),
    cmd.RTS2RTS: Transition(frozenset({RTS}), RTS, _RUNNING),
    # An RC queue pair is never in SQE: its send errors lead to ERR.
    cmd.SQERR2RTS: Transition(
        frozenset({SQE}),
        RTS,
        {ST_UC: Attributes(0, CUR_STATE | ACCESS_FLAGS), ST_UD: Attributes(0, CUR_STATE | QKEY)},
    ),
    cmd.RTS2SQD: Transition(frozenset({RTS}), SQD, dict.fromkeys(_SERVICES, Attributes(0, EN_SQD_ASYNC_NOTIFY))),
    cmd.SQD2RTS: Transition(frozenset({SQD}), RTS, _RUNNING),
    cmd.SQD2SQD: Transition(
        frozenset({SQD}),
        SQD,
        {
            ST_RC: Attributes(
                0,
                PORT
                | AV
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC
                | MAX_DEST_RD_ATOMIC
                | ALT_PATH
                | ACCESS_FLAGS
                | PKEY_INDEX
                | MIN_RNR_TIMER
                | PATH_MIG_STATE,
            ),
            ST_XRC_INI: Attributes(
                0,
                PORT
                | AV
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC
                | ALT_PATH
                | ACCESS_FLAGS
                | PKEY_INDEX
                | PATH_MIG_STATE,
            ),
            ST_XRC_TGT: Attributes(
                0,
                PORT
                | AV
                | TIMEOUT
                | MAX_DEST_RD_ATOMIC
                | ALT_PATH
                | ACCESS_FLAGS
                | PKEY_INDEX
                | MIN_RNR_TIMER
                | PATH_MIG_STATE,
            ),
            ST_UC: Attributes(0, AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE),
            ST_UD: Attributes(0, PKEY_INDEX | QKEY),
        },
    ),
    cmd.TOERR: Transition(_ALIVE, ERR, _NONE),
    cmd.ERR2RST: Transition(_ANY_STATE, RESET, _NONE),
}
"""The modify commands. ERR2RST is the standard's "any state to RESET", TOERR its "any state to Error"."""

COMMAND_FOR: dict[tuple[int, int], int] = {
    (source, transition.target): opcode for opcode, transition in TRANSITIONS.items() for source in transition.sources
}
"""Command by source and target state; a missing pair is not a legal transition."""


def check(opcode: int, state: int, service: int, mask: int) -> int:
    """Check whether a modify command is legal: return a ``ST_*`` status of :mod:`rnic.spec.commands`.

    Args:
        opcode: command opcode.
        state: the queue pair's current state.
        service: its service type, ``ST_*`` of :mod:`rnic.spec.states`.
        mask: attributes given, as ``opt_param_mask``.

    Returns:
        ``ST_OK``; ``ST_BAD_OP`` for another command; ``ST_BAD_QP_STATE`` for an illegal transition; ``ST_BAD_PARAM``
        for attributes that are missing, not allowed here, or not supported.
    """
    transition = TRANSITIONS.get(opcode)
    if transition is None:
        return cmd.ST_BAD_OP
    attributes = transition.attributes.get(service)
    if state not in transition.sources or attributes is None:
        return cmd.ST_BAD_QP_STATE
    if any(wrong_attributes(opcode, service, mask)):
        return cmd.ST_BAD_PARAM
    return cmd.ST_OK


def wrong_attributes(opcode: int, service: int, mask: int) -> tuple[int, int]:
    """Return the attributes that a mask lacks for a modify command, and those in it that the command does not allow."""
    attributes = TRANSITIONS[opcode].attributes[service]
    allowed = (attributes.required | attributes.optional | STATE) & SUPPORTED
    return attributes.required & ~mask, mask & ~allowed


@cache
def fields(mask: int) -> tuple[str, ...]:
    """Return the QPC fields of the supported attributes in ``mask``."""
    return tuple(name for attribute, names in FIELDS.items() if mask & attribute for name in names)
