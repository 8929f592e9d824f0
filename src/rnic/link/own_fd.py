"""rnic's own descriptors in a program that may close any descriptor and reuse its number (``engine/io/own_fd.h``).

Under ``rnic exec`` ``os.closerange`` and similar calls skip private descriptors. Calls that bypass libc are detected by
``fstat``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
from pathlib import Path
from typing import Any

_FIRST_FREE = 3
"""The first descriptor after the standard streams."""


def _preloaded() -> Any:
    """Return the library that knows rnic's descriptors, if ``rnic exec`` has preloaded it."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.rnic_fd_own.restype = ctypes.c_uint32
        return library
    return None


_library = _preloaded()
INTERPOSED = _library is not None
"""True if :meth:`OwnFd.release` is required before closing a private descriptor."""
_generation = ctypes.c_uint32.in_dll(_library, "rnic_fd_generation") if _library is not None else ctypes.c_uint32()


def generation() -> int:
    """Return a number that changes when the program closes one of rnic's descriptors, as far as that is detected."""
    return _generation.value


class OwnFd:
    """One of rnic's own descriptors.

    Args:
        fd: the descriptor, which :meth:`close` closes.
        private: true if the program does not use it, so its calls must not close it.
        move: true to move a private one away from the numbers of the standard streams.
    """

    def __init__(self, fd: int, *, private: bool, move: bool = True) -> None:
        if private and move and 0 <= fd < _FIRST_FREE:
            import fcntl  # noqa: PLC0415 - Windows has none, and there only this needs it

            before, fd = fd, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
            os.close(before)
        self.fd = fd
        self._pid = os.getpid()
        found = os.fstat(fd)
        self._file = found.st_dev, found.st_ino
        kind = stat.S_IFMT(found.st_mode)
        self._number = 0 if private or kind else self._eventfd()  # an eventfd has no file type
        self.word = int(_library.rnic_fd_own(fd, private)) if _library is not None else 0
        """Registration word; 0 if not registered."""

    def valid(self) -> bool:
        """Return whether the descriptor is still rnic's."""
        word = ctypes.c_uint32(self.word)
        return self.fd >= 0 and (not self.word or bool(_library.rnic_fd_is_own(self.fd, word))) and self._is_same()

    def _is_same(self) -> bool:
        try:
            found = os.fstat(self.fd)
        except OSError:
            return False
        return self._file == (found.st_dev, found.st_ino)

    def _eventfd(self) -> int:
        """Return the number by which ``/proc`` identifies an eventfd, since all share one inode; 0 for other files."""
        try:
            text = Path(f"/proc/self/fdinfo/{self.fd}").read_text()
        except OSError:
            return 0
        return next((int(line.split()[1]) + 1 for line in text.splitlines() if line.startswith("eventfd-id:")), 0)

    def release(self) -> bool:
        """Release the descriptor; return whether it is still rnic's, so that its owner must close it. A second call
        returns false."""
        fd, word = self.fd, ctypes.c_uint32(self.word)
        if fd < 0:
            return False
        ours = self._is_same() and (not self._number or self._number == self._eventfd())
        if self.word and os.getpid() == self._pid and not _library.rnic_fd_disown(fd, word):
            ours = False
        self.fd = -1
        return ours

    def close(self) -> None:
        """Close it unless its number belongs to another file now; a second call does nothing."""
        fd = self.fd
        if self.release():
            os.close(fd)
