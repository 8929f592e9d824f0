"""``rnic pingpong``: messages to and fro, with a process of its own kind or with rdma-core's ``ibv_*_pingpong``."""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import sys
from collections.abc import Callable, Mapping

import click

from rnic.cli.perf_peer import SERVICES, Line, PerfError
from rnic.cli.pingpong_data import Data, Echo, Streams, Unchecked
from rnic.cli.pingpong_peer import Outcome, PingpongError, Settings, Side
from rnic.cli.route import ADDR_HELP, towards
from rnic.cm.line_socket import ExchangeError, dial
from rnic.cm.rdmacore_pingpong import DEFAULT_PORT, Destination, connect, serve
from rnic.link.base import LinkError
from rnic.spec.addresses import address_text
from rnic.spec.limits import MTU_CODES, ROCE_UDP_PORT

EXIT_FAILED = 1
_SRQ_ENDS = 256
"""``ibv_srq_pingpong`` exchanges so many destinations whatever its number of queue pairs."""
_MAX_INBOX = 1 << 30
_MTUS = tuple(str(size) for size in MTU_CODES)
_AGREED = ("service", "size", "iters", "mtu", "queues")


def listen(address: str, port: int) -> socket.socket:
    """A TCP listener on an address, or on all with ``""``. :class:`PingpongError` where it cannot be had."""
    dual = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=1, dualstack_ipv6=dual)
    except OSError as error:
        where = address or "all addresses"
        reason = os.strerror(error.errno) if error.errno else error
        raise PingpongError(
            f"TCP port {port} of {where} cannot be used ({reason}): choose another with --port"
        ) from None


def _print_ends(kind: str, ends: list[Destination], quiet: bool) -> None:
    if quiet:
        return
    for end in ends:
        shown = address_text(end.gid)
        print(f"  {kind + ' address:':<15} LID {end.lid:#06x}, QPN {end.qpn:#08x}, PSN {end.psn:#08x}, GID {shown}")
    sys.stdout.flush()


def _padded(ends: list[Destination], settings: Settings) -> list[Destination]:
    """The destinations that go over TCP to an ibv pingpong."""
    count = _SRQ_ENDS if settings.shared else 1
    return ends + [Destination(0, 0, bytes(16))] * (count - len(ends))


def _play_ibv(side: Side, server: str | None, port: int, check: bool, quiet: bool) -> Outcome:
    """The exchange and the data of rdma-core's programs."""
    settings = side.settings
    mine = _padded(side.local, settings)

    def bring_up(theirs: list[Destination]) -> None:
        # the exchange names no UDP port: the peer's is taken to be ours
        side.connect(theirs, side.ctx.udp_port)

    if server is None:
        with listen("", port) as listener:
            _print_ends("local", side.local, quiet)
            serve(listener, mine, bring_up)
    else:
        _print_ends("local", side.local, quiet)
        bring_up(connect(server, port, mine))
    _print_ends("remote", side.remote, quiet)
    rng = random.Random(secrets.randbits(64))
    data: Data = Echo(rng, settings.queues, server is None) if check else Unchecked()
    return side.play(data, first=server is not None)


def _hello(side: Side, seed: str) -> dict[str, object]:
    """What our own kind tells each other."""
    settings = side.settings
    return {
        "pingpong": 1,
        "gid": side.gid.raw.hex(),
        "udp_port": side.ctx.udp_port,
        "ends": [[end.qpn, end.psn] for end in side.local],
        "seed": seed,
        **{name: getattr(settings, name) for name in _AGREED},
    }


def _bring_up(side: Side, hello: Mapping[str, object]) -> str:
    """Connect to the peer that said ``hello``; its seed."""
    same(side.settings, _AGREED, hello)
    try:
        gid = bytes.fromhex(str(hello["gid"]))
        ends = hello["ends"]
        if not isinstance(ends, list) or len(ends) != len(side.local) or len(gid) != 16:
            raise ValueError(ends)
        remote = [Destination(int(qpn), int(psn), gid) for qpn, psn in ends]
        port = int(str(hello["udp_port"]))
        seed = str(hello["seed"])
    except (KeyError, ValueError, TypeError) as error:
        raise PingpongError(f"the peer's line is not an rnic pingpong's: {error!r}") from None
    side.connect(remote, port, gso=True)
    return seed


