"""Memory that processes share: both see it, and nobody takes it away."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("memfds are Linux's", allow_module_level=True)

from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.memfd import shared_memory


def test_a_shared_descriptor_maps_the_same_memory_without_resizing() -> None:
    memfd = Descriptor()
    ours = shared_memory("rnic test", 8192, memfd)
    fd = memfd.number
    theirs = mmap.mmap(fd, 8192)
    ours[4096:4100] = b"seen"
    assert theirs[4096:4100] == b"seen"
    for size in (0, 4096, 12288):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert not os.get_inheritable(fd)
    theirs.close()
    ours.close()
    memfd.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    memfd.close()


def test_memory_that_cannot_be_had_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    create = os.memfd_create

    def noted(name: str, flags: int) -> int:
        made.append(create(name, flags))
        return made[-1]

    monkeypatch.setattr(os, "memfd_create", noted)
    with pytest.raises(OSError, match=r"Cannot allocate memory|File too large"):
        shared_memory("rnic test", (1 << 63) - 1, Descriptor())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
