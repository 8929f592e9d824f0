"""A RoCE device's files under ``/sys`` and ``/dev``, as a real tree in the runtime directory.

UCX, MPI over UCX, ``ibstat`` and monitoring tools read an RDMA device there. The NIC process maintains the tree. ``rnic
exec`` makes a view with only the program's devices, and preloads a library that redirects paths to it (``abi/paths``).
Names and formats are the kernel's (its ``Documentation/ABI``, ``stable/sysfs-class-infiniband``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rnic.device.commands import FIRMWARE_VERSION
from rnic.device.inspect import look
from rnic.device.mailboxes import DEVICE_ID, VENDOR_ID
from rnic.link.interface import interface_of
from rnic.nic_process.sysfs_view import ALL_DEVICES, TREE, Place, link_device, make_classes, write
from rnic.runtime.report import LOGGER
from rnic.spec.appearance import RATES, ROCE_V1, ROCE_V2
from rnic.spec.drops import DropReason
from rnic.state.counters import COUNTER_FILES, PORT_COUNTERS, PORT_DATA, PORT_WORD_BYTES

if TYPE_CHECKING:
    from rnic.device.nic import Nic

REFRESH_NS = 250_000_000
"""Greatest age of counters in the tree, while the device is in use."""

_GID_TYPES = {ROCE_V1: "IB/RoCE v1", ROCE_V2: "RoCE v2"}
_UVERBS_MAJOR, _UVERBS_MINOR = 231, 192
_UMAD_MAJOR = 231
SM_LID = 0xBFFF
"""LID, the largest, at which path records are answered (:mod:`rnic.nic_process.umad`): no tool asks at LID 0."""
_PORT_STATES = {
    1: ("1: DOWN", "3: Disabled"),
    2: ("2: INIT", "5: LinkUp"),
    3: ("3: ARMED", "5: LinkUp"),
    4: ("4: ACTIVE", "5: LinkUp"),
}
_TABLE_DIRECTORIES = tuple(f"ports/1/{place}" for place in (
    "counters", "hw_counters", "pkeys", "gids", "gid_attrs/types", "gid_attrs/ndevs"
))  # fmt: skip
"""Directories of files that change."""
_CAPABILITIES = 1 << 16 | 1 << 26
"""Port capability mask: connection management, GIDs made of IP addresses (as ``ibv_query_port`` says)."""
HW_COUNTERS: dict[str, tuple[str, ...]] = {
    "sent_pkts": ("tx_packets",),
    "rcvd_pkts": ("rx_packets",),
    "retry_exceeded_err": ("retries_exceeded",),
    "send_err": ("fatal_naks_sent",),
    "rx_icrc_encapsulated": (DropReason.BAD_ICRC.value,),
}
"""Files of ``ports/1/hw_counters`` with the names of Soft-RoCE and mlx5; rnic's own counters are there, too."""
for _name, _files in COUNTER_FILES.items():
    for _file in _files.split():
        HW_COUNTERS[_file] = (*HW_COUNTERS.get(_file, ()), _name)

_SUMS: dict[str, tuple[tuple[str, ...], int]] = {
    **{f"ports/1/counters/{name}": (parts, 1) for name, parts in PORT_COUNTERS.items()},
    **{f"ports/1/counters/{name}": (parts, PORT_WORD_BYTES) for name, parts in PORT_DATA.items()},
    **{f"ports/1/hw_counters/{name}": (parts, 1) for name, parts in HW_COUNTERS.items()},
}
"""The rnic counters that each file sums up, and its unit."""
_FILES_OF = {
    part: [path for path, (parts, _) in _SUMS.items() if part in parts] for parts, _ in _SUMS.values() for part in parts
}
"""The files to which each counter contributes."""


def format_gid(gid: bytes) -> str:
    """Format a GID as sysfs does: eight groups of four digits."""
    digits = gid.hex()
    return ":".join(digits[at : at + 4] for at in range(0, 32, 4))


def _guid(guid: int) -> str:
    digits = f"{guid:016x}"
    return ":".join(digits[at : at + 4] for at in range(0, 16, 4))


def _processors() -> tuple[str, str]:
    """Return all processors as a mask in words of 32 bits, and as a list."""
    count = os.cpu_count() or 1
    mask = (1 << count) - 1
    words = [f"{mask >> at & 0xFFFF_FFFF:08x}" for at in range(0, count, 32)][::-1]
    return ",".join(words), f"0-{count - 1}" if count > 1 else "0"


