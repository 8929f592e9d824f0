"""``rnic rclink``: messages back and forth over RC Link, between two processes, with every byte checked."""

from __future__ import annotations

import contextlib
import json

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
from rnic.cli.peer import failing, own_address, play, rate_lines
from rnic.cli.rclink_peer import RcLinkSide, Settings
from rnic.link.base import LinkError
from rnic.rclink.numbers import (
    CC_WINDOW_NS,
    MAX_LENGTH_THR,
    MAX_PKT_LEN,
    RETRY_UNIT_NS,
    TYPE1_PKT_LEN,
    TYPE1_UDP_PORT,
)

DEFAULT_PORT = 18_516
_WINDOWS_US = tuple(f"{window / 1_000:g}" for window in CC_WINDOW_NS)


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
    """Return the new spelling of a fault rate for sent packets."""
    return lambda value: ("--faults", json.dumps([rate_rule(action, float(value), "tx")]))


@click.command(
    cls=Command,
    epilog="Without SERVER, wait for a client as the server.",
    renamed={**PORT_RENAMED, "--loss": _sent_faults("drop"), "--mark": _sent_faults("mark")},
)
@click.argument("server", required=False)
@tcp_port(DEFAULT_PORT)
@addr("SERVER")
@udp_port(f"Local UDP port: {TYPE1_UDP_PORT}; any free port for a client.")
@size(4096, 1 << 24)
@iters(1000, "Exchanges.")
@click.option(
    "--packet",
    default=TYPE1_PKT_LEN,
    show_default=True,
    type=click.IntRange(1, MAX_PKT_LEN),
    help="Maximum payload bytes of a packet.",
)
@click.option(
    "--rate", default=0, type=click.IntRange(0, MAX_LENGTH_THR), help="Maximum bytes in a rate window; 0 for no limit."
)
@click.option(
    "--window", default=_WINDOWS_US[0], show_default=True, type=click.Choice(_WINDOWS_US), help="Rate window in us."
)
@click.option(
    "--retry-timer",
    default=20.0,
    show_default=True,
    type=click.FloatRange(RETRY_UNIT_NS / 1e6, RETRY_UNIT_NS * 0x1FFF / 1e6),
    help="Retransmission timeout in milliseconds.",
)
@click.option(
    "--retries", default=15, show_default=True, type=click.IntRange(0, 15), help="Maximum retries without progress."
)
@faults()
@click.option("--seed", default=1, show_default=True, help="Seed of the faults.")
@click.option("--capture", default="", metavar="FILE", help="Record all packets to this pcapng file.")
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
    """Exchange messages with SERVER over RC Link, or act as the server, and check every byte.

    Exit status: 0 on success, 1 if data was wrong or the peer failed, 2 for wrong arguments.
    """
    if udp_port is None:
        udp_port = 0 if server is not None else TYPE1_UDP_PORT
    rules = json.loads(fault_rules(faults) or "[]")
    with failing("rclink"):
        address = own_address(addr, server, port)
    cc_window, timer_ns = _WINDOWS_US.index(window), int(retry_timer * 1e6)
    settings = Settings(
        address, udp_port, size, iters, packet, rate, cc_window, timer_ns, retries, rules, seed, capture, timeout
    )
    try:
        side = RcLinkSide(settings)
    except LinkError as error:
        raise LinkError(f"{error} (options --udp-port and --addr)") from None
    except OSError as error:
        raise click.BadParameter(f"{capture}: {error.strerror}", param_hint="--capture") from None
    with failing("rclink"), contextlib.closing(side):
        seconds = play(side, server, port, as_json)
    _report(side, seconds, as_json)
