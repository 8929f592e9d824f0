"""Jobs in the simulator and the ``rnic gateware`` command: loopback, two engines over a link, timeline, VCD, files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rnic.cli import gateware as cli
from rnic.cli.commands import group
from rnic.gateware import simulate
from rnic.gateware.params import OVERLAPPED_IN_FLIGHT, EngineParams
from rnic.gateware.simulate import Job, run_job
from rnic.gateware.tools import find_tool
from rnic.gateware.trace import LANES
from rnic.spec import engine_regs as regs
from rnic.spec.source import install_hint
from rnic.wire.engine_header import ENGINE_HEADER_BYTES, EngineHeader
from rnic.wire.ethernet import ETHERNET_BYTES
from rnic.wire.ip import IPV4_BYTES, UDP_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
HEADERS = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
SMALL = EngineParams(block_size=64, boundary=64, fifo_depth=64)


def header_of(frame: bytes) -> EngineHeader:
    return EngineHeader.parse(frame, HEADERS)


@pytest.mark.parametrize("serial", [True, pytest.param(False, marks=pytest.mark.full)], ids=["serial", "overlapped"])
def test_two_engines_exchange_data_through_their_mac_ports(serial: bool) -> None:
    params = EngineParams(block_size=64, boundary=64, fifo_depth=64, serial=serial)
    job = Job(sizes=(1, 150, 64), local_offsets=(0, 3), remote_offsets=(0, 5, 2), count=6, network=True, stall_rate=0.2)
    result = run_job(job, params)
    assert result.wrong == []
    assert [done.bytes for done in result.completions] == [1, 150, 64] * 2
    lengths = [header_of(frame).length for frame in result.frames]
    assert sum(lengths) == result.payload_bytes == 430
    assert max(lengths) == 64


@pytest.mark.full
def test_a_lost_fragment_never_corrupts_other_data() -> None:
    result = run_job(Job(sizes=(200,), count=6, network=True, loss=0.4), SMALL)
    assert result.wrong == []
    assert 0 < result.lost < len(result.frames)


@pytest.mark.full
def test_frames_are_what_scapy_reads() -> None:
    inet = pytest.importorskip("scapy.layers.inet", reason="no scapy: pip install '.[test]'")
    l2 = pytest.importorskip("scapy.layers.l2")
    result = run_job(Job(sizes=(5, 100), count=2, network=True), SMALL)
    assert len(result.frames) == 3
    for frame in result.frames:
        packet = l2.Ether(frame)
        ip, udp = packet[inet.IP], packet[inet.UDP]
        assert (packet.src, packet.dst) == ("02:00:00:00:00:01", "02:00:00:00:00:02")
        assert (ip.src, ip.dst, ip.ihl, ip.frag) == ("10.0.0.1", "10.0.0.2", 5, 0)
        assert (udp.sport, udp.dport, udp.chksum) == (0xCE06, 0x138D, 0)
        assert udp.len == UDP_BYTES + ENGINE_HEADER_BYTES + header_of(frame).length
        seen = ip.chksum
        del ip.chksum
        assert l2.Ether(bytes(packet))[inet.IP].chksum == seen


def test_the_verdict_can_be_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte changed behind the engine's back, inside a destination and beside it, is found."""
    drive = simulate._drive

    def spoil(*args: Any) -> simulate.Result:
        result = drive(*args)
        memory = args[3].engines[-1].memory
        target = simulate.REMOTE_BASE + simulate.GUARD_BYTES
        memory.write(target + 7, bytes([memory.read(target + 7, 1)[0] ^ 1]))
        memory.write(target - 1, b"\0")
        return result

    monkeypatch.setattr(simulate, "_drive", spoil)
    result = run_job(Job(sizes=(16,), count=1), SMALL)
    assert not result.passed
    assert result.wrong == [
        "WRITE 0: bytes around 0x20000040 + 16 were changed",
        "WRITE 0: 1 of 16 bytes differ, the first at 0x20000047",
    ]


