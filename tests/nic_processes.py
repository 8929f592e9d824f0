"""NIC processes that a test began, and their end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

from rnic.runtime.attach import connect
from rnic.runtime.directory import ProcessError
from rnic.spec.attach import LOCK_NAME


def end_nic_process(directory: Path) -> None:
    """End the NIC process of a runtime directory, and wait until its addresses are free.

    Raises:
        AssertionError: it did not end within 30 s.
    """
    with contextlib.suppress(ProcessError):
        if (connection := connect(directory)) is not None:
            connection.close()
            os.kill(connection.pid, signal.SIGTERM)
    path = directory / LOCK_NAME
    if not path.exists():
        return
    with path.open("r+") as lock:
        for _ in range(1200):  # waits: for the lock's holder to end
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.025)
            else:
                return
    raise AssertionError("the NIC process of this test did not end within 30 s")
