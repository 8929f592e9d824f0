"""CtxMgt's exported Verilog in an event-driven simulator, in step with the software's (``ctxmgt_lockstep``)."""

from __future__ import annotations

import json
import os
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge
from ctxmgt_lockstep import Lockstep
from ctxmgt_streams import Streams

from rnic.context import messages as m
from rnic.gateware.ctxmgt.key_qpc_data import WRITES
from rnic.gateware.ctxmgt.params import CtxMgtParams

OPTIONS = json.loads(os.environ["RNIC_BENCH"])
RESET_CYCLES = 3


class Pins:
    """The outputs; one that is X or Z where it should mean something is an error."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut

    def __getitem__(self, name: str) -> int:
        value = getattr(self.dut, name).value
        assert value.is_resolvable or not name.endswith(("_tvalid", "_tready", "events")), f"{name} is {value}"
        return int(value) if value.is_resolvable else 0

    def get(self, name: str, default: int) -> int:
        return self[name] if hasattr(self.dut, name) else default


@cocotb.test()
async def random_streams(dut: Any) -> None:
    """Right and wrong requests on all channels, stalls, slow and failing memory."""
    params = CtxMgtParams(**OPTIONS["params"])
    bench = Lockstep(params, seed=OPTIONS["seed"], stalls=0.2, latency=(1, 20), errors=0.05)
    feeder = Streams(bench, params)
    sources = ["ceu_req", "dma_cm_rd_rsp", "dma_cm_wr_rsp"]
    sources += [f"{m.SOURCE_NAMES[source]}_cmd" for source in m.ENGINES]
    sources += [f"{m.SOURCE_NAMES[source]}_cxt_in" for source in WRITES]
    for port in sources:
        getattr(dut, f"{port}_tvalid").value = 0
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 4, "ns").start())
    for _ in range(RESET_CYCLES):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    pins = Pins(dut)
    while feeder.requests < OPTIONS["requests"] or not bench.idle:
        if feeder.requests < OPTIONS["requests"]:
            feeder.feed()
        await RisingEdge(dut.clk)
        # what is read here is from before the edge, what is written comes after it
        for name, value in bench.cycle(pins).items():
            getattr(dut, name).value = value
        assert bench.cycle_number < OPTIONS["limit"], bench.counted
    bench.finish()
    assert all(bench.counted[name] for name in ("took_key", "received", "unknown_qp", "bad_request"))
