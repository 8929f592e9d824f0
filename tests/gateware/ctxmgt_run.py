"""Runs a lockstep bench on CtxMgt: Verilator inside this process where it can be built, else Amaranth's simulator."""

from __future__ import annotations

import faulthandler
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amaranth.hdl._ir import PortDirection
from amaranth.sim import Simulator
from ctxmgt_lockstep import Lockstep

from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.top import CtxMgt
from rnic.gateware.interfaces import flat_ports
from rnic.gateware.tools import find_tool, verilator_environment
from rnic.gateware.verilated import Library, Model, build

Step = Callable[[], object]
Watch = Callable[[Any, CtxMgt], None]
LIMIT = 20_000
_place = tempfile.TemporaryDirectory(prefix="rnic-ctxmgt-")


@functools.cache
def library(params: CtxMgtParams) -> Library | None:
    """The compiled component; ``None`` where the tools for it are not there, or ``RNIC_SIMULATOR`` is ``amaranth``."""
    if os.environ.get("RNIC_SIMULATOR") == "amaranth":
        return None
    if find_tool("yosys") is None or isinstance(verilator_environment(), str):
        return None
    faulthandler.cancel_dump_traceback_later()  # a compilation may take longer than a test
    return build(CtxMgt(params), "ctxmgt", Path(os.environ.get("RNIC_VERILATOR_DIR") or _place.name))


def run(bench: Lockstep, *steps: Step, limit: int = LIMIT, amaranth: bool = False, watch: Watch | None = None) -> None:
    """Until everything that was asked for is answered; so again after each step, which asks for more.

    ``amaranth``: on Amaranth's simulator whatever there is, which spares a compilation. ``watch`` wants it: called
    each cycle with the simulation's context and the component, it looks inside.
    """
    left = list(steps)

    def over() -> bool:
        if bench.idle:
            if not left:
                return True
            left.pop(0)()
        assert bench.cycle_number < limit, f"not at its end after {limit} cycles: {bench.counted}"
        return False

    built = None if amaranth or watch else library(bench.params)
    if built is None:
        _on_amaranth(bench, over, watch)
    else:
        model = Model(built)
        try:
            while True:
                inputs = bench.cycle(model.outputs)
                if over():
                    break
                model.step(inputs)
        finally:
            model.close()
    bench.finish()


def _on_amaranth(bench: Lockstep, over: Callable[[], bool], watch: Watch | None) -> None:
    block = CtxMgt(bench.params)
    ports = flat_ports(block)
    names = {name: signal for name, (signal, _) in ports.items()}
    outputs = [name for name, (_, direction) in ports.items() if direction == PortDirection.Output]
    simulator = Simulator(block)
    simulator.add_clock(4e-9)

    async def script(ctx: Any) -> None:
        while True:
            inputs = bench.cycle({name: ctx.get(names[name]) for name in outputs})
            if over():
                return
            if watch:
                watch(ctx, block)
            await ctx.tick()
            for name, value in inputs.items():
                ctx.set(names[name], value)

    simulator.add_testbench(script)
    simulator.run()
