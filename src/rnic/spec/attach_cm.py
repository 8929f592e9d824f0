"""Connection management over the process boundary (:mod:`rnic.spec.attach`): one message kind, one layout in each
direction.

These messages use their own connection to the NIC process, not one of a device context. IDs and event channels live as
long as the connection. Addresses are GIDs, IPv4 as ``::ffff:a.b.c.d``; ports are plain numbers.
"""

from __future__ import annotations

from rnic.spec.attach import NAME_BYTES
from rnic.spec.layout import Layout, half, octet, wide, word

MSG_CM = 32

(
    CM_OPEN,
    CM_CHANNEL,
    CM_CLOSE_CHANNEL,
    CM_CREATE,
    CM_DESTROY,
    CM_BIND,
    CM_RESOLVE_ADDR,
    CM_RESOLVE_ROUTE,
    CM_LISTEN,
    CM_CONNECT,
    CM_ACCEPT,
    CM_ESTABLISH,
    CM_REJECT,
    CM_DISCONNECT,
    CM_NOTIFY,
    CM_MIGRATE,
    CM_GET_EVENT,
    CM_QUERY,
    CM_JOIN,
    CM_LEAVE,
) = range(20)

CM_NO_EVENT = 0xFFFF_FFFF
"""``event`` if no event waits, and in answers to requests other than CM_GET_EVENT."""
CM_REUSEADDR = 1
"""``flags``: IDs that all set this may bind the same port."""
CM_MORE = 2
"""``flags`` of CM_OPEN: the device names add to those of the previous CM_OPEN."""
CM_TELL = 4
"""``flags`` of CM_RESOLVE_ADDR and CM_RESOLVE_ROUTE: the answer carries the event, which is not queued on a channel."""
CM_AFONLY = 8
"""``flags``: an ID bound to ``::`` accepts IPv6 only; an IPv4 ID always accepts IPv4 only."""
CM_MOST_EVENTS = 32
"""Most events in one answer to CM_GET_EVENT."""
QP_RC, QP_UC, QP_UD = 2, 3, 4
"""``qp_type``, as ``enum ibv_qp_type``."""
MAX_PRIVATE = 256

CM_REQUEST = Layout(
    "CM request",
    352,
    "little",
    "process boundary",
    (
        word("op", 0, "CM_* number"),
        word("id", 4, "ID, from the answer to CM_CREATE"),
        word("channel", 8, "event channel, from the answer to CM_CHANNEL, which also passes an eventfd"),
        word("port_space", 12, "of a new ID"),
        wide("src", 16, "this side's GID, 0 for any; CM_OPEN: device names are in the private data", 16),
        wide("dst", 32, "GID of the peer or of a multicast group", 16),
        half("src_port", 48, "this side's port, 0 for any"),
        half("dst_port", 50, "the peer's port"),
        word("value", 52, "backlog; event of CM_NOTIFY; CM_GET_EVENT: most events to return, 0 for one"),
        word("qpn", 56, "this side's QP number"),
        word("qkey", 60, "this side's Q_Key"),
        octet("responder_resources", 64, "READs and atomics that this side accepts outstanding"),
        octet("initiator_depth", 65, "READs and atomics that this side has outstanding"),
        octet("flow_control", 66, "end-to-end flow control"),
        octet("retry_count", 67, "retries"),
        octet("rnr_retry_count", 68, "retries after RNR"),
        octet("srq", 69, "1: this side uses a shared receive queue"),
        octet("qp_type", 70, "QP_* number of a new ID"),
        octet("tos", 71, "traffic class"),
        word("status", 72, "rejection reason, 0 for the default"),
        octet("ack_timeout", 76, "local ACK timeout, 0 for the default"),
        wide("context", 80, "of CM_JOIN: returned in its event"),
        word("private_bytes", 88, "length of the private data"),
        word("flags", 92, "CM_REUSEADDR, CM_MORE, CM_TELL, CM_AFONLY"),
        wide("private", 96, "private data", MAX_PRIVATE),
    ),
)
CM_RECORD = Layout(
    "CM answer",
    368,
    "little",
    "process boundary",
    (
        word("event", 0, "RDMA_CM_EVENT_* or CM_NO_EVENT"),
        word("status", 4, "status of the event, signed"),
        word("id", 8, "ID or event channel"),
        word("listen_id", 12, "listening ID of a CONNECT_REQUEST"),
        wide("src", 16, "this side's GID, 0 if unbound", 16),
        wide("dst", 32, "the peer's GID", 16),
        half("src_port", 48, "this side's port"),
        half("dst_port", 50, "the peer's port"),
        word("port_space", 52, "port space of the ID"),
        wide("device", 56, "name of the device, zeros if the ID is unbound", NAME_BYTES),
        word("qpn", 72, "the peer's QP number"),
        word("qkey", 76, "the peer's Q_Key"),
        word("sq_psn", 80, "first PSN of this side"),
        word("rq_psn", 84, "first PSN of the peer"),
        octet("responder_resources", 88, "READs and atomics that this side must accept outstanding"),
        octet("initiator_depth", 89, "READs and atomics that this side may have outstanding"),
        octet("flow_control", 90, "the peer's"),
        octet("retry_count", 91, "retry count for this side"),
        octet("rnr_retry_count", 92, "RNR retry count for this side"),
        octet("srq", 93, "the peer's"),
        octet("path_mtu", 94, "MTU code"),
        octet("ack_timeout", 95, "local ACK timeout"),
        wide("context", 96, "context of CM_JOIN"),
        octet("qp_type", 104, "QP_* number"),
        octet("tos", 105, "traffic class"),
        octet("min_rnr_timer", 106, "minimum RNR NAK timer code of this side"),
        word("private_bytes", 108, "length of the private data"),
        wide("private", 112, "private data", MAX_PRIVATE),
    ),
)
REQUEST_BYTES: dict[int, tuple[int, int]] = {MSG_CM: (CM_REQUEST.size, CM_REQUEST.size)}
