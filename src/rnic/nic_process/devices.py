"""The devices of a NIC process: made as programs ask for them, and removed once they are unused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from rnic.device.nic import Nic
from rnic.device.queue_pair import DeviceQp
from rnic.link.base import parse_address
from rnic.link.fault_events import FaultEvent
from rnic.link.verbs_faults import VerbsFaults, VerbsRule
from rnic.nic_process.bounded_work import WorkWatchdog
from rnic.nic_process.bypass_programs import BypassPrograms
from rnic.nic_process.bypass_slot import BypassSlot
from rnic.nic_process.client import Client, EventFd
from rnic.nic_process.live_capture import CaptureReaders
from rnic.nic_process.sysfs_tree import SysfsTree
from rnic.nic_process.wake_sockets import WakeSockets
from rnic.runtime.directory import ProcessError
from rnic.runtime.faults import DeviceFaults
from rnic.runtime.loop import Runtime
from rnic.spec.appearance import appearance, number_of
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.trace.guard import Guard

MAX_DEVICES = 256
MAX_STRUCK = 1 << 10
DEVICE_OPTIONS = {
    "faults": str,
    "capture": str,
    "capture_policy": str,
    "snaplen": int,
    "congestion": str,
    "profile": str,
    "parameters": dict,
    "look": str,
    "fabric": str,
    "host": int,
    "slower": int,
}
"""Options that programs may give when they ask for a device, and the type of each."""


class ConnectionManager(Protocol):
    """Manages connections on the devices' QP1 (:class:`rnic.cm.service.CmService`)."""

    def add_device(self, name: str, nic: Nic, /) -> None:
        """Manage the connections of a new device."""

    def remove_device(self, name: str, /) -> None:
        """Report the removal of a device."""

    def request(self, key: Client, body: bytes, make_signal: Callable[[], EventFd], now_ns: int, /) -> bytes:
        """Answer a program's request; ``OSError`` with a message if it is refused."""

    def remove_program(self, key: Client, now_ns: int, /) -> None:
        """Destroy the IDs of a program that has ended."""


@dataclass(eq=False, slots=True)
class ServedDevice:
    """One device, and the request that made it."""

    runtime: Runtime
    bypass: BypassPrograms
    options: dict[str, object]
    port: int | None
    """The UDP port that was requested."""
    readers: CaptureReaders
    """Programs that read its packets live."""
    pinned: bool = False
    """True if the process itself uses it until it ends."""


