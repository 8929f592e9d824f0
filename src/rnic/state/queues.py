"""Records of queues: location of their rings, and the device's ring indices.

The first words of a CQ's or EQ's record belong to its context (owner ``ContextManager``) and hold the values of the CQC
or EQC; they are zero while the context is not cached. The other words belong to the queue and persist. Rings are in
memory of a driver context, given by its number.
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import WORD_BYTES, Owned, part, record

_SOURCE: Final = "002 4.2.2, 4.2.3; design.md, Contexts are real, and state is bytes"
CONTEXT: Final = "ContextManager"
_RING: Final[tuple[Owned, ...]] = (
    ("tail", "EntryRing", "index of the next entry to store"),
    ("phase", "EntryRing", "phase bit of this pass over the ring, as in word 3"),
    ("room", "EntryRing", "known number of free entries"),
    ("failed", "EntryRing", "1: it accepts no more entries"),
    ("driver", "EntryRing", "number of its driver context"),
)

SEND_RING: Final = record(
    "send ring",
    _SOURCE,
    (
        ("base", "SendRing", "virtual address of entry 0; the slab follows the last entry"),
        ("entries", "SendRing", "entries in the ring"),
        ("slab_bytes", "SendRing", "bytes of one slab slot, 0 for a ring without a slab"),
        ("shift", "SendRing", "log2 of the bytes from one entry to the next"),
    ),
)

RECEIVE_RING: Final = record(
    "receive ring",
    _SOURCE,
    (
        ("base", "ReceiveRing", "virtual address of slot 0"),
        ("entries", "ReceiveRing", "slots in the ring"),
        ("stride", "ReceiveRing", "bytes from one slot to the next"),
        ("head", "ReceiveRing", "index of the next entry to take"),
    ),
)

SRQ: Final = record(
    "shared receive queue",
    _SOURCE,
    (
        *part("", RECEIVE_RING),
        ("number", "SharedReceiveQueue", "its number"),
        ("pd", "SharedReceiveQueue", "protection domain of its entries"),
        ("block", "SharedReceiveQueue", "number of its queue block"),
        ("driver", "SharedReceiveQueue", "number of its driver context"),
        ("limit", "SharedReceiveQueue", "raise the limit event below this number of entries; 0 for never"),
        ("taken", "SharedReceiveQueue", "entries taken, less those returned"),
        ("returned", "SharedReceiveQueue", "entries returned and not taken again; these are taken first"),
        ("failed", "SharedReceiveQueue", "1: it accepts no new queue pairs"),
    ),
    16,
)

CQ: Final = record(
    "completion queue",
    _SOURCE,
    (
        ("flags", CONTEXT, "CQ flags as software wrote them"),
        ("start", CONTEXT, "virtual address of the ring; 0 with a key is the start of its region"),
        ("logsize", CONTEXT, "log2 of the number of entries"),
        ("usrpage", CONTEXT, "number of the queue block"),
        ("comp_eqn", CONTEXT, "EQ of completion events"),
        ("pd", CONTEXT, "protection domain"),
        ("lkey", CONTEXT, "key of the ring; 0 for memory of the driver that created the queue"),
        ("cqn", CONTEXT, "its number as software wrote it"),
        ("ci_db", CONTEXT, "consumer index record"),
        ("state_db", CONTEXT, "arm state record"),
        *_RING,
        ("last_notified", "CompletionQueue", "producer index at the last event"),
        ("solicited_index", "CompletionQueue", "producer index after the last solicited entry"),
        ("due", "CompletionQueue", "1: a completion event is pending because its EQ is full"),
        ("notified", "CompletionQueue", "1: it was armed when an entry arrived: its owner sleeps on completion events"),
    ),
    16,
)

EQ: Final = record(
    "event queue",
    _SOURCE,
    (
        ("flags", CONTEXT, "EQ flags as software wrote them"),
        ("start", CONTEXT, "virtual address of the ring; 0 with a key is the start of its region"),
        ("logsize", CONTEXT, "log2 of the number of entries"),
        ("usrpage", CONTEXT, "number of the queue block"),
        ("event_mask", CONTEXT, "event types that go to this EQ (WR_EQ_FUNC)"),
        ("msix_vector", CONTEXT, "interrupt vector"),
        ("pd", CONTEXT, "protection domain"),
        ("lkey", CONTEXT, "key of the ring; 0 for memory of the driver that created the queue"),
        *_RING,
        ("enabled", "KeyQpcData", "1: its event function is enabled"),
        ("pending", "EventQueue", "1: its interrupt is pending"),
    ),
    16,
)

CONTEXT_BYTES: Final = {
    layout.name: sum(field.access == CONTEXT for field in layout.fields) * WORD_BYTES for layout in (CQ, EQ)
}
"""Size of the context's part at the start of each record."""
