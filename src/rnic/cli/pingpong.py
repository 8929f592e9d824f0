"""``rnic pingpong``: messages back and forth, with another rnic or with rdma-core's ``ibv_*_pingpong``."""

from __future__ import annotations

import contextlib
import json
import random
import secrets

import click

from rnic.cli.options import (
    MTUS,
    PORT_RENAMED,
    Command,
    addr,
    as_json,
    connection,
    iters,
    nic_process,
    size,
    tcp_port,
    timeout,
    udp_port,
)
from rnic.cli.peer import failing, listen, own_address, play, rate_lines
from rnic.cli.pingpong_data import Data, Echo, Unchecked
from rnic.cli.pingpong_peer import Outcome, Settings, Side
from rnic.cm.rdmacore_pingpong import DEFAULT_PORT, Destination, connect, serve
from rnic.link.base import LinkError
from rnic.spec.addresses import address_text
from rnic.spec.limits import ROCE_UDP_PORT

_SRQ_ENDS = 256
"""``ibv_srq_pingpong`` always exchanges this many destinations, whatever its number of queue pairs."""
_MAX_INBOX = 1 << 30


def _padded(ends: list[Destination], settings: Settings) -> list[Destination]:
    """Return the destinations to send to an ibv pingpong over TCP."""
    count = _SRQ_ENDS if settings.shared else 1
    return ends + [Destination(0, 0, bytes(16))] * (count - len(ends))


def _play_ibv(side: Side, server: str | None, port: int, check: bool, quiet: bool) -> Outcome:
    """Run the exchange and the data pattern of rdma-core's programs."""
    settings = side.settings
    mine = _padded(side.local, settings)

    def bring_up(theirs: list[Destination]) -> None:
        # the exchange has no UDP port: assume that the peer uses the same one
        side.connect(theirs, side.ctx.udp_port)

    if server is None:
        with listen("", port) as listener:
            if not quiet:
                side.show("local")
            serve(listener, mine, bring_up)
    else:
        if not quiet:
            side.show("local")
        bring_up(connect(server, port, mine))
    if not quiet:
        side.show("remote")
    rng = random.Random(secrets.randbits(64))
    data: Data = Echo(rng, settings.queues, server is None) if check else Unchecked()
    return side.play(data, first=server is not None)


def _report(settings: Settings, outcome: Outcome, checked: bool, as_json: bool) -> None:
    figures, lines = rate_lines(settings.size, settings.iters, outcome.seconds)
    if as_json:
        ends = {
            name: [{"qpn": end.qpn, "psn": end.psn, "gid": address_text(end.gid)} for end in found]
            for name, found in (("local", outcome.local), ("remote", outcome.remote))
        }
        print(json.dumps({**ends, **figures, "checked": checked}, indent=2))
    else:
        print("\n".join(lines))


@click.command(
    cls=Command,
    epilog="Without SERVER, wait for a client as the server.",
    renamed={**PORT_RENAMED, "--service": "--connection", "-c": "--chk", "--attach": "--nic-process"},
)
@click.argument("server", required=False)
@click.option("--compat", type=click.Choice(("ibv",)), help="Talk to ibv_{rc,uc,ud,srq}_pingpong of rdma-core.")
@tcp_port(DEFAULT_PORT)
@addr("SERVER")
@udp_port(
    "UDP port of the NIC (default: 4791; any free port for a client without --compat). With --compat, of both NICs."
)
@size(None, 1 << 30, "Message size in bytes: 4096, UD 2048.")
@click.option("-m", "--mtu", default="1024", show_default=True, type=click.Choice(MTUS), help="Path MTU.")
@click.option(
    "-r", "--rx-depth", default=500, show_default=True, type=click.IntRange(1, 32767), help="Number of posted receives."
)
@iters(1000, "Exchanges.")
@click.option("-l", "--sl", default=0, show_default=True, type=click.IntRange(0, 15), help="Service level.")
@click.option("-e", "--events", is_flag=True, help="Sleep on completion events instead of polling.")
@click.option("-g", "--gid-idx", default=0, show_default=True, type=click.IntRange(0, 255), help="GID table entry.")
@click.option("--chk", is_flag=True, help="Check the data; without --compat it is always checked.")
@connection(short=False)
@click.option("--srq", is_flag=True, help="Use several RC queue pairs with one shared receive queue.")
@click.option("-q", "--num-qp", type=click.IntRange(1, 256), help="Queue pairs with --srq.  [default: 16]")
@nic_process()
@timeout()
@as_json("Print the result as JSON.")
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
    nic_process: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Exchange messages with SERVER, or act as the server, and check them.

    Exit status: 0 on success, 1 if data was wrong or the peer failed, 2 for wrong arguments.
    """
    if srq and service != "RC":
        raise click.BadParameter(
            f"{service} has no ping-pong on a shared receive queue: use RC", param_hint="--connection"
        )
    if num_qp is not None and not srq:
        raise click.BadParameter(f"{num_qp} queue pairs need --srq", param_hint="--num-qp")
    if size is None:
        size = 2048 if service == "UD" else 4096
    if srq and rx_depth * size > _MAX_INBOX:
        most = max(1, _MAX_INBOX // size)
        raise click.BadParameter(f"{rx_depth} receives of {size} bytes: use 1 to {most}", param_hint="--rx-depth")
    if udp_port is None:
        udp_port = 0 if server is not None and compat is None and not nic_process else ROCE_UDP_PORT
    queues = (num_qp or 16) if srq else 1
    with failing("pingpong"):
        address = own_address(addr, server, port)
    settings = Settings(
        address,
        udp_port,
        service,
        size,
        int(mtu),
        rx_depth,
        iters,
        sl,
        events,
        gid_idx,
        queues,
        srq,
        timeout,
        nic_process,
    )
    try:
        side = Side(settings)
    except LinkError as error:
        raise LinkError(f"{error} (options --udp-port and --addr)") from None
    with failing("pingpong"), contextlib.closing(side):
        if compat is None:
            outcome = play(side, server, port, as_json, queues)
        else:
            outcome = _play_ibv(side, server, port, chk, as_json)
    _report(settings, outcome, chk or compat is None, as_json)
