"""Answer iproute2's ``rdma`` as a NETLINK_RDMA socket of the kernel does: devices, ports and resources.

A program's socket is one end of a pair (``abi/paths/interpose_netlink.c``); the other end is served here. Numbers and
layouts are those of the kernel's ``rdma/rdma_netlink.h`` and ``linux/netlink.h``. All requests are read-only.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rnic.device.commands import FIRMWARE_VERSION
from rnic.link.interface import interface_of
from rnic.mem.table import REGION
from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.devices import ServedDevice
from rnic.spec import commands as cmd
from rnic.spec.states import STATE_NAMES
from rnic.trace.guard import Guard

CLIENT = 5
"""RDMA_NL_NLDEV."""
GET, PORT_GET, SYS_GET, RES_GET, RES_QP_GET = 1, 5, 6, 9, 10
RES_CM_ID_GET, RES_CQ_GET, RES_MR_GET, RES_PD_GET, STAT_GET = 11, 12, 13, 14, 17
"""RDMA_NLDEV_CMD_*."""


def _numbered(text: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(text.split())}


_NUMBERS = _numbered("""
    UNSPEC DEV_INDEX DEV_NAME PORT_INDEX CAP_FLAGS FW_VERSION NODE_GUID SYS_IMAGE_GUID SUBNET_PREFIX LID SM_LID
    LMC PORT_STATE PORT_PHYS_STATE DEV_NODE_TYPE RES_SUMMARY RES_SUMMARY_ENTRY RES_SUMMARY_ENTRY_NAME
    RES_SUMMARY_ENTRY_CURR RES_QP RES_QP_ENTRY RES_LQPN RES_RQPN RES_RQ_PSN RES_SQ_PSN RES_PATH_MIG_STATE RES_TYPE
    RES_STATE RES_PID RES_KERN_NAME RES_CM_ID RES_CM_ID_ENTRY RES_PS RES_SRC_ADDR RES_DST_ADDR RES_CQ RES_CQ_ENTRY
    RES_CQE RES_USECNT RES_POLL_CTX RES_MR RES_MR_ENTRY RES_RKEY RES_LKEY RES_IOVA RES_MRLEN RES_PD RES_PD_ENTRY
    RES_LOCAL_DMA_LKEY RES_UNSAFE_GLOBAL_RKEY NDEV_INDEX NDEV_NAME DRIVER DRIVER_ENTRY DRIVER_STRING
    DRIVER_PRINT_TYPE DRIVER_S32 DRIVER_U32 DRIVER_S64 DRIVER_U64 RES_PDN RES_CQN RES_MRN RES_CM_IDN RES_CTXN
    LINK_TYPE SYS_NETNS_MODE DEV_PROTOCOL NET_NS_FD CHARDEV_TYPE CHARDEV_NAME CHARDEV_ABI CHARDEV UVERBS_DRIVER_ID
    STAT_MODE STAT_RES STAT_AUTO_MODE_MASK STAT_COUNTER STAT_COUNTER_ENTRY STAT_COUNTER_ID STAT_HWCOUNTERS
    STAT_HWCOUNTER_ENTRY STAT_HWCOUNTER_ENTRY_NAME STAT_HWCOUNTER_ENTRY_VALUE DEV_DIM
""")
"""RDMA_NLDEV_ATTR_*."""

NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_MULTI, NLM_F_ACK, NLM_F_DUMP = 0x2, 0x4, 0x300
HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence number, port."""
_ATTRIBUTE = struct.Struct("=HH")
_NESTED = 0x8000
_MOST_BYTES = 2_048
"""Most bytes of one message: the tool's buffer is a page."""
MAX_REQUEST = 8_192
MAX_SOCKETS = 64

_QP_TYPES = {"RC": 2, "UC": 3, "UD": 4}
"""IB_QPT_*."""
_STATES = {"RESET": 0, "INIT": 1, "RTR": 2, "RTS": 3, "SQD": 4, "SQE": 5, "ERR": 6}
"""IB_QPS_*."""
assert set(_STATES) == set(STATE_NAMES.values())
_PHYSICAL = {1: 3, 2: 5, 3: 5, 4: 5}
"""IB_PORT_PHYS_STATE_* of port states."""
_IB_CA = 1
_NETNS_SHARED = 1


