"""The DMA ports by which the NIC process reaches a program's memory, with views of files that the program shares."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import socket
import struct
import time
import weakref
from bisect import bisect_right
from errno import EINVAL, ENOSPC, EPERM, ESRCH

from rnic.nic_process.client_maps import ClientMaps
from rnic.nic_process.descriptor import Descriptor
from rnic.spec import attach
from rnic.spec.errors import VerbsError

MAX_SHARES = 4096
"""Files that one context may share."""
MAX_SHARED_BYTES = 1 << 36
"""Bytes that one context may share: files may be sparse, and address space is limited."""
_LAST = 1 << 64
_COPY_SECONDS = 1.0
_COPY_LOOK_SECONDS = 0.005
"""Seconds to wait for a copier's answer before its thread's state is checked."""
_AT_WORK = b"RDW"
"""States of a thread that is running, or waits for a processor or for memory."""


class SharedFiles:
    """Files that a program has mapped shared and announced, by their addresses in the program. They do not overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._views: list[memoryview] = []
        self._shared_bytes = 0
        """Bytes of all files still mapped, including those that the program unshared and the device still uses."""

    def share(self, va: int, length: int, fd: int, offset: int, writable: bool) -> None:
        """Map a file that the program has mapped at ``va``.

        Raises:
            VerbsError: EINVAL for a bad range; EPERM for a file that may shrink, since an access would then raise
                SIGBUS here; ENOSPC for too many files or bytes.
        """
        if not 0 < length <= _LAST - va or offset % mmap.ALLOCATIONGRANULARITY:
            raise VerbsError(EINVAL, f"SHARE of {length} bytes at {va:#x} from offset {offset}: no such range")
        at = bisect_right(self._starts, va)
        before = at and self._starts[at - 1] + len(self._views[at - 1]) > va
        if before or (at < len(self._starts) and self._starts[at] < va + length):
            raise VerbsError(EINVAL, f"SHARE at {va:#x} overlaps what is shared already: UNSHARE that first")
        if len(self._starts) >= MAX_SHARES:
            raise VerbsError(ENOSPC, f"SHARE at {va:#x}: a context shares at most {MAX_SHARES} files")
        if self._shared_bytes + length > MAX_SHARED_BYTES:
            raise VerbsError(ENOSPC, f"SHARE of {length} bytes: a context shares at most {MAX_SHARED_BYTES} bytes")
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
            mapped = mmap.mmap(fd, length, access=access, offset=offset)
        except (ValueError, OverflowError):
            raise VerbsError(EINVAL, f"SHARE of {length} bytes from offset {offset} cannot be mapped") from None
        self._shared_bytes += length
        weakref.finalize(mapped, self._unmapped, length)
        self._starts.insert(at, va)
        self._views.insert(at, memoryview(mapped))

    def _unmapped(self, length: int) -> None:
        self._shared_bytes -= length

    def unshare(self, va: int) -> None:
        """Forget a file that the program unmaps. Views that the device holds keep the memory mapped here."""
        at = bisect_right(self._starts, va) - 1
        if at >= 0 and self._starts[at] == va:
            del self._starts[at], self._views[at]

    def views(self, va: int, length: int) -> memoryview | None:
        """Return a view of a range that lies in a shared file, else ``None``."""
        at = bisect_right(self._starts, va) - 1
        if at < 0:
            return None
        view = self._views[at]
        start = va - self._starts[at]
        return view[start : start + length] if start + length <= len(view) else None

    def clear(self) -> None:
        """Release everything."""
        self._starts.clear()
        self._views.clear()


def _sealed(fd: int) -> bool:
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False


def _is_another(fd: int, pid: int) -> bool:
    """Return whether a ``/proc/PID/mem`` that a program opened belongs to another process than the PID does now.

    The kernel keeps its inode as long as the process lives and the file is open, and the next process with that PID
    gets other inodes. Files of another mount of ``/proc`` prove nothing.
    """
    opened, current = os.fstat(fd), os.stat(f"/proc/{pid}/mem")
    return opened.st_dev == current.st_dev and opened.st_ino != current.st_ino


