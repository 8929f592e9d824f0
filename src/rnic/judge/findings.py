"""Results of a judge: findings, which are rule violations, and facts, which are events that violate no rule."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from rnic.judge.rules import RULES


class Finding(NamedTuple):
    """Violation of one rule by one packet.

    ``frame`` counts from 1; ``queue_pair`` names the packet's direction.
    """

    frame: int
    time_ns: int
    queue_pair: str
    rule: str
    detail: str

    @property
    def severity(self) -> str:
        """``"error"``, ``"warning"`` or ``"note"``."""
        return RULES[self.rule].severity

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as a dictionary for JSON."""
        return {
            "frame": self.frame,
            "time_ns": self.time_ns,
            "queue_pair": self.queue_pair,
            "rule": self.rule,
            "clause": RULES[self.rule].clause,
            "severity": self.severity,
            "detail": self.detail,
        }


class Facts:
    """Events of one queue pair's requests, by name; none of them is a violation.

    ``first`` holds the first frame of each event; ``last`` holds frame and name of the newest event.
    """

    __slots__ = ("counts", "first", "last")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, int] = {}
        self.last = (0, "")

    def add(self, name: str, frame: int, count: int = 1) -> None:
        """Count ``count`` events."""
        if name not in self.counts:
            self.first[name] = frame
        self.counts[name] += count
        self.last = (frame, name)
