"""Receive rings on the driver's side: those of queue pairs, and shared ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from errno import EINVAL, ENOMEM
from typing import Any

from rnic.context.cqc import SRQC
from rnic.device.mailboxes import SRQ_ARM
from rnic.engine import use
from rnic.mem.space import Mapping
from rnic.rings.queue_block import RQ_TAIL, SRQ_LIMIT
from rnic.rings.ring import next_index
from rnic.rings.rqe import (
    SGE_BYTES,
    SGE_STRUCT,
    SRQ_ORDER_BYTES,
    SRQ_ORDER_STRUCT,
    rqe_stride,
    srq_bytes,
)
from rnic.spec import commands as cmd
from rnic.spec import reasons
from rnic.spec.errors import VerbsError
from rnic.verbs import enums as e
from rnic.verbs.attrs import RecvWR, SrqAttr, SrqInitAttr
from rnic.verbs.context import Context
from rnic.verbs.memory import PD

_END = bytes(SGE_BYTES)
_FREE = None


class Receives:
    """Where the next receive goes, and the identifiers of those that have not completed.

    Args:
        entries: of the ring.
    """

    __slots__ = ("entries", "ids", "posted", "tail")

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.reset()

    def reset(self) -> None:
        """The queue is empty."""
        self.tail = self.posted = 0
        self.ids: list[Any] = [_FREE] * self.entries

    def close(self) -> None:
        """The queue is gone."""

    def post(self, _: object) -> tuple[int, bool]:
        """How many it posts by itself, and whether those were all: none."""
        return 0, False


class ReceivePoster:
    """Writes receive entries into a ring and keeps the work request identifiers of those not completed.

    Args:
        ctx: opened device.
        max_wr: entries that may be posted at a time.
        max_sge: scatter entries of each.
        shared: for a shared receive queue, whose ring has a size that is a power of two, and whose entries are
            slots of a free list: queue pairs complete out of turn, and one that stalls keeps its slot alone.
    """

    def __init__(self, ctx: Context, max_wr: int, max_sge: int, shared: bool = False) -> None:
        self.ctx = ctx
        self.max_sge = max_sge
        self.stride = rqe_stride(max_sge)
        self.entries = max(2, max_wr + 1)
        if shared:
            self.entries = 1 << max_wr.bit_length()
        self._shared = shared
        size = srq_bytes(self.entries, self.stride) if shared else self.entries * self.stride
        self.mapping: Mapping = ctx.driver.ring(size)
        self._view = self.mapping.view
        self.lock = threading.Lock()
        self._limit = max_wr
        self.queue: Any = Receives(self.entries)
        """Also posts by itself what is plain, where the device is driven by C in this process."""
        self.reset()

    def drive(self, block: int) -> None:
        """The queue's block is known: from now on it may post by itself."""
        driver: Any = self.ctx.driver
        if getattr(driver, "doorbell", None) is not None:
            self.queue = use.engine().ReceiveQueue(
                self.lock,
                block,
                driver.registers,
                self._view,
                self.entries,
                self._limit,
                self.stride,
                self.max_sge,
                RecvWR,
            )

    def reset(self) -> None:
        """Forget what was posted."""
        self.queue.reset()
        self._free = list(range(self.entries - 1, -1, -1)) if self._shared else []

    def put(self, wr: RecvWR) -> None:
        """Write one entry; the caller rings. Entries of zero bytes are dropped, as the layout asks."""
        queue = self.queue
        tail = queue.tail
        slot = self._free[-1] if self._free else tail
        if queue.posted >= self._limit or queue.ids[slot] is not _FREE:
            raise VerbsError(ENOMEM, reasons.RECEIVE_QUEUE_FULL(entries=self._limit))
        sges = [sge for sge in wr.sg if sge.length]
        if len(sges) > self.max_sge:
            reason = reasons.NUM_SGE(count=len(sges), limit="max_recv_sge", most=self.max_sge)
            raise VerbsError(EINVAL, reason)
        at = slot * self.stride
        for sge in sges:
            SGE_STRUCT.pack_into(self._view, at, sge.addr, sge.length, sge.lkey)
            at += SGE_BYTES
        if len(sges) * SGE_BYTES < self.stride:
            self._view[at : at + SGE_BYTES] = _END
        if self._free:
            self._free.pop()
            SRQ_ORDER_STRUCT.pack_into(self._view, self.entries * self.stride + tail * SRQ_ORDER_BYTES, slot)
        queue.ids[slot] = wr.wr_id
        queue.posted += 1
        queue.tail = next_index(tail, self.entries)

    def take(self, index: int) -> int:
        """The identifier of a completed entry, whose slot is free from now on."""
        queue = self.queue
        wr_id = queue.ids[index]
        if wr_id is _FREE:
            return 0
        queue.ids[index] = _FREE
        if self._shared:
            self._free.append(index)
        queue.posted -= 1
        return int(wr_id)

    def post(self, wr: RecvWR | list[RecvWR] | None, ring: Callable[[int], None], start: int = 0) -> None:
        """Post a chain or list of work requests, from number ``start`` on.

        Raises:
            VerbsError: ENOMEM when full, EINVAL for too many scatter entries; ``bad_wr`` of the error is the
                request that failed, those before it are posted.
        """
        with self.lock:
            try:
                for each in chain(wr)[start:]:
                    try:
                        self.put(each)
                    except VerbsError as error:
                        error.bad_wr = each  # as ibv_post_recv's third argument
                        raise
            finally:
                ring(self.queue.tail)