def device_files(nic: Nic) -> dict[str, str]:
    """Return the constant files below a device's directory, by relative path.

    Those below ``device`` are in the directory of its PCI function, if it has one.
    """
    config = nic.config
    look = config.appearance
    interface = interface_of(config.address)
    mask, processors = _processors()
    files = {
        "node_type": "1: CA",
        "node_guid": _guid(config.guid),
        "sys_image_guid": _guid(config.guid),
        "node_desc": config.name,
        "fw_ver": f"{FIRMWARE_VERSION >> 32}.{FIRMWARE_VERSION >> 16 & 0xFFFF}.{FIRMWARE_VERSION & 0xFFFF}",
        "hw_rev": "0x0",
        "hca_type": "rnic",
        "board_id": "rnic",
        "uevent": f"NAME={config.name}",
        "device/vendor": f"0x{VENDOR_ID & 0xFFFF:04x}",
        "device/device": f"0x{DEVICE_ID & 0xFFFF:04x}",
        "device/subsystem_vendor": f"0x{VENDOR_ID & 0xFFFF:04x}",
        "device/subsystem_device": f"0x{DEVICE_ID & 0xFFFF:04x}",
        "device/class": "0x020700",
        "device/numa_node": str(look.numa),
        "device/local_cpus": mask,
        "device/local_cpulist": processors,
        f"device/infiniband/{config.name}/node_desc": config.name,
        f"device/infiniband_verbs/uverbs{config.index}/ibdev": config.name,
        "ports/1/link_layer": "Ethernet",
        "ports/1/rate": RATES[look.rate].text,
        "ports/1/lid": "0x0",
        "ports/1/lid_mask_count": "0",
        "ports/1/sm_lid": f"{SM_LID:#x}",
        "ports/1/sm_sl": "0",
        "ports/1/cap_mask": f"0x{_CAPABILITIES:08x}",
    }
    if interface is not None:
        files["parent"] = interface
        files[f"device/net/{interface}/dev_port"] = "0"
        files[f"device/net/{interface}/dev_id"] = "0x0"
    return files


def verbs_files(nic: Nic) -> dict[str, str]:
    """Return the files in the directory of a device's uverbs node."""
    name, index = nic.config.name, nic.config.index
    return {"ibdev": name, "abi_version": "1", "dev": f"{_UVERBS_MAJOR}:{_UVERBS_MINOR + index}"}


def mad_files(nic: Nic) -> dict[str, str]:
    """Return the files in the directory of a device's umad node."""
    return {"ibdev": nic.config.name, "port": "1", "dev": f"{_UMAD_MAJOR}:{nic.config.index}"}


