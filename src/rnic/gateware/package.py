"""An engine as vendors' tools take it: a Verilog file for each module, a wrapper with AXI's clock and active-low reset,
IP-XACT, constraints for the clock it was made for, a C header of its registers, and names of states for waveforms.

Everything here is made from the tables that the gateware is made from.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

from amaranth.lib import wiring
from amaranth.lib.wiring import In

from rnic import __version__
from rnic.gateware.params import EngineParams
from rnic.gateware.top import Top, interface
from rnic.gateware.verilog import TOP_NAME, to_verilog
from rnic.rings.cqe import CQ_ENTRY
from rnic.rings.sqe import SQ_ENTRY
from rnic.spec import engine_net_regs as net
from rnic.spec import engine_regs as regs
from rnic.spec.engine_regs import Register
from rnic.spec.layout import Field, Layout

WRAPPER = f"{TOP_NAME}_axi"
"""The module that a block design takes."""
VENDOR, LIBRARY = "rnic", "rdma"
BUSES = {
    "m_axi": ("aximm", "master"),
    "s_axil": ("aximm", "slave"),
    "mac_tx_axis": ("axis", "master"),
    "mac_rx_axis": ("axis", "slave"),
}
"""Prefix of the ports of each bus, its type among AMBA's, and which end of it the engine is."""
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
    yield "engine", regs.ENGINE_BASE, regs.ENGINE_BYTES, regs.register_map(params.documented_debug)
    if params.network:
        yield "encap", regs.ENCAP_BASE, regs.ENCAP_BYTES, net.ENCAP_REGISTERS
        yield "decap", regs.DECAP_BASE, regs.DECAP_BYTES, net.DECAP_REGISTERS


def modules(verilog: str) -> dict[str, str]:
    """The modules of a Verilog text by name, each with its end."""
    found = re.findall(r"^(module (\w+).*?^endmodule\n)", verilog, re.MULTILINE | re.DOTALL)
    return {name: text for text, name in found}


def ports(params: EngineParams, of_the_wrapper: bool = True) -> dict[str, tuple[bool, int]]:
    """Whether each port is an input, and its bits; without clock and reset. The wrapper of an engine without network
    has no MAC ports."""
    signature = wiring.Signature(interface(params))
    return {
        name: (member.flow is In, len(value))
        for path, member, value in signature.flatten(signature.create())
        for name in ["_".join(map(str, path))]
        if params.network or not of_the_wrapper or not name.startswith("mac_")
    }


def wrapper(params: EngineParams) -> str:
    """The engine under AXI's names for clock and reset. ``aresetn`` may be asserted at any time, and is taken away in
    step with the clock, two cycles late."""
    found = ports(params)
    buses = ":".join(bus for bus in BUSES if params.network or not bus.startswith("mac_"))
    hertz = round(params.clock_mhz * 1e6)
    lines = [
        f"module {WRAPPER} (",
        '  (* X_INTERFACE_INFO = "xilinx.com:signal:clock:1.0 aclk CLK" *)',
        f'  (* X_INTERFACE_PARAMETER = "ASSOCIATED_BUSIF {buses}, ASSOCIATED_RESET aresetn, FREQ_HZ {hertz}" *)',
        "  input wire aclk,",
        '  (* X_INTERFACE_INFO = "xilinx.com:signal:reset:1.0 aresetn RST" *)',
        '  (* X_INTERFACE_PARAMETER = "POLARITY ACTIVE_LOW" *)',
        "  input wire aresetn,",
    ]
    for name, (is_input, bits) in found.items():
        if name == "irq":
            lines.append('  (* X_INTERFACE_INFO = "xilinx.com:signal:interrupt:1.0 irq INTERRUPT" *)')
            lines.append('  (* X_INTERFACE_PARAMETER = "SENSITIVITY LEVEL_HIGH" *)')
        vector = f"[{bits - 1}:0] " if bits > 1 else ""
        lines.append(f"  {'input' if is_input else 'output'} wire {vector}{name},")
    lines[-1] = lines[-1].rstrip(",")
    connected = [f"    .{name}({name})" for name in found]
    # an engine without network has its MAC ports all the same; nothing comes in
    for name, (is_input, bits) in ports(params, of_the_wrapper=False).items():
        if is_input and name not in found:
            connected.append(f"    .{name}({bits}'d0)")
    lines += [
        ");",
        '  (* ASYNC_REG = "TRUE" *) reg [1:0] reset = 2\'b11;',
        "  always @(posedge aclk or negedge aresetn)",
        "    if (!aresetn) reset <= 2'b11;",
        "    else reset <= {reset[0], 1'b0};",
        f"  {TOP_NAME} engine (",
        ",\n".join(["    .clk(aclk)", "    .rst(reset[1])", *connected]),
        "  );",
        "endmodule",
    ]
    return "\n".join(lines) + "\n"