def test_an_overlapped_engine_has_several_writes_in_flight_unless_told() -> None:
    assert cli._params(False, None).in_flight == 1
    assert cli._params(True, None).in_flight == OVERLAPPED_IN_FLIGHT
    assert cli._params(True, 1).in_flight == 1


@pytest.mark.full
def test_same_seed_same_run() -> None:
    job = Job(sizes=(70,), count=2, stall_rate=0.3, seed=5)
    assert run_job(job, SMALL).cycles == run_job(job, SMALL).cycles


def test_the_controllers_cycles_from_doorbell_to_tail() -> None:
    result = run_job(Job(sizes=(64,), count=1), SMALL, log_states=True)
    spent = result.controller
    assert list(spent) == list(regs.RDMA_STATES)
    once = ("S_PREPARE_READ", "S_READ_CMD", "S_SEND_TX_CMD", "S_PREPARE_WRITE", "S_WRITE_CMD", "S_START_STREAM")
    assert [spent[state] for state in once] == [1] * 6
    assert spent["S_IDLE"] == 3  # the write itself, and two cycles until the controller has compared and seen it
    assert 2 * 7 + 16 + 8 < sum(spent.values()) < result.cycles


ALL_FIGURES = json.loads((Path(__file__).parents[2] / "docs" / "gateware-figures.json").read_text())
FIGURES = ALL_FIGURES["cycles"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full if name != "512 bit, overlapped" else ()) for name in simulate.MEASURED],
)
def test_the_cycles_that_the_documentation_has(name: str) -> None:
    """Exact: the same engine with the same memory takes the same cycles."""
    long, short = simulate.measure(simulate.MEASURED[name])
    assert {"16 KiB": sum(long.values()), "64 bytes": short} == FIGURES[name]
    share = simulate.LONG_BYTES / sum(long.values()) / simulate.MEASURED[name].bus_bytes
    assert share >= {"32 bit, serial": 0.85, "32 bit, overlapped": 0.85, "512 bit, overlapped": 0.6}.get(name, 0)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("row", ALL_FIGURES["latency"], ids=lambda row: f"{row['what']}, {row['latency']}")
def test_the_cycles_with_a_slow_memory(row: dict[str, Any]) -> None:
    """Exact too; a test of the documentation holds the floors against them."""
    posted = int(row["what"].split()[-2])
    line_gbps = simulate.LINE_GBPS if "line_gbps" in row else 0.0
    cycles, line_bits = simulate.measure_latency(row["bytes"], row["latency"], line_gbps > 0, posted, line_gbps)
    assert round(cycles, 1) == row["cycles"]
    if line_gbps:
        assert round(line_bits / 4, 1) == row["line_gbps"] <= line_gbps


# ---------------------------------------------------------------- command line


def engine(*args: str | Path) -> Result:
    return CliRunner().invoke(group, ["gateware", *map(str, args)])


def test_run_prints_figures_and_a_verdict() -> None:
    result = engine("run", "--size", "40,9", "--count", "3", "--fifo-depth", "64", "--states")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("3 WRITEs, 89 bytes, ")
    assert lines[-1] == "pass"
    assert any(line.startswith("controller: S_IDLE ") for line in lines)


def test_run_as_json_with_two_engines_and_losses() -> None:
    result = engine(
        "run", "--size", "600", "--count", "3", "--two", "--faults", "drop=50%", "--block-size", "128", "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert (found["passed"], found["completions"], found["payload_bytes"]) == (True, 3, 1800)
    assert 0 < found["frames_lost"] < found["frames"] == 15
    assert found["bytes_per_cycle"] == pytest.approx(1800 / found["cycles"], abs=1e-4)


def test_a_failed_run_ends_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "_verify", lambda *_: ["WRITE 0: spoilt"])
    result = engine("run", "--size", "4", "--count", "1", "--fifo-depth", "64")
    assert (result.exit_code, result.output.splitlines()[-2:]) == (1, ["FAIL", "WRITE 0: spoilt"])


