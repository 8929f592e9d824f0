"""``rnic paxi``: serve memory to PAXI windows, and use a window."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import random
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from rnic.cli.options import as_json, tcp_port, udp_port
from rnic.cli.peer import EXIT_FAILED, failing
from rnic.link.base import LinkError
from rnic.paxi import DEFAULT_PORT, AxiError, Window, open_window, serve
from rnic.paxi.axi import BUS_BITS
from rnic.paxi.bridge import BridgeConfig
from rnic.paxi.check import check
from rnic.paxi.target import TRANSPORTS
from rnic.spec.errors import VerbsError

MAX_SERVED = 1 << 40
MAX_SHOWN = 1 << 20
_LINE = 16


def number(value: Any) -> int:
    """Parse an argument that is a whole number, hexadecimal with 0x."""
    try:
        found = int(str(value), 0)
    except ValueError:
        found = -1
    if found < 0:
        raise click.BadParameter(f"{value!r} is not a whole number, such as 4096 or 0x1000")
    return found


def _place(command: Any) -> Any:
    """Add the options of a window."""
    for option in reversed(
        (
            click.argument("host"),
            tcp_port(DEFAULT_PORT, low=1),
            click.option(
                "--addr", help="Local IP address of the NIC; by default the source address of the route to HOST."
            ),
            udp_port("UDP port of the NIC; 0 for any."),
            click.option(
                "--width",
                default="512",
                show_default=True,
                type=click.Choice([str(bits) for bits in BUS_BITS]),
                help="Data width of the bus in bits.",
            ),
            click.option(
                "--transport",
                default=TRANSPORTS[0],
                show_default=True,
                type=click.Choice(TRANSPORTS),
                help="Transport of the bridge: RoCEv2, or RC Link (SUE2.0).",
            ),
            click.option("--base", default=0, show_default=True, type=number, help="Bus address of the window."),
            as_json(),
        )
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def _open(
    host: str, port: int, addr: str | None, udp_port: int | None, width: str, transport: str, base: int
) -> Iterator[Window]:
    """Open the window of :func:`_place`'s options; an error is one line."""
    try:
        config = BridgeConfig(data_bits=int(width), base=base)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    with (
        failing("paxi", AxiError, LinkError),
        open_window(host, port, config=config, addr=addr, udp_port=udp_port, transport=transport) as window,
    ):
        yield window


@click.group()
def paxi() -> None:
    """Use another chip's memory over RDMA, through an AXI bridge (PAXI)."""


@paxi.command("serve")
@click.option("--size", default=1 << 20, show_default=True, type=number, help="Size of the memory in bytes.")
@click.option("--readonly", is_flag=True, help="Serve read-only memory; answer writes with DECERR.")
@click.option("--windows", type=click.IntRange(1), help="Exit after this many windows were opened and closed.")
@click.option("--addr", default="127.0.0.1", show_default=True, help="Local IP address.")
@tcp_port(DEFAULT_PORT)
@udp_port("UDP port of the NIC: 4791; 0 for any.")
@as_json("Print JSON, one object a line.")
def serve_command(
    size: int, readonly: bool, windows: int | None, addr: str, port: int, udp_port: int | None, as_json: bool
) -> None:
    """Serve zeroed memory to windows until interrupted or --windows are done, then print its SHA-256.

    Unused pages take no memory.
    """
    if not 1 <= size <= MAX_SERVED:
        raise click.BadParameter(f"{size}: 1 to {MAX_SERVED}", param_hint="--size")
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"no {size} bytes of memory: {error}") from None
    with serve(memory, addr, port, readonly=readonly, udp_port=udp_port) as target:
        place = {"address": target.address, "port": target.port, "bytes": size}
        if as_json:
            print(json.dumps(place), flush=True)
        else:
            print(f"serving {size} bytes on {target.address} port {target.port}", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            target.wait(windows)
        opened = target.opened
    digest = hashlib.sha256(memory).hexdigest()
    if as_json:
        print(json.dumps({"windows": opened, "sha256": digest}))
    else:
        print(f"{opened} window{'s' * (opened != 1)}, sha256 {digest}")


@paxi.command("check")
@_place
@click.option(
    "-n", "--bursts", default=1000, show_default=True, type=click.IntRange(1, 1 << 24), help="Number of bursts."
)
@click.option("--seed", type=int, help="Seed of all random choices; by default a new one each time.")
def check_command(as_json: bool, bursts: int, seed: int | None, **place: Any) -> None:
    """Overwrite the memory that HOST serves with random bursts, and compare every byte with a model.

    Some bursts are narrow, unaligned or sparse, and some must be refused. Exit status 1 if anything is wrong.
    """
    seed = secrets.randbits(32) if seed is None else seed
    with failing("paxi", VerbsError), _open(**place) as window:
        start = time.perf_counter()
        outcome = check(window, random.Random(seed), bursts)
        seconds = time.perf_counter() - start
        counters = window.counters.snapshot()
        size = len(window)
    passed = not outcome.wrong
    if as_json:
        figures = {
            "passed": passed,
            "seed": seed,
            "memory_bytes": size,
            "seconds": round(seconds, 6),
            **vars(outcome),
            "counters": counters,
        }
        print(json.dumps(figures, indent=2))
    else:
        print(
            f"{outcome.reads} reads, {outcome.writes} writes, {outcome.refusals} refused as they must, "
            f"{outcome.bytes} bytes in {seconds:.2f} s (seed {seed})"
        )
        print(f"memory of {size} bytes, sha256 {outcome.sha256}")
        print("pass" if passed else "\n".join(["FAIL", *outcome.wrong]))
    if not passed:
        sys.exit(EXIT_FAILED)


@paxi.command("read")
@_place
@click.argument("address", type=number)
@click.argument("count", type=number)
def read_command(as_json: bool, address: int, count: int, **place: Any) -> None:
    """Show COUNT bytes of HOST's memory at bus ADDRESS."""
    if not 1 <= count <= MAX_SHOWN:
        raise click.BadParameter(f"{count}: 1 to {MAX_SHOWN}", param_hint="COUNT")
    with _open(**place) as window:
        at = _inside(window, address, count)
        data = window[at : at + count]
    if as_json:
        print(json.dumps({"address": address, "data": data.hex()}))
        return
    for at in range(0, count, _LINE):
        part = data[at : at + _LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        print(f"{address + at:#010x}  {part.hex(' '):<{_LINE * 3 - 1}}  {text}")


@paxi.command("write")
@_place
@click.argument("address", type=number)
@click.argument("data")
def write_command(as_json: bool, address: int, data: str, **place: Any) -> None:
    """Store DATA, hexadecimal bytes, in HOST's memory at bus ADDRESS."""
    try:
        raw = bytes.fromhex(data)
    except ValueError:
        raise click.BadParameter(f"{data[:40]!r}: pairs of hexadecimal digits", param_hint="DATA") from None
    with _open(**place) as window:
        at = _inside(window, address, len(raw))
        window[at : at + len(raw)] = raw
    if as_json:
        print(json.dumps({"address": address, "bytes": len(raw)}))
    else:
        print(f"{len(raw)} bytes written at {address:#x}")


def _inside(window: Window, address: int, count: int) -> int:
    """Return the offset of a range in the window; fail if it is not inside."""
    at = address - window.base
    if at < 0 or at + count > len(window):
        raise click.UsageError(
            f"{count} bytes at {address:#x} leave the window of {len(window)} bytes at {window.base:#x}"
        )
    return at