def constraints(params: EngineParams) -> dict[str, str]:
    """Clock constraints by file name, for Vivado, for SDC's readers and for nextpnr."""
    period = 1000 / params.clock_mhz
    clock = f"create_clock -name aclk -period {period:.3f} [get_ports aclk]\n"
    asynchronous = "set_false_path -from [get_ports aresetn]\n"
    return {
        f"{WRAPPER}.xdc": clock + asynchronous,
        f"{WRAPPER}.sdc": clock + asynchronous,
        f"{WRAPPER}.lpf": f'FREQUENCY PORT "aclk" {params.clock_mhz:g} MHZ;\n',
    }


def c_header(params: EngineParams) -> str:
    """Offsets, fields, codes and queue entries for a driver in C."""
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
    for name, layout in (("sqe", SQ_ENTRY), ("cqe", CQ_ENTRY)):
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
    """A child of ``parent``."""
    child = ET.SubElement(parent, f"{{{IPXACT}}}{tag}", attributes)
    if text is not None:
        child.text = str(text)
    return child


def ip_xact(params: EngineParams, files: list[str]) -> str:
    """IEEE 1685-2014: buses, ports, registers with their fields, and the files."""
    ET.register_namespace("ipxact", IPXACT)

    root = ET.Element(f"{{{IPXACT}}}component")
    for tag, text in (("vendor", VENDOR), ("library", LIBRARY), ("name", WRAPPER), ("version", __version__)):
        add(root, tag, text)
    found = ports(params)
    interfaces = add(root, "busInterfaces")
    for bus, (kind, end) in BUSES.items():
        _bus(interfaces, bus, kind, end, found)
    spaces = add(root, "addressSpaces")
    space = add(spaces, "addressSpace")
    add(space, "name", "memory")
    add(space, "range", "4294967296")
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
    for name, (is_input, bits) in {"aclk": (True, 1), "aresetn": (True, 1), **found}.items():
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


def _bus(parent: ET.Element, bus: str, kind: str, end: str, found: dict[str, tuple[bool, int]]) -> None:
    names = [name for name in found if name.startswith(f"{bus}_")]
    if not names:
        return
    interface = add(parent, "busInterface")
    add(interface, "name", bus)
    add(interface, "busType", vendor="xilinx.com", library="interface", name=kind, version="1.0")
    abstractions = add(interface, "abstractionTypes")
    abstraction = add(abstractions, "abstractionType")
    add(abstraction, "abstractionRef", vendor="xilinx.com", library="interface", name=f"{kind}_rtl", version="1.0")
    mapped = add(abstraction, "portMaps")
    for name in names:
        pair = add(mapped, "portMap")
        add(add(pair, "logicalPort"), "name", name.removeprefix(f"{bus}_").upper())
        add(add(pair, "physicalPort"), "name", name)
    side = add(interface, end)
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
    """Write the package; the paths of its files.

    Raises:
        OSError: the directory cannot be made or written.
        ToolError: no Yosys.
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
