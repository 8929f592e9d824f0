"""Completion queues."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from errno import EINVAL
from typing import TYPE_CHECKING, Any

from rnic.context.cqc import CQC
from rnic.engine import use
from rnic.mem.space import Mapping
from rnic.rings.cqe import CQ_ENTRY, CQE_BYTES, CQE_GRH, CQE_IMM, CQE_INV, CQE_RECEIVE, CQE_SRQ
from rnic.rings.queue_block import ARM_NEXT, ARM_SOLICITED, CQ_DOORBELL, CQ_HEAD
from rnic.rings.ring import Entry, PhaseConsumer
from rnic.spec import commands as cmd
from rnic.spec import opcodes as op
from rnic.spec import reasons
from rnic.spec import status as st
from rnic.spec.errors import VerbsError
from rnic.spec.limits import MAX_CQE
from rnic.verbs import enums as e
from rnic.verbs import on_command
from rnic.verbs.attrs import WC
from rnic.verbs.batch import BatchPolls, alike, check_identifiers, checked, completion_dtype, words_of
from rnic.verbs.context import Context
from rnic.verbs.event_queues import CompChannel
from rnic.verbs.posting import in_child

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STATUS = {
    st.SUCCESS: e.IBV_WC_SUCCESS,
    st.LOC_LEN_ERR: e.IBV_WC_LOC_LEN_ERR,
    st.LOC_QP_OP_ERR: e.IBV_WC_LOC_QP_OP_ERR,
    st.LOC_PROT_ERR: e.IBV_WC_LOC_PROT_ERR,
    st.WR_FLUSH_ERR: e.IBV_WC_WR_FLUSH_ERR,
    st.MW_BIND_ERR: e.IBV_WC_MW_BIND_ERR,
    st.BAD_RESP_ERR: e.IBV_WC_BAD_RESP_ERR,
    st.LOC_ACCESS_ERR: e.IBV_WC_LOC_ACCESS_ERR,
    st.REM_INV_REQ_ERR: e.IBV_WC_REM_INV_REQ_ERR,
    st.REM_ACCESS_ERR: e.IBV_WC_REM_ACCESS_ERR,
    st.REM_OP_ERR: e.IBV_WC_REM_OP_ERR,
    st.RETRY_EXC_ERR: e.IBV_WC_RETRY_EXC_ERR,
    st.RNR_RETRY_EXC_ERR: e.IBV_WC_RNR_RETRY_EXC_ERR,
    st.REM_ABORT_ERR: e.IBV_WC_REM_ABORT_ERR,
}
_WC_OPCODES = {name: number for number, name in e.WC_OPCODE_NAMES.items()}
_SEND_OPCODE = {row.opcode: _WC_OPCODES[row.ibv_wc] for row in op.WORK_REQUESTS if row.ibv_wc}
_FLAGS = CQE_IMM | CQE_INV | CQE_GRH
_RING: Any = PhaseConsumer if use.ENGINE is None else use.ENGINE.CompletionRing
_FLAGS_WORD, _QPN_WORD = CQ_ENTRY["phase"].byte // 4, CQ_ENTRY["qpn"].byte // 4


class CQ:
    """A completion queue.

    Args:
        ctx: opened device.
        cqe: completions that it must hold, 1 to 4,194,303 (``MAX_CQE`` of :mod:`rnic.spec.limits`); it may hold more.
        cq_context: any object of the program.
        channel: completion channel for events.
        comp_vector: accepted and ignored; there is one vector per context.
    """

    def __init__(
        self,
        ctx: Context,
        cqe: int = 100,
        cq_context: object = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        self.ctx = ctx
        self.driver = ctx.driver
        self.cq_context = cq_context
        self.channel = channel
        self.lock = threading.Lock()
        self.closed = False
        self.comp_events = 0
        self._queues: dict[int, Any] = {}
        """Queue pairs that complete here, by number; they hold the work request identifiers."""
        self._plain: dict[int, tuple[Any, Any]] = {}
        """Their send and receive queues, if those are compiled."""
        self._batches: BatchPolls | None = None
        self._kept: list[tuple[WC, Entry]] = []
        """Completions taken from the ring that no call has returned yet."""
        log = _log_entries(cqe)
        with ctx.driver.lock, ExitStack() as undo:
            self._mapping, self._ring = self._make_ring(log)
            undo.callback(ctx.driver.unmap, self._mapping)
            self.cqn = ctx.allocate_for(undo, cmd.RES_CQ)
            self._block = ctx.allocate_for(undo, cmd.RES_UAR_BLOCK)
            ctx.command(cmd.SW2HW_CQ, self.cqn, inbox=self._context(log, self._mapping))
            undo.pop_all()
            self._attach_ring()
        self.cqe = (1 << log) - 1
        ctx._cqs[self.cqn] = self
        ctx.add_child(self)
        on_command.watch_cq(self)
        if channel is not None:
            channel.cqs.add(self)

    def _make_ring(self, log: int) -> tuple[Mapping, Any]:
        mapping = self.driver.ring(CQE_BYTES << log)
        return mapping, _RING(mapping.view, 1 << log)

    def _context(self, log: int, mapping: Mapping) -> bytes:
        return CQC.pack(
            {
                "start": mapping.va,
                "logsize": log,
                "usrpage": self._block,
                "comp_eqn": self.ctx.eqn,
                "cqn": self.cqn,
            }
        )

    def _attach_ring(self) -> None:
        """Have the compiled ring translate plain completions, if C drives the device in this process."""
        driver: Any = self.driver
        ring = self._ring
        self._poll_ready = self._ready_after_progress
        self._poll_plain = self._poll_array = None
        if (doorbell := getattr(driver, "doorbell", None)) is not None:
            ring.attach(doorbell, driver.progress, driver.registers, self._block, self.lock)
            self._poll_ready, self._poll_plain, self._poll_array = ring.poll_ready, ring.poll, ring.poll_array

    def _ready_after_progress(self) -> bool:
        """Return whether a completion is in the ring; if none is, drive the device first."""
        ring = self._ring
        if not ring.ready():
            self.driver.progress()
        return bool(ring.ready())

    def inherit(self) -> None:
        """Disable the queue in a forked child: nothing can be polled here, and no thread holds its lock."""
        self.lock = threading.Lock()
        self._kept.clear()
        self._poll_array = None
        self._poll_ready = _refuse_in_child

    def attach(self, qpn: int, queue: Any, sends: Any = None, receives: Any = None) -> None:
        """Register a queue pair, whose queues hold the identifiers of its completions.

        Args:
            qpn: queue pair number, 24 bits.
            queue: the queue pair.
            sends: its send queue.
            receives: its receive queue.
        """
        self._queues[qpn] = queue
        if self._poll_plain is not None and sends is not None:
            self._plain[qpn] = sends, receives

    def _queue_of(self, qpn: int) -> Any:
        """Return the queue pair of a completion, ``None`` if it is gone; attach it if its context now names this queue
        (002 5.4.2)."""
        queue = self._queues.get(qpn)
        if queue is None and (queue := self.ctx._qps.get(qpn)) is not None:
            queue.completes_at(self)
        return queue

    def _owner(self, qpn: int, word3: int, wqe_id: int) -> Any:
        """Return the holder of a completion's identifier: its queue pair, or the SRQ that an XRC message went to."""
        return self.ctx._srqs.get(wqe_id) if word3 & CQE_SRQ else self._queue_of(qpn)

    def detach(self, qpn: int) -> None:
        """Forget a destroyed queue pair: its remaining completions are not reported.

        Args:
            qpn: queue pair number, 24 bits.
        """
        self.clean(qpn)
        self._queues.pop(qpn, None)
        self._plain.pop(qpn, None)

    def clean(self, qpn: int) -> None:
        """Drop the completions of a reset queue pair (IBA 10.3.1); those of others stay.

        Args:
            qpn: queue pair number, 24 bits.
        """
        if self._poll_ready is _refuse_in_child:
            return  # the completions are the parent's, and the child polls none
        with self.lock:
            ring = self._ring
            while (entry := ring.pop()) is not None:
                wc = self._translate(entry)  # even if it is not reported: this frees its receive slot
                if wc is not None and wc.qp_num != qpn:
                    self._kept.append((wc, entry))
            if self._kept:
                self._kept = [kept for kept in self._kept if kept[0].qp_num != qpn]
            self.driver.store(self._block, CQ_HEAD, ring.head)

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Take up to ``num_entries`` completions.

        An empty queue lets the NIC do a round of work first, so polling drives it.

        Args:
            num_entries: most completions to take, at least 1.

        Returns:
            The number of completions, and the completions.
        """
        if not self._kept and not self._poll_ready():
            return 0, []
        found: list[WC] = []
        with self.lock:
            if self._kept:
                found = [wc for wc, _ in self._kept[:num_entries]]
                self._kept = self._kept[num_entries:]
            ring, plain = self._ring, self._poll_plain
            while True:
                if plain is not None:
                    plain(num_entries, self._plain, _SEND_OPCODE, e.IBV_WC_RECV, WC, found)
                if len(found) >= num_entries or (entry := ring.pop()) is None:
                    break
                wc = self._translate(entry)
                if wc is not None:
                    found.append(wc)
            if plain is None:
                self.driver.store(self._block, CQ_HEAD, ring.head)
        return len(found), found

    def poll_batch(self, array: NDArray[Any], wr_ids: NDArray[Any] | None = None) -> int:
        """Take completions as they lie in the ring, up to ``len(array)``; polling an empty queue drives the NIC.

        Args:
            array: filled from its start; of :func:`rnic.verbs.batch.completion_dtype`, one dimension, contiguous.
                ``wqe_id`` is the low half of a send's work request identifier; ``status`` 0 is success, any other a
                syndrome of :mod:`rnic.spec.status`.
            wr_ids: filled with the complete identifiers, also of receives; 64-bit integers, at least as many.

        Returns:
            The number of completions.

        Raises:
            VerbsError: EINVAL for an array of another type.
        """
        kind = completion_dtype()
        if self._poll_array is not None and wr_ids is None and not self._kept:
            count = self._poll_array(array, kind, self._plain)
            if count >= 0:
                return int(count)
        checked(array, kind, "completion_dtype", filled=True)
        if wr_ids is not None:
            check_identifiers(wr_ids, len(array))
        if not self._kept and not self._poll_ready():
            return 0
        if not len(array):
            return 0
        words = words_of(array)
        with self.lock:
            count = min(len(self._kept), len(array))
            for at, (wc, entry) in enumerate(self._kept[:count]):
                words[at] = entry
                if wr_ids is not None:
                    wr_ids[at] = wc.wr_id
            del self._kept[:count]
            if self._batches is None or not self._batches.of(self._ring):
                self._batches = BatchPolls(self._ring)
            for _ in range(2):  # up to the end of the ring, then from its start
                if taken := self._batches.take(words[count:]) if count < len(words) else 0:
                    count += self._note(words[count : count + taken], None if wr_ids is None else wr_ids[count:])
                if self._ring.head:
                    break
            self.driver.store(self._block, CQ_HEAD, self._ring.head)
        return count

    def _note(self, words: NDArray[Any], wr_ids: NDArray[Any] | None) -> int:
        """Free completed entries and store their identifiers. Return the number without those of destroyed QPs."""
        owners, flags = words[:, _QPN_WORD], words[:, _FLAGS_WORD]
        first = int(owners[0]) & 0xFFFFFF
        sends = wr_ids is None and not int(flags[0]) & CQE_RECEIVE
        if sends and first in self._queues and alike(owners) and alike(flags):
            self._queues[first].take_send(int(words[-1, 0]))  # and with it those before it
            return len(words)
        kept = 0
        for at, (index, number, word3, wqe_id) in enumerate(
            zip(words[:, 0].tolist(), owners.tolist(), flags.tolist(), words[:, 4].tolist(), strict=True)
        ):
            queue = self._owner(number & 0xFFFFFF, word3, wqe_id)
            if queue is None:
                continue
            wr_id = (queue.take_receive if word3 & CQE_RECEIVE else queue.take_send)(index)
            if wr_ids is not None:
                wr_ids[kept] = wr_id
            if kept != at:
                words[kept] = words[at]
            kept += 1
        return kept

    def ready(self) -> bool:
        """Return whether a completion waits; take nothing, and do not drive the NIC."""
        return bool(self._kept) or self._ring.ready()

    def _translate(self, entry: tuple[int, ...]) -> WC | None:
        index, word1, length, word3, wqe_id, _, qpn, imm = entry
        queue = self._owner(qpn & 0xFFFFFF, word3, wqe_id)
        if queue is None:
            return None
        wc = WC(0, _STATUS.get(word1 & 0xFF, e.IBV_WC_GENERAL_ERR), 0, word1 >> 8 & 0xFF, length, qpn & 0xFFFFFF)
        if word3 & CQE_RECEIVE:
            wc.wr_id = queue.take_receive(index)
            wc.opcode = e.IBV_WC_RECV_RDMA_WITH_IMM if word3 & 0xFF == op.WR_WRITE_IMM else e.IBV_WC_RECV
            if word3 & _FLAGS:
                if word3 & CQE_IMM:
                    wc.wc_flags |= e.IBV_WC_WITH_IMM
                if word3 & CQE_INV:
                    wc.wc_flags |= e.IBV_WC_WITH_INV
                if word3 & CQE_GRH:
                    wc.wc_flags |= e.IBV_WC_GRH
                    wc.src_qp = wqe_id
                wc.imm_data = imm
        else:
            wc.wr_id = queue.take_send(index)
            wc.opcode = _SEND_OPCODE.get(word3 & 0xFF, e.IBV_WC_SEND)
        return wc

    def req_notify(self, solicited_only: bool = False) -> None:
        """Arm the CQ: the next completion (or next solicited one) raises an event. Poll once more after arming.

        Arming for any completion holds until one arrives, even if a solicited one is requested meanwhile
        (IBA 11.4.2.2, C11-32).

        Args:
            solicited_only: raise an event only for a solicited completion or an error (IBA 11.4.2.2).
        """
        with self.lock:
            armed = self.driver.load(self._block, CQ_DOORBELL) & ARM_NEXT
            self.driver.store(self._block, CQ_DOORBELL, ARM_SOLICITED if solicited_only and not armed else ARM_NEXT)

    def on_event(self) -> None:
        """Take an event of this CQ from the NIC."""
        self.comp_events += 1
        if self.channel is not None:
            self.channel.notify(self)

    def ack_events(self, num_events: int) -> None:
        """Do nothing: events need no acknowledgment here; for pyverbs compatibility.

        Args:
            num_events: events to acknowledge.
        """

    def resize(self, cqe: int) -> None:
        """Resize to hold at least ``cqe`` completions; completions in the queue stay.

        Args:
            cqe: completions, 1 to the device's ``max_cqe``.

        Raises:
            VerbsError: EINVAL if the queue holds more than that.
        """
        log = _log_entries(cqe)
        with self.driver.lock, self.lock:
            mapping, ring = self._make_ring(log)
            try:
                self.ctx.command(cmd.RESIZE_CQ, self.cqn, inbox=self._context(log, mapping))
            except VerbsError as error:
                self.driver.unmap(mapping)
                reason = f"cqe={cqe} is too small for the entries in the queue"
                raise VerbsError(error.errno or EINVAL, reason) from None
            self.driver.unmap(self._mapping)
            if self._poll_plain is not None:
                self._ring.detach()
            self._mapping, self._ring = mapping, ring
            self._attach_ring()
            self.cqe = (1 << log) - 1

    def close(self) -> None:
        """Destroy the CQ; a second call does nothing.

        Raises:
            VerbsError: EBUSY while queue pairs use it.
        """
        ctx = self.ctx
        with ctx.driver.lock:
            if self.closed:
                return
            with ctx.destroying():
                ctx.command(cmd.HW2SW_CQ, self.cqn)
                ctx.free(cmd.RES_CQ, self.cqn)
                ctx.free(cmd.RES_UAR_BLOCK, self._block)
            ctx.driver.unmap(self._mapping)
            if self._poll_plain is not None:
                self._ring.detach()
            ctx._cqs.pop(self.cqn, None)
            ctx.drop_events(self)
            if self.channel is not None:
                self.channel.forget(self)
            self.closed = True
            ctx.drop_child(self)

    def __enter__(self) -> CQ:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<CQ {self.cqn} of {self.cqe} entries>"


def _refuse_in_child() -> bool:
    raise in_child()


def _log_entries(cqe: int) -> int:
    if not 1 <= cqe <= MAX_CQE:
        raise VerbsError(EINVAL, reasons.ATTRIBUTE_RANGE(name="cqe", value=cqe, least=1, most=MAX_CQE))
    return int(cqe).bit_length()
