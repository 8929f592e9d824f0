"""What is written to a program that reads a device's packets, and that its mishaps end only its own capture."""

from __future__ import annotations

import errno
import io
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import Mock

import pytest

from rnic.link.pcap import read_capture
from rnic.nic_process.bypass_programs import BypassPrograms
from rnic.nic_process.bypass_slot import BypassSlot
from rnic.nic_process.devices import DeviceTable, ServedDevice
from rnic.nic_process.live_capture import CaptureReaders, LiveCapture
from rnic.nic_process.sysfs_tree import SysfsTree
from rnic.nic_process.wake_sockets import WakeSockets
from rnic.runtime.loop import Runtime
from rnic.trace.counters import Counters
from rnic.trace.guard import Guard
from rnic.wire.flow import Flow

FLOW = Flow(bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2)), 50_000)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    reading, sending = socket.socketpair()
    with reading, sending:
        yield reading, sending


def everything(reading: socket.socket) -> bytes:
    """What comes until the end."""
    return b"".join(iter(lambda: reading.recv(1 << 16), b""))


def test_packets_that_a_socket_takes_in_part_come_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    """A blocking socket is not waited for; the rest of a block comes before the next one."""
    reading, sending = pair
    capture = LiveCapture(sending.fileno(), Mock())
    sending.setblocking(True)
    sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
    came = b""
    for number in range(40):
        capture.recording.add(number, FLOW, bytes([number]) * 60_000, 0)
        if number % 3 == 2:
            came += reading.recv(1 << 20)
    sending.close()
    for _ in range(20):
        came += reading.recv(1 << 20, socket.MSG_DONTWAIT) if capture.recording._rest else b""
        capture.recording.add(100, FLOW, b"", 0)
    capture.close()
    came += everything(reading)
    packets = [packet.data[42:] for packet in read_capture(io.BytesIO(came), "it")]
    whole = [data for data in packets if data]
    assert 1 < len(whole) < 40
    assert all(data == data[:1] * 60_000 for data in whole)


def test_a_capture_without_a_reader_is_refused(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    reading, sending = pair
    reading.close()
    ended = Mock()
    with pytest.raises(OSError, match="nothing reads this: keep the other end") as refused:
        LiveCapture(sending.fileno(), ended)
    assert refused.value.errno == errno.EPIPE
    ended.assert_not_called()


@pytest.mark.parametrize("kind", ["pipe", "datagrams", "internet"])
def test_only_a_stream_socket_of_this_machine_is_taken(kind: str) -> None:
    with ExitStack() as stack:
        if kind == "pipe":
            reading, given = os.pipe()
            stack.callback(os.close, reading)
            stack.callback(os.close, given)
        else:
            unix, what = kind == "datagrams", socket.SOCK_DGRAM if kind == "datagrams" else socket.SOCK_STREAM
            given = stack.enter_context(socket.socket(socket.AF_UNIX if unix else socket.AF_INET, what)).fileno()
        with pytest.raises(OSError, match="one end of a pair of SOCK_STREAM sockets"):
            LiveCapture(given, Mock())


def test_a_capture_ends_whole_though_the_rings_cannot_be_read(pair: tuple[socket.socket, socket.socket]) -> None:
    reading, sending = pair
    capture = LiveCapture(sending.fileno(), Mock())
    sending.close()
    left = Mock()
    capture.leave, capture.drain = left, Mock(side_effect=OSError("a mishap"))
    with pytest.raises(OSError, match="a mishap"):
        capture.close()
    left.assert_called_once()
    assert list(read_capture(io.BytesIO(everything(reading)), "it")) == []


def table(*slots: BypassSlot) -> DeviceTable:
    """A table with one device, whose parts are made up."""
    runtime, bypass = Mock(spec=Runtime), Mock(spec=BypassPrograms)
    bypass.slots = dict(enumerate(slots))
    sockets, sysfs = Mock(spec=WakeSockets), Mock(spec=SysfsTree)
    made = DeviceTable(Mock(), {}, sockets, sysfs, None, Mock(), Guard(Counters()))
    readers = Mock(spec=CaptureReaders)
    made._devices["rnic0"] = ServedDevice(runtime, bypass, {}, None, readers)
    return made


@pytest.mark.parametrize("how", ["remove", "close"])
def test_a_device_ends_though_its_captures_cannot(how: str, own_errors: list[tuple[str, Exception]]) -> None:
    devices = table()
    device = devices["rnic0"]
    device.readers.close.side_effect = OSError("a mishap")  # type: ignore[attr-defined]
    devices.remove("rnic0") if how == "remove" else devices.close()
    assert [place for place, _ in own_errors] == ["release"]
    device.bypass.close.assert_called_once()  # type: ignore[attr-defined]
    device.runtime.close.assert_called_once()  # type: ignore[attr-defined]


def test_where_one_program_stands_still_none_is_taken_over() -> None:
    slots = [Mock(spec=BypassSlot) for _ in range(2)]
    slots[0].held = ExitStack
    slots[1].held.side_effect = OSError(errno.EBUSY, "program 7 was stopped")
    devices = table(*slots)
    with pytest.raises(OSError, match="program 7 was stopped"):
        devices.take_over("rnic0")
    slots[0].take_over.assert_not_called()


def test_programs_do_not_wait_for_room_in_the_ring_of_a_capture() -> None:
    runtime = Mock(spec=Runtime)
    runtime.link = Mock(counters=Counters())
    own = BypassPrograms(runtime, Mock()).recording
    assert not own.waits
    assert not own.active
