"""Report about a whole capture: counts, and the verdict in one line."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rnic.judge import Finding, Judge
from rnic.judge.rules import NOTE
from rnic.wire.dissect import INFINIBAND, JUDGED, ROCE, ROCE_V1

Counts = Counter[tuple[str, str]]
"""Findings by severity and rule."""
MAX_COUNTED = 1 << 16
"""Most pairs of rule and queue pair that are counted separately; further queue pairs are counted together."""
OTHERS = "other queue pairs"


def broken(counts: Counts) -> int:
    """Return how many findings are errors or warnings."""
    return sum(count for (severity, _), count in counts.items() if severity != NOTE)


def count_finding(counts: Counter[tuple[str, str]], finding: Finding) -> int:
    """Count a finding by queue pair and rule; return the count so far."""
    key = finding.queue_pair, finding.rule
    if key not in counts and len(counts) >= MAX_COUNTED:
        key = OTHERS, finding.rule
    counts[key] += 1
    return counts[key]


def summarize(judge: Judge, counts: Counts) -> dict[str, Any]:
    """Return what ``rnic check --json`` prints about a capture."""
    return {
        "frames": judge.frames,
        "rocev2": judge.packets - judge.kinds[ROCE_V1] - judge.kinds[INFINIBAND],
        "rocev1": judge.kinds[ROCE_V1],
        "infiniband": judge.kinds[INFINIBAND],
        "judged": judge.packets - judge.unjudged,
        "others": {kind: count for kind, count in judge.kinds.most_common() if kind not in JUDGED},
        "findings": {f"{severity}: {rule}": count for (severity, rule), count in sorted(counts.items())},
        "facts": {
            stream.name: {
                name: {"count": count, "first_frame": stream.facts.first[name]}
                for name, count in stream.facts.counts.items()
            }
            for stream in judge.streams()
            if stream.facts.counts
        },
    }


def verdict(name: str, summary: dict[str, Any], findings: int) -> str:
    """Return the verdict on a capture in one line.

    Args:
        name: the capture's.
        summary: of :func:`summarize`.
        findings: errors and warnings.
    """
    words = "no rule broken"
    if findings:
        words = f"{findings} findings"
    elif not summary["judged"]:
        others = ", ".join(f"{count} {kind}" for kind, count in summary["others"].items())
        words = f"nothing to judge{f', but {others}' if others else ''}"
    kinds = [f"{summary['rocev2']} {ROCE}"]
    kinds += [f"{summary[kind.lower()]} {kind}" for kind in (ROCE_V1, INFINIBAND) if summary[kind.lower()]]
    return f"{name}: {summary['frames']} frames, {', '.join(kinds)}: {words}"
