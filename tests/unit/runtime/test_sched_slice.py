"""A thread that polls has short slices, where the kernel knows any, and nobody else's scheduling is touched."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rnic.runtime.sched_slice import SLICE_NS

SAY = """
import ctypes, os
from rnic.runtime.sched_slice import _ATTR, _GET, shorten
def slice():
    attr = ctypes.create_string_buffer(_ATTR.size)
    assert not ctypes.CDLL(None).syscall(_GET, 0, attr, _ATTR.size, 0)
    return _ATTR.unpack(attr.raw)
"""


def says(*lines: str) -> list[str]:
    """What a process of its own prints."""
    done = subprocess.run([sys.executable, "-c", SAY + "\n".join(lines)], capture_output=True, text=True, check=True)
    return done.stdout.split()


def knows_slices() -> bool:
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 12)


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not knows_slices(), reason="threads have slices of Linux 6.12"
)
def test_an_ordinary_thread_gets_short_slices_and_keeps_its_nice_value() -> None:
    had, nice, has, then, again = says(
        "before = slice()", "done = shorten()", "after = slice()",
        "print(before[5], before[3] - after[3], done, after[5], shorten())",
    )  # fmt: skip
    assert (int(had) >= SLICE_NS, nice, has, int(then), again) == (True, "0", "True", SLICE_NS, "True")


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="scheduling policies are Linux's")
def test_a_thread_with_a_policy_of_its_own_keeps_everything() -> None:
    said = says("os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))", "before = slice()",
                "print(shorten(), slice() == before)")  # fmt: skip
    assert said == ["False", "True"]
