"""Slots of a device as the NIC process gives and takes them."""

from __future__ import annotations

import errno
import os
import random
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from unittest.mock import create_autospec

import pytest

from rnic.device.config import NicConfig
from rnic.device.nic import Nic
from rnic.device.uar import Uar
from rnic.link.base import parse_address
from rnic.link.steering import first_qpn, member_of
from rnic.link.udp import UdpLink
from rnic.link.udp_socket import SOL_UDP, UDP_SEGMENT
from rnic.mem.order import load32, store32
from rnic.nic_process.bounded_work import WorkWatchdog
from rnic.nic_process.bypass_programs import BypassPrograms, refusal
from rnic.nic_process.bypass_slot import _BUSY_WAIT_S, MAX_LINK_UNTOLD, BypassSlot
from rnic.runtime.loop import Runtime
from rnic.spec import commands as cmd
from rnic.spec.ports import PORT_ACTIVE
from rnic.state.record import WORD_BYTES, place
from rnic.state.slot import SLOT
from rnic.testing import own_network
from rnic.wire.bursts import TxBurst
from rnic.wire.flow import Flow

ADDRESS = f"{own_network()}.72"
WAIT_S = 30.0
TAKEN, WANTED = (place(SLOT, name) * WORD_BYTES for name in ("taken", "wanted"))
IP_RECVTTL = 12  # Linux's number, which Python does not name


@pytest.fixture
def group() -> Iterator[BypassPrograms]:
    why = refusal(parse_address(ADDRESS))
    if why:
        pytest.skip(f"programs have no slots here: {why}")
    link = UdpLink(ADDRESS, 0)
    config = NicConfig(parse_address(ADDRESS), port=link.port, name="rnic0")
    runtime = Runtime(Nic(config, rng=random.Random(1)), link)
    group = BypassPrograms(runtime, WorkWatchdog())
    yield group
    group.close()
    runtime.close()


@pytest.fixture
def slot(group: BypassPrograms) -> Iterator[BypassSlot]:
    slot = group.open()
    assert slot is not None
    yield slot
    group.release_slot(slot)


def test_the_programs_socket_options_are_not_the_nic_processs(
    slot: BypassSlot,
) -> None:
    """Both send by one socket, whose options say of which traffic class and hop limit the packets are."""
    link = slot.runtime.link
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.bind((ADDRESS, 0))
    peer.settimeout(WAIT_S)
    here = parse_address(ADDRESS)
    flow = Flow(here, here, link.port, peer.getsockname()[1], tclass=0x20, hop_limit=9)
    burst = TxBurst(flow, [bytes(40)], 40, 1, 40)
    with socket.socket(fileno=os.dup(slot.descriptors()[0])) as shared, peer:
        for _ in range(2):
            assert slot.hold()
            link.send([burst])
            slot.release()
            assert shared.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0x20
            assert shared.getsockopt(socket.IPPROTO_IP, socket.IP_TTL) == 9
            shared.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x40)  # as its program does
            shared.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 3)
            shared.setsockopt(SOL_UDP, UDP_SEGMENT, 30)
        received = [len(peer.recv(100)) for _ in range(2)]
    assert received == [40, 40], "and at which length the system cuts what is sent"


@pytest.fixture
def taken(slot: BypassSlot) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is at work on the slot's arena, as far as its word says."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen(["sleep", "60"]) as program, ours, theirs:
        slot.assign_to(ours, program.pid)
        store32(slot.shared, TAKEN, 1)
        yield program
        program.kill()


def test_the_arena_of_a_program_that_was_stopped_at_work_is_not_to_be_had(
    slot: BypassSlot, taken: subprocess.Popen[bytes]
) -> None:
    taken.send_signal(signal.SIGSTOP)
    os.waitpid(taken.pid, os.WUNTRACED)
    with (
        pytest.raises(OSError, match=f"program {taken.pid} was stopped while it worked on its slot") as error,
        slot.held(),
    ):
        pass
    assert error.value.errno == errno.EBUSY
    assert not load32(slot.shared, WANTED), "it may go on"
    store32(slot.shared, TAKEN, 0)
    with slot.held():
        assert load32(slot.shared, WANTED)


