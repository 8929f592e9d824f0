"""ACK merging and CNP filtering: a congested or busy path shall not drown in small packets."""

from __future__ import annotations

from rnic.rclink.numbers import ACK_GROUP, CNP_QPIDS


class AckMerger:
    """A bit for each QP that owes an ACK, looked at four at a time by a pointer that goes round.

    Requests of one QP that arrive before the pointer comes by are answered by one ACK. An ACK that FACK forces does not
    wait for the pointer.
    """

    def __init__(self, qps: int) -> None:
        self._words = bytearray(-(-qps // ACK_GROUP))
        """Each of them the bits of one group."""
        self._pointer = 0
        self._owed = 0
        self._forced: dict[int, None] = {}

    def __len__(self) -> int:
        """QPs that owe an ACK."""
        return self._owed

    @property
    def forced(self) -> bool:
        """Whether an ACK is due at once."""
        return bool(self._forced)

    def __contains__(self, qpid: int) -> bool:
        return bool(self._words[qpid // ACK_GROUP] >> qpid % ACK_GROUP & 1)

    def set(self, qpid: int, force: bool = False) -> None:
        """The QP owes an ACK."""
        if qpid not in self:
            self._words[qpid // ACK_GROUP] |= 1 << qpid % ACK_GROUP
            self._owed += 1
        if force:
            self._forced[qpid] = None

    def clear(self, qpid: int) -> None:
        """The QP owes none."""
        self._forced.pop(qpid, None)
        if qpid in self:
            self._words[qpid // ACK_GROUP] &= ~(1 << qpid % ACK_GROUP)
            self._owed -= 1

    def take_forced(self, limit: int) -> list[int]:
        """Up to ``limit`` QPs whose ACKs were forced, which now owe none."""
        out = list(self._forced)[:limit]
        for qpid in out:
            self.clear(qpid)
        return out

    def take(self, limit: int) -> list[int]:
        """Up to ``limit`` QPs in the pointer's order, which now owe none. The pointer stays where it was cut short."""
        out: list[int] = []
        words = self._words
        while self._owed and len(out) < limit:
            word = words[self._pointer]
            if not word:
                # a group without a bit costs the hardware a cycle and this loop a search for the next that has one
                self._pointer = self._next_group()
                continue
            qpid = self._pointer * ACK_GROUP + (word & -word).bit_length() - 1
            self.clear(qpid)
            out.append(qpid)
        return out

    def _next_group(self) -> int:
        """The first group from the pointer on, and round, that has a bit."""
        words = self._words[self._pointer :] + self._words[: self._pointer]
        return (self._pointer + len(words) - len(words.lstrip(b"\0"))) % len(words)


class CnpFilter:
    """Of the CNPs of one QP lets one pass in each time of ``timer_thr_ns``; remembers eight QPs.

    A QP that is not remembered passes, and takes the place of the one that was let pass longest ago.
    """

    def __init__(self, timer_thr_ns: int) -> None:
        self.timer_thr_ns = timer_thr_ns
        self.enabled = True
        self._passed: dict[int, int] = {}

    def passes(self, qpid: int, now_ns: int) -> bool:
        """Whether a CNP for ``qpid`` goes through now."""
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
