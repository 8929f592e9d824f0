"""Records what passes between a NIC and its link, as IP packets in a capture file.

UDP links see no IP headers, so these are made here as they are on the wire: DF, the ident for which the ICRC
was made, right checksums. Wireshark then dissects the packets and finds their ICRCs right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rnic.link.base import Link
from rnic.link.middleware import Middleware
from rnic.link.packets import MIN_PACKET, joined
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow
from rnic.wire.ident import solve
from rnic.wire.ip import ip_packet

ETHERNET = 1
"""Link types of a capture file (tcpdump.org): Ethernet frames,"""
RAW_IP = 101
"""or packets that begin with an IP header."""

_ETHERTYPES = {4: b"\x08\x00", 16: b"\x86\xdd"}


class PacketSink(Protocol):
    """Where packets go: a capture file writer, or a test."""

    def write(self, time_ns: int, data: bytes, *, inbound: bool) -> None:
        """Keep one packet as it was at ``time_ns``."""


class RecordingLink(Middleware):
    """Writes every packet that passes to a sink, then passes it on.

    Args:
        inner: the link to pass on to.
        sink: takes the packets; it stays open when the link is closed, as several links may share it.
        clock: the time in nanoseconds that packets are stamped with.
        link_type: :data:`RAW_IP` or :data:`ETHERNET`, as the sink's file says.
    """

    def __init__(self, inner: Link, sink: PacketSink, *, clock: Callable[[], int], link_type: int = RAW_IP) -> None:
        if link_type not in (RAW_IP, ETHERNET):
            raise ValueError(f"link type {link_type} is not recorded: give {ETHERNET} (Ethernet) or {RAW_IP} (raw IP)")
        super().__init__(inner)
        self._sink = sink
        self._clock = clock
        self._ethernet = link_type == ETHERNET

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Record, then send. Segments are recorded as the system's segmentation makes them."""
        now_ns = self._clock()
        for burst in bursts:
            data = memoryview(joined(burst))
            for ident, start in enumerate(range(0, len(data), burst.segment)):
                payload = data[start : start + burst.segment]
                self._write(now_ns, ip_packet(burst.flow, payload, ident), burst, inbound=False)
        self.inner.send(bursts)

    def receive(self, limit: int) -> list[RxBurst]:
        """Receive, then record. Idents that the link did not see are found from the ICRC."""
        bursts = self.inner.receive(limit)
        now_ns = self._clock()
        for burst in bursts:
            flow = burst.flow
            if burst.tclass != flow.tclass or burst.hop_limit != flow.hop_limit:
                flow = Flow(flow.src, flow.dst, flow.sport, flow.dport, burst.tclass, burst.hop_limit)
            for index, start in enumerate(range(0, burst.length, burst.segment)):
                payload = burst.buf[start : min(start + burst.segment, burst.length)]
                packet = ip_packet(flow, payload, _ident(burst, payload, index), burst.frag)
                self._write(now_ns, packet, burst, inbound=True)
        return bursts

    def _write(self, now_ns: int, packet: bytes, burst: TxBurst | RxBurst, *, inbound: bool) -> None:
        if self._ethernet:
            flow = burst.flow
            packet = _mac(flow.dst) + _mac(flow.src) + _ETHERTYPES[len(flow.src)] + packet
        self._sink.write(now_ns, packet, inbound=inbound)


def _ident(burst: RxBurst, payload: memoryview, index: int) -> int:
    """The ident of segment ``index``; its place in the burst where nothing makes the ICRC right."""
    if burst.ident is not None:
        return burst.ident + index & 0xFFFF
    if len(burst.flow.src) == 16 or len(payload) < MIN_PACKET or burst.flow.check(payload, index):
        return index
    solved = solve(payload, burst.flow)
    return index if solved is None else solved


def _mac(address: bytes) -> bytes:
    """A MAC address for an IP address: locally administered, or the group's own (RFC 1112, RFC 2464)."""
    if len(address) == 4:
        if address[0] & 0xF0 == 0xE0:
            return bytes((0x01, 0x00, 0x5E, address[1] & 0x7F)) + address[2:]
        return b"\x02\x00" + address
    return (b"\x33\x33" if address[0] == 0xFF else b"\x02\x00") + address[12:]
