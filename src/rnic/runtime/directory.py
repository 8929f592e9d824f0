"""Find a user's NIC process: its runtime directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rnic.spec.errors import RnicError


class ProcessError(RnicError):
    """The NIC process cannot do what was requested."""


def runtime_directory() -> Path:
    """Return the directory of this user's NIC process; create it with mode 0700 if needed.

    Raises:
        ProcessError: it cannot be created, is not a directory (or is a symbolic link), belongs to another user, or
            others may enter it.
    """
    named = os.environ.get("RNIC_RUNTIME_DIR")
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(named) if named else Path(base) / "rnic" if base else Path(f"/tmp/rnic-{os.getuid()}")
    remedy = "set RNIC_RUNTIME_DIR to one of your own"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # lstat: the owner of a symbolic link could redirect it after this check
        found = path.lstat()
    except OSError as error:
        raise ProcessError(f"runtime directory {path} cannot be used ({error.strerror}): {remedy}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise ProcessError(f"runtime directory {path} is a symbolic link: {remedy}")
    if found.st_uid != os.geteuid():
        raise ProcessError(f"runtime directory {path} is user {found.st_uid}'s: {remedy}")
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ProcessError(f"runtime directory {path} is open to other users: {remedy}")
    return path


__all__ = ["ProcessError", "runtime_directory"]
