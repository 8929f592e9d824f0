"""Shadow memory: the expected memory and completions of each direction of a connection, and their check.

On a reliable connection every message takes effect once and in order. On a failed one, acknowledged messages have taken
effect, and each other byte is an old or a sent one. Unreliable services may lose messages but must not corrupt them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from operator import ne
from typing import NoReturn

from rnic.spec.limits import GRH_BYTES
from rnic.testing.live_model import FindingError
from rnic.testing.world.plan import AREA, ATOMICS, RELIABLE, SENDS, SLOT, SLOTS, WRITES
from rnic.verbs import enums as e
from rnic.verbs.attrs import WC

WORD = 8
_WORD_MASK = (1 << 64) - 1
_PIECE = 256
OPCODES = {
    "SEND": (e.IBV_WR_SEND, e.IBV_WC_SEND),
    "SEND_IMM": (e.IBV_WR_SEND_WITH_IMM, e.IBV_WC_SEND),
    "SEND_INV": (e.IBV_WR_SEND_WITH_INV, e.IBV_WC_SEND),
    "WRITE": (e.IBV_WR_RDMA_WRITE, e.IBV_WC_RDMA_WRITE),
    "WRITE_IMM": (e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WC_RDMA_WRITE),
    "READ": (e.IBV_WR_RDMA_READ, e.IBV_WC_RDMA_READ),
    "CMP_SWAP": (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WC_COMP_SWAP),
    "FETCH_ADD": (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WC_FETCH_ADD),
    "ATOMIC_WRITE": (e.IBV_WR_ATOMIC_WRITE, e.IBV_WC_ATOMIC_WRITE),
    "FLUSH": (e.IBV_WR_FLUSH, e.IBV_WC_FLUSH),
    "BIND": (e.IBV_WR_BIND_MW, e.IBV_WC_BIND_MW),
}
"""Opcodes of each verb of a plan, in its work request and in its completion."""
_RESULTS = 4
"""Areas for results of READs and atomics, each at its own offset until the next settle."""


class Work:
    """A posted work request and its expected effect."""

    __slots__ = (
        "arrived",
        "at",
        "done",
        "due",
        "expect",
        "fence",
        "imm",
        "length",
        "number",
        "operand",
        "queue",
        "signaled",
        "swap",
        "to",
        "verb",
    )

    def __init__(self, number: int, verb: str, length: int = 0, at: int = 0, to: int = 0) -> None:
        self.number, self.verb, self.length, self.at, self.to = number, verb, length, at, to
        self.signaled = True
        self.fence = False
        self.imm = 0
        """Immediate data, or the key to invalidate."""
        self.operand = self.swap = 0
        self.queue = 0
        """Index of the peer's receive queue that it names; with XRC there are several."""
        self.expect = 0
        """Expected completion status, if not success."""
        self.done = False
        """True once its sender knows that it has taken effect."""
        self.arrived = False
        """True once it has completed a receive."""
        self.due = verb == "WRITE"
        """True if it must arrive on an unreliable connection without loss: there is a receive for it."""

    @property
    def takes_receive(self) -> bool:
        """True if it consumes a receive entry of the peer."""
        return self.verb in SENDS or self.verb == "WRITE_IMM"

    def __repr__(self) -> str:
        return f"{self.verb} {self.number} of {self.length} bytes"


Change = tuple[int, bytes]
"""Offset, and the bytes stored there."""


class Slots:
    """Memory of receive entries, and the posted ones; connections with an SRQ share them."""

    def __init__(self) -> None:
        self.memory = bytearray(SLOTS * SLOT)
        self.shadow = bytearray(self.memory)
        self.free: deque[int] = deque(range(SLOTS))
        self.posted: dict[int, int] = {}
        """Offsets by the number of the receive."""

    def take_back(self, number: int) -> int | None:
        """Free the entry of a completed receive and return its offset; ``None`` for an unknown one."""
        place = self.posted.pop(number, None)
        if place is not None:
            self.free.append(place)
        return place

    def accept(self, place: int) -> None:
        """Accept the bytes of an entry, which may hold a part of a message."""
        at = place * SLOT
        self.shadow[at : at + SLOT] = self.memory[at : at + SLOT]

    def forget(self) -> None:
        """Forget all posted receives, each of which may hold a part of a message."""
        self.posted.clear()
        self.free = deque(range(SLOTS))
        self.shadow[:] = self.memory


