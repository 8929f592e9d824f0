"""QP1, the general services interface (IBA 13.5; annex A17): sends and receives management datagrams of 256 bytes. A
higher layer sets the connection manager as :attr:`Gsi.agent`, and programs' agents of all other classes as
:attr:`Gsi.programs`. Performance management (IBA 16.1: ClassPortInfo, PortCounters) is handled here, with or without
an agent. The queue pair is simple: one datagram per packet, no program memory, no posting. Sent datagrams wait in a
bounded queue of the device; received ones are checked and passed to the agent at once. Invalid ones are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from rnic.device.mad_agent import answer
from rnic.spec.drops import DropReason
from rnic.spec.gids import address_from_gid, gid_from_address
from rnic.spec.limits import MTU_CODES
from rnic.spec.opcodes import UD
from rnic.wire.bursts import TxBurst
from rnic.wire.flow import Flow
from rnic.wire.mad import CLASS_CM, CLASS_PERF, GSI_QKEY, GSI_QPN, MAD_BYTES
from rnic.wire.packet import Packet, build, seal

if TYPE_CHECKING:
    from rnic.device.host import GsiHost

UD_SEND_ONLY = 0x64
MAX_WAITING = 1_024
"""Most datagrams that may wait to be sent."""
_MAX_FLOWS = 1_024
_PSN_MASK = 0xFFFFFF
_CLASS_AT = 1
"""Offset of the management class in a datagram."""
_MEMBERSHIP = 0x8000


class MadAgent(Protocol):
    """Handles management datagrams. Times are the device's; GIDs have 16 bytes."""

    def receive(self, datagram: bytes | memoryview, source: bytes, now_ns: int, /) -> None:
        """Handle a datagram from the GID ``source``."""

    def next_deadline_ns(self) -> int | None:
        """Return the time of the next call of :meth:`handle_timers`; ``None`` for never."""

    def handle_timers(self, now_ns: int, /) -> None:
        """Handle expired timers."""

    def view(self) -> dict[str, Any]:
        """Return the services and connections that it manages, for :mod:`rnic.device.inspect`."""


class Gsi:
    """QP1 of a NIC; for its agent, the port to send datagrams on (:class:`rnic.cm.records.Port`).

    Counters: ``mads_received``, ``mads_sent``, ``drop_mad_unattended`` without an agent, ``drop_bad_mad`` for sizes
    other than 256 bytes, ``drop_mad_full`` for datagrams that do not fit the queue.
    """

    __slots__ = ("_flows", "_nic", "_psn", "agent", "programs", "waiting")

    def __init__(self, nic: GsiHost) -> None:
        self._nic = nic
        self.agent: MadAgent | None = None
        self.programs: MadAgent | None = None
        self.waiting: list[TxBurst] = []
        self._flows: dict[tuple[bytes, int], Flow] = {}
        self._psn = 0

    @property
    def guid(self) -> int:
        """Node GUID."""
        return self._nic.config.guid

    @property
    def gid(self) -> bytes:
        """The port's GID."""
        return self._nic.config.gid

    @property
    def mtu_code(self) -> int:
        """Active path MTU."""
        return MTU_CODES[self._nic.config.mtu]

    @property
    def pkey(self) -> int:
        """P_Key of sent datagrams."""
        return self._nic.config.pkeys[0]

    def receive(self, packet: Packet, now_ns: int) -> None:
        """Process a packet to QP1 whose ICRC is right."""
        counters = self._nic.counters
        if packet.row.service != UD or packet.opcode != UD_SEND_ONLY:
            counters.bump(DropReason.WRONG_SERVICE.value)
        elif (packet.pkey ^ self.pkey) & ~_MEMBERSHIP:
            counters.bump(DropReason.BAD_PKEY.value)
        elif packet.qkey != GSI_QKEY:
            counters.bump(DropReason.BAD_QKEY.value)
        elif len(packet.payload) != MAD_BYTES or packet.sqpn != GSI_QPN:
            counters.bump("drop_bad_mad")
        elif packet.payload[_CLASS_AT] == CLASS_PERF:
            counters.bump("mads_received")
            response = answer(self._nic, bytes(packet.payload))
            if response is not None:
                self.send(response, gid_from_address(packet.flow.src), packet.tclass)
            elif self.programs is not None:
                self.programs.receive(packet.payload, gid_from_address(packet.flow.src), now_ns)
        else:
            other = self.programs is not None and packet.payload[_CLASS_AT] != CLASS_CM
            agent = self.programs if other else self.agent
            if agent is None:
                counters.bump("drop_mad_unattended")
                return
            counters.bump("mads_received")
            agent.receive(packet.payload, gid_from_address(packet.flow.src), now_ns)

    def send(self, datagram: bytes, gid: bytes, traffic_class: int) -> None:
        """Send 256 bytes to the QP1 of a GID; count and drop them if that is not possible."""
        config = self._nic.config
        address = address_from_gid(gid)
        if len(address) != len(config.address) or not any(address):
            self._nic.counters.bump("drop_tx_bad_address")
            return
        if len(self.waiting) >= MAX_WAITING:
            self._nic.counters.bump("drop_mad_full")
            return
        flow = self._flows.get((address, traffic_class))
        if flow is None:
            if len(self._flows) >= _MAX_FLOWS:
                self._flows.clear()
            flow = Flow(config.address, address, config.source_ports[0], config.port, traffic_class)
            self._flows[address, traffic_class] = flow
        frame = build(
            UD_SEND_ONLY,
            dqpn=GSI_QPN,
            psn=self._psn,
            pkey=self.pkey,
            qkey=GSI_QKEY,
            sqpn=GSI_QPN,
            payload=datagram,
        )
        self._psn = self._psn + 1 & _PSN_MASK
        sealed = seal(frame, flow)
        self._nic.counters.bump("mads_sent")
        self.waiting.append(TxBurst(flow, [sealed], len(sealed), 1, len(sealed)))

    def take(self) -> list[TxBurst]:
        """Return and clear the datagrams that wait to be sent."""
        waiting = self.waiting[:]
        self.waiting.clear()
        return waiting

    def next_deadline_ns(self) -> int | None:
        """Return the agents' next deadline."""
        deadlines = [agent.next_deadline_ns() for agent in (self.agent, self.programs) if agent is not None]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def handle_timers(self, now_ns: int) -> None:
        """Let the agents handle their timers."""
        for agent in (self.agent, self.programs):
            if agent is not None:
                agent.handle_timers(now_ns)
