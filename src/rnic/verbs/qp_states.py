"""State transitions of a queue pair: required attributes, and attributes as fields of the context."""

from __future__ import annotations

from rnic.context import modify as m
from rnic.spec import commands as cmd
from rnic.spec import states as s
from rnic.verbs import enums as e
from rnic.verbs.attrs import AHAttr

STATE_TO_DEVICE = {
    e.IBV_QPS_RESET: s.RESET,
    e.IBV_QPS_INIT: s.INIT,
    e.IBV_QPS_RTR: s.RTR,
    e.IBV_QPS_RTS: s.RTS,
    e.IBV_QPS_SQD: s.SQD,
    e.IBV_QPS_SQE: s.SQE,
    e.IBV_QPS_ERR: s.ERR,
}
STATE_FROM_DEVICE = {device: verbs for verbs, device in STATE_TO_DEVICE.items()}
SERVICES = {
    e.IBV_QPT_RC: s.ST_RC,
    e.IBV_QPT_UC: s.ST_UC,
    e.IBV_QPT_UD: s.ST_UD,
    e.IBV_QPT_XRC_SEND: s.ST_XRC_INI,
    e.IBV_QPT_XRC_RECV: s.ST_XRC_TGT,
}
"""Service type of each ``IBV_QPT_*``."""
RANGES = (*m.ATTRIBUTES, m.Attribute(e.IBV_QP_PATH_MIG_STATE, "path_mig_state", "mig_state", 3))


def _required(command: int) -> dict[int, int]:
    attributes = m.TRANSITIONS[command].attributes
    return {qp_type: attributes[service].required | e.IBV_QP_STATE for qp_type, service in SERVICES.items()}


INIT_MASK, RTR_MASK, RTS_MASK = (_required(command) for command in (cmd.RST2INIT, cmd.INIT2RTR, cmd.RTR2RTS))
"""Attributes that each step to RTS needs, by ``IBV_QPT_*``."""


def name_of(state: int) -> str:
    """Return the name of a device state."""
    return s.STATE_NAMES[state]


def command_between(current: int, target: int) -> int | None:
    """Return the command that leads from one state to another."""
    for opcode, transition in m.TRANSITIONS.items():
        if transition.target == target and current in transition.sources:
            return opcode
    return None


def path_fields(ah: AHAttr) -> dict[str, int]:
    """Return the QPC fields of an address vector."""
    route = ah.gr
    return {
        "rgid": int.from_bytes(route.dgid.raw, "big"),
        "mgid_index": route.sgid_index,
        "hop_limit": route.hop_limit,
        "tclass": route.traffic_class,
        "flow_label": route.flow_label,
        "sl": ah.sl,
        "static_rate": ah.static_rate,
        "has_grh": int(bool(ah.is_global)),
        "udp_dport": ah.udp_dport,
    }
