"""512-bit network data path of document 003: whole IP packets as AXI4-Stream beats of 64 bytes.

``m_axis_tx`` and ``s_axis_rx`` carry packets that begin with their IP header (the Ethernet header is stripped) and end
with the ICRC. :class:`BeatLink` is a link over these two streams. It lets a device replace a shell's network stack,
connected beat by beat to another one or to a simulated switch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

from rnic.link.base import LinkError, UnpolledLink, check_group, format_address
from rnic.link.packets import single_packets
from rnic.spec.drops import DropReason
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.trace.counters import Counters
from rnic.wire.bursts import Buffer, RxBurst, TxBurst
from rnic.wire.datagram import parse_ip
from rnic.wire.ip import IPV6_BYTES, UDP_BYTES, ip_packet

BEAT_BYTES = 64
FULL_KEEP = (1 << BEAT_BYTES) - 1
IP_MTU = 4096 + 128
"""IP MTU of the path: fits the largest RoCE packet."""
MAX_FRAME = 9_600
"""Longest packet to reassemble; a longer one is taken as a stream without ``last``."""
QUEUE_FRAMES = 4_096


class Beat(NamedTuple):
    """One transfer: ``tdata``, ``tkeep`` (bit i: byte i is valid) and ``tlast``."""

    data: bytes
    keep: int
    last: bool


def to_beats(packet: Buffer) -> Iterator[Beat]:
    """Yield a packet, at least one byte, as beats; the last one is padded with zeros that ``keep`` excludes."""
    length = len(packet)
    for start in range(0, length, BEAT_BYTES):
        chunk = bytes(packet[start : start + BEAT_BYTES])
        keep = (1 << len(chunk)) - 1
        yield Beat(chunk.ljust(BEAT_BYTES, b"\0"), keep, start + BEAT_BYTES >= length)


class BeatRun(Sequence[Beat]):
    """A packet as beats, each made only when it is accessed."""

    __slots__ = ("data",)

    def __init__(self, data: Buffer) -> None:
        self.data = bytes(data)

    def __len__(self) -> int:
        return (len(self.data) + BEAT_BYTES - 1) // BEAT_BYTES

    def __iter__(self) -> Iterator[Beat]:
        return to_beats(self.data)

    @overload
    def __getitem__(self, index: int) -> Beat: ...
    @overload
    def __getitem__(self, index: slice) -> list[Beat]: ...
    def __getitem__(self, index: int | slice) -> Beat | list[Beat]:
        return list(self)[index]


def payload_of(beats: Iterable[Beat]) -> bytes:
    """Return the valid bytes of beats that follow the stream's rules."""
    if isinstance(beats, BeatRun):
        return beats.data
    return b"".join(beat.data[: beat.keep.bit_length()] for beat in beats)


class Reassembler:
    """Reassembles packets from beats. A packet that violates the stream rules is dropped as a whole and counted.

    The rules: ``data`` has 64 bytes; ``keep`` is all ones except in the last beat, where it is ones from bit 0 on; a
    packet has at most ``limit`` bytes.
    """

    def __init__(self, counters: Counters, limit: int = MAX_FRAME) -> None:
        self._counters = counters
        self._limit = limit
        self._parts = bytearray()
        self._bad = False

    def push(self, beat: Beat) -> bytes | None:
        """Add one beat; return the packet that it completes, or ``None``."""
        data, keep, last = beat
        count = keep.bit_length()
        ones_from_bit_0 = 0 < keep <= FULL_KEEP and not keep & (keep + 1)
        if (
            len(data) != BEAT_BYTES
            or not ones_from_bit_0
            or (keep != FULL_KEEP and not last)
            or len(self._parts) + count > self._limit
        ):
            self._bad = True
        if not self._bad:
            self._parts += data[:count]
        if not last:
            return None
        packet, bad = bytes(self._parts), self._bad
        self._parts.clear()
        self._bad = False
        if bad:
            self._counters.bump("drop_rx_bad_beats")
            return None
        return packet


