"""Messages of connection management (IBA vol. 1, 12.6 to 12.11), the part of each in front of its private data.

They stand behind the MAD header in datagrams to QP1. One table a message; the records are made from the tables.
"""

from __future__ import annotations

from typing import Self

from rnic.spec.layout import Field, Layout, bits, half, octet, wide, word
from rnic.wire.header import Buffer, Header
from rnic.wire.mad import (
    CM_DREP,
    CM_DREQ,
    CM_MRA,
    CM_NAMES,
    CM_REJ,
    CM_REP,
    CM_REQ,
    CM_RTU,
    CM_SIDR_REP,
    CM_SIDR_REQ,
)

REJECT_REASONS = {
    1: "no QP", 2: "no EEC", 3: "no resources", 4: "timeout", 5: "unsupported request",
    6: "invalid communication ID", 7: "invalid communication instance", 8: "invalid service ID",
    9: "invalid transport service type", 10: "stale connection", 11: "RDC does not exist",
    12: "primary remote port GID rejected", 13: "primary remote port LID rejected", 14: "invalid primary SL",
    15: "invalid primary traffic class", 16: "invalid primary hop limit", 17: "invalid primary packet rate",
    18: "alternate remote port GID rejected", 19: "alternate remote port LID rejected", 20: "invalid alternate SL",
    21: "invalid alternate traffic class", 22: "invalid alternate hop limit", 23: "invalid alternate packet rate",
    24: "port and CM redirection", 25: "port redirection", 26: "invalid path MTU",
    27: "insufficient responder resources", 28: "consumer reject", 29: "RNR retry count reject",
    30: "duplicate local communication ID", 31: "unsupported class version", 32: "invalid flow label",
    33: "invalid alternate flow label",
}  # fmt: skip
"""Reasons of a ConnectReject (IBA vol. 1, 12.6.7.2)."""

_LOCAL = word("local_comm_id", 0, "the sender's communication ID")
_REMOTE = word("remote_comm_id", 4, "the receiver's communication ID")


def _path(name: str, at: int) -> tuple[Field, ...]:
    """The fields of one path of a REQ."""
    return (
        half(f"{name}_local_lid", at, "0 or permissive on RoCE"),
        half(f"{name}_remote_lid", at + 2, "0 or permissive on RoCE"),
        wide(f"{name}_local_gid", at + 4, "the sender's GID", 16),
        wide(f"{name}_remote_gid", at + 20, "the receiver's GID", 16),
        bits(f"{name}_flow_label", at + 36, 31, 12, "flow label"),
        bits(f"{name}_rate", at + 36, 5, 0, "packet rate"),
        octet(f"{name}_tclass", at + 40, "traffic class"),
        octet(f"{name}_hop_limit", at + 41, "hop limit"),
        bits(f"{name}_sl", at + 40, 15, 12, "service level"),
        bits(f"{name}_subnet_local", at + 40, 11, 11, "the path stays in the subnet"),
        bits(f"{name}_ack_timeout", at + 40, 7, 3, "local ACK timeout"),
    )


