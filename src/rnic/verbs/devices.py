"""The devices of this host, and the NICs that run in this process: one for each local address and UDP port."""

from __future__ import annotations

import random
import secrets
import threading
from errno import EBUSY, ENODEV
from typing import Any
from weakref import WeakValueDictionary

from rnic.device.channels import make_nic
from rnic.device.config import NicConfig
from rnic.device.nic import Nic
from rnic.link.base import Link, active_mtu_bytes, parse_address
from rnic.link.interface import local_addresses
from rnic.link.udp import UdpLink
from rnic.runtime.loop import Runtime
from rnic.spec.errors import VerbsError
from rnic.spec.limits import MAX_PATH_MTU, ROCE_UDP_PORT
from rnic.trace.counters import Counters

LEAST_IN_FLIGHT = 64
"""Least packets in flight, if the receive buffer holds them: with 18, long messages get half the bandwidth."""

_shared: WeakValueDictionary[tuple[bytes, int], Runtime] = WeakValueDictionary()
"""Running NICs of this process by address and port, so that contexts of one device share one NIC."""
_shared_lock = threading.Lock()


class Device:
    """A device that can be opened: a local address.

    Args:
        name: name of the device, such as ``rnic0``.
        address: its local IP address.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    @property
    def guid(self) -> int:
        """Node GUID, as the NIC makes it from its address."""
        return NicConfig(parse_address(self.address)).guid

    def __repr__(self) -> str:
        return f"<Device {self.name} {self.address}>"


def get_device_list() -> list[Device]:
    """Return one device for each usable local address: ``rnic0`` is 127.0.0.1."""
    return [Device(f"rnic{index}", address) for index, address in enumerate(local_addresses())]


def format_guid(guid: int) -> str:
    """Return a GUID as text, such as ``0123:4567:89ab:cdef``."""
    text = f"{guid:016x}"
    return ":".join(text[i : i + 4] for i in range(0, 16, 4))


def address_of(name: str | None) -> str:
    """Return the address of a device by its name; of the first device if ``name`` is ``None``.

    Raises:
        VerbsError: ENODEV for an unknown name.
    """
    devices = get_device_list()
    if name is None:
        return devices[0].address
    for device in devices:
        if device.name == name:
            return device.address
    known = ", ".join(f"{device.name} ({device.address})" for device in devices)
    raise VerbsError(ENODEV, f"device {name!r} is not there: use one of {known}, or addr=")


def shared_runtime(address: str, port: int | None, settings: dict[str, Any]) -> Runtime:
    """Return this process's running NIC at an address and UDP port, or make a new one.

    Raises:
        VerbsError: EBUSY if one runs with another profile.
        LinkError: the address is not local, or the port is taken.
    """
    packed = parse_address(address)
    wanted = ROCE_UDP_PORT if port is None else port
    with _shared_lock:
        runtime = _shared.get((packed, wanted))
        if wanted and runtime is not None and not runtime.closed:
            config = runtime.nic.config
            asked = settings.get("profile"), settings.get("parameters")
            if settings and asked != (config.profile, config.parameters):
                raise VerbsError(EBUSY, f"device {config.name} runs already without this profile: use another address")
            return runtime
        counters = Counters()
        link = UdpLink(address, wanted, counters=counters, hop_limits=False)
        try:
            runtime = runtime_on(link, counters, **settings)
        except BaseException:
            link.close()
            raise
        _shared[packed, link.port] = runtime
        return runtime


def in_flight(link: Link, most: int) -> int:
    """Return the number of packets that may be in flight at once: half of those that the receive buffer surely holds,
    up to ``most``.

    All of them if they are few: :data:`LEAST_IN_FLIGHT`, or the 37 of the 208 KiB that Linux grants by default
    (``net.core.rmem_max``). Packets in flight may then fill the space for unsolicited packets of peers, except the
    quarter that the link reserves.
    """
    held = link.window_packets
    return max(8, min(held, LEAST_IN_FLIGHT), min(most, held // 2))


def runtime_on(link: Link, counters: Counters | None = None, seed: int | None = None, **settings: Any) -> Runtime:
    """Return a NIC on a link, with its loop.

    Args:
        link: the link that carries its packets.
        counters: counters of the device.
        seed: makes keys reproducible; by default they cannot be guessed.
        settings: further fields of :class:`~rnic.device.config.NicConfig`, except address, port, MTU and windows;
            ``clock`` goes to the loop.
    """
    clock = settings.pop("clock", None)
    nic = nic_on(link, counters, seed, **settings)
    return Runtime(nic, link) if clock is None else Runtime(nic, link, clock)


def nic_on(link: Link, counters: Counters | None = None, seed: int | None = None, **settings: Any) -> Nic:
    """Return a NIC for a link; arguments as for :func:`runtime_on`, without ``clock``."""
    window = in_flight(link, 512)
    chosen: dict[str, Any] = {
        "mtu": active_mtu_bytes(link.mtu),
        "source_ports": link.source_ports,
        "window_packets": window,
        "window_bytes": max(65536, window * MAX_PATH_MTU, link.window_bytes // 2),
        "flight_packets": in_flight(link, 1024),
    }
    config = NicConfig(link.address, link.port, **(chosen | settings))
    rng = random.Random(secrets.randbits(256) if seed is None else seed)
    return make_nic(config, rng=rng, counters=counters)
