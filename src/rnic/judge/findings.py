"""What a judge says: findings, each a rule that a packet breaks, and facts, which break nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from rnic.judge.rules import RULES


class Finding(NamedTuple):
    """One rule broken by one packet.

    ``frame`` counts from 1, ``queue_pair`` is the direction that the packet travelled.
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
        """For JSON."""
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
    """What happened to one queue pair's requests, by name; nothing of it is wrong in itself.

    ``first`` holds the frame in which each was seen first, ``last`` the newest: its frame and its name.
    """

    __slots__ = ("counts", "first", "last")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, int] = {}
        self.last = (0, "")

    def add(self, name: str, frame: int, count: int = 1) -> None:
        """Note ``count`` of them."""
        if name not in self.counts:
            self.first[name] = frame
        self.counts[name] += count
        self.last = (frame, name)