class DeviceTable(Mapping[str, ServedDevice]):
    """The devices of a NIC process by name.

    Args:
        make: makes a device of an address, a UDP port and options.
        clients: the process's clients, which use devices.
        sockets: polls the devices' sockets.
        sysfs: shows the devices.
        cm: manages their connections; ``None`` for none.
        watchdog: bounds work on the arenas of bypass slots.
        guard: gets internal errors.
    """

    def __init__(
        self,
        make: Callable[[str, int | None, dict[str, object]], Runtime],
        clients: Mapping[int, Client],
        sockets: WakeSockets,
        sysfs: SysfsTree,
        cm: ConnectionManager | None,
        watchdog: WorkWatchdog,
        guard: Guard,
    ) -> None:
        self._make = make
        self._clients = clients
        self._sockets = sockets
        self._sysfs = sysfs
        self._cm = cm
        self._watchdog = watchdog
        self._guard = guard
        self._devices: dict[str, ServedDevice] = {}
        self.struck: deque[tuple[str, FaultEvent]] = deque(maxlen=MAX_STRUCK)
        """Events of fault scripts that have been triggered and are to happen to a device and its slots."""
        self.on_context: Callable[[Client, bool], None] = lambda client, opened: None
        """Called when a program has opened a context, with true, and at its end."""

    def __getitem__(self, name: str) -> ServedDevice:
        return self._devices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def runtimes(self) -> list[Runtime]:
        """Return the loops of all devices."""
        return [device.runtime for device in self._devices.values()]

    def add(
        self,
        address: str,
        port: int | None,
        options: dict[str, object],
        client: Client | None = None,
        wanted: str | None = None,
    ) -> str:
        """Return the name of the device at a local address; make one if there is none.

        An unused device is recreated for other options, so that a program's options end with it. Other unused devices
        are removed, so that names do not depend on earlier programs.

        Args:
            address: local IP address.
            port: UDP port; ``None`` for 4791, 0 for any free one, on a new device.
            options: as :func:`rnic.cli.serve.make_runtime` takes them.
            client: uses it from now on. Without one the process itself does, forever.
            wanted: its name, if that is free.

        Raises:
            ProcessError: others use the device with other options.
        """
        name = self._find(address, port)
        if name is not None:
            other = [key for key in DEVICE_OPTIONS if options.get(key) != self[name].options.get(key)]
            if other and not self.in_use(name):
                self.remove(name)
            elif asked := [key for key in other if options.get(key)]:
                raise ProcessError(
                    f"device {name} at {address} runs already without this {asked[0]} setting:"
                    " use another address, or wait until its users are gone"
                )
        taken = {used for used in self if self.in_use(used)}
        free = next(free for number in range(MAX_DEVICES + 1) if (free := f"rnic{number}") not in taken)
        if wanted is not None and wanted not in taken:
            free = wanted
        elif wanted is not None and wanted != name and not wanted.startswith("rnic"):
            there = self[wanted].runtime.nic.config
            raise ProcessError(f"device {there} has that name already: give another by --name")
        if name is not None and name in self and name not in taken and name != free:
            self.remove(name)
        if name is None or name not in self:
            name = free
            self._check_function(options, taken)
            used = {self[each].runtime.nic.config.index for each in taken}
            number = number_of(name)
            if number in used:
                number = next(free for free in range(MAX_DEVICES + 1) if free not in used)
            runtime = self._make(address, port, {**options, "name": name, "index": number})
            for unused in self.keys() - taken:
                self.remove(unused)
            runtime.nic.find_peer = self.find_peer
            if runtime.verbs_faults is not None:
                runtime.verbs_faults.struck = partial(self._note_event, name)
            if isinstance(runtime.link, DeviceFaults):
                runtime.link.hand_on = partial(self._note_event, name)
            bypass = BypassPrograms(runtime, self._watchdog)
            self._devices[name] = ServedDevice(runtime, bypass, options, port, CaptureReaders(runtime, bypass))
            self._sockets.watch(runtime)
            runtime.sockets_changed = partial(self._sockets.watch, runtime)
            with self._guard.around("paths"):
                self._sysfs.add(runtime.nic)
            if self._cm is not None:
                self._cm.add_device(name, runtime.nic)
        if client is None:
            self[name].pinned = True
        else:
            client.added.add(name)
        return name

    def _check_function(self, options: Mapping[str, object], taken: set[str]) -> None:
        """Refuse a PCI address that another device has."""
        pci = appearance(str(options.get("look") or "")).pci
        for name in taken:
            if pci and self[name].runtime.nic.config.appearance.pci == pci:
                raise ProcessError(f"PCI address {pci} is that of device {name} already: give another by --pci")

    def fail_verbs(self, device: ServedDevice, rules: list[VerbsRule]) -> None:
        """Make verbs fail by further rules; libraries get theirs when they open the device."""
        runtime, faults = device.runtime, device.runtime.verbs_faults
        if faults is None:
            faults = VerbsFaults([])
            runtime.fail_verbs(faults)
            faults.struck = partial(self._note_event, runtime.nic.config.name)
            for slot in device.bypass.slots.values():
                slot.runtime.verbs_faults, slot.runtime.nic.judge = faults, runtime.nic.judge
        faults.add(rules)

    def _note_event(self, name: str, event: FaultEvent) -> None:
        self.struck.append((name, event))

    def find_peer(self, address: bytes, port: int, qpn: int) -> tuple[bool, DeviceQp | None]:
        """Return whether a device here has an address, and its queue pair of this number, of any program."""
        for device in self.values():
            config = device.runtime.nic.config
            if (config.address, config.port) == (address, port):
                nics = [device.runtime.nic, *(slot.runtime.nic for slot in device.bypass.slots.values())]
                return True, next((nic.qps[qpn] for nic in nics if qpn in nic.qps), None)
        return False, None

    def _find(self, address: str, port: int | None) -> str | None:
        for name, device in self.items():
            config = device.runtime.nic.config
            if config.address == parse_address(address) and config.port == (ROCE_UDP_PORT if port is None else port):
                return name
        return None

    def in_use(self, name: str) -> bool:
        """Return whether the process itself or a program uses a device, or may ask for it again."""
        users = self._clients.values()
        return self[name].pinned or any(user.device == name or name in user.added for user in users)

    def remove(self, name: str) -> None:
        """Close a device."""
        device = self._devices.pop(name)
        with self._guard.around("paths"):
            self._sysfs.remove(name)
        if self._cm is not None:
            with self._guard.around("release", name):
                self._cm.remove_device(name)
        self._sockets.unwatch(device.runtime)
        with self._guard.around("release", name):
            device.readers.close()
        device.bypass.close()
        device.runtime.close()

    def take_over(self, name: str) -> None:
        """Serve all packets of a device here, where they are traced or delayed.

        Raises:
            OSError: EBUSY: a program was stopped while it held its arena. Then no slot is taken over.
        """
        slots = list(self[name].bypass.slots.values())
        for slot in slots:
            with slot.held():
                pass
        for slot in slots:
            slot.take_over()
            self.watch_slot(slot)

    def give_back(self, slot: BypassSlot) -> None:
        """Let a slot's program serve it again, if nothing keeps it here and the program does not hold its arena."""
        if slot.may_go_back and slot.give_back():
            self.watch_slot(slot)

    def watch_slot(self, slot: BypassSlot) -> None:
        """Poll the sockets of a slot that its program does not poll: those of multicast groups, or all of them."""
        self._sockets.watch(slot.runtime, 0 if slot.served else 1)

    def unwatch_slot(self, slot: BypassSlot) -> None:
        """Stop polling the sockets of a slot."""
        self._sockets.unwatch(slot.runtime)

    def watch_client(self, client: Client) -> None:
        """Poll the sockets that a client's device has now: it may have joined groups, or left them."""
        if client.slot is not None:
            self.watch_slot(client.slot)
        elif client.runtime is not None:
            self._sockets.watch(client.runtime)

    def close(self) -> None:
        """Close all devices when the process ends."""
        for name, device in self.items():
            with self._guard.around("release", name):
                device.readers.close()
            device.bypass.close()
            device.runtime.close()


__all__ = ["DEVICE_OPTIONS", "MAX_DEVICES", "ConnectionManager", "DeviceTable", "ServedDevice"]
