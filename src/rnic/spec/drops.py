"""Why a received packet was dropped. Each reason is also the name of the counter that it bumps."""

from enum import Enum


class DropReason(Enum):
    """The value is the counter's name."""

    TOO_SHORT = "drop_too_short"
    TOO_LONG = "drop_too_long"
    BAD_ICRC = "drop_bad_icrc"
    BAD_IP = "drop_bad_ip"
    NOT_ROCE = "drop_not_roce"
    BAD_TVER = "drop_bad_tver"
    BAD_OPCODE = "drop_bad_opcode"
    BAD_PAD = "drop_bad_pad"
    UNKNOWN_QP = "drop_unknown_qp"
    NOT_CACHED = "drop_not_cached"
    QP_STATE = "drop_qp_state"
    WRONG_SERVICE = "drop_wrong_service"
    WRONG_ADDRESS = "drop_wrong_address"
    BAD_PKEY = "drop_bad_pkey"
    BAD_QKEY = "drop_bad_qkey"
    PSN_GAP = "drop_psn_gap"
    NAKED = "drop_naked"
    DUPLICATE = "drop_duplicate"
    DUPLICATE_UNMATCHED = "drop_duplicate_unmatched"
    BAD_SEQUENCE = "drop_bad_sequence"
    BAD_LENGTH = "drop_bad_length"
    NO_RECEIVE = "drop_no_receive"
    GHOST_RESPONSE = "drop_ghost_response"
    STALE_RESPONSE = "drop_stale_response"
    ACCESS = "drop_access"
    DISABLED = "drop_disabled"
