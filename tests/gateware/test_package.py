"""What ``rnic gateware package`` writes, held against the tables, a C compiler, and other readers of Verilog."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from rnic.cli.commands import group
from rnic.gateware.package import (
    IPXACT,
    STATES,
    WRAPPER,
    blocks,
    c_header,
    clocks,
    constraints,
    ip_xact,
    modules,
    ports,
    wrapper,
    write_package,
)
from rnic.gateware.params import EngineParams
from rnic.gateware.tools import find_tool
from rnic.gateware.verilog_names import readable
from rnic.rings.sqe import SQ_ENTRY
from rnic.spec.engine_regs import BY_NAME, OFFSETS, RDMA_STATES, WIDE_REGISTERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("package")]
PARAMS = EngineParams(bus_width=64, serial=False, in_flight=4, clock_mhz=156.25)
NAMES = {"x": IPXACT}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_tool("yosys") is None:
        pytest.skip("no yosys: pip install '.[gateware]'")
    place = tmp_path_factory.mktemp("package")
    paths = write_package(PARAMS, place)
    assert all(path.stat().st_size for path in paths)
    return place


def sources(package: Path) -> list[str]:
    return (package / f"{WRAPPER}.f").read_text().split()


def test_one_file_for_each_module_and_nothing_needs_another(package: Path) -> None:
    if shutil.which("iverilog") is None:
        pytest.skip("no iverilog on PATH: apt install iverilog")
    for name in sources(package):
        assert len(re.findall(r"^module ", (package / name).read_text(), re.MULTILINE)) == 1
        assert re.search(rf"^module {Path(name).stem}\b", (package / name).read_text(), re.MULTILINE)
    out = package / "engine.vvp"
    command = ["iverilog", "-g2005", "-Wall", "-Wno-timescale", "-s", WRAPPER, "-o", str(out), *sources(package)]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size


def test_names_can_be_read(package: Path) -> None:
    for name in sources(package):
        text = (package / name).read_text()
        assert not re.search(r"port\$|expression", text), name
        assert not re.search(r"\\\w*[.$]", text), f"{name}: a name that wants escaping"


def test_the_reset_is_taken_away_in_step_with_the_clock(package: Path) -> None:
    if shutil.which("iverilog") is None:
        pytest.skip("no iverilog on PATH: apt install iverilog")
    bench = package / "bench.v"
    bench.write_text(
        f"module bench; reg clk = 0, resetn = 1; always #5 clk = ~clk; {WRAPPER} dut (.aclk(clk), .aresetn(resetn));\n"
        'task show(input [79:0] when_); $display("%0s %b", when_, dut.engine.rst); endtask\n'
        'initial begin #1 show("power"); #40 show("on"); #2 resetn = 0; #1 show("assert"); #22 resetn = 1; '
        '#1 show("release"); @(posedge clk) #1 show("one"); @(posedge clk) #1 show("two"); $finish; end endmodule\n'
    )
    out = package / "bench.vvp"
    subprocess.run(
        ["iverilog", "-g2005", "-s", "bench", "-o", str(out), "bench.v", *sources(package)], cwd=package, check=True
    )
    shown = subprocess.run(["vvp", str(out)], cwd=package, capture_output=True, text=True, check=True).stdout
    assert dict(line.split() for line in shown.splitlines() if line.count(" ") == 1) == {
        "power": "1", "on": "0", "assert": "1", "release": "1", "one": "1", "two": "0",
    }  # fmt: skip


def test_constraints_ask_for_the_clock_that_was_named(package: Path) -> None:
    for kind in ("xdc", "sdc"):
        assert "create_clock -name aclk -period 6.400 [get_ports aclk]" in (package / f"{WRAPPER}.{kind}").read_text()
    assert (package / f"{WRAPPER}.lpf").read_text() == 'FREQUENCY PORT "aclk" 156.25 MHZ;\n'


def test_each_clock_has_its_reset_buses_and_bounds() -> None:
    params = EngineParams(clock_mhz=200, mac_clock_mhz=156.25, bus_clock_mhz=100)
    assert [(clock.name, clock.mhz, clock.buses) for clock in clocks(params)] == [
        ("aclk", 200, ("s_axil",)),
        ("mac_aclk", 156.25, ("mac_tx_axis", "mac_rx_axis")),
        ("m_axi_aclk", 100, ("m_axi",)),
    ]
    text = wrapper(params)
    for clock, reset, domain in (("aclk", "aresetn", ""), ("mac_aclk", "mac_aresetn", "mac_")):
        assert f"always @(posedge {clock} or negedge {reset})" in text
        assert f".{domain}clk({clock})" in text
        assert f".{domain}rst({domain}reset[1])" in text
    xdc = constraints(params)[f"{WRAPPER}.xdc"]
    assert "create_clock -name mac_aclk -period 6.400 [get_ports mac_aclk]" in xdc
    bounds = [line.split()[-1] for line in xdc.splitlines() if line.startswith("set_max_delay -datapath_only")]
    assert bounds == ["5.000"] * 4  # the engine's clock is the fastest of each pair
    assert "-asynchronous -group aclk -group mac_aclk -group m_axi_aclk" in constraints(params)[f"{WRAPPER}.sdc"]


def test_ip_xact_knows_wide_addresses() -> None:
    for bits in (32, 48):
        params = EngineParams(address_bits=bits)
        root = ET.fromstring(ip_xact(params, []))
        assert root.findtext(".//x:addressSpace/x:range", namespaces=NAMES) == str(1 << bits)
        registers = {each.text for each in root.findall(".//x:register/x:name", NAMES)}
        assert {name for name in registers if name and name.endswith("_HI") and "WINDOW" in name} == {
            register.name for register in (WIDE_REGISTERS if bits > 32 else ())
        }
        assert ports(params)["m_axi_araddr"][1] == ports(params)["m_axi_awaddr"][1] == bits
        assert ("WINDOW_LAST_HI 0xb8u" in c_header(params)) == (bits > 32)


@pytest.mark.full
def test_an_engine_on_three_clocks_can_be_built(tmp_path: Path) -> None:
    if find_tool("yosys") is None or shutil.which("iverilog") is None:
        pytest.skip("no yosys or no iverilog")
    write_package(EngineParams(mac_clock_mhz=156.25, bus_clock_mhz=100), tmp_path)
    command = ["iverilog", "-g2005", "-Wall", "-Wno-timescale", "-s", WRAPPER, "-o", "out.vvp", *sources(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mac_clk" not in done.stderr, "a clock that is not connected"


def test_the_c_header_says_what_the_tables_say(package: Path, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    source, program = tmp_path / "show.c", tmp_path / "show"
    status = BY_NAME["HW_STATUS"].field("rdma_state")
    wanted = {
        "SQ_TAIL": OFFSETS["SQ_TAIL"],
        "HW_STATUS_RDMA_STATE_MASK": status.mask << status.lsb,
        "HW_STATUS_RDMA_STATE_SHIFT": status.lsb,
        "DECAP_LOCAL_PORT": 0x22C,
        "SQE_BYTES": SQ_ENTRY.size,
        "SQE_LENGTH_BYTE": SQ_ENTRY["length"].byte,
        "LOOKUP": 0x2000,
    }
    prints = "".join(f'printf("%u\\n", RNIC_ENGINE_{name});' for name in wanted)
    source.write_text(f'#include <stdio.h>\n#include "rnic_engine.h"\nint main(void) {{ {prints} return 0; }}\n')
    flags = ["-Wall", "-Wextra", "-Werror", "-I", str(package)]
    subprocess.run([compiler, *flags, "-o", str(program), str(source)], check=True)
    shown = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    assert [int(line) for line in shown.split()] == list(wanted.values())


def test_ip_xact_has_every_port_register_and_field(package: Path) -> None:
    root = ET.parse(package / "component.xml").getroot()
    named = {port.findtext("x:name", "", NAMES): port for port in root.iterfind(".//x:ports/x:port", NAMES)}
    header = re.search(rf"module {WRAPPER} \((.*?)\);", (package / "hdl" / f"{WRAPPER}.v").read_text(), re.DOTALL)
    assert header is not None
    declared = re.findall(r"^  (input|output) wire (?:\[(\d+):0\] )?(\w+)", header.group(1), re.MULTILINE)
    assert list(named) == [name for _direction, _left, name in declared] == ["aclk", "aresetn", *ports(PARAMS)]
    for direction, left, name in declared:
        assert named[name].findtext("x:wire/x:direction", "", NAMES) == direction.removesuffix("put")
        assert named[name].findtext(".//x:left", "", NAMES) == left
    buses = {bus.findtext("x:name", "", NAMES) for bus in root.iterfind(".//x:busInterface", NAMES)}
    assert buses == {"m_axi", "s_axil", "mac_tx_axis", "mac_rx_axis", "aclk", "aresetn", "irq"}
    found = {block.findtext("x:name", "", NAMES): block for block in root.iterfind(".//x:addressBlock", NAMES)}
    assert list(found) == [name for name, *_rest in blocks(PARAMS)]
    for name, base, _size, registers in blocks(PARAMS):
        assert int(found[name].findtext("x:baseAddress", "", NAMES)[2:], 16) == base
        entries = found[name].findall("x:register", NAMES)
        assert [entry.findtext("x:name", "", NAMES) for entry in entries] == [each.name for each in registers]
        for entry, register in zip(entries, registers, strict=True):
            assert int(entry.findtext("x:addressOffset", "", NAMES)[2:], 16) == register.offset
            fields = entry.findall("x:field", NAMES)
            assert len(fields) == max(1, len(register.fields))
            for part, field in zip(fields, register.fields, strict=False):
                places = [part.findtext(f"x:{tag}", "", NAMES) for tag in ("name", "bitOffset", "bitWidth")]
                assert places == [field.name, str(field.lsb), str(field.width)]
    assert [file.findtext("x:name", "", NAMES) for file in root.iterfind(".//x:file", NAMES)] == sources(package)


def test_ip_xact_and_the_wrapper_say_the_same_of_clocks_and_resets() -> None:
    params = EngineParams(clock_mhz=200, mac_clock_mhz=156.25)
    root = ET.fromstring(ip_xact(params, []))
    text = wrapper(params)
    ours = {"aclk", "aresetn", "mac_aclk", "mac_aresetn", "irq"}
    seen = {}
    for bus in root.iterfind(".//x:busInterface", NAMES):
        name = bus.findtext("x:name", "", NAMES)
        if name in ours:
            assert [port.findtext("x:name", "", NAMES) for port in bus.iterfind(".//x:physicalPort", NAMES)] == [name]
            kind = bus.find("x:busType", NAMES)
            assert kind is not None
            assert kind.attrib["library"] == "signal"
            parameters = bus.findall(".//x:parameter", NAMES)
            said = {each.findtext("x:name", "", NAMES): each.findtext("x:value", "", NAMES) for each in parameters}
            seen[name] = said
            assert f'X_INTERFACE_PARAMETER = "{", ".join(f"{key} {value}" for key, value in said.items())}"' in text
    assert seen == {
        "aclk": {"ASSOCIATED_BUSIF": "m_axi:s_axil", "ASSOCIATED_RESET": "aresetn", "FREQ_HZ": "200000000"},
        "aresetn": {"POLARITY": "ACTIVE_LOW"},
        "mac_aclk": {
            "ASSOCIATED_BUSIF": "mac_tx_axis:mac_rx_axis",
            "ASSOCIATED_RESET": "mac_aresetn",
            "FREQ_HZ": "156250000",
        },
        "mac_aresetn": {"POLARITY": "ACTIVE_LOW"},
        "irq": {"SENSITIVITY": "LEVEL_HIGH"},
    }


def test_states_have_their_names(package: Path) -> None:
    lines = (package / "waves" / "rdma_controller.txt").read_text().splitlines()
    assert lines == [f"{code:x} {state}" for code, state in enumerate(RDMA_STATES)]
    assert {path.stem for path in (package / "waves").iterdir()} == set(STATES)


def test_the_command_writes_it(tmp_path: Path) -> None:
    if find_tool("yosys") is None:
        pytest.skip("no yosys: pip install '.[gateware]'")
    result = CliRunner().invoke(group, ["gateware", "package", "-o", str(tmp_path), "--no-network"])
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "component.xml") in result.output.splitlines()
    assert "mac_" not in (tmp_path / "component.xml").read_text()
    bad = CliRunner().invoke(group, ["gateware", "package", "-o", str(tmp_path / "component.xml")])
    assert bad.exit_code != 0
    assert "component.xml" in bad.output


TEXT = r"""module \top
  wire width 8 \value
  wire width 1 \job$13
  cell \top.part \part
    connect \clk \clk [0]
    connect \port$7$0 \value [3:0]
    connect \port$9$1 $5 [0]
    connect \job$2 \job$13 [0]
  end
