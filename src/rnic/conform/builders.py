"""Known deviations of vendors from the standard, found on their products, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Deviation(NamedTuple):
    """A deviation. ``shows`` maps each test to the text of its failure that identifies this deviation."""

    says: str
    shows: Mapping[str, str]


RXE = (
    Deviation(
        "a READ asked for again from its middle is answered as the rest of the first one: MIDDLE and LAST",
        {
            "duplicate-read-middle": "RC_READ_RESPONSE_MIDDLE and not RC_READ_RESPONSE_FIRST",
            "duplicate-read-last": "RC_READ_RESPONSE_LAST and not RC_READ_RESPONSE_ONLY",
        },
    ),
    Deviation(
        "a SEND longer than its receive entry is a remote operational error",
        {"send-too-long": "syndrome 0x63 and not 0x61"},
    ),
    Deviation("an opcode that it does not know is dropped", {"reserved-opcode": "nothing came"}),
    Deviation(
        "behind an RNR NAK the next packet draws a sequence NAK too",
        {"rnr-then-silence": "NAK PSN sequence error msn=0 came where nothing may"},
    ),
    Deviation("it sends no congestion notifications", {"marked": "nothing came where this must: CNP"}),
    Deviation("an ACK of what was not sent yet counts", {"out-ghost-ack": "a completion came where none may"}),
    Deviation(
        "a READ response that passes over another says nothing: the timeout does",
        {"out-implied-nak": "nothing came where this must: READ_REQUEST"},
    ),
    Deviation(
        "it does not look at credits",
        {
            "out-credits": "ackreq 0 and not 1",
            "out-credits-count": "ackreq 0 and not 1",
            "out-credits-later": "came where nothing may",
        },
    ),
    Deviation(
        "a READ takes an atomic's response for its own",
        {"out-read-wrong-kind": "send SUCCESS completed where this must"},
    ),
    Deviation(
        "UC: what follows a message that was cut short is dropped too", {"uc-gap": "no completion came where this must"}
    ),
)
"""Deviations of Soft-RoCE (rxe) of Linux 6.1."""

DEVIATIONS: dict[str, tuple[Deviation, ...]] = {"rxe": RXE}
"""Deviations by vendor, as the agent names it."""
