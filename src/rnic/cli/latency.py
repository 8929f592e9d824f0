"""Measure how long operations of a running NIC take, from descriptor fetch to completion, as percentiles.

A tap (:mod:`rnic.runtime.tap`) reports when each began and ended; it exists only while a client polls it, and slows the
NIC.
"""

from __future__ import annotations

import secrets
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

KEPT = 4_096
"""Newest operations of a queue pair whose latency is kept."""
MAX_OPEN = 65_536
"""Most operations in progress, of all queue pairs."""
PERCENTILES = (50, 90, 99)
_WELCOME = 1_000
"""Target number of operations per second; if there are more, they are sampled."""
_MAX_SAMPLE = 1_000


class Latencies:
    """Latencies of one device's queue pairs.

    Args:
        fetch: requests a view of the device, as :func:`rnic.cli.inspect.fetch` does.
    """

    def __init__(self, fetch: Callable[[str], Any]) -> None:
        self._fetch = fetch
        self._session = f"latency{secrets.randbits(32):08x}"
        self._next = 0
        self._open: dict[tuple[int, int, int], int] = {}
        self._kept: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=KEPT))

    def look(self, messages: float) -> None:
        """Record the operations that ended since the last call.

        Args:
            messages: messages that the device sends per second, which sets the sampling rate.
        """
        sample = min(_MAX_SAMPLE, max(1, round(messages / _WELCOME)))
        answer = self._fetch(f"tap {self._session} {self._next} {sample}")
        self._next = answer["next"]
        for _, time_ns, stage, qpn, fields in answer["events"]:
            if stage == "fetched" and len(self._open) < MAX_OPEN:
                self._open[qpn, fields["index"], fields["psn"]] = time_ns
            elif stage == "completed":
                began = self._open.pop((qpn, fields["index"], fields["psn"]), None)
                if began is not None:
                    self._kept[qpn].append(time_ns - began)
        if answer["lost"]:
            self._open.clear()  # operations whose end was lost would stay forever

    def of(self, qpn: int) -> dict[str, float]:
        """Return ``p50``, ``p90`` and ``p99`` in microseconds; empty if there are no samples."""
        ordered = sorted(self._kept.get(qpn, ()))
        if not ordered:
            return {}
        # nearest-rank percentile
        return {f"p{part}": ordered[-(-len(ordered) * part // 100) - 1] / 1000 for part in PERCENTILES}


__all__ = ["KEPT", "PERCENTILES", "Latencies"]
