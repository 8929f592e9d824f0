"""State machine of a slot: one transaction from its address to its last response.

::

    EMPTY --read--> POST --posted--> WAIT --settled--> DONE --answered--> EMPTY
      |               ^ \\_settled_______________________^  ^
      |--write--> FILL|---filled                          |
      |             `-----void-----------------------------
      `--refused------------------------------------------'

In ``POST`` some pieces are not posted yet; in ``WAIT`` all are outstanding. ``replay`` returns a slot to ``POST`` after
a reconnect. A transition that the table does not list raises :class:`SlotError`.
"""

from __future__ import annotations

from typing import Final

EMPTY: Final = 0
FILL: Final = 1
POST: Final = 2
WAIT: Final = 3
DONE: Final = 4
STATE_NAMES: Final = ("EMPTY", "FILL", "POST", "WAIT", "DONE")

READ: Final = 0
"""AR was taken, and bytes are to be read."""
WRITE: Final = 1
"""AW was taken; W beats follow, even if the burst is refused."""
REFUSED: Final = 2
"""AR was taken and needs no work request."""
FILLED: Final = 3
"""The last W beat was taken, and bytes are to be written."""
VOID: Final = 4
"""The last W beat was taken, and the response is known."""
POSTED: Final = 5
"""The last piece was posted."""
SETTLED: Final = 6
"""The response is known, and no work request is outstanding."""
REPLAY: Final = 7
"""Pieces must be posted again."""
ANSWERED: Final = 8
"""B, or the last beat of R, was taken."""
EVENT_NAMES: Final = (
    "READ", "WRITE", "REFUSED", "FILLED", "VOID", "POSTED", "SETTLED", "REPLAY", "ANSWERED",
)  # fmt: skip

TRANSITIONS: Final = {
    (EMPTY, READ): POST,
    (EMPTY, WRITE): FILL,
    (EMPTY, REFUSED): DONE,
    (FILL, FILLED): POST,
    (FILL, VOID): DONE,
    (POST, POSTED): WAIT,
    (POST, SETTLED): DONE,
    (POST, REPLAY): POST,
    (WAIT, SETTLED): DONE,
    (WAIT, REPLAY): POST,
    (DONE, ANSWERED): EMPTY,
}
"""(state, event) -> state."""


class SlotError(AssertionError):
    """Event that is not valid in its state: a bug of the bridge."""


def step(state: int, event: int) -> int:
    """Return the next state.

    Raises:
        SlotError: the table does not list the transition.
    """
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise SlotError(f"slot in {STATE_NAMES[state]} met {EVENT_NAMES[event]}")
    return found
