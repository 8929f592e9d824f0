"""Package an engine for vendors' tools: a Verilog file for each module, a wrapper with AXI's clock and active-low
reset, IP-XACT, constraints for its target clock, a C header of its registers, and names of states for waveforms.

Everything is generated from the same tables as the gateware.
"""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from amaranth.lib import wiring
from amaranth.lib.wiring import In

from rnic import __version__
from rnic.gateware.params import EngineParams
from rnic.gateware.top import Top, interface
from rnic.gateware.verilog import TOP_NAME, to_verilog
from rnic.rings.cqe import CQ_ENTRY, DOCUMENTED_CQ_ENTRY
from rnic.rings.sqe import SQ_ENTRY
from rnic.spec import engine_net_regs as net
from rnic.spec import engine_regs as regs
from rnic.spec.layout import Field, Layout
from rnic.spec.registers import Register

WRAPPER = f"{TOP_NAME}_axi"
"""The module that a block design instantiates."""
VENDOR, LIBRARY = "rnic", "rdma"
BUSES = {
    "m_axi": ("aximm", "master"),
    "s_axil": ("aximm", "slave"),
    "mac_tx_axis": ("axis", "master"),
    "mac_rx_axis": ("axis", "slave"),
}
"""Port prefix of each bus, its AMBA type, and the engine's role on it."""
STATES = {
    "rdma_controller": regs.RDMA_STATES,
    "data_mover_axi_cmd_master": regs.CMD_STATES,
    "descriptor_parser": regs.PARSER_STATES,
    "cq_streamer": regs.STREAMER_STATES,
    "tx_streamer": regs.TX_STATES,
    "tx_header_inserter": regs.INSERTER_STATES,
    "rx_header_parser": regs.HEADER_PARSER_STATES,
    "rx_streamer": regs.RX_STATES,
    "ip_encapsulator": net.ENCAP_STATES,
    "ip_decapsulator": net.DECAP_STATES,
}
"""Names of the states of each block, by their codes."""


def blocks(params: EngineParams) -> Iterator[tuple[str, int, int, tuple[Register, ...]]]:
    """Name, offset, bytes and registers of each block of the AXI4-Lite slave."""
    yield "engine", regs.ENGINE_BASE, regs.ENGINE_BYTES, regs.register_map(params.documented_debug, params.address_bits)
    if params.network:
        yield "encap", regs.ENCAP_BASE, regs.ENCAP_BYTES, net.ENCAP_REGISTERS
        yield "decap", regs.DECAP_BASE, regs.DECAP_BYTES, net.DECAP_REGISTERS


def modules(verilog: str) -> dict[str, str]:
    """Return the modules of a Verilog text by name, each with its end."""
    found = re.findall(r"^(module (\w+).*?^endmodule\n)", verilog, re.MULTILINE | re.DOTALL)
    return {name: text for text, name in found}


def ports(params: EngineParams, of_the_wrapper: bool = True) -> dict[str, tuple[bool, int]]:
    """Return direction (true for an input) and width of each port, without clock and reset. The wrapper of an engine
    without network has no MAC ports."""
    signature = wiring.Signature(interface(params))
    return {
        name: (member.flow is In, len(value))
        for path, member, value in signature.flatten(signature.create())
        for name in ["_".join(map(str, path))]
        if params.network or not of_the_wrapper or not name.startswith("mac_")
    }


@dataclass(frozen=True)
class Clock:
    """A clock of the wrapper, the domain of the engine that it drives, and the buses in that domain."""

    name: str
    reset: str
    domain: str
    mhz: float
    buses: tuple[str, ...]


def clocks(params: EngineParams) -> list[Clock]:
    """Return the clocks, the engine's first."""
    mac = tuple(bus for bus in BUSES if bus.startswith("mac_") and params.network)
    own = []
    if params.mac_clock_mhz:
        own.append(Clock("mac_aclk", "mac_aresetn", "mac_", params.mac_clock_mhz, mac))
    if params.bus_clock_mhz:
        own.append(Clock("m_axi_aclk", "m_axi_aresetn", "bus_", params.bus_clock_mhz, ("m_axi",)))
    elsewhere = [bus for clock in own for bus in clock.buses]
    ours = tuple(bus for bus in ("m_axi", "s_axil", *mac) if bus not in elsewhere)
    return [Clock("aclk", "aresetn", "", params.clock_mhz, ours), *own]


RESET_FACTS = {"POLARITY": "ACTIVE_LOW"}
IRQ_FACTS = {"SENSITIVITY": "LEVEL_HIGH"}


