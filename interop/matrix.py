#!/usr/bin/env python3
"""The interop matrix: a page with the results of `rnic conform`'s packet scripts for each peer.

Each row of the table is a peer: a command that writes a report, or a report sent in by a user. Exit status 127 of a
command means that this peer cannot run here: it counts as unsupported, not as a failure.
Exit status: 0 if every supported peer made a report, 1 if one did not, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rnic import __version__
from rnic.conform.report_file import Report, ReportError, Verdict, read_report
from rnic.conform.runner import DEVIATION, FAIL, NOT_APPLICABLE, PASS, VERDICTS
from rnic.conform.script import SUITES
from rnic.spec.errors import RnicError

HERE = Path(__file__).resolve().parent
PEER = HERE / "matrix_peer.py"
UNSUPPORTED = 127
"""Exit status of a command whose peer cannot run here, as in the QUIC interop runner."""
SECONDS = 900
"""Time limit of a command."""
ENDS = 60
"""Seconds for a command to stop its programs after SIGTERM."""
REPORT = "{report}"
"""Placeholder in a command for the report file."""
RAN, NOT_SUPPORTED, BROKEN = "ran", "unsupported", "did not run"
_SIGNS = {PASS: "pass", FAIL: "**FAIL**", DEVIATION: "deviates", NOT_APPLICABLE: "n/a"}
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#|&!~$^@])")


@dataclass(frozen=True)
class Row:
    """A peer, and the command that tests it, with environment ``variables``."""

    name: str
    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)


def conform(name: str, *words: str) -> tuple[str, ...]:
    """Return the command that plays the scripts and writes the report."""
    return (sys.executable, "-m", "rnic.cli", "conform", *words, "--peer-name", name, "--report", REPORT)


def peer(*words: str) -> tuple[str, ...]:
    """Return the command for a peer that must be started first."""
    return (sys.executable, str(PEER), *words, REPORT)


ROWS = (
    Row("rnic, engine (C)", conform("rnic, engine (C)", "--simulated"), {"RNIC_ENGINE": "1"}),
    Row("rnic, reference (Python)", conform("rnic, reference (Python)", "--simulated"), {"RNIC_ENGINE": "0"}),
    Row("rnic, NIC process", peer("nic-process")),
    Row("rnic, gateware", peer("gateware")),
    Row("Soft-RoCE, IPv4", peer("rxe", "4")),
    Row("Soft-RoCE, IPv6", peer("rxe", "6")),
    Row("Soft-RoCE of Linux 6.12, IPv4", peer("rxe", "4", "6.12")),
    Row("Soft-RoCE of Linux 6.12, IPv6", peer("rxe", "6", "6.12")),
)
"""Rows that run by default."""


@dataclass(frozen=True)
class Column:
    """Result of a row: a report, or why there is none."""

    name: str
    state: str
    why: str = ""
    report: Report | None = None

    def counts(self, suite: str) -> dict[str, int]:
        """Return the number of scripts of a suite by verdict."""
        results = () if self.report is None else self.report.results
        found = Counter(each.verdict for each in results if each.suite == suite)
        return {verdict: found[verdict] for verdict in VERDICTS}


def run(command: Sequence[str], environment: dict[str, str], seconds: float) -> tuple[int, str]:
    """Run a command; return its exit status and its stderr. Kill all processes that it leaves behind.

    Raises:
        subprocess.TimeoutExpired: it did not exit within ``seconds``.
        OSError: it cannot be started.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        started = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status = started.wait(seconds)
        finally:
            end_group(started)
        errors.seek(0)
        return status, errors.read()


def end_group(leader: subprocess.Popen[bytes]) -> None:
    """Terminate a process and its group; kill them after :data:`ENDS` seconds."""
    end = time.monotonic() + ENDS
    with suppress(ProcessLookupError):  # the group is empty
        os.killpg(leader.pid, signal.SIGTERM)
        while time.monotonic() < end:
            leader.poll()
            os.killpg(leader.pid, 0)
            time.sleep(0.01)
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


def run_row(row: Row, seconds: float = SECONDS) -> Column:
    """Run a row's command, and read its report."""
    with tempfile.TemporaryDirectory(prefix="rnic-matrix-") as folder:
        path = Path(folder) / "report.json"
        command = [word.replace(REPORT, str(path)) for word in row.command]
        try:
            status, errors = run(command, os.environ | row.variables, seconds)
        except subprocess.TimeoutExpired:
            return Column(row.name, BROKEN, f"no end within {seconds:g} s")
        except OSError as error:
            return Column(row.name, BROKEN, f"{command[0]}: {error.strerror}")
        last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
        if status == UNSUPPORTED:
            return Column(row.name, NOT_SUPPORTED, last)
        if status not in (0, 1) or (status and not path.exists()):
            return Column(row.name, BROKEN, f"exit status {status}: {last}".removesuffix(": "))
        try:
            return Column(row.name, RAN, report=read_report(path))
        except ReportError as error:
            return Column(row.name, BROKEN, str(error).replace(str(path), "its report"))


def from_report(path: str) -> Column:
    """Return the column of a report file; raise ReportError if it is invalid."""
    report = read_report(path)
    return Column(report.name, RAN, report=report)


