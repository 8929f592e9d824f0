"""Send path: handles doorbells, and gives turns to queue pairs with something to send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.device.queue_pair import DeviceQp
from rnic.device.scheduler import Scheduler
from rnic.device.srq import SharedReceiveQueue
from rnic.rings.queue_block import SQ_TAIL
from rnic.spec.states import ERR
from rnic.transport.qp import LEAST
from rnic.wire.bursts import TxBurst

if TYPE_CHECKING:
    from rnic.device.cq import CompletionQueue
    from rnic.device.host import SendingHost

_WRITE_BACK_MASK = 0x3FF
_WRITE_BACK_QPS = 4
"""Number of queue pairs whose state and PSNs are written back every 1024 calls of ``produce``."""


def _requests(qp: DeviceQp, now_ns: int, budget: int, out: list[TxBurst]) -> int:
    """Send requests by the engine as far as it supports them, the others by the reference."""
    executor = qp.executor
    if executor is None:
        return qp.produce_requests(now_ns, budget, out)
    made = executor.send(now_ns, budget, out)
    if made < budget and executor.punted:
        made += qp.produce_requests(now_ns, budget - made, out)
    return made


def _replies(qp: DeviceQp, budget: int, out: list[TxBurst]) -> int:
    """Send replies by the engine if it supports all waiting ones, else by the reference."""
    made = 0 if qp.executor is None else qp.executor.reply(budget, out)
    return made or qp.produce_replies(budget, out)


STEP_FIRST, STEP_REQUESTS, STEP_REST = range(3)
"""Point at which a turn continues: at its start, among its requests, or after them."""


class Sending:
    """Send path of one NIC.

    ``qps`` has its queue pairs by record offset, as in ``scheduler``. ``failed_cqs`` has overflowed CQs, whose queue
    pairs fail; ``final_bursts`` has bursts of queue pairs without further turns. Both are handled first. C keeps
    references to the two lists, so they are never replaced.
    """

    __slots__ = ("_doorbells", "_nic", "_turns", "failed_cqs", "final_bursts", "qps", "scheduler")

    def __init__(self, nic: SendingHost) -> None:
        self._nic = nic
        self._doorbells = nic.resources.doorbells
        self.scheduler = Scheduler(nic.arena, nic.config.program_turn_bytes)
        self.qps: dict[int, DeviceQp] = {}
        self.failed_cqs: list[CompletionQueue] = []
        self.final_bursts: list[TxBurst] = []
        self._turns = 0

    def has_work(self) -> bool:
        """True if :meth:`produce` has work to do now."""
        return bool(self.scheduler.count or self._doorbells.rung or self.failed_cqs or self.final_bursts)

    def produce(self, now_ns: int, budget: int = 256) -> list[TxBurst]:
        """Handle rung doorbells, then give turns to queue pairs with work, in the order of :class:`Scheduler`.

        Args:
            budget: approximate limit of packets to send.
        """
        if self._nic.held:
            self._nic.now_ns = now_ns
            return []
        out = self.prepare(now_ns)
        scheduler = self.scheduler
        qps = self.qps
        sent = packets = 0
        for burst in out:
            packets += burst.count
        later: list[DeviceQp] = []
        while sent < budget and scheduler.count and not scheduler.over:
            record = scheduler.take()
            qp = qps[record]
            qp.scheduled = 0
            limit = budget - sent
            allowance = scheduler.allowance(record) if scheduler.count else None
            if allowance is not None and allowance < limit * qp.ctx.mtu_bytes:
                limit = -(-allowance // qp.ctx.mtu_bytes)
            count, deferred = self.take_turn(qp, now_ns, out, record, limit)
            if deferred:
                later.append(qp)
            packets += count
            sent += count or 1  # a turn without a packet costs, too
        if scheduler.over:
            scheduler.over = 0
        for qp in later:
            self._nic.schedule(qp)
        if packets:
            self._nic.tally["tx_packets"] += packets
            self._nic.note_traffic(now_ns)
        return out

    def prepare(self, now_ns: int) -> list[TxBurst]:
        """Do the work that comes before turns. Return the bursts to send first."""
        self._nic.now_ns = now_ns
        if self.failed_cqs:
            self._fail_users()
        self._turns += 1
        if not self._turns & _WRITE_BACK_MASK:
            self.write_back()
        if self._doorbells.rung:
            self._take_doorbells()
        out: list[TxBurst] = []
        if self.final_bursts:
            out += self.final_bursts
            self.final_bursts.clear()
        if self._nic.gsi.waiting:
            out += self._nic.gsi.take()
        return out

    def write_back(self) -> None:
        """Write back state and PSNs of a few queue pairs, even if the NIC is busy."""
        with self._nic.guard.around("write-back"):
            self._nic.contexts.write_back(_WRITE_BACK_QPS, _WRITE_BACK_QPS)

    def take_turn(
        self,
        qp: DeviceQp,
        now_ns: int,
        out: list[TxBurst],
        record: int,
        limit: int,
        step: int = STEP_FIRST,
        count: int = 0,
        size: int = 0,
        room: int = 0,
    ) -> tuple[int, bool]:
        """Run a queue pair's turn, or the part that the engine left; an internal error ends it.

        Args:
            record: offset of the queue pair's record.
            limit: most packets to send.
            step: step to continue at, ``STEP_*``.
            count: packets built before, with ``size`` bytes.
            room: packets that its requests may use, from ``STEP_REQUESTS`` on.

        Returns:
            Packets sent in the turn, and whether its replies were deferred for new messages, so it must be scheduled
            again at the end.
        """
        scheduler, replies = self.scheduler, qp.responder.replies
        made = len(out)
        again = deferred = False
        try:
            if step != STEP_REST:
                if step == STEP_REQUESTS:
                    count += qp.produce_requests(now_ns, room, out)
                else:
                    count += self._first(qp, now_ns, limit, out)
                # building the reply would delay the packets just built, and replies are seldom urgent: send it next
                # time
                were_deferred = qp.replies_deferred
                deferred = count > 0 and replies.reply_count > 0 and not were_deferred
                if deferred or were_deferred:
                    qp.replies_deferred = deferred
            if not deferred and (replies.reply_count or qp.cnp_tag or qp.masked or qp.paced):
                count += self._rest(qp, now_ns, limit, count, out)
            qp.show()
        except Exception as error:  # noqa: BLE001 - the last guard
            self._nic.internal_error("turn", qp, error)
            count, deferred = 0, False
        if count and not deferred and not qp.scheduled and qp.ready(now_ns):
            qp.scheduled = again = True
        for burst in out[made:]:
            size += burst.length
        qp.sent_bytes += size
        scheduler.spend(record, size if scheduler.count else 0, again)
        return count, deferred

    def take_over(self, now_ns: int, out: list[TxBurst], record: int, *turn: int) -> tuple[int, bool]:
        """Run :meth:`take_turn` for a turn that the engine punts, from the given step on."""
        return self.take_turn(self.qps[record], now_ns, out, record, *turn)

    @staticmethod
    def _first(qp: DeviceQp, now_ns: int, limit: int, out: list[TxBurst]) -> int:
        """Send the first part of a turn: requests, or replies if these go first."""
        owes = qp.responder.replies.reply_count > 0 and qp.replies_first
        if qp.cnp_tag or qp.masked or qp.paced:
            return qp.produce_replies(limit, out) if owes and not qp.cnp_tag else 0
        count = _replies(qp, limit, out) if owes else 0
        if qp.requester.unsent:
            budget = min(limit, max(limit - count, LEAST)) if count else limit
            count += _requests(qp, now_ns, budget, out)
        return count

    @staticmethod
    def _rest(qp: DeviceQp, now_ns: int, limit: int, count: int, out: list[TxBurst]) -> int:
        """Send the rest of a turn, after ``count`` packets."""
        waiting = qp.responder.replies.reply_count
        if not (qp.cnp_tag or qp.masked or qp.paced):
            return _replies(qp, max(limit - count, LEAST), out) if waiting else 0
        if count < limit and (qp.requester.unsent or waiting or qp.cnp_tag):
            return qp.produce(now_ns, limit - count, out)
        return 0

    def _take_doorbells(self) -> None:
        doorbells = self._doorbells
        for _ in range(len(doorbells.rung)):
            self.ring(doorbells.take())

    def ring(self, block: int) -> None:
        """Ring a doorbell in a block."""
        queue = self._nic.resources.blocks.get(block)
        if queue.__class__ is DeviceQp:
            try:
                self._ring_qp(queue)
            except Exception as error:  # noqa: BLE001 - the last guard
                self._nic.internal_error("doorbell", queue, error)
        elif queue.__class__ is SharedReceiveQueue and not queue.ring_limit():
            self._nic.counters.bump("bad_doorbells")

    def _ring_qp(self, qp: DeviceQp) -> None:
        if qp.held:
            return  # the doorbell is rung again when it is cached
        tail = qp.regs.get(SQ_TAIL)
        if self._nic.tracer.enabled:
            self._nic.tracer.event(self._nic.now_ns, "doorbell", qp.ctx.local_qpn, tail=tail)
        state = qp.ctx.state
        if tail >= qp.sq_entries:
            self._nic.counters.bump("bad_doorbells")
            if state != ERR:
                qp.enter_error()
        elif tail != qp.requester.tail or state == ERR:
            # in ERR, entries posted to the receive queue are also flushed
            qp.doorbell(tail)

    def _fail_users(self) -> None:
        failed = self.failed_cqs[:]
        self.failed_cqs.clear()
        for qp in [qp for qp in self._nic.running.values() if any(cq in failed for cq in qp.cqs)]:
            if qp.ctx.state != ERR:
                try:
                    qp.enter_error()
                except Exception as error:  # noqa: BLE001 - the last guard
                    self._nic.internal_error("turn", qp, error)
