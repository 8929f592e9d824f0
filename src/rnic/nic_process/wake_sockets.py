"""The sockets whose packets wake the NIC process."""

from __future__ import annotations

import os
import selectors

from rnic.runtime.loop import Runtime


class Sockets:
    """Sockets of devices, and of slots of them, in a selector, as groups are joined and left.

    A device's link closes the socket of a group that it leaves, and the system gives its number to the next descriptor:
    what a number stood for counts, not the number.

    Args:
        selector: where they are looked at, with nothing to call.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._known: dict[Runtime, dict[int, int]] = {}
        """By descriptor, the inode of what it was. By device, since what stands before its link may change."""

    def watch(self, runtime: Runtime, first: int = 0) -> None:
        """Look at those of a device's sockets from the ``first`` on that it has now, and at no others of it.

        Called once for whatever may have changed them, before another descriptor is registered.
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

    def forget(self, runtime: Runtime) -> None:
        """Look at none of a device's sockets any more; a second call does nothing."""
        for fd in self._known.pop(runtime, {}):
            self._selector.unregister(fd)


__all__ = ["Sockets"]
