"""Tap on a world's wire, for digest and judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rnic.judge import Judge
from rnic.link.base import Link
from rnic.link.middleware import Middleware
from rnic.link.recorder import find_ident
from rnic.link.recording import path_ethernet
from rnic.spec.limits import BTH_BYTES, ICRC_BYTES
from rnic.wire.bursts import TxBurst
from rnic.wire.crc import crc32
from rnic.wire.dissect import LINKTYPE_ETHERNET
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet

if TYPE_CHECKING:
    from rnic.testing.world.run import World


_LEAST = BTH_BYTES + ICRC_BYTES


class Tap(Middleware):
    """Middleware that passes a NIC's packets, as they are on the wire after all faults, to digest and judge."""

    def __init__(self, inner: Link, world: World) -> None:
        super().__init__(inner)
        self._world = world
        self._heads: dict[tuple[Flow, int, int], bytes] = {}

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Record the packets and send them."""
        world = self._world
        now_ns = world.net.clock.now_ns
        for burst in bursts:
            data = b"".join(burst.buffers)
            digest = world.digest
            if now_ns != world.digested_ns:
                digest, world.digested_ns = crc32(now_ns.to_bytes(8), digest), now_ns
            for start in range(0, burst.length, burst.segment):  # ICRCs cover IP IDs, which are indices in bursts
                digest = crc32(data[start : min(start + burst.segment, burst.length) - ICRC_BYTES], digest)
            world.digest = digest
            world.packets += burst.count
            if world.judge is not None:
                self._judge(world.judge, now_ns, burst, data)
        self.inner.send(bursts)

    def _judge(self, judge: Judge, now_ns: int, burst: TxBurst, data: bytes) -> None:
        flow, world = burst.flow, self._world
        cut = world.lossy or world.event_faults
        corrupted = world.corrupted
        for index, start in enumerate(range(0, burst.length, burst.segment)):
            packet = data[start : start + burst.segment]
            ident = find_ident(memoryview(packet), flow, index) if cut and len(packet) >= _LEAST else index
            if corrupted and packet in corrupted:
                world.corrupted_frames.add(judge.frames + 1)
            key = flow, len(packet), ident
            head = self._heads.get(key)
            if head is None:
                head = self._heads[key] = _headers(*key)
            frame = head + packet
            judge.frame(now_ns, LINKTYPE_ETHERNET, frame, len(frame))


def _headers(flow: Flow, length: int, ident: int) -> bytes:
    """Return the headers of a packet: Ethernet, IP, and UDP without a checksum."""
    ip_and_udp = ip_packet(flow, bytes(length), ident)[:-length]
    return path_ethernet(flow).pack() + ip_and_udp[:-2] + bytes(2)
