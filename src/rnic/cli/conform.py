"""``rnic conform``: a black-box suite against any RoCEv2 peer, and the agent that plays its software."""

from __future__ import annotations

import json
import sys
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
        """The number."""
        try:
            return value if isinstance(value, int) else int(value, 0)
        except ValueError:
            self.fail(f"{value!r} is no number", param, ctx)


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
@click.option("--addr", default=None, help="Our own address, towards the peer.")
@click.option("--agent-port", type=click.IntRange(1, 65_535), default=DEFAULT_AGENT_PORT, show_default=True)
@click.option("--suite", "suites", multiple=True, type=click.Choice(SUITES), help="Only such tests.")
@click.option("-k", "words", multiple=True, metavar="PATTERN", help="Only tests of such names: gap*, *@4096.")
@click.option("--maker", default=None, help="Whose known deviations hold; the agent knows without.")
@click.option("--patience", type=click.FloatRange(1), default=1.0, show_default=True, help="Wait so many times longer.")
@click.option("--qp", "queue_pairs", multiple=True, metavar="QPN:PSN", help="By hand: a queue pair of the peer's.")
@click.option("--va", type=_Number(), default=None, help="By hand: address of the peer's memory.")
@click.option("--rkey", type=_Number(), default=None, help="By hand: its key.")
@click.option("--length", type=_Number(), default=65_536, show_default=True, help="By hand: its bytes.")
@click.option("--mtu", type=click.Choice([str(m) for m in MTU_CODES]), default="1024", help="By hand: path MTU.")
@click.option("--local-qpn", type=_Number(), default=FIRST_QPN, help=f"By hand: our queue pair; {FIRST_QPN:#x}.")
@click.option("--simulated", "in_simulation", is_flag=True, help="Against rnic itself, in virtual time.")
@click.option("--list", "only_list", is_flag=True, help="Print the tests with clause and sentence, and end.")
@click.option("--show", "only_show", is_flag=True, help="Print the tests' scripts, and end.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON; or the list.")
@click.option("--junit", type=click.Path(dir_okay=False), help="Write the report there as JUnit XML.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write the report there as a page.")
@click.option("--agent", "as_agent", is_flag=True, help="Be the agent of rnic's device on --addr.")
@click.option("--agent-source", is_flag=True, help="Print the agent for any libibverbs device (C), and end.")
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
    junit: str | None,
    html: str | None,
    as_agent: bool,
    agent_source: bool,
) -> None:
    """Play packet scripts against a RoCEv2 peer and report by clause what it keeps, and what not.

    PEER is the host on which an agent listens (--agent, or --agent-source compiled there), or, with --qp, --va and
    --rkey, the address of a peer that has none. Exit status: 0 if nothing failed, 1 if something did.
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
        raise click.UsageError("no test has such a name; --list shows them")
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
    if as_json:
        click.echo(report.as_json(results, title))
    else:
        click.echo(report.as_text(results))
    for path, text in ((junit, report.as_junit(results, title)), (html, report.as_html(results, title))):
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
    """A script's lines, below the options that it sets."""
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
        raise click.UsageError("name the PEER, or --simulated")
    if addr is None:
        raise click.UsageError("say with --addr which address of this machine the peer is to see")
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
        raise click.UsageError("with --qp go --va and --rkey: memory of the peer's for WRITE, READ and atomics")
    pairs = [_queue_pair(text) for text in queue_pairs]
    region = Region(va, rkey, length)
    return HandBench(
        UdpWire(addr, ROCE_UDP_PORT), parse_address(peer), pairs, region, mtu, maker or "unknown", local_qpn
    )


def _serve(addr: str, port: int) -> None:
    """Be the agent, one tester after the other."""
    with Context(addr=addr) as ctx, listen_socket(addr, port) as listener:
        ctx.runtime.start()  # the device answers while nobody polls
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
