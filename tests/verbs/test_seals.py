"""A program and the NIC process share memory that cannot shrink: that would kill whoever touches it."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnic.nic_process.client_memory import ProgramMemory
from rnic.spec.errors import VerbsError

if sys.platform != "linux":
    pytest.skip("memfds and seals are Linux's", allow_module_level=True)

SIZE = 4 * mmap.PAGESIZE
VA = 0x7000_0000_0000


@pytest.fixture
def memory() -> Iterator[ProgramMemory]:
    found = ProgramMemory(os.open("/proc/self/mem", os.O_RDWR), os.getpid())
    yield found
    found.close()


def made(flags: int = os.MFD_ALLOW_SEALING) -> int:
    fd = os.memfd_create("rnic test", os.MFD_CLOEXEC | flags)
    os.ftruncate(fd, SIZE)
    return fd


def test_what_is_shared_cannot_shrink_any_more(memory: ProgramMemory) -> None:
    fd = made()
    memory.share(VA, SIZE, fd, 0, True)
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)


def test_what_may_shrink_is_not_shared(memory: ProgramMemory, tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb+") as file:
        file.truncate(SIZE)
        for fd in (made(0), file.fileno()):
            with pytest.raises(VerbsError) as refused:
                memory.share(VA, SIZE, fd, 0, True)
            assert refused.value.errno == errno.EPERM
            assert memory.views(VA, 8) is None


def test_what_was_sealed_before_is_taken(memory: ProgramMemory) -> None:
    fd = made()
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    memory.share(VA, SIZE, fd, 0, True)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)
