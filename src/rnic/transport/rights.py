"""Rights that a request needs from the queue pair's access flags and from the memory's key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.spec.access import FLUSH_GLOBAL, FLUSH_PERSISTENT
from rnic.spec.opcodes import ATOMIC_WRITE, LEVEL_MR, LEVEL_SHIFT, PLACEMENT_GLOBAL, PLACEMENT_PERSISTENT

if TYPE_CHECKING:
    from rnic.wire.packet import Packet

_PLACEMENTS = {
    PLACEMENT_GLOBAL: FLUSH_GLOBAL,
    PLACEMENT_PERSISTENT: FLUSH_PERSISTENT,
    PLACEMENT_GLOBAL | PLACEMENT_PERSISTENT: FLUSH_GLOBAL | FLUSH_PERSISTENT,
}


def flushes_region(packet: Packet) -> bool:
    """Return whether a FLUSH is for the whole region of its key."""
    return packet.row.feth and packet.feth >> LEVEL_SHIFT == LEVEL_MR


def needed_rights(packet: Packet) -> int:
    """Return the ``IBV_ACCESS_*`` bits that a request needs; 0 for one that needs none, such as a SEND.

    Also 0 for a FLUSH with a placement type or selectivity level that the standard does not define.
    """
    row = packet.row
    if not row.feth:
        return row.rights
    return 0 if packet.feth >> LEVEL_SHIFT > LEVEL_MR else _PLACEMENTS.get(packet.feth & 0xF, 0)


def misaligned(packet: Packet) -> bool:
    """Return whether the address of an atomic 8-byte update is not a multiple of eight."""
    row = packet.row
    return bool(packet.va & 7) if row.atomic or row.operation == ATOMIC_WRITE else False
