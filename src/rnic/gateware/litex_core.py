"""The descriptor engine as a core for LiteX: its registers and its memory port on the bus of a system on chip.

LiteX's converters connect its bus width to the engine's. Its addresses must be at least as wide as the engine's.
The engine's MAC streams are ``mac_tx`` and ``mac_rx``, its interrupt is an event of an event manager.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amaranth.hdl import Shape
from litex.gen import ClockSignal, LiteXModule, ResetSignal
from litex.soc.integration.soc import SoCRegion
from litex.soc.interconnect.axi import AXIInterface, AXILiteInterface, AXIStreamInterface
from litex.soc.interconnect.csr_eventmanager import EventManager, EventSourceLevel
from migen import Instance, Signal

from rnic.gateware.interfaces import Axi4, Axi4Lite
from rnic.gateware.params import EngineParams
from rnic.gateware.verilog import TOP_NAME, write_engine
from rnic.spec.engine_regs import AXIL_ADDRESS_BITS

REGISTER_BYTES = 1 << AXIL_ADDRESS_BITS


class RnicEngine(LiteXModule):
    """One engine.

    Args:
        platform: gets the Verilog as a source.
        params: parameters of the engine; its only clock is the system's.
        directory: where the Verilog is written.

    Raises:
        ValueError: the parameters have further clocks.
        OSError: the directory cannot be written.
        ToolError: no Yosys.
    """

    def __init__(self, platform: Any, params: EngineParams, directory: Path) -> None:
        if params.mac_clock_mhz or params.bus_clock_mhz:
            raise ValueError("mac_clock_mhz, bus_clock_mhz: the core has one clock, that of the system")
        source, _record = write_engine(params, directory)
        platform.add_source(str(source))
        width = params.bus_width
        self.axil = AXILiteInterface(data_width=32, address_width=32)
        self.axi = AXIInterface(data_width=width, address_width=params.address_bits, id_width=1)
        self.mac_tx = AXIStreamInterface(data_width=width, keep_width=width // 8, user_width=1)
        self.mac_rx = AXIStreamInterface(data_width=width, keep_width=width // 8, user_width=1)
        self.irq = Signal()
        self.ev = EventManager()
        self.ev.engine = EventSourceLevel(description="The engine's interrupt; IRQ_STATUS has the cause.")
        self.ev.finalize()
        self.comb += self.ev.engine.trigger.eq(self.irq)
        wires: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": ResetSignal(), "o_irq": self.irq}
        wires |= _channels("s_axil", self.axil, Axi4Lite(AXIL_ADDRESS_BITS), slave=True)
        wires |= _channels("m_axi", self.axi, Axi4(width, 1, params.address_bits), slave=False)
        for name, stream, source_side in (("mac_tx_axis", self.mac_tx, "o"), ("mac_rx_axis", self.mac_rx, "i")):
            sink_side = "i" if source_side == "o" else "o"
            for field in ("data", "keep", "last", "user", "valid"):
                wires[f"{source_side}_{name}_t{field}"] = getattr(stream, field)
            wires[f"{sink_side}_{name}_tready"] = stream.ready
        self.specials += Instance(TOP_NAME, **wires)


def _channels(prefix: str, bus: Any, signature: Any, slave: bool) -> dict[str, Any]:
    """Connect each wire of the signature, as seen from a master, to LiteX's channel of the same name."""
    out = {}
    for name, member in signature.members.items():
        channel = name[:2] if name[:2] in ("aw", "ar") else name[0]
        outgoing = (member.flow.name == "Out") != slave
        signal = getattr(getattr(bus, channel), name[len(channel) :])
        out[f"{'o' if outgoing else 'i'}_{prefix}_{name}"] = signal[: Shape.cast(member.shape).width]
    return out


def add_engine(soc: Any, params: EngineParams, directory: Path, name: str = "rnic", origin: int | None = None) -> Any:
    """Add an engine to a system: registers at ``origin`` (default: LiteX chooses), its memory port as a master.

    Returns:
        The core, a :class:`RnicEngine`. Raises its exceptions, and ``ValueError`` if the system's bus has fewer address
        bits than the engine.
    """
    if params.address_bits > soc.bus.address_width:
        raise ValueError(f"address_bits={params.address_bits} on a bus with {soc.bus.address_width}")
    engine = RnicEngine(soc.platform, params, directory)
    soc.add_module(name=name, module=engine)
    soc.bus.add_slave(name=name, slave=engine.axil, region=SoCRegion(origin=origin, size=REGISTER_BYTES, cached=False))
    soc.bus.add_master(name=name, master=engine.axi)
    if getattr(soc, "irq", None) is not None and soc.irq.enabled:
        soc.irq.add(name, use_loc_if_exists=True)
    return engine
