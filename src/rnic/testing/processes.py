"""Find processes that a test run left behind, by the environment that they inherit from the run (Linux)."""

from __future__ import annotations

import os
from pathlib import Path

RUN_VARIABLE = "RNIC_TEST_RUN"
"""Environment variable that identifies a run, set before anything is started."""
_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


def left_behind(run: str) -> list[str]:
    """Return the living processes of the run ``run``, except this one and zombies, one line each."""
    found = []
    me = os.getpid()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == me:
            continue
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
            state, parent = rest.split()[:2]
            if state == "Z":
                if int(parent) == me:
                    found.append(f"zombie {name})")
                continue
            if f"{RUN_VARIABLE}={run}".encode() not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
        except (OSError, ValueError):
            continue  # another user's, or ended
        if not any(helper in command for helper in _HELPERS):
            found.append(f"{entry.name} {command.decode(errors='replace').strip()}")
    return found


__all__ = ["RUN_VARIABLE", "left_behind"]
