"""Destination of recorded packets: a pcapng file; sending and receiving never wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from io import FileIO
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from rnic.link.pcap import PcapngWriter, packet_block
from rnic.spec.twins import compiled_twin
from rnic.trace.counters import Counters
from rnic.wire.bursts import DONT_FRAGMENT, Buffer
from rnic.wire.dissect import LINKTYPE_ETHERNET
from rnic.wire.ethernet import TYPE_IPV4, TYPE_IPV6, Ethernet
from rnic.wire.flow import Flow
from rnic.wire.ip import IPv4Headers, ip_packet

if TYPE_CHECKING:
    from rnic.link import _recording

_compiled = compiled_twin(__name__, "rnic.link._recording")
"""The compiled blocks of bursts, and records of programs' rings; or ``None``: then no program has a ring."""
SNAP_MAX = 0xFFFF
"""Snap length: no UDP payload is longer, so packets are recorded whole."""


class Reason(IntEnum):
    """Reasons why :meth:`Recording.put_records` stops."""

    DONE = 0
    """No record is left."""
    LATER = 1
    """The next record is later."""
    FULL = 2
    """:meth:`Recording.flush` is due."""
    UNKNOWN = 3
    """The next record has an unknown path, or was received."""


class Burst(NamedTuple):
    """Packets of one path from a program."""

    time_ns: int
    flow: Flow
    head: bytes
    """Of :meth:`Recording.head`."""
    kept: memoryview
    """The recorded first bytes of each packet, back to back."""
    length: int
    """Bytes of the burst."""
    segment: int
    """Bytes of each packet except the last."""
    idents: list[int] | None
    """IP ID of each packet; ``None`` if they count from 0."""
    arrived: tuple[int, int, int]
    """Traffic class, hop limit and flow label."""


class Follower(Protocol):
    """Gets the packets of a recording, too."""

    snap: int
    """Maximum number of bytes of a packet that it wants, from the BTH on."""

    def write_blocks(self, blocks: Buffer, packets: int) -> None:
        """Take the blocks of some packets."""

    def left_out(self, packets: int) -> None:
        """Note packets that are missing."""


