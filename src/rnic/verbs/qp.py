"""Queue pairs: creation, state changes, posting."""

from __future__ import annotations

from contextlib import ExitStack
from errno import EINVAL, ENOMEM
from typing import TYPE_CHECKING, Any

from rnic.context.qpc import OPT_CREDITS, OPT_GSO, OPT_NO_PROBE, OPT_SELECTIVE_REPEAT, OPT_SQ_SIG_ALL, QPC, SRQ_VALID
from rnic.rings.queue_block import QUEUE_STATE, RQ_TAIL, SQ_HEAD, SQ_TAIL
from rnic.rings.ring import next_index, room
from rnic.rings.sqe import (
    FLAG_FENCE,
    FLAG_INLINE,
    FLAG_LIST,
    FLAG_SIGNALED,
    FLAG_SOLICITED,
    SGE_BYTES,
    SGE_STRUCT,
    SQE_ATOMIC_STRUCT,
    SQE_BYTES,
    SQE_ENTRY_BIND_STRUCT,
    SQE_STRUCT,
    SQE_UD_PATH_STRUCT,
    SQE_UD_STRUCT,
)
from rnic.spec import commands as cmd
from rnic.spec import opcodes as op
from rnic.spec import reasons
from rnic.spec import states as s
from rnic.spec.errors import VerbsError
from rnic.spec.ids import Qpn, Rkey
from rnic.spec.limits import MAX_INLINE
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from rnic.verbs.batch import (
    BatchRing,
    checked,
    datagram_dtype,
    first_bad,
    send_dtype,
    words_of,
)
from rnic.verbs.cq import CQ
from rnic.verbs.memory import AH, MR, MW, PD
from rnic.verbs.multicast import change_membership
from rnic.verbs.posting import KEYED, OPCODES, queue_lock, send_queue
from rnic.verbs.qp_states import (
    INIT_MASK,
    RANGES,
    RTR_MASK,
    RTS_MASK,
    SERVICES,
    STATE_FROM_DEVICE,
    STATE_TO_DEVICE,
    command_between,
    name_of,
    path_fields,
)
from rnic.verbs.srq import SRQ, ReceivePoster, chain

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BATCH_OPCODES = {kind: op.allowed(service) - {op.WR_BIND_MW, op.WR_NOP} for kind, service in SERVICES.items()}
_FLAGS = (
    (e.IBV_SEND_SIGNALED, FLAG_SIGNALED),
    (e.IBV_SEND_SOLICITED, FLAG_SOLICITED),
    (e.IBV_SEND_FENCE, FLAG_FENCE),
    (e.IBV_SEND_INLINE, FLAG_INLINE),
)
FLAG_TABLE = tuple(sum(bit for verbs, bit in _FLAGS if flags & verbs) for flags in range(16))
"""Descriptor flags for each combination of ``IBV_SEND_*`` flags."""