def text(words: str) -> str:
    """Escape untrusted text for Markdown."""
    return _MARKUP.sub(r"\\\1", " ".join(words.split()))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return lines of a Markdown table; cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def page(columns: Sequence[Column], made: str) -> str:
    """Return the page in Markdown."""
    ran = [column for column in columns if column.report is not None]
    lines = [
        "# Interop matrix",
        "",
        "This page lists which packet scripts each peer passes.",
        "",
        f"Made by `./dev interop --matrix` of rnic {__version__} on {made}. It plays the packet scripts of"
        " [`rnic conform`](conform.md)",
        "against each peer. [Send in a report](conform.md#reports) of your card, and it becomes a row.",
        "",
        "## Peers",
        "",
    ]
    summary = []
    for column in columns:
        if column.report is None:
            summary.append([text(column.name), *["–"] * len(SUITES), f"{column.state}: {text(column.why)}"])
            continue
        report = column.report
        names = text(column.name) if column.name == report.name else f"{text(column.name)}: {text(report.name)}"
        cells = [", ".join(f"{n} {verdict}" for verdict, n in column.counts(suite).items() if n) for suite in SUITES]
        summary.append([names, *(cell or "–" for cell in cells), f"{text(report.made)}, rnic {text(report.rnic)}"])
    lines += table(("peer", *SUITES, "asked"), summary)
    if ran:
        lines += ["", "## Scripts", "", *_scripts(ran)]
        lines += _details("Failures", FAIL, ran) + _details("Deviations", DEVIATION, ran)
    return "\n".join(lines) + "\n"


def _scripts(ran: Sequence[Column]) -> list[str]:
    """Return the table of all scripts."""
    verdicts: list[dict[str, Verdict]] = []
    known: dict[str, Verdict] = {}
    for column in ran:
        assert column.report is not None
        verdicts.append({each.test: each for each in column.report.results})
        known = {**{each.test: each for each in column.report.results}, **known}
    rows = []
    for each in sorted(known.values(), key=lambda found: SUITES.index(found.suite)):
        cells = [_SIGNS[found[each.test].verdict] if each.test in found else "–" for found in verdicts]
        rows.append([text(each.test), text(each.clause), *cells])
    return table(("script", "clause", *(text(column.name) for column in ran)), rows)


def _details(title: str, verdict: str, ran: Sequence[Column]) -> list[str]:
    """Return the list of failures or deviations."""
    rows = []
    for column in ran:
        assert column.report is not None
        found: dict[str, list[str]] = {}
        for each in column.report.results:
            if each.verdict == verdict:
                found.setdefault(each.detail, []).append(each.test)
        rows += [[text(column.name), text(detail), text(", ".join(tests))] for detail, tests in found.items()]
    return ["", f"## {title}", "", *table(("peer", "what", "scripts"), rows)] if rows else []


def as_json(columns: Sequence[Column], made: str) -> str:
    """Return the matrix as a JSON object."""
    peers = []
    for column in columns:
        report = column.report
        entry: dict[str, object] = {"name": column.name, "state": column.state, "why": column.why}
        if report is not None:
            entry |= {"peer": report.name, "maker": report.maker, "made": report.made, "rnic": report.rnic}
            entry |= {"suites": {suite: column.counts(suite) for suite in SUITES}}
            entry |= {"verdicts": {each.test: each.verdict for each in report.results}}
            entry |= {"details": {each.test: each.detail for each in report.results if each.detail}}
        peers.append(entry)
    return json.dumps({"made": made, "rnic": __version__, "peers": peers}, indent=1)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; exit with status 2 if they are wrong."""
    parser = argparse.ArgumentParser(prog="./dev interop --matrix", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--report", action="append", default=[], metavar="FILE", help="a report of rnic conform")
    parser.add_argument(
        "--row",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help=f"test this peer, too; {REPORT} is its report",
    )
    parser.add_argument("-k", metavar="WORD", help="only built-in peers whose name contains WORD; - for none")
    parser.add_argument("--list", action="store_true", help="print the names of built-in peers and exit")
    parser.add_argument("--out", metavar="FILE", help="write the page to FILE instead of standard output")
    parser.add_argument("--json", action="store_true", help="print the matrix as JSON")
    args = parser.parse_args(argv)
    args.rows = [row for row in ROWS if args.k is None or (args.k != "-" and args.k in row.name)]
    for given in args.row:
        name, _, words = given.partition("=")
        try:
            command = tuple(shlex.split(words))
        except ValueError as error:
            parser.error(f"argument --row: {given!r}: {error}")
        if not name or not command or not any(REPORT in word for word in command):
            parser.error(f"argument --row: {given!r} is not NAME=COMMAND with {REPORT} in it")
        args.rows.append(Row(name, command))
    if not args.rows and not args.report:
        parser.error(f"argument -k: no peer's name contains {args.k!r}; --list shows them")
    return args


def main(argv: Sequence[str]) -> int:
    """Test all peers, and write the page."""
    args = parse(argv)
    if args.list:
        print("\n".join(row.name for row in args.rows))
        return 0
    with ExitStack() as stack:
        try:
            sent = [from_report(path) for path in args.report]
            out = sys.stdout
            if args.out is not None:  # check first, since the tests take minutes; keep the old page until then
                out = stack.enter_context(open(args.out, "a", encoding="utf-8"))
        except RnicError as error:
            print(f"interop: {error}", file=sys.stderr)
            return 2
        except OSError as error:
            print(f"interop: --out {args.out}: cannot be written: {error.strerror}", file=sys.stderr)
            return 2
        columns = []
        for row in args.rows:
            columns.append(run_row(row))
            print(f"interop: {row.name}: {columns[-1].state} {columns[-1].why}".rstrip(), file=sys.stderr)
        columns += sent
        made = datetime.now(UTC).date().isoformat()
        if args.out is not None and out.seekable():
            out.truncate(0)
        out.write(as_json(columns, made) + "\n" if args.json else page(columns, made))
    return 1 if any(column.state == BROKEN for column in columns) else 0


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # also terminate the peer
    sys.exit(main(sys.argv[1:]))
