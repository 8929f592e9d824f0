"""The sending half: slots, arbiter, Go-Back-N and retry limits (``hardware.md`` §4)."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from rnic.rclink.config import RcLinkConfig
from rnic.rclink.deadlines import Deadlines
from rnic.rclink.drops import RcLinkDrop
from rnic.rclink.header import Rh
from rnic.rclink.numbers import BANKS, OP_SEND, RNR_FOREVER, psn_add, psn_diff, timestamp
from rnic.rclink.qp import QueuePair, Slot
from rnic.rclink.slots import SlotInput, SlotState
from rnic.spec.syndromes import (
    AETH_ACK,
    AETH_RNR_NAK,
    AETH_TYPE_MASK,
    AETH_VALUE_MASK,
    CREDITS_INVALID,
    NAK_PSN_SEQUENCE,
    rnr_timer_ns,
)
from rnic.trace.counters import Counters

FREE_PER_TURN = 64
"""Most slots that recovery frees in one round, to keep rounds short."""


class Sent:
    """Result of a packet with a ``tag``: acknowledged (``ok``), or discarded by recovery."""

    __slots__ = ("ok", "qpid", "tag")

    def __init__(self, qpid: int, tag: object, ok: bool) -> None:
        self.qpid = qpid
        self.tag = tag
        self.ok = ok


class Sender:
    """Send slots of all QPs, and the arbiter.

    Args:
        qps: the QPs by number.
        config: parameters; fields set by registers are read at each use.
        counters: counters of packets and events.
        stop: called with a QP that reached its retry limit.
    """

    def __init__(
        self,
        qps: list[QueuePair],
        config: RcLinkConfig,
        counters: Counters,
        stop: Callable[[QueuePair], None],
    ) -> None:
        self._qps = qps
        self._config = config
        self._counters = counters
        self._stop = stop
        self._serial = 0
        self.free = config.ost
        """Number of EMPTY slots."""
        self.done: deque[Sent] = deque()
        """Results of packets with a tag."""
        self._freeing: deque[QueuePair] = deque()
        self._banks: list[list[tuple[int, int]]] = [[] for _ in range(BANKS)]
        """(serial, QP) of the QPs' head slots in each bank, oldest first; stale entries are skipped."""
        self._last_bank = 0
        self.retries = Deadlines()
        """Deadlines of QPs for Go-Back-N: retry timeouts and ends of RNR waits."""
        self.unblocks = Deadlines()
        """Times at which QPs' rate windows unblock."""

    # ---------------------------------------------------------------------------------- requests of the host

    def write(self, qp: QueuePair, payload: bytes, fack: bool, tag: object) -> None:
        """Put a packet into a slot; the caller has checked that one is free and the QP is enabled."""
        slot = Slot(self._serial, qp.qpid, qp.tx_epsn, payload, fack, tag)
        self._serial += 1
        self.free -= 1
        slot.happen(SlotInput.WRITE)
        qp.tx_epsn = psn_add(qp.tx_epsn, 1)
        qp.waiting.append(slot)
        if len(qp.waiting) == 1:
            self._offer(qp)

    def set_rate(self, qp: QueuePair, length_thr: int, now_ns: int) -> None:
        """Set a new ``length_thr``, and offer the QP to the arbiter again if that unblocks it."""
        qp.rate.settle(now_ns)
        qp.rate.length_thr = length_thr
        if qp.waiting and qp.waiting[0].state is SlotState.WAIT_CRD:
            self._unblock(qp)

    def resume(self, qp: QueuePair, now_ns: int) -> None:
        """Resume an enabled QP: its slots may be sent."""
        if qp.unacked:
            self._arm(qp, now_ns)
        self._unblock(qp)
        self._offer(qp)

    def suspend(self, qp: QueuePair) -> None:
        """Suspend a disabled QP: stop its timer and keep its slots."""
        qp.rnr_wait = False
        self.retries.cancel(qp.qpid)
        self.unblocks.cancel(qp.qpid)

    def start_freeing(self, qp: QueuePair) -> None:
        """Start ``free_buf_set``: discard the QP's slots, a few per round."""
        if not qp.freeing:
            qp.freeing = True
            self._freeing.append(qp)

    @property
    def freeing(self) -> bool:
        """``type1_free_busy``: true while slots of some QP are being freed."""
        return bool(self._freeing)

    # ------------------------------------------------------------------------------------------- the arbiter

    def grant(self, now_ns: int) -> tuple[QueuePair, Rh, bytes] | None:
        """Return the next packet to send, with its header; ``None`` if none may be sent now."""
        while (qp := self._next(now_ns)) is not None:
            slot = qp.waiting[0]
            if qp.rate.blocked(now_ns):
                slot.happen(SlotInput.BLOCK)
                self._counters.bump("rate_blocked")
                when = qp.rate.unblock_ns(now_ns)
                if when is not None:
                    self.unblocks.set(qp.qpid, when)
                continue
            qp.waiting.popleft()
            slot.happen(SlotInput.GRANT)
            qp.unacked.append(slot)
            qp.rate.charge(len(slot.payload), now_ns)
            qp.last_psn = slot.psn
            if psn_diff(slot.psn, qp.max_fw_psn) > 0:
                qp.max_fw_psn = slot.psn
            else:
                self._counters.bump("retransmitted_packets")
            if qp.qpid not in self.retries:
                self._arm(qp, now_ns)
            self._last_bank = qp.qpid % BANKS
            self._offer(qp)
            self._counters.bump("tx_send")
            rh = Rh(
                opcode=OP_SEND,
                fack=slot.fack,
                ts_en=1,
                timestamp=timestamp(now_ns),
                pkey=qp.tx_pkey,
                psn=slot.psn,
                dest_qp=qp.dest_qp,
            )
            return qp, rh, slot.payload
        return None

    def ready(self) -> bool:
        """Return whether :meth:`grant` or :meth:`free_some` may have work."""
        return bool(self._freeing) or any(self._banks)

    def _offer(self, qp: QueuePair) -> None:
        """Enter the QP's head slot into its bank's queue, if it may be sent."""
        if self._sendable(qp):
            heap = self._banks[qp.qpid % BANKS]
            if len(heap) > 4 * len(self._qps):
                heap[:] = sorted({entry for entry in heap if self._is_first(*entry)})
            heapq.heappush(heap, (qp.waiting[0].serial, qp.qpid))

    def _sendable(self, qp: QueuePair) -> bool:
        if not qp.waiting or not qp.enabled or qp.stopped or qp.rnr_wait:
            return False
        return qp.waiting[0].state is SlotState.WAIT_GRANT

    def _is_first(self, serial: int, qpid: int) -> bool:
        qp = self._qps[qpid]
        return self._sendable(qp) and qp.waiting[0].serial == serial

    def _next(self, now_ns: int) -> QueuePair | None:
        """Take the oldest head slot; with ``bank_rr`` the banks take turns, and empty ones are skipped."""
        heads: list[tuple[int, int, int]] = []
        for bank, heap in enumerate(self._banks):
            while heap and not self._is_first(*heap[0]):
                heapq.heappop(heap)
            if heap:
                passed_over = self._config.bank_rr and bank == self._last_bank
                heads.append((passed_over, heap[0][0], bank))
        if not heads:
            return None
        _, _, bank = min(heads)
        return self._qps[heapq.heappop(self._banks[bank])[1]]

    # ------------------------------------------------------------------------------------ responses of the peer

    def acknowledge(self, qp: QueuePair, psn: int, syndrome: int, now_ns: int) -> RcLinkDrop | None:
        """Process an ACK or NAK; return the drop reason, or ``None``."""
        kind, value = syndrome & AETH_TYPE_MASK, syndrome & AETH_VALUE_MASK
        if kind == AETH_ACK:
            if value != CREDITS_INVALID:
                return RcLinkDrop.CREDITS
            drop = self._release(qp, psn_diff(psn, qp.expect_resp) + 1, psn, now_ns)
            if drop is None:
                self._counters.bump("acks_received")
            return drop
        if kind != AETH_RNR_NAK and syndrome != NAK_PSN_SEQUENCE:
            return RcLinkDrop.BAD_SYNDROME
        count = psn_diff(psn, qp.expect_resp)
        if count:
            drop = self._release(qp, count, psn_add(psn, -1), now_ns)
            if drop is not None:
                return drop
        if kind == AETH_RNR_NAK:
            self._counters.bump("rnr_naks_received")
            if psn_diff(psn, qp.max_fw_psn) <= 0:
                self._wait_rnr(qp, rnr_timer_ns(value), now_ns)
        else:
            self._counters.bump("naks_received")
            self._go_back(qp, now_ns, progress=count > 0)
        return None

    def _release(self, qp: QueuePair, count: int, last: int, now_ns: int) -> RcLinkDrop | None:
        """Release the first ``count`` slots, acknowledged up to PSN ``last``."""
        if count <= 0:
            return RcLinkDrop.STALE_ACK
        if psn_diff(last, qp.max_fw_psn) > 0:
            return RcLinkDrop.GHOST_ACK
        for _ in range(count):
            queue = qp.unacked or qp.waiting
            if not queue:
                break
            self._empty(qp, queue.popleft(), SlotInput.ACK)
        qp.expect_resp = psn_add(last, 1)
        qp.retry_count = qp.rnr_count = 0
        if qp.rnr_wait:
            qp.rnr_wait = False
            self.retries.cancel(qp.qpid)
        if qp.unacked:
            self._arm(qp, now_ns)
        else:
            self.retries.cancel(qp.qpid)
            # the head may differ from the slot that was offered or blocked
            self._head_changed(qp)
        return None

    def _head_changed(self, qp: QueuePair) -> None:
        if qp.waiting and qp.waiting[0].state is SlotState.WAIT_GRANT:
            self.unblocks.cancel(qp.qpid)
            self._offer(qp)

    def _empty(self, qp: QueuePair, slot: Slot, how: SlotInput) -> None:
        slot.happen(how)
        self.free += 1
        if slot.tag is not None:
            self.done.append(Sent(qp.qpid, slot.tag, how is SlotInput.ACK))

    # --------------------------------------------------------------------------------------------- Go-Back-N

    def _rewind(self, qp: QueuePair) -> None:
        """Return unacknowledged slots to WAIT_GRANT, ahead of unsent ones."""
        if not qp.unacked:
            return
        head = qp.waiting[0] if qp.waiting else None
        if head is not None and head.state is SlotState.WAIT_CRD:
            # only the head slot of a QP is ever blocked, and this one no longer is the head
            head.happen(SlotInput.UNBLOCK)
            self.unblocks.cancel(qp.qpid)
        while qp.unacked:
            slot = qp.unacked.pop()
            slot.happen(SlotInput.RETRY)
            qp.waiting.appendleft(slot)
        qp.last_psn = psn_add(qp.expect_resp, -1)
        self._counters.bump("rewinds")

    def _go_back(self, qp: QueuePair, now_ns: int, progress: bool) -> None:
        """Retransmit unacknowledged packets (Go-Back-N). Without progress this counts as a retry."""
        if not qp.unacked:
            return  # it is being retransmitted already
        if not progress and not self._count_retry(qp):
            return
        self._rewind(qp)
        self.retries.cancel(qp.qpid)
        self._offer(qp)

    def _count_retry(self, qp: QueuePair) -> bool:
        """Count a retry; return whether the QP may try again, and stop it otherwise."""
        if qp.retry_count >= self._config.retry_limit:
            self._give_up(qp)
            return False
        qp.retry_count += 1
        return True

    def _give_up(self, qp: QueuePair) -> None:
        qp.stopped = True
        self.suspend(qp)
        self._counters.bump("retries_exceeded")
        self._stop(qp)

    def _wait_rnr(self, qp: QueuePair, wait_ns: int, now_ns: int) -> None:
        limit = self._config.rnr_limit
        if limit != RNR_FOREVER and qp.rnr_count >= limit:
            self._give_up(qp)
            return
        qp.rnr_count = min(qp.rnr_count + 1, 15)
        self._rewind(qp)
        qp.rnr_wait = True
        self.retries.set(qp.qpid, now_ns + wait_ns)

    def _arm(self, qp: QueuePair, now_ns: int) -> None:
        if not qp.stopped:
            self.retries.set(qp.qpid, now_ns + self._config.retry_timer_ns)

    # ------------------------------------------------------------------------------------------ time passes

    def handle_timers(self, now_ns: int) -> None:
        """Handle all timers that are due."""
        while (qpid := self.retries.due(now_ns)) is not None:
            qp = self._qps[qpid]
            if qp.rnr_wait:
                qp.rnr_wait = False
                self._offer(qp)
            else:
                self._counters.bump("timeouts")
                if self._count_retry(qp):
                    self._rewind(qp)
                    self._offer(qp)
        while (qpid := self.unblocks.due(now_ns)) is not None:
            self._unblock(self._qps[qpid])

    def _unblock(self, qp: QueuePair) -> None:
        self.unblocks.cancel(qp.qpid)
        if qp.waiting and qp.waiting[0].state is SlotState.WAIT_CRD:
            qp.waiting[0].happen(SlotInput.UNBLOCK)
            self._offer(qp)

    def free_some(self) -> None:
        """Continue :meth:`start_freeing`."""
        left = FREE_PER_TURN
        while self._freeing and left:
            qp = self._freeing[0]
            while qp.slots and left:
                self._empty(qp, (qp.unacked or qp.waiting).popleft(), SlotInput.FREE)
                left -= 1
            if not qp.slots:
                self._freeing.popleft()
                qp.freeing = False
                qp.stopped = False

    def next_deadline_ns(self) -> int | None:
        """Return when :meth:`handle_timers` has work."""
        times = [time for time in (self.retries.next_ns(), self.unblocks.next_ns()) if time is not None]
        return min(times, default=None)
