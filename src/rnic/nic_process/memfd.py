"""Memory that processes share."""

from __future__ import annotations

import fcntl
import mmap
import os

from rnic.nic_process.descriptor import Descriptor

_SEAL_FUTURE_WRITE = 0x10
"""``F_SEAL_FUTURE_WRITE``, which :mod:`fcntl` lacks before Python 3.13."""


def shared_memory(name: str, size: int, memfd: Descriptor, written_here: bool = False) -> mmap.mmap:
    """Make a memfd of a fixed size, and return it mapped.

    Args:
        name: shown in ``/proc/PID/maps``.
        size: in bytes.
        memfd: gets the descriptor.
        written_here: later mappings may only be read-only.

    Raises:
        OSError: the kernel refuses it.
    """
    memfd.number = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memfd.number, size)
    # a program that shares it must not truncate memory that the NIC process writes to
    page = mmap.mmap(memfd.number, size)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(memfd.number, fcntl.F_ADD_SEALS, seals | _SEAL_FUTURE_WRITE * written_here)
    return page


__all__ = ["shared_memory"]
