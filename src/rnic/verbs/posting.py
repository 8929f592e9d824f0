"""What software has of a send queue: the identifiers of what is posted, and where the next descriptor goes."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

from rnic.engine import use
from rnic.spec import opcodes as op
from rnic.verbs import enums as e
from rnic.verbs.attrs import SendWR

_OPCODE_OF = {row.ibv_wr: row.opcode for row in op.WORK_REQUESTS}
OPCODES = {number: _OPCODE_OF[name] for number, name in e.WR_OPCODE_NAMES.items()}
"""What an ``IBV_WR_*`` number is in a descriptor."""
KEYED = op.work_requests("key")
PLAIN = {
    number: opcode
    for number, opcode in OPCODES.items()
    if opcode not in KEYED | op.work_requests("atomic") | op.work_requests("local")
}
"""Operations whose descriptors hold nothing but a buffer, a place at the peer and an immediate."""


class SendQueue:
    """A send ring as software sees it; whoever has it holds the queue pair's lock.

    Args:
        entries: of the ring.
    """

    __slots__ = ("entries", "head", "ids", "tail")

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.reset()

    def reset(self) -> None:
        """The queue is empty."""
        self.head = 0
        """The oldest entry that has not completed."""
        self.tail = 0
        """Where the next goes."""
        self.ids: list[int] = [0] * self.entries
        """Work request identifiers."""

    def close(self) -> None:
        """The queue is gone."""

    def post(self, *_: int) -> bool:
        """Whether it posts by itself: it does not."""
        return False

    def post_send(self, _: object) -> bool:
        """As :meth:`post`."""
        return False

    def post_words(self, _: object, __: object) -> int:
        """As :meth:`post`: -1."""
        return -1


def queue_lock(driver: Any) -> Any:
    """What is held around changes of a send queue: where that is compiled, a lock that C takes without Python."""
    return threading.Lock() if getattr(driver, "doorbell", None) is None else use.engine().DeviceLock()


def send_queue(
    driver: Any, lock: Any, block: int, ring: memoryview, entries: int, batched: Collection[int], plain: bool
) -> Any:
    """A queue that posts by itself what is plain where the device is driven by C in this process, else a plain one.

    Args:
        lock: that of :func:`queue_lock`, held around what changes the queue.
        block: number of its queue block.
        ring: its descriptors.
        entries: how many.
        batched: opcodes of descriptors that may come by the array.
        plain: whether :data:`PLAIN` descriptors are complete; those of datagrams name a destination.
    """
    doorbell = getattr(driver, "doorbell", None)
    if doorbell is None:
        return SendQueue(entries)
    return use.engine().SendQueue(
        doorbell, lock, block, driver.registers, ring, entries, PLAIN if plain else {}, batched, SendWR
    )
