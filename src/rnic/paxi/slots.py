"""The life of one outstanding slot: a transaction from its address to its last response.

::

    EMPTY --read--> POST --posted--> WAIT --settled--> DONE --answered--> EMPTY
      |               ^ \\_settled_______________________^  ^
      |--write--> FILL|---filled                          |
      |             `-----void-----------------------------
      `--refused------------------------------------------'

``POST`` has pieces that no work request carries yet, ``WAIT`` has them all under way; ``replay`` takes a slot back to
``POST`` after the connection was made anew. What the table does not list cannot happen, and raises.
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
"""AR was taken, and there is something to read."""
WRITE: Final = 1
"""AW was taken; W beats follow, whatever becomes of them."""
REFUSED: Final = 2
"""AR was taken and is answered here."""
FILLED: Final = 3
"""The last W beat was taken, and there is something to write."""
VOID: Final = 4
"""The last W beat was taken, and the answer is known."""
POSTED: Final = 5
"""The last piece went into a work request."""
SETTLED: Final = 6
"""The answer is known and nothing is under way."""
REPLAY: Final = 7
"""Pieces have to be posted again."""
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
    """An event in a state that does not know it: a bug of the bridge."""


def step(state: int, event: int) -> int:
    """The next state.

    Raises:
        SlotError: the table does not list it.
    """
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise SlotError(f"slot in {STATE_NAMES[state]} met {EVENT_NAMES[event]}")
    return found
