"""A RoCEv2 peer for RTL benches under cocotb 2 (the extra ``cocotb``), with Verilator or Icarus.

::

    peer = RocePeer(Axis(dut, "tx_axis", dut.clk), Axis(dut, "rx_axis", dut.clk), "02:00:00:00:00:01", "10.0.0.1")
    await peer.connect("10.0.0.2", qpn=5, mac="02:00:00:00:00:02")
    await peer.write(0x1000, b"hello", rkey=0x1234)
    peer.check()
"""

from rnic.testing.cocotb.peer import Axis, Memory, RoceError, RocePeer, RuleBroken
from rnic.testing.cocotb.stream import FrameLink, Sink, Source, StreamError, random_stalls

__all__ = [
    "Axis",
    "FrameLink",
    "Memory",
    "RoceError",
    "RocePeer",
    "RuleBroken",
    "Sink",
    "Source",
    "StreamError",
    "random_stalls",
]
