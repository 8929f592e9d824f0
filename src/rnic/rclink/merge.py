"""ACK merging and CNP filtering, which keep small packets off a busy path."""

from __future__ import annotations

from rnic.rclink.numbers import ACK_GROUP, CNP_QPIDS


class AckMerger:
    """A bit for each QP that owes an ACK, scanned in groups of four by a round-robin pointer.

    Requests of one QP that arrive before the pointer reaches it get one ACK. An ACK forced by FACK does not wait for
    the pointer.
    """

    def __init__(self, qps: int) -> None:
        self._words = bytearray(-(-qps // ACK_GROUP))
        """Bits of one group each."""
        self._pointer = 0
        self._owed = 0
        self._forced: dict[int, None] = {}

    def __len__(self) -> int:
        """Return the number of QPs that owe an ACK."""
        return self._owed

    @property
    def forced(self) -> bool:
        """True if an ACK is due at once."""
        return bool(self._forced)

    def __contains__(self, qpid: int) -> bool:
        return bool(self._words[qpid // ACK_GROUP] >> qpid % ACK_GROUP & 1)

    def set(self, qpid: int, force: bool = False) -> None:
        """Set the QP's bit: it owes an ACK."""
        if qpid not in self:
            self._words[qpid // ACK_GROUP] |= 1 << qpid % ACK_GROUP
            self._owed += 1
        if force:
            self._forced[qpid] = None

    def clear(self, qpid: int) -> None:
        """Clear the QP's bit: it owes no ACK."""
        self._forced.pop(qpid, None)
        if qpid in self:
            self._words[qpid // ACK_GROUP] &= ~(1 << qpid % ACK_GROUP)
            self._owed -= 1

    def take_forced(self, limit: int) -> list[int]:
        """Take up to ``limit`` QPs with forced ACKs."""
        out = list(self._forced)[:limit]
        for qpid in out:
            self.clear(qpid)
        return out

    def take(self, limit: int) -> list[int]:
        """Take up to ``limit`` QPs in the pointer's order; at the limit the pointer stays in place."""
        out: list[int] = []
        words = self._words
        while self._owed and len(out) < limit:
            word = words[self._pointer]
            if not word:
                # hardware spends a cycle on an empty group; this loop skips to the next group with a bit
                self._pointer = self._next_group()
                continue
            qpid = self._pointer * ACK_GROUP + (word & -word).bit_length() - 1
            self.clear(qpid)
            out.append(qpid)
        return out

    def _next_group(self) -> int:
        """Return the first group with a bit from the pointer on, wrapping around."""
        words = self._words[self._pointer :] + self._words[: self._pointer]
        return (self._pointer + len(words) - len(words.lstrip(b"\0"))) % len(words)


class CnpFilter:
    """Pass at most one CNP of a QP per ``timer_thr_ns``; remembers eight QPs.

    A CNP of an unknown QP passes, and the QP replaces the one whose CNP passed longest ago.
    """

    def __init__(self, timer_thr_ns: int) -> None:
        self.timer_thr_ns = timer_thr_ns
        self.enabled = True
        self._passed: dict[int, int] = {}

    def passes(self, qpid: int, now_ns: int) -> bool:
        """Return whether a CNP for ``qpid`` passes now."""
        if not self.enabled:
            return True
        last = self._passed.get(qpid)
        if last is not None:
            if now_ns - last <= self.timer_thr_ns:
                return False
            del self._passed[qpid]
        elif len(self._passed) >= CNP_QPIDS:
            del self._passed[next(iter(self._passed))]
        self._passed[qpid] = now_ns
        return True
