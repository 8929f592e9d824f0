"""A self-contained page of findings, with rules, clauses and the packets around them."""

from __future__ import annotations

import contextlib
import io
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Any, cast

from rnic.cli.check_gzip import DAMAGED_GZIP, decompressed
from rnic.cli.check_report import broken, count_finding, summarize, verdict
from rnic.cli.decode_protocols import PROTOCOLS
from rnic.cli.decode_recorded import Recorded
from rnic.cli.ladder import Ladder, Rung, as_svg
from rnic.judge import RULES, Finding, Judge
from rnic.judge.connections import path_text
from rnic.judge.explanations import EXPLANATIONS
from rnic.link.pcap import CapturedPacket, CaptureError, read_capture
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.wire.dissect import Frame, dissect

BEFORE, AFTER = 8, 4
"""Packets of the same two hosts that are shown before and after a finding."""
_NEAR = 512
"""Distance in frames within which these packets are searched."""
EACH, MOST = 3, 60
"""Most findings with a ladder: of one rule and queue pair, and in total."""


class Page:
    """Findings of one file, and the packets around the first of each kind.

    Args:
        again: reads the file again, to get those packets.
        port: UDP port of RoCEv2.
    """

    def __init__(self, again: Callable[[], Iterable[CapturedPacket]], port: int) -> None:
        self._again = again
        self._port = port
        self._shown: list[Finding] = []
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, finding: Finding) -> None:
        """Take one finding."""
        if count_finding(self._counts, finding) <= EACH and len(self._shown) < MOST:
            self._shown.append(finding)

    def render(self, verdict: str, summary: dict[str, Any]) -> str:
        """Return the page as HTML.

        Args:
            verdict: verdict on the whole file, in one line.
            summary: summary of the file, as in ``rnic check --json``.
        """
        ladders = self._ladders()
        parts = [_section(finding, ladders[index]) for index, finding in enumerate(self._shown)]
        rows = [
            f"<tr><td>{escape(pair or 'no queue pair')}</td><td>{escape(rule)}</td><td>{count}</td></tr>"
            for (pair, rule), count in sorted(self._counts.items())
        ]
        facts = [
            f"<tr><td>{escape(pair)}</td><td>{escape(fact)}</td>"
            f"<td>{seen['count']}, from frame {seen['first_frame']}</td></tr>"
            for pair, found in summary["facts"].items()
            for fact, seen in found.items()
        ]
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(verdict)}</title>'
            "<style>body{font-family:sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
            "td,th{border:1px solid #ccd;padding:.2em .6em;text-align:left}.error{color:#b00020}.warning{color:#b3541e}"
            ".note{color:#667}</style></head><body><h1>rnic check</h1>"
            f"<p>{escape(verdict)}</p><p>It shows headers, no payload.</p>"
            + _table("Findings", ("queue pair", "rule", "count"), rows)
            + "".join(parts)
            + _table("Facts, which break nothing", ("queue pair", "fact", "count"), facts)
            + "</body></html>\n"
        )

    def _ladders(self) -> list[Ladder | None]:
        """Return, for each shown finding, a ladder of the packets around it."""
        found: list[Ladder | None] = [None] * len(self._shown)
        if not self._shown:
            return found
        recorded = Recorded(self._again, self._dissect)
        last = max(finding.frame for finding in self._shown)
        before: deque[tuple[int, int, Frame, str]] = deque(maxlen=_NEAR)
        open_ones: list[tuple[int, frozenset[bytes], int]] = []
        at = 0
        by_frame: dict[int, list[int]] = {}
        for index, finding in enumerate(self._shown):
            by_frame.setdefault(finding.frame, []).append(index)
        try:
            for number, packet in enumerate(self._again(), 1):
                if number > last + _NEAR or not (number <= last or open_ones):
                    break
                at = at or packet.time_ns
                for frame, said in recorded.packets(self._dissect(packet)):
                    if frame.flow is None or frame.kind not in PROTOCOLS:
                        continue
                    row = number, packet.time_ns - at, frame, said
                    before.append(row)
                    open_ones = [self._go_on(found, each, row) for each in open_ones if each[2] > 0]
                for index in by_frame.get(number, ()):
                    ends = self._begin(found, index, number, before)
                    if ends is not None:
                        open_ones.append((index, ends, AFTER))
        except CaptureError:
            pass  # reported when the file was judged
        return found

    def _begin(
        self, found: list[Ladder | None], index: int, number: int, before: deque[tuple[int, int, Frame, str]]
    ) -> frozenset[bytes] | None:
        """Draw the packets before a finding; return the addresses of its packet."""
        own = next((row for row in reversed(before) if row[0] == number), None)
        if own is None or own[2].flow is None:
            return None
        ends = frozenset((own[2].flow.src, own[2].flow.dst))
        rows = [row for row in before if row[2].flow and frozenset((row[2].flow.src, row[2].flow.dst)) == ends]
        rows = rows[-BEFORE - 1 :]
        first = rows[0][2].flow
        assert first is not None
        ladder = found[index] = Ladder(path_text(first.src), path_text(first.dst))
        for row in rows:
            self._draw(ladder, row, self._shown[index] if row[0] == number else None)
        return ends

    def _go_on(
        self, found: list[Ladder | None], each: tuple[int, frozenset[bytes], int], row: tuple[int, int, Frame, str]
    ) -> tuple[int, frozenset[bytes], int]:
        """Draw a packet after a finding, if it goes between the same hosts."""
        index, ends, left = each
        flow, ladder = row[2].flow, found[index]
        if flow is None or ladder is None or frozenset((flow.src, flow.dst)) != ends:
            return each
        self._draw(ladder, row, None)
        return index, ends, left - 1

    @staticmethod
    def _draw(ladder: Ladder, row: tuple[int, int, Frame, str], finding: Finding | None) -> None:
        number, time_ns, frame, said = row
        assert frame.flow is not None
        words = PROTOCOLS[frame.kind].describe(frame.payload)
        mark = f"{finding.rule}: {finding.detail}" if finding is not None else said
        bad = frame.icrc_ok is False
        ladder.add(Rung(number, time_ns, path_text(frame.flow.src) == ladder.left, words, mark, bad))

    def _dissect(self, packet: CapturedPacket) -> Frame:
        return dissect(memoryview(packet.data), packet.linktype, self._port)


