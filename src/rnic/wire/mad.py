"""Header of management datagrams (IBA vol. 1, 13.4). Connection management sends these to QP1.

The 232 bytes after the header are opaque here.
"""

from __future__ import annotations

from rnic.spec.layout import Layout, bits, half, wide, word
from rnic.wire.header import Header

MAD_BYTES = 256
GSI_QPN = 1
"""QPN of the GSI, which sends and receives management datagrams."""
GSI_QKEY = 0x8001_0000
MAD_BASE_VERSION = 1
CLASS_PERF = 0x04
"""Performance management: the counters of a port."""
CLASS_CM = 0x07
CM_CLASS_VERSION = 2
METHOD_SEND = 0x03

CM_REQ = 0x10
CM_MRA = 0x11
CM_REJ = 0x12
CM_REP = 0x13
CM_RTU = 0x14
CM_DREQ = 0x15
CM_DREP = 0x16
CM_SIDR_REQ = 0x17
CM_SIDR_REP = 0x18
CM_LAP = 0x19
CM_APR = 0x1A

CM_NAMES = {
    CM_REQ: "ConnectRequest",
    CM_MRA: "MsgRcptAck",
    CM_REJ: "ConnectReject",
    CM_REP: "ConnectReply",
    CM_RTU: "ReadyToUse",
    CM_DREQ: "DisconnectRequest",
    CM_DREP: "DisconnectReply",
    CM_SIDR_REQ: "ServiceIDResReq",
    CM_SIDR_REP: "ServiceIDResReqResp",
    CM_LAP: "LoadAlternatePath",
    CM_APR: "AlternatePathResponse",
}
"""Attributes of the communication management class (IBA vol. 1, chapter 12)."""

MAD = Layout(
    "MAD header",
    24,
    "big",
    "IBA vol. 1, 13.4",
    (
        bits("base_version", 0, 31, 24, "1"),
        bits("mgmt_class", 0, 23, 16, "management class; 07h is communication management"),
        bits("class_version", 0, 15, 8, "version of the class; 2 for communication management"),
        bits("method", 0, 7, 0, "method; 03h is Send"),
        half("status", 4, "status of a response"),
        half("class_specific", 6, "defined by the class"),
        wide("tid", 8, "transaction ID: pairs a response with its request"),
        half("attr_id", 16, "attribute: the message type"),
        half("reserved16", 18, "reserved"),
        word("attr_modifier", 20, "attribute modifier"),
    ),
)


class Mad(Header):
    """Management datagram header, 24 bytes."""

    __slots__ = tuple(field.name for field in MAD.fields)

    layout = MAD
    base_version: int
    mgmt_class: int
    class_version: int
    method: int
    status: int
    class_specific: int
    tid: int
    attr_id: int
    reserved16: int
    attr_modifier: int
