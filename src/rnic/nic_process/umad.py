"""The files ``/dev/infiniband/umadN``: management datagrams of programs, as the kernel's ``ib_umad`` has them.

A program's file is one end of a pair of sockets (``abi/paths/interpose_umad.c``), whose other end is served here.
Layouts are those of ``rdma/ib_user_mad.h``, always with a P_Key index. A RoCE port has QP1 alone: no subnet management.

libibumad's tools find a port by a path record of the subnet's administration and send to its LID. RoCE has neither, so
path records are answered here, at the LID that the device paths name, and a LID is the place of a GID in a table of
this process. LID 0 is the port itself.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rnic.device.mad_agent import METHOD_GET, METHOD_GET_RESP, STATUS_BAD_ATTRIBUTE
from rnic.device.nic import Nic
from rnic.nic_process.client import Client
from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.devices import ServedDevice
from rnic.nic_process.sysfs_tree import SM_LID
from rnic.spec import attach
from rnic.spec.gids import gid_from_address
from rnic.trace.guard import Guard
from rnic.wire.mad import CLASS_CM, GSI_QKEY, GSI_QPN, MAD_BYTES, Mad

_WORDS = struct.Struct("=5I")
"""ib_user_mad_hdr: agent, status, timeout in ms, retries, length."""
_ADDRESS = struct.Struct(">IIHBBBBBB16sI")
"""QPN, Q_Key, LID, SL, path bits; GRH: present, GID index, hop limit, traffic class, GID, flow label."""
HEADER_BYTES = 64
"""A P_Key index and six spare bytes come last."""
_HOP_LIMIT = 64
_MAD_HEADER = 24
_REGISTER = struct.Struct("=I16sBBB3sBx")
_REGISTER2 = struct.Struct("=IIBBHI16sIB3x")

CLASS_SA = 0x03
_PATH_RECORD, _SA_DATA = 0x35, 56
_DGID, _SGID, _DLID = _SA_DATA + 8, _SA_DATA + 24, _SA_DATA + 40
_PATH = struct.Struct(">HIBBHHBBBB")
"""From the DLID on: SLID, flow, traffic class, paths, P_Key, SL, MTU, rate, life time, preference."""
_METHOD_RESPONSE, _METHOD_REPRESS = 0x80, 0x07
_VENDOR_OUI = range(0x30, 0x50)
"""Vendor classes whose datagrams name an OUI."""
_OUI_AT = 37
MAX_FILES, MAX_AGENTS, MAX_PENDING = 64, 32, 1_024


@dataclass(eq=False)
class Agent:
    """A program's agent for a class. ``methods`` are those whose requests it gets, as bits."""

    file: UmadFile
    number: int
    mgmt_class: int
    version: int
    oui: bytes
    methods: int
    serial: int = 0
    """Upper half of the transaction IDs of its requests, by which responses find it."""


@dataclass(eq=False)
class UmadFile:
    """The other end of one program's file."""

    sock: socket.socket
    port: UmadPort
    agents: dict[int, Agent] = field(default_factory=dict)

    def give(
        self, agent: Agent, mad: bytes, source: bytes = bytes(16), lid: int = 0, status: int = 0, tclass: int = 0
    ) -> None:
        """Give the program a datagram, or drop it if the program does not read."""
        words = _WORDS.pack(agent.number, status, 0, 0, HEADER_BYTES + len(mad))
        grh = int(any(source))
        address = _ADDRESS.pack(GSI_QPN, GSI_QKEY, lid, 0, 0, grh, 0, _HOP_LIMIT, tclass, source, 0)
        try:
            self.sock.send(words + address + bytes(8) + mad, socket.MSG_DONTWAIT)
        except OSError:
            self.port.nic.counters.bump("drop_mad_unread")


@dataclass
class _Pending:
    """A request that waits for its response."""

    agent: Agent
    mad: bytes
    gid: bytes
    timeout_ns: int
    due_ns: int
    retries: int