class BeatLink(UnpolledLink):
    """A link over a pair of beat streams.

    Args:
        address: own address, 4 or 16 bytes.
        port: own UDP port.
        counters: counters of drops.

    The connected side takes beats from :attr:`m_axis_tx` and hands beats to :meth:`s_axis_rx`.
    """

    def __init__(self, address: bytes, port: int = ROCE_UDP_PORT, *, counters: Counters | None = None) -> None:
        self.address = address
        self.port = port
        self.source_ports = (port,)
        self.mtu = IP_MTU + IPV6_BYTES + UDP_BYTES
        self.window_bytes = 4 << 20
        self.window_packets = QUEUE_FRAMES
        self.counters = Counters() if counters is None else counters
        self.m_axis_tx: deque[Beat] = deque()
        """Beats to send, oldest first."""
        self.up = True
        self.frames: deque[bytes] = deque()
        """Always empty: the shell filters out non-RDMA packets, so the link only counts them."""
        self.frame_sender = None
        """``None``: the shell itself sends non-RDMA packets (003)."""
        self._frames: deque[bytes] = deque()
        self._in = Reassembler(self.counters)
        self._groups: set[bytes] = set()
        self._closed = False

    def s_axis_rx(self, beats: Iterable[Beat]) -> None:
        """Receive beats from the network."""
        for beat in beats:
            packet = self._in.push(beat)
            if packet is None:
                continue
            if len(self._frames) >= QUEUE_FRAMES:
                self.counters.bump("drop_rx_queue_full")
            else:
                self._frames.append(packet)

    def take_tx(self) -> list[Beat]:
        """Return all beats that wait to be sent."""
        beats = list(self.m_axis_tx)
        self.m_axis_tx.clear()
        return beats

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Put packets on ``m_axis_tx``, each with its IP and UDP headers."""
        if self._closed:
            where = f"{format_address(self.address)} port {self.port}"
            raise LinkError(f"beat link {where} is closed: open a new one")
        for burst in bursts:
            for single in single_packets(burst):
                self.m_axis_tx.extend(to_beats(ip_packet(single.flow, single.buffers[0])))

    def receive(self, limit: int) -> list[RxBurst]:
        """See :meth:`rnic.link.base.Link.receive`; packets other than UDP packets to this link are counted and
        dropped."""
        bursts: list[RxBurst] = []
        while self._frames and len(bursts) < limit:
            burst = self._parse(self._frames.popleft())
            if burst is not None:
                bursts.append(burst)
        return bursts

    def _parse(self, packet: bytes) -> RxBurst | None:
        found = parse_ip(memoryview(packet), self.port)
        if isinstance(found, DropReason):
            self.counters.bump(found.value)
            return None
        if found.dst != self.address and found.dst not in self._groups:
            self.counters.bump(DropReason.WRONG_ADDRESS.value)
            return None
        size = len(found.payload)
        return RxBurst(
            found.flow(),
            found.payload,
            max(1, size),
            size,
            found.ident,
            found.frag,
            found.tclass,
            found.hop_limit,
            found.flow_label,
        )

    def join(self, group: bytes) -> None:
        """See :meth:`rnic.link.base.Link.join`."""
        check_group(group, self.address)
        self._groups.add(group)

    def leave(self, group: bytes) -> None:
        """See :meth:`rnic.link.base.Link.leave`."""
        self._groups.discard(group)

    def close(self) -> None:
        """Release everything; a second call does nothing."""
        self._closed = True
        self._frames.clear()
        self.m_axis_tx.clear()


def wire(one: BeatLink, other: BeatLink) -> int:
    """Carry the beats on each side's ``m_axis_tx`` to the other's ``s_axis_rx``. Return the number of beats carried."""
    to_other, to_one = one.take_tx(), other.take_tx()
    other.s_axis_rx(to_other)
    one.s_axis_rx(to_one)
    return len(to_other) + len(to_one)
