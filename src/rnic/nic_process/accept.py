"""The NIC process's door: the socket that programs come to, also when there are no descriptors left for them."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path

from rnic.nic_process.client import close_all
from rnic.trace.guard import Guard

_SPARE_DESCRIPTORS = 8
"""Kept back, so that who comes when there are no more can be told."""
_OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_PAUSE_S = 0.05
_BACKLOG = 64

Refusal = tuple[int, str]
"""An error number, and why in words."""


class Door:
    """Takes up whoever connects.

    Args:
        path: of the socket.
        selector: looks at it.
        greet: gets each connection, with a refusal to hand on where there is no descriptor for it. It owns it, unless
            it raises.
        guard: where mistakes of our own go; its counters have ``accepts_without_descriptors``.
    """

    def __init__(
        self,
        path: Path,
        selector: selectors.BaseSelector,
        greet: Callable[[socket.socket, Refusal | None], None],
        guard: Guard,
    ) -> None:
        self._selector = selector
        self._greet = greet
        self._guard = guard
        self._spare = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_SPARE_DESCRIPTORS)]
        self._again = 0.0
        """When to look again for programs that came while there were no descriptors; 0 while they are looked for."""
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(_BACKLOG)
        self.listener.setblocking(False)
        self._register()

    def _register(self) -> None:
        self._selector.register(self.listener, selectors.EVENT_READ, self._came)

    def _came(self) -> None:
        with self._guard.around("accept"):
            self._accept()

    def _accept(self) -> None:
        refusal: Refusal | None = None
        try:
            sock, _ = self.listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _OUT_OF:
                raise
            self._guard.counters.bump("accepts_without_descriptors")
            if self._spare:
                os.close(self._spare.pop())
                with contextlib.suppress(OSError):
                    sock, _ = self.listener.accept()
                    refusal = error.errno, f"it has no more descriptors ({error.strerror}): raise its `ulimit -n`"
            if refusal is None:
                # who waits stays in the listener's queue, which would else wake the loop again and again
                self._selector.unregister(self.listener)
                self._again = time.monotonic() + _PAUSE_S
                return
        try:
            self._greet(sock, refusal)
        except BaseException:
            sock.close()
            raise

    def look_again(self) -> None:
        """If the door was left shut: take up who waits, once it is time."""
        if self._again:
            self.descriptors_are_back()

    def descriptors_are_back(self) -> None:
        """Something was closed: fill up what is kept back, and take up who came meanwhile."""
        with contextlib.suppress(OSError):
            while len(self._spare) < _SPARE_DESCRIPTORS:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        if self._again and (self._spare or time.monotonic() > self._again):
            self._again = 0.0
            self._register()

    def close(self) -> None:
        """Nobody comes any more; the selector has been closed."""
        self.listener.close()
        close_all(self._spare)


__all__ = ["Door", "Refusal"]
