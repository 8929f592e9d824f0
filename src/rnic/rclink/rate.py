"""Per-QP rate windows: bytes are counted in ``acc_cnt``, and a QP waits once they reach ``length_thr``."""

from __future__ import annotations

from rnic.rclink.numbers import MAX_LENGTH_THR


class RateWindow:
    """Rate window of one QP. Windows of all QPs begin together, at multiples of ``window_ns``.

    At the end of each window ``acc_cnt`` is lowered by ``length_thr``, but not below 0: an excess in one window is
    deducted from the next. Windows that have passed are accounted for lazily, with the same result.
    """

    __slots__ = ("_halved_until_ns", "_window", "acc_cnt", "length_thr", "window_ns")

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self.length_thr = MAX_LENGTH_THR
        self.acc_cnt = 0
        self._window = 0
        self._halved_until_ns = 0

    def set_window(self, window_ns: int, now_ns: int) -> None:
        """Set another window length, and restart the current window."""
        self.settle(now_ns)
        self.window_ns = window_ns
        self._window = now_ns // window_ns

    def threshold(self, now_ns: int) -> int:
        """Return the bytes allowed per window: ``length_thr``, or half of it for a time after a CNP."""
        return self.length_thr // 2 if now_ns < self._halved_until_ns else self.length_thr

    def halve(self, until_ns: int) -> None:
        """Halve the allowed bytes until the end of the window that contains ``until_ns``."""
        self._halved_until_ns = -(-until_ns // self.window_ns) * self.window_ns

    def settle(self, now_ns: int) -> None:
        """Account for the windows that have ended, each with the threshold at its end."""
        window = now_ns // self.window_ns
        passed = window - self._window
        if passed <= 0:
            return
        halved = min(max((self._halved_until_ns - 1) // self.window_ns - self._window, 0), passed)
        self._lower(halved, self.length_thr // 2)
        self._lower(passed - halved, self.length_thr)
        self._window = window

    def _lower(self, windows: int, threshold: int) -> None:
        self.acc_cnt = max(0, self.acc_cnt - windows * threshold)

    def charge(self, size: int, now_ns: int) -> None:
        """Count a sent packet of ``size`` payload bytes."""
        self.settle(now_ns)
        self.acc_cnt += size

    def blocked(self, now_ns: int) -> bool:
        """Return whether the QP must wait; always true with a threshold of 0."""
        self.settle(now_ns)
        return self.acc_cnt >= self.threshold(now_ns)

    def unblock_ns(self, now_ns: int) -> int | None:
        """Return when a blocked QP may send again, the end of a window; ``None`` if the threshold is 0."""
        if self.length_thr == 0:
            return None
        window = now_ns // self.window_ns
        threshold = self.threshold(now_ns)
        halved_until = -(-self._halved_until_ns // self.window_ns)  # the window length may have been another then
        if threshold == 0:
            return halved_until * self.window_ns
        after = window + self.acc_cnt // threshold
        if threshold != self.length_thr:
            after = max(window + 1, min(after, halved_until))
        return after * self.window_ns
