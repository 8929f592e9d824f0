"""``rnic conform``: a black-box suite against any RoCEv2 peer, and the agent that acts as its software."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path

import click

from rnic.cm.line_socket import ExchangeError, LineSocket, listen_socket
from rnic.conform import report
from rnic.conform.agent import VerbsAgent
from rnic.conform.bench import (
    DEFAULT_AGENT_PORT,
    FIRST_QPN,
    Bench,
    BenchError,
    HandBench,
    RemoteAgent,
    UdpWire,
    simulated,
)
from rnic.conform.frames import Region
from rnic.conform.runner import FAIL, PASS, Result, run_all
from rnic.conform.script import SUITES, Script, scripts
from rnic.link.base import parse_address
from rnic.spec.limits import MTU_CODES, ROCE_UDP_PORT
from rnic.verbs.context import Context

EXIT_FAILED = 1


class _Number(click.ParamType):  # type: ignore[type-arg]  # generic for mypy only in some versions of click
    """A whole number, decimal or 0x."""

    name = "number"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        try:
            return value if isinstance(value, int) else int(value, 0)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)


def _queue_pair(text: str) -> tuple[int, int]:
    qpn, _, psn = text.partition(":")
    try:
        found = int(qpn, 0), int(psn or "0", 0)
    except ValueError:
        raise click.UsageError(f"--qp {text}: give QPN:PSN, such as 0x11:100") from None
    if not all(0 <= number <= 0xFF_FFFF for number in found):
        raise click.UsageError(f"--qp {text}: queue pair and PSN have 24 bits")
    return found


@click.command()
@click.argument("peer", required=False)
@click.option("--addr", default=None, help="Local address used to reach PEER.")
@click.option("--agent-port", type=click.IntRange(1, 65_535), default=DEFAULT_AGENT_PORT, show_default=True)
@click.option(
    "--suite", "suites", multiple=True, type=click.Choice(SUITES), help="Run only tests of this suite; repeatable."
)
@click.option(
    "-k",
    "words",
    multiple=True,
    metavar="PATTERN",
    help="Run only tests whose name matches, such as gap* or *@4096; repeatable.",
)
@click.option("--maker", default=None, help="Vendor whose known deviations to accept (default: as the agent reports).")
@click.option(
    "--patience", type=click.FloatRange(1), default=1.0, show_default=True, help="Multiply timeouts by this factor."
)
@click.option(
    "--qp",
    "queue_pairs",
    multiple=True,
    metavar="QPN:PSN",
    help="Without an agent: a queue pair of the peer; repeatable.",
)
@click.option("--va", type=_Number(), default=None, help="Without an agent: address of the peer's memory.")
@click.option("--rkey", type=_Number(), default=None, help="Without an agent: R_Key of that memory.")
@click.option(
    "--length", type=_Number(), default=65_536, show_default=True, help="Without an agent: bytes of that memory."
)
@click.option(
    "--mtu", type=click.Choice([str(m) for m in MTU_CODES]), default="1024", help="Without an agent: path MTU."
)
@click.option(
    "--local-qpn",
    type=_Number(),
    default=FIRST_QPN,
    help=f"Without an agent: number of the local queue pair.  [default: {FIRST_QPN:#x}]",
)
@click.option("--simulated", "in_simulation", is_flag=True, help="Test rnic itself, in virtual time.")
@click.option("--list", "only_list", is_flag=True, help="List the tests with the clause and text of each, and exit.")
@click.option("--show", "only_show", is_flag=True, help="Print the tests' scripts and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the report, or the list, as JSON.")
@click.option("--report", "report_path", type=click.Path(dir_okay=False), help="Write the report to this file as JSON.")
@click.option("--peer-name", help="Description of the peer for the report: card, firmware, kernel.")
@click.option("--junit", type=click.Path(dir_okay=False), help="Write the report to this file as JUnit XML.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write the report to this file as HTML.")
@click.option("--agent", "as_agent", is_flag=True, help="Run as the agent of rnic's device on --addr.")
@click.option("--agent-source", is_flag=True, help="Print the C source of an agent for any libibverbs device and exit.")
def conform(
    peer: str | None,
    addr: str | None,
    agent_port: int,
    suites: tuple[str, ...],
    words: tuple[str, ...],
    maker: str | None,
    patience: float,
    queue_pairs: tuple[str, ...],
    va: int | None,
    rkey: int | None,
    length: int,
    mtu: str,
    local_qpn: int,
    in_simulation: bool,
    only_list: bool,
    only_show: bool,
    as_json: bool,
    report_path: str | None,
    peer_name: str | None,
    junit: str | None,
    html: str | None,
    as_agent: bool,
    agent_source: bool,
) -> None:
    """Run packet scripts against a RoCEv2 peer and report by clause which rules it follows.

    PEER is the host on which an agent listens: --agent, or the program of --agent-source. With --qp, --va and --rkey
    it is the address of a peer without an agent. Exit status: 0 if no test failed, 1 if one did.
    """
    if agent_source:
        click.echo(files("rnic.conform").joinpath("agent.c").read_text(encoding="utf-8"), nl=False)
        return
    if as_agent:
        _serve(addr or "127.0.0.1", agent_port)
        return
    chosen = [
        script
        for script in scripts()
        if (not suites or script.suite in suites) and (not words or any(fnmatchcase(script.name, w) for w in words))
    ]
    if not chosen:
        raise click.UsageError("no test matches; --list shows all names")
    if only_list or only_show:
        _list(chosen, only_show, as_json)
        return
    try:
        bench = _bench(
            peer, addr, agent_port, queue_pairs, (va, rkey, length), int(mtu), local_qpn, maker, in_simulation
        )
    except BenchError as error:
        raise click.ClickException(str(error)) from None
    bench.maker = maker or bench.maker
    bench.patience_ns = round(bench.patience_ns * patience)
    bench.quiet_ns = round(bench.quiet_ns * patience)
    try:
        results = run_all(bench, chosen, (lambda result: None) if as_json else _told)
    except BenchError as error:
        raise click.ClickException(str(error)) from None
    finally:
        bench.hang_up()
    title = f"rnic conform {peer or 'simulated'} ({bench.maker})"
    made = datetime.now(UTC).isoformat(timespec="seconds")
    name = peer_name or f"{bench.maker} at {peer or 'simulation'}"
    document = report.as_json(results, title, name, bench.maker, bench.mtu, made)
    click.echo(document if as_json else report.as_text(results))
    pages = (report_path, document), (junit, report.as_junit(results, title)), (html, report.as_html(results, title))
    for path, text in pages:
        if path is not None:
            _write(path, text)
    if any(result.verdict == FAIL for result in results):
        sys.exit(EXIT_FAILED)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _told(result: Result) -> None:
    if result.verdict != PASS:
        click.echo(f"{result.verdict}: {result.script.name}: {result.detail}")


def _list(chosen: list[Script], whole: bool, as_json: bool) -> None:
    if as_json:
        fields = ("suite", "name", "clause", "says")
        rows = [{name: getattr(script, name) for name in fields} for script in chosen]
        if whole:
            rows = [{**row, "script": "\n".join(_steps(script))} for row, script in zip(rows, chosen, strict=True)]
        click.echo(json.dumps(rows, indent=2))
        return
    for script in chosen:
        click.echo(f"{script.name:32} {script.clause:20} {script.says}")
        if whole:
            click.echo("".join(f"    {line}\n" for line in _steps(script)))


def _steps(script: Script) -> list[str]:
    """Return a script's lines, after the options that it sets."""
    options = " ".join(f"{name}={script.options[name]}" for name in sorted(script.set_options))
    return ([f"with {options}"] if options else []) + script.text.splitlines()


