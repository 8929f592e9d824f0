"""``rnic gateware``: the descriptor engine as gateware, simulated or written as Verilog."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from rnic.cli.faults import from_rates, rate_rule
from rnic.cli.options import Command, faults
from rnic.paxi import DEFAULT_PORT, AxiError, open_window
from rnic.paxi.bridge import BridgeConfig
from rnic.spec.source import install_hint

MISSING = f"the gateware needs Amaranth: {install_hint('gateware')}"
MAX_WRITE_BYTES = 1 << 20
MAX_WRITES = 4096


def _gateware(name: str) -> Any:
    """Return a module of the optional package, or fail with one line that says what to install."""
    if importlib.util.find_spec("amaranth") is None:
        raise click.ClickException(MISSING)
    return importlib.import_module(f"rnic.gateware.{name}")


def _numbers(text: str, low: int, high: int, option: str) -> tuple[int, ...]:
    """Parse a comma-separated list of numbers, each in range."""
    try:
        out = tuple(int(part, 0) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}: a number, or several with commas", param_hint=option) from None
    for value in out:
        if not low <= value <= high:
            raise click.BadParameter(f"{value}: {low} to {high}", param_hint=option)
    return out


_with_output = click.option(
    "-o", "--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="Directory to write into."
)


def _with_parameters(command: Any) -> Any:
    """Add the options for an engine's parameters, one for each."""
    for option in reversed(
        (
            click.option("--width", default=32, show_default=True, help="Bus width in bits: 32, 64, 128, 256 or 512."),
            click.option(
                "--address-bits",
                default=32,
                show_default=True,
                help="Width of memory addresses: 32 to 64, a multiple of 4.",
            ),
            click.option("--block-size", default=1024, show_default=True, help="Largest fragment in bytes."),
            click.option(
                "--boundary",
                default=1024,
                show_default=True,
                help="Address boundary in bytes that no fragment crosses.",
            ),
            click.option("--fifo-depth", default=512, show_default=True, help="Depth of the loopback FIFO in beats."),
            click.option("--max-burst", default=64, show_default=True, help="Longest AXI burst in beats."),
            click.option(
                "--overlapped/--serial",
                default=False,
                help="Overlap fragments, or handle them one by one as documented.",
            ),
            click.option(
                "--in-flight",
                type=int,
                show_default="1; 32 with --overlapped",
                help="WRITEs in flight; more than 1 needs --overlapped.",
            ),
            click.option("--outstanding", default=16, show_default=True, help="Bursts on the bus in each direction."),
            click.option(
                "--watchdog", default=1_000_000, show_default=True, help="Reset value of WATCHDOG, in cycles."
            ),
            click.option("--clock-mhz", default=100.0, show_default=True, help="Clock frequency for the constraints."),
            click.option("--mac-clock-mhz", default=0.0, help="Clock of the MAC; 0 for the engine's clock."),
            click.option("--bus-clock-mhz", default=0.0, help="Clock of the memory bus; 0 for the engine's clock."),
            click.option(
                "--documented-debug", is_flag=True, help="Lay out debug registers as the register document does."
            ),
            click.option(
                "--documented-cqe", is_flag=True, help="Write CQ entries with only the words of document 000."
            ),
            click.option("--network/--no-network", default=True, help="Build with MAC ports, or for loopback only."),
            click.option(
                "--check-address/--any-address", default=True, help="Drop frames for other IP addresses, or take them."
            ),
            click.option(
                "--check-sum/--any-sum", default=True, help="Drop frames with a wrong UDP checksum, or take them."
            ),
            click.option("--rx-fifo", default=8192, show_default=True, help="Size of the receive FIFO in bytes."),
        )
    ):
        command = option(command)
    return command


PARAMETER_OF = {
    "width": "bus_width",
    "watchdog": "watchdog_cycles",
    "check_sum": "check_udp_checksum",
    "rx_fifo": "rx_fifo_bytes",
}
"""Options whose name differs from the parameter's."""


