"""Update queues when their contexts are evicted, loaded, edited or invalidated (002 table 2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rnic.context.ctxmdata import CQ, QP
from rnic.context.ctxmgt import CHANGED, INVALID, Status
from rnic.device.admission import stored_wrong
from rnic.device.eq import EventQueue
from rnic.device.qp_commands import create_qp
from rnic.device.queue_pair import DeviceQp
from rnic.spec import commands as cmd
from rnic.spec.limits import LOG_MAX_CQ
from rnic.spec.states import INIT, RESET, RTR, RTS, SQD, SQE

if TYPE_CHECKING:
    from rnic.device.cq import CompletionQueue
    from rnic.device.host import ContextChangeHost
    from rnic.device.uar import Uar

_WAY = {RTR: frozenset({RTR, RTS, SQD, SQE}), RTS: frozenset({RTS, SQD})}
"""States whose queue pairs have passed through RTR, and through RTS."""
_RING_SIZES = range(1, LOG_MAX_CQ + 1)
"""Valid log2 sizes of a CQ or EQ ring."""


class ContextChanges:
    """Handles context changes of one NIC."""

    __slots__ = ("_nic",)

    def __init__(self, nic: ContextChangeHost) -> None:
        self._nic = nic

    def image(self, kind: str, number: int) -> bytes | None:
        """Return the current values of a context for a whole write-back."""
        if kind == QP:
            qp = self._nic.qps.get(number)
            if qp is not None:
                qp.query()
            return None
        res = self._nic.resources
        queues: Mapping[int, CompletionQueue | EventQueue] = res.cqs if kind == CQ else res.eqs
        queue = queues.get(number)
        return None if queue is None else queue.image()

    def changed(self, kind: str, number: int, what: str) -> None:
        """Update a queue after a change of its context, reported by the context manager.

        An evicted context stalls its queue and the queue pairs that complete to it; an invalidated context fails its
        queue (002 table 2.2). Any other change takes effect at once.
        """
        self._nic.invalidate_engine()
        if kind == QP:
            self._qp_changed(number, what)
        elif kind == CQ:
            cq = self._nic.resources.cqs.get(number)
            if cq is not None:
                if what == INVALID or (what == CHANGED and cq.key.logsize not in _RING_SIZES):
                    cq.fail()
                elif what == CHANGED:
                    cq.changed()
                    cq.catch_up()
                for qp in [qp for qp in self._nic.qps.values() if cq in qp.cqs]:
                    self.update_hold(qp)
        elif what == CHANGED:
            eq = self._nic.resources.eqs.get(number)
            if eq is not None and eq.key.logsize not in _RING_SIZES:
                eq.fail()
            elif eq is not None:
                eq.changed()
                eq.back()
                for cq in self._nic.resources.cqs.values():
                    if cq.key.comp_eqn == number:
                        cq.catch_up()

    def _qp_changed(self, number: int, what: str) -> None:
        qp = self._nic.qps.get(number)
        if qp is None:
            uar = self._nic.resources.pools[cmd.RES_QP].owners.get(number)
            if uar is not None and what == CHANGED and self._nic.contexts.key.qps.view(number).state != RESET:
                self._create_from_context(uar, number)
            return
        self.update_hold(qp)
        if what == CHANGED:
            with self._nic.guard.around("context", f"QP {number:#x}"):
                if field := stored_wrong(self._nic, qp):
                    qp.fail_context(field)
                else:
                    qp.reload(self._nic.now_ns)
                self.update_hold(qp)

    def _create_from_context(self, uar: Uar, number: int) -> None:
        """Create the queue pair of a context that was not created by a command, in the context's state."""
        with self._nic.guard.around("context", f"QP {number:#x}"):
            qp = create_qp(self._nic, uar, self._nic.contexts.key.qps.view(number))
            state = qp.ctx.state
            for step in (RTR, RTS):
                # run the transitions' steps: receive first, then send
                if state in _WAY[step]:
                    qp.on_modify(INIT if step == RTR else RTR, self._nic.now_ns)
            qp.refresh()

    def update_hold(self, qp: DeviceQp) -> None:
        """Run a queue pair if its contexts are cached, else hold it."""
        nic = self._nic
        key = nic.contexts.key
        held = qp.number in key.qps.evicted or any(cq.number in key.cqs.evicted for cq in qp.cqs)
        if held:
            if nic.running.pop(qp.number, None) is not None:
                nic.timers.forget(qp.memory.record)
                if qp.scheduled:
                    nic.sending.scheduler.remove(qp.memory.record)
            qp.held = 1
        elif qp.number not in nic.running:
            nic.running[qp.number] = qp
            if qp.held:
                qp.held = qp.scheduled = 0
                nic.sending.failed_cqs += [cq for cq in qp.cqs if cq.failed]
                qp.rearm()
                nic.resources.doorbells.ring(qp.regs.block)
                nic.schedule(qp)

    def load_contexts(self, queue: DeviceQp | CompletionQueue) -> Status:
        """Load the evicted contexts of a queue before a command uses it."""
        cqs = queue.cqs if isinstance(queue, DeviceQp) else (queue,)
        wanted = [(CQ, cq.number) for cq in cqs]
        if isinstance(queue, DeviceQp):
            wanted.append((QP, queue.number))
        status = Status.OK
        for kind, number in wanted:
            if self._nic.contexts.evicted(kind, number):
                status = self._nic.contexts.load(kind, number) or status
        return status
