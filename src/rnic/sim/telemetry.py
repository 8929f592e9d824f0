"""Telemetry of packets, for congestion controls that ask for it: times, marks and queues on a request's path, echoed by
responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rnic.cc.control import Hop
from rnic.cc.controlled import Arrival
from rnic.spec.opcodes import ATOMIC_ACKNOWLEDGE, OPERATION_MASK, READ_RESPONSE_FIRST

if TYPE_CHECKING:
    from rnic.device.nic import Nic
    from rnic.sim.port import Packet, Port
    from rnic.wire.bursts import TxBurst

MOST_HOPS: Final = 8
"""Hops that a packet records."""


class Telemetry:
    """Telemetry of a packet: a request carries its own, a response that of the last request received by its sender."""

    __slots__ = ("arrived_ns", "ecn", "hops", "left_ns", "response", "sent_ns")

    def __init__(self) -> None:
        self.response = self.ecn = False
        self.sent_ns = self.arrived_ns = self.left_ns = 0
        """Times at which the request left its NIC, the request arrived, and the response left its NIC."""
        self.hops: tuple[Hop, ...] = ()

    def echo(self) -> Telemetry:
        """Return the telemetry of a response."""
        made = Telemetry()
        made.response, made.ecn = True, self.ecn
        made.sent_ns, made.arrived_ns, made.hops = self.sent_ns, self.arrived_ns, self.hops
        return made

    def left(self, port: Port, now_ns: int) -> None:
        """Note that the packet has left a port."""
        if not port.in_switch:
            if self.response:
                self.left_ns = now_ns
            else:
                self.sent_ns = now_ns
        elif not self.response and len(self.hops) < MOST_HOPS:
            self.hops += (Hop(now_ns, port.queued_bytes, port.sent_bytes, port.bits_s),)

    def arrival(self, now_ns: int) -> Arrival:
        """Return what a response reports on arrival."""
        remote_ns = self.left_ns - self.arrived_ns
        return Arrival(now_ns - self.sent_ns, remote_ns, len(self.hops), self.ecn, self.hops)


class Echoes:
    """The telemetry of a NIC's packets.

    Args:
        nic: the device.
    """

    def __init__(self, nic: Nic) -> None:
        self._nic = nic
        self._last: dict[tuple[bytes, int], Telemetry] = {}
        """Telemetry of the last request of each peer's queue pair."""

    def begin(self, burst: TxBurst) -> Telemetry | None:
        """Return the telemetry of a new packet."""
        head = bytes(burst.buffers[0][:8])
        if not _is_response(head[0]):
            return Telemetry()
        last = self._last.get((burst.flow.dst, int.from_bytes(head[5:8], "big")))
        return None if last is None else last.echo()

    def take(self, packet: Packet, now_ns: int) -> Arrival | None:
        """Process the telemetry of an arriving packet; return what a response reports."""
        own = packet.telemetry
        if own is None:
            return None
        if own.response:
            return own.arrival(now_ns)
        qp = self._nic.qps.get(int.from_bytes(packet.burst.buffers[0][5:8], "big"))
        if qp is not None:
            own.arrived_ns, own.ecn = now_ns, packet.ce
            self._last[packet.burst.flow.src, qp.ctx.remote_qpn] = own
        return None


def _is_response(opcode: int) -> bool:
    return READ_RESPONSE_FIRST <= opcode & OPERATION_MASK <= ATOMIC_ACKNOWLEDGE and not opcode & ~OPERATION_MASK