end
module \top.part
  wire width 1 input 0 \clk
  wire width 4 input 1 \port$7$0
  wire width 1 input 2 \port$9$1
  wire width 1 input 3 \job$2
  wire width 6 \word
connect \word { 5'00000 \port$9$1 [0] }
end
"""


def test_a_port_is_called_after_what_it_carries() -> None:
    assert readable(TEXT) == (
        TEXT.replace(r"\port$7$0", r"\value_3_0")
        .replace(r"\port$9$1", r"\word_0")
        .replace("top.part", "top_part")
        .replace("job$", "job_")
    )


RESULTS = r"""module \top
  wire width 4 \state
  cell $add $9
    parameter \A_SIGNED 0
    connect \A \state [3:0]
    connect \B 4'0001
    connect \Y $5
  end
  cell \top.part \part
    connect \port$7$0 $5 [3:0]
    connect \port$8$0 $6 [0]
    connect \port$9$0 $6 [2]
  end
end
module \top.part
  wire width 4 input 1 \port$7$0
  wire width 1 output 2 \port$8$0
  wire width 1 output 3 \port$9$0
  wire width 1 \busy
  cell $mux $3
    connect \S \busy [0]
    connect \A 3'000
    connect \B 3'101
    connect \Y $4
  end
connect \port$8$0 $4 [0]
connect \port$9$0 $4 [2]
end
"""


def test_a_port_that_carries_a_result_is_called_after_what_goes_into_it() -> None:
    assert readable(RESULTS) == (
        RESULTS.replace(r"\port$7$0", r"\state_sum")
        .replace(r"\port$8$0", r"\busy_choice_0")
        .replace(r"\port$9$0", r"\busy_choice_2")
        .replace("top.part", "top_part")
    )


def test_modules_are_told_apart() -> None:
    text = "module one(a);\nendmodule\n\n/* between */\nmodule two(b);\nendmodule\n"
    assert modules(text) == {"one": "module one(a);\nendmodule\n", "two": "module two(b);\nendmodule\n"}
