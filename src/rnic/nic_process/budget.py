"""The page that counts the packets that a device and its programs have in flight together (:mod:`rnic.state.budget`).

The NIC process creates it and gives each peer an entry, whose number is in the peer's record; only the NIC process
knows an entry's peer. Each slot stores its own shares. The NIC process clears those of released slots, and regularly
repairs words that no slot stores, since every program of the device may write anywhere in the page.
"""

from __future__ import annotations

from collections.abc import Collection

from rnic.mem.order import load32, store32
from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.memfd import shared_memory
from rnic.state.budget import BUDGET, BYTES, ENTRIES, NIC_ENTRY, SHARE, SLOTS, share_at
from rnic.transport.budget import Budget

SLOT_LIMITS = 4
"""The NIC as a whole may have this many times the packets of one slot in flight. Responses come to each slot's own
receive buffer, so a few busy programs do not limit each other, while many share this limit."""
_NOTHING = bytes(SHARE.size)


class DeviceBudget:
    """The page of one device.

    Args:
        limit: packets that one slot may have in flight.
        own: the device's own address and port, which are not a peer: packets to it go to slots, each with its own
            receive buffer.

    Raises:
        OSError: the kernel refuses memory to share.
    """

    def __init__(self, limit: int, own: tuple[bytes, int]) -> None:
        self.limit = SLOT_LIMITS * limit
        self._own = own
        self._entries: dict[tuple[bytes, int], int] = {}
        self._users: dict[int, int] = {}
        """Number of slots that have the peer of each entry."""
        self._free = list(range(ENTRIES - 1, NIC_ENTRY, -1))
        self._slots: set[int] = set()
        self.memfd = Descriptor()
        self.page = shared_memory("rnic budget", BYTES, self.memfd)

    def add_slot(self, slot: int) -> Budget:
        """Add a slot, and return its view of the page."""
        view = Budget(self.page, slot)
        view.clear()
        self._slots.add(slot)
        self._write_head()
        return view

    def remove_slot(self, slot: int) -> None:
        """Clear the shares of a slot that was released."""
        Budget(self.page, slot).clear()
        self._slots.discard(slot)
        self._write_head()

    def _write_head(self) -> None:
        for name, value in (("slots", 1 + max(self._slots, default=-1)), ("limit", self.limit)):
            if load32(self.page, BUDGET[name].byte) != value:
                store32(self.page, BUDGET[name].byte, value)

    def enter(self, address: bytes, port: int) -> int:
        """Return a peer's entry for one more slot; 0 if none is left, and for the device itself."""
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
        """Note that one slot fewer uses a peer, if the peer has an entry."""
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

    def repair(self, shown: dict[int, Collection[int]]) -> None:
        """Clear shares of entries in use that no slot stores.

        Args:
            shown: the entries that each slot in use stores.
        """
        self._write_head()
        for slot in range(1 + max(self._slots, default=-1)):
            own = shown.get(slot, ())
            for entry in self._users:
                if entry not in own:
                    self._clear(entry, slot)
            if slot not in shown:
                self._clear(NIC_ENTRY, slot)

    def view(self) -> dict[str, int]:
        """Return ``{"limit", "held", "peers"}``: limit of packets in flight, packets in flight now, and peers with
        entries."""
        held = sum(load32(self.page, share_at(NIC_ENTRY, slot) + SHARE["held"].byte) for slot in self._slots)
        return {"limit": self.limit, "held": held, "peers": len(self._entries)}

    def close(self) -> None:
        """Close the page together with the device; programs keep their mappings."""
        self.page.close()
        self.memfd.close()


__all__ = ["DeviceBudget"]
