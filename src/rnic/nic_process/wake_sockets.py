"""The sockets whose packets wake the NIC process."""

from __future__ import annotations

import os
import selectors

from rnic.runtime.loop import Runtime


class WakeSockets:
    """Keeps the sockets of devices and bypass slots in a selector, as multicast groups are joined and left.

    A device's link closes the socket of a group that it leaves, and the kernel gives its number to the next
    descriptor. So a socket is known by its inode, not by its number.

    Args:
        selector: polls them, with nothing to call.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._known: dict[Runtime, dict[int, int]] = {}
        """Inodes by descriptor, for each device: middleware may be put before its link."""

    def watch(self, runtime: Runtime, first: int = 0) -> None:
        """Poll the sockets that a device has now, from the ``first`` on, and no others of it.

        Call it once after anything that may have changed them, before another descriptor is registered.
        """
        before = self._known.get(runtime, {})
        now = {fd: os.fstat(fd).st_ino for fd in runtime.link.filenos()[first:]}
        for fd, inode in before.items():
            if now.get(fd) != inode:
                self._selector.unregister(fd)
        for fd, inode in now.items():
            if before.get(fd) != inode:
                self._selector.register(fd, selectors.EVENT_READ, None)
        if now:
            self._known[runtime] = now
        else:
            self._known.pop(runtime, None)

    def unwatch(self, runtime: Runtime) -> None:
        """Poll none of a device's sockets anymore; a second call does nothing."""
        for fd in self._known.pop(runtime, {}):
            self._selector.unregister(fd)


__all__ = ["WakeSockets"]
