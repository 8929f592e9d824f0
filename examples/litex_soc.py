"""A LiteX system with the descriptor engine, its memory, and an AXI4-Lite port for a host in place of a processor.

    python examples/litex_soc.py DIRECTORY [--width 32] [--bus 32]

writes the system's Verilog: ``soc.v`` and the engine's own beside it. ``pip install '.[litex]'`` brings LiteX.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from litex.build.generic_platform import Pins, Subsignal
from litex.build.sim import SimPlatform
from litex.gen import ClockSignal, ResetSignal
from litex.soc.integration.soc_core import SoCMini
from litex.soc.interconnect.axi import AXILiteInterface
from migen import ClockDomain

from rnic.gateware.litex_core import add_engine
from rnic.gateware.params import EngineParams

ENGINE, MEMORY, MEMORY_BYTES = 0x8000_0000, 0x1000_0000, 0x1_0000
HOST = {
    "awaddr": 32, "awvalid": 1, "awready": 1, "wdata": 32, "wstrb": 4, "wvalid": 1, "wready": 1, "bresp": 2,
    "bvalid": 1, "bready": 1, "araddr": 32, "arvalid": 1, "arready": 1, "rdata": 32, "rresp": 2, "rvalid": 1,
    "rready": 1,
}  # fmt: skip
"""Wires of the host's port, and their bits."""


class System(SoCMini):  # type: ignore[misc]
    """Bus, memory, engine, host; all on one clock."""

    def __init__(self, platform: Any, params: EngineParams, directory: Path, bus_width: int) -> None:
        super().__init__(
            platform, clk_freq=int(params.clock_mhz * 1e6), bus_data_width=bus_width, with_timer=False, with_ctrl=False
        )
        self.cd_sys = ClockDomain()
        self.comb += [ClockSignal().eq(platform.request("clk")), ResetSignal().eq(platform.request("rst"))]
        self.add_ram("memory", MEMORY, MEMORY_BYTES)
        self.engine = add_engine(self, params, directory, origin=ENGINE)
        self.comb += platform.request("irq").eq(self.engine.irq)
        # nothing hangs at the MAC: what the engine sends is taken
        self.comb += self.engine.mac_tx.ready.eq(1)
        host, pads = AXILiteInterface(data_width=32, address_width=32), platform.request("host")
        for wire in HOST:
            channel = wire[:2] if wire[:2] in ("aw", "ar") else wire[0]
            own, pad = getattr(getattr(host, channel), wire[len(channel) :]), getattr(pads, wire)
            incoming = wire.endswith("ready") == (channel in ("b", "r"))
            self.comb += own.eq(pad) if incoming else pad.eq(own)
        self.bus.add_master(name="host", master=host)


def settling(verilog: str) -> str:
    """Return LiteX's Verilog for event-driven simulators, such as Icarus.

    Its combinational blocks assign a default first and then a value, with ``<=``. Each pass shows both, wakes the block
    itself or another that wakes it again, and time stands still. Here a block works on variables of its own, and shows
    each result once.
    """

    def once(block: re.Match[str]) -> str:
        body = block[1]
        targets = sorted({found[1] for found in re.finditer(r"^\s*(\w+)(?:\[[^\]]*\])?\s<=\s", body, re.MULTILINE)})
        declared = []
        for name in targets:
            width = re.search(rf"^\s*(?:output )?reg\s+(\[[^\]]*\])?\s*{name}\b", verilog, re.MULTILINE)
            assert width, f"{name} is not declared"
            declared.append(f"reg {width[1] or ''} {name}_settled;")
            body = re.sub(rf"\b{name}\b", f"{name}_settled", body)
        body = re.sub(r"^(\s*\w+_settled(?:\[[^\]]*\])?)\s<=\s", r"\1 = ", body, flags=re.MULTILINE)
        shown = [f"    {name} = {name}_settled;" for name in targets]
        return "\n".join((*declared, f"always @(*) begin{body}", *shown, "end"))

    return re.sub(r"^always @\(\*\) begin$(.*?)^end$", once, verilog, flags=re.MULTILINE | re.DOTALL)


def build(directory: Path, params: EngineParams, bus_width: int) -> Path:
    """Write the system's Verilog; the path of ``soc.v``.

    Raises:
        OSError: the directory cannot be written.
        ToolError: no Yosys.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pins = [Subsignal(wire, Pins(bits)) for wire, bits in HOST.items()]
    io = [("clk", 0, Pins(1)), ("rst", 0, Pins(1)), ("irq", 0, Pins(1)), ("host", 0, *pins)]
    platform = SimPlatform("SIM", io)
    system = System(platform, params, directory, bus_width)
    system.finalize()
    text = platform.get_verilog(system, name="soc")
    for name, data in text.data_files.items():  # contents of memories
        (directory / name).write_text(data)
    path = directory / "soc.v"
    path.write_text(settling(text.main_source))
    return path


def main() -> None:
    """Write it, and print where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--width", type=int, default=32, help="of the engine's memory port, in bits")
    parser.add_argument("--bus", type=int, default=32, help="of LiteX's bus")
    options = parser.parse_args()
    print(build(options.directory, EngineParams(bus_width=options.width), options.bus))


if __name__ == "__main__":
    main()
