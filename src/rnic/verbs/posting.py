"""Software's side of a send queue: identifiers of posted requests, and the index of the next descriptor."""

from __future__ import annotations

import threading
from collections.abc import Collection
from errno import EIO
from typing import Any

from rnic.engine import use
from rnic.spec import opcodes as op
from rnic.spec.errors import VerbsError
from rnic.verbs import enums as e
from rnic.verbs.attrs import SendWR

_OPCODE_OF = {row.ibv_wr: row.opcode for row in op.WORK_REQUESTS}
OPCODES = {number: _OPCODE_OF[name] for number, name in e.WR_OPCODE_NAMES.items()}
"""Opcode of a descriptor for each ``IBV_WR_*`` number."""
KEYED = op.work_requests("key")
OPERANDS = op.work_requests("operand")
PLAIN = {
    number: opcode
    for number, opcode in OPCODES.items()
    if opcode not in KEYED | op.work_requests("atomic") | op.work_requests("local") | OPERANDS
}
"""Operations whose descriptors hold only a buffer, a remote address and key, and an immediate."""


class SendQueue:
    """A send ring as software sees it; callers hold the queue pair's lock.

    Args:
        entries: of the ring.
    """

    __slots__ = ("entries", "head", "ids", "tail")

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.reset()

    def reset(self) -> None:
        """Empty the queue."""
        self.head = 0
        """Index of the oldest entry that has not completed."""
        self.tail = 0
        """Index of the next entry."""
        self.ids: list[int] = [0] * self.entries
        """Work request identifiers."""

    def close(self) -> None:
        """Close the queue."""

    def post(self, *_: int) -> bool:
        """Return false: it does not post by itself."""
        return False

    def post_send(self, _: object) -> bool:
        """Return false, as :meth:`post` does."""
        return False

    def post_words(self, _: object, __: object) -> int:
        """Return -1: it does not post by itself."""
        return -1


class InheritedQueue(SendQueue):
    """A forked child's replacement for a send or receive queue: nothing can be posted there."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(0)

    @property
    def posted(self) -> int:
        """Number of posted receives."""
        raise in_child()

    def post(self, *_: object) -> bool:
        """Refuse."""
        raise in_child()

    def post_send(self, _: object) -> bool:
        """Refuse."""
        raise in_child()

    def post_words(self, _: object, __: object) -> int:
        """Refuse."""
        raise in_child()


def in_child() -> VerbsError:
    """Return the error of a forked child that uses a device that its parent opened: EIO, as in C."""
    return VerbsError(EIO, "the device was opened before this process was forked: open it again here")


def queue_lock(driver: Any) -> Any:
    """Return the lock to hold around changes of a send queue: a compiled queue has a lock that C takes without
    Python."""
    return threading.Lock() if getattr(driver, "doorbell", None) is None else use.engine().DeviceLock()


def send_queue(
    driver: Any, lock: Any, block: int, ring: memoryview, entries: int, batched: Collection[int], plain: bool
) -> Any:
    """Return a compiled queue, which posts plain requests by itself, if C drives the device in this process; else a
    Python one.

    Args:
        lock: that of :func:`queue_lock`, held around what changes the queue.
        block: number of its queue block.
        ring: its descriptors.
        entries: number of descriptors.
        batched: opcodes of descriptors that may be posted as an array.
        plain: whether :data:`PLAIN` descriptors are complete; those of datagrams name a destination.
    """
    doorbell = getattr(driver, "doorbell", None)
    if doorbell is None:
        return SendQueue(entries)
    return use.engine().SendQueue(
        doorbell, lock, block, driver.registers, ring, entries, PLAIN if plain else {}, batched, SendWR
    )
