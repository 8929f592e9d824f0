"""Reasons for dropping a received RC Link packet. Each is also the name of its counter."""

from __future__ import annotations

from enum import Enum

from rnic.rclink.numbers import REFUSED


class RcLinkDrop(Enum):
    """The value is the counter's name."""

    TOO_SHORT = "drop_too_short"
    TOO_LONG = "drop_too_long"
    BAD_ICRC = "drop_bad_icrc"
    BAD_OPCODE = "drop_bad_opcode"
    BAD_LENGTH = "drop_bad_length"
    BAD_PAD = "drop_bad_pad"
    TYPE2 = "drop_rclink_type2"
    TYPE3 = "drop_rclink_type3"
    FACK = "drop_rclink_fack"
    CREDITS = "drop_rclink_credits"
    UNKNOWN_QP = "drop_unknown_qp"
    DISABLED = "drop_disabled"
    WRONG_ADDRESS = "drop_wrong_address"
    BAD_PKEY = "drop_bad_pkey"
    BAD_SYNDROME = "drop_bad_syndrome"
    PSN_GAP = "drop_psn_gap"
    DUPLICATE = "drop_duplicate"
    NOT_READY = "drop_no_receive"
    STALE_ACK = "drop_stale_response"
    GHOST_ACK = "drop_ghost_response"

    @property
    def words(self) -> str:
        """The reason as text."""
        return _WORDS[self]


_WORDS = {
    RcLinkDrop.TOO_SHORT: "shorter than RH and ICRC",
    RcLinkDrop.TOO_LONG: "longer than the longest packet",
    RcLinkDrop.BAD_ICRC: "the ICRC is wrong",
    RcLinkDrop.BAD_OPCODE: "opcode 3 is reserved",
    RcLinkDrop.BAD_LENGTH: "Pkt_len and the received bytes disagree, or a SEND is empty",
    RcLinkDrop.BAD_PAD: "payload and pad do not fill whole words",
    RcLinkDrop.TYPE2: REFUSED["TYPE2"],
    RcLinkDrop.TYPE3: REFUSED["TYPE3"],
    RcLinkDrop.FACK: REFUSED["FACK"],
    RcLinkDrop.CREDITS: REFUSED["CREDITS"],
    RcLinkDrop.UNKNOWN_QP: "there is no QP with that number",
    RcLinkDrop.DISABLED: "the QP is disabled",
    RcLinkDrop.WRONG_ADDRESS: "it does not come from the QP's peer",
    RcLinkDrop.BAD_PKEY: "the partition key is not the QP's",
    RcLinkDrop.BAD_SYNDROME: "RC Link has no such AETH syndrome",
    RcLinkDrop.PSN_GAP: "packets before it are missing",
    RcLinkDrop.DUPLICATE: "it was received before",
    RcLinkDrop.NOT_READY: "the receive buffer is full: answered by an RNR NAK",
    RcLinkDrop.STALE_ACK: "it acknowledges packets that were acknowledged before",
    RcLinkDrop.GHOST_ACK: "it acknowledges packets that were never sent",
}