class Direction:
    """One direction of a connection: the requester's work requests, and the memory at both ends that they access."""

    def __init__(self, name: str, service: str, seed: int, area: int = AREA) -> None:
        rng = random.Random(seed)
        self.name = name
        self.service = service
        self.reliable = service in RELIABLE
        self.source = bytearray(rng.randbytes(area))
        self.target = bytearray(rng.randbytes(area))
        self.result = bytearray(_RESULTS * area)
        self.target_shadow = bytearray(self.target)
        self.result_shadow = bytearray(len(self.result))
        self.results_used = 0
        self.posted: list[Work] = []
        """Work requests since the last settle."""
        self.arrivals: deque[Work] = deque()
        """Messages of a reliable connection that have not consumed a receive entry yet."""
        self.latest = -1
        """Number of the last datagram or unreliable message that arrived."""
        self.disordered = False
        """True if the network may have duplicated or reordered packets since the last settle."""
        self.wild = False
        """True if a program wrote garbage into its queues since the last settle: nothing is predicted then."""

    def find(self, text: str) -> NoReturn:
        """Raise :class:`FindingError`."""
        raise FindingError(f"{self.name}: {text}")

    def post(self, work: Work) -> None:
        """Note a request that was posted."""
        self.posted.append(work)
        if work.takes_receive and self.reliable:
            self.arrivals.append(work)

    @property
    def undelivered(self) -> int:
        """Return the number of messages since the last settle that may still consume a receive (UC, UD)."""
        return sum(work.takes_receive and not work.arrived for work in self.posted)

    def data(self, work: Work) -> bytes:
        """Return the bytes of a message."""
        return bytes(self.source[work.at : work.at + work.length])

    # ---------------------------------------------------------------------------------------- receives

    def received(self, wc: WC, slots: Slots, place: int, queue: int = 0) -> None:
        """Check a receive of queue number ``queue`` that completed without error."""
        if self.wild:
            slots.accept(place)
            return
        if self.reliable:
            if not self.arrivals:
                self.find(f"{wc!r} completes a receive, but every sent message has arrived already")
            work = self.arrivals.popleft()
            if work.expect:
                self.find(f"{work!r} must fail, but arrived as {wc!r}")
            if work.queue != queue:
                self.find(f"{work!r} to queue {work.queue} arrived in queue {queue}")
            if (fault := self._differs(work, wc, slots, place)) is not None:
                self.find(f"{work!r} arrived as {wc!r}: {fault}")
            self._store(work, slots, place)
            return
        later = [work for work in self.posted if work.takes_receive and (self.disordered or work.number > self.latest)]
        for work in later:
            if self._differs(work, wc, slots, place) is None:
                self.latest = work.number
                work.arrived = True
                self._store(work, slots, place)
                return
        self.find(f"{wc!r} completes a receive of bytes that were not sent, or twice, or out of order")

    def _header(self) -> int:
        return GRH_BYTES if self.service == "UD" else 0

    def _differs(self, work: Work, wc: WC, slots: Slots, place: int) -> str | None:
        """Return the difference between a message and a receive, if any."""
        header = self._header()
        if wc.byte_len != work.length + header:
            return f"{wc.byte_len} bytes, not {work.length + header}"
        written = work.verb == "WRITE_IMM"
        if wc.opcode != (e.IBV_WC_RECV_RDMA_WITH_IMM if written else e.IBV_WC_RECV):
            return "another opcode"
        wanted = {"SEND_IMM": e.IBV_WC_WITH_IMM, "WRITE_IMM": e.IBV_WC_WITH_IMM, "SEND_INV": e.IBV_WC_WITH_INV}
        flags = e.IBV_WC_WITH_IMM | e.IBV_WC_WITH_INV
        if wc.wc_flags & flags != wanted.get(work.verb, 0) or (wc.wc_flags & flags and wc.imm_data != work.imm):
            return f"immediate data or key {wc.imm_data:#x}, not {work.imm:#x}"
        at = place * SLOT + header
        if not written and slots.memory[at : at + work.length] != self.source[work.at : work.at + work.length]:
            return "other bytes in memory"
        return None

    def _store(self, work: Work, slots: Slots, place: int) -> None:
        header, at = self._header(), place * SLOT
        slots.shadow[at : at + header] = slots.memory[at : at + header]
        if work.verb != "WRITE_IMM":
            slots.shadow[at + header : at + header + work.length] = self.source[work.at : work.at + work.length]
        used = at + (header + work.length if work.verb != "WRITE_IMM" else 0)
        if self.service == "UC":  # the first packets of a lost message may have arrived
            slots.shadow[used : at + SLOT] = slots.memory[used : at + SLOT]

    # ------------------------------------------------------------------------------------------ memory

    def _effect(self, work: Work, memory: bytearray) -> Change | None:
        """Return the change that a message makes to the peer's memory; one that must fail makes none."""
        if work.expect:
            return None
        if work.verb in WRITES:
            return work.to, self.data(work)
        if work.verb == "ATOMIC_WRITE":
            return work.to, work.operand.to_bytes(WORD, "little")
        if work.verb in ATOMICS:
            old = int.from_bytes(memory[work.to : work.to + WORD], "little")
            new = old + work.operand & _WORD_MASK if work.verb == "FETCH_ADD" else work.swap
            if work.verb == "CMP_SWAP" and old != work.operand:
                new = old
            return work.to, new.to_bytes(WORD, "little")
        return None

    def settle(self, failed: bool, *, calm: bool = False) -> None:
        """Check all memory of this direction after a settle.

        Args:
            failed: true if an end of the connection is in error, so that not all requests were executed.
            calm: true if no event explains a lost message.
        """
        if self.wild:
            self.target_shadow[:], self.result_shadow[:] = self.target, self.result
        elif not self.reliable:
            if calm:
                self._demand_delivery()
            maybe = [change for _, change in self._stored(self.posted, self.target_shadow)]
            self._judge("target", self.target, self.target_shadow, maybe)
        else:
            left = next((work for work in self.arrivals if work.done), None)
            if left is not None:
                self.find(f"{left!r} completed but never arrived")
            if self.arrivals and not failed:
                self.find(f"{self.arrivals[0]!r} consumed no receive")
            self._replay(failed)
        self.posted.clear()
        self.arrivals.clear()
        self.results_used = 0
        self.latest = -1
        self.disordered = self.wild = False

    def _demand_delivery(self) -> None:
        """Raise unless all messages that were due have arrived: their receives, and the data of WRITEs."""
        for work in self.posted:
            if work.due and work.takes_receive and not work.arrived:
                self.find(f"{work!r} never arrived, although a receive was posted and no event explains a loss")
            if (work.due or work.arrived) and (change := self._effect(work, self.target_shadow)) is not None:
                self.target_shadow[change[0] : change[0] + len(change[1])] = change[1]

    def _stored(self, works: Iterable[Work], memory: bytearray, first: int = 0) -> list[tuple[int, Change]]:
        """Return the changes of consecutive messages, numbered from ``first`` on; ``memory`` is not modified."""
        there = bytearray(memory)
        changes = []
        for place, work in enumerate(works, first):
            change = self._effect(work, there)
            if change is not None:
                there[change[0] : change[0] + len(change[1])] = change[1]
                changes.append((place, change))
        return changes

    def _replay(self, failed: bool) -> None:
        """Check the memory of a reliable connection."""
        shadow, done = self.target_shadow, len(self.posted)
        if failed:
            done = max((place for place, work in enumerate(self.posted, 1) if work.done), default=0)
        reads: list[tuple[int, Work, bytes]] = []
        changes: list[tuple[int, Change]] = []
        for place, work in enumerate(self.posted[:done]):
            if work.verb in ATOMICS or work.verb == "READ":
                reads.append((place, work, bytes(shadow[work.to : work.to + work.length])))
            change = self._effect(work, shadow)
            if change is not None:
                shadow[change[0] : change[0] + len(change[1])] = change[1]
                changes.append((place, change))
        rest = self.posted[done:]
        unfinished = self._stored(rest, shadow, done)
        changes += unfinished
        for place, work, wanted in reads:
            got = self.result[work.at : work.at + work.length]
            if got != wanted and work.verb == "READ":
                # a repeated READ sees the data of later messages (IBA 9.7.5.1.3), and so does one that is queued after
                # other READs: without a fence there is no order (IBA 10.8.3.3)
                last = self._next_fence(place)
                later = [change for at, change in changes if place < at < last]
                if _unexplained(got, wanted, _within(later, work.to, work.length)) is None:
                    wanted = bytes(got)
            self.result_shadow[work.at : work.at + work.length] = wanted
        before = bytes(shadow)
        self._judge("target", self.target, shadow, [change for _, change in unfinished])
        reading = [work for work in rest if (work.verb in ATOMICS or work.verb == "READ") and not work.expect]
        versions = [before, *self._versions(before, rest)] if reading else []
        maybe = [(work.at, version[work.to : work.to + work.length]) for work in reading for version in versions]
        self._judge("result", self.result, self.result_shadow, maybe)

    def _versions(self, before: bytes, works: list[Work]) -> Iterable[bytes]:
        there = bytearray(before)
        for work in works:
            change = self._effect(work, there)
            if change is not None:
                there[change[0] : change[0] + len(change[1])] = change[1]
                yield bytes(there)

    def _next_fence(self, place: int) -> int:
        """Return the index of the next message with a fence."""
        fences = (at for at in range(place + 1, len(self.posted)) if self.posted[at].fence)
        return next(fences, len(self.posted))

    def _judge(self, what: str, memory: bytearray, shadow: bytearray, maybe: list[Change]) -> None:
        """Raise if a byte is neither the shadow's nor one of ``maybe``; then copy the memory to the shadow."""
        if memory == shadow:
            return
        at = _unexplained(memory, shadow, maybe)
        if at is not None:
            self.find(
                f"{what} memory at {at} is {memory[at : at + WORD].hex()}, not {shadow[at : at + WORD].hex()}, "
                f"after {len(self.posted)} messages"
            )
        shadow[:] = memory


