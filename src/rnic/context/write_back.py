"""Write-back of cached queue pairs: tracks the fields that are stale in host memory (002 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rnic.context import messages as m
from rnic.context.cache import Cache
from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC
from rnic.state.record import WORD_BYTES

Written = tuple[int, int, int, int]
WritePsn = Callable[[int, int, int, int, int], None]

_PSN_WRITES: Final = ((m.RTC, m.WR_QP_NPST), (m.RRC, m.WR_QP_UAPST), (m.EE, m.WR_QP_EPST))
_PLACES: Final = [QPC[name].byte // WORD_BYTES for name in ("state", "next_send_psn", "last_acked_psn", "expected_psn")]
_FIRST_WORD: Final = min(_PLACES)
_LAST_WORD: Final = max(_PLACES)
_LIVE: Final = ("ssn", "ra_buff_indx", "rmsn", "rq_wqe_counter", "sq_wqe_counter", "sq_draining")
"""Fields that the engine changes in addition to state and PSNs. They have no channel, so the whole context is
written."""


def _image(ctx: QpContext) -> Written:
    return ctx.state, ctx.next_send_psn, ctx.last_acked_psn, ctx.expected_psn


def _live(ctx: QpContext) -> tuple[int, ...]:
    return tuple([getattr(ctx, name) for name in _LIVE])


class WriteBack:
    """State of each cached queue pair in host memory.

    Args:
        qps: the cache.
        send: function that issues one engine write, from channel, request opcode, QP number, PSN and state.
    """

    __slots__ = ("_live", "_qps", "_round", "_seen", "_send", "_words", "_written", "edited")

    def __init__(self, qps: Cache[Any], send: WritePsn) -> None:
        self._qps = qps
        self._send = send
        self._words = qps.words
        self._written: dict[int, Written] = {}
        self._seen: dict[int, tuple[slice, memoryview]] = {}
        """Cached words covered by PSN and state writes, and their values at the last write."""
        self._live: dict[int, tuple[int, ...]] = {}
        self._round: list[int] = []
        """Queue pairs still to check in this round."""
        self.edited: set[int] = set()
        """Queue pairs with stores to the cache that require a write of the whole context."""

    def clear(self) -> None:
        """Forget all queue pairs, since nothing is cached anymore."""
        self._written.clear()
        self._seen.clear()
        self._live.clear()
        self.edited.clear()

    def forget(self, qpn: int) -> None:
        """Forget a queue pair that left the cache."""
        self._written.pop(qpn, None)
        self._seen.pop(qpn, None)
        self._live.pop(qpn, None)
        self.edited.discard(qpn)

    def level(self, qpn: int) -> None:
        """Record that host memory equals the cache for a queue pair."""
        ctx = self._qps.view(qpn)
        self._written[qpn] = _image(ctx)
        self._live[qpn] = _live(ctx)
        self.edited.discard(qpn)

    def lost(self, qpn: int) -> None:
        """Record that a queue pair's write found no page."""
        self._written.pop(qpn, None)
        self._seen.pop(qpn, None)

    def forget_writes(self) -> None:
        """Mark all queue pairs as not written: a write failed, and it is unknown for which one."""
        self._written.clear()
        self._seen.clear()

    def whole(self, qpn: int) -> bool:
        """Return whether the whole context must be written because a field other than state and PSNs changed."""
        return qpn in self._qps and (qpn in self.edited or _live(self._qps.view(qpn)) != self._live.get(qpn))

    def next(self, count: int, most: int) -> tuple[int, list[int]]:
        """Check the next ``count`` queue pairs, until ``most`` that may be stale in memory are found.

        Returns:
            Number of queue pairs checked, and the numbers of the stale ones. The cost does not grow with the number of
            cached queue pairs, and an unchanged one costs almost nothing.
        """
        moved: list[int] = []
        count = min(count, len(self._qps))
        for looked in range(count):
            if len(moved) == most:
                return looked, moved
            if not self._round:
                self._round = list(self._qps)[::-1]
            qpn = self._round.pop()
            seen = self._seen.get(qpn)
            if seen is None or self._words[seen[0]] != seen[1]:
                moved.append(qpn)
        return count, moved

    def _see(self, qpn: int) -> None:
        at = self._qps.slot(qpn) // WORD_BYTES
        words = slice(at + _FIRST_WORD, at + _LAST_WORD + 1)
        self._seen[qpn] = words, memoryview(self._words[words].tobytes()).cast("Q")

    def write(self, qpn: int) -> bool:
        """Issue the writes of RTC, RRC and EE for fields that changed since the last write; return whether there were
        any."""
        if qpn not in self._qps:
            return False
        new = _image(self._qps[qpn])
        old = self._written.get(qpn)
        if old == new:
            self._see(qpn)
            return False
        self._written[qpn] = new
        self._see(qpn)
        state = new[0]
        for (source, opcode), psn, before in zip(_PSN_WRITES, new[1:], old[1:] if old else (None,) * 3, strict=True):
            # the write of the next PSN carries the state, too
            if psn != before or (source == m.RTC and (old is None or state != old[0])):
                self._send(source, opcode, qpn, psn, state)
        return True
