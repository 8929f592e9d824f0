"""Shared-memory loopback: rings between two programs of one device (:mod:`rnic.state.shm_loopback`).

The NIC process makes the file of a pair when a queue pair of one program connects to one of the other and both
requested it (``rnic exec --bypass --shm``). It stores its own words there: a program's slot is served here, a program
has ended, a queue pair has stopped, a key was invalidated. It reads only whether records wait.
"""

from __future__ import annotations

import _socket
import secrets
import socket
from collections.abc import Iterable, Iterator

from rnic.mem.order import fence, load32, store32
from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.memfd import shared_memory
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


class LoopbackEnd:
    """One program's part in loopback: its cookie and its wake-up sockets.

    Args:
        cookie_va: address in its memory of the cookie by which its peers know it.
    """

    def __init__(self, cookie_va: int) -> None:
        self.cookie_va = cookie_va
        self.cookie = secrets.token_bytes(COOKIE_BYTES)
        # socket.socketpair wraps these once more, and leaves one open if there is no memory for that
        self.wake_receiver, self.wake_sender = _socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        """The program sleeps on the first; its peers wake it by the second. A datagram call can be non-blocking by
        itself; with an eventfd, any holder decides that for all."""

    def close(self) -> None:
        """Close the sockets once the program has ended."""
        self.wake_receiver.close()
        self.wake_sender.close()


class RingPair:
    """The rings between two slots, the first of which sends on ring 0; one ring between a slot and itself."""

    def __init__(self, first: int, second: int) -> None:
        self.members = first, second
        self.rings = 1 if first == second else 2
        self.bytes = self.rings * RING_ALL
        self._epochs = [0] * (self.rings * EPOCHS)
        self._keys = [0] * self.rings
        self.memfd = Descriptor()
        self.shared = shared_memory("rnic shm", self.bytes, self.memfd)

    def tx_ring(self, member: int) -> int:
        """Return the ring that a slot sends on."""
        return 0 if member == self.members[0] else 1

    def _rx_offset(self, member: int) -> int:
        return (self.rings - 1 - self.tx_ring(member)) * RING_ALL

    def set_held(self, member: int, held: bool) -> None:
        """Store whether a slot is served here instead of by its program."""
        store32(self.shared, self._rx_offset(member) + CONTROL_AT + RING_CONTROL["held"].byte, int(held))

    def has_records(self, member: int) -> bool:
        """Return whether records wait for a slot's program."""
        at = self._rx_offset(member)
        tail = load32(self.shared, at + RING_PRODUCER["tail"].byte)
        return tail != load32(self.shared, at + CONSUMER_AT + RING_CONSUMER["head"].byte)

    def qp_stopped(self, member: int, qpn: int) -> None:
        """Mark a queue pair of a slot as stopped: a peer that is reading its memory must discard the data."""
        ring, group = self.tx_ring(member), qpn % EPOCHS
        self._epochs[ring * EPOCHS + group] += 1  # 32 bits, as in the record
        store32(self.shared, ring * RING_ALL + EPOCHS_AT + 8 * group, self._epochs[ring * EPOCHS + group])
        fence()

    def key_invalidated(self, member: int) -> None:
        """Mark a key of a slot as invalid: a peer that is reading its memory for a READ must discard the data."""
        ring = self.tx_ring(member)
        self._keys[ring] += 1
        store32(self.shared, ring * RING_ALL + CONTROL_AT + RING_CONTROL["keys"].byte, self._keys[ring])
        fence()

    def close(self) -> None:
        """Mark the rings dead once one of the two has ended; the other keeps its mapping."""
        for ring in range(self.rings):
            store32(self.shared, ring * RING_ALL + CONTROL_AT + RING_CONTROL["dead"].byte, 1)
        self.shared.close()
        self.memfd.close()


class ShmLoopback:
    """All ring pairs of a device's slots."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], RingPair] = {}
        self._by_slot: dict[int, list[RingPair]] = {}

    def connect(self, one: int, other: int) -> RingPair:
        """Return the ring pair of two slots, made if there is none yet."""
        key = min(one, other), max(one, other)
        found = self._pairs.get(key)
        if found is None:
            found = self._pairs[key] = RingPair(*key)
            for member in {one, other}:
                self._by_slot.setdefault(member, []).append(found)
        return found

    def pairs_of(self, member: int) -> Iterable[RingPair]:
        """Return the ring pairs of a slot."""
        return self._by_slot.get(member, ())

    def members(self) -> Iterator[tuple[int, int]]:
        """Yield the two slots of each ring pair."""
        return iter(self._pairs)

    def remove_slot(self, member: int) -> None:
        """Close the ring pairs of a slot that was released."""
        for pair in self._by_slot.pop(member, []):
            del self._pairs[pair.members]
            for other in set(pair.members) - {member}:
                self._by_slot[other].remove(pair)
            pair.close()


__all__ = ["LoopbackEnd", "RingPair", "ShmLoopback"]