def _within(changes: list[Change], start: int, length: int) -> list[Change]:
    """Return the changes within a part of memory, relative to its start."""
    found = []
    for to, data in changes:
        low, high = max(to, start), min(to + len(data), start + length)
        if low < high:
            found.append((low - start, data[low - to : high - to]))
    return found


def _unexplained(memory: bytes | bytearray, shadow: bytes | bytearray, maybe: list[Change]) -> int | None:
    """Return the first offset whose byte is neither the shadow's nor one of ``maybe``, or ``None``."""
    differs = bytearray(len(memory))
    for start in range(0, len(memory), _PIECE):
        here, wanted = memory[start : start + _PIECE], shadow[start : start + _PIECE]
        if here != wanted:
            differs[start : start + len(here)] = bytes(map(ne, here, wanted))
    for to, data in maybe:
        for start in range(to, to + len(data), _PIECE):
            given = data[start - to : start - to + _PIECE]
            end = start + len(given)
            if differs.find(1, start, end) < 0:
                continue
            left = int.from_bytes(differs[start:end], "little")
            left &= int.from_bytes(bytes(map(ne, memory[start:end], given)), "little")
            differs[start:end] = left.to_bytes(len(given), "little")
    at = differs.find(1)
    return None if at < 0 else at


__all__ = ["OPCODES", "WORD", "Direction", "Slots", "Work"]
