"""``rnic check``: check captures for packets that break rules of RoCEv2."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import click

from rnic.cli.check_comments import Comments
from rnic.cli.check_gzip import DAMAGED_GZIP
from rnic.cli.check_html import Page
from rnic.cli.check_report import broken, count_finding, summarize, verdict
from rnic.cli.check_source import Progress, is_interface, opened, read_again, read_interface
from rnic.cli.options import UDP_PORT_RENAMED, Command, udp_port
from rnic.judge import RULES, Finding, Judge
from rnic.judge.judge import CNP_GAP_NS
from rnic.link.pcap import CapturedPacket, CaptureError, read_capture
from rnic.spec.limits import ROCE_UDP_PORT

EXIT_FINDINGS = 1
EXIT_UNREADABLE = 2
EXIT_NOTHING = 3
_REPEATED = 3
"""Findings shown for one rule and queue pair; more are only counted."""


class Report:
    """Prints and counts findings as they come, and passes them to ``others``."""

    def __init__(self, name: str, as_json: bool, show_all: bool, *others: Page | Comments) -> None:
        self.name = name
        self.progress = Progress(name)
        self._others = others
        self.counts: Counter[tuple[str, str]] = Counter()
        """Number of findings by severity and rule."""
        self._as_json = as_json
        self._show_all = show_all
        self._shown: Counter[tuple[str, str]] = Counter()

    def __call__(self, finding: Finding) -> None:
        """Take one finding."""
        self.counts[finding.severity, finding.rule] += 1
        for other in self._others:
            other.add(finding)
        self.progress.clear()
        if self._as_json:
            _print(json.dumps({"file": self.name, **finding.as_dict()}))
            return
        count = count_finding(self._shown, finding)
        if self._show_all or count <= _REPEATED:
            rule = RULES[finding.rule]
            place = f"{self.name}: frame {finding.frame}: {finding.queue_pair or 'no queue pair'}"
            _print(f"{place}: {finding.severity}: {finding.detail} [{rule.id}: {rule.text}; {rule.clause}]")
            if not self._show_all and count == _REPEATED:
                _print(f"{place}: {finding.severity}: further ones of this kind are counted; --all shows them")

    @property
    def findings(self) -> int:
        """Number of errors and warnings."""
        return broken(self.counts)

    def summary(self, judge: Judge) -> dict[str, Any]:
        """Return the summary of the whole file."""
        return summarize(judge, self.counts)


def _print(line: str) -> None:
    # a capture from a pipe may never end: print findings at once, as whole lines even if the user interrupts
    print(f"{line}\n", end="", flush=True)


def _judge(judge: Judge, packets: Iterable[CapturedPacket], report: Report, file: BinaryIO | None) -> None:
    """Judge packets until there are no more, or the user interrupts."""
    look = Progress.EVERY if file is not None else sys.maxsize
    for packet in packets:
        judge.frame(packet.time_ns, packet.linktype, packet.data, packet.length)
        if judge.frames >= look and file is not None:
            report.progress.step(file, judge.frames)
            look = judge.frames + Progress.EVERY


def _check(name: str, report: Report, port: int, cnp_gap_ns: int, follow: bool) -> tuple[Judge, str | None]:
    """Judge one file or interface; return the judge, and the error of the file, if any."""
    judge = Judge(report, port=port, cnp_gap_ns=cnp_gap_ns)
    error = None
    try:
        if follow and is_interface(name):
            _judge(judge, read_interface(name), report, None)
        else:
            with opened(name, follow) as file:
                _judge(judge, read_capture(file, name, judge.taker), report, None if follow else file)
    except KeyboardInterrupt:
        if not follow:
            raise
    except CaptureError as caught:
        error = str(caught)
    except DAMAGED_GZIP as caught:
        error = f"{name}: damaged gzip: {caught}"
    report.progress.clear()
    judge.finish()
    return judge, error


@click.command(cls=Command, renamed=UDP_PORT_RENAMED)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON lines: an object for each finding, then one for each file."
)
@click.option("--all", "show_all", is_flag=True, help="Show every finding, even many of one kind.")
@click.option("--follow", is_flag=True, help="Follow FILE as it grows, or a network interface, until Ctrl-C.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write an HTML page: findings, clauses, nearby packets.")
@click.option("--comments", type=click.Path(dir_okay=False), help="Write a pcapng file with findings as comments.")
@click.option("--rules", "list_rules", is_flag=True, help="List the rules with their clauses and exit.")
@udp_port("UDP port of RoCEv2.", low=1, default=ROCE_UDP_PORT)
@click.option(
    "--cnp-gap",
    type=click.FloatRange(0),
    default=CNP_GAP_NS / 1_000,
    show_default=True,
    help="Shortest time between CNPs of one flow, in microseconds; closer ones are a finding.",
)
def check(
    files: tuple[str, ...],
    as_json: bool,
    show_all: bool,
    follow: bool,
    html: str | None,
    comments: str | None,
    list_rules: bool,
    udp_port: int,
    cnp_gap: float,
) -> None:
    """Check captures (pcap, pcapng, gzip; - for standard input) against the rules of RoCEv2.

    Exit status: 0 if no packet breaks a rule; 1 if one does; 2 if a file cannot be read to its end; 3 if a file holds
    no packet that can be checked.
    """
    if list_rules:
        for rule in RULES.values():
            _print(
                json.dumps(rule._asdict()) if as_json else f"{rule.id:16} {rule.severity:8} {rule.text} ({rule.clause})"
            )
        return
    if not files:
        raise click.UsageError("no capture named: give a .pcap or .pcapng, or - for standard input")
    twice = [option for option, path in (("--html", html), ("--comments", comments)) if path is not None]
    if (follow or twice) and len(files) > 1:
        raise click.UsageError("--follow, --html and --comments take one capture")
    if twice and not os.path.isfile(files[0]):
        raise click.UsageError(f"{twice[0]} reads a capture twice: {files[0]} is not a file")
    if comments is not None and os.path.exists(comments) and os.path.samefile(comments, files[0]):
        raise click.UsageError(f"--comments {comments}: is the capture itself; give another file")
    status = 0
    for name in files:
        page = None if html is None else Page(lambda name=name: read_again(name), udp_port)  # type: ignore[misc]
        notes = Comments()
        others = [each for each, path in ((page, html), (notes, comments)) if path is not None and each is not None]
        report = Report(name, as_json, show_all, *others)
        judge, error = _check(name, report, udp_port, round(cnp_gap * 1_000), follow)
        summary = report.summary(judge)
        if page is not None and html is not None:
            _write(html, page.render(verdict(name, summary, report.findings), summary))
        if comments is not None:
            _copy(comments, notes, name)
        if as_json:
            _print(json.dumps({"file": name, "summary": summary, "error": error}))
        elif error is None or summary["frames"]:  # nothing was judged of a file that is not a capture
            _show(name, summary, report)
        if error is not None:
            click.echo(f"rnic check: {error}", err=True)
            status = EXIT_UNREADABLE
        elif report.findings:
            status = EXIT_FINDINGS if status != EXIT_UNREADABLE else status
        elif not summary["judged"]:
            status = status or EXIT_NOTHING
    sys.exit(status)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _copy(path: str, notes: Comments, name: str) -> None:
    try:
        with open(path, "wb") as file:
            notes.write(file, read_again(name))
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _show(name: str, summary: dict[str, Any], report: Report) -> None:
    _print(verdict(name, summary, report.findings))
    for what, count in summary["findings"].items():
        _print(f"  {what}: {count}")
    for stream, facts in summary["facts"].items():
        listed = ", ".join(f"{fact} {seen['count']} (from frame {seen['first_frame']})" for fact, seen in facts.items())
        _print(f"  {stream}: {listed}")
