"""Records of completion and event queues: what the key-data cache holds of their contexts, and where their rings are.

The first words are the context's (owner ``ContextManager``), with the values of the CQC or EQC; they are zero while the
context is not cached. The others are the queue's own and stay.
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import WORD_BYTES, Owned, record

_SOURCE: Final = "002 4.2.2, 4.2.3; design.md, Contexts are real, and state is bytes"
CONTEXT: Final = "ContextManager"
_RING: Final[tuple[Owned, ...]] = (
    ("tail", "EntryRing", "index of the entry that is stored next"),
    ("phase", "EntryRing", "what its word 3 carries: the phase bit of this lap"),
    ("room", "EntryRing", "free entries known of"),
    ("failed", "EntryRing", "it takes no more entries"),
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
        ("told", "CompletionQueue", "it has raised a completion event: its owner sleeps until it does"),
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
"""Bytes at the start of each record that are the context's."""
