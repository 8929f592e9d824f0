"""Simulate a fabric: switches, links and any number of NICs in virtual time.

The NICs are ordinary :class:`rnic.device.nic.Nic` objects, and their packets are complete, including the ICRC. The
network is a model: links with rate and delay, switches with shared buffers, ECN marking, PFC and ECMP. The same seed
gives the same run.
"""

from rnic.sim.fabric import Fabric
from rnic.sim.topology import Topology, TopologyError
from rnic.sim.traffic import Channel, FlowResult
from rnic.sim.workloads import Flow, all_to_all, incast, permutation

__all__ = [
    "Channel",
    "Fabric",
    "Flow",
    "FlowResult",
    "Topology",
    "TopologyError",
    "all_to_all",
    "incast",
    "permutation",
]
