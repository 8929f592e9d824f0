"""Software's side of receive rings: those of queue pairs, and shared ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from errno import EINVAL, ENOMEM
from typing import TYPE_CHECKING, Any, cast

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
from rnic.verbs import on_command
from rnic.verbs.attrs import RecvWR, SrqAttr, SrqInitAttr
from rnic.verbs.context import Context
from rnic.verbs.memory import PD
from rnic.verbs.posting import InheritedQueue
from rnic.verbs.xrc import XRCD

if TYPE_CHECKING:
    from rnic.verbs.cq import CQ

_END = bytes(SGE_BYTES)
_FREE = None


class Receives:
    """Index of the next receive, and the identifiers of those that have not completed.

    Args:
        entries: of the ring.
    """

    __slots__ = ("entries", "ids", "posted", "tail")

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.reset()

    def reset(self) -> None:
        """Empty the queue."""
        self.tail = self.posted = 0
        self.ids: list[Any] = [_FREE] * self.entries

    def close(self) -> None:
        """Close the queue."""

    def post(self, _: object) -> tuple[int, bool]:
        """Return the number posted by itself, and whether that was all: always 0 and false."""
        return 0, False


class ReceivePoster:
    """Writes receive entries into a ring and keeps the work request identifiers of those not completed.

    Args:
        ctx: opened device.
        max_wr: entries that may be posted at a time.
        max_sge: scatter entries of each.
        shared: for a shared receive queue: its ring size is a power of two, and its entries are slots of a free list,
            since queue pairs complete out of order, and a stalled one holds only its own slot.
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
        """Queue; a compiled one posts plain requests by itself, if C drives the device in this process."""
        self.reset()

    def drive(self, block: int) -> None:
        """Take the queue's block: from now on it may post by itself."""
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
        """Write one entry; the caller rings the doorbell. Scatter entries of zero bytes are dropped."""
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
        """Free the slot of a completed entry, and return the entry's identifier."""
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
    """Return the work requests of a list, or of a chain by ``next``."""
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
        init_attr: capacity and limit; of an XRC SRQ its domain and CQ as well.

    Raises:
        VerbsError: EINVAL naming the attribute, ENOMEM when the device is full.
    """

    def __init__(self, pd: PD, init_attr: SrqInitAttr | None = None) -> None:
        init = init_attr or SrqInitAttr()
        attr = init.attr
        if init.srq_type not in (e.IBV_SRQT_BASIC, e.IBV_SRQT_XRC):
            raise VerbsError(EINVAL, f"srq_type={init.srq_type}: use IBV_SRQT_BASIC or IBV_SRQT_XRC")
        ctx = pd.ctx
        limits = ctx.limits
        if not 1 <= attr.max_wr < 1 << limits["log_max_srq_sz"]:
            raise VerbsError(EINVAL, f"max_wr={attr.max_wr}: use 1 to {(1 << limits['log_max_srq_sz']) - 1}")
        if not 1 <= attr.max_sge <= limits["max_sge"]:
            raise VerbsError(EINVAL, f"max_sge={attr.max_sge}: use 1 to {limits['max_sge']}")
        self.pd = pd
        self.ctx = ctx
        self.closed = False
        self.xrcd: XRCD | None = None
        self.cq: CQ | None = None
        if init.srq_type == e.IBV_SRQT_XRC:
            if not isinstance(init.xrcd, XRCD) or init.cq is None:
                raise VerbsError(EINVAL, "an XRC SRQ needs a domain and a CQ: set xrcd and cq")
            self.xrcd, self.cq = init.xrcd, cast("CQ", init.cq)
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
                    "xrcd": 0 if self.xrcd is None else self.xrcd.handle,
                    "cqn": 0 if self.cq is None else self.cq.cqn,
                }
            )
            ctx.command(cmd.SW2HW_SRQ, self.srqn, inbox=srqc)
            undo.pop_all()
        ctx._srqs[self.srqn] = self
        pd.add_child(self)
        if self.xrcd is not None:
            self.xrcd.add_child(self)
        on_command.watch_srq(self)

    def inherit(self) -> None:
        """Disable posting in a forked child."""
        self.poster.queue = InheritedQueue()

    def post_recv(self, wr: RecvWR | list[RecvWR], bad_wr: object = None) -> None:
        """Post receive work requests.

        Args:
            wr: the first request of a chain, or a list.
            bad_wr: for pyverbs compatibility; the error has it.

        Raises:
            VerbsError: ENOMEM when the queue is full, EINVAL for too many scatter entries.
        """
        store = self.ctx.driver.store
        block = self._block
        self.poster.post(wr, lambda tail: store(block, RQ_TAIL, tail))

    def query(self) -> SrqAttr:
        """Return the capacity, and the limit: 0 once its event was raised."""
        srqc = SRQC.unpack(self.ctx.command(cmd.QUERY_SRQ, self.srqn)[1])
        return SrqAttr(self._max_wr, self.poster.max_sge, srqc["limit"])

    def modify(self, attr: SrqAttr, comp_mask: int) -> None:
        """Arm the limit event (``IBV_SRQ_LIMIT``). Resizing is not supported.

        Args:
            attr: its ``srq_limit`` is the number of entries below which the event is raised.
            comp_mask: ``IBV_SRQ_LIMIT``.

        Raises:
            VerbsError: EINVAL for another mask, or a limit beyond the queue.
        """
        if comp_mask & ~e.IBV_SRQ_LIMIT:
            instead = "create another SRQ"
            raise VerbsError(EINVAL, reasons.NOT_SUPPORTED(what="a mask beyond IBV_SRQ_LIMIT", instead=instead))
        if not 0 <= attr.srq_limit <= self._max_wr:
            limit, most = attr.srq_limit, self._max_wr
            raise VerbsError(EINVAL, reasons.ATTRIBUTE_RANGE(name="srq_limit", value=limit, least=0, most=most))
        self.ctx.command(cmd.ARM_SRQ, self.srqn, inbox=SRQ_ARM.pack({"limit": attr.srq_limit}))
        self.ctx.driver.store(self._block, SRQ_LIMIT, attr.srq_limit)

    def close(self) -> None:
        """Destroy the SRQ; a second call does nothing."""
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
            if self.xrcd is not None:
                self.xrcd.drop_child(self)

    def get_srq_num(self) -> int:
        """Return the number by which requests on XRC queue pairs name it, 24 bits."""
        return self.srqn

    def take_receive(self, index: int) -> int:
        """Free a completed entry.

        Args:
            index: place of the entry.

        Returns:
            The identifier of the work request, 64 bits.
        """
        return self.poster.take(index)

    def __enter__(self) -> SRQ:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
