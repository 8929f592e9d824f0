"""The kernel scheduler's time slice of a polling thread.

Since Linux 6.18, ``sched_yield`` costs the caller the rest of its slice, and a thread that wakes up does not preempt
another within that thread's slice. So next to any busy process, whatever its nice value, a thread that polls and yields
waits for clock ticks. A thread with short slices loses little, and preempts.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from collections.abc import Callable

SLICE_NS = 100_000
"""The shortest slice that the kernel accepts."""
_ATTR = struct.Struct("=IIQiIQQQII")
"""``struct sched_attr``: size, policy, flags, nice, priority, runtime, deadline, period, utilization bounds."""
_SET, _GET = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (0, 0))
_ORDINARY = 0


def shorten() -> bool:
    """Set short slices for the calling thread, if its policy is SCHED_OTHER. Return whether it has them now.

    Kernels before 6.12 have no slices for single threads and ignore it.
    """
    if not sys.platform.startswith("linux") or not _SET:
        return False
    call: Callable[..., int] = ctypes.CDLL(None).syscall
    attr = ctypes.create_string_buffer(_ATTR.size)
    if call(_GET, 0, attr, _ATTR.size, 0):
        return False
    fields = list(_ATTR.unpack(attr.raw))
    if fields[1] != _ORDINARY or fields[5] <= SLICE_NS:
        return bool(fields[1] == _ORDINARY and fields[5] == SLICE_NS)
    fields[0], fields[5] = _ATTR.size, SLICE_NS
    attr.raw = _ATTR.pack(*fields)
    return not call(_SET, 0, attr, 0)


__all__ = ["SLICE_NS", "shorten"]
