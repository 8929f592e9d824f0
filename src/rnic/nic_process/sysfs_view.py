"""What one program sees of the device paths: a view of the tree that :mod:`rnic.nic_process.sysfs_tree` keeps."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

TREE = "paths"
"""Of the runtime directory: one directory for each set of devices that a program sees, and the whole tree."""
WHOLE = "all"
"""The view that holds every device of the NIC process, and what the others lead to."""

_CLASSES = {"infiniband": None, "infiniband_verbs": "6", "infiniband_mad": "5"}
"""Directories of ``/sys/class``, and the kernel ABI that they say: what libraries of this name look for first."""


def index_of(name: str) -> int:
    """The number in a device's name: ``rnic1`` has ``uverbs1``."""
    return int("".join(filter(str.isdigit, name)) or 0)


def view(directory: Path, names: list[str]) -> Path:
    """A directory with ``sys`` and ``dev`` that show just these devices of a runtime directory's NIC process.

    Raises:
        OSError: it cannot be written.
    """
    found = directory / TREE / ",".join(sorted(set(names)))
    make_classes(found)
    link(found / "sys/devices", f"../../{WHOLE}/sys/devices")
    for name in names:
        show(found, name)
    return found


def make_classes(root: Path) -> None:
    """The directories in which programs begin to look."""
    (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
    for name, version in _CLASSES.items():
        (root / "sys/class" / name).mkdir(parents=True, exist_ok=True)
        if version is not None:
            write(root / "sys/class" / name / "abi_version", version)


def show(root: Path, name: str) -> None:
    """The links to a device from the places where programs begin."""
    uverbs = f"uverbs{index_of(name)}"
    link(root / "sys/class/infiniband" / name, f"../../devices/virtual/infiniband/{name}")
    link(root / "sys/class/infiniband_verbs" / uverbs, f"../../devices/virtual/infiniband_verbs/{uverbs}")
    # a character device, as programs expect there, that answers no kernel verbs
    link(root / "dev/infiniband" / uverbs, os.devnull)


def link(path: Path, target: str) -> None:
    """A symbolic link, unless something is there already."""
    with contextlib.suppress(FileExistsError):
        path.symlink_to(target)


def write(path: Path | str, text: str) -> None:
    """Have a file hold one line."""
    data = text.encode() + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # in one piece over what was there: readers never find it empty
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)
