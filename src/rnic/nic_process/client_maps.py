"""A program's rights on its own memory, from ``/proc/PID/maps``, held open.

The descriptor belongs to the address space that the program had when it was opened: after an execve it is empty.
If the kernel has PROCMAP_QUERY (Linux 6.11), one query costs about a microsecond. Elsewhere the text is parsed and
kept a hundred times as long as parsing took, so that lookups cost 1 % at most.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from bisect import bisect_right

from rnic.nic_process.descriptor import Descriptor

_QUERY = struct.Struct("=QQQQQQQQQIIIIQQ")
"""struct procmap_query of linux/fs.h."""
_SIZE = _QUERY.size
_PROCMAP_QUERY = 3 << 30 | _SIZE << 16 | ord("f") << 8 | 17
_READABLE, _WRITABLE = 1, 2
_ASKED = _ANSWER = struct.Struct("=QQQ")
_ANSWER_AT = 24
_NO_QUERY = frozenset({errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_PIECE = 1 << 16
_KEPT_TIMES_COST = 100


class ClientMaps:
    """The rights of one program on its memory.

    Args:
        pid: the program.

    Raises:
        OSError: its maps cannot be opened: ptrace rules forbid it, it is gone, or no descriptor is left.
    """

    def __init__(self, pid: int) -> None:
        self._file = Descriptor()
        self._file.number = self._fd = os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
        self._starts: list[int] = []
        self._spans: list[tuple[int, bool]] = []
        self._fresh_until = 0
        self._query = True
        self._question = bytearray(_SIZE)

    @property
    def descriptor(self) -> int:
        """The open file, for the engine, which queries the kernel itself."""
        return self._fd

    def covers(self, va: int, length: int, writable: bool) -> bool:
        """Return whether the program may read, or write, the whole range; false if nothing is known."""
        need, end = va, va + length
        while need < end:
            span = self._span(need)
            if span is None or (writable and not span[1]):
                return False
            need = span[0]
        return True

    def _span(self, va: int) -> tuple[int, bool] | None:
        """Return the end of the mapping at ``va`` and whether it is writable; ``None`` if it may not be read."""
        if self._query:
            question = self._question
            _ASKED.pack_into(question, 0, _SIZE, _READABLE, va)
            try:
                fcntl.ioctl(self._fd, _PROCMAP_QUERY, question)
            except OSError as error:
                if error.errno not in _NO_QUERY:
                    return None
                self._query = False
            else:
                start, end, flags = _ANSWER.unpack_from(question, _ANSWER_AT)
                return (end, bool(flags & _WRITABLE)) if start <= va < end else None
        self._refresh()
        at = bisect_right(self._starts, va) - 1
        if at < 0 or self._spans[at][0] <= va:
            return None
        return self._spans[at]

    def _refresh(self) -> None:
        began = time.monotonic_ns()
        if began < self._fresh_until:
            return
        text = bytearray()
        try:
            while piece := os.pread(self._fd, _PIECE, len(text)):
                text += piece
        except OSError:
            text.clear()
        self._starts, self._spans = [], []
        for line in text.splitlines():
            span, rights, _ = line.split(b" ", 2)
            if rights[:1] == b"r":
                start, _, end = span.partition(b"-")
                self._starts.append(int(start, 16))
                self._spans.append((int(end, 16), rights[1:2] == b"w"))
        now = time.monotonic_ns()
        self._fresh_until = now + _KEPT_TIMES_COST * (now - began)

    def invalidate(self) -> None:
        """Read the text again at the next lookup, since a registration depends on the rights now."""
        self._fresh_until = 0

    def close(self) -> None:
        """Close the descriptor."""
        self._file.close()


__all__ = ["ClientMaps"]
