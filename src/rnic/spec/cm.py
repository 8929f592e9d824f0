"""Numbers of communication management: IBA vol. 1, chapter 12 and annex A11 (RDMA IP CM service), and of rdma_cm."""

from __future__ import annotations

REJ_NO_QP = 1
REJ_NO_RESOURCES = 3
REJ_TIMEOUT = 4
REJ_UNSUPPORTED = 5
REJ_INVALID_COMM_ID = 6
REJ_INVALID_SERVICE_ID = 8
REJ_INVALID_TRANSPORT_TYPE = 9
REJ_STALE_CONN = 10
REJ_INVALID_GID = 12
REJ_INVALID_MTU = 26
REJ_CONSUMER_DEFINED = 28
REJ_DUPLICATE_COMM_ID = 30
"""REJ reasons (IBA 12.6.7.2) that rnic sends or handles; :mod:`rnic.wire.cm_message` names all of them."""

REJECTED_REQ, REJECTED_REP, REJECTED_OTHER = range(3)
"""Message that a REJ answers; MRA uses the same numbers for REQ and REP."""

SIDR_SUCCESS, SIDR_UNSUPPORTED, SIDR_REJECTED, SIDR_NO_QP = range(4)
"""Status of SIDR_REP (IBA 12.11.2)."""
APR_UNSUPPORTED = 2
"""Status of APR: alternate paths are not supported (IBA 12.8.2)."""

TRANSPORT_RC, TRANSPORT_UC = 0, 1
"""Transport service types of REQ."""

PS_IPOIB, PS_TCP, PS_UDP, PS_IB = 0x0002, 0x0106, 0x0111, 0x013F
"""Port spaces of rdma_cm; a service ID is one of them and a port (annex A11)."""
UDP_QKEY = 0x0123_4567
"""Q_Key of UD queue pairs in the port spaces UDP and IPOIB."""
PORT_SPACES = (PS_TCP, PS_UDP, PS_IB, PS_IPOIB)
FIRST_DYNAMIC_PORT, LAST_DYNAMIC_PORT = 32_768, 60_999

(
    EVENT_ADDR_RESOLVED,
    EVENT_ADDR_ERROR,
    EVENT_ROUTE_RESOLVED,
    EVENT_ROUTE_ERROR,
    EVENT_CONNECT_REQUEST,
    EVENT_CONNECT_RESPONSE,
    EVENT_CONNECT_ERROR,
    EVENT_UNREACHABLE,
    EVENT_REJECTED,
    EVENT_ESTABLISHED,
    EVENT_DISCONNECTED,
    EVENT_DEVICE_REMOVAL,
    EVENT_MULTICAST_JOIN,
    EVENT_MULTICAST_ERROR,
    EVENT_ADDR_CHANGE,
    EVENT_TIMEWAIT_EXIT,
) = range(16)
"""rdma_cm events, ``RDMA_CM_EVENT_*``."""

EVENT_NAMES = {
    number: name.removeprefix("EVENT_")
    for name, number in sorted(globals().items())
    if name.startswith("EVENT_") and isinstance(number, int)
}


def service_id(port_space: int, port: int) -> int:
    """Return the 64-bit service ID of a port (annex A11)."""
    return port_space << 16 | port


def port_key(service_id: int) -> int:
    """Return the prefix that the service IDs of one port share in all port spaces, or the ID itself if it names no
    port."""
    return service_id & ~_PROTOCOL if service_id >> 24 == _IP_PREFIX else service_id


_IP_PREFIX, _PROTOCOL = 1, 0xFF << 16
"""A port's service ID: 1, the IP protocol (8 bits), the port (16 bits)."""


RESPONSE_TIMEOUT = 20
"""CM response timeout, as 4.096 us << code: 4.3 s."""
MAX_CM_RETRIES = 15
MRA_SERVICE_TIMEOUT = 24
"""Service timeout in MRA: a listener has 69 s to accept or reject."""
PACKET_LIFETIME = 16
"""Packet lifetime of a path, as a code: 268 ms. A closed connection stays in time wait for twice that."""
ACK_TIMEOUT = 16
"""Local ACK timeout of connected queue pairs: 268 ms, so seven retries give a busy peer two seconds."""
MIN_RNR_TIMER = 12
UNIT_NS = 4_096


def code_ns(code: int) -> int:
    """Return a timeout code's duration in nanoseconds."""
    return UNIT_NS << code
