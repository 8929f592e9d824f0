"""Loopback inside the NIC: rings that two programs of one device share (:mod:`rnic.state.shm_loopback`), handed out.

The NIC process makes the file of a pair when a queue pair of one program is to be connected to one of the other and
both asked for it (``rnic exec --bypass --hairpin``), and stores its own words in it: that a program's slot is served
here, that it has ended, that a queue pair has stopped or a key has ended. It reads nothing there but whether records
wait.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Iterator

from rnic.mem.order import fence, load32, store32
from rnic.nic_process.memfd import memory
from rnic.state.shm_loopback import (
    CONSUMER_AT,
    CONTROL_AT,
    COOKIE_BYTES,
    EPOCHS,
    EPOCHS_AT,
    RING_ALL,
    RING_CONSUMER,
    RING_CONTROL,
    RING_PRODUCER,
)


class End:
    """What a program has that takes part.

    Args:
        cookie_at: where in its memory the cookie lies, by which others know it.
    """

    def __init__(self, cookie_at: int) -> None:
        self.cookie_at = cookie_at
        self.cookie = secrets.token_bytes(COOKIE_BYTES)
        self.ear, self.bell = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        """What the program hears, and what others ring. Datagrams, since each call says by itself that it does not
        wait: whether an eventfd waits is for whoever holds it to say, for all."""

    def close(self) -> None:
        """It has ended."""
        self.ear.close()
        self.bell.close()


class Pair:
    """The rings between two slots, the first of which sends on ring 0; or between a slot and itself, one alone."""

    def __init__(self, first: int, second: int) -> None:
        self.members = first, second
        self.rings = 1 if first == second else 2
        self.bytes = self.rings * RING_ALL
        self.fd, self.shared = memory("rnic hairpin", self.bytes)
        self._epochs = [0] * (self.rings * EPOCHS)
        self._keys = [0] * self.rings

    def ring_of(self, member: int) -> int:
        """The ring that a slot sends on."""
        return 0 if member == self.members[0] else 1

    def _into(self, member: int) -> int:
        """Where the ring lies that a slot takes from."""
        return (self.rings - 1 - self.ring_of(member)) * RING_ALL

    def hold(self, member: int, held: bool) -> None:
        """The slot is served here, or by its program again."""
        store32(self.shared, self._into(member) + CONTROL_AT + RING_CONTROL["held"].byte, int(held))

    def waits(self, member: int) -> bool:
        """Whether records wait for the slot's program."""
        at = self._into(member)
        tail = load32(self.shared, at + RING_PRODUCER["tail"].byte)
        return tail != load32(self.shared, at + CONSUMER_AT + RING_CONSUMER["head"].byte)

    def stopped(self, member: int, number: int) -> None:
        """A queue pair of the slot has stopped: who reads from its memory just now has read nothing."""
        ring, group = self.ring_of(member), number % EPOCHS
        self._epochs[ring * EPOCHS + group] += 1  # of 32 bits, as what is stored
        store32(self.shared, ring * RING_ALL + EPOCHS_AT + 8 * group, self._epochs[ring * EPOCHS + group])
        fence()

    def key_ended(self, member: int) -> None:
        """A key of the slot's has ended: who reads for a READ from the slot's memory just now has read nothing."""
        ring = self.ring_of(member)
        self._keys[ring] += 1
        store32(self.shared, ring * RING_ALL + CONTROL_AT + RING_CONTROL["keys"].byte, self._keys[ring])
        fence()

    def close(self) -> None:
        """One of the two has ended; the other keeps what it has mapped."""
        for ring in range(self.rings):
            store32(self.shared, ring * RING_ALL + CONTROL_AT + RING_CONTROL["dead"].byte, 1)
        self.shared.close()
        os.close(self.fd)


class Hairpins:
    """All pairs of a device's slots."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], Pair] = {}
        self._of: dict[int, list[Pair]] = {}

    def pair(self, one: int, other: int) -> Pair:
        """The pair of two slots, made where there is none yet."""
        key = min(one, other), max(one, other)
        found = self._pairs.get(key)
        if found is None:
            found = self._pairs[key] = Pair(*key)
            for member in {one, other}:
                self._of.setdefault(member, []).append(found)
        return found

    def of(self, member: int) -> Iterable[Pair]:
        """Those of a slot."""
        return self._of.get(member, ())

    def members(self) -> Iterator[tuple[int, int]]:
        """Who shares rings with whom."""
        return iter(self._pairs)

    def end(self, member: int) -> None:
        """A slot is given back."""
        for pair in self._of.pop(member, []):
            del self._pairs[pair.members]
            for other in set(pair.members) - {member}:
                self._of[other].remove(pair)
            pair.close()


__all__ = ["End", "Hairpins", "Pair"]
