"""Fault injection for verbs: numbers of verbs and effects, and the record that passes rules to the library.

:mod:`rnic.link.verbs_faults` defines the grammar. The NIC applies rules for verbs that are device commands. The library
in the program applies those for work requests and completions; it reads the records when it opens the device.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rnic.spec.layout import Layout, wide, word
from rnic.spec.opcodes import WORK_REQUESTS

VERB_OPEN_DEVICE = 1
VERB_QUERY_DEVICE = 2
VERB_ALLOC_PD = 3
VERB_REG_MR = 4
VERB_DEREG_MR = 5
VERB_ALLOC_MW = 6
VERB_CREATE_CQ = 7
VERB_RESIZE_CQ = 8
VERB_DESTROY_CQ = 9
VERB_CREATE_SRQ = 10
VERB_DESTROY_SRQ = 11
VERB_CREATE_QP = 12
VERB_MODIFY_QP = 13
VERB_ATTACH_MCAST = 14
VERB_POST_SEND = 15
VERB_POST_RECV = 16
VERB_POLL_CQ = 17


class FaultyVerb(NamedTuple):
    """A verb that fault rules can name.

    ``match`` are the keys that its rules may match by. ``library`` is true if the library applies its rules.
    """

    number: int
    match: tuple[str, ...] = ()
    library: bool = False


FAULTY_VERBS: Final[dict[str, FaultyVerb]] = {
    "open_device": FaultyVerb(VERB_OPEN_DEVICE),
    "query_device": FaultyVerb(VERB_QUERY_DEVICE),
    "alloc_pd": FaultyVerb(VERB_ALLOC_PD),
    "reg_mr": FaultyVerb(VERB_REG_MR, ("length",)),
    "dereg_mr": FaultyVerb(VERB_DEREG_MR),
    "alloc_mw": FaultyVerb(VERB_ALLOC_MW),
    "create_cq": FaultyVerb(VERB_CREATE_CQ),
    "resize_cq": FaultyVerb(VERB_RESIZE_CQ),
    "destroy_cq": FaultyVerb(VERB_DESTROY_CQ),
    "create_srq": FaultyVerb(VERB_CREATE_SRQ),
    "destroy_srq": FaultyVerb(VERB_DESTROY_SRQ),
    "create_qp": FaultyVerb(VERB_CREATE_QP),
    "modify_qp": FaultyVerb(VERB_MODIFY_QP, ("state",)),
    "attach_mcast": FaultyVerb(VERB_ATTACH_MCAST),
    "post_send": FaultyVerb(VERB_POST_SEND, ("opcode", "qp"), library=True),
    "post_recv": FaultyVerb(VERB_POST_RECV, ("qp",), library=True),
    "poll_cq": FaultyVerb(VERB_POLL_CQ, ("opcode", "qp"), library=True),
}
"""Verbs by the name of the function without ``ibv_``."""

FAULT_FAIL = 1
"""The verb fails with an errno."""
FAULT_STATUS = 2
"""A completion gets another status, and its queue pair goes to the error state."""
FAULT_LATE = 3
"""A completion and those after it are delayed."""
FAULT_LIMIT = 4
"""A poll returns at most this many completions."""
FAULT_EVENT = 5
"""A fault event is injected into the device; the verb itself continues."""

MAX_VERBS_RULES: Final = 256
"""Most rules for verbs in one script, so that those for the library fit one message."""

REQUESTS: Final = tuple(row for row in WORK_REQUESTS if row.ibv_wr)
"""Work requests that programs can post; the index is the bit in a rule's ``opcodes``."""
RECEIVED: Final = 31
"""Bit of receive completions."""

VERBS_RULE: Final = Layout(
    "verbs rule",
    72,
    "little",
    "process boundary",
    (
        word("verb", 0, "VERB_* number"),
        word("action", 4, "FAULT_* number"),
        word("rule", 8, "number in the script, from 1"),
        word("opcodes", 12, "mask of request kinds to match; 0 for all"),
        word("qp", 16, "queue pair number to match, 0 for all"),
        wide("value", 24, "errno, IBV_WC_* status, nanoseconds, or a count"),
        wide("nth", 32, "first match to act on, without every the only one; 0 if unset"),
        wide("every", 40, "act on every Nth match; 0 if unset"),
        wide("times", 48, "most times that it applies, per queue pair; 0 for no limit"),
        wide("threshold", 56, "it applies if a random draw is below; 0 to not draw"),
        wide("seed", 64, "seed of its draws"),
    ),
)

__all__ = [name for name in dir() if name.isupper()] + ["FaultyVerb"]