def attribute(name: str, value: int | str | bytes, size: int = 4) -> bytes:
    """Return one attribute: a number of ``size`` bytes, a text, or nested attributes."""
    kind = _NUMBERS[name]
    if isinstance(value, int):
        body = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    elif isinstance(value, str):
        body = value.encode() + b"\0"
    else:
        body, kind = value, kind | _NESTED
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(body), kind) + body + bytes(-len(body) % 4)


def attributes(data: bytes) -> dict[str, bytes]:
    """Return the attributes of a request by name, without those that are truncated or unknown."""
    names = {number: name for name, number in _NUMBERS.items()}
    found, at = {}, 0
    while len(data) - at >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if not _ATTRIBUTE.size <= length <= len(data) - at:
            break
        name = names.get(kind & ~_NESTED)
        if name is not None:
            found[name] = data[at + _ATTRIBUTE.size : at + length]
        at += length + -length % 4
    return found


class Refusal(Exception):  # noqa: N818 - it never leaves this module
    """A request fails with an errno."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Answers:
    """Answers requests about some devices as the kernel would.

    Args:
        devices: all of the NIC process.
        names: devices that the program sees; empty for all.
    """

    def __init__(self, devices: Mapping[str, ServedDevice], names: Iterable[str]) -> None:
        self._devices = devices
        self._names = frozenset(names)

    def of(self, request: bytes) -> list[bytes]:
        """Return the datagrams that answer a request, each with at most a few messages."""
        if len(request) < HEADER.size:
            return []
        length, kind, flags, seq, _ = HEADER.unpack_from(request)
        body = request[HEADER.size : length]
        try:
            if kind >> 10 != CLIENT:
                raise Refusal(errno.EOPNOTSUPP)
            parts = self._parts(kind & 0x3FF, attributes(body), flags & NLM_F_DUMP == NLM_F_DUMP)
        except Refusal as refusal:
            return [self._error(request, refusal.code)]
        except OSError as error:  # a program was stopped while it held its arena
            return [self._error(request, error.errno or errno.EIO)]
        if flags & NLM_F_DUMP == NLM_F_DUMP:
            sent = [_message(kind, NLM_F_MULTI, seq, part) for part in parts]
            return [*sent, _message(NLMSG_DONE, NLM_F_MULTI, seq, bytes(4))]
        sent = [_message(kind, 0, seq, part) for part in parts[:1]]
        return [*sent, self._error(request, 0)] if flags & NLM_F_ACK else sent

    @staticmethod
    def _error(request: bytes, code: int) -> bytes:
        _, _, _, seq, _ = HEADER.unpack_from(request)
        return _message(NLMSG_ERROR, 0, seq, struct.pack("=i", -code) + request[: HEADER.size])

    def _seen(self) -> list[ServedDevice]:
        found = [device for name, device in self._devices.items() if not self._names or name in self._names]
        return sorted(
            (device for device in found if not device.runtime.nic.globals.dead),
            key=lambda device: device.runtime.nic.config.index,
        )

    def _chosen(self, told: Mapping[str, bytes], dump: bool) -> list[ServedDevice]:
        """Return the devices that a request is about."""
        seen = self._seen()
        if "DEV_INDEX" in told:
            index = int.from_bytes(told["DEV_INDEX"][:4], "little")
            seen = [device for device in seen if device.runtime.nic.config.index == index]
        elif not dump:
            raise Refusal(errno.EINVAL)
        if not seen and not dump:
            raise Refusal(errno.EINVAL)
        return seen

    def _parts(self, command: int, told: Mapping[str, bytes], dump: bool) -> list[bytes]:
        """Return the attributes of each message of an answer."""
        if command == SYS_GET:
            return [attribute("SYS_NETNS_MODE", _NETNS_SHARED, 1)]
        one = _OF_DEVICES.get(command)
        if one is not None:
            return [_which(device) + one(device) for device in self._chosen(told, dump)]
        table = _TABLES.get(command)
        if table is None:
            raise Refusal(errno.EOPNOTSUPP)
        name, rows = table
        parts = []
        for device in self._chosen(told, dump):
            parts += [_which(device) + attribute(name, group) for group in _grouped(rows(device), f"{name}_ENTRY")]
        return parts


def _message(kind: int, flags: int, seq: int, body: bytes) -> bytes:
    return HEADER.pack(HEADER.size + len(body), kind, flags, seq, 0) + body + bytes(-len(body) % 4)


def _grouped(rows: Iterable[bytes], name: str) -> list[bytes]:
    """Return the entries of a table in groups that fit one message."""
    groups, group = [], b""
    for row in rows:
        entry = attribute(name, row)
        if group and len(group) + len(entry) > _MOST_BYTES:
            groups.append(group)
            group = b""
        group += entry
    return [*groups, group] if group else groups


def _which(device: ServedDevice) -> bytes:
    config = device.runtime.nic.config
    return attribute("DEV_INDEX", config.index) + attribute("DEV_NAME", config.name)


def _device(device: ServedDevice) -> bytes:
    config = device.runtime.nic.config
    version = f"{FIRMWARE_VERSION >> 32}.{FIRMWARE_VERSION >> 16 & 0xFFFF}.{FIRMWARE_VERSION & 0xFFFF}"
    return b"".join(
        (
            attribute("PORT_INDEX", 1),
            attribute("CAP_FLAGS", 0, 8),
            attribute("FW_VERSION", version),
            attribute("NODE_GUID", config.guid, 8),
            attribute("SYS_IMAGE_GUID", config.guid, 8),
            attribute("DEV_NODE_TYPE", _IB_CA, 1),
            attribute("DEV_PROTOCOL", "roce"),
        )
    )


def _port(device: ServedDevice) -> bytes:
    nic = device.runtime.nic
    state = nic.globals.port_state
    found = attribute("PORT_INDEX", 1) + attribute("PORT_STATE", state, 1)
    found += attribute("PORT_PHYS_STATE", _PHYSICAL.get(state, 3), 1)
    interface = interface_of(nic.config.address)
    if interface is not None:
        try:
            found += attribute("NDEV_INDEX", socket.if_nametoindex(interface)) + attribute("NDEV_NAME", interface)
        except OSError:
            return found  # it is gone
    return found


def _nics(device: ServedDevice) -> list[Any]:
    return [device.runtime.nic, *(slot.runtime.nic for slot in device.bypass.slots.values())]


def _top(device: ServedDevice) -> dict[str, Any]:
    return device.bypass.inspect("top") or {}


def _summary(device: ServedDevice) -> bytes:
    objects = _top(device)["objects"]
    seen = device.bypass.inspect("cm") or {"connections": []}
    counts = {
        "qp": objects["qps"],
        "cm_id": len(seen["connections"]),
        "cq": objects["cqs"],
        "pd": len(list(_pds(device))),
        "mr": len(list(_mrs(device))),
        "ctx": objects["contexts"],
        "srq": objects["srqs"],
    }
    rows = [
        attribute("RES_SUMMARY_ENTRY_NAME", name) + attribute("RES_SUMMARY_ENTRY_CURR", count, 8)
        for name, count in counts.items()
    ]
    return attribute("RES_SUMMARY", b"".join(attribute("RES_SUMMARY_ENTRY", row) for row in rows))


def _owner(program: object) -> bytes:
    return attribute("RES_PID", program) if isinstance(program, int) and program else b""


def _qps(device: ServedDevice) -> Iterable[bytes]:
    for row in _top(device)["qps"]:
        connected = row["service"] in ("RC", "UC")
        found = attribute("PORT_INDEX", 1) + attribute("RES_LQPN", row["qpn"])
        if connected and row["remote_qpn"]:
            found += attribute("RES_RQPN", row["remote_qpn"]) + attribute("RES_RQ_PSN", row["expected_psn"])
        found += attribute("RES_SQ_PSN", row["next_send_psn"]) + attribute("RES_PATH_MIG_STATE", 0, 1)
        found += attribute("RES_TYPE", _QP_TYPES.get(row["service"], 2), 1)
        yield found + attribute("RES_STATE", _STATES.get(row["state"], 0), 1) + _owner(row["program"])


def _cqs(device: ServedDevice) -> Iterable[bytes]:
    for row in _top(device)["cqs"]:
        found = attribute("RES_CQE", row["entries"]) + attribute("RES_USECNT", row["users"], 8)
        yield found + attribute("RES_CQN", row["cqn"]) + _owner(row["program"])


def _mrs(device: ServedDevice) -> Iterable[bytes]:
    for nic in _nics(device):
        for record in list(nic.resources.keys.values()):
            entry = record.entry
            if entry is not None and entry.kind == REGION:
                found = attribute("RES_RKEY", entry.key) + attribute("RES_LKEY", entry.key)
                found += attribute("RES_MRLEN", entry.length, 8) + attribute("RES_MRN", entry.index)
                yield found + _owner(record.owner.program)


def _pds(device: ServedDevice) -> Iterable[bytes]:
    for nic in _nics(device):
        for number, uar in list(nic.resources.pools[cmd.RES_PD].owners.items()):
            users = nic.resources.pd_users.get(number, 0)
            yield attribute("RES_USECNT", users, 8) + attribute("RES_PDN", number) + _owner(uar.program)


def _counters(device: ServedDevice) -> bytes:
    counted = device.bypass.inspect("counters") or {}
    rows = [
        attribute("STAT_HWCOUNTER_ENTRY_NAME", name) + attribute("STAT_HWCOUNTER_ENTRY_VALUE", count, 8)
        for name, count in sorted(counted.items())
    ]
    groups = _grouped(rows, "STAT_HWCOUNTER_ENTRY")
    return attribute("PORT_INDEX", 1) + attribute("STAT_HWCOUNTERS", groups[0] if groups else b"")


def _none(device: ServedDevice) -> Iterable[bytes]:
    return ()


_OF_DEVICES: dict[int, Callable[[ServedDevice], bytes]] = {
    GET: _device,
    PORT_GET: _port,
    RES_GET: _summary,
    STAT_GET: _counters,
}
"""Requests answered by one message per device."""
_TABLES: dict[int, tuple[str, Callable[[ServedDevice], Iterable[bytes]]]] = {
    RES_QP_GET: ("RES_QP", _qps),
    RES_CQ_GET: ("RES_CQ", _cqs),
    RES_MR_GET: ("RES_MR", _mrs),
    RES_PD_GET: ("RES_PD", _pds),
    RES_CM_ID_GET: ("RES_CM_ID", _none),
}
"""Requests answered by tables."""


@dataclass(eq=False)
class _Socket:
    """The other end of one program's socket, and the datagrams that do not fit into it yet."""

    sock: socket.socket
    answers: Answers
    unsent: deque[bytes] = field(default_factory=deque)


