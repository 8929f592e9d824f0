"""Apply a fault script in a program's own library: failing posts, changed or delayed completions.

The rules are those of :mod:`rnic.link.verbs_faults`. If a device has no such rules, queues keep their methods. Else
each queue's methods are replaced by wrappers from this module.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from errno import EIO
from typing import TYPE_CHECKING, Any

from rnic.link.fault_events import STATUSES as EVENT_STATUSES
from rnic.link.verbs_faults import SHARED_QUEUES, STATUSES, LibraryFaults, VerbsFaults, parse_verbs_rules
from rnic.rings.cqe import CQE_RECEIVE
from rnic.spec import commands as cmd
from rnic.spec import opcodes as op
from rnic.spec import reasons
from rnic.spec import verbs_faults as spec
from rnic.spec.errors import VerbsError
from rnic.verbs import enums as e

if TYPE_CHECKING:
    from rnic.runtime.driver import Driver
    from rnic.verbs.attrs import WC
    from rnic.verbs.context import Context
    from rnic.verbs.cq import CQ
    from rnic.verbs.qp import QP
    from rnic.verbs.srq import SRQ

_FIRST_OF = {
    number: row.opcode for number, name in e.WC_OPCODE_NAMES.items() for row in spec.REQUESTS if row.ibv_wc == name
}
"""One ``WR_*`` for each ``IBV_WC_*`` of a send: rules for completions do not distinguish those with the same one."""
_WR_OF = {
    number: row.opcode for number, name in e.WR_OPCODE_NAMES.items() for row in spec.REQUESTS if row.ibv_wr == name
}


def opened(driver: Driver) -> LibraryFaults | None:
    """Return the rules that this program applies for a device that it opens; ``None`` if there are none."""
    rules = driver.library_faults()
    return LibraryFaults(rules) if rules else None


def fail_verbs(ctx: Context, script: Sequence[Mapping[str, object]]) -> None:
    """Make verbs fail from now on, by rules of :mod:`rnic.link.verbs_faults`.

    Args:
        ctx: context of a device in this process.
        script: a fault script; its rules for packets are ignored here.

    Raises:
        ValueError: a bad rule, in one line.
    """
    rules = parse_verbs_rules(script)
    runtime = ctx.runtime
    if runtime.verbs_faults is None:
        runtime.fail_verbs(VerbsFaults([]))
    assert runtime.verbs_faults is not None
    taken = [rule for rule in runtime.verbs_faults.add(rules) if rule.library]
    if taken and ctx.faults is None:
        ctx.faults = LibraryFaults([])
    if taken and ctx.faults is not None:
        ctx.faults.add(taken)
        watch_all(ctx)


def watch_all(ctx: Context) -> None:
    """Apply rules that were added after the context had queues."""
    for cq in ctx._cqs.values():
        watch_cq(cq)
    for qp in ctx._qps.values():
        watch_qp(qp)
    for srq in ctx._srqs.values():
        watch_srq(srq)


def watch_cq(cq: CQ) -> None:
    """Check a CQ's completions against the rules, if there are any."""
    if cq.ctx.faults is not None and "poll" not in vars(cq):
        polls = _Polls(cq, cq.ctx.faults)
        _replace(cq, "poll", polls.poll)
        _replace(cq, "poll_batch", polls.poll_batch)
        _replace(cq, "clean", polls.clean)


def watch_qp(qp: QP) -> None:
    """Check posts to a queue pair against the rules, if there are any; reset the counts of its number."""
    faults = qp.ctx.faults
    if faults is None or "post_send" in vars(qp):
        return
    faults.forget(qp.qp_num)

    def first_of(wr: Any) -> int:
        one = wr[0] if isinstance(wr, list) and wr else wr
        return _WR_OF.get(getattr(one, "opcode", -1), 0)

    _judged(faults, qp, "post_send", spec.VERB_POST_SEND, qp.qp_num, first_of)
    _judged(faults, qp, "post_rdma", spec.VERB_POST_SEND, qp.qp_num, int)
    _judged(faults, qp, "post_batch", spec.VERB_POST_SEND, qp.qp_num, lambda array: int(array["opcode"][0]))
    _judged(faults, qp, "post_recv", spec.VERB_POST_RECV, qp.qp_num, lambda _: 0)


def watch_srq(srq: SRQ) -> None:
    """Check posts to a shared receive queue against the rules, if there are any."""
    if srq.ctx.faults is not None and "post_recv" not in vars(srq):
        _judged(srq.ctx.faults, srq, "post_recv", spec.VERB_POST_RECV, SHARED_QUEUES, lambda _: 0)


def _replace(thing: object, name: str, function: Callable[..., Any]) -> None:
    setattr(thing, name, function)


