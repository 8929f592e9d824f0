"""Records of queues: location of their rings, and the device's indices in them.

The first words of a completion or event queue's are the context's (owner ``ContextManager``), with the values of the
CQC or EQC; they are zero while the context is not cached. The others are the queue's own and stay. Rings lie in memory
of a driver context, which a number names.
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import WORD_BYTES, Owned, part, record

_SOURCE: Final = "002 4.2.2, 4.2.3; design.md, Contexts are real, and state is bytes"
CONTEXT: Final = "ContextManager"
_RING: Final[tuple[Owned, ...]] = (
    ("tail", "EntryRing", "index of the entry that is stored next"),
    ("phase", "EntryRing", "what its word 3 carries: the phase bit of this lap"),
    ("room", "EntryRing", "free entries known of"),
    ("failed", "EntryRing", "it takes no more entries"),
    ("driver", "EntryRing", "number of the driver context whose memory and window it uses"),
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
        ("head", "ReceiveRing", "index of the entry that is taken next"),
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
        ("driver", "SharedReceiveQueue", "number of the driver context whose memory and window it uses"),
        ("limit", "SharedReceiveQueue", "fewer entries than this raise the limit event; 0 for never"),
        ("taken", "SharedReceiveQueue", "entries taken, less those given back"),
        ("returned", "SharedReceiveQueue", "entries given back and not taken again; they go first"),
        ("failed", "SharedReceiveQueue", "it takes no new queue pairs"),
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
        ("lkey", CONTEXT, "key of the ring; 0 for memory of the driver that made the queue"),
        ("cqn", CONTEXT, "its number as software wrote it"),
        ("ci_db", CONTEXT, "consumer index record"),
        ("state_db", CONTEXT, "arm state record"),
        *_RING,
        ("last_notified", "CompletionQueue", "producer index at the last event"),
        ("solicited_index", "CompletionQueue", "producer index after the last solicited entry"),
        ("due", "CompletionQueue", "its EQ could not take the completion event yet"),
        ("notified", "CompletionQueue", "it was armed for an entry that came: its owner sleeps on completion events"),
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
        ("lkey", CONTEXT, "key of the ring; 0 for memory of the driver that made the queue"),
        *_RING,
        ("enabled", "KeyQpcData", "its event function is on"),
        ("pending", "EventQueue", "its interrupt waits to be taken"),
    ),
    16,
)

CONTEXT_BYTES: Final = {
    layout.name: sum(field.access == CONTEXT for field in layout.fields) * WORD_BYTES for layout in (CQ, EQ)
}
"""Bytes at the start of each record that belong to the context."""
