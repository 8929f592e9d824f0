"""``rnic rclink``: messages to and fro over RC Link, between two processes, every byte checked."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping

import click

from rnic.cli.faults import fault_rules, rate_rule
from rnic.cli.options import (
    PORT_RENAMED,
    Command,
    Rename,
    addr,
    as_json,
    faults,
    iters,
    size,
    tcp_port,
    timeout,
    udp_port,
)
from rnic.cli.peer import PeerError, failing, meet, own_address, rate_lines, same
from rnic.cli.pingpong_data import Streams
from rnic.cli.rclink_peer import RcLinkSide, Settings
from rnic.link.base import LinkError, format_address
from rnic.rclink.numbers import (
    CC_WINDOW_NS,
    MAX_LENGTH_THR,
    MAX_PKT_LEN,
    RETRY_UNIT_NS,
    TYPE1_PKT_LEN,
    TYPE1_UDP_PORT,
    RcLinkError,
)

DEFAULT_PORT = 18_516
_AGREED = ("size", "iters", "packet")
_WINDOWS_US = tuple(f"{window / 1_000:g}" for window in CC_WINDOW_NS)


def _hello(side: RcLinkSide, seed: str) -> dict[str, object]:
    settings = side.settings
    return {
        "rclink": 1,
        "address": side.address.hex(),
        "udp_port": side.udp_port,
        "qpid": side.qpid,
        "psn": side.psn,
        "seed": seed,
        **{name: getattr(settings, name) for name in _AGREED},
    }


def _bring_up(side: RcLinkSide, hello: Mapping[str, object]) -> str:
    """Connect to the peer that said ``hello``; its seed."""
    same(side.settings, _AGREED, hello)
    try:
        address = bytes.fromhex(str(hello["address"]))
        numbers = [int(str(hello[name])) for name in ("qpid", "psn", "udp_port")]
        seed = str(hello["seed"])
        if len(address) not in (4, 16) or min(numbers) < 0 or numbers[2] > 0xFFFF:
            raise ValueError(hello)
        side.connect(address, *numbers)
    except (KeyError, ValueError, TypeError, RcLinkError, LinkError) as error:
        raise PeerError(f"the peer's line is not one of rnic rclink: {error!r}"[:200]) from None
    return seed


def _play(side: RcLinkSide, server: str | None, port: int, quiet: bool) -> float:
    settings = side.settings
    seed = secrets.token_hex(8)
    if not quiet:
        _print_end("local", settings.addr, side.udp_port, side.qpid, side.psn)
    line, theirs = meet(
        server,
        settings.addr,
        port,
        settings.timeout_s,
        quiet,
        lambda: _hello(side, seed),
        lambda hello: _bring_up(side, hello),
    )
    try:
        if not quiet:
            remote = side.remote
            _print_end("remote", format_address(side.peer), remote["udp_port"], remote["qpid"], remote["psn"])
        return side.play(Streams(seed, theirs, 1), first=server is not None, line=line)
    finally:
        line.close()


def _print_end(kind: str, address: str, udp_port: int, qpid: int, psn: int) -> None:
    print(f"  {kind + ' QP:':<11} {qpid}, PSN {psn:#05x}, {address} UDP port {udp_port}", flush=True)


def _report(side: RcLinkSide, seconds: float, as_json: bool) -> None:
    figures, lines = rate_lines(side.settings.size, side.settings.iters, seconds, ", all of them checked")
    endpoint = side.port.endpoint
    counters = endpoint.counters.snapshot()
    rtt_us = endpoint.rtt_ns(side.qpid) / 1_000
    if as_json:
        ends = {"local": {"qpid": side.qpid, "psn": side.psn, "udp_port": side.udp_port}, "remote": side.remote}
        print(json.dumps({**ends, **figures, "checked": True, "counters": counters}, indent=2))
        return
    print("\n".join(lines))
    if rtt_us:
        print(f"round trip of the last packet with a timestamp: {rtt_us:.0f} usec")
    print("counters: " + ", ".join(f"{name} {value}" for name, value in counters.items()))


def _sent_faults(action: str) -> Rename:
    """The new spelling of a rate of what this side sends."""
    return lambda value: ("--faults", json.dumps([rate_rule(action, float(value), "tx")]))


@click.command(
    cls=Command,
    epilog="Without SERVER it is the server and waits for a client.",
    renamed={**PORT_RENAMED, "--loss": _sent_faults("drop"), "--mark": _sent_faults("mark")},
)
@click.argument("server", required=False)
@tcp_port(DEFAULT_PORT)
@addr("SERVER")
@udp_port(f"Local UDP port: {TYPE1_UDP_PORT}, but any free one for a client.")
@size(4096, 1 << 24)
@iters(1000, "Exchanges.")
@click.option(
    "--packet",
    default=TYPE1_PKT_LEN,
    show_default=True,
    type=click.IntRange(1, MAX_PKT_LEN),
    help="Most payload bytes of a packet.",
)
@click.option("--rate", default=0, type=click.IntRange(0, MAX_LENGTH_THR), help="Bytes a rate window; none: no limit.")
@click.option(
    "--window", default=_WINDOWS_US[0], show_default=True, type=click.Choice(_WINDOWS_US), help="Rate window in us."
)
@click.option(
    "--retry-timer",
    default=20.0,
    show_default=True,
    type=click.FloatRange(RETRY_UNIT_NS / 1e6, RETRY_UNIT_NS * 0x1FFF / 1e6),
    help="Milliseconds without an answer before packets go again.",
)
@click.option("--retries", default=15, show_default=True, type=click.IntRange(0, 15), help="Retries without progress.")
@faults()
@click.option("--seed", default=1, show_default=True, help="Seed of the faults.")
@click.option("--capture", default="", metavar="FILE", help="Record all packets (pcapng, for rnic decode).")
@timeout()
@as_json("Print the result as JSON.")
def rclink(
    server: str | None,
    port: int,
    addr: str | None,
    udp_port: int | None,
    size: int,
    iters: int,
    packet: int,
    rate: int,
    window: str,
    retry_timer: float,
    retries: int,
    faults: str | None,
    seed: int,
    capture: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Exchange messages with SERVER over RC Link, or as the server, and check every byte.

    Exit status: 0 if all went well, 1 if data was wrong or the peer failed, 2 for wrong arguments.
    """
    if udp_port is None:
        udp_port = 0 if server is not None else TYPE1_UDP_PORT
    rules = json.loads(fault_rules(faults) or "[]")
    with failing("rclink"):
        address = own_address(addr, server, port)
    settings = Settings(
        address,
        udp_port,
        size,
        iters,
        packet,
        rate,
        _WINDOWS_US.index(window),
        int(retry_timer * 1e6),
        retries,
        rules,
        seed,
        capture,
        timeout,
    )
    try:
        side = RcLinkSide(settings)
    except LinkError as error:
        raise LinkError(f"{error} (options --udp-port and --addr)") from None
    except OSError as error:
        raise click.BadParameter(f"{capture}: {error.strerror}", param_hint="--capture") from None
    with failing("rclink"), contextlib.closing(side):
        seconds = _play(side, server, port, as_json)
    _report(side, seconds, as_json)