def _judged(faults: LibraryFaults, thing: object, name: str, verb: int, qpn: int, opcode: Callable[[Any], int]) -> None:
    """Replace a post method by one that checks the rules first."""
    post = getattr(thing, name)

    def judged(wr: Any, *rest: Any, **named: Any) -> Any:
        rule = faults.post(verb, qpn, opcode(wr))
        if rule is None:
            return post(wr, *rest, **named)
        word = errno.errorcode.get(rule.value, str(rule.value))
        error = VerbsError(rule.value, reasons.ON_COMMAND(code=word, rule=rule.rule))
        error.bad_wr = wr[0] if isinstance(wr, list) and wr else wr
        raise error

    _replace(thing, name, judged)


class _Polls:
    """Judges the completions of one CQ.

    Args:
        cq: the CQ, whose own methods are called.
        faults: the rules.
    """

    def __init__(self, cq: CQ, faults: LibraryFaults) -> None:
        self._cq = cq
        self._faults = faults
        self._poll = cq.poll
        self._poll_batch = cq.poll_batch
        self._clean = cq.clean
        self._lock = threading.RLock()
        self._held: WC | None = None
        self._due_ns = 0

    def clean(self, qpn: int) -> None:
        """See :meth:`rnic.verbs.cq.CQ.clean`: a late completion is not reported either.

        It takes no lock: a poll holds the lock while it waits for a command, and the caller holds the device's.
        """
        held = self._held
        if held is not None and held.qp_num == qpn:
            self._held = None
        self._clean(qpn)

    def _limited(self, count: int) -> int:
        return min(count, self._faults.limit or count)

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """See :meth:`rnic.verbs.cq.CQ.poll`."""
        with self._lock:
            return self._take(num_entries)

    def _take(self, num_entries: int) -> tuple[int, list[WC]]:
        found: list[WC] = []
        while len(found) < self._limited(num_entries):
            if (held := self._held) is not None:
                if self._cq.driver.clock() < self._due_ns:
                    if found or not self._must_wait():
                        break
                    continue
                found.append(held)
                self._held = None
                continue
            count, taken = self._poll(1)
            if not count:
                break
            self._judge(taken[0], found)
        return len(found), found

    def _judge(self, wc: WC, found: list[WC]) -> None:
        received = wc.opcode in (e.IBV_WC_RECV, e.IBV_WC_RECV_RDMA_WITH_IMM)
        rule = self._faults.completion(wc.qp_num, None if received else _FIRST_OF.get(wc.opcode, op.WR_SEND))
        if rule is not None and rule.action == spec.FAULT_LATE:
            self._held, self._due_ns = wc, self._cq.driver.clock() + rule.value
            self._waits = self._cq.driver.hold(self._due_ns) and self._cq.channel is not None
            return
        if rule is not None:
            wc.status = rule.value
            self._fail_qp(wc.qp_num)
        found.append(wc)

    def _must_wait(self) -> bool:
        """Wait if the program sleeps for events: no event will report that the completion is due."""
        if not self._waits:
            self._cq.driver.progress()
            return False
        time.sleep(max(0, self._due_ns - self._cq.driver.clock()) / 1e9)
        return True

    def _fail_qp(self, qpn: int) -> None:
        """Put a queue pair with an error completion into the error state."""
        ctx = self._cq.ctx
        qp = ctx._qps.get(qpn)
        if qp is None or qp.qp_state in (e.IBV_QPS_RESET, e.IBV_QPS_ERR):
            return
        try:
            ctx.command(cmd.TOERR, qpn, cmd.TOERR_ON_COMMAND)
        except VerbsError as error:
            if error.errno != EIO and not ctx.driver.closed:
                raise
        ctx.driver.kick()

    def poll_batch(self, array: Any, wr_ids: Any = None) -> int:
        """See :meth:`rnic.verbs.cq.CQ.poll_batch`; a late completion makes the poll wait, in real time."""
        ids = None if wr_ids is None else wr_ids[: self._limited(len(array))]
        count = self._poll_batch(array[: self._limited(len(array))], ids)
        for at in range(count):
            qpn, flags = int(array["qpn"][at]) & 0xFFFFFF, int(array["flags"][at])
            rule = self._faults.completion(qpn, None if flags & CQE_RECEIVE else flags & 0xFF)
            if rule is None:
                continue
            if rule.action == spec.FAULT_LATE:
                time.sleep(rule.value / 1e9)
            else:
                array["status"][at] = _SYNDROMES.get(rule.value, rule.value)
                self._fail_qp(qpn)
        return count


_SYNDROMES = {STATUSES[name]: code for name, code in EVENT_STATUSES.items() if name in STATUSES}
"""Syndrome that an array has for a status; statuses that the device itself never gives stay as they are."""


__all__ = ["fail_verbs", "opened", "watch_all", "watch_cq", "watch_qp", "watch_srq"]