def meet(
    server: str | None,
    addr: str,
    port: int,
    timeout_s: float,
    quiet: bool,
    hello: Callable[[], Mapping[str, object]],
    bring_up: Callable[[Mapping[str, object]], str],
) -> tuple[Line, str]:
    """Exchange lines with a peer of our own kind: the client speaks first, the server brings itself up and answers.

    Args:
        server: the peer's address for a client, ``None`` for a server.
        addr: address that a server listens on.
        port: TCP port, there or here.
        timeout_s: seconds of silence to bear.
        quiet: do not say where the server waits.
        hello: this side's line.
        bring_up: connects to the peer that said a line, and returns the seed in it.

    Returns:
        The line, which is the caller's to close, and the peer's seed.

    Raises:
        PingpongError: the two do not agree, or the peer is none of our kind.
    """
    if server is None:
        with listen(addr, port) as listener:
            if not quiet:
                print(f"  waiting on {addr} TCP port {listener.getsockname()[1]}", flush=True)
            line = Line(listener.accept()[0], timeout_s)
    else:
        line = Line(dial(server, port).sock, timeout_s)
    try:
        if server is not None:
            line.send(**hello())
        said = line.receive()
        try:
            seed = bring_up(said)
        except PingpongError as error:
            if server is None:
                line.send(error=str(error))
            raise
        if server is None:
            line.send(**hello())
    except BaseException:
        line.close()
        raise
    return line, seed


def same(settings: object, names: tuple[str, ...], hello: Mapping[str, object]) -> None:
    """:class:`PingpongError` where the peer was told other values of these settings."""
    for name in names:
        mine, theirs = getattr(settings, name), hello.get(name)
        if mine != theirs:
            raise PingpongError(f"{name} is {mine} here and {theirs} at the peer: give both sides the same")


def _play_own(side: Side, server: str | None, port: int, quiet: bool) -> Outcome:
    """The exchange and the data between two of our kind."""
    settings = side.settings
    seed = secrets.token_hex(8)
    _print_ends("local", side.local, quiet)
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
        _print_ends("remote", side.remote, quiet)
        return side.play(Streams(seed, theirs, settings.queues), first=server is not None, line=line)
    finally:
        line.close()


def _report(settings: Settings, outcome: Outcome, checked: bool, as_json: bool) -> None:
    count = settings.size * settings.iters * 2
    microseconds = max(outcome.seconds * 1e6, 1e-3)
    if as_json:
        ends = {
            name: [{"qpn": end.qpn, "psn": end.psn, "gid": address_text(end.gid)} for end in found]
            for name, found in (("local", outcome.local), ("remote", outcome.remote))
        }
        figures = {
            "bytes": count,
            "iters": settings.iters,
            "seconds": outcome.seconds,
            "mbit_per_sec": count * 8 / microseconds,
            "usec_per_iter": microseconds / settings.iters,
            "checked": checked,
        }
        print(json.dumps({**ends, **figures}, indent=2))
        return
    seconds = outcome.seconds
    print(f"{count} bytes in {seconds:.2f} seconds = {count * 8 / microseconds:.2f} Mbit/sec")
    print(f"{settings.iters} iters in {seconds:.2f} seconds = {microseconds / settings.iters:.2f} usec/iter")