def test_the_arena_of_a_program_that_has_no_core_for_a_while_is_waited_for(
    slot: BypassSlot, taken: subprocess.Popen[bytes]
) -> None:
    gives_back = threading.Timer(3 * _BUSY_WAIT_S, store32, [slot.shared, TAKEN, 0])
    gives_back.start()
    with slot.held():
        assert not load32(slot.shared, TAKEN)
    gives_back.join()


def test_a_slot_asks_for_hop_limits_from_its_first_datagram_queue_pair_on(slot: BypassSlot) -> None:
    def asks() -> bool:
        with socket.socket(fileno=os.dup(slot.descriptors()[0])) as shared:
            return bool(shared.getsockopt(socket.IPPROTO_IP, IP_RECVTTL))

    nic = slot.runtime.nic
    assert not asks()
    assert nic.datagrams is not None
    nic.datagrams()
    assert asks()


def test_the_next_slot_by_a_socket_asks_for_none(group: BypassPrograms) -> None:
    slot = group.open()
    assert slot is not None
    assert slot.runtime.nic.datagrams is not None
    slot.runtime.nic.datagrams()
    group.release_slot(slot)
    again = group.open()
    assert again is not None
    with socket.socket(fileno=os.dup(again.descriptors()[0])) as shared:
        assert not shared.getsockopt(socket.IPPROTO_IP, IP_RECVTTL)
    group.release_slot(again)


def test_who_gets_a_slot_gets_no_packet_of_whoever_had_it_before(group: BypassPrograms) -> None:
    slot = group.open()
    assert slot is not None
    member, port = slot.member, slot.runtime.link.port
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(3):
            sender.sendto(struct.pack(">II", 0, first_qpn(member)) + bytes(20), (ADDRESS, port))
    assert select.select([slot.descriptors()[0]], [], [], WAIT_S)[0], "they have come to the slot's socket"
    group.release_slot(slot)
    again = group.open()
    assert again is not None
    assert again.member == member
    assert not select.select([again.descriptors()[0]], [], [], 0)[0]
    group.release_slot(again)


def test_a_programs_numbers_are_reused_only_after_all_of_its_slot(group: BypassPrograms) -> None:
    """Its peers send to them until their retries end."""
    seen: set[int] = set()
    owner = create_autospec(Uar)
    for _ in range(9):
        slot = group.open()
        assert slot is not None
        pool = slot.runtime.nic.resources.pools[cmd.RES_QP]
        numbers = {number for _ in range(3000) if (number := pool.take(owner)) is not None}
        assert len(numbers) == 3000
        assert {member_of(number) for number in numbers} == {slot.member}
        assert not seen & numbers
        seen |= numbers
        group.release_slot(slot)
    slot = group.open()
    assert slot is not None
    assert slot.runtime.nic.config.first_qpn == first_qpn(slot.member), "8,192 more are not left: from the beginning"
    group.release_slot(slot)


def test_port_changes_while_a_program_holds_its_arena_are_all_reported(group: BypassPrograms, slot: BypassSlot) -> None:
    before = port_changes(slot)
    store32(slot.shared, TAKEN, 1)
    for down in (True, False, True, False):
        group.hold_port(down)
    assert port_changes(slot) == before
    store32(slot.shared, TAKEN, 0)
    slot.tell_link()
    assert port_changes(slot) == before + 4


def test_changes_of_the_port_that_wait_are_bounded(group: BypassPrograms, slot: BypassSlot) -> None:
    before = port_changes(slot)
    store32(slot.shared, TAKEN, 1)
    for change in range(3 * MAX_LINK_UNTOLD):
        group.hold_port(change % 2 == 0)
    store32(slot.shared, TAKEN, 0)
    slot.tell_link()
    assert port_changes(slot) == before + MAX_LINK_UNTOLD
    assert slot.runtime.nic.globals.port_state == PORT_ACTIVE


def port_changes(slot: BypassSlot) -> int:
    """Return how often the program was told of its port."""
    return slot.runtime.nic.counters["event_port_change"]
