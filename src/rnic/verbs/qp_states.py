"""Changes of a queue pair's state: what each transition asks for, and how attributes are spelled in the context."""

from __future__ import annotations

from rnic.context import modify as m
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
_INIT = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT
_RTR = e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
INIT_MASK = {
    e.IBV_QPT_RC: _INIT | e.IBV_QP_ACCESS_FLAGS,
    e.IBV_QPT_UC: _INIT | e.IBV_QP_ACCESS_FLAGS,
    e.IBV_QPT_UD: _INIT | e.IBV_QP_QKEY,
}
RTR_MASK = {
    e.IBV_QPT_RC: _RTR | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER,
    e.IBV_QPT_UC: _RTR,
    e.IBV_QPT_UD: e.IBV_QP_STATE,
}
RTS_MASK = {
    e.IBV_QPT_RC: e.IBV_QP_STATE
    | e.IBV_QP_SQ_PSN
    | e.IBV_QP_TIMEOUT
    | e.IBV_QP_RETRY_CNT
    | e.IBV_QP_RNR_RETRY
    | e.IBV_QP_MAX_QP_RD_ATOMIC,
    e.IBV_QPT_UC: e.IBV_QP_STATE | e.IBV_QP_SQ_PSN,
    e.IBV_QPT_UD: e.IBV_QP_STATE | e.IBV_QP_SQ_PSN,
}
RANGES = {
    # attribute: (mask bit, QPC field, largest value)
    "pkey_index": (e.IBV_QP_PKEY_INDEX, "pkey_index", 127),
    "port_num": (e.IBV_QP_PORT, "port", 7),
    "qkey": (e.IBV_QP_QKEY, "qkey", 0xFFFF_FFFF),
    "qp_access_flags": (e.IBV_QP_ACCESS_FLAGS, "access_flags", 0xFF),
    "path_mtu": (e.IBV_QP_PATH_MTU, "mtu", 5),
    "timeout": (e.IBV_QP_TIMEOUT, "ackto", 31),
    "retry_cnt": (e.IBV_QP_RETRY_CNT, "retry_cnt", 7),
    "rnr_retry": (e.IBV_QP_RNR_RETRY, "rnr_retry", 7),
    "rq_psn": (e.IBV_QP_RQ_PSN, "expected_psn", 0xFFFFFF),
    "sq_psn": (e.IBV_QP_SQ_PSN, "next_send_psn", 0xFFFFFF),
    "max_rd_atomic": (e.IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", 128),
    "max_dest_rd_atomic": (e.IBV_QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", 128),
    "min_rnr_timer": (e.IBV_QP_MIN_RNR_TIMER, "rnr_nak_timer", 31),
    "dest_qp_num": (e.IBV_QP_DEST_QPN, "remote_qpn", 0xFFFFFF),
    "path_mig_state": (e.IBV_QP_PATH_MIG_STATE, "mig_state", 3),
}


def name_of(state: int) -> str:
    """A state of the device in words."""
    return s.STATE_NAMES[state]


def command_between(current: int, target: int) -> int | None:
    """The command that leads from one state to another."""
    for opcode, transition in m.TRANSITIONS.items():
        if transition.target == target and current in transition.sources:
            return opcode
    return None


def path_fields(ah: AHAttr) -> dict[str, int]:
    """QPC fields of an address vector."""
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