def _params(overlapped: bool, in_flight: int | None, **options: Any) -> Any:
    module = _gateware("params")
    if in_flight is None:
        in_flight = module.OVERLAPPED_IN_FLIGHT if overlapped else 1
    try:
        return module.EngineParams(
            serial=not overlapped,
            in_flight=in_flight,
            **{PARAMETER_OF.get(name, name): value for name, value in options.items()},
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _window(text: str | None, option: str) -> Any:
    """Parse an address window BASE:SIZE."""
    if text is None:
        return None
    base, _colon, size = text.partition(":")
    try:
        return _gateware("driver").Window(int(base, 0), int(size, 0))
    except ValueError:
        raise click.BadParameter(f"{text!r}: BASE:SIZE", param_hint=option) from None


def _far_memory(stack: contextlib.ExitStack, host: str, port: int, runs: Any, job: Any, width: int) -> Any:
    """Return the engine's DDR at a PAXI target: a window for the processor and one for the bus."""
    config = BridgeConfig(data_bits=width, base=job.base + runs.SQ_BASE)
    processor, bus = (stack.enter_context(open_window(host, port, config=config)) for _ in range(2))
    needed = runs.ddr_bytes(job)
    if len(bus) < needed:
        raise click.ClickException(
            f"the target at {host} has {len(bus)} bytes, the engine's DDR {needed}: rnic paxi serve --size {needed}"
        )
    return _gateware("paxi_bus").RemoteMemory(processor, bus)


@click.group()
def gateware() -> None:
    """Simulate the descriptor engine, or write it as Verilog."""


def _drop_rate(text: str | None) -> float:
    """Return the fraction of frames to drop, from ``drop=RATE``; 0 without it."""
    if text is None:
        return 0.0
    try:
        rules = from_rates(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--faults") from None
    rate = rules[0]["probability"] if rules else None
    if not isinstance(rate, float) or rules != [rate_rule("drop", rate)]:
        raise click.BadParameter(f"{text!r}: the simulated wire takes one rate: drop=10%", param_hint="--faults")
    return rate


@gateware.command(cls=Command, renamed={"--loss": lambda value: ("--faults", f"drop={value}")})
@click.option(
    "--size",
    default="4096",
    show_default=True,
    help="Bytes of each WRITE; several values, separated by commas, alternate.",
)
@click.option("--local-offset", default="0", show_default=True, help="Offset of the source; several values alternate.")
@click.option(
    "--remote-offset", default="0", show_default=True, help="Offset of the destination; several values alternate."
)
@click.option("--count", default=4, show_default=True, type=click.IntRange(1, MAX_WRITES), help="Number of WRITEs.")
@click.option("--ring", default=4, show_default=True, type=click.IntRange(2, 4096), help="Entries of each ring.")
@click.option(
    "--one-at-a-time",
    is_flag=True,
    help="Wait for each completion before the next WRITE, as the test in the documents does.",
)
@click.option(
    "--two", is_flag=True, help="Connect two engines through their MAC ports; by default, one runs in loopback."
)
@faults("Faults of the wire between two engines: fraction of frames to drop, such as drop=10%.")
@click.option(
    "--stalls", default=0.0, type=click.FloatRange(0, 0.95), help="Fraction of cycles in which a channel stalls."
)
@click.option("--latency", default=0, type=click.IntRange(0, 10_000), help="Latency of memory in cycles.")
@click.option("--local-window", help="BASE:SIZE from which payloads may be read; by default the payloads' own.")
@click.option("--window", help="BASE:SIZE to which payloads may be written; by default their targets.")
@click.option("--base", default="0", show_default=True, help="Offset added to all addresses, such as 0x100000000.")
@click.option("--ddr", metavar="HOST", help="Use memory of another machine, which runs rnic paxi serve, as the DDR.")
@click.option("--line-gbps", default=0.0, type=click.FloatRange(0, 800), help="With --two: line rate of the MACs.")
@click.option(
    "--ddr-port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="TCP port of rnic paxi serve on that machine.",
)
@click.option("--seed", default=0, help="Seed of payloads, stalls and losses.")
@click.option("--states", is_flag=True, help="Print cycles by block and state, too.")
@click.option(
    "--vcd", type=click.Path(dir_okay=False, path_type=Path), help="Write all signals as VCD (GTKWave, Surfer)."
)
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write a timeline for Perfetto.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@_with_parameters
def run(
    size: str,
    local_offset: str,
    remote_offset: str,
    count: int,
    ring: int,
    one_at_a_time: bool,
    two: bool,
    faults: str | None,
    stalls: float,
    latency: int,
    local_window: str | None,
    window: str | None,
    base: str,
    ddr: str | None,
    line_gbps: float,
    ddr_port: int,
    seed: int,
    states: bool,
    vcd: Path | None,
    trace: Path | None,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Run WRITEs through the simulated engine and verify every byte. Exit status 1 if one is wrong."""
    loss = _drop_rate(faults)
    if loss and not two:
        raise click.UsageError(f"--faults {faults}: only with --two")
    if line_gbps and not two:
        raise click.UsageError(f"--line-gbps {line_gbps}: only with --two")
    if ddr is not None and two:
        raise click.UsageError("--ddr: one engine alone, without --two")
    sizes = _numbers(size, 1, MAX_WRITE_BYTES, "--size")
    offsets = [
        _numbers(text, 0, 4095, option)
        for text, option in ((local_offset, "--local-offset"), (remote_offset, "--remote-offset"))
    ]
    runs = _gateware("simulate")
    params = _params(**parameters)
    job = runs.Job(
        sizes=sizes,
        local_offsets=offsets[0],
        remote_offsets=offsets[1],
        count=count,
        batch=not one_at_a_time,
        network=two,
        ring_size=ring,
        seed=seed,
        stall_rate=stalls,
        loss=loss,
        local_window=_window(local_window, "--local-window"),
        remote_window=_window(window, "--window"),
        timing=_gateware("axi_model").Timing(latency),
        line_gbps=line_gbps,
        base=_numbers(base, 0, (1 << 64) - 1, "--base")[0],
    )
    try:
        with contextlib.ExitStack() as stack:
            memories = None if ddr is None else [_far_memory(stack, ddr, ddr_port, runs, job, params.bus_width)]
            result = runs.run_job(job, params, vcd, trace, states, memories)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except AxiError as error:
        raise click.ClickException(f"the DDR was lost: {error}") from None
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
    found = runs.summary(result, params)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{found['completions']} WRITEs, {found['payload_bytes']} bytes, {found['cycles']} cycles, "
            f"{found['bytes_per_cycle']:.3f} bytes/cycle ({found['share_of_bus']:.0%} of {params.bus_width} bit)"
        )
        if two:
            line = f", {found['line_gbps']} Gb/s on the line at {params.clock_mhz:g} MHz" if line_gbps else ""
            print(f"{found['frames']} frames, {found['frames_lost']} lost{line}")
        for block, cycles in found["states"].items():
            print(f"{block}: " + ", ".join(f"{state} {spent}" for state, spent in cycles.items()))
        print("pass" if result.passed else "\n".join(["FAIL", *result.wrong]))
    if not result.passed:
        sys.exit(1)


def _write(write: Callable[[Any, Path], Iterable[Path]], params: Any, output: Path) -> None:
    """Write files into a directory, and print their names."""
    try:
        paths = write(params, output)
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
    for path in paths:
        print(path)


@gateware.command()
@_with_output
@_with_parameters
def verilog(output: Path, **parameters: Any) -> None:
    """Write the engine as one Verilog file, and its parameters as JSON."""
    _write(_gateware("verilog").write_engine, _params(**parameters), output)


@gateware.command()
@_with_output
@_with_parameters
def package(output: Path, **parameters: Any) -> None:
    """Write the engine for vendors' tools: a file for each module, wrapper, IP-XACT, constraints, C header."""
    _write(_gateware("package").write_package, _params(**parameters), output)


@gateware.command()
@_with_output
@click.option("--log-qps", default=13, show_default=True, help="log2 of the number of QPs, and of CQs; at most 14.")
@click.option("--log-eqs", default=5, show_default=True, help="log2 of the number of EQs; at most 10.")
@click.option("--fifo-depth", default=16, show_default=True, help="Depth of each channel's request and answer queues.")
@click.option("--outstanding", default=16, show_default=True, help="DMA writes in flight.")
@click.option("--infiniband", is_flag=True, help="Include LIDs in answers about frame encapsulation.")
def ctxmgt(output: Path, **parameters: Any) -> None:
    """Write CtxMgt, the context manager, as one Verilog file, and its parameters as JSON."""
    params = _gateware("ctxmgt.params")
    try:
        chosen = params.CtxMgtParams(**parameters)
    except params.CtxMgtParamsError as error:
        raise click.ClickException(str(error)) from None
    _write(_gateware("verilog").write_ctxmgt, chosen, output)
