"""Multicast groups and their member UD queue pairs (IBA 10.5; Annex A17, 17.9.1)."""

from __future__ import annotations

from rnic.device.uar import Uar
from rnic.spec.gids import address_from_gid


def is_multicast(gid: bytes) -> bool:
    """Return whether a GID is in ff00::/8, or an IPv4 multicast group in either form."""
    address = address_from_gid(gid)
    return address[0] == 0xFF if len(address) == 16 else address[0] >> 4 == 0xE


class Groups:
    """Members of every group, kept separately for each driver context."""

    __slots__ = ("_lists", "changes", "members")

    def __init__(self) -> None:
        self._lists: dict[bytes, dict[Uar, tuple[int, ...]]] = {}
        """QPNs of each context by the group's IP address, so that all forms of its GID mean one group."""
        self.members: dict[bytes, tuple[int, ...]] = {}
        """QPNs by the group's IP address, 4 or 16 bytes."""
        self.changes: list[tuple[bytes, bool]] = []
        """Groups that the link must join (true) or leave, by IP address, in order."""

    def get(self, gid: bytes, uar: Uar) -> tuple[int, ...]:
        """Return one context's members of a group."""
        return self._lists.get(address_from_gid(gid), {}).get(uar, ())

    def set(self, gid: bytes, uar: Uar, qpns: tuple[int, ...]) -> None:
        """Replace one context's members of a group."""
        self._put(address_from_gid(gid), uar, qpns)

    def _put(self, address: bytes, uar: Uar, qpns: tuple[int, ...]) -> None:
        lists = self._lists.setdefault(address, {})
        lists.pop(uar, None)
        if qpns:
            lists[uar] = qpns
        was = address in self.members
        if lists:
            self.members[address] = tuple(qpn for members in lists.values() for qpn in members)
        else:
            del self._lists[address]
            self.members.pop(address, None)
        if was != bool(lists):
            self.changes.append((address, bool(lists)))

    def attached(self, qpn: int) -> bool:
        """Return whether a queue pair is a member of any group."""
        return any(qpn in members for members in self.members.values())

    def forget(self, uar: Uar) -> None:
        """Remove a context from all groups."""
        for address in [address for address, lists in self._lists.items() if uar in lists]:
            self._put(address, uar, ())
