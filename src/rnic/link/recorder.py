"""Middleware that records what passes a link, as whole packets with IP headers, for Wireshark and ``rnic decode``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

from rnic.link.base import Link
from rnic.link.middleware import Middleware
from rnic.link.pcap import PcapngWriter
from rnic.wire.bursts import DONT_FRAGMENT, Buffer, RxBurst, TxBurst
from rnic.wire.dissect import LINKTYPE_ETHERNET
from rnic.wire.ethernet import TYPE_IPV4, TYPE_IPV6, Ethernet
from rnic.wire.flow import Flow
from rnic.wire.ident import solve
from rnic.wire.ip import ip_packet

_MIN_PACKET = 16
"""BTH and ICRC: nothing shorter has an ICRC to solve an ident from."""


class Recorder(Middleware):
    """Writes every packet that is sent or received to a pcapng file.

    A link that shows no IP headers leaves the IPv4 ident open: the recorded packet then carries the one for which
    its ICRC is right, so that a corrupt packet, and only a corrupt one, is shown as such. Ethernet addresses are made
    from the IP addresses. What a link sends to itself is recorded once, when it is sent.

    Nothing waits for the file, and nothing fails because of it. A packet for which it has no room just now (a FIFO
    whose reader is slow) is left out and counted as ``capture_dropped``. Where it takes no more at all (the disk is
    full, the reader has gone), recording ends for good, counted as ``capture_ended``.

    Args:
        inner: the link that does the work.
        file: opened for writing bytes; stays the caller's. One that may make its writer wait is to be opened without
            buffer and not blocking.
        linktype: 1 for Ethernet frames, 101 for IP packets alone.
        clock: gives the time of a packet in nanoseconds; :func:`time.time_ns` unless a test or simulation has its own.
        solve_idents: false for packets whose ICRC is not RoCEv2's: they are recorded with their place in the burst.
        ended: gets the error that ended the recording.
    """

    def __init__(
        self,
        inner: Link,
        file: BinaryIO,
        linktype: int = LINKTYPE_ETHERNET,
        clock: Callable[[], int] = time.time_ns,
        solve_idents: bool = True,
        ended: Callable[[OSError], None] | None = None,
    ) -> None:
        super().__init__(inner)
        self._solve_idents = solve_idents
        self._linktype = linktype
        self._file = file
        self._clock = clock
        self._ended = ended
        self._rest = b""
        """Of a packet that the file took a part of."""
        self._writer: PcapngWriter | None = None
        try:
            self._writer = PcapngWriter(self, linktype)
        except OSError as error:
            self._end(error)

    def write(self, data: bytes) -> None:
        """Write to the file what it takes without waiting: all of it or nothing, in the end.

        Raises:
            OSError: it takes no more.
        """
        if self._rest:
            self._rest = self._rest[self._file.write(self._rest) or 0 :]
        if self._rest:
            self.counters.bump("capture_dropped")
            return
        taken = self._file.write(data) or 0  # None from a file that would make its writer wait
        if taken:
            self._rest = data[taken:]
        else:
            self.counters.bump("capture_dropped")

    def _end(self, error: OSError) -> None:
        """Record nothing more."""
        self._writer = None
        self.counters.bump("capture_ended")
        if self._ended is not None:
            self._ended(error)

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Record and send."""
        now_ns = self._clock()
        for burst in bursts if self._writer is not None else ():
            data = memoryview(b"".join(burst.buffers))
            for index, start in enumerate(range(0, burst.length, burst.segment)):
                self._record(now_ns, burst.flow, data[start : start + burst.segment], index)
        self.inner.send(bursts)

    def receive(self, limit: int) -> list[RxBurst]:
        """Receive and record."""
        bursts = self.inner.receive(limit)
        now_ns = self._clock()
        for burst in bursts if self._writer is not None else ():
            if burst.flow.src == self.address and burst.flow.sport in self.source_ports:
                continue
            buf = burst.buf[: burst.length]
            for index, start in enumerate(range(0, burst.length, burst.segment)):
                packet = buf[start : start + burst.segment]
                if burst.ident is None:
                    ident = _ident(packet, burst.flow, index) if self._solve_idents else index
                else:
                    ident = burst.ident + index & 0xFFFF
                arrived = burst.tclass, burst.hop_limit, burst.flow_label
                self._record(now_ns, burst.flow, packet, ident, burst.frag, arrived)
        return bursts

    def close(self) -> None:
        """Flush the file and close the inner link."""
        try:
            self._file.flush()
        except OSError as error:
            self._end(error)
        self.inner.close()

    def _record(
        self,
        now_ns: int,
        flow: Flow,
        payload: Buffer,
        ident: int,
        frag: int = DONT_FRAGMENT,
        arrived: tuple[int, int, int] | None = None,
    ) -> None:
        if self._writer is None:
            return
        packet = ip_packet(flow, payload, ident, frag, arrived)
        if self._linktype == LINKTYPE_ETHERNET:
            packet = path_ethernet(flow).pack() + packet
        try:
            self._writer.write(now_ns, packet)
        except OSError as error:
            self._end(error)


def _ident(packet: memoryview, flow: Flow, index: int) -> int:
    """The ident under which a packet's ICRC is right; its place in the burst where none is."""
    if len(flow.src) == 16 or len(packet) < _MIN_PACKET or flow.check(packet, index):
        return index
    solved = solve(packet, flow)
    return index if solved is None else solved


def path_ethernet(flow: Flow) -> Ethernet:
    """The path's own addresses, or locally administered ones that end in the IP addresses."""
    return Ethernet(
        dst_mac=flow.dmac or 0x0200 << 32 | int.from_bytes(flow.dst[-4:], "big"),
        src_mac=flow.smac or 0x0200 << 32 | int.from_bytes(flow.src[-4:], "big"),
        ethertype=TYPE_IPV4 if len(flow.src) == 4 else TYPE_IPV6,
    )
