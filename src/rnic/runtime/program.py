"""A program's memory as its NIC process reaches it: two DMA ports, with views where the program shares files."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
from bisect import bisect_right
from errno import EINVAL, ENOSPC, EPERM

from rnic.spec import attach
from rnic.spec.errors import VerbsError

MAX_SHARES = 4096
"""Files that one context may share."""
_LAST = 1 << 64
_COPY_SECONDS = 1.0


class SharedFiles:
    """The memory that a program mapped shared and told of, by its addresses there. Pieces do not overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._views: list[memoryview] = []

    def share(self, va: int, length: int, fd: int, offset: int, writable: bool) -> None:
        """Map a file that the program has mapped at ``va``.

        Raises:
            VerbsError: EINVAL for a range that is none, EPERM for a file that may shrink: whoever touched it
                then would be killed; ENOSPC for too many.
        """
        if not 0 < length <= _LAST - va or offset % mmap.ALLOCATIONGRANULARITY:
            raise VerbsError(EINVAL, f"SHARE of {length} bytes at {va:#x} from offset {offset}: no such range")
        at = bisect_right(self._starts, va)
        before = at and self._starts[at - 1] + len(self._views[at - 1]) > va
        if before or (at < len(self._starts) and self._starts[at] < va + length):
            raise VerbsError(EINVAL, f"SHARE at {va:#x} overlaps what is shared already: UNSHARE that first")
        if len(self._starts) >= MAX_SHARES:
            raise VerbsError(ENOSPC, f"SHARE at {va:#x}: a context shares at most {MAX_SHARES} files")
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        except OSError:
            if not _sealed(fd):
                raise VerbsError(
                    EPERM, "SHARE takes memfds made with MFD_ALLOW_SEALING: this file may shrink"
                ) from None
        if os.fstat(fd).st_size < offset + length:
            raise VerbsError(EINVAL, f"SHARE of {length} bytes from offset {offset} goes beyond the file's end")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        try:
            view = memoryview(mmap.mmap(fd, length, access=access, offset=offset))
        except (ValueError, OverflowError):
            raise VerbsError(EINVAL, f"SHARE of {length} bytes from offset {offset} cannot be mapped") from None
        self._starts.insert(at, va)
        self._views.insert(at, view)

    def unshare(self, va: int) -> None:
        """The program unmaps it. Views that the device holds keep the memory, which nobody else sees any more."""
        at = bisect_right(self._starts, va) - 1
        if at >= 0 and self._starts[at] == va:
            del self._starts[at], self._views[at]

    def views(self, va: int, length: int) -> memoryview | None:
        """Memory that the program shares."""
        at = bisect_right(self._starts, va) - 1
        if at < 0:
            return None
        view = self._views[at]
        start = va - self._starts[at]
        return view[start : start + length] if start + length <= len(view) else None

    def clear(self) -> None:
        """Let go of everything."""
        self._starts.clear()
        self._views.clear()


def _sealed(fd: int) -> bool:
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False


def may_look_into(pid: int) -> bool:
    """Whether the kernel lets this process read another's ``maps``: not where ptrace rules forbid it."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return bool(maps.read(1))
    except OSError:
        return False


class ProgramMemory(SharedFiles):
    """By ``/proc/PID/mem`` as the program opened it: after an execve it reads and writes nothing any more.

    Args:
        fd: open for reading and writing; closed with this.
        pid: the program, in whose ``maps`` rights are looked up, since the kernel lets this port write through
            read-only pages.
    """

    def __init__(self, fd: int, pid: int) -> None:
        super().__init__()
        self._fd = fd
        self._pid = pid

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """See :class:`rnic.mem.dma.DmaPort`."""
        view = self.views(va, len(buf)) if self._starts else None
        if view is not None:
            buf[:] = view
            return True
        try:
            return os.preadv(self._fd, [buf], va) == len(buf)
        except (OSError, OverflowError):
            return False

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """See :class:`rnic.mem.dma.DmaPort`."""
        view = self.views(va, len(data)) if self._starts else None
        if view is not None:
            if view.readonly:
                return False
            view[:] = data
            return True
        try:
            return os.pwrite(self._fd, data, va) == len(data)
        except (OSError, OverflowError):
            return False

    def covers(self, va: int, length: int, writable: bool) -> bool:
        """Whether the program itself may read, or write, the whole range now."""
        try:
            with open(f"/proc/{self._pid}/maps", encoding="ascii", errors="replace") as maps:
                return _covers(maps, va, length, writable)
        except OSError:
            return False

    def close(self) -> None:
        """Let go of everything."""
        self.clear()
        os.close(self._fd)


def _covers(maps: object, va: int, length: int, writable: bool) -> bool:
    """Whether lines of ``/proc/PID/maps``, which are in order, allow access to the whole range."""
    need = va
    for line in maps:  # type: ignore[attr-defined]
        span, rights, _ = line.split(" ", 2)
        start, end = (int(number, 16) for number in span.split("-"))
        if end <= need:
            continue
        if start > need or rights[0] != "r" or (writable and rights[1] != "w"):
            return False
        need = end
        if need >= va + length:
            return True
    return False


class CopiedMemory(SharedFiles):
    """By a thread of the program that copies, where the kernel forbids ``/proc/PID/mem``.

    Requests go over a socket pair one at a time, and a program that does not answer within a second has lost its
    port for good.

    Args:
        fd: this end of the pair; closed with this.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._sock = socket.socket(fileno=fd)
        self._sock.settimeout(_COPY_SECONDS)
        self._dead = False

    def _copy(self, kind: int, va: int, length: int, data: bytes = b"") -> bytes | None:
        if self._dead or not 0 <= va < _LAST:
            return None
        try:
            self._sock.send(attach.COPY.pack({"va": va, "bytes": length, "kind": kind}) + data)
            answer = self._sock.recv(attach.COPY_REPLY.size + attach.MAX_COPY)
        except OSError:
            self._dead = True
            return None
        if len(answer) < attach.COPY_REPLY.size:
            self._dead = True
            return None
        good = attach.COPY_REPLY.get(answer, "error") == 0
        return answer[attach.COPY_REPLY.size :] if good else None

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """See :class:`rnic.mem.dma.DmaPort`."""
        view = self.views(va, len(buf))
        if view is not None:
            buf[:] = view
            return True
        for at in range(0, len(buf), attach.MAX_COPY):
            size = min(attach.MAX_COPY, len(buf) - at)
            piece = self._copy(attach.COPY_READ, va + at, size)
            if piece is None or len(piece) != size:
                return False
            buf[at : at + size] = piece
        return True

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """See :class:`rnic.mem.dma.DmaPort`."""
        view = self.views(va, len(data))
        if view is not None:
            if view.readonly:
                return False
            view[:] = data
            return True
        for at in range(0, len(data), attach.MAX_COPY):
            piece = bytes(data[at : at + attach.MAX_COPY])
            if self._copy(attach.COPY_WRITE, va + at, len(piece), piece) is None:
                return False
        return True

    def covers(self, va: int, length: int, writable: bool) -> bool:
        """Whether the program's thread says that it may read, or write, the range."""
        kind = attach.COPY_CHECK_WRITE if writable else attach.COPY_CHECK
        return length < 1 << 63 and self._copy(kind, va, length) is not None

    def close(self) -> None:
        """Let go of everything."""
        self.clear()
        with contextlib.suppress(OSError):
            self._sock.close()
