"""Receive path: fast paths for bursts, the full path for other packets, and frames of other protocols."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rnic.device.icrc import IcrcCheck
from rnic.spec import reasons
from rnic.spec.addresses import address_text
from rnic.spec.drops import DropReason
from rnic.spec.limits import BTH_BYTES, ICRC_BYTES, MAX_UDP_PAYLOAD
from rnic.spec.opcodes import CNP, RC, UD, XRC
from rnic.spec.registers import IRQ_NON_RDMA
from rnic.spec.states import RTR, RTS, SQD, SQE
from rnic.wire.bursts import RxBurst
from rnic.wire.datagram import parse_ip
from rnic.wire.flow import CE
from rnic.wire.mad import GSI_QPN
from rnic.wire.packet import Packet, parse

if TYPE_CHECKING:
    from rnic.device.host import ReceivingHost
    from rnic.device.queue_pair import DeviceQp

MULTICAST_QPN = 0xFFFFFF
_MIN_PACKET = BTH_BYTES + ICRC_BYTES
_DQPN = struct.Struct(">I")
_DQPN_AT = 4
_QPN_MASK = 0xFFFFFF
_FULL_MEMBER = 0x8000
_RECEIVING = frozenset({RTR, RTS, SQD, SQE})


def _same_partition(one: int, other: int) -> bool:
    """Return whether two P_Keys match (IBA 10.9.3): equal except the membership bit, and not both limited members."""
    return not (one ^ other) & ~_FULL_MEMBER and bool((one | other) & _FULL_MEMBER)


class Receiving:
    """Receive path of one NIC. Input never raises an exception; work per burst is bounded by its packets."""

    __slots__ = ("_icrc", "_nic")

    def __init__(self, nic: ReceivingHost) -> None:
        self._nic = nic
        self._icrc = IcrcCheck(nic.tally, self._sender_counts)

    def take_other(self, frame: bytes | bytearray | memoryview, now_ns: int) -> None:
        """Pass a non-RDMA frame to the non-RDMA channel (004 7.6)."""
        if not self._nic.enabled:
            self._nic.counters.bump(DropReason.DISABLED.value)
        elif self._nic.non_rdma.put(frame, now_ns):
            self._nic.globals.raise_cause(IRQ_NON_RDMA)

    def take_frame(self, packet: memoryview, now_ns: int) -> None:
        """Process a whole packet, from its IP header on: as RDMA by its UDP port, else for the non-RDMA channel (004
        7.3)."""
        try:
            datagram = parse_ip(packet, self._nic.config.port)
        except Exception as error:  # noqa: BLE001 - the last guard
            self._nic.guard.caught("packet", error)
            return
        if isinstance(datagram, DropReason):
            self.take_other(packet, now_ns)
            return
        payload, size = datagram.payload, len(datagram.payload)
        flow, ident, frag = datagram.flow(), datagram.ident, datagram.frag
        how = datagram.tclass, datagram.hop_limit, datagram.flow_label
        self.take(RxBurst(flow, payload, size, size, ident, frag, *how), now_ns)

    def take(self, burst: RxBurst, now_ns: int, start: int = 0) -> None:
        """Process a received burst, from byte ``start`` on. A bad packet increments a drop counter and has no other
        effect."""
        nic = self._nic
        nic.now_ns = now_ns
        if not nic.enabled:
            nic.counters.bump(DropReason.DISABLED.value)
            return
        length = burst.length
        segment = burst.segment if burst.segment > 0 else length
        buf = burst.buf
        flow = burst.flow
        qps = nic.running
        marked = burst.ecn == CE
        learning = burst.ident is None and not flow.settled
        # the fast paths only accept packets with the predicted IP ID, not those of a sender that counts up
        guessed = not learning or flow.idents is None or flow.idents.small
        packets = 0
        while start < length:
            end = start + segment
            if end > length:
                end = length
            packets += 1
            if end - start < _MIN_PACKET:
                self._nic.counters.bump(DropReason.TOO_SHORT.value)
                start = end
                continue
            dqpn = _DQPN.unpack_from(buf, start + _DQPN_AT)[0] & _QPN_MASK
            qp = qps.get(dqpn)
            try:
                executor = None if qp is None else qp.executor
                several = length - start >= 2 * segment and not burst.known[0]
                if (
                    qp is not None
                    and guessed
                    and (several or executor is not None)
                    and not marked
                    and (flow is qp.peer or qp.comes_from_peer(flow))
                ):
                    if executor is not None and (taken := executor.receive(burst, start, now_ns)):
                        qp.show()
                        qp.came_bytes += taken
                        count = -(-taken // segment)
                        start += taken
                        packets += count - 1
                        if learning:
                            self.learn(burst, count)
                        continue
                    if several and (taken := qp.receive_burst(burst, start, now_ns)):
                        qp.came_bytes += taken
                        start += taken
                        packets += taken // segment - 1
                        if learning:
                            self.learn(burst, taken // segment)
                        continue
                self.take_packet(qp, dqpn, burst, buf[start:end], start // segment)
            except Exception as error:  # noqa: BLE001 - the last guard
                self._nic.internal_error("packet", qp, error)
            start = end
        nic.tally["rx_packets"] += packets
        nic.note_traffic(now_ns)

    def take_packet(self, qp: DeviceQp | None, dqpn: int, burst: RxBurst, view: memoryview, index: int) -> None:
        """Process one packet on the full path: ICRC, header, queue pair, state, service, address, P_Key (004 7.3)."""
        size = len(view)
        if size > MAX_UDP_PAYLOAD or size & 3:
            # Headers, padded payload and ICRC are whole words. Seeds and residues are cached by length, so a peer must
            # not fill those caches with invalid lengths.
            self._nic.counters.bump((DropReason.TOO_LONG if size > MAX_UDP_PAYLOAD else DropReason.BAD_LENGTH).value)
            return
        try:
            accepted = self._icrc.accepts(view, burst, index, self._nic.now_ns)
        except Exception as error:  # noqa: BLE001 - the last guard; the sender is not verified yet, so no QP fails
            self._nic.guard.caught("packet", error)
            return
        if self._icrc.confirmed:
            self._take_confirmed()
        if accepted:
            self._take_right(qp, dqpn, burst, view, index)

    def _sender_counts(self, address: bytes) -> None:
        if self._nic.counting is not None:
            self._nic.counting(address)

    def share_idents(self, other: Receiving) -> None:
        """Share another NIC's state of peers' IP IDs, since both receive at one address."""
        self._icrc.pairs = other._icrc.pairs

    def learn(self, burst: RxBurst, count: int) -> None:
        """Record ``count`` packets with expected IP IDs that other code processed."""
        self._icrc.learn(burst, count)

    def _take_confirmed(self) -> None:
        """Process packets that were held because of their IP IDs; their queue pair may be gone."""
        confirmed, self._icrc.confirmed = self._icrc.confirmed, []
        for held in confirmed:
            dqpn = _DQPN.unpack_from(held.packet, _DQPN_AT)[0] & _QPN_MASK
            self._take_right(self._nic.running.get(dqpn), dqpn, held.burst, held.packet, 0)

    def _take_right(self, qp: DeviceQp | None, dqpn: int, burst: RxBurst, view: memoryview, index: int) -> None:
        """Process one packet whose ICRC is right."""
        size = len(view)
        try:
            packet = parse(view)
        except Exception as error:  # noqa: BLE001 - the last guard, as above
            self._nic.guard.caught("packet", error)
            return
        if isinstance(packet, DropReason):
            self._nic.counters.bump(packet.value)
            return
        packet.burst = burst
        flow = burst.flow
        if qp is None:
            stray = self._nic.stray
            if stray is None or dqpn in (GSI_QPN, MULTICAST_QPN) or not stray(dqpn, burst, view, index):
                self._take_elsewhere(packet, dqpn)
            return
        row = packet.row
        if qp.ctx.state not in _RECEIVING:
            self._nic.counters.bump(DropReason.QP_STATE.value)
        elif row.service != qp.opcodes and packet.opcode != CNP:
            self._nic.counters.bump(DropReason.WRONG_SERVICE.value)
        elif flow is not qp.peer and not qp.comes_from_peer(flow):
            if qp.explains:  # a flood of wrong packets must stay cheap
                qp.explain(reasons.WRONG_PEER, got=address_text(flow.src), peer=qp.peer_text)
            self._nic.counters.bump(DropReason.WRONG_ADDRESS.value)
        elif packet.pkey != qp.pkey and not _same_partition(packet.pkey, qp.pkey):
            self._nic.counters.bump(DropReason.BAD_PKEY.value)
        elif packet.opcode == CNP:
            self._nic.congestion.notified(qp, self._nic.now_ns)
        else:
            if packet.ecn == CE and qp.opcodes in (RC, XRC):
                self._nic.congestion.marked(qp, self._nic.now_ns)
            qp.came_bytes += size
            qp.receive(packet, self._nic.now_ns)
            if row.response:
                qp.show()

    def _take_elsewhere(self, packet: Packet, dqpn: int) -> None:
        """Process a packet for QP1, a multicast group, or an unknown queue pair."""
        if dqpn == GSI_QPN:
            self._nic.gsi.receive(packet, self._nic.now_ns)
            return
        members = self._nic.resources.groups.members.get(packet.flow.dst, ()) if dqpn == MULTICAST_QPN else ()
        if not members:
            self._nic.counters.bump((DropReason.NOT_CACHED if dqpn in self._nic.qps else DropReason.UNKNOWN_QP).value)
            return
        if packet.row.service != UD:
            self._nic.counters.bump(DropReason.WRONG_SERVICE.value)
            return
        for qpn in members:
            qp = self._nic.running.get(qpn)
            if qp is None or qp.opcodes != UD or qp.ctx.state not in _RECEIVING:
                self._nic.counters.bump(DropReason.QP_STATE.value)
            elif packet.pkey != qp.pkey and not _same_partition(packet.pkey, qp.pkey):
                self._nic.counters.bump(DropReason.BAD_PKEY.value)
            else:
                try:
                    qp.receive(packet, self._nic.now_ns)
                except Exception as error:  # noqa: BLE001 - the last guard; the other members still get it
                    self._nic.internal_error("packet", qp, error)