def test_the_timeline_has_the_lanes_of_000_5_8(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert engine("run", "--size", "80", "--count", "1", "--block-size", "64", "--trace", path).exit_code == 0
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [names[lane] for lane in sorted(names)] == list(LANES)
    assert LANES == ("software", "registers", "fetch", "header", "payload", "RX", "completion")
    spans = [event for event in events if event["ph"] == "X"]
    assert {names[event["tid"]] for event in spans} == set(LANES)
    by_lane = {lane: [e for e in spans if names[e["tid"]] == lane] for lane in LANES}
    assert "write SQ_TAIL" in {event["name"] for event in by_lane["registers"]}
    assert [event["name"] for event in by_lane["completion"]] == list(regs.RDMA_STATES[7:])
    assert [len(by_lane[lane]) for lane in ("header", "payload")] == [2, 2]  # two fragments
    doorbell = max(event["ts"] for event in by_lane["registers"] if event["name"] == "write SQ_TAIL")
    order = [min(event["ts"] for event in by_lane[lane]) for lane in ("fetch", "header", "payload", "RX", "completion")]
    assert doorbell < order[0]
    assert order == sorted(order)
    assert all(event["dur"] > 0 for event in spans)


def test_the_vcd_has_the_states(tmp_path: Path) -> None:
    path = tmp_path / "run.vcd"
    assert engine("run", "--size", "4", "--count", "1", "--fifo-depth", "64", "--vcd", path).exit_code == 0
    text = path.read_text()
    assert "$enddefinitions" in text
    assert " state " in text
    assert text.count("#") > 100


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("run", "--width", "48"), "bus_width=48: choose one of 32, 64, 128, 256, 512"),
        (("run", "--block-size", "100"), "block_size=100: a power of two from 16 to 32768"),
        (("run", "--size", "0"), "0: 1 to 1048576"),
        (("run", "--size", "many"), "'many': a number, or several with commas"),
        (("run", "--faults", "drop=50%"), "--faults drop=50%: only with --two"),
        (
            ("run", "--size", "4", "--count", "1", "--vcd", "/nowhere/x.vcd"),
            "/nowhere/x.vcd: No such file or directory",
        ),
        (("run", "--size", "4", "--count", "1", "--trace", "/nowhere/x"), "/nowhere/x: No such file or directory"),
        (("verilog", "-o", "/dev/null/x"), "/dev/null/x: Not a directory"),
    ],
)
def test_wrong_arguments_are_one_line(args: tuple[str, ...], text: str) -> None:
    result = engine(*args)
    assert result.exit_code in (1, 2)
    assert text in result.output.splitlines()[-1]


def test_verilog_writes_the_engine_and_its_parameters(tmp_path: Path) -> None:
    if find_tool("yosys") is None:
        pytest.skip("no yosys: pip install '.[gateware]'")
    result = engine("verilog", "-o", tmp_path / "out", "--width", "64", "--overlapped", "--fifo-depth", "64")
    assert result.exit_code == 0, result.output
    verilog, record = (Path(line) for line in result.output.split())
    text = verilog.read_text()
    ports = text[text.index("module rnic_engine(") :].split(";", 1)[0]
    for port in ("clk", "rst", "irq", "s_axil_awaddr", "s_axil_rdata", "m_axi_awaddr", "m_axi_wstrb", "m_axi_arlen",
                 "mac_tx_axis_tdata", "mac_tx_axis_tkeep", "mac_rx_axis_tuser"):  # fmt: skip
        assert f" {port}" in ports.replace("(", " "), port
    params = json.loads(record.read_text())
    assert (params["bus_width"], params["serial"], params["fifo_depth"]) == (64, False, 64)


def test_without_amaranth_the_command_says_what_to_install() -> None:
    hide = "import sys; sys.modules['amaranth'] = None; from rnic.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", hide, "gateware", "run"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"rnic: the gateware needs Amaranth: {install_hint('gateware')}"]
