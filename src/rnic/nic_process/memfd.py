"""Memory that processes share."""

from __future__ import annotations

import fcntl
import mmap
import os


def memory(name: str, size: int) -> tuple[int, mmap.mmap]:
    """Memory to share: a descriptor, and a mapping of it. Nobody can take it away. ``OSError`` where there is none."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd, mmap.mmap(fd, size)
    except BaseException:
        os.close(fd)
        raise


__all__ = ["memory"]