def _bench(
    peer: str | None,
    addr: str | None,
    agent_port: int,
    queue_pairs: tuple[str, ...],
    memory: tuple[int | None, int | None, int],
    mtu: int,
    local_qpn: int,
    maker: str | None,
    in_simulation: bool,
) -> Bench:
    if in_simulation:
        return simulated()
    if peer is None:
        raise click.UsageError("give PEER, or --simulated")
    if addr is None:
        raise click.UsageError("give --addr, the address of this machine that the peer sees")
    if not queue_pairs:
        wire = UdpWire(addr, ROCE_UDP_PORT)
        try:
            agent = RemoteAgent(peer, agent_port)
        except BenchError:
            wire.close()
            raise
        try:
            return Bench(wire, agent)
        except BenchError:
            wire.close()
            agent.close()
            raise
    va, rkey, length = memory
    if va is None or rkey is None:
        raise click.UsageError("--qp needs --va and --rkey: memory of the peer for WRITE, READ and atomics")
    pairs = [_queue_pair(text) for text in queue_pairs]
    region = Region(va, rkey, length)
    return HandBench(
        UdpWire(addr, ROCE_UDP_PORT), parse_address(peer), pairs, region, mtu, maker or "unknown", local_qpn
    )


def _serve(addr: str, port: int) -> None:
    """Act as the agent, for one tester after another."""
    with Context(addr=addr) as ctx, listen_socket(addr, port) as listener:
        ctx.runtime.start()  # the device responds even while no call polls
        click.echo(f"agent of {addr} listens on TCP port {listener.getsockname()[1]}")
        sys.stdout.flush()
        while True:
            sock, where = listener.accept()
            lines = LineSocket(sock, str(where[0]))
            agent = VerbsAgent(ctx)
            try:
                while True:
                    lines.send(agent.ask(lines.receive(None).decode(errors="replace")).encode() + b"\n")
            except ExchangeError:
                agent.ask("close")
                lines.close()