_FIELDS: dict[int, tuple[int, tuple[Field, ...]]] = {
    CM_REQ: (
        140,
        (
            _LOCAL,
            wide("service_id", 8, "service that is asked for; of RDMA CM: protocol and port"),
            wide("local_ca_guid", 16, "the sender's CA"),
            word("local_qkey", 28, "Q_Key, 0 for connected services"),
            bits("local_qpn", 32, 31, 8, "the sender's QP"),
            bits("responder_resources", 32, 7, 0, "READs and atomics that the sender answers at a time"),
            bits("local_eecn", 36, 31, 8, "EE context, 0"),
            bits("initiator_depth", 36, 7, 0, "READs and atomics that the sender has open at a time"),
            bits("remote_eecn", 40, 31, 8, "EE context, 0"),
            bits("remote_cm_timeout", 40, 7, 3, "how fast the receiver has to answer"),
            bits("service_type", 40, 2, 1, "0 RC, 1 UC, 2 RD"),
            bits("flow_control", 40, 0, 0, "the sender counts end-to-end credits"),
            bits("starting_psn", 44, 31, 8, "first PSN that the receiver of this message is to send with"),
            bits("local_cm_timeout", 44, 7, 3, "how fast the sender answers"),
            bits("retry_count", 44, 2, 0, "retries of requests"),
            half("pkey", 48, "partition key"),
            bits("path_mtu", 48, 15, 12, "path MTU: 1 is 256 bytes, 5 is 4096"),
            bits("rdc_exists", 48, 11, 11, "an RD channel exists"),
            bits("rnr_retry_count", 48, 10, 8, "retries after RNR NAKs"),
            bits("max_cm_retries", 48, 7, 4, "how often the sender repeats this message"),
            bits("srq", 48, 3, 3, "the sender's QP has a shared receive queue"),
            bits("extended_service_type", 48, 2, 0, "1 XRC"),
            *_path("primary", 52),
            *_path("alternate", 96),
        ),
    ),
    CM_MRA: (
        10,
        (
            _LOCAL,
            _REMOTE,
            Field("message_mraed", 8, 7, 6, "0 REQ, 1 REP, 2 LAP", 1),
            Field("service_timeout", 9, 7, 3, "how long the answer takes", 1),
        ),
    ),
    CM_REJ: (
        84,
        (
            _LOCAL,
            _REMOTE,
            Field("message_rejected", 8, 7, 6, "0 REQ, 1 REP, 2 none", 1),
            Field("info_length", 9, 7, 1, "bytes of additional information", 1),
            half("reason", 10, "why"),
        ),
    ),
    CM_REP: (
        36,
        (
            _LOCAL,
            _REMOTE,
            word("local_qkey", 8, "Q_Key, 0 for connected services"),
            bits("local_qpn", 12, 31, 8, "the sender's QP"),
            bits("local_eecn", 16, 31, 8, "EE context, 0"),
            bits("starting_psn", 20, 31, 8, "first PSN that the receiver of this message is to send with"),
            bits("responder_resources", 24, 31, 24, "READs and atomics that the sender answers at a time"),
            bits("initiator_depth", 24, 23, 16, "READs and atomics that the sender has open at a time"),
            bits("target_ack_delay", 24, 15, 11, "how long the sender may take for an ACK"),
            bits("failover", 24, 10, 9, "whether the alternate path is accepted"),
            bits("flow_control", 24, 8, 8, "the sender counts end-to-end credits"),
            bits("rnr_retry_count", 24, 7, 5, "retries after RNR NAKs"),
            bits("srq", 24, 4, 4, "the sender's QP has a shared receive queue"),
            wide("local_ca_guid", 28, "the sender's CA"),
        ),
    ),
    CM_RTU: (8, (_LOCAL, _REMOTE)),
    CM_DREQ: (12, (_LOCAL, _REMOTE, bits("remote_qpn", 8, 31, 8, "the receiver's QP"))),
    CM_DREP: (8, (_LOCAL, _REMOTE)),
    CM_SIDR_REQ: (
        16,
        (
            word("request_id", 0, "pairs the answer with this"),
            half("pkey", 4, "partition key"),
            wide("service_id", 8, "service that is asked for"),
        ),
    ),
    CM_SIDR_REP: (
        96,
        (
            word("request_id", 0, "of the request"),
            octet("status", 4, "0 is success"),
            octet("info_length", 5, "bytes of additional information"),
            bits("local_qpn", 8, 31, 8, "the QP to send to"),
            wide("service_id", 12, "service that was asked for"),
            word("local_qkey", 20, "the QP's Q_Key"),
        ),
    ),
}


class CmMessage(Header):
    """A message of connection management; each attribute of :data:`CM_MESSAGES` has its own fields."""

    @classmethod
    def parse(cls, buf: Buffer, offset: int = 0) -> Self:
        """See :meth:`Header.parse`."""
        return cls(**cls.layout.unpack(buf, offset))

    def pack(self) -> bytes:
        """See :meth:`Header.pack`."""
        return self.layout.pack(self.values())


def _record(attribute: int) -> type[CmMessage]:
    size, fields = _FIELDS[attribute]
    layout = Layout(f"CM {CM_NAMES[attribute]}", size, "big", "IBA vol. 1, 12.6 to 12.11", fields)
    return type(CM_NAMES[attribute], (CmMessage,), {"layout": layout})


CM_MESSAGES: dict[int, type[CmMessage]] = {attribute: _record(attribute) for attribute in _FIELDS}
"""Records of messages by attribute ID; alternate paths (LAP, APR) are left opaque."""
