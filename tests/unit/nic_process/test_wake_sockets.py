"""WakeSockets that wake the NIC process: as they come and go, whatever their numbers."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rnic.nic_process.wake_sockets import WakeSockets


class Device:
    """A device's sockets; what stands before its link is another object each time."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    def join(self) -> socket.socket:
        self.sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.sockets[-1].bind(("127.0.0.1", 0))
        return self.sockets[-1]

    def leave(self, place: int) -> None:
        self.sockets.pop(place).close()

    @property
    def link(self) -> Any:
        return SimpleNamespace(filenos=lambda: [each.fileno() for each in self.sockets])


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as selector:
        yield selector


@pytest.fixture
def devices() -> Iterator[tuple[Any, Any]]:
    pair = Device(), Device()
    yield pair
    for device in pair:
        while device.sockets:
            device.leave(0)


def hears(selector: selectors.BaseSelector, sock: socket.socket) -> bool:
    """Whether what comes to a socket wakes who waits."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"1", sock.getsockname())
    came = [key.fd for key, _ in selector.select(0)]
    sock.recv(1)
    return came == [sock.fileno()]


def test_what_joined_is_heard_until_it_leaves(selector: selectors.BaseSelector, devices: tuple[Any, Any]) -> None:
    one, two = devices
    sockets = WakeSockets(selector)
    for device in devices:
        device.join(), device.join()
        sockets.watch(device)
        sockets.watch(device)  # nothing has changed
    assert all(hears(selector, sock) for device in devices for sock in device.sockets)
    one.leave(1)
    sockets.watch(one)
    assert len(selector.get_map()) == 3
    sockets.unwatch(two)
    sockets.unwatch(two)
    assert not hears(selector, two.sockets[0])
    assert hears(selector, one.sockets[0])


def test_a_number_that_comes_again_is_another_socket(
    selector: selectors.BaseSelector, devices: tuple[Any, Any]
) -> None:
    device, _ = devices
    sockets = WakeSockets(selector)
    device.join()
    before = device.join().fileno()
    sockets.watch(device)
    device.leave(1)
    assert device.join().fileno() == before
    sockets.watch(device)
    assert hears(selector, device.sockets[1])
    device.leave(1)
    sockets.watch(device)
    assert device.join().fileno() == before
    selector.register(before, selectors.EVENT_READ)  # another's now: it raises where the number is still taken


def test_a_slot_s_own_socket_is_its_program_s_until_it_is_served_here(
    selector: selectors.BaseSelector, devices: tuple[Any, Any]
) -> None:
    device, _ = devices
    sockets = WakeSockets(selector)
    device.join(), device.join()
    sockets.watch(device, 1)
    assert not hears(selector, device.sockets[0])
    assert hears(selector, device.sockets[1])
    sockets.watch(device, 0)
    assert hears(selector, device.sockets[0])
    sockets.watch(device, 1)
    assert not hears(selector, device.sockets[0])


def test_a_device_without_sockets_leaves_nothing_behind(
    selector: selectors.BaseSelector, devices: tuple[Any, Any]
) -> None:
    device, _ = devices
    sockets = WakeSockets(selector)
    device.join()
    sockets.watch(device)
    device.leave(0)
    sockets.watch(device)
    assert not selector.get_map()
    assert not sockets._known