class QP:
    """A queue pair.

    Args:
        creator: its protection domain.
        init_attr: type, capacities, completion queues.
        qp_attr: with it, RC and UC queue pairs go to INIT at once and UD ones to RTS, as in pyverbs.

    Raises:
        VerbsError: EINVAL naming the attribute, ENOMEM when the device is full.
    """

    def __init__(self, creator: PD, init_attr: QPInitAttr, qp_attr: QPAttr | None = None) -> None:
        pd = creator
        ctx = pd.ctx
        cap = init_attr.cap
        if init_attr.qp_type not in SERVICES:
            raise VerbsError(EINVAL, f"qp_type={init_attr.qp_type}: use IBV_QPT_RC, IBV_QPT_UC or IBV_QPT_UD")
        if not isinstance(init_attr.scq, CQ) or not isinstance(init_attr.rcq, CQ):
            raise VerbsError(EINVAL, "scq and rcq must be completion queues of this context")
        _check_cap(cap, ctx.limits)
        self.pd = pd
        self.ctx = ctx
        self.qp_type = init_attr.qp_type
        self.scq: CQ = init_attr.scq
        self.rcq: CQ = init_attr.rcq
        self.srq: SRQ | None = init_attr.srq if isinstance(init_attr.srq, SRQ) else None
        self.sq_sig_all = bool(init_attr.sq_sig_all)
        self.cap = cap
        self.closed = False
        self.lock = queue_lock(ctx.driver)
        self._groups: frozenset[GID] = frozenset()
        self._attr = QPAttr(e.IBV_QPS_RESET)
        self._entries = max(2, cap.max_send_wr + 1)
        slab = max(cap.max_inline_data, SGE_BYTES * cap.max_send_sge if cap.max_send_sge > 1 else 0)
        self._slab = -(-slab // SGE_BYTES) * SGE_BYTES
        self._slab_base = self._entries * SQE_BYTES
        with ctx.driver.lock, ExitStack() as undo:
            self._mapping = ctx.driver.ring(self._entries * (SQE_BYTES + self._slab))
            undo.callback(ctx.driver.unmap, self._mapping)
            self._ring = self._mapping.view
            self._rq = None if self.srq else ReceivePoster(ctx, cap.max_recv_wr, cap.max_recv_sge)
            if self._rq is not None:
                undo.callback(ctx.driver.unmap, self._rq.mapping)
            self.qp_num = Qpn(ctx.allocate_for(undo, cmd.RES_QP))
            self._block = ctx.allocate_for(undo, cmd.RES_UAR_BLOCK)
            if self._rq is not None:
                self._rq.drive(self._block)
            self._receives = self.srq.poster if self.srq else self._rq
            self._queue = send_queue(
                ctx.driver, self.lock, self._block, self._ring, self._entries,
                _BATCH_OPCODES[self.qp_type], self.qp_type != e.IBV_QPT_UD,
            )  # fmt: skip
            self._reset()
            undo.pop_all()
        self._state = e.IBV_QPS_RESET
        self._store = ctx.driver.store
        self._kick = ctx.driver.kick
        for cq in {self.scq, self.rcq}:
            cq.attach(self.qp_num, self, self._queue, self._rq and self._rq.queue)
        ctx._qps[self.qp_num] = self
        pd.add_child(self)
        if qp_attr is not None:
            with ExitStack() as undo:
                undo.callback(self.close)
                if self.qp_type == e.IBV_QPT_UD:
                    self.to_rts(qp_attr)
                else:
                    self.to_init(qp_attr)
                undo.pop_all()

    def _reset(self) -> None:
        self._queue.reset()
        self._batches: BatchRing | None = None
        if self._rq is not None:
            self._rq.reset()

    # --------------------------------------------------------------------------------------- state

    @property
    def qp_state(self) -> int:
        """The state as the device has it now."""
        return STATE_FROM_DEVICE[self.ctx.driver.load(self._block, QUEUE_STATE)]

    def modify(self, attr: QPAttr, comp_mask: int) -> None:
        """Change state and attributes (ibv_modify_qp).

        Raises:
            VerbsError: EINVAL, with nothing changed, for a transition that does not exist, for missing or
                extra attributes, and for values out of range.
        """
        current = STATE_TO_DEVICE[self.qp_state]
        if comp_mask & e.IBV_QP_CUR_STATE and STATE_TO_DEVICE.get(attr.cur_qp_state) != current:
            given = reasons.CURRENT_STATE(given=attr.cur_qp_state, state=name_of(current))
            raise VerbsError(EINVAL, given)
        target = current
        if comp_mask & e.IBV_QP_STATE:
            if attr.qp_state not in STATE_TO_DEVICE:
                raise VerbsError(EINVAL, f"qp_state={attr.qp_state} is no state")
            target = STATE_TO_DEVICE[attr.qp_state]
        if target == s.RESET:
            if current != s.RESET:
                self.ctx.command(cmd.ERR2RST, self.qp_num)
                self.scq.clean(self.qp_num)
                self.rcq.clean(self.qp_num)
            self._reset()
            return
        opcode = command_between(current, target)
        if opcode is None:
            source, end = name_of(current), name_of(target)
            raise VerbsError(EINVAL, reasons.NO_TRANSITION(qpn=self.qp_num, source=source, target=end))
        values = self._creation_values() if current == s.RESET else {"servtype": SERVICES[self.qp_type]}
        values["local_qpn"] = self.qp_num
        if not attr.en_sqd_async_notify:
            comp_mask &= ~e.IBV_QP_EN_SQD_ASYNC_NOTIFY  # the device takes the attribute's presence for a yes
        values["opt_param_mask"] = comp_mask
        for bit, name, field, largest in RANGES:
            if comp_mask & bit:
                value = getattr(attr, name)
                if not 0 <= value <= largest:
                    raise VerbsError(EINVAL, reasons.ATTRIBUTE_RANGE(name=name, value=value, least=0, most=largest))
                values[field] = value
        options = OPT_SQ_SIG_ALL if self.sq_sig_all else 0
        if comp_mask & e.IBV_QP_AV:
            options |= (
                (OPT_GSO if attr.gso else 0)
                | (0 if attr.probe else OPT_NO_PROBE)
                | (OPT_CREDITS if attr.credits else 0)
                | (OPT_SELECTIVE_REPEAT if attr.selective_repeat else 0)
            )
            values |= path_fields(attr.ah_attr)
        values["options"] = options
        try:
            self.ctx.command(opcode, self.qp_num, inbox=QPC.pack(values))
        except VerbsError as error:
            raise VerbsError(
                error.errno or EINVAL,
                f"queue pair {self.qp_num:#x}: {name_of(current)} to {name_of(target)} refused: {error.strerror}",
            ) from None
        if target == s.RTR:
            self.ctx.may_receive()
            if self.qp_type == e.IBV_QPT_RC and current == s.INIT:
                self.ctx.driver.connected(self.qp_num)
        # replies to a peer that was faster than we, and work that was posted before RTS
        self._kick()

    def _creation_values(self) -> dict[str, int]:
        rq = self._rq
        values = {
            "servtype": SERVICES[self.qp_type],
            "mig_state": 3,
            "msgmax": 31,
            "sq_entry_sz_log": 6,
            "usr_page": self._block,
            "pd": self.pd.handle,
            "cqn_snd": self.scq.cqn,
            "cqn_rcv": self.rcq.cqn,
            "snd_wqe_length": self._entries * SQE_BYTES,
            "sq_base": self._mapping.va,
            "sq_max_sge": self.cap.max_send_sge,
            "sq_slab_bytes": self._slab,
        }
        if self.srq is not None:
            values["srqn"] = SRQ_VALID | self.srq.srqn
        elif rq is not None:
            values |= {
                "rcv_wqe_length": rq.entries * rq.stride,
                "rq_base": rq.mapping.va,
                "rq_entry_sz_log": rq.stride.bit_length() - 1,
                "rq_max_sge": rq.max_sge,
            }
        return values

    def to_init(self, qp_attr: QPAttr) -> None:
        """RESET to INIT."""
        qp_attr.qp_state = e.IBV_QPS_INIT
        self.modify(qp_attr, INIT_MASK[self.qp_type])

    def to_rtr(self, qp_attr: QPAttr) -> None:
        """To RTR, over INIT where it is in RESET."""
        if self.qp_state == e.IBV_QPS_RESET:
            self.to_init(qp_attr)
        qp_attr.qp_state = e.IBV_QPS_RTR
        self.modify(qp_attr, RTR_MASK[self.qp_type])

    def to_rts(self, qp_attr: QPAttr) -> None:
        """To RTS, over the states before it."""
        if self.qp_state in (e.IBV_QPS_RESET, e.IBV_QPS_INIT):
            self.to_rtr(qp_attr)
        qp_attr.qp_state = e.IBV_QPS_RTS
        self.modify(qp_attr, RTS_MASK[self.qp_type])

    def query(self, attr_mask: int = 0) -> tuple[QPAttr, QPInitAttr]:
        """All attributes as the device has them."""
        qpc = QPC.unpack(self.ctx.command(cmd.QUERY_QP, self.qp_num)[1])
        attr = QPAttr(STATE_FROM_DEVICE[qpc["state"]])
        attr.cur_qp_state = attr.qp_state
        for each in RANGES:
            setattr(attr, each.verbs, qpc[each.field])
        attr.sq_draining = qpc["sq_draining"]
        attr.gso = bool(qpc["options"] & OPT_GSO)
        attr.selective_repeat = bool(qpc["options"] & OPT_SELECTIVE_REPEAT)
        attr.probe = not qpc["options"] & OPT_NO_PROBE
        attr.credits = bool(qpc["options"] & OPT_CREDITS)
        attr.cap = self.cap
        route = GlobalRoute(
            GID(qpc["rgid"].to_bytes(16, "big")), qpc["mgid_index"], qpc["flow_label"], qpc["hop_limit"], qpc["tclass"]
        )
        attr.ah_attr = AHAttr(route, qpc["port"], 1, qpc["sl"], udp_dport=qpc["udp_dport"])
        init = QPInitAttr(self.qp_type, None, self.cap, self.scq, self.rcq, self.srq, int(self.sq_sig_all))
        return attr, init

    # ------------------------------------------------------------------------------------- posting

    def post_send(self, wr: SendWR | list[SendWR], bad_wr: object = None) -> None:
        """Post send work requests, a chain by ``next`` or a list, and ring the doorbell once.

        Raises:
            VerbsError: ENOMEM when the queue is full, EINVAL for a request that contradicts itself or for a
                queue pair not yet in RTS; ``bad_wr`` of the error is the request that failed, those before it
                are posted.
        """
        if self._queue.post_send(wr):
            return
        with self.lock:
            try:
                for each in chain(wr):
                    try:
                        self._put(each)
                    except VerbsError as error:
                        error.bad_wr = each  # as ibv_post_send's third argument
                        raise
            finally:
                self._store(self._block, SQ_TAIL, self._queue.tail)
        self._kick()

    def post_rdma(
        self,
        opcode: int,
        local_addr: int,
        length: int,
        lkey: int,
        remote_addr: int = 0,
        rkey: int = 0,
        wr_id: int = 0,
        flags: int = FLAG_SIGNALED,
        imm: int = 0,
    ) -> None:
        """Post one work request of one buffer, given as plain numbers; for tight loops.

        Args:
            opcode: ``WR_*`` number of :mod:`rnic.spec.opcodes`, of a kind without operands beyond these.
            flags: ``FLAG_*`` bits of :mod:`rnic.rings.sqe`, none that needs the slab.

        Raises:
            VerbsError: ENOMEM when the queue is full.
        """
        queue = self._queue
        if queue.post(opcode, local_addr, length, lkey, remote_addr, rkey, wr_id, flags, imm):
            return
        with self.lock:
            index = self._claim(wr_id)
            SQE_STRUCT.pack_into(
                self._ring, index * SQE_BYTES, wr_id & 0xFFFF_FFFF, opcode, flags, local_addr, remote_addr,
                length, lkey, rkey, imm,
            )  # fmt: skip
            self._store(self._block, SQ_TAIL, self._queue.tail)
        self._kick()

    def post_batch(self, array: NDArray[Any]) -> int:
        """Post an array of descriptors, as many as the queue has room for, and ring the doorbell once.

        Args:
            array: one dimension; of :func:`rnic.verbs.batch.send_dtype`, for UD of
                :func:`rnic.verbs.batch.datagram_dtype`. ``wqe_id`` becomes the work request identifier. Any operation
                but binding a window; no inline data and no scatter lists.

        Returns:
            How many were posted, from the start of the array.

        Raises:
            VerbsError: EINVAL for another type of array, for a queue pair not yet in RTS, and for a descriptor that
                contradicts itself: ``bad_wr`` of the error is its place, those before it are posted.
        """
        datagrams = self.qp_type == e.IBV_QPT_UD
        kind = datagram_dtype() if datagrams else send_dtype()
        if (posted := self._queue.post_words(array, kind)) >= 0:
            return int(posted)
        checked(array, kind, "datagram_dtype" if datagrams else "send_dtype")
        if self.qp_state in (e.IBV_QPS_RESET, e.IBV_QPS_INIT, e.IBV_QPS_RTR):
            raise VerbsError(EINVAL, reasons.NOT_IN_RTS(qpn=self.qp_num))
        if not len(array):
            return 0
        words = words_of(array)
        good, reason = first_bad(words, _BATCH_OPCODES[self.qp_type])
        with self.lock:
            queue = self._queue
            tail = queue.tail
            count = min(good, room(queue.head, tail, self._entries))
            if count:
                if self._batches is None:
                    self._batches = BatchRing(self._ring, self._entries)
                ids = self._batches.put(tail, words[:count])
                first = min(count, self._entries - tail)
                queue.ids[tail : tail + first] = ids[:first]
                queue.ids[: count - first] = ids[first:]
                queue.tail = (tail + count) % self._entries
                self._store(self._block, SQ_TAIL, self._queue.tail)
        if count:
            self._kick()
        if count == good < len(array):
            error = VerbsError(EINVAL, f"array[{good}]: {reason}")
            error.bad_wr = good
            raise error
        return count

    def _claim(self, wr_id: int) -> int:
        queue = self._queue
        index: int = queue.tail
        tail = next_index(index, self._entries)
        if tail == queue.head:
            raise VerbsError(ENOMEM, reasons.SEND_QUEUE_FULL(entries=self.cap.max_send_wr))
        queue.ids[index] = wr_id
        queue.tail = tail
        return index

    def _put(self, wr: SendWR) -> None:
        opcode = OPCODES.get(wr.opcode)
        if opcode is None:
            raise VerbsError(EINVAL, f"opcode={wr.opcode} is no send work request")
        if wr.send_flags & ~0xF:
            raise VerbsError(EINVAL, reasons.SEND_FLAGS(flags=wr.send_flags))
        if self.qp_state in (e.IBV_QPS_RESET, e.IBV_QPS_INIT, e.IBV_QPS_RTR):
            raise VerbsError(EINVAL, reasons.NOT_IN_RTS(qpn=self.qp_num))
        flags = FLAG_TABLE[wr.send_flags]
        if opcode == op.WR_BIND_MW:
            self._put_bind(wr, flags)
            return
        sges = wr.sg
        length = 0
        for sge in sges:
            length += sge.length
        inline = flags & FLAG_INLINE
        if len(sges) > max(1, self.cap.max_send_sge):
            most = self.cap.max_send_sge
            raise VerbsError(EINVAL, reasons.NUM_SGE(count=len(sges), limit="max_send_sge", most=most))
        if inline and length > self.cap.max_inline_data:
            raise VerbsError(EINVAL, reasons.INLINE_LENGTH(length=length, most=self.cap.max_inline_data))
        if length > 0xFFFF_FFFF:
            raise VerbsError(EINVAL, reasons.LENGTH(length=length))
        address = lkey = 0
        index = self._claim(wr.wr_id)
        if inline:
            self._copy_inline(index, wr)
        elif len(sges) == 1:
            address, lkey = sges[0].addr, sges[0].lkey
        elif sges:
            flags |= FLAG_LIST
            lkey = len(sges)
            at = self._slab_base + index * self._slab
            for sge in sges:
                SGE_STRUCT.pack_into(self._ring, at, sge.addr, sge.length, sge.lkey)
                at += SGE_BYTES
        imm = wr.invalidate_rkey or wr.imm_data if opcode in KEYED else wr.imm_data
        at = index * SQE_BYTES
        SQE_STRUCT.pack_into(
            self._ring, at, wr.wr_id & 0xFFFF_FFFF, opcode, flags, address, wr.remote_addr, length, lkey,
            wr.rkey, imm & 0xFFFF_FFFF,
        )  # fmt: skip
        if opcode in (op.WR_CMP_SWAP, op.WR_FETCH_ADD):
            first, second = (wr.swap, wr.compare_add) if opcode == op.WR_CMP_SWAP else (wr.compare_add, 0)
            SQE_ATOMIC_STRUCT.pack_into(self._ring, at + 40, first, second)
        elif self.qp_type == e.IBV_QPT_UD:
            self._put_destination(wr, at)

    def _copy_inline(self, index: int, wr: SendWR) -> None:
        """Copy inline data from this process's memory; the keys do not count (ibv_post_send)."""
        at = self._slab_base + index * self._slab
        for sge in wr.sg:
            view = self.ctx.driver.space.views(sge.addr, sge.length)
            if view is None:
                self._queue.tail = index
                raise VerbsError(EINVAL, f"inline data at {sge.addr:#x} is not in a registered buffer: register it")
            self._ring[at : at + sge.length] = view
            at += sge.length

    def _put_destination(self, wr: SendWR, at: int) -> None:
        if not isinstance(wr.ah, AH):
            self._queue.tail = at // SQE_BYTES
            how = "use set_wr_ud(ah, qpn, qkey)"
            raise VerbsError(EINVAL, reasons.NO_ADDRESS_HANDLE(how=how))
        route = wr.ah.attr.gr
        path = wr.ah.attr.sl << 28 | route.traffic_class << 20 | route.flow_label
        SQE_UD_PATH_STRUCT.pack_into(self._ring, at + 16, path, wr.ah.attr.udp_dport, 0)
        SQE_UD_STRUCT.pack_into(self._ring, at + 40, wr.ah.dgid, wr.rqpn | route.hop_limit << 24, wr.rqkey)

    def _put_bind(self, wr: SendWR, flags: int) -> None:
        info = wr.bind_info
        if info is None or not isinstance(info.mw, MW) or not isinstance(info.mr, MR):
            raise VerbsError(EINVAL, "a bind needs a window and a region: use set_bind_wr(mw, rkey, BindInfo(...))")
        index = self._claim(wr.wr_id)
        SQE_ENTRY_BIND_STRUCT.pack_into(
            self._ring, index * SQE_BYTES, wr.wr_id & 0xFFFF_FFFF, op.WR_BIND_MW, flags, info.mw_access_flags,
            info.addr, info.mr.lkey, wr.rkey, info.mw.rkey, info.length,
        )  # fmt: skip
        info.mw.rekeyed(Rkey(wr.rkey))

    def post_recv(self, wr: RecvWR | list[RecvWR], bad_wr: object = None) -> None:
        """Post receive work requests, a chain by ``next`` or a list.

        Raises:
            VerbsError: as :meth:`post_send`; EINVAL for a queue pair with a shared receive queue or in RESET.
        """
        rq = self._rq
        if rq is None:
            raise VerbsError(EINVAL, reasons.USES_SRQ(qpn=self.qp_num))
        done, whole = rq.queue.post(wr)
        if whole:
            return
        if self.qp_state == e.IBV_QPS_RESET:
            raise VerbsError(EINVAL, reasons.IN_RESET(qpn=self.qp_num))
        rq.post(wr, self._ring_receive, done)
        if self.qp_state == e.IBV_QPS_ERR:
            self._kick()

    def _ring_receive(self, tail: int) -> None:
        self._store(self._block, RQ_TAIL, tail)

    @property
    def idle(self) -> bool:
        """Whether the device has completed everything that was posted to the send queue."""
        return bool(self.ctx.driver.load(self._block, SQ_HEAD) == self._queue.tail)

    def take_send(self, index: int) -> int:
        """A send entry completed: it and all before it are free. Its identifier."""
        queue = self._queue
        queue.head = next_index(index, self._entries)
        wr_id: int = queue.ids[index]
        return wr_id

    def take_receive(self, index: int) -> int:
        """A receive entry completed. Its identifier."""
        receives = self._receives
        return 0 if receives is None else receives.take(index)

    @property
    def why(self) -> str:
        """Why something failed here the last time: a request that it sent or refused, a message that it missed.

        Empty where nothing did, else in the words of ``rnic exec --explain``.
        """
        return "" if self.closed else self.ctx.driver.why(self.qp_num)

    # ----------------------------------------------------------------------------------- multicast

    def attach_mcast(self, gid: GID | str, lid: int = 0) -> None:
        """Receive what is sent to a multicast group (UD)."""
        change_membership(self.ctx, GID(gid), self.qp_num, True)
        self._groups |= {GID(gid)}

    def detach_mcast(self, gid: GID | str, lid: int = 0) -> None:
        """Receive it no more."""
        change_membership(self.ctx, GID(gid), self.qp_num, False)
        self._groups -= {GID(gid)}

    # ------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Destroy it, out of its multicast groups too; a second call does nothing."""
        ctx = self.ctx
        with ctx.driver.lock:
            if self.closed:
                return
            self.closed = True
            with ctx.destroying():
                for gid in list(self._groups):
                    self.detach_mcast(gid)
            ctx._qps.pop(self.qp_num, None)
            self._queue.close()
            if self._rq is not None:
                self._rq.queue.close()
            with ctx.destroying():
                if self.qp_state != e.IBV_QPS_RESET:
                    ctx.command(cmd.ERR2RST, self.qp_num)
                ctx.free(cmd.RES_QP, self.qp_num)
                ctx.free(cmd.RES_UAR_BLOCK, self._block)
            self.scq.detach(self.qp_num)
            self.rcq.detach(self.qp_num)
            ctx.driver.unmap(self._mapping)
            if self._rq is not None:
                ctx.driver.unmap(self._rq.mapping)
            ctx.drop_events(self)
            self.pd.drop_child(self)

    def __enter__(self) -> QP:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<QP {self.qp_num} {e.QP_TYPE_NAMES[self.qp_type]} {e.QP_STATE_NAMES[self.qp_state]}>"


def _check_cap(cap: QPCap, limits: dict[str, int]) -> None:
    most = (1 << limits["log_max_qp_sz"]) - 1
    checks: list[tuple[str, Any]] = [
        ("max_send_wr", most),
        ("max_recv_wr", most),
        ("max_send_sge", limits["max_sge"]),
        ("max_recv_sge", limits["max_sge"]),
        ("max_inline_data", MAX_INLINE),
    ]
    for name, largest in checks:
        value = getattr(cap, name)
        if not 0 <= value <= largest:
            raise VerbsError(EINVAL, reasons.ATTRIBUTE_RANGE(name=name, value=value, least=0, most=largest))
