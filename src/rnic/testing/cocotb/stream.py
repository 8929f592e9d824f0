"""AXI4-Stream, one state per clock cycle, and a link of frames on it, independent of simulators.

The first byte of a frame travels in the lowest lane. ``tkeep`` may have zeros only in the last beat, after its last
byte.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rnic.link.base import UnpolledLink, check_group
from rnic.link.packets import joined, single_packets
from rnic.spec.drops import DropReason
from rnic.spec.errors import RnicError
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.trace.counters import Counters
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.datagram import parse_ip
from rnic.wire.ethernet import ETHERNET_BYTES, TYPE_IPV4, TYPE_IPV6, Ethernet
from rnic.wire.ip import ip_packet

WIDTHS = (64, 128, 256, 512)
"""Bits of ``tdata``."""
MAX_FRAME_BYTES = 16_384
MAX_WAITING = 1 << 12
"""Most frames that wait to be received or sent."""
_LEAST_FRAME = 60
"""Bytes of the shortest Ethernet frame, without FCS."""


class StreamError(RnicError):
    """A stream breaks its protocol, or is of an unsupported kind. One line."""


class Beat(NamedTuple):
    """One transfer."""

    data: int
    keep: int
    last: bool


def beats_of(frame: bytes, lanes: int) -> list[Beat]:
    """Return a frame as transfers of ``lanes`` bytes."""
    cuts = [frame[at : at + lanes] for at in range(0, len(frame), lanes)]
    return [
        Beat(int.from_bytes(cut, "little"), (1 << len(cut)) - 1, number == len(cuts))
        for number, cut in enumerate(cuts, 1)
    ]


class Source:
    """The master's side of a stream: its signals in each clock cycle.

    Args:
        lanes: bytes of ``tdata``.
        stalls: called before each transfer is offered; true delays it for a cycle.
        sent: called with each frame whose last transfer was taken.
    """

    def __init__(
        self,
        lanes: int,
        stalls: Callable[[], bool] | None = None,
        sent: Callable[[bytes], None] = lambda frame: None,
    ) -> None:
        self.lanes = lanes
        self.frames: deque[bytes] = deque()
        """Frames to send, oldest first."""
        self._stalls = stalls
        self._sent = sent
        self._frame = b""
        self._beats: deque[Beat] = deque()
        self.driven: Beat | None = None
        """Beat on the wires; it stays there until it is taken (AXI4-Stream 2.2.1)."""

    @property
    def idle(self) -> bool:
        """True if everything has been sent."""
        return self.driven is None and not self._beats and not self.frames

    def cycle(self, ready: bool) -> Beat | None:
        """Process a rising edge with ``tready`` as sampled before it; return the signals to drive."""
        if self.driven is not None:
            if not ready:
                return self.driven
            if self.driven.last:
                self._sent(self._frame)
            self.driven = None
        if not self._beats and self.frames:
            self._frame = self.frames.popleft()
            self._beats.extend(beats_of(self._frame, self.lanes))
        if self._beats and not (self._stalls is not None and self._stalls()):
            self.driven = self._beats.popleft()
        return self.driven


class Sink:
    """The slave's side of a stream.

    Args:
        lanes: bytes of ``tdata``.
        took: called with each whole frame.
        stalls: called each cycle; true holds ``tready`` low in the next one.
    """

    def __init__(self, lanes: int, took: Callable[[bytes], None], stalls: Callable[[], bool] | None = None) -> None:
        self.lanes = lanes
        self.ready = True
        """``tready`` as it is driven."""
        self._took = took
        self._stalls = stalls
        self._frame = bytearray()

    def cycle(self, beat: Beat | None) -> bool:
        """Process a rising edge with the signals sampled before it; return the new ``tready``.

        Raises:
            StreamError: bytes are missing in the middle of a frame, or the frame has no end.
        """
        if beat is not None and self.ready:
            self._take(beat)
        self.ready = not (self._stalls is not None and self._stalls())
        return self.ready

    def _take(self, beat: Beat) -> None:
        count = beat.keep.bit_length()
        if beat.keep != (1 << count) - 1 or (not beat.last and count != self.lanes):
            raise StreamError(f"tkeep={beat.keep:#x} with tlast={int(beat.last)}: a hole in the middle of a frame")
        self._frame += beat.data.to_bytes(self.lanes, "little")[:count]
        if len(self._frame) > MAX_FRAME_BYTES:
            raise StreamError(f"a frame of more than {MAX_FRAME_BYTES} bytes: tlast never came")
        if beat.last:
            frame, self._frame = bytes(self._frame), bytearray()
            self._took(frame)


def random_stalls(rate: float, seed: int) -> Callable[[], bool]:
    """Return a function that stalls with probability ``rate``, reproducible by the seed."""
    rng = random.Random(seed)
    return lambda: rng.random() < rate


def mac_number(mac: str | int) -> int:
    """Return a MAC address, ``"02:00:00:00:00:01"``, as a number of 48 bits.

    Raises:
        StreamError: it is not a MAC address.
    """
    if isinstance(mac, int):
        number = mac
    else:
        parts = mac.replace("-", ":").split(":")
        try:
            number = int("".join(part.zfill(2) for part in parts), 16) if len(parts) == 6 else -1
        except ValueError:
            number = -1
    if not 0 <= number < 1 << 48:
        raise StreamError(f"{mac!r} is not a MAC address: give six bytes such as 02:00:00:00:00:01")
    return number


class FrameLink(UnpolledLink):
    """The peer's link: whole frames to and from the streams.

    Args:
        address: the peer's IP address, 4 or 16 bytes.
        mac: its MAC address; ``None`` if frames start with the IP header.
        counters: counters of drops.
        out: called with each frame to send.
    """

    def __init__(
        self, address: bytes, mac: int | None, counters: Counters, out: Callable[[bytes], None], mtu: int = 9000
    ) -> None:
        self.address = address
        self.mac = mac
        self.port = ROCE_UDP_PORT
        self.source_ports = (ROCE_UDP_PORT,)
        self.mtu = mtu
        self.window_bytes = 1 << 20
        self.window_packets = 256
        self.counters = counters
        self.up = True
        self.frames: deque[bytes] = deque()
        """Received IP packets that are not RoCEv2."""
        self.frame_sender = self.send_packet
        self.macs: dict[bytes, int] = {}
        """MAC addresses of peers by IP address: given, or learned from their frames."""
        self._out = out
        self._arrived: deque[RxBurst] = deque()

    # -------------------------------------------------------------------------------------- to the stream

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Send each packet as a separate frame, with IP ID 0 as hardware does."""
        for burst in bursts:
            for single in single_packets(burst):
                self.send_packet(burst.flow.dst, ip_packet(burst.flow, joined(single)))

    def send_packet(self, to: bytes, packet: bytes) -> bool:
        """Send a whole packet, starting with its IP header. Return whether it was sent."""
        if self.mac is None:
            self._out(packet)
            return True
        there = self.macs.get(to)
        if there is None:
            self.counters.bump("drop_tx_no_mac")
            return False
        kind = TYPE_IPV4 if len(to) == 4 else TYPE_IPV6
        header = Ethernet(dst_mac=there, src_mac=self.mac, ethertype=kind).pack()
        self._out((header + packet).ljust(_LEAST_FRAME, b"\0"))
        return True

    # ------------------------------------------------------------------------------------ from the stream

    def take(self, frame: bytes) -> None:
        """Take a received frame."""
        packet = memoryview(frame)
        if self.mac is not None:
            if len(frame) < ETHERNET_BYTES:
                self.counters.bump("drop_short_frame")
                return
            header = Ethernet.parse(frame)
            if header.dst_mac not in (self.mac, (1 << 48) - 1):
                self.counters.bump("drop_other_mac")
                return
            if header.ethertype not in (TYPE_IPV4, TYPE_IPV6):
                self.counters.bump("drop_other_ethertype")
                return
            packet = packet[ETHERNET_BYTES:]
        datagram = parse_ip(packet, self.port)
        if isinstance(datagram, DropReason):
            if datagram is not DropReason.NOT_ROCE:
                self.counters.bump(datagram.value)
            elif len(self.frames) < MAX_WAITING:
                self.frames.append(bytes(packet))
            return
        if datagram.dst != self.address:
            self.counters.bump("drop_other_address")
            return
        if len(self._arrived) >= MAX_WAITING:
            self.counters.bump("drop_rx_queue_full")
            return
        if self.mac is not None:
            self.macs.setdefault(datagram.src, header.src_mac)
        size = len(datagram.payload)
        how = datagram.tclass, datagram.hop_limit, datagram.flow_label
        self._arrived.append(
            RxBurst(datagram.flow(), datagram.payload, size, size, datagram.ident, datagram.frag, *how)
        )

    @property
    def waiting(self) -> bool:
        """True if frames arrived that were not received yet."""
        return bool(self._arrived or self.frames)

    def receive(self, limit: int) -> list[RxBurst]:
        """See :meth:`rnic.link.base.Link.receive`."""
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    def join(self, group: bytes) -> None:
        """Check the group's address; nothing else is needed."""
        check_group(group, self.address)

    def leave(self, group: bytes) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Drop all waiting frames."""
        self._arrived.clear()
        self.frames.clear()
