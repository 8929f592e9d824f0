"""Of which cached queue pairs host memory is behind, and by what (002 4.3: the engines' PSN and state writes)."""

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
"""What the engine changes besides state and PSNs: it has no channel of its own and goes with the whole context."""


def _image(ctx: QpContext) -> Written:
    return ctx.state, ctx.next_send_psn, ctx.last_acked_psn, ctx.expected_psn


def _live(ctx: QpContext) -> tuple[int, ...]:
    return tuple([getattr(ctx, name) for name in _LIVE])


class WriteBack:
    """What host memory was told of each cached queue pair.

    Args:
        qps: the cache.
        send: makes one engine's write: its channel, the request's opcode, QP number, PSN and state.
    """

    __slots__ = ("_live", "_qps", "_round", "_seen", "_send", "_words", "_written", "edited")

    def __init__(self, qps: Cache[Any], send: WritePsn) -> None:
        self._qps = qps
        self._send = send
        self._words = qps.words
        self._written: dict[int, Written] = {}
        self._seen: dict[int, tuple[slice, memoryview]] = {}
        """Where the words that a PSN or state write is about lie in the cache, and what they were last time."""
        self._live: dict[int, tuple[int, ...]] = {}
        self._round: list[int] = []
        """The queue pairs whose turn is still to come in this round."""
        self.edited: set[int] = set()
        """Queue pairs of which something was stored to the cache that no write-back carries."""

    def clear(self) -> None:
        """Nothing is cached any more."""
        self._written.clear()
        self._seen.clear()
        self._live.clear()
        self.edited.clear()

    def forget(self, qpn: int) -> None:
        """A queue pair left the cache."""
        self._written.pop(qpn, None)
        self._seen.pop(qpn, None)
        self._live.pop(qpn, None)
        self.edited.discard(qpn)

    def level(self, qpn: int) -> None:
        """Host memory has what the cache has."""
        ctx = self._qps.view(qpn)
        self._written[qpn] = _image(ctx)
        self._live[qpn] = _live(ctx)
        self.edited.discard(qpn)

    def lost(self, qpn: int) -> None:
        """A write found no page."""
        self._written.pop(qpn, None)
        self._seen.pop(qpn, None)

    def forget_writes(self) -> None:
        """Some write failed, nobody knows of which queue pair."""
        self._written.clear()
        self._seen.clear()

    def whole(self, qpn: int) -> bool:
        """Whether the whole context has to be written, since something changed that has no write of its own."""
        return qpn in self._qps and (qpn in self.edited or _live(self._qps.view(qpn)) != self._live.get(qpn))

    def next(self, count: int, most: int) -> tuple[int, list[int]]:
        """Look at ``count`` queue pairs in turn, until ``most`` are found of which memory may be behind.

        Returns:
            At how many it looked, and which those are. The cost does not grow with how many are cached, and one that
            did not move costs next to nothing.
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
        """The writes that RTC, RRC and EE make, where something changed since the last; whether there was any."""
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
            # the next PSN's write carries the state as well
            if psn != before or (source == m.RTC and (old is None or state != old[0])):
                self._send(source, opcode, qpn, psn, state)
        return True
