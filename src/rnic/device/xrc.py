"""XRC domains, which connect queue pairs and shared receive queues (IBA vol. 1, annex A14).

As in the kernel, a file may identify a domain: all contexts of the device that open it with the same file share it.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from rnic.device.mailboxes import OPEN_XRCD
from rnic.device.refusal import Refused
from rnic.spec import commands as cmd
from rnic.spec import reasons

if TYPE_CHECKING:
    from rnic.device.commands import Answer
    from rnic.device.host import CommandHost
    from rnic.device.uar import Uar

MAX_XRCDS = 1 << 12
_DONE: Answer = (0, b"")


class XrcDomain:
    """One domain: its file, open counts by context, and object counts by context."""

    __slots__ = ("name", "objects", "opened")

    def __init__(self, name: tuple[int, int] | None) -> None:
        self.name = name
        self.opened: dict[Uar, int] = {}
        self.objects: dict[Uar, int] = {}


class XrcDomains:
    """The domains of one device by number."""

    __slots__ = ("_domains", "_next")

    def __init__(self) -> None:
        self._domains: dict[int, XrcDomain] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._domains)

    def open(self, uar: Uar, name: tuple[int, int] | None, create: bool, exclusive: bool) -> int:
        """Open the domain of a file, or a new one, and return its number.

        The errors are the kernel's: EAGAIN if the domain does not exist and ``create`` is false, EINVAL if it exists
        and ``exclusive`` is true.
        """
        number = next((at for at, each in self._domains.items() if name is not None and each.name == name), None)
        if number is None:
            if name is not None and not create:
                raise Refused(cmd.ST_ERRNO + errno.EAGAIN, reasons.XRCD_MISSING)
            if len(self._domains) >= MAX_XRCDS:
                raise Refused(cmd.ST_EXCEED_LIM, reasons.EXHAUSTED, count=MAX_XRCDS, what="XRC domains")
            while self._next in self._domains:
                self._next = self._next % MAX_XRCDS + 1
            number = self._next
            self._next = self._next % MAX_XRCDS + 1
            self._domains[number] = XrcDomain(name)
        elif exclusive:
            raise Refused(cmd.ST_BAD_PARAM, reasons.XRCD_EXISTS)
        opened = self._domains[number].opened
        opened[uar] = opened.get(uar, 0) + 1
        return number

    def close(self, uar: Uar, number: int) -> None:
        """Close a domain; the last context to do so frees its number."""
        self.own(uar, number)
        domain = self._domains[number]
        if domain.opened[uar] == 1:
            if users := domain.objects.get(uar):
                values = {"what": "XRC domain", "number": number, "users": f"{users} objects"}
                raise Refused(cmd.ST_RESOURCE_BUSY, reasons.IN_USE, **values)
            del domain.opened[uar]
        else:
            domain.opened[uar] -= 1
        if not domain.opened:
            del self._domains[number]

    def own(self, uar: Uar, number: int) -> None:
        """Refuse a domain that ``uar`` has not opened."""
        if not self.has(uar, number):
            raise Refused(cmd.ST_BAD_INDEX)

    def has(self, uar: Uar, number: int) -> bool:
        """Return whether ``uar`` has a domain open."""
        return number in self._domains and uar in self._domains[number].opened

    def use(self, uar: Uar, number: int, change: int) -> None:
        """Change the number of objects of ``uar`` in a domain by ``change``, 1 or -1."""
        objects = self._domains[number].objects
        objects[uar] = objects.get(uar, 0) + change

    def forget(self, uar: Uar) -> None:
        """Close all domains of a closed context, whose objects are destroyed."""
        for number, domain in list(self._domains.items()):
            domain.opened.pop(uar, None)
            domain.objects.pop(uar, None)
            if not domain.opened:
                del self._domains[number]


def open_xrcd(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Open a domain."""
    if len(inbox) != OPEN_XRCD.size:
        raise Refused(cmd.ST_BAD_SIZE)
    asked = OPEN_XRCD.unpack(inbox)
    name = (asked["device"], asked["inode"]) if asked["named"] else None
    return nic.resources.xrcds.open(uar, name, bool(asked["create"]), bool(asked["exclusive"])), b""


def close_xrcd(nic: CommandHost, uar: Uar, number: int, op_modifier: int, inbox: bytes) -> Answer:
    """Close a domain."""
    nic.resources.xrcds.close(uar, number)
    return _DONE
