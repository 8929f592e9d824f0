"""``rnic check``: a judge for captures: which packets break which rule of RoCEv2."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import click

from rnic.cli.options import UDP_PORT_RENAMED, Command, udp_port
from rnic.judge import RULES, Finding, Judge
from rnic.judge.judge import CNP_GAP_NS
from rnic.judge.rules import NOTE
from rnic.link.pcap import CaptureError, read_capture
from rnic.spec.limits import ROCE_UDP_PORT

EXIT_FINDINGS = 1
EXIT_UNREADABLE = 2
EXIT_NOTHING = 3
_GZIP = b"\x1f\x8b"
_REPEATED = 3
"""A rule that one queue pair breaks again and again is shown so often, then counted."""


class Report:
    """Prints findings as they come, and counts them."""

    def __init__(self, name: str, as_json: bool, show_all: bool) -> None:
        self.name = name
        self.counts: Counter[tuple[str, str]] = Counter()
        """By severity and rule."""
        self._as_json = as_json
        self._show_all = show_all
        self._shown: Counter[tuple[str, str]] = Counter()

    def __call__(self, finding: Finding) -> None:
        """Take one finding."""
        self.counts[finding.severity, finding.rule] += 1
        if self._as_json:
            _print(json.dumps({"file": self.name, **finding.as_dict()}))
            return
        key = (finding.queue_pair, finding.rule)
        self._shown[key] += 1
        if self._show_all or self._shown[key] <= _REPEATED:
            rule = RULES[finding.rule]
            place = f"{self.name}: frame {finding.frame}: {finding.queue_pair or 'no queue pair'}"
            _print(f"{place}: {finding.severity}: {finding.detail} [{rule.id}: {rule.text}; {rule.clause}]")
            if not self._show_all and self._shown[key] == _REPEATED:
                _print(f"{place}: {finding.severity}: further ones of this kind are counted; --all shows them")

    @property
    def findings(self) -> int:
        """Errors and warnings."""
        return sum(count for (severity, _), count in self.counts.items() if severity != NOTE)

    def summary(self, judge: Judge) -> dict[str, Any]:
        """What was found in the whole file."""
        return {
            "frames": judge.frames,
            "rocev2": judge.packets,
            "findings": {f"{severity}: {rule}": count for (severity, rule), count in sorted(self.counts.items())},
            "facts": {
                stream.name: {
                    name: {"count": count, "first_frame": stream.facts.first[name]}
                    for name, count in stream.facts.counts.items()
                }
                for stream in judge.streams()
                if stream.facts.counts
            },
        }


def _print(line: str) -> None:
    # a capture from a pipe may never end: what is found is wanted now
    print(line, flush=True)


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    """A file, decompressed where it is gzip; ``-`` is standard input."""
    try:
        raw = sys.stdin.buffer if name == "-" else open(name, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise CaptureError(f"{name}: cannot be opened: {error.strerror}") from None
    with raw:
        if cast("io.BufferedReader", raw).peek(2)[:2] == _GZIP:
            with gzip.open(raw) as file:
                yield cast("BinaryIO", file)
        else:
            yield raw


def _check(name: str, report: Report, port: int, cnp_gap_ns: int) -> tuple[Judge, str | None]:
    """Judge one file; the judge, and what is wrong with the file."""
    judge = Judge(report, port=port, cnp_gap_ns=cnp_gap_ns)
    error = None
    try:
        with _opened(name) as file:
            for packet in read_capture(file, name):
                judge.frame(packet.time_ns, packet.linktype, packet.data, packet.length)
    except CaptureError as caught:
        error = str(caught)
    except (EOFError, gzip.BadGzipFile) as caught:
        error = f"{name}: damaged gzip: {caught}"
    judge.finish()
    return judge, error


@click.command(cls=Command, renamed=UDP_PORT_RENAMED)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--json", "as_json", is_flag=True, help="JSON lines: one object a finding, then one for each file.")
@click.option("--all", "show_all", is_flag=True, help="Show every finding, also the many of one kind.")
@click.option("--rules", "list_rules", is_flag=True, help="List the rules with their clauses, and end.")
@udp_port("UDP port of RoCEv2.", low=1, default=ROCE_UDP_PORT)
@click.option(
    "--cnp-gap",
    type=click.FloatRange(0),
    default=CNP_GAP_NS / 1_000,
    show_default=True,
    help="CNPs of one flow that are closer, in microseconds, are a finding.",
)
def check(
    files: tuple[str, ...], as_json: bool, show_all: bool, list_rules: bool, udp_port: int, cnp_gap: float
) -> None:
    """Judge captures (pcap, pcapng, also gzip; - is standard input): what breaks the rules of RoCEv2.

    Exit status: 0 if nothing breaks a rule, 1 if something does, 2 if a file cannot be read to its end, 3 if a file
    holds no RoCEv2 packet, so that there is nothing to judge.
    """
    if list_rules:
        for rule in RULES.values():
            _print(
                json.dumps(rule._asdict()) if as_json else f"{rule.id:16} {rule.severity:8} {rule.text} ({rule.clause})"
            )
        return
    if not files:
        raise click.UsageError("no capture named: give a .pcap or .pcapng, or - for standard input")
    status = 0
    for name in files:
        report = Report(name, as_json, show_all)
        judge, error = _check(name, report, udp_port, round(cnp_gap * 1_000))
        summary = report.summary(judge)
        if as_json:
            _print(json.dumps({"file": name, "summary": summary, "error": error}))
        elif error is None or summary["frames"]:  # of what is no capture nothing was judged
            _show(name, summary, report)
        if error is not None:
            click.echo(f"rnic check: {error}", err=True)
            status = EXIT_UNREADABLE
        elif report.findings:
            status = EXIT_FINDINGS if status != EXIT_UNREADABLE else status
        elif not summary["rocev2"]:
            status = status or EXIT_NOTHING
    sys.exit(status)


def _show(name: str, summary: dict[str, Any], report: Report) -> None:
    verdict = "no rule broken" if summary["rocev2"] else "nothing to judge"
    if report.findings:
        verdict = f"{report.findings} findings"
    _print(f"{name}: {summary['frames']} frames, {summary['rocev2']} RoCEv2: {verdict}")
    for what, count in summary["findings"].items():
        _print(f"  {what}: {count}")
    for stream, facts in summary["facts"].items():
        listed = ", ".join(f"{fact} {seen['count']} (from frame {seen['first_frame']})" for fact, seen in facts.items())
        _print(f"  {stream}: {listed}")
