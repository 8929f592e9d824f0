"""Waiting for descriptors, of any number and any size."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable


def wait_readable(descriptors: Iterable[int], timeout_s: float | None) -> bool:
    """Wait until a descriptor can be read, or for ``timeout_s`` seconds (``None``: for ever); whether one can.

    ``select`` takes no descriptor from 1024 on, so ``poll`` serves where the system has it.
    """
    if not hasattr(select, "poll"):
        return bool(select.select(list(descriptors), [], [], timeout_s)[0])
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else math.ceil(timeout_s * 1_000)))
