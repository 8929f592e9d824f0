"""A peer against a responder in RTL, right or deliberately broken."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, with_timeout

from rnic.testing.cocotb import Axis, RoceError, RocePeer, RuleBroken, random_stalls

OPTIONS = json.loads(os.environ["RNIC_BENCH"])
LIMIT_NS = 2_000_000
DESIGN = "10.0.0.2"
LOSE_ONE = [{"match": {"direction": "tx", "opcode": "RC_WRITE_MIDDLE"}, "nth": 1, "action": "drop"}]


async def within(awaitable: Any) -> Any:
    return await with_timeout(awaitable, LIMIT_NS, "ns")


async def peer_of(dut: Any) -> RocePeer:
    cocotb.start_soon(Clock(dut.clk, 4, unit="ns").start())
    dut.rst.value = 1
    tx, rx = Axis(dut, "tx", dut.clk), Axis(dut, "rx", dut.clk)
    peer = RocePeer(
        tx, rx, None, "10.0.0.1", mtu=256, faults=LOSE_ONE, stalls=random_stalls(0.2, 1), speed=100, reset=dut.rst
    )
    dut.first_psn.value = peer.psn
    dut.remote_qpn.value = peer.qpn
    await ClockCycles(dut.clk, 5)
    dut.rst.value = 0
    await peer.connect(DESIGN, qpn=17, timeout=8, retry_cnt=2)
    return peer


async def traffic(peer: RocePeer) -> None:
    for length in (8, 100, 256):
        await within(peer.send(bytes(length)))
    await within(peer.write(0x1000, bytes(1500), 0x1234))
    await within(peer.send(b"the end"))


@cocotb.test()
async def a_right_one_passes(dut: Any) -> None:
    peer = await peer_of(dut)
    await traffic(peer)
    peer.check(finished=True)
    assert peer.counters["fault_tx_drop"] == 1
    assert peer.counters["retransmitted_packets"] > 0


@cocotb.test()
async def a_broken_one_is_caught(dut: Any) -> None:
    peer = await peer_of(dut)
    try:
        await traffic(peer)
        peer.check(finished=True)
    except (RuleBroken, RoceError, TimeoutError):
        pass
    try:
        peer.check(finished=True)
    except RuleBroken as broken:
        said = str(broken)
    else:
        raise AssertionError("nobody noticed")
    cocotb.log.info("caught: %s", said)
    line = said.splitlines()[0]
    found = re.fullmatch(r"(\d+) ns: frame \d+: .*: .* \[([a-z-]+): .*; (IBA|A17)[^\]]*\]", line)
    assert found is not None, line
    assert found[2] in OPTIONS["rules"], line
    assert 0 < int(found[1]) < LIMIT_NS * 10