def clock_facts(clock: Clock) -> dict[str, object]:
    """Return the facts of a clock for block designs."""
    return {
        "ASSOCIATED_BUSIF": ":".join(clock.buses),
        "ASSOCIATED_RESET": clock.reset,
        "FREQ_HZ": round(clock.mhz * 1e6),
    }


def _said(facts: Mapping[str, object]) -> str:
    """Return the same as an attribute in Verilog."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def wrapper(params: EngineParams) -> str:
    """Return the engine under AXI's names for clocks and resets. A reset may be asserted at any time; it is deasserted
    synchronously to its clock, two cycles late."""
    found, all_clocks = ports(params), clocks(params)
    lines = [f"module {WRAPPER} ("]
    for clock in all_clocks:
        lines += [
            f'  (* X_INTERFACE_INFO = "xilinx.com:signal:clock:1.0 {clock.name} CLK" *)',
            f'  (* X_INTERFACE_PARAMETER = "{_said(clock_facts(clock))}" *)',
            f"  input wire {clock.name},",
            f'  (* X_INTERFACE_INFO = "xilinx.com:signal:reset:1.0 {clock.reset} RST" *)',
            f'  (* X_INTERFACE_PARAMETER = "{_said(RESET_FACTS)}" *)',
            f"  input wire {clock.reset},",
        ]
    for name, (is_input, bits) in found.items():
        if name == "irq":
            lines.append('  (* X_INTERFACE_INFO = "xilinx.com:signal:interrupt:1.0 irq INTERRUPT" *)')
            lines.append(f'  (* X_INTERFACE_PARAMETER = "{_said(IRQ_FACTS)}" *)')
        vector = f"[{bits - 1}:0] " if bits > 1 else ""
        lines.append(f"  {'input' if is_input else 'output'} wire {vector}{name},")
    lines[-1] = lines[-1].rstrip(",")
    lines.append(");")
    connected = []
    for clock in all_clocks:
        register = f"{clock.domain}reset"
        lines += [
            f'  (* ASYNC_REG = "TRUE" *) reg [1:0] {register} = 2\'b11;',
            f"  always @(posedge {clock.name} or negedge {clock.reset})",
            f"    if (!{clock.reset}) {register} <= 2'b11;",
            f"    else {register} <= {{{register}[0], 1'b0}};",
        ]
        connected += [f"    .{clock.domain}clk({clock.name})", f"    .{clock.domain}rst({register}[1])"]
    connected += [f"    .{name}({name})" for name in found]
    # an engine without network still has MAC ports; tie their inputs off
    for name, (is_input, bits) in ports(params, of_the_wrapper=False).items():
        if is_input and name not in found:
            connected.append(f"    .{name}({bits}'d0)")
    return "\n".join([*lines, f"  {TOP_NAME} engine (", ",\n".join(connected), "  );", "endmodule", ""])


def constraints(params: EngineParams) -> dict[str, str]:
    """Return clock constraints by file name, for Vivado, for SDC's readers and for nextpnr. Only Gray-coded pointers
    cross between clocks; their bits must arrive within a cycle of each other."""
    all_clocks = clocks(params)
    common = "".join(
        f"create_clock -name {clock.name} -period {1000 / clock.mhz:.3f} [get_ports {clock.name}]\n"
        f"set_false_path -from [get_ports {clock.reset}]\n"
        for clock in all_clocks
    )
    bounds, groups = "", "".join(f" -group {clock.name}" for clock in all_clocks)
    for one, other in itertools.permutations(all_clocks, 2):
        if one.domain and other.domain:
            continue  # crossings exist only to and from the engine's clock
        bound = min(1000 / one.mhz, 1000 / other.mhz)
        between = f"-from [get_clocks {one.name}] -to [get_clocks {other.name}]"
        bounds += f"set_max_delay -datapath_only {between} {bound:.3f}\n"
    asynchronous = f"set_clock_groups -asynchronous{groups}\n" if len(all_clocks) > 1 else ""
    return {
        f"{WRAPPER}.xdc": common + bounds,
        f"{WRAPPER}.sdc": common + asynchronous,
        f"{WRAPPER}.lpf": "".join(f'FREQUENCY PORT "{clock.name}" {clock.mhz:g} MHZ;\n' for clock in all_clocks),
    }


def c_header(params: EngineParams) -> str:
    """Return a C header with offsets, fields, codes and queue entries for drivers."""
    lines = [
        "/* The descriptor engine's registers and queue entries. Made by rnic; do not edit. */",
        "#ifndef RNIC_ENGINE_H",
        "#define RNIC_ENGINE_H",
    ]

    def define(name: str, value: int, doc: str = "") -> None:
        said = f" /* {doc} */" if doc else ""
        lines.append(f"#define RNIC_ENGINE_{name.upper()} {value:#x}u{said}")

    for block, base, _size, registers in blocks(params):
        prefix = "" if block == "engine" else f"{block}_"
        lines.append("")
        for register in registers:
            define(f"{prefix}{register.name}", base + register.offset, f"{register.access}: {register.doc}")
            for field in register.fields:
                define(f"{prefix}{register.name}_{field.name}_shift", field.lsb)
                define(f"{prefix}{register.name}_{field.name}_mask", field.mask << field.lsb, field.doc)
    if params.network:
        lines.append("")
        define("lookup", regs.LOOKUP_BASE, f"{net.ENDPOINT_ENTRIES} endpoint entries")
        _define_layout(define, "endpoint", net.ENDPOINT_ENTRY)
    lines.append("")
    for name, layout in (("sqe", SQ_ENTRY), ("cqe", DOCUMENTED_CQ_ENTRY if params.documented_cqe else CQ_ENTRY)):
        _define_layout(define, name, layout)
    lines.append("")
    for code, meaning in regs.ENGINE_ERROR_NAMES.items():
        define(f"error_{code}", code, meaning)
    return "\n".join([*lines, "", "#endif", ""])


def _define_layout(define: Callable[..., None], name: str, layout: Layout) -> None:
    define(f"{name}_bytes", layout.size)
    for field in layout.fields:
        define(f"{name}_{field.name}_byte", field.byte, field.doc)


IPXACT = "http://www.accellera.org/XMLSchema/IPXACT/1685-2014"
ACCESS = {"RW": "read-write", "RO": "read-only", "W1C": "read-write", "PULSE": "write-only", "SPLIT": "read-write"}


def add(parent: ET.Element, tag: str, text: object = None, **attributes: str) -> ET.Element:
    """Return a child of ``parent``."""
    child = ET.SubElement(parent, f"{{{IPXACT}}}{tag}", attributes)
    if text is not None:
        child.text = str(text)
    return child


def ip_xact(params: EngineParams, files: list[str]) -> str:
    """Return the IP-XACT description (IEEE 1685-2014): buses, ports, registers with fields, and files."""
    ET.register_namespace("ipxact", IPXACT)

    root = ET.Element(f"{{{IPXACT}}}component")
    for tag, text in (("vendor", VENDOR), ("library", LIBRARY), ("name", WRAPPER), ("version", __version__)):
        add(root, tag, text)
    found = ports(params)
    interfaces = add(root, "busInterfaces")
    for bus, (kind, end) in BUSES.items():
        _bus(interfaces, bus, kind, end, found)
    for clock in clocks(params):
        _signal(interfaces, clock.name, "clock", "CLK", clock_facts(clock))
        _signal(interfaces, clock.reset, "reset", "RST", RESET_FACTS)
    _signal(interfaces, "irq", "interrupt", "INTERRUPT", IRQ_FACTS, "master")
    spaces = add(root, "addressSpaces")
    space = add(spaces, "addressSpace")
    add(space, "name", "memory")
    add(space, "range", 1 << params.address_bits)
    add(space, "width", params.bus_width)
    maps = add(root, "memoryMaps")
    memory_map = add(maps, "memoryMap")
    add(memory_map, "name", "registers")
    for block, base, size, registers in blocks(params):
        _block(memory_map, block, base, size, registers)
    model = add(root, "model")
    views = add(model, "views")
    view = add(views, "view")
    add(view, "name", "rtl")
    add(view, "componentInstantiationRef", "verilog")
    instantiations = add(model, "instantiations")
    instance = add(instantiations, "componentInstantiation")
    add(instance, "name", "verilog")
    add(instance, "language", "verilog")
    add(instance, "moduleName", WRAPPER)
    add(add(instance, "fileSetRef"), "localName", "sources")
    all_ports = add(model, "ports")
    inputs = {name: (True, 1) for clock in clocks(params) for name in (clock.name, clock.reset)}
    for name, (is_input, bits) in {**inputs, **found}.items():
        port = add(all_ports, "port")
        add(port, "name", name)
        wire = add(port, "wire")
        add(wire, "direction", "in" if is_input else "out")
        if bits > 1:
            vector = add(add(wire, "vectors"), "vector")
            add(vector, "left", bits - 1)
            add(vector, "right", 0)
    sets = add(root, "fileSets")
    sources = add(sets, "fileSet")
    add(sources, "name", "sources")
    for file in files:
        entry = add(sources, "file")
        add(entry, "name", file)
        add(entry, "fileType", "verilogSource")
    add(root, "description", "Descriptor engine: WRITEs from a submission queue, completions into a completion queue")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _interface(parent: ET.Element, name: str, library: str, kind: str, mapped: Mapping[str, str]) -> ET.Element:
    """Return a bus interface whose ports are ``mapped`` from the names of its type."""
    interface = add(parent, "busInterface")
    add(interface, "name", name)
    add(interface, "busType", vendor="xilinx.com", library=library, name=kind, version="1.0")
    abstractions = add(interface, "abstractionTypes")
    abstraction = add(abstractions, "abstractionType")
    add(abstraction, "abstractionRef", vendor="xilinx.com", library=library, name=f"{kind}_rtl", version="1.0")
    pairs = add(abstraction, "portMaps")
    for logical, physical in mapped.items():
        pair = add(pairs, "portMap")
        add(add(pair, "logicalPort"), "name", logical)
        add(add(pair, "physicalPort"), "name", physical)
    return interface


def _signal(
    parent: ET.Element, port: str, kind: str, logical: str, facts: Mapping[str, object], end: str = "slave"
) -> None:
    """Add a port that is its own interface, with its parameters."""
    interface = _interface(parent, port, "signal", kind, {logical: port})
    add(interface, end)
    parameters = add(interface, "parameters")
    for name, value in facts.items():
        parameter = add(parameters, "parameter", parameterId=f"BUSIFPARAM_VALUE.{port.upper()}.{name}")
        add(parameter, "name", name)
        add(parameter, "value", value)


def _bus(parent: ET.Element, bus: str, kind: str, end: str, found: dict[str, tuple[bool, int]]) -> None:
    mapped = {name.removeprefix(f"{bus}_").upper(): name for name in found if name.startswith(f"{bus}_")}
    if not mapped:
        return
    side = add(_interface(parent, bus, "interface", kind, mapped), end)
    if kind == "aximm" and end == "master":
        add(side, "addressSpaceRef", addressSpaceRef="memory")
    elif kind == "aximm":
        add(side, "memoryMapRef", memoryMapRef="registers")


def _block(parent: ET.Element, block: str, base: int, size: int, registers: tuple[Register, ...]) -> None:
    here = add(parent, "addressBlock")
    for tag, text in (("name", block), ("baseAddress", f"'h{base:X}"), ("range", size), ("width", 32)):
        add(here, tag, text)
    add(here, "usage", "register")
    for register in registers:
        one = add(here, "register")
        add(one, "name", register.name)
        add(one, "description", register.doc)
        add(one, "addressOffset", f"'h{register.offset:X}")
        add(one, "size", 32)
        whole = Field("value", 0, 31, 0, register.doc, 4, register.access)
        for field in register.fields or (whole,):
            part = add(one, "field")
            add(part, "name", field.name)
            add(part, "description", field.doc)
            add(part, "bitOffset", field.lsb)
            reset = add(add(part, "resets"), "reset")
            add(reset, "value", f"'h{register.reset >> field.lsb & field.mask:X}")
            add(part, "bitWidth", field.width)
            add(part, "access", ACCESS.get(field.access, "read-only" if field.access == "RO" else "read-write"))
            if field.access == "W1C":
                add(part, "modifiedWriteValue", "oneToClear")


def write_package(params: EngineParams, directory: Path) -> list[Path]:
    """Write the package; return the paths of its files.

    Raises:
        OSError: the directory cannot be created or written.
        ToolError: Yosys is missing.
    """
    sources = {f"hdl/{name}.v": text for name, text in modules(to_verilog(Top(params), TOP_NAME)).items()}
    sources[f"hdl/{WRAPPER}.v"] = wrapper(params)
    files = {
        **sources,
        f"{WRAPPER}.f": "".join(f"{name}\n" for name in sources),
        **constraints(params),
        "rnic_engine.h": c_header(params),
        "component.xml": ip_xact(params, list(sources)),
        **{
            f"waves/{block}.txt": "".join(f"{code:x} {state}\n" for code, state in enumerate(states))
            for block, states in STATES.items()
        },
    }
    out = []
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        out.append(path)
    return out
