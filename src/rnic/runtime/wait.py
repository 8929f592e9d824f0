"""Wait for descriptors, of any count and any number."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable

_LONGEST_S = 1_000_000.0
"""Longest wait in seconds: ``poll`` takes its milliseconds as a C int."""


def wait_readable(descriptors: Iterable[int], timeout_s: float | None) -> bool:
    """Wait until a descriptor is readable, or ``timeout_s`` seconds (``None``: forever). Return whether one is.

    A wait of more than eleven days may end early.
    ``select`` does not take descriptors from 1024 up, so ``poll`` is used if available.
    """
    if timeout_s is not None:
        timeout_s = min(timeout_s, _LONGEST_S)
    if not hasattr(select, "poll"):
        return bool(select.select(list(descriptors), [], [], timeout_s)[0])
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else math.ceil(timeout_s * 1_000)))