def page_of(name: str, data: bytes, port: int = ROCE_UDP_PORT) -> str:
    """Return the page about a capture in memory, possibly gzipped: for use in a browser, without a command line.

    Args:
        name: name of the capture.
        data: the whole file.
        port: UDP port of RoCEv2.
    """

    def packets() -> Iterator[CapturedPacket]:
        with contextlib.suppress(CaptureError, *DAMAGED_GZIP):
            yield from _packets(data, name)

    page = Page(packets, port)
    counts: Counter[tuple[str, str]] = Counter()

    def take(finding: Finding) -> None:
        counts[finding.severity, finding.rule] += 1
        page.add(finding)

    judge = Judge(take, port=port)
    error = ""
    try:
        for packet in _packets(data, name):
            judge.frame(packet.time_ns, packet.linktype, packet.data, packet.length)
    except (CaptureError, *DAMAGED_GZIP) as caught:
        error = f" ({caught})"
    judge.finish()
    summary = summarize(judge, counts)
    return page.render(verdict(name, summary, broken(counts)) + error, summary)


def _packets(data: bytes, name: str) -> Iterator[CapturedPacket]:
    return read_capture(decompressed(io.BufferedReader(cast("io.RawIOBase", io.BytesIO(data)))), name)


def _section(finding: Finding, ladder: Ladder | None) -> str:
    rule = RULES[finding.rule]
    drawn = as_svg(ladder) if ladder is not None else ""
    return (
        f"<h2>Frame {finding.frame}: {escape(rule.id)}</h2>"
        f'<p class="{rule.severity}"><strong>{rule.severity}</strong>: {escape(finding.detail)}</p>'
        f"<p>{escape(finding.queue_pair or 'no queue pair')}</p>"
        f"<p>Rule: {escape(rule.text)} ({escape(rule.clause)}).</p><p>{escape(EXPLANATIONS[rule.id])}</p>{drawn}"
    )


def _table(title: str, columns: tuple[str, ...], rows: list[str]) -> str:
    if not rows:
        return ""
    heads = "".join(f"<th>{column}</th>" for column in columns)
    return f"<h2>{title}</h2><table><tr>{heads}</tr>{''.join(rows)}</table>"
