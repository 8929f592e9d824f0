"""Verbs that fail on command: their numbers, and the record by which a library learns the rules that it applies.

The grammar is :mod:`rnic.link.verbs_faults`'s. The NIC applies rules for verbs that are commands. Those for work
requests and completions are the library's, in the program: it reads the records once, when it opens the device.
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
    """A verb that can fail on command.

    ``match`` are the keys that a rule may match by; ``library``: the library carries its rules out.
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
"""A completion has another status, and its queue pair goes to the error state."""
FAULT_LATE = 3
"""A completion is late, and so are those after it."""
FAULT_LIMIT = 4
"""A poll returns at most this many completions."""
FAULT_EVENT = 5
"""A fault event is injected into the device; the verb itself continues."""

MAX_VERBS_RULES: Final = 256
"""Rules for verbs in one script: what the library applies fits one message."""

REQUESTS: Final = tuple(row for row in WORK_REQUESTS if row.ibv_wr)
"""Work requests of programs; the place of one here is its bit in a rule's ``opcodes``."""
RECEIVED: Final = 31
"""The bit of completions of receives."""

VERBS_RULE: Final = Layout(
    "verbs rule",
    72,
    "little",
    "process boundary",
    (
        word("verb", 0, "VERB_* number"),
        word("action", 4, "FAULT_* number"),
        word("rule", 8, "its place in the script, from 1"),
        word("opcodes", 12, "bits of the kinds of request that it matches; 0 for all"),
        word("qp", 16, "queue pair number that it matches, 0 for all"),
        wide("value", 24, "errno, IBV_WC_* status, nanoseconds, or a count"),
        wide("nth", 32, "0 where there is none"),
        wide("every", 40, "0 where there is none"),
        wide("times", 48, "how often it acts at most, of each queue pair; 0 for always"),
        wide("threshold", 56, "it acts where a draw is below; 0 where it does not draw"),
        wide("seed", 64, "of its draws"),
    ),
)

__all__ = [name for name in dir() if name.isupper()] + ["FaultyVerb"]
