"""The port's management agent: answers requests of a RoCE driver to the agents of QP0 and QP1 (IBA 14.2.5, 16.1).

Get is supported for NodeDescription, NodeInfo, GUIDInfo, PortInfo and P_KeyTable, and for ClassPortInfo and
PortCounters of performance management. Any other request gets a GetResp with the standard's status code, so every
request is answered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from rnic.device.mailboxes import DEVICE_ID, VENDOR_ID
from rnic.spec.limits import MAX_PATH_MTU, MTU_CODES
from rnic.state.counters import PORT_COUNTERS, PORT_DATA, PORT_WORD_BYTES
from rnic.wire.mad import CLASS_PERF, MAD_BYTES, Mad

if TYPE_CHECKING:
    from rnic.device.host import GsiHost

CLASS_LID = 0x01
CLASS_DIRECTED = 0x81
METHOD_GET = 0x01
METHOD_SET = 0x02
METHOD_GET_RESP = 0x81
ATTR_CLASS_PORT_INFO = 0x01
ATTR_PORT_COUNTERS = 0x12
ATTR_NODE_DESCRIPTION = 0x10
ATTR_NODE_INFO = 0x11
ATTR_GUID_INFO = 0x14
ATTR_PORT_INFO = 0x15
ATTR_PKEY_TABLE = 0x16

STATUS_OK = 0x0000
STATUS_BAD_VERSION = 0x0004
STATUS_BAD_METHOD = 0x0008
STATUS_BAD_ATTRIBUTE = 0x000C
STATUS_BAD_VALUE = 0x001C
"""IBA 13.4.7, table 113."""

SMP_DATA = 64
SMP_DATA_BYTES = 64
_PKEYS_PER_BLOCK = 32
_NODE_INFO = struct.Struct(">4B3Q2HI B3s")


def answer(nic: GsiHost, datagram: bytes) -> bytes | None:
    """Return the answer to a 256-byte datagram; ``None`` if it is not a request."""
    request = Mad.parse(datagram)
    if request.method & 0x80 or request.base_version != 1:
        return None
    status, data = _data(nic, request)
    out = bytearray(datagram[:MAD_BYTES])
    if status == STATUS_OK:
        out[SMP_DATA : SMP_DATA + SMP_DATA_BYTES] = data.ljust(SMP_DATA_BYTES, b"\0")
    request.method = METHOD_GET_RESP
    request.status = status
    out[:24] = request.pack()
    return bytes(out)


def _data(nic: GsiHost, request: Mad) -> tuple[int, bytes]:
    attributes = _CLASSES.get(request.mgmt_class)
    if attributes is None or request.class_version != 1:
        return STATUS_BAD_VERSION, b""
    if request.method not in (METHOD_GET, METHOD_SET):
        return STATUS_BAD_METHOD, b""
    make = attributes.get(request.attr_id)
    if make is None or request.method == METHOD_SET:
        return STATUS_BAD_ATTRIBUTE, b""
    data = make(nic, request.attr_modifier)
    return (STATUS_BAD_VALUE, b"") if data is None else (STATUS_OK, data)


def _node_description(nic: GsiHost, modifier: int) -> bytes | None:
    return nic.config.name.encode()[:SMP_DATA_BYTES]


def _node_info(nic: GsiHost, modifier: int) -> bytes | None:
    guid = nic.config.guid
    vendor = VENDOR_ID.to_bytes(3, "big")
    return _NODE_INFO.pack(1, 1, 1, 1, guid, guid, guid, len(nic.config.pkeys), DEVICE_ID, 1, 1, vendor)


def _guid_info(nic: GsiHost, block: int) -> bytes | None:
    return nic.config.guid.to_bytes(8, "big") if block == 0 else None


def _port_info(nic: GsiHost, port: int) -> bytes | None:
    if port not in (0, 1):
        return None
    active = nic.globals.port_state
    data = bytearray(SMP_DATA_BYTES)
    data[8:16] = nic.config.gid_table[0][:8]
    data[28] = 1  # local port
    data[29] = data[30] = data[31] = 2  # link width: 4x enabled, supported, active
    data[32] = 1 << 4 | active
    data[33] = (5 if nic.globals.link_up else 3) << 4 | 2
    data[36] = MTU_CODES[nic.config.mtu] << 4
    data[41] = MTU_CODES[MAX_PATH_MTU]
    data[50] = len(nic.config.gid_table)
    return bytes(data)


def _pkey_table(nic: GsiHost, block: int) -> bytes | None:
    if block & 0xFFFF:
        return None
    return b"".join(pkey.to_bytes(2, "big") for pkey in nic.config.pkeys[:_PKEYS_PER_BLOCK])


def _class_port_info(nic: GsiHost, modifier: int) -> bytes | None:
    return bytes((1, 1)) + bytes(5) + bytes((_RESPONSE_TIME,))


def _port_counters(nic: GsiHost, modifier: int) -> bytes | None:
    """Return all counters of IBA 16.1.3.5, which saturate at their maximum."""
    counters = nic.counters
    data = bytearray(_PORT_COUNTERS_BYTES)
    data[1] = 1  # the port
    for name, byte, size in _COUNTER_PLACES:
        unit = PORT_WORD_BYTES if name in PORT_DATA else 1
        total = sum(counters[part] for part in (PORT_DATA | PORT_COUNTERS)[name]) // unit
        data[byte : byte + size] = min(total, (1 << 8 * size) - 1).to_bytes(size, "big")
    return bytes(data)


_RESPONSE_TIME = 16
"""RespTimeValue: the response time is at most 4.096 us times 2 to the power of this."""
_PORT_COUNTERS_BYTES = 44
_COUNTER_PLACES = (
    ("symbol_error", 4, 2),
    ("link_error_recovery", 6, 1),
    ("link_downed", 7, 1),
    ("port_rcv_errors", 8, 2),
    ("port_rcv_remote_physical_errors", 10, 2),
    ("port_rcv_switch_relay_errors", 12, 2),
    ("port_xmit_discards", 14, 2),
    ("port_xmit_constraint_errors", 16, 1),
    ("port_rcv_constraint_errors", 17, 1),
    ("VL15_dropped", 22, 2),
    ("port_xmit_data", 24, 4),
    ("port_rcv_data", 28, 4),
    ("port_xmit_packets", 32, 4),
    ("port_rcv_packets", 36, 4),
    ("port_xmit_wait", 40, 4),
)
"""Name, offset and size in bytes of each counter."""

_PERFORMANCE: dict[int, Callable[[GsiHost, int], bytes | None]] = {
    ATTR_CLASS_PORT_INFO: _class_port_info,
    ATTR_PORT_COUNTERS: _port_counters,
}
_ATTRIBUTES: dict[int, Callable[[GsiHost, int], bytes | None]] = {
    ATTR_NODE_DESCRIPTION: _node_description,
    ATTR_NODE_INFO: _node_info,
    ATTR_GUID_INFO: _guid_info,
    ATTR_PORT_INFO: _port_info,
    ATTR_PKEY_TABLE: _pkey_table,
}
_CLASSES = {CLASS_LID: _ATTRIBUTES, CLASS_DIRECTED: _ATTRIBUTES, CLASS_PERF: _PERFORMANCE}
