"""The rings by which programs with slots hand packets to the recorder (:mod:`rnic.state.capture_ring`).

A record is copied before it is checked, and long packets only by the system, on their way into the file: the program
may write anything there, and corrupts no packets but its own. All rings are read together and their packets sorted by
time, so that no packet comes before one that caused it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.link.recorder import find_ident
from rnic.link.recording import Burst, Reason, Recording
from rnic.link.udp import UdpLink
from rnic.link.udp_socket import split_address
from rnic.mem.order import fence
from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.memfd import shared_memory
from rnic.state.capture_ring import ALL, AT, BYTES, CAPTURE_RING, RECEIVED, SENT
from rnic.state.record import place
from rnic.wire.flow import Flow

if TYPE_CHECKING:
    from rnic.link import _recording

DRAIN_NS = 5_000_000
"""Nanoseconds between two reads of the rings, when the last found nothing."""
BUSY_NS = 1_000_000
"""Nanoseconds between two reads, when the last found packets: those in a ring should still be in the cache."""
_HEAD, _TAIL, _DROPPED, _RECORDS, _WAITS, _SNAP = (
    place(CAPTURE_RING, name) for name in ("head", "tail", "dropped", "records", "waits", "snap")
)
_PASSES = 8
"""Maximum number of further passes over the rings, to find the packets that caused those already read."""
_NEVER = (1 << 64) - 1
_TAKEN_MAX = 2_048
"""Packets taken from a ring at once: other programs are served in between."""
_FILLS_BYTES = BYTES // 2
"""A ring that holds this many bytes is read again at once, before its program waits."""
_DROPPED_MAX = 1 << 24
"""Packets that a program may report as left out since the last read: no more can have passed."""
_MAX_NAMES = 4_096
"""Peers of a slot whose flows are remembered."""


class CaptureRing:
    """The ring of one slot.

    Args:
        recording: gets its packets.
        link: link of the slot, which interprets socket addresses.
        waits: programs wait if the ring is full; else they leave packets out.
        number: its number among the rings of the recording.

    Raises:
        OSError: the kernel refuses memory to share.
    """

    def __init__(self, recording: Recording, link: UdpLink, waits: bool, number: int) -> None:
        self.number = number
        self._recording = recording
        self._link = link
        self.memfd = Descriptor()
        self._page = shared_memory("rnic capture", ALL, self.memfd)
        self._tail = 0
        self._freed = 0
        self._dropped = 0
        self._broken = False
        self.fills = False
        """True if the ring was filling up when it was last read."""
        self._flows: dict[tuple[int, bytes, int, int, int, int], tuple[Flow, bytes]] = {}
        """The path of a record's packets and their headers, by its fields."""
        self._bytes = memoryview(self._page)
        self._words = self._bytes[:AT].cast("Q")
        self._words[_WAITS] = int(waits)
        self.update()

    def update(self) -> None:
        """Have the program pass its packets, or stop, as the recording wants."""
        self._words[_SNAP] = self._recording.snap
        self._words[_RECORDS] = int(self._recording.active)

    def take(self, records: _recording.Records, before_ns: int = _NEVER) -> None:
        """Take the ring's first records that are no later than ``before_ns``; :meth:`free` releases their space."""
        head = self._words[_HEAD]
        fence()
        self.fills = head - self._tail > _FILLS_BYTES
        if not self._broken:
            active = self._recording.active
            self._tail, self._broken = records.scan(
                self.number, self._bytes, self._tail, head, before_ns, _TAKEN_MAX, active
            )
        if self._broken:
            self._words[_WAITS] = 0
        self._count_dropped()

    def free(self, end: int | None = None) -> None:
        """Let the program overwrite the records before ``end``; by default all that were taken."""
        self._freed = self._tail if end is None else max(end, self._freed)
        fence()
        self._words[_TAIL] = self._freed

    def _count_dropped(self) -> None:
        dropped = self._words[_DROPPED]
        if 0 < dropped - self._dropped < _DROPPED_MAX:
            self._recording.left_out(dropped - self._dropped)
        self._dropped = dropped

    def learn(self, records: _recording.Records) -> Burst | None:
        """Tell ``records`` the path of its next record, or take that record and return its burst.

        Also returns ``None`` for a record that no engine writes, which is taken.
        """
        _, kind, time_ns, length, segment, label, tclass, hop_limit, name, source_port, at, size = records.peek()
        try:
            flow, head = self._flow(kind, name, tclass, hop_limit, label, source_port)
        except ValueError:
            records.take()
            return None
        if kind == SENT and head:
            records.learn(head)
            return None
        records.take()
        kept = self._bytes[at : at + size]
        stride, count = min(self._recording.snap, segment), -(-length // segment)
        idents = None
        if kind == RECEIVED:
            kept = memoryview(bytes(kept))  # copy it before it is parsed
            idents = list(range(count))
            for index in idents:
                packet, whole = kept[index * stride : (index + 1) * stride], min(segment, length - index * segment)
                if len(packet) == whole:
                    idents[index] = find_ident(packet, flow, index)
        return Burst(time_ns, flow, head, kept, length, segment, idents, (tclass, hop_limit, label))

    def _flow(
        self, kind: int, name: bytes, tclass: int, hop_limit: int, label: int, source_port: int
    ) -> tuple[Flow, bytes]:
        key = kind, name, tclass, hop_limit, label, source_port
        known = self._flows.get(key)
        if known is None:
            if len(self._flows) == _MAX_NAMES:
                self._flows.clear()
            address, port = split_address(name)
            here, there = (self._link.address, self._link.port), (address, port)
            if len(address) != len(here[0]):
                raise ValueError(f"{len(address)} bytes of an address")
            if kind == SENT and source_port not in self._link.source_ports:
                raise ValueError(f"source port {source_port}")
            (src, sport), (dst, dport) = (there, here) if kind == RECEIVED else ((here[0], source_port), there)
            flow = Flow(src, dst, sport, dport, tclass, hop_limit, label)
            known = self._flows[key] = flow, self._recording.head(flow, (tclass, hop_limit, label))
        return known

    def close(self) -> None:
        """Close it together with the slot."""
        self._words.release()
        self._bytes.release()
        self._page.close()
        self.memfd.close()


class CaptureRings:
    """The rings of slots whose packets go to one recording.

    Args:
        recording: gets their packets, and what this process sends and receives for them.
        waits: programs wait if the ring is full; else they leave packets out.
    """

    def __init__(self, recording: Recording, waits: bool) -> None:
        self.recording = recording
        self._waits = waits
        self._rings: dict[int, CaptureRing] = {}
        self._added = 0
        self._records: _recording.Records | None = None
        self._due_ns = 0

    @property
    def in_use(self) -> bool:
        """Return whether any slot has a ring."""
        return bool(self._rings)

    def add(self, link: UdpLink) -> CaptureRing:
        """Make the ring of a new slot; raises OSError as :class:`CaptureRing`."""
        if self._records is None:
            self._records = self.recording.records()
        self._added += 1
        ring = self._rings[self._added] = CaptureRing(self.recording, link, self._waits, self._added)
        self.recording.collects = True
        return ring

    def remove(self, ring: CaptureRing) -> None:
        """Take the remaining records of the ring of a slot that has ended."""
        try:
            while self.drain():
                pass
        finally:
            del self._rings[ring.number]
            ring.close()
            if not self._rings:
                self.recording.collects = False

    def drain_if_due(self, now_ns: int) -> int | None:
        """Read all rings if it is time; return nanoseconds until the next read, ``None`` if nothing is recorded."""
        if not self._rings or not self.recording.active:
            return None
        if now_ns >= self._due_ns:
            pause = BUSY_NS if self.drain() else DRAIN_NS
            self._due_ns = now_ns if any(ring.fills for ring in self._rings.values()) else now_ns + pause
        return max(0, self._due_ns - now_ns)

    def update(self) -> None:
        """Have programs pass their packets from now on, or stop, as the recording wants.

        With another snap length, packets that are passed at this moment are lost.
        """
        if self.recording.adapt_snap() and self._records is not None:
            self._records = self.recording.records()
        for ring in self._rings.values():
            ring.update()

    def drain(self) -> bool:
        """Move the rings' packets into the recording, in the order of time; return whether there was anything.

        The cause of a packet was recorded before the packet: reading the rings once more finds it.
        """
        records = self._records
        if records is None:
            return False
        try:
            return self._drain(records)
        finally:
            self.recording.discard()
            records.clear()
            for ring in self._rings.values():
                ring.free()

    def _drain(self, records: _recording.Records) -> bool:
        own, rings = self.recording.take(), self._rings.values()
        for ring in rings:
            ring.take(records)
        if not records and not own:
            return False
        latest = max([records.latest_ns] + [each[0] for each in own])
        fills = [ring.fills for ring in rings]
        for _ in range(_PASSES):
            found = len(records)
            for ring in rings:
                ring.take(records, latest)
            if len(records) == found:
                break
        for ring, filled in zip(rings, fills, strict=True):
            ring.fills = filled
        records.sort()
        self._write(records, sorted(own, key=lambda each: each[0], reverse=True))
        if not self.recording.active:
            self.update()
        return True

    def _write(self, records: _recording.Records, own: list[tuple[int, bytes, int]]) -> None:
        """Write programs' records and this process's own packets, all in the order of time."""
        recording = self.recording
        while (reason := recording.put_records(records, own[-1][0] if own else _NEVER)) != Reason.DONE:
            if reason == Reason.LATER:
                recording.flush()
                recording.write_blocks(*own.pop()[1:])
            elif reason == Reason.UNKNOWN:
                burst = self._rings[records.peek()[0]].learn(records)
                if burst is not None:
                    recording.put(burst)
            else:
                recording.flush()
                for number, end in records.free_ends().items():
                    self._rings[number].free(end)
        recording.flush()
        for _, blocks, packets in reversed(own):
            recording.write_blocks(blocks, packets)


class DeviceCaptures:
    """The recordings of a device's programs: that of the device, or one for each program.

    Args:
        recording: the device's, which gets packets that no program sends or receives itself.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._shared = CaptureRings(recording, recording.waits)
        self._own: dict[int, CaptureRings] = {}

    def of(self, pid: int) -> CaptureRings:
        """Return the rings of a program's slots, which :meth:`release` gives back.

        Raises:
            OSError: its file cannot be opened.
        """
        if self.recording.of_program is None:
            return self._shared
        rings = self._own.get(pid)
        if rings is None:
            recording = self.recording.of_program(pid)
            recording.followers = self.recording.followers
            rings = self._own[pid] = CaptureRings(recording, recording.waits)
        return rings

    def release(self, pid: int) -> None:
        """Finish the recording of a program that no longer has a slot."""
        rings = self._own.get(pid)
        if rings is not None and not rings.in_use:
            del self._own[pid]
            rings.recording.finish()

    def drain_if_due(self, now_ns: int) -> int | None:
        """Read all rings if it is time; return nanoseconds until the next read, ``None`` if nothing is recorded."""
        due = [rings.drain_if_due(now_ns) for rings in self._all()]
        return min([each for each in due if each is not None], default=None)

    def drain(self) -> None:
        """Move the packets of all rings into their recordings."""
        for rings in self._all():
            rings.drain()

    def update(self) -> None:
        """Make programs pass their packets from now on, or stop, as the recordings require."""
        for rings in self._all():
            rings.update()

    def _all(self) -> list[CaptureRings]:
        return [self._shared, *self._own.values()]


__all__ = ["DRAIN_NS", "CaptureRing", "CaptureRings", "DeviceCaptures"]
