"""READ and atomic requests that a responder has executed and saves for duplicates (IBA C9-105)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.spec.psn import psn_diff
from rnic.state.queue_pair import QP, RESOURCE, RESOURCES, QpMemory, QpRecord
from rnic.state.record import WORD_BYTES, Record, Run, Word, view

if TYPE_CHECKING:
    from rnic.transport.qp import QueuePair
    from rnic.wire.packet import Packet


@view(RESOURCE)
class Resource(Record):
    """An executed READ or atomic request, saved so that a duplicate gets the same response (IBA C9-105)."""

    __slots__ = ()

    psn: Word
    packets: Word
    opcode: Word
    atomic: Word
    va: Word
    rkey: Word
    length: Word
    swap_add: Word
    compare: Word
    orig: Word

    def fill(self, packet: Packet, packets: int, orig: int, atomic: bool) -> None:
        """Fill in the executed request."""
        self.psn = packet.psn
        self.packets = packets
        self.opcode = packet.opcode
        self.va = packet.va
        self.rkey = packet.rkey
        self.length = packet.dma_length
        self.swap_add = packet.swap_add if atomic else 0
        self.compare = packet.compare if atomic else 0
        self.orig = orig
        self.atomic = atomic


@view(QP, "Resources")
class Resources(QpRecord):
    """The executed READ and atomic requests of one queue pair: a ring of slots, oldest first."""

    __slots__ = ("_kept", "ctx")

    resource_first: Word
    resource_count: Word

    def __init__(self, memory: QpMemory, qp: QueuePair) -> None:
        self.ctx = qp.ctx
        self._kept = Run(Resource, memory.arena.memory, memory.resources * WORD_BYTES, RESOURCE.size)

    def __len__(self) -> int:
        return self.resource_count

    def clear(self) -> None:
        """Remove all of them."""
        self.resource_first = self.resource_count = 0

    def keep(self, packet: Packet, packets: int, orig: int, atomic: bool) -> None:
        """Save an executed request, replacing the oldest if all slots are used; ``ra_buff_indx`` is the next slot."""
        ctx = self.ctx
        slots = min(max(1, ctx.max_dest_rd_atomic), RESOURCES)
        while self.resource_count >= slots:
            self.resource_first = (self.resource_first + 1) % RESOURCES
            self.resource_count -= 1
        self._at(self.resource_count).fill(packet, packets, orig, atomic)
        self.resource_count += 1
        ctx.ra_buff_indx = (ctx.ra_buff_indx + 1) % slots

    def find(self, packet: Packet) -> Resource | None:
        """Return the saved request that a duplicate repeats, fully or from a later packet on; else ``None``.

        The newest match counts: an older one may have the same PSN, from before a PSN wraparound.
        """
        for place in reversed(range(self.resource_count)):
            resource = self._at(place)
            if resource.opcode != packet.opcode or resource.rkey != packet.rkey:
                continue
            skipped = psn_diff(packet.psn, resource.psn)
            if not 0 <= skipped < resource.packets:
                continue
            if resource.atomic:
                same = (packet.va, packet.swap_add, packet.compare) == (
                    resource.va,
                    resource.swap_add,
                    resource.compare,
                )
                return resource if same else None
            offset = skipped * self.ctx.mtu_bytes
            if packet.va == resource.va + offset and packet.dma_length <= resource.length - offset:
                return resource
            return None
        return None

    def _at(self, place: int) -> Resource:
        return self._kept[(self.resource_first + place) % RESOURCES]