class UmadPort:
    """Programs' agents of one port: takes and sends their datagrams on QP1 (:attr:`rnic.device.gsi.Gsi.programs`)."""

    def __init__(self, nic: Nic, port_guids: Callable[[], Mapping[bytes, bytes]]) -> None:
        self.nic = nic
        self.agents: list[Agent] = []
        self._port_guids = port_guids
        self._pending: dict[int, _Pending] = {}
        """By transaction ID."""
        self._lids: dict[bytes, int] = {}
        self._gids: dict[int, bytes] = {}
        self._serial = 0

    def register(self, agent: Agent) -> None:
        """Add an agent; raise OSError (EINVAL) if another has one of its methods."""
        for other in self.agents:
            same = (other.mgmt_class, other.version, other.oui) == (agent.mgmt_class, agent.version, agent.oui)
            if same and other.methods & agent.methods:
                raise OSError(errno.EINVAL, f"class {agent.mgmt_class:#04x} has an agent for these methods already")
        self._serial = agent.serial = (self._serial + 1) & 0xFFFF_FFFF
        self.agents.append(agent)

    def unregister(self, agent: Agent) -> None:
        """Remove an agent and its requests."""
        self.agents.remove(agent)
        for tid in [tid for tid, pending in self._pending.items() if pending.agent is agent]:
            del self._pending[tid]

    def lid_of(self, gid: bytes) -> int:
        """Return the LID that stands for a GID; 0, which is the port's own, once there are too many."""
        if gid == self.nic.config.gid:
            return 0
        lid = self._lids.get(gid, 0)
        if not lid and len(self._lids) + 1 < SM_LID:
            lid = self._lids[gid] = len(self._lids) + 1
            self._gids[lid] = gid
        return lid

    # -------------------------------------------------------------------------------- from programs

    def send(self, file: UmadFile, message: bytes) -> None:
        """Send a program's datagram; what cannot be sent comes back to it with an errno."""
        if len(message) < HEADER_BYTES + _MAD_HEADER:
            return
        number, _, timeout_ms, retries, _ = _WORDS.unpack_from(message)
        _, _, lid, _, _, grh, _, _, tclass, gid, _ = _ADDRESS.unpack_from(message, _WORDS.size)
        agent, mad = file.agents.get(number), message[HEADER_BYTES:].ljust(MAD_BYTES, b"\0")
        if agent is None:
            return
        header = Mad.parse(mad)
        to = gid if grh else self._gids.get(lid) if lid not in (0, SM_LID) else self.nic.config.gid
        if to is None or len(mad) > MAD_BYTES or header.mgmt_class != agent.mgmt_class:
            file.give(agent, mad[:_MAD_HEADER], status=errno.EHOSTUNREACH if to is None else errno.EINVAL)
            return
        if header.method & _METHOD_RESPONSE or header.method == _METHOD_REPRESS:
            self.nic.gsi.send(mad, to, tclass)
            return
        if header.mgmt_class == CLASS_SA and lid in (0, SM_LID) and not grh:
            file.give(agent, self._administer(header, mad))
            return
        header.tid = agent.serial << 32 | header.tid & 0xFFFF_FFFF
        mad = header.pack() + mad[_MAD_HEADER:]
        if timeout_ms and len(self._pending) < MAX_PENDING:
            wait = timeout_ms * 1_000_000
            self._pending[header.tid] = _Pending(agent, mad, to, wait, self.nic.now_ns + wait, retries)
        self.nic.gsi.send(mad, to, tclass)

    def _administer(self, header: Mad, mad: bytes) -> bytes:
        """Answer a request to the subnet's administration: a path record for any GID."""
        out = bytearray(mad)
        header.status = STATUS_BAD_ATTRIBUTE
        if header.method == METHOD_GET and header.attr_id == _PATH_RECORD:
            header.status = 0
            to = self._resolve(mad[_DGID:_SGID])
            config = self.nic.config
            out[_DLID : _DLID + 2] = self.lid_of(to).to_bytes(2, "big")
            rest = (0, 0, 0, 0x81, config.pkeys[0], 0, 0x80 | self.nic.gsi.mtu_code, 0x80 | 3, 0x80 | 18, 0)
            out[_DLID + 2 : _DLID + 2 + _PATH.size] = _PATH.pack(*rest)
        header.method = METHOD_GET_RESP
        out[:_MAD_HEADER] = header.pack()
        return bytes(out)

    def _resolve(self, gid: bytes) -> bytes:
        """Return the GID of a port. Tools make one of a port's GUID and the prefix of their own or fe80::/64."""
        known = self._port_guids().get(gid[8:])
        if known is not None:
            return known
        if len(self.nic.config.address) == 4 and gid[8:12] == b"\0\0\xff\xff":
            return gid_from_address(gid[12:])
        return gid

    # --------------------------------------------------------------------------------- from the wire

    def receive(self, datagram: bytes | memoryview, source: bytes, now_ns: int) -> None:
        """Give a datagram to its agent: a response to the one that asked, a request to its class's."""
        mad = bytes(datagram)
        header = Mad.parse(mad)
        if header.method & _METHOD_RESPONSE or header.method == _METHOD_REPRESS:
            pending = self._pending.get(header.tid)
            if pending is None or pending.agent.mgmt_class != header.mgmt_class or pending.gid != source:
                self.nic.counters.bump("drop_mad_unattended")
                return
            del self._pending[header.tid]
            found: Agent | None = pending.agent
        else:
            found = next((agent for agent in self.agents if _takes(agent, header, mad)), None)
        if found is None:
            self.nic.counters.bump("drop_mad_unattended")
        else:
            found.file.give(found, mad, source, self.lid_of(source))

    def next_deadline_ns(self) -> int | None:
        """Return when the first request is repeated or given up."""
        return min((pending.due_ns for pending in self._pending.values()), default=None)

    def handle_timers(self, now_ns: int) -> None:
        """Repeat requests without a response, or give them back."""
        for tid, pending in [each for each in self._pending.items() if each[1].due_ns <= now_ns]:
            if pending.retries:
                pending.retries -= 1
                pending.due_ns = now_ns + pending.timeout_ns
                self.nic.gsi.send(pending.mad, pending.gid, 0)
            else:
                del self._pending[tid]
                pending.agent.file.give(pending.agent, pending.mad[:_MAD_HEADER], status=errno.ETIMEDOUT)

    def view(self) -> dict[str, Any]:
        """Return the agents."""
        return {"agents": [{"class": agent.mgmt_class, "file": agent.file.sock.fileno()} for agent in self.agents]}


