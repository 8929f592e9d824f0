"""What a NIC of this process takes of the link that it stands on."""

from __future__ import annotations

import pytest

from rnic.link.loopback import Fabric
from rnic.verbs.devices import in_flight


@pytest.mark.parametrize(
    ("held", "flies"),
    [
        (1, 8),  # any NIC has so many
        (11, 11),  # 64 KiB: all that it holds
        (37, 37),  # 208 KiB, which systems grant by themselves
        (100, 64),
        (200, 100),  # half, the other half is for what peers send
        (744, 372),  # 4 MiB
        (5000, 512),
    ],
)
def test_packets_in_flight_follow_the_receive_buffer(held: int, flies: int) -> None:
    link = Fabric().attach(bytes([10, 0, 0, 1]))
    link.window_packets = held
    assert in_flight(link, 512) == flies
