"""The gateware's responder under a software NIC, on Amaranth's simulator or as Verilog inside this process."""

from __future__ import annotations

import faulthandler
import functools
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from amaranth.hdl._ir import PortDirection
from amaranth.sim import Simulator

from rnic.conform.bench import Bench, SimAgent, SimWire
from rnic.gateware.interfaces import flat_ports
from rnic.gateware.roce.driver import Around, Host, InProcess, in_process
from rnic.gateware.roce.mr_table import MrTableParams
from rnic.gateware.roce.qp_state import OWN, QpStateParams
from rnic.gateware.roce.responder_nic import ResponderNic, ResponderParams
from rnic.gateware.roce.target import ResponderTarget
from rnic.gateware.tools import find_tool, verilator_environment
from rnic.gateware.verilated import Library, build
from rnic.judge import Judge
from rnic.judge.findings import Finding
from rnic.testing.net import SimNet
from rnic.wire.dissect import LINKTYPE_ETHERNET

PERIOD = 4e-9
_place = tempfile.TemporaryDirectory(prefix="rnic-responder-")


def sizes(width: int) -> ResponderParams:
    """Sizes that the conform scripts need: 64 regions, the pages of one connection's; and 64 queue pairs at speed."""
    return ResponderParams(width, QpStateParams(4 if width == 64 else 6), MrTableParams(6, 10))


class OnAmaranth:
    """The responder on Amaranth's simulator."""

    def __init__(self, params: ResponderParams, around: Around) -> None:
        block = ResponderNic(params)
        self.around = around
        ports = flat_ports(block)
        names = {name: signal for name, (signal, _) in ports.items()}
        outputs = [name for name, (_, direction) in ports.items() if direction == PortDirection.Output]
        self._simulator = Simulator(block)
        self._simulator.add_clock(PERIOD)
        self._now = 0.0

        async def script(ctx: Any) -> None:
            class Pins(dict[str, int]):
                def __missing__(self, name: str) -> int:
                    signal = names[name]
                    value: int = ctx.get(signal.as_value() if hasattr(signal, "as_value") else signal)
                    self[name] = value
                    return value

            assert outputs
            while True:
                new = around.cycle(Pins())
                await ctx.tick()
                for name, value in new.items():
                    ctx.set(names[name], value)

        self._simulator.add_testbench(script, background=True)

    def settle(self) -> None:
        """See :class:`~rnic.gateware.roce.target.Simulated`."""
        self.around.wake()
        while not self.around.idle:
            self._now += 8 * PERIOD
            self._simulator.run_until(self._now)

    def close(self) -> None:
        """See :class:`~rnic.gateware.roce.target.Simulated`."""


def on_amaranth(params: ResponderParams, host: Host, mac: int, ip: int, **options: Any) -> OnAmaranth:
    """Begin a simulation."""
    return OnAmaranth(params, Around(params, host, mac, ip, **options))


@functools.cache
def library(params: ResponderParams) -> Library:
    """The compiled responder."""
    faulthandler.cancel_dump_traceback_later()  # a compilation may take longer than a test
    place = Path(os.environ.get("RNIC_VERILATOR_DIR") or _place.name)
    return build(ResponderNic(params), f"responder_{params.width}", place)


def reason_to_skip() -> str | None:
    """Why Verilator cannot run here; ``None`` if it can."""
    if find_tool("yosys") is None:
        return "no yosys: pip install '.[gateware]'"
    found = verilator_environment()
    return found if isinstance(found, str) else None


def verilated(params: ResponderParams, host: Host, mac: int, ip: int, **options: Any) -> InProcess:
    """Begin a simulation of the compiled responder."""
    return in_process(library(params), params, host, mac, ip, **options)


class WatchedBench(Bench):
    """A bench that looks at the queue pair's state before a connection ends."""

    look: Callable[[], None]

    def close(self) -> None:
        """See :class:`~rnic.conform.bench.Bench`."""
        self.look()
        super().close()


class Place:
    """A simulated network whose first node is a NIC, and a tester's bench in front of it.

    Args:
        simulate: begins the simulation of the gateware; without it, the NIC is the reference.
        width: bits of a beat.
        options: of :class:`~rnic.gateware.roce.driver.Around`.
    """

    def __init__(self, simulate: Any = None, width: int = 64, **options: Any) -> None:
        settings: dict[str, Any] = {"settings": {"reference": True, "max_mrs": 64}}
        if simulate is not None:
            make = partial(ResponderTarget, params=sizes(width), simulate=partial(simulate, **options))
            settings["make_nic"] = make
        self.net = SimNet(1, **settings)
        self.bench = WatchedBench(SimWire(self.net), SimAgent(self.net))
        self.bench.look = self._look
        self.bench.patience_ns, self.bench.quiet_ns = 4_000_000_000, 20_000_000
        self.nic = self.net.nodes[0].nic
        self.states: list[dict[str, int]] = []
        """Of each connection, before it ended."""
        self.frames: list[tuple[bytes, bool]] = []
        """What reached the gateware, and, with true, what it has sent."""
        if isinstance(self.nic, ResponderTarget):
            self.nic.on_frame = lambda frame, sent: self.frames.append((frame, sent))

    def _look(self) -> None:
        self.states.append(self.state(max(self.nic.qps)))

    def state(self, number: int) -> dict[str, int]:
        """A queue pair's state as its responder has it."""
        qp = self.nic.qps[number]
        if isinstance(self.nic, ResponderTarget):
            # what software has been told by the channel, and what the gateware has for itself
            own = self.nic.around.states.get(number, dict.fromkeys(OWN, 0))
            assert not own.get("qp_pd") or own["expected_psn"] == qp.ctx.expected_psn
            assert not own.get("qp_pd") or own["state"] == qp.ctx.state
        else:
            own = {name: getattr(qp.responder, name) for name in ("msn", "nak_sent", "open", "offset")}
        out = {"state": qp.ctx.state, "expected_psn": qp.ctx.expected_psn}
        out |= {name: own[name] for name in ("msn", "nak_sent", "open")}
        return out | {"offset": own["offset"] if own["open"] else 0}

    def broken_rules(self) -> list[str]:
        """The rules of RoCEv2 that frames of the gateware break."""
        found: list[str] = []

        def tell(finding: Finding) -> None:
            if self.frames[finding.frame - 1][1]:
                found.append(f"{finding.rule}: {finding.detail}")

        judge = Judge(tell)
        for at, (frame, _) in enumerate(self.frames):
            judge.frame(at * 1_000, LINKTYPE_ETHERNET, frame, len(frame))
        judge.finish()
        return found

    def close(self) -> None:
        """Close everything."""
        self.net.close()
        if isinstance(self.nic, ResponderTarget):
            self.nic.close()