def _takes(agent: Agent, header: Mad, mad: bytes) -> bool:
    own = (agent.mgmt_class, agent.version) == (header.mgmt_class, header.class_version)
    vendor = header.mgmt_class not in _VENDOR_OUI or mad[_OUI_AT : _OUI_AT + 3] == agent.oui
    return own and vendor and bool(agent.methods >> header.method & 1)


class UmadFiles:
    """The other ends of programs' files.

    Args:
        devices: of the NIC process.
        selector: polls the files.
        guard: gets our own errors.
    """

    def __init__(self, devices: Mapping[str, ServedDevice], selector: selectors.BaseSelector, guard: Guard) -> None:
        self._devices = devices
        self._selector = selector
        self._guard = guard
        self._open: dict[int, UmadFile] = {}

    def handle(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Do what MSG_UMAD asks for.

        Raises:
            OSError: refused, with the kernel's errno.
        """
        what, number = struct.unpack_from("=II", body)
        if what == attach.UMAD_OPEN:
            return struct.pack("=I", self._add(number, fds))
        file = self._open.get(number)
        if file is None:
            raise OSError(errno.EINVAL, f"umad file {number} is not open")
        argument = body[8:]
        if what == attach.UMAD_UNREGISTER:
            agent = file.agents.pop(int.from_bytes(argument[:4], "little"), None)
            if agent is None:
                raise OSError(errno.EINVAL, "this agent is not registered")
            file.port.unregister(agent)
            return b""
        return struct.pack("=I", self._register(file, what, argument))

    def _add(self, number: int, fds: list[int]) -> int:
        nic = next(
            (each.runtime.nic for each in self._devices.values() if each.runtime.nic.config.index == number), None
        )
        if nic is None or nic.globals.dead or len(fds) != 1:
            raise OSError(errno.ENXIO, f"there is no device of number {number}")
        if len(self._open) >= MAX_FILES:
            raise OSError(errno.EMFILE, f"{MAX_FILES} umad files are open already: close some")
        copied = Descriptor()
        copied.number = os.dup(fds[0])
        sock = socket.socket(fileno=copied.number)
        copied.detach()
        if (sock.family, sock.type & 0xF) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            sock.close()
            raise OSError(errno.EINVAL, "UMAD takes one end of a pair of SOCK_SEQPACKET sockets")
        port = nic.gsi.programs
        if not isinstance(port, UmadPort):
            port = nic.gsi.programs = UmadPort(nic, self._port_guids)
        file = self._open[sock.fileno()] = UmadFile(sock, port)
        self._selector.register(sock, selectors.EVENT_READ, partial(self._read, file))
        return sock.fileno()

    def _port_guids(self) -> dict[bytes, bytes]:
        """Return the GID of each port here by its GUID, as libibumad takes it: the lower half of the first GID."""
        configs = [device.runtime.nic.config for device in self._devices.values()]
        return {config.gid_table[0][8:]: config.gid for config in configs}

    @staticmethod
    def _register(file: UmadFile, what: int, argument: bytes) -> int:
        layout = _REGISTER if what == attach.UMAD_REGISTER else _REGISTER2
        if what not in (attach.UMAD_REGISTER, attach.UMAD_REGISTER2) or len(argument) < layout.size:
            raise OSError(errno.EINVAL, "this registration is not known")
        fields = layout.unpack_from(argument)
        if what == attach.UMAD_REGISTER:
            _, methods, qpn, mgmt_class, version, oui, _ = fields
        else:
            _, qpn, mgmt_class, version, _, flags, methods, number, _ = fields
            oui = number.to_bytes(4, "big")[1:]
            if flags & ~1:
                raise OSError(errno.EINVAL, f"flags {flags:#x} are unknown")
        taken = int.from_bytes(methods, "little")
        if qpn not in (0, 1) or (mgmt_class == CLASS_CM and taken):
            raise OSError(errno.EINVAL, f"class {mgmt_class:#04x} on QP{qpn} is not for programs")
        number = next((free for free in range(MAX_AGENTS) if free not in file.agents), None)
        if number is None:
            raise OSError(errno.ENOMEM, f"{MAX_AGENTS} agents are registered already: unregister some")
        agent = Agent(file, number, mgmt_class, version, oui, taken)
        file.port.register(agent)
        file.agents[number] = agent
        return int(number)

    def _read(self, file: UmadFile) -> None:
        try:
            # the program has the same file, and may have it block
            message = file.sock.recv(HEADER_BYTES + MAD_BYTES + 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._close(file)
            return
        try:
            file.port.send(file, message)
        except Exception as error:  # noqa: BLE001 - the last guard
            self._guard.caught("message", error, "umad")
            self._close(file)

    def _close(self, file: UmadFile) -> None:
        if self._open.pop(file.sock.fileno(), None) is not None:
            for agent in file.agents.values():
                file.port.unregister(agent)
            self._selector.unregister(file.sock)
            file.sock.close()

    def close(self) -> None:
        """Close all of them."""
        for file in list(self._open.values()):
            self._close(file)


__all__ = ["UmadFiles", "UmadPort"]