@click.command(epilog="Without SERVER it is the server and waits for a client.")
@click.argument("server", required=False)
@click.option("--compat", type=click.Choice(("ibv",)), help="Speak with ibv_{rc,uc,ud,srq}_pingpong of rdma-core.")
@click.option(
    "-p",
    "--tcp-port",
    "--port",
    "port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="TCP port.",
)
@click.option("--addr", help=ADDR_HELP.format("SERVER"))
@click.option(
    "--udp-port",
    type=click.IntRange(0, 65535),
    help="UDP port of the NIC: 4791, but any free one for a client of our own kind. With --compat, of both NICs.",
)
@click.option("-s", "--size", type=click.IntRange(1, 1 << 30), help="Message bytes: 4096, UD 2048.")
@click.option("-m", "--mtu", default="1024", show_default=True, type=click.Choice(_MTUS), help="Path MTU.")
@click.option(
    "-r", "--rx-depth", default=500, show_default=True, type=click.IntRange(1, 32767), help="Receives posted."
)
@click.option("-n", "--iters", default=1000, show_default=True, type=click.IntRange(1, 1 << 31), help="Exchanges.")
@click.option("-l", "--sl", default=0, show_default=True, type=click.IntRange(0, 15), help="Service level.")
@click.option("-e", "--events", is_flag=True, help="Sleep on completion events instead of polling.")
@click.option("-g", "--gid-idx", default=0, show_default=True, type=click.IntRange(0, 255), help="GID table entry.")
@click.option("-c", "--chk", is_flag=True, help="Check the data; without --compat it is always checked.")
@click.option("--service", default="RC", show_default=True, type=click.Choice(tuple(SERVICES)), help="Service type.")
@click.option("--srq", is_flag=True, help="Several RC queue pairs with one shared receive queue.")
@click.option("-q", "--num-qp", type=click.IntRange(1, 256), help="Queue pairs with --srq: 16.")
@click.option("--attach", is_flag=True, help="Through this user's NIC process, as programs under rnic exec.")
@click.option(
    "--timeout", default=30.0, show_default=True, type=click.FloatRange(0.1), help="Seconds of silence to bear."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def pingpong(
    server: str | None,
    compat: str | None,
    port: int,
    addr: str | None,
    udp_port: int | None,
    size: int | None,
    mtu: str,
    rx_depth: int,
    iters: int,
    sl: int,
    events: bool,
    gid_idx: int,
    chk: bool,
    service: str,
    srq: bool,
    num_qp: int | None,
    attach: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Exchange messages with SERVER, or as the server, and check them.

    Exit status: 0 if all went well, 1 if data was wrong or the peer failed, 2 for wrong arguments.
    """
    if srq and service != "RC":
        raise click.BadParameter(
            f"{service} has no ping-pong on a shared receive queue: use RC", param_hint="--service"
        )
    if num_qp is not None and not srq:
        raise click.BadParameter(f"{num_qp} queue pairs need --srq", param_hint="--num-qp")
    if size is None:
        size = 2048 if service == "UD" else 4096
    if srq and rx_depth * size > _MAX_INBOX:
        most = max(1, _MAX_INBOX // size)
        raise click.BadParameter(f"{rx_depth} receives of {size} bytes: use 1 to {most}", param_hint="--rx-depth")
    if udp_port is None:
        udp_port = 0 if server is not None and compat is None and not attach else ROCE_UDP_PORT
    queues = (num_qp or 16) if srq else 1
    try:
        address = addr or ("127.0.0.1" if server is None else towards(server, port)[0])
    except ExchangeError as error:
        print(f"rnic pingpong: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    settings = Settings(
        address, udp_port, service, size, int(mtu), rx_depth, iters, sl, events, gid_idx, queues, srq, timeout, attach
    )
    try:
        side = Side(settings)
    except LinkError as error:
        raise LinkError(f"{error} (options --udp-port and --addr)") from None
    try:
        if compat is None:
            outcome = _play_own(side, server, port, as_json)
        else:
            outcome = _play_ibv(side, server, port, chk, as_json)
    except (PingpongError, PerfError, ExchangeError) as error:
        print(f"rnic pingpong: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    finally:
        side.close()
    _report(settings, outcome, chk or compat is None, as_json)
