"""State machine of a send WQE (``hardware.md`` §4).

A packet occupies a slot until it is acknowledged. A transition that the table does not list is an internal error and
raises :class:`SlotError`.
"""

from __future__ import annotations

from enum import Enum


class SlotState(Enum):
    """State of a slot."""

    EMPTY = "EMPTY"
    WAIT_GRANT = "WAIT_GRANT"
    """The packet waits for the arbiter, for the first transmission or a retransmission."""
    WAIT_ACK = "WAIT_ACK"
    """The packet was sent and is not acknowledged."""
    WAIT_CRD = "WAIT_CRD"
    """The packet is next, but the QP's rate window is full."""


class SlotInput(Enum):
    """Event that moves a slot."""

    WRITE = "a packet is written into it"
    GRANT = "the arbiter sends it"
    BLOCK = "rate control masks the QP"
    UNBLOCK = "rate control lifts the mask"
    ACK = "the receiver has acknowledged it"
    RETRY = "NAK or timeout: it is retransmitted"
    FREE = "recovery discards it"


class SlotError(AssertionError):
    """Transition that the table does not list: an internal error."""


_EMPTY, _GRANT, _ACK, _CRD = SlotState.EMPTY, SlotState.WAIT_GRANT, SlotState.WAIT_ACK, SlotState.WAIT_CRD

TRANSITIONS: dict[tuple[SlotState, SlotInput], SlotState] = {
    # hardware.md §4
    (_EMPTY, SlotInput.WRITE): _GRANT,
    (_GRANT, SlotInput.GRANT): _ACK,
    (_GRANT, SlotInput.BLOCK): _CRD,
    (_CRD, SlotInput.UNBLOCK): _GRANT,
    (_ACK, SlotInput.ACK): _EMPTY,
    (_ACK, SlotInput.RETRY): _GRANT,
    # choice: an ACK that arrives after the sender went back saves the retransmission
    (_GRANT, SlotInput.ACK): _EMPTY,
    (_CRD, SlotInput.ACK): _EMPTY,
    # the recovery procedure's free_buf_set
    (_GRANT, SlotInput.FREE): _EMPTY,
    (_ACK, SlotInput.FREE): _EMPTY,
    (_CRD, SlotInput.FREE): _EMPTY,
}


def next_state(state: SlotState, happened: SlotInput) -> SlotState:
    """Return the state of a slot after an input.

    Raises:
        SlotError: the table has no such transition.
    """
    after = TRANSITIONS.get((state, happened))
    if after is None:
        raise SlotError(f"slot in {state.name}: input {happened.name} is not valid in this state")
    return after
