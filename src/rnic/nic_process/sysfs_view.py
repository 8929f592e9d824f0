"""A program's view of the sysfs tree that :mod:`rnic.nic_process.sysfs_tree` keeps: its own devices alone."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

TREE = "paths"
"""Directory in the runtime directory: one view for each set of devices that a program sees, and the whole tree."""
ALL_DEVICES = "all"
"""The view with every device of the NIC process; the others link to it."""

_CLASSES = {"infiniband": None, "infiniband_verbs": "6", "infiniband_mad": "5"}
"""Directories of ``/sys/class``, and their ``abi_version``, which libraries read first."""


def index_of(name: str) -> int:
    """Return the number in a device's name: ``rnic1`` has ``uverbs1``."""
    return int("".join(filter(str.isdigit, name)) or 0)


def make_view(directory: Path, names: list[str]) -> Path:
    """Make a directory with ``sys`` and ``dev`` that show just these devices of a runtime directory's NIC process.

    Raises:
        OSError: it cannot be written.
    """
    found = directory / TREE / ",".join(sorted(set(names)))
    make_classes(found)
    link(found / "sys/devices", f"../../{ALL_DEVICES}/sys/devices")
    for name in names:
        link_device(found, name)
    return found


def make_classes(root: Path) -> None:
    """Make the class directories, where programs look first."""
    (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
    for name, version in _CLASSES.items():
        (root / "sys/class" / name).mkdir(parents=True, exist_ok=True)
        if version is not None:
            write(root / "sys/class" / name / "abi_version", version)


def link_device(root: Path, name: str) -> None:
    """Link a device into the class directories and ``/dev``."""
    uverbs = f"uverbs{index_of(name)}"
    link(root / "sys/class/infiniband" / name, f"../../devices/virtual/infiniband/{name}")
    link(root / "sys/class/infiniband_verbs" / uverbs, f"../../devices/virtual/infiniband_verbs/{uverbs}")
    # programs expect a character device there; this one answers no kernel verbs
    link(root / "dev/infiniband" / uverbs, os.devnull)


def link(path: Path, target: str) -> None:
    """Make a symbolic link, unless something is there already."""
    with contextlib.suppress(FileExistsError):
        path.symlink_to(target)


def write(path: Path | str, text: str) -> None:
    """Write a file of one line."""
    data = text.encode() + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # overwrite, then truncate: readers never find it empty
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)
