"""Middleware that records the packets of a link, as whole packets with IP headers, for Wireshark and
``rnic decode``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

from rnic.link.base import Link
from rnic.link.middleware import Middleware
from rnic.link.recording import Recording
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.dissect import LINKTYPE_ETHERNET
from rnic.wire.flow import Flow
from rnic.wire.ident import solve

_MIN_PACKET = 16
"""Size of BTH and ICRC: a shorter packet has no ICRC from which to compute an IP ID."""


class Recorder(Middleware):
    """Writes every packet that is sent or received to a pcapng file.

    A link that shows no IP headers does not give the IP ID: the recorded packet then carries the one for which its ICRC
        is right, so that only a corrupt packet is shown as corrupt. Ethernet addresses are made
    from the IP addresses. A packet that a link sends to itself is recorded once, when it is sent.

    Args:
        inner: the link that does the work.
        file: opened for writing bytes, as :class:`~rnic.link.recording.Recording` takes it; or a recording, which
            other links may share.
        linktype: 1 for Ethernet frames, 101 for IP packets alone.
        clock: gives the time of a packet in nanoseconds; :func:`time.time_ns` unless a test or simulation has its own.
        solve_idents: false for packets whose ICRC is not RoCEv2's: they are recorded with their index in the burst as
            IP ID.
        ended: gets the error that ended the recording.
        owns: finish a recording that was given when this link is closed.
    """

    def __init__(
        self,
        inner: Link,
        file: BinaryIO | Recording,
        linktype: int = LINKTYPE_ETHERNET,
        clock: Callable[[], int] = time.time_ns,
        solve_idents: bool = True,
        ended: Callable[[OSError], None] | None = None,
        owns: bool = False,
    ) -> None:
        super().__init__(inner)
        self._solve_idents = solve_idents
        self._clock = clock
        self._owns = owns or not isinstance(file, Recording)
        self.recording = file if isinstance(file, Recording) else Recording(file, inner.counters, linktype, ended)

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Record and send."""
        now_ns = self._clock()
        for burst in bursts if self.recording.active else ():
            data = memoryview(b"".join(burst.buffers))
            for index, start in enumerate(range(0, burst.length, burst.segment)):
                self.recording.add(now_ns, burst.flow, data[start : start + burst.segment], index)
        self.inner.send(bursts)

    def receive(self, limit: int) -> list[RxBurst]:
        """Receive and record."""
        bursts = self.inner.receive(limit)
        self.received(bursts)
        return bursts

    def received(self, bursts: Sequence[RxBurst]) -> None:
        """Record received packets, except those sent by the link itself."""
        now_ns = self._clock()
        for burst in bursts if self.recording.active else ():
            if burst.flow.src == self.address and burst.flow.sport in self.source_ports:
                continue
            buf = burst.buf[: burst.length]
            for index, start in enumerate(range(0, burst.length, burst.segment)):
                packet = buf[start : start + burst.segment]
                if burst.ident is None:
                    ident = find_ident(packet, burst.flow, index) if self._solve_idents else index
                else:
                    ident = burst.ident + index & 0xFFFF
                arrived = burst.tclass, burst.hop_limit, burst.flow_label
                self.recording.add(now_ns, burst.flow, packet, ident, burst.frag, arrived)

    def close(self) -> None:
        """Finish the file if this link owns it, and close the inner link."""
        if self._owns:
            self.recording.finish()
        self.inner.close()


def find_ident(packet: memoryview, flow: Flow, index: int) -> int:
    """Return the IP ID for which a packet's ICRC is right; its index in the burst if there is none."""
    if len(flow.src) == 16 or len(packet) < _MIN_PACKET or flow.check(packet, index):
        return index
    solved = solve(packet, flow)
    return index if solved is None else solved