def chain(wr: Any) -> list[Any]:
    """Work requests of a list, or of a chain by ``next``."""
    if isinstance(wr, list):
        return wr
    found = []
    while wr is not None:
        found.append(wr)
        wr = wr.next
    return found


class SRQ:
    """A shared receive queue.

    Args:
        pd: its protection domain.
        init_attr: capacity and limit.
    """

    def __init__(self, pd: PD, init_attr: SrqInitAttr | None = None) -> None:
        attr = (init_attr or SrqInitAttr()).attr
        ctx = pd.ctx
        limits = ctx.limits
        if not 1 <= attr.max_wr < 1 << limits["log_max_srq_sz"]:
            raise VerbsError(EINVAL, f"max_wr={attr.max_wr}: use 1 to {(1 << limits['log_max_srq_sz']) - 1}")
        if not 1 <= attr.max_sge <= limits["max_sge"]:
            raise VerbsError(EINVAL, f"max_sge={attr.max_sge}: use 1 to {limits['max_sge']}")
        self.pd = pd
        self.ctx = ctx
        self.closed = False
        self._max_wr = attr.max_wr
        with ctx.driver.lock, ExitStack() as undo:
            self.poster = ReceivePoster(ctx, attr.max_wr, attr.max_sge, shared=True)
            undo.callback(ctx.driver.unmap, self.poster.mapping)
            self.srqn = ctx.allocate_for(undo, cmd.RES_SRQ)
            self._block = ctx.allocate_for(undo, cmd.RES_UAR_BLOCK)
            srqc = SRQC.pack(
                {
                    "state": 1,
                    "logsize": self.poster.entries.bit_length() - 1,
                    "srqn": self.srqn,
                    "start": self.poster.mapping.va,
                    "logstride": self.poster.stride.bit_length() - 1,
                    "usrpage": self._block,
                    "pd": pd.handle,
                    "limit": attr.srq_limit,
                }
            )
            ctx.command(cmd.SW2HW_SRQ, self.srqn, inbox=srqc)
            undo.pop_all()
        ctx._srqs[self.srqn] = self
        pd.add_child(self)

    def post_recv(self, wr: RecvWR | list[RecvWR], bad_wr: object = None) -> None:
        """Post receive work requests."""
        store = self.ctx.driver.store
        block = self._block
        self.poster.post(wr, lambda tail: store(block, RQ_TAIL, tail))

    def query(self) -> SrqAttr:
        """Capacity, and the limit: 0 once its event was raised."""
        srqc = SRQC.unpack(self.ctx.command(cmd.QUERY_SRQ, self.srqn)[1])
        return SrqAttr(self._max_wr, self.poster.max_sge, srqc["limit"])

    def modify(self, attr: SrqAttr, comp_mask: int) -> None:
        """Arm the limit event (``IBV_SRQ_LIMIT``). Resizing is not among the capabilities."""
        if comp_mask & ~e.IBV_SRQ_LIMIT:
            raise VerbsError(EINVAL, f"mask={comp_mask:#x}: only IBV_SRQ_LIMIT can be modified")
        if not 0 <= attr.srq_limit <= self._max_wr:
            raise VerbsError(EINVAL, f"srq_limit={attr.srq_limit}: use 0 to {self._max_wr}")
        self.ctx.command(cmd.ARM_SRQ, self.srqn, inbox=SRQ_ARM.pack({"limit": attr.srq_limit}))
        self.ctx.driver.store(self._block, SRQ_LIMIT, attr.srq_limit)

    def close(self) -> None:
        """Destroy it; a second call does nothing."""
        ctx = self.ctx
        with ctx.driver.lock:
            if self.closed:
                return
            with ctx.destroying():
                ctx.command(cmd.HW2SW_SRQ, self.srqn)
                ctx.free(cmd.RES_SRQ, self.srqn)
                ctx.free(cmd.RES_UAR_BLOCK, self._block)
            ctx.driver.unmap(self.poster.mapping)
            ctx._srqs.pop(self.srqn, None)
            ctx.drop_events(self)
            self.closed = True
            self.pd.drop_child(self)

    def __enter__(self) -> SRQ:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
