"""Slots of a device as the NIC process gives and takes them."""

from __future__ import annotations

import random
import select
import socket
import struct
from collections.abc import Iterator

import pytest

from rnic.device.config import NicConfig
from rnic.device.nic import Nic
from rnic.link.base import parse_address
from rnic.link.steering import first_qpn
from rnic.link.udp import UdpLink
from rnic.runtime.loop import Runtime
from rnic.runtime.patience import Patience
from rnic.runtime.slots import SlotGroup, refusal
from rnic.testing import own_network

ADDRESS = f"{own_network()}.72"
WAIT_S = 5.0


@pytest.fixture
def group() -> Iterator[SlotGroup]:
    why = refusal(parse_address(ADDRESS))
    if why:
        pytest.skip(f"programs have no slots here: {why}")
    link = UdpLink(ADDRESS, 0)
    config = NicConfig(parse_address(ADDRESS), port=link.port, name="rnic0")
    runtime = Runtime(Nic(config, rng=random.Random(1)), link)
    group = SlotGroup(runtime, Patience())
    yield group
    group.close()
    runtime.close()


def test_who_gets_a_slot_gets_no_packet_of_whoever_had_it_before(group: SlotGroup) -> None:
    slot = group.open()
    assert slot is not None
    member, port = slot.member, slot.runtime.link.port
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(3):
            sender.sendto(struct.pack(">II", 0, first_qpn(member)) + bytes(20), (ADDRESS, port))
    assert select.select([slot.descriptors()[0]], [], [], WAIT_S)[0], "they have come to the slot's socket"
    group.give_back(slot)
    again = group.open()
    assert again is not None
    assert again.member == member
    assert not select.select([again.descriptors()[0]], [], [], 0)[0]
    group.give_back(again)