class ProgramMemory(SharedFiles):
    """The port by ``/proc/PID/mem``, as the program opened it: after an execve all accesses fail.

    The kernel lets this port write to read-only pages, so the program's own rights are looked up at registration and
    at each access.

    Args:
        fd: open for reading and writing; closed with this.
        pid: the program.

    Raises:
        OSError: the program's ``maps`` cannot be opened, or belong to another process that has its PID now; ``fd``
            stays the caller's then.
    """

    def __init__(self, fd: int, pid: int) -> None:
        super().__init__()
        self._file, self._fd = Descriptor(), fd
        self._maps = ClientMaps(pid)
        if _is_another(fd, pid):
            raise ProcessLookupError(ESRCH, f"program {pid} has ended, and another process has its number now")
        self._file.number = fd

    @property
    def descriptors(self) -> tuple[int, int]:
        """Descriptors of its memory and its maps, for the engine; open until :meth:`close`, before which every key is
        invalidated."""
        return self._fd, self._maps.descriptor

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """See :class:`rnic.mem.dma.DmaPort`."""
        view = self.views(va, len(buf)) if self._starts else None
        if view is not None:
            buf[:] = view
            return True
        try:
            return self._maps.covers(va, len(buf), False) and os.preadv(self._fd, [buf], va) == len(buf)
        except (OSError, OverflowError, struct.error):
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
            return self._maps.covers(va, len(data), True) and os.pwrite(self._fd, data, va) == len(data)
        except (OSError, OverflowError, struct.error):
            return False

    def covers(self, va: int, length: int, writable: bool) -> bool:
        """Return whether the program itself may read, or write, the whole range now."""
        if not 0 <= va < _LAST or length > _LAST - va:
            return False
        self._maps.invalidate()
        return self._maps.covers(va, length, writable)

    def close(self) -> None:
        """Release everything."""
        self.clear()
        self._maps.close()
        self._file.close()


def task_state(stat: str) -> bytes:
    """Return the state letter of a process or thread (proc(5)) from its ``stat`` file.

    Raises:
        OSError: there is no such file.
        IndexError: it is empty.
    """
    with open(stat, "rb") as file:
        return file.read().rpartition(b")")[2].split()[0]


class CopiedMemory(SharedFiles):
    """The port by a copying thread of the program, if the kernel forbids ``/proc/PID/mem``.

    Requests go over a socket pair one at a time, while the NIC process waits. So the port fails for good as soon as the
    thread sleeps while a request waits, or if it does not answer within a second.

    Args:
        fd: this end of the pair; closed with this.
        pid: the program.
        thread: ID of its copying thread, 0 if unknown.

    Raises:
        OSError: ``fd`` is not a socket; it stays the caller's.
    """

    def __init__(self, fd: int, pid: int = 0, thread: int = 0) -> None:
        super().__init__()
        self._sock = socket.socket(fileno=fd)
        self._sock.setblocking(False)
        self._poller = select.poll()
        self._poller.register(self._sock, select.POLLIN)
        self._state = f"/proc/{pid}/task/{thread}/stat" if pid and thread else ""
        self._dead = False

    def _answered(self) -> bool:
        """Wait for the answer while the thread is busy; return whether it came."""
        end = time.monotonic() + _COPY_SECONDS
        while not self._poller.poll(_COPY_LOOK_SECONDS * 1_000):
            if time.monotonic() > end or (self._idle() and not self._poller.poll(0)):
                return False
        return True

    def _idle(self) -> bool:
        """Return whether the thread sleeps, was stopped, or is gone; false if that is unknown."""
        if not self._state:
            return False
        try:
            return task_state(self._state) not in _AT_WORK
        except FileNotFoundError:
            return True
        except (OSError, IndexError):
            return False

    def _copy(self, kind: int, va: int, length: int, data: bytes = b"") -> bytes | None:
        if self._dead or not 0 <= va < _LAST:
            return None
        try:
            self._sock.send(attach.COPY.pack({"va": va, "bytes": length, "kind": kind}) + data)
            if not self._answered():
                self._dead = True
                return None
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
        """Return whether the program may read, or write, the range, as its copying thread says."""
        kind = attach.COPY_CHECK_WRITE if writable else attach.COPY_CHECK
        return length < 1 << 63 and self._copy(kind, va, length) is not None

    def close(self) -> None:
        """Release everything."""
        self.clear()
        with contextlib.suppress(OSError):
            self._sock.close()