def table_files(nic: Nic) -> dict[str, str]:
    """Return the files of port state, GID and P_Key tables, which may change.

    An entry without a GID has no type and no interface; the kernel answers with an error there.
    """
    state, physical = _PORT_STATES.get(nic.globals.port_state, _PORT_STATES[1])
    files = {"ports/1/state": state, "ports/1/phys_state": physical}
    for index, pkey in enumerate(nic.config.pkeys):
        files[f"ports/1/pkeys/{index}"] = f"0x{pkey:04x}"
    interface = interface_of(nic.config.address)
    for index, gid in enumerate(nic.config.gid_table):
        files[f"ports/1/gids/{index}"] = format_gid(gid)
        if any(gid):
            files[f"ports/1/gid_attrs/types/{index}"] = _GID_TYPES[nic.config.gid_type(index)]
            if interface is not None:
                files[f"ports/1/gid_attrs/ndevs/{index}"] = interface
    files["ports/1/hw_counters/lifespan"] = str(REFRESH_NS // 1_000_000)
    return files


def counter_files(counted: Mapping[str, int], changed: Iterable[str] | None = None) -> dict[str, str]:
    """Return the counter files below a device's directory.

    Args:
        counted: values by rnic's counter names; missing ones are 0.
        changed: leave out files that depend on none of these names. ``None``: all files.
    """
    names = counted if changed is None else [*changed]
    sums = _SUMS if changed is None else {path: _SUMS[path] for name in names for path in _FILES_OF.get(name, ())}
    files = {f"ports/1/hw_counters/{name}": str(counted[name]) for name in names if name in counted}
    for path, (parts, unit) in sums.items():
        files[path] = str(sum([counted.get(part, 0) for part in parts]) // unit)
    return files


@dataclass
class _Shown:
    """A device in the tree: its directory, the text of its files, and the counters behind them."""

    directory: str  # joining Path objects takes longer than writing the files
    where: Place
    files: dict[str, str] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)


ReadCounters = Callable[["Nic"], "dict[str, int] | None"]
"""Returns the counters of a device."""


class SysfsTree:
    """The tree of one NIC process, created when it starts and removed when it exits.

    If it cannot be written, one warning is logged and there is no tree; everything else works.

    Args:
        directory: the runtime directory.
    """

    def __init__(self, directory: Path) -> None:
        self.root = directory / TREE
        self._shown: dict[str, _Shown] = {}
        self._broken = False
        self.due_ns = 0
        """When to refresh it."""
        with self._disable_on_error():
            shutil.rmtree(self.root, ignore_errors=True)
            make_classes(self.root / ALL_DEVICES)

    @contextlib.contextmanager
    def _disable_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._broken = True
            self._shown.clear()
            if not self.root.parent.exists():
                return  # the whole runtime directory was removed
            LOGGER.warning("device paths in %s: %s: programs are shown none", self.root, error.strerror or error)

    def add(self, nic: Nic) -> None:
        """Add a device."""
        if self._broken:
            return
        name = nic.config.name
        where = Place(name, nic.config.index, nic.config.appearance.pci)
        whole = self.root / ALL_DEVICES
        with self._disable_on_error():
            files = {where.file(whole, path): text for path, text in device_files(nic).items()}
            files |= {whole / where.verbs / path: text for path, text in verbs_files(nic).items()}
            files |= {whole / where.mad / path: text for path, text in mad_files(nic).items()}
            places = {path.parent for path in files} | {whole / where.device / each for each in _TABLE_DIRECTORIES}
            for place in places:
                place.mkdir(parents=True, exist_ok=True)
            for path, text in files.items():
                write(path, text)
            where.link_function(whole)
            link_device(whole, where)
            self._shown[name] = _Shown(str(whole / where.device), where)
            self._refresh(nic)

    def _refresh(self, nic: Nic, counted: ReadCounters = lambda nic: look(nic, "counters")) -> None:
        shown = self._shown.get(nic.config.name)
        if shown is None:
            return
        now, before = counted(nic) or {}, shown.counted
        gone = before.keys() - now.keys()
        changed = [*gone, *(name for name, count in now.items() if before.get(name) != count)]
        tables = table_files(nic)
        for path, text in (tables | counter_files(now, changed if before else None)).items():
            if shown.files.get(path) != text:
                write(f"{shown.directory}/{path}", text)
                shown.files[path] = text
        for path in [f"ports/1/hw_counters/{name}" for name in gone] + [*(shown.tables.keys() - tables.keys())]:
            del shown.files[path]
            Path(shown.directory, path).unlink(missing_ok=True)
        shown.counted, shown.tables = now, tables

    def refresh(self, nics: Iterable[Nic], now_ns: int, counted: ReadCounters | None = None) -> None:
        """Write changed values of the devices.

        Args:
            nics: the devices.
            now_ns: the time.
            counted: returns a device's counters, including those of its slots.
        """
        self.due_ns = now_ns + REFRESH_NS
        with self._disable_on_error():
            for nic in nics:
                self._refresh(nic, *filter(None, (counted,)))

    def remove(self, name: str) -> None:
        """Remove a device."""
        shown = self._shown.pop(name, None)
        if shown is None:
            return
        whole = self.root / ALL_DEVICES
        with self._disable_on_error():
            for path in shown.where.links():
                (whole / path).unlink(missing_ok=True)
            for directory in shown.where.directories():
                shutil.rmtree(whole / directory, ignore_errors=True)

    def close(self) -> None:
        """Remove the tree."""
        shutil.rmtree(self.root, ignore_errors=True)


__all__ = [
    "HW_COUNTERS",
    "PORT_COUNTERS",
    "SM_LID",
    "SysfsTree",
    "counter_files",
    "device_files",
    "format_gid",
    "table_files",
    "verbs_files",
]
