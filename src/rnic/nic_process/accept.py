"""Accept connections of programs, even when no descriptors are left for them."""

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
"""Reserved descriptors, so that a program that connects when there are no others gets an error."""
_OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_RETRY_S = 0.05
_BACKLOG = 64

Refusal = tuple[int, str]
"""An errno and its message."""


class Acceptor:
    """The listening socket of a NIC process.

    Args:
        path: path of the socket.
        selector: polls it.
        on_connection: gets each connection, with a refusal to send if there is no descriptor for it. It owns the
            connection, unless it raises.
        guard: gets internal errors; its counters have ``accepts_without_descriptors``.
        listener: the socket, if it was made before this process was started.
    """

    def __init__(
        self,
        path: Path,
        selector: selectors.BaseSelector,
        on_connection: Callable[[socket.socket, Refusal | None], None],
        guard: Guard,
        listener: socket.socket | None = None,
    ) -> None:
        self._selector = selector
        self._on_connection = on_connection
        self._guard = guard
        self._spare = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_SPARE_DESCRIPTORS)]
        self._retry_at = 0.0
        """When to accept again after descriptors ran out; 0 while the selector polls the socket."""
        if listener is None:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(str(path))
        self.listener = listener
        self.listener.listen(_BACKLOG)
        self.listener.setblocking(False)
        self._register()

    def _register(self) -> None:
        self._selector.register(self.listener, selectors.EVENT_READ, self._on_readable)

    def _on_readable(self) -> None:
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
                # the connection stays in the backlog, and would keep waking the loop
                self._selector.unregister(self.listener)
                self._retry_at = time.monotonic() + _RETRY_S
                return
        try:
            self._on_connection(sock, refusal)
        except BaseException:
            sock.close()
            raise

    def retry(self) -> None:
        """Accept again after descriptors ran out, once the pause is over."""
        if self._retry_at:
            self.refill_spares()

    def refill_spares(self) -> None:
        """Reserve spare descriptors again after some were closed, and accept what came meanwhile."""
        with contextlib.suppress(OSError):
            while len(self._spare) < _SPARE_DESCRIPTORS:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        if self._retry_at and (self._spare or time.monotonic() > self._retry_at):
            self._retry_at = 0.0
            self._register()

    def close(self) -> None:
        """Stop listening, after the selector was closed."""
        self.listener.close()
        close_all(self._spare)


__all__ = ["Acceptor", "Refusal"]