class NetlinkSockets:
    """The other ends of programs' NETLINK_RDMA sockets.

    Args:
        devices: of the NIC process.
        selector: polls them.
        guard: gets internal errors.
    """

    def __init__(self, devices: Mapping[str, ServedDevice], selector: selectors.BaseSelector, guard: Guard) -> None:
        self._devices = devices
        self._selector = selector
        self._guard = guard
        self._open: dict[int, _Socket] = {}

    def add(self, fd: int, names: Iterable[str]) -> None:
        """Serve a program's socket, which shows it these devices.

        Raises:
            OSError: EINVAL if it is not a socket of a pair, EMFILE if there are too many.
        """
        if len(self._open) >= MAX_SOCKETS:
            raise OSError(errno.EMFILE, f"{MAX_SOCKETS} NETLINK_RDMA sockets are open already: close some")
        copied = Descriptor()
        copied.number = os.dup(fd)
        sock = socket.socket(fileno=copied.number)
        copied.detach()
        if (sock.family, sock.type & 0xF) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            sock.close()
            raise OSError(errno.EINVAL, "NETLINK takes one end of a pair of SOCK_SEQPACKET sockets")
        sock.setblocking(False)
        self._open[sock.fileno()] = _Socket(sock, Answers(self._devices, names))
        self._selector.register(sock, selectors.EVENT_READ, partial(self._read, self._open[sock.fileno()]))

    def _read(self, end: _Socket) -> None:
        try:
            # the program has the same file, and may have it block
            request = end.sock.recv(MAX_REQUEST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            request = b""
        if not request:
            self._close(end)
            return
        try:
            end.unsent.extend(end.answers.of(request))
        except Exception as error:  # noqa: BLE001 - the last guard
            self._guard.caught("message", error, "netlink")
            self._close(end)
            return
        self._send(end)

    def _send(self, end: _Socket) -> None:
        """Send what fits into the socket; the rest, and the program's next request, wait until the program has read."""
        try:
            while end.unsent:
                end.sock.send(end.unsent[0], socket.MSG_DONTWAIT)
                end.unsent.popleft()
        except BlockingIOError:
            self._selector.modify(end.sock, selectors.EVENT_WRITE, partial(self._send, end))
        except OSError:  # the program is gone
            self._close(end)
        else:
            self._selector.modify(end.sock, selectors.EVENT_READ, partial(self._read, end))

    def _close(self, end: _Socket) -> None:
        if self._open.pop(end.sock.fileno(), None) is not None:
            self._selector.unregister(end.sock)
            end.sock.close()

    def close(self) -> None:
        """Close all of them."""
        for end in list(self._open.values()):
            self._close(end)


__all__ = ["Answers", "NetlinkSockets", "attribute", "attributes"]
