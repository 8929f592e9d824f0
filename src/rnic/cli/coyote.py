"""``rnic coyote``: Coyote's perf_rdma between two processes, with threads, shared virtual memory and checked data."""

from __future__ import annotations

import json

import click

from rnic.cli.options import PORT_RENAMED, Command, addr, as_json, tcp_port, timeout
from rnic.cli.peer import failing, towards
from rnic.cm.line_socket import ExchangeError
from rnic.coyote import perf_rdma
from rnic.coyote.ibvq import DEF_PORT
from rnic.coyote.perf_rdma import Plan, Row
from rnic.coyote.thread import CoyoteError, CThread

_SHOWN = ("tlb_hits", "tlb_misses", "tlb_prefetched", "page_faults", "page_faults_refused")


def _own_address(server: str, port: int) -> str:
    """Return the local address of the route to ``server``; 127.0.0.2 for a server on 127.0.0.1."""
    try:
        own, peer = towards(server, port)
    except ExchangeError as error:
        raise click.BadParameter(str(error), param_hint="SERVER") from None
    # two NICs on one machine need different addresses
    return "127.0.0.2" if own == peer == "127.0.0.1" else own


def _print_row(row: Row) -> None:
    print(f"{row.size:>10} {row.bytes_per_s / (1 << 20):>14.2f} {row.latency_us:>14.2f}", flush=True)


@click.command(
    cls=Command,
    epilog="Without SERVER, wait for one client as the server.",
    renamed=PORT_RENAMED,
)
@click.argument("server", required=False)
@addr("SERVER")
@tcp_port(DEF_PORT, low=1)
@click.option("-o", "--operation", default="write", show_default=True, type=click.Choice(("read", "write")))
@click.option(
    "-x",
    "--min-size",
    default=64,
    show_default=True,
    type=click.IntRange(1, 1 << 27),
    help="Smallest transfer in bytes.",
)
@click.option(
    "-X",
    "--max-size",
    default=1 << 20,
    show_default=True,
    type=click.IntRange(1, 1 << 27),
    help="Largest transfer in bytes.",
)
@click.option("-r", "--runs", default=10, show_default=True, type=click.IntRange(1, 10_000), help="Runs of each size.")
@click.option("--reps", default=8, show_default=True, type=click.IntRange(1, 10_000), help="Transfers in a run.")
@click.option("--vfid", default=0, show_default=True, type=click.IntRange(0, 15), help="vFPGA region of the thread.")
@timeout()
@as_json("Print the result as JSON.")
def coyote(
    server: str | None,
    addr: str | None,
    port: int,
    operation: str,
    min_size: int,
    max_size: int,
    runs: int,
    reps: int,
    vfid: int,
    timeout: float,
    as_json: bool,
) -> None:
    """Measure RDMA WRITE or READ with SERVER as Coyote's perf_rdma does, or act as the server. All data is checked.

    The server takes the sizes and the operation from its client; --max-size limits them. Exit status: 0 on success, 1
    if data was wrong or the peer failed, 2 for wrong arguments.
    """
    address = addr or ("127.0.0.1" if server is None else _own_address(server, port))
    plan = Plan(operation == "write", min_size, max_size, reps, runs)
    rows: list[Row] = []
    with failing("coyote", CoyoteError), CThread(vfid, device=address, timeout=timeout) as thread:
        if server is None and not as_json:
            print(f"waiting on {address} TCP port {port}", flush=True)
        memory = thread.initRDMA(perf_rdma.buffer_bytes(max_size), port, server)
        if server is None:
            plan = perf_rdma.server(thread, memory)
        else:
            if not as_json:
                print(f"{'bytes':>10} {'MiB/s':>14} {'latency us':>14}", flush=True)
            rows = perf_rdma.client(thread, memory, plan, (lambda row: None) if as_json else _print_row)
        thread.connSync()
        thread.device.mmu.count()
        counters = {name: thread.device.counters[name] for name in _SHOWN}
        thread.connClose()
    if as_json:
        result = {
            "plan": plan._asdict(),
            "rows": [row._asdict() for row in rows],
            "checked": True,
            "counters": counters,
        }
        print(json.dumps(result, indent=2))
    else:
        counted = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counters.items())
        print(f"{'WRITE' if plan.write else 'READ'}, all data right; {counted}")
