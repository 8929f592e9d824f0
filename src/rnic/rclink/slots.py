"""The state machine of a send WQE (``hardware.md`` §4), and nothing else.

A packet to send takes a slot and keeps it until it is acknowledged. What is not in the table cannot happen: it is an
error of ours, and whoever asks for it gets :class:`SlotError`.
"""

from __future__ import annotations

from enum import Enum


class SlotState(Enum):
    """Where a slot is."""

    EMPTY = "EMPTY"
    WAIT_GRANT = "WAIT_GRANT"
    """Holds a packet that waits for its turn, the first time or again."""
    WAIT_ACK = "WAIT_ACK"
    """The packet has left."""
    WAIT_CRD = "WAIT_CRD"
    """The packet's turn had come, and the QP's rate window had no room."""


class SlotInput(Enum):
    """What happens to a slot."""

    WRITE = "a packet is written into it"
    GRANT = "the arbiter sends it"
    BLOCK = "rate control masks the QP"
    UNBLOCK = "rate control lifts the mask"
    ACK = "the receiver has acknowledged it"
    RETRY = "NAK or timeout: it goes again"
    FREE = "recovery throws it away"


class SlotError(AssertionError):
    """A transition that the table does not have: a fault of this program."""


_EMPTY, _GRANT, _ACK, _CRD = SlotState.EMPTY, SlotState.WAIT_GRANT, SlotState.WAIT_ACK, SlotState.WAIT_CRD

TRANSITIONS: dict[tuple[SlotState, SlotInput], SlotState] = {
    # hardware.md §4
    (_EMPTY, SlotInput.WRITE): _GRANT,
    (_GRANT, SlotInput.GRANT): _ACK,
    (_GRANT, SlotInput.BLOCK): _CRD,
    (_CRD, SlotInput.UNBLOCK): _GRANT,
    (_ACK, SlotInput.ACK): _EMPTY,
    (_ACK, SlotInput.RETRY): _GRANT,
    # choice: an ACK on its way when the sender went back, so that what it covers need not go again
    (_GRANT, SlotInput.ACK): _EMPTY,
    (_CRD, SlotInput.ACK): _EMPTY,
    # the recovery procedure's free_buf_set
    (_GRANT, SlotInput.FREE): _EMPTY,
    (_ACK, SlotInput.FREE): _EMPTY,
    (_CRD, SlotInput.FREE): _EMPTY,
}


def next_state(state: SlotState, happened: SlotInput) -> SlotState:
    """Where a slot is after an input.

    Raises:
        SlotError: the table has no such transition.
    """
    after = TRANSITIONS.get((state, happened))
    if after is None:
        raise SlotError(f"slot in {state.name} was told {happened.name}, which cannot happen there")
    return after
