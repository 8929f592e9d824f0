"""Memory that processes share."""

from __future__ import annotations

import fcntl
import mmap
import os


def shared_memory(name: str, size: int) -> tuple[int, mmap.mmap]:
    """Make a memfd of a fixed size and map it; return both.

    Raises:
        OSError: the system refuses it.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        # a program that shares it must not take away what the NIC process writes to
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd, mmap.mmap(fd, size)
    except BaseException:
        os.close(fd)
        raise


__all__ = ["shared_memory"]