class Recording:
    """A pcapng file of whole packets, with IP headers made from their flows.

    A packet for which the file has no room just now (a FIFO whose reader is slow) is left out and counted as
    ``capture_dropped``. If writing fails (the disk is full, the reader has gone), the recording ends for good, counted
    as ``capture_ended``.

    Args:
        file: opened for writing bytes; stays the caller's. One that may block its writer must be opened unbuffered and
            non-blocking. ``None``: only ``followers`` get packets.
        counters: of the link.
        linktype: 1 for Ethernet frames, 101 for IP packets alone.
        ended: gets the error that ended the recording.
        snap: maximum number of bytes of a packet that are kept, from the BTH on.
        waits: programs that pass their packets by a ring wait if it is full; else packets are left out.
    """

    def __init__(
        self,
        file: BinaryIO | None,
        counters: Counters,
        linktype: int = LINKTYPE_ETHERNET,
        ended: Callable[[OSError], None] | None = None,
        snap: int = SNAP_MAX,
        waits: bool = True,
    ) -> None:
        self.snap = snap
        self.waits = waits
        self.collects = False
        """True if packets are collected for :meth:`take`, to be merged with those of programs."""
        self.followers: list[Follower] = []
        """Others that get the same packets from now on, with the same snap length."""
        self.of_program: Callable[[int], Recording] | None = None
        """Function that creates the recording of a program, by PID, if each has its own."""
        self._counters = counters
        self._linktype = linktype
        self._file = file
        self._ended = ended
        self._rest = b""
        """Rest of a partly written block."""
        self._collected: list[tuple[int, bytes, int]] = []
        self._fd = file.fileno() if isinstance(file, FileIO) else -1
        self._blocks: _recording.Blocks | None = None if _compiled is None else _compiled.Blocks()
        self._packets = 0
        self._left_out = 0
        self._writer: PcapngWriter | None = None
        try:
            if file is not None:
                self._writer = PcapngWriter(self, linktype)
        except OSError as error:
            self._end(error)

    @property
    def active(self) -> bool:
        """True while the file or a follower accepts packets."""
        return self._writer is not None or bool(self.followers)

    def adapt_snap(self) -> bool:
        """Without a file keep no more of packets than followers want; return whether that changes anything."""
        if self._file is not None:
            return False
        before, self.snap = self.snap, max([follower.snap for follower in self.followers], default=SNAP_MAX)
        return self.snap != before

    def write(self, data: bytes) -> None:
        """Write to the file without waiting: eventually all of the data or nothing.

        Raises:
            OSError: the file takes no more.
        """
        self._write(data)

    def _write(self, data: Buffer | None) -> bool:
        """Write ``data``, or the bursts of :meth:`put`."""
        assert self._file is not None
        if self._rest:
            self._rest = self._rest[self._file.write(self._rest) or 0 :]
        if self._rest:
            return False
        if data is not None:
            taken = self._file.write(data) or 0  # None from a file that would block its writer
            self._rest = bytes(data[taken:]) if taken else b""
            return taken > 0
        assert self._blocks is not None
        taken = self._blocks.write(self._fd)
        self._rest = self._blocks.after(taken) if 0 < taken < self._blocks.size else b""
        return taken > 0

    def _end(self, error: OSError) -> None:
        """End the recording."""
        self._writer = None
        self._counters.bump("capture_ended")
        if self._ended is not None:
            self._ended(error)

    def add(
        self,
        now_ns: int,
        flow: Flow,
        payload: Buffer,
        ident: int,
        frag: int = DONT_FRAGMENT,
        arrived: tuple[int, int, int] | None = None,
    ) -> None:
        """Record a packet: now, or with the next :meth:`take` if packets of programs are merged."""
        if not self.active:
            return
        block = self.blocks(now_ns, flow, [(payload, len(payload), ident)], frag, arrived)
        if self.collects:
            self._collected.append((now_ns, block, 1))
        else:
            self.write_blocks(block, 1)

    def blocks(
        self,
        now_ns: int,
        flow: Flow,
        packets: Sequence[tuple[Buffer, int, int]],
        frag: int = DONT_FRAGMENT,
        arrived: tuple[int, int, int] | None = None,
    ) -> bytes:
        """Return the blocks of some packets, for :meth:`write_blocks`.

        Args:
            now_ns: their time.
            flow: their path.
            packets: for each its captured bytes from the BTH on, its length, and its IP ID.
            frag: IPv4 flags and fragment offset.
            arrived: traffic class, hop limit and flow label as they arrived, if routers may have changed the flow's.
        """
        ethernet = path_ethernet(flow).pack() if self._linktype == LINKTYPE_ETHERNET else b""
        parts: list[Buffer] = []
        if len(flow.src) == 4:
            tclass, hop_limit, _ = arrived or (flow.tclass, flow.hop_limit, 0)
            headers = IPv4Headers(flow, frag, tclass, hop_limit)
            for data, length, ident in packets:
                head = ethernet + headers.make(length, ident)
                parts += packet_block(now_ns, (head, data[: self.snap]), len(head) + length)
            return b"".join(parts)
        for data, length, ident in packets:
            packet = ethernet + ip_packet(flow, bytes(data).ljust(length, b"\0"), ident, frag, arrived)
            kept = len(packet) - length + min(len(data), self.snap)
            parts += packet_block(now_ns, (packet[:kept],), len(packet))
        return b"".join(parts)

    def head(self, flow: Flow, arrived: tuple[int, int, int]) -> bytes:
        """Return the headers in front of each packet of a burst, without lengths, for :meth:`put`; empty for IPv6.

        Args:
            flow: their path.
            arrived: traffic class, hop limit and flow label.
        """
        if len(flow.src) != 4:
            return b""
        head = IPv4Headers(flow, DONT_FRAGMENT, arrived[0], arrived[1]).make(0, 0)
        return path_ethernet(flow).pack() + head if self._linktype == LINKTYPE_ETHERNET else head

    def put(self, burst: Burst) -> bool:
        """Record a burst with the next :meth:`flush`; return whether that is due now."""
        stride, count = min(self.snap, burst.segment), -(-burst.length // burst.segment)
        if self._blocks is not None and burst.head:
            rest = burst.time_ns, burst.head, burst.kept, burst.length, burst.segment, stride, burst.idents
            if not self._blocks.put(*rest):
                self.flush()
                self._blocks.put(*rest)
            return self._blocks.due
        packets = []
        for index in range(count):
            size = min(burst.segment, burst.length - index * burst.segment)
            ident = index if burst.idents is None else burst.idents[index]
            packets.append((burst.kept[index * stride :][: min(stride, size)], size, ident))
        self.flush()
        self.write_blocks(self.blocks(burst.time_ns, burst.flow, packets, DONT_FRAGMENT, burst.arrived), count)
        return True

    def records(self) -> _recording.Records:
        """Return an empty batch of records for :meth:`put_records`."""
        assert _compiled is not None
        records: _recording.Records = _compiled.Records(self.snap)
        return records

    def put_records(self, records: _recording.Records, until_ns: int) -> Reason:
        """Record the next records with the next :meth:`flush`; return why it ended.

        Args:
            records: of :meth:`records`, sorted.
            until_ns: time of the last record.
        """
        assert self._blocks is not None
        return Reason(records.fill(self._blocks, until_ns))

    def flush(self) -> None:
        """Write the bursts of :meth:`put` and the records of :meth:`put_records`."""
        blocks = self._blocks
        if blocks is not None and blocks.size:
            try:
                direct = self._fd >= 0 and not self.followers
                self.write_blocks(None if direct else blocks.after(0), blocks.packets)
            finally:
                blocks.clear()

    def discard(self) -> None:
        """Forget what :meth:`flush` would write: the rings' memory is about to change."""
        if self._blocks is not None:
            self._blocks.clear()

    def take(self) -> list[tuple[int, bytes, int]]:
        """Return the collected entries: time, blocks and number of packets."""
        collected, self._collected = self._collected, []
        return collected

    def write_blocks(self, blocks: Buffer | None, packets: int) -> None:
        """Write the blocks of some packets, all or none; ``None`` for those that wait for :meth:`flush`."""
        for follower in tuple(self.followers):
            assert blocks is not None
            follower.write_blocks(blocks, packets)
        if self._writer is None:
            return
        try:
            written = self._write(blocks)
        except OSError as error:
            self._end(error)
            return
        if written:
            self._packets += packets
        else:
            self._count_left_out(packets)

    def left_out(self, packets: int) -> None:
        """Count packets that were not passed to the recording."""
        for follower in self.followers:
            follower.left_out(packets)
        self._count_left_out(packets)

    def _count_left_out(self, packets: int) -> None:
        if self._file is not None:
            self._left_out += packets
            self._counters.bump("capture_dropped", packets)

    def finish(self) -> None:
        """Write the remaining packets, and the file's statistics: packets recorded and left out."""
        blocks = sorted(self.take())
        if blocks:
            self.write_blocks(b"".join([block for _, block, _ in blocks]), sum([count for _, _, count in blocks]))
        try:
            if self._writer is not None:
                most = (1 << 64) - 1
                self._writer.statistics(min(self._packets + self._left_out, most), min(self._left_out, most))
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self._end(error)
        self._writer = None


def path_ethernet(flow: Flow) -> Ethernet:
    """Return the path's MAC addresses, or locally administered ones that end in the IP addresses."""
    return Ethernet(
        dst_mac=flow.dmac or 0x0200 << 32 | int.from_bytes(flow.dst[-4:], "big"),
        src_mac=flow.smac or 0x0200 << 32 | int.from_bytes(flow.src[-4:], "big"),
        ethertype=TYPE_IPV4 if len(flow.src) == 4 else TYPE_IPV6,
    )


__all__ = ["SNAP_MAX", "Burst", "Follower", "Reason", "Recording", "path_ethernet"]
