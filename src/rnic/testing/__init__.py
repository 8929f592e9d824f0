"""Tools for tests of RDMA programs and of this project: NICs in virtual time, fault scripts, packets by hand.

``rnic.testing.plugin`` offers them to pytest as fixtures.
"""

from rnic.link.faults import FaultRates
from rnic.runtime.virtual import VirtualClock
from rnic.testing.addresses import own_network
from rnic.testing.diagnosis import diagnose
from rnic.testing.faults import FaultMethods, NicFaults
from rnic.testing.live import FindingError, LivePeer
from rnic.testing.net import Node, SimNet
from rnic.testing.packets import PacketFactory
from rnic.testing.pair import QpPair, Side
from rnic.testing.rclink import RcLinkNet

FakeClock = VirtualClock
"""The virtual clock under the name that other projects use."""

__all__ = [
    "FakeClock",
    "FaultMethods",
    "FaultRates",
    "FindingError",
    "LivePeer",
    "NicFaults",
    "Node",
    "PacketFactory",
    "QpPair",
    "RcLinkNet",
    "Side",
    "SimNet",
    "VirtualClock",
    "diagnose",
    "own_network",
]
