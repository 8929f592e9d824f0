"""A program's view of the sysfs tree of :mod:`rnic.nic_process.sysfs_tree`: only its own devices."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

TREE = "paths"
"""Directory in the runtime directory: one view for each set of devices that a program sees, and the whole tree."""
ALL_DEVICES = "all"
"""The view with every device of the NIC process; the others link to it."""

_CLASSES = {"infiniband": None, "infiniband_verbs": "6", "infiniband_mad": "5"}
"""Directories of ``/sys/class``, and their ``abi_version``, which libraries read first."""


class Place(NamedTuple):
    """The place of a device in the tree: its directories, by paths relative to the tree."""

    name: str
    number: int
    """Number of its uverbs node."""
    pci: str = ""
    """PCI address; empty for a device without a PCI function."""

    @property
    def parent(self) -> str:
        """The adapter's directory: its PCI function, or the kernel's directory for devices without hardware."""
        return f"sys/devices/pci{self.pci[:7]}/{self.pci}" if self.pci else "sys/devices/virtual"

    @property
    def device(self) -> str:
        """The RDMA device's directory."""
        return f"{self.parent}/infiniband/{self.name}"

    @property
    def verbs(self) -> str:
        """The uverbs node's directory."""
        return f"{self.parent}/infiniband_verbs/uverbs{self.number}"

    @property
    def mad(self) -> str:
        """The umad node's directory."""
        return f"{self.parent}/infiniband_mad/umad{self.number}"

    def file(self, root: Path, path: str) -> Path:
        """Return the path of a file of the device; ``device/`` is the PCI function where there is one."""
        if self.pci and path.startswith("device/"):
            return root / self.parent / path.removeprefix("device/")
        return root / self.device / path

    def link_function(self, root: Path) -> None:
        """Link the directories to the adapter's directory."""
        if self.pci:
            link(root / self.device / "device", f"../../../{self.pci}")
            link(root / self.verbs / "device", f"../../../{self.pci}")
            (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
            link(root / self.function_link, f"../../../devices/pci{self.pci[:7]}/{self.pci}")
        else:
            link(root / self.verbs / "device", f"../../infiniband/{self.name}/device")

    @property
    def function_link(self) -> str:
        """The PCI function's link in the list of all PCI devices."""
        return f"sys/bus/pci/devices/{self.pci}"

    def links(self) -> list[str]:
        """Return all links that lead to the device."""
        uverbs, umad = f"uverbs{self.number}", f"umad{self.number}"
        found = [
            f"sys/class/infiniband/{self.name}",
            f"sys/class/infiniband_verbs/{uverbs}",
            f"sys/class/infiniband_mad/{umad}",
            f"dev/infiniband/{uverbs}",
            f"dev/infiniband/{umad}",
        ]
        return [*found, self.function_link] if self.pci else found

    def directories(self) -> list[str]:
        """Return all directories that are the device's own."""
        return [self.parent] if self.pci else [self.device, self.verbs, self.mad]


def view_path(directory: Path, names: list[str]) -> Path:
    """Return the directory of the view of some devices of a runtime directory's NIC process."""
    return directory / TREE / ",".join(sorted(set(names)))


def make_view(directory: Path, names: list[str]) -> Path:
    """Make a directory with ``sys`` and ``dev`` that show only these devices of a runtime directory's NIC process.

    Raises:
        OSError: it cannot be written.
    """
    found = view_path(directory, names)
    whole = directory / TREE / ALL_DEVICES
    make_classes(found)
    link(found / "sys/devices", f"../../{ALL_DEVICES}/sys/devices")
    (found / "sys/bus/pci").mkdir(parents=True, exist_ok=True)
    link(found / "sys/bus/pci/devices", f"../../../../{ALL_DEVICES}/sys/bus/pci/devices")
    # the same links as in the whole tree, whose number and place only the NIC process knows
    for place in (*(f"sys/class/{name}" for name in _CLASSES), "dev/infiniband"):
        links = [entry for entry in (whole / place).iterdir() if entry.is_symlink()]
        wanted = {entry.name: os.readlink(entry) for entry in links if any(_is_of(entry, name) for name in names)}
        for entry in (found / place).iterdir():
            if entry.is_symlink() and wanted.get(entry.name) != os.readlink(entry):  # a link of an earlier device
                entry.unlink(missing_ok=True)
        for name, target in wanted.items():
            link(found / place / name, target)
    return found


def _is_of(entry: Path, name: str) -> bool:
    """Return whether a link in a class directory or in ``/dev`` belongs to a device."""
    if entry.parent.name == "infiniband" and entry.parent.parent.name == "class":
        return entry.name == name
    kind = "infiniband_mad" if entry.name.startswith("umad") else "infiniband_verbs"
    node = entry.parents[2] / "sys/class" / kind if entry.parents[1].name == "dev" else entry.parent
    try:
        return (node / entry.name / "ibdev").read_text().strip() == name
    except OSError:
        return False


def make_classes(root: Path) -> None:
    """Make the class directories, where programs look first."""
    (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
    for name, version in _CLASSES.items():
        (root / "sys/class" / name).mkdir(parents=True, exist_ok=True)
        if version is not None:
            write(root / "sys/class" / name / "abi_version", version)


def link_device(root: Path, where: Place) -> None:
    """Link a device into the class directories and ``/dev``."""
    uverbs, umad = f"uverbs{where.number}", f"umad{where.number}"
    link(root / "sys/class/infiniband" / where.name, f"../../{where.device.removeprefix('sys/')}")
    link(root / "sys/class/infiniband_verbs" / uverbs, f"../../{where.verbs.removeprefix('sys/')}")
    link(root / "sys/class/infiniband_mad" / umad, f"../../{where.mad.removeprefix('sys/')}")
    # programs expect character devices there; the first answers no kernel verbs, opening the second is redirected
    link(root / "dev/infiniband" / uverbs, os.devnull)
    link(root / "dev/infiniband" / umad, os.devnull)


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
