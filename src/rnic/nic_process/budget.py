"""The page of what a device and its programs have in flight together (:mod:`rnic.state.budget`), handed out.

The NIC process makes it, says which entry is which peer's, by a number in the peer's record, and keeps to itself whose
entry that is. A slot's shares are the slot's to store; those of slots that are given back are cleared here, and what
stands where nobody stores is put right now and then, since every program of the device may write anywhere in the page.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from rnic.mem.order import load32, store32
from rnic.nic_process.memfd import memory
from rnic.state.budget import BUDGET, BYTES, ENTRIES, NIC_ENTRY, SHARE, SLOTS, share_at
from rnic.transport.budget import Budget

WHOLE = 4
"""Packets that the NIC as a whole may have in flight, in those that one slot may: the answers come back to the receive
buffer of each, so a few busy programs are in nobody's way, and many have no more than these."""
_NOTHING = bytes(SHARE.size)


class DeviceBudget:
    """The page of one device.

    Args:
        limit: packets that one slot may have in flight.
        own: the device's own address and port, which are no peer: what goes there goes to slots, each of which has a
            receive buffer of its own.

    Raises:
        OSError: the system refuses memory to share.
    """

    def __init__(self, limit: int, own: tuple[bytes, int]) -> None:
        self.fd, self.page = memory("rnic budget", BYTES)
        self.limit = WHOLE * limit
        self._own = own
        self._entries: dict[tuple[bytes, int], int] = {}
        self._users: dict[int, int] = {}
        """By entry, of how many slots the peer is."""
        self._free = list(range(ENTRIES - 1, NIC_ENTRY, -1))
        self._slots: set[int] = set()

    def of(self, slot: int) -> Budget:
        """A slot's hold of it, the slot being in use from now on."""
        held = Budget(self.page, slot)
        held.clear()
        self._slots.add(slot)
        self._head()
        return held

    def end(self, slot: int) -> None:
        """A slot is given back: what it had in flight is for others."""
        Budget(self.page, slot).clear()
        self._slots.discard(slot)
        self._head()

    def _head(self) -> None:
        for name, value in (("slots", 1 + max(self._slots, default=-1)), ("limit", self.limit)):
            if load32(self.page, BUDGET[name].byte) != value:
                store32(self.page, BUDGET[name].byte, value)

    def enter(self, address: bytes, port: int) -> int:
        """The entry of a peer, which one slot more has; 0 where none is left, and for the device itself."""
        entry = self._entries.get((address, port))
        if entry is None:
            if not self._free or (address, port) == self._own:
                return NIC_ENTRY
            entry = self._entries[address, port] = self._free.pop()
            for slot in range(SLOTS):
                self._clear(entry, slot)
        self._users[entry] = self._users.get(entry, 0) + 1
        return entry

    def leave(self, address: bytes, port: int) -> None:
        """One slot less has that peer, if it has an entry."""
        entry = self._entries.get((address, port))
        if entry is None:
            return
        self._users[entry] -= 1
        if not self._users[entry]:
            del self._users[entry], self._entries[address, port]
            self._free.append(entry)

    def _clear(self, entry: int, slot: int) -> None:
        at = share_at(entry, slot)
        if self.page[at : at + SHARE.size] != _NOTHING:
            self.page[at : at + SHARE.size] = _NOTHING

    def put_right(self, shown: dict[int, Collection[int]]) -> None:
        """Clear what nobody stores: shares of entries in use, but those that a slot says are its own.

        Args:
            shown: by slot in use, the entries of its peers.
        """
        self._head()
        for slot in range(1 + max(self._slots, default=-1)):
            own = shown.get(slot, ())
            for entry in self._users:
                if entry not in own:
                    self._clear(entry, slot)
            if slot not in shown:
                self._clear(NIC_ENTRY, slot)

    def view(self) -> dict[str, int]:
        """``{"limit", "held", "peers"}``: packets in flight at most, those now, peers that have entries."""
        held = sum(load32(self.page, share_at(NIC_ENTRY, slot) + SHARE["held"].byte) for slot in self._slots)
        return {"limit": self.limit, "held": held, "peers": len(self._entries)}

    def close(self) -> None:
        """The device goes; programs keep what they have mapped."""
        self.page.close()
        os.close(self.fd)


__all__ = ["DeviceBudget"]
