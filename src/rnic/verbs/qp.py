"""Queue pairs: creation, state changes, posting."""

from __future__ import annotations

from contextlib import ExitStack
from errno import EINVAL, ENOMEM
from typing import TYPE_CHECKING, Any, NoReturn

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
    SQE_XRC_STRUCT,
)
from rnic.spec import commands as cmd
from rnic.spec import opcodes as op
from rnic.spec import reasons
from rnic.spec import states as s
from rnic.spec.errors import VerbsError
from rnic.spec.ids import Qpn, Rkey
from rnic.spec.limits import MAX_INLINE
from rnic.verbs import enums as e
from rnic.verbs import on_command
from rnic.verbs.attrs import GID, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from rnic.verbs.batch import (
    BatchRing,
    checked,
    datagram_dtype,
    first_bad,
    send_dtype,
    words_of,
)
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.memory import AH, MR, MW, PD
from rnic.verbs.multicast import change_membership
from rnic.verbs.posting import KEYED, OPCODES, OPERANDS, InheritedQueue, SendQueue, queue_lock, send_queue
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
from rnic.verbs.xrc import XRCD

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BATCH_OPCODES = {kind: op.allowed(service) - {op.WR_BIND_MW, op.WR_NOP} for kind, service in SERVICES.items()}
_XRC = (e.IBV_QPT_XRC_SEND, e.IBV_QPT_XRC_RECV)
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
        creator: its protection domain; the context or the XRC domain for ``IBV_QPT_XRC_RECV``, which has none.
        init_attr: type, capacities, completion queues.
        qp_attr: if given, RC and UC queue pairs go to INIT at once and UD ones to RTS, as in pyverbs.

    Raises:
        VerbsError: EINVAL naming the attribute, ENOMEM when the device is full.
    """

    pd: PD
    """Its protection domain; ``IBV_QPT_XRC_RECV`` has none: memory is that of the SRQ's domain."""
    scq: CQ
    """CQ of sends, as :attr:`rcq` of receives; ``IBV_QPT_XRC_RECV`` has none: receives complete to the SRQ's."""
    rcq: CQ

    def __init__(self, creator: PD | Context | XRCD, init_attr: QPInitAttr, qp_attr: QPAttr | None = None) -> None:
        ctx = creator if isinstance(creator, Context) else creator.ctx
        cap = init_attr.cap
        self.qp_type = init_attr.qp_type
        self.srq: SRQ | None = init_attr.srq if isinstance(init_attr.srq, SRQ) else None
        self.xrcd: XRCD | None = None
        if init_attr.qp_type not in SERVICES:
            known = ", ".join(f"IBV_QPT_{name}" for name in e.QP_TYPE_NAMES.values())
            what = f"qp_type={init_attr.qp_type}"
            raise VerbsError(EINVAL, reasons.NOT_SUPPORTED(what=what, instead=f"use one of {known}"))
        parent: PD | XRCD
        if self.qp_type == e.IBV_QPT_XRC_RECV:
            domain = creator if isinstance(creator, XRCD) else init_attr.xrcd
            if not isinstance(domain, XRCD):
                raise VerbsError(EINVAL, "an XRC queue pair that receives needs a domain: set xrcd")
            parent = self.xrcd = domain
            cap = QPCap(0, 0, 0, 0, 0)
        else:
            if not isinstance(creator, PD):
                raise VerbsError(EINVAL, "a queue pair of this type is made in a protection domain")
            receiving = init_attr.scq if self.qp_type == e.IBV_QPT_XRC_SEND else init_attr.rcq
            if not isinstance(init_attr.scq, CQ) or not isinstance(receiving, CQ):
                raise VerbsError(EINVAL, reasons.NO_CQ(which="rcq" if isinstance(init_attr.scq, CQ) else "scq"))
            self.scq, self.rcq = init_attr.scq, receiving
            parent = self.pd = creator
        _check_cap(cap, ctx.limits)
        self._parent = parent
        self.ctx = ctx
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
            own_receives = not self.srq and self.qp_type not in _XRC
            self._rq = None if not own_receives else ReceivePoster(ctx, cap.max_recv_wr, cap.max_recv_sge)
            if self._rq is not None:
                undo.callback(ctx.driver.unmap, self._rq.mapping)
            self.qp_num = Qpn(ctx.allocate_for(undo, cmd.RES_QP))
            self._block = ctx.allocate_for(undo, cmd.RES_UAR_BLOCK)
            if self._rq is not None:
                self._rq.drive(self._block)
            self._receives = self.srq.poster if self.srq else self._rq
            self._queue: Any = SendQueue(self._entries) if self.qp_type in _XRC else send_queue(
                ctx.driver, self.lock, self._block, self._ring, self._entries,
                _BATCH_OPCODES[self.qp_type], self.qp_type != e.IBV_QPT_UD,
            )  # fmt: skip
            self._reset()
            undo.pop_all()
        self._state = e.IBV_QPS_RESET
        self._store = ctx.driver.store
        self._kick = ctx.driver.kick
        self._cqs: set[CQ] = set()
        if self.xrcd is None:
            for cq in {self.scq, self.rcq}:
                self.completes_at(cq)
        ctx._qps[self.qp_num] = self
        parent.add_child(self)
        on_command.watch_qp(self)
        if qp_attr is not None:
            with ExitStack() as undo:
                undo.callback(self.close)
                if self.qp_type == e.IBV_QPT_UD:
                    self.to_rts(qp_attr)
                else:
                    self.to_init(qp_attr)
                undo.pop_all()

    def completes_at(self, cq: CQ) -> None:
        """Note that completions also go to ``cq``, given at creation or now named by its context.

        Args:
            cq: the CQ.
        """
        self._cqs.add(cq)
        sends = None if self.qp_type in _XRC else self._queue
        cq.attach(self.qp_num, self, sends, self._rq and self._rq.queue)

    def _completes_at(self) -> list[CQ]:
        return [cq for cq in self._cqs if not cq.closed]

    def _reset(self) -> None:
        self._queue.reset()
        self._batches: BatchRing | None = None
        if self._rq is not None:
            self._rq.reset()

    def inherit(self) -> None:
        """Disable posting in a forked child."""
        self._queue = InheritedQueue()
        if self._rq is not None:
            self._rq.queue = self._queue

    # --------------------------------------------------------------------------------------- state

    @property
    def qp_state(self) -> int:
        """Current state in the device."""
        return STATE_FROM_DEVICE[self.ctx.driver.load(self._block, QUEUE_STATE)]

    def modify(self, attr: QPAttr, comp_mask: int) -> None:
        """Change state and attributes (ibv_modify_qp).

        Args:
            attr: the new state and attributes.
            comp_mask: ``IBV_QP_*`` bits of the attributes that count; ``IBV_QP_STATE`` for a transition (IBA 11.2.5.2).

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
                most = max(STATE_TO_DEVICE)
                reason = reasons.ATTRIBUTE_RANGE(name="qp_state", value=attr.qp_state, least=0, most=most)
                raise VerbsError(EINVAL, reason)
            target = STATE_TO_DEVICE[attr.qp_state]
        if target == s.RESET and comp_mask & e.IBV_QP_STATE:
            if comp_mask & ~(e.IBV_QP_STATE | e.IBV_QP_CUR_STATE):
                raise VerbsError(EINVAL, reasons.RESET_ALONE(mask=comp_mask))
            if current != s.RESET:
                self.ctx.command(cmd.ERR2RST, self.qp_num)
                for cq in self._completes_at():
                    cq.clean(self.qp_num)
            self._reset()
            return
        opcode = command_between(current, target)
        if opcode is None:
            source, end = name_of(current), name_of(target)
            raise VerbsError(EINVAL, reasons.NO_TRANSITION(qpn=self.qp_num, source=source, target=end))
        values = self._creation_values() if current == s.RESET else {"servtype": SERVICES[self.qp_type]}
        values["local_qpn"] = self.qp_num
        if not attr.en_sqd_async_notify:
            comp_mask &= ~e.IBV_QP_EN_SQD_ASYNC_NOTIFY  # to the device, the attribute's presence means true
        values["opt_param_mask"] = comp_mask
        for bit, name, field, largest in RANGES:
            if comp_mask & bit:
                value = getattr(attr, name)
                if bit == e.IBV_QP_MIN_RNR_TIMER and value > 0:
                    value &= largest  # Soft-RoCE does not check the value either: it uses the bits of an RNR NAK
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
            if not attr.ah_attr.is_global:
                raise VerbsError(EINVAL, reasons.NO_GRH())
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
        # send replies to a peer that was faster, and work that was posted before RTS
        self._kick()

    def _creation_values(self) -> dict[str, int]:
        rq = self._rq
        values = {
            "servtype": SERVICES[self.qp_type],
            "mig_state": 3,
            "msgmax": 31,
            "sq_entry_sz_log": 6,
            "usr_page": self._block,
            "snd_wqe_length": self._entries * SQE_BYTES,
            "sq_base": self._mapping.va,
            "sq_max_sge": self.cap.max_send_sge,
            "sq_slab_bytes": self._slab,
        }
        if self.xrcd is not None:
            values["xrcd"] = self.xrcd.handle
        else:
            values |= {"pd": self.pd.handle, "cqn_snd": self.scq.cqn, "cqn_rcv": self.rcq.cqn}
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
        """Take the queue pair from RESET to INIT.

        Args:
            qp_attr: ``port_num``, ``pkey_index`` and the access flags, or for UD the Q_Key, count.
        """
        qp_attr.qp_state = e.IBV_QPS_INIT
        self.modify(qp_attr, INIT_MASK[self.qp_type])

    def to_rtr(self, qp_attr: QPAttr) -> None:
        """Take the queue pair to RTR, through INIT if it is in RESET.

        Args:
            qp_attr: attributes of every step, such as ``dest_qp_num``, ``rq_psn``, ``path_mtu`` and ``ah_attr``.
        """
        if self.qp_state == e.IBV_QPS_RESET:
            self.to_init(qp_attr)
        qp_attr.qp_state = e.IBV_QPS_RTR
        self.modify(qp_attr, RTR_MASK[self.qp_type])

    def to_rts(self, qp_attr: QPAttr) -> None:
        """Take the queue pair to RTS, through the states before it.

        Args:
            qp_attr: attributes of every step; for RTS ``sq_psn``, ``timeout``, ``retry_cnt``, ``rnr_retry``.
        """
        if self.qp_state in (e.IBV_QPS_RESET, e.IBV_QPS_INIT):
            self.to_rtr(qp_attr)
        qp_attr.qp_state = e.IBV_QPS_RTS
        self.modify(qp_attr, RTS_MASK[self.qp_type])

    def query(self, attr_mask: int = 0) -> tuple[QPAttr, QPInitAttr]:
        """Return all attributes from the device.

        Args:
            attr_mask: ``IBV_QP_*``, for pyverbs compatibility: all attributes are returned.

        Returns:
            The attributes, and the attributes that the queue pair was created with.
        """
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
        scq, rcq = (None, None) if self.xrcd is not None else (self.scq, self.rcq)
        init = QPInitAttr(self.qp_type, None, self.cap, scq, rcq, self.srq, int(self.sq_sig_all), self.xrcd)
        return attr, init

    # ------------------------------------------------------------------------------------- posting

    def post_send(self, wr: SendWR | list[SendWR], bad_wr: object = None) -> None:
        """Post send work requests, a chain by ``next`` or a list, and ring the doorbell once.

        Args:
            wr: the first request of a chain, or a list.
            bad_wr: for pyverbs compatibility; the error has it.

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
        if self.qp_type in _XRC:
            raise VerbsError(EINVAL, "a plain request names no SRQ: use post_send on an XRC queue pair")
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
            The number of descriptors posted, from the start of the array.

        Raises:
            VerbsError: EINVAL for another type of array, for a queue pair not yet in RTS, and for a descriptor that
                contradicts itself: ``bad_wr`` of the error is its index; those before it are posted.
        """
        if self.qp_type in _XRC:
            raise VerbsError(EINVAL, "XRC queue pairs take no arrays: an entry names no SRQ; use post_send")
        datagrams = self.qp_type == e.IBV_QPT_UD
        kind = datagram_dtype() if datagrams else send_dtype()
        if (posted := self._queue.post_words(array, kind)) >= 0:
            return int(posted)
        checked(array, kind, "datagram_dtype" if datagrams else "send_dtype")
        if self.qp_state in (e.IBV_QPS_RESET, e.IBV_QPS_INIT, e.IBV_QPS_RTR):
            self._refuse_post(reasons.NOT_IN_RTS(qpn=self.qp_num))
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

    def _refuse_post(self, reason: str) -> NoReturn:
        """Raise ENODEV if the device is gone, in which case all its queue pairs are in RESET; else EINVAL."""
        self.ctx.driver.check()
        raise VerbsError(EINVAL, reason)

    def _put(self, wr: SendWR) -> None:
        opcode = OPCODES.get(wr.opcode)
        if opcode is None:
            raise VerbsError(EINVAL, f"opcode={wr.opcode} is not a send work request")
        if wr.send_flags & ~0xF:
            raise VerbsError(EINVAL, reasons.SEND_FLAGS(flags=wr.send_flags))
        if self.qp_type == e.IBV_QPT_XRC_RECV:
            raise VerbsError(EINVAL, f"queue pair {self.qp_num:#x} is an XRC queue pair that receives alone")
        if self.qp_state in (e.IBV_QPS_RESET, e.IBV_QPS_INIT, e.IBV_QPS_RTR):
            self._refuse_post(reasons.NOT_IN_RTS(qpn=self.qp_num))
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
        elif opcode in OPERANDS:
            SQE_ATOMIC_STRUCT.pack_into(self._ring, at + 40, wr.swap, 0)
        elif self.qp_type == e.IBV_QPT_UD:
            self._put_destination(wr, at)
        if self.qp_type == e.IBV_QPT_XRC_SEND:
            SQE_XRC_STRUCT.pack_into(self._ring, at + 56, wr.remote_srqn & 0xFFFFFF)

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
            info.addr, info.mr.lkey, wr.rkey, info.mw.handle, info.length,
        )  # fmt: skip
        info.mw.rkey = Rkey(wr.rkey)

    def post_recv(self, wr: RecvWR | list[RecvWR], bad_wr: object = None) -> None:
        """Post receive work requests, a chain by ``next`` or a list.

        Args:
            wr: the first request of a chain, or a list.
            bad_wr: for pyverbs compatibility; the error has it.

        Raises:
            VerbsError: as :meth:`post_send`; EINVAL for a queue pair with a shared receive queue or in RESET.
        """
        rq = self._rq
        if rq is None:
            if self.qp_type == e.IBV_QPT_XRC_SEND:
                raise VerbsError(EINVAL, f"queue pair {self.qp_num:#x} is an XRC queue pair that sends alone")
            raise VerbsError(EINVAL, reasons.USES_SRQ(qpn=self.qp_num))
        done, whole = rq.queue.post(wr)
        if whole:
            return
        if self.qp_state == e.IBV_QPS_RESET:
            self._refuse_post(reasons.IN_RESET(qpn=self.qp_num))
        rq.post(wr, self._ring_receive, done)
        if self.qp_state == e.IBV_QPS_ERR:
            self._kick()

    def _ring_receive(self, tail: int) -> None:
        self._store(self._block, RQ_TAIL, tail)

    @property
    def idle(self) -> bool:
        """True if the device has completed everything that was posted to the send queue."""
        return bool(self.ctx.driver.load(self._block, SQ_HEAD) == self._queue.tail)

    def take_send(self, index: int) -> int:
        """Free a completed send entry and all before it.

        Args:
            index: place of the entry in the ring.

        Returns:
            The identifier of the work request, 64 bits.
        """
        queue = self._queue
        queue.head = next_index(index, self._entries)
        wr_id: int = queue.ids[index]
        return wr_id

    def take_receive(self, index: int) -> int:
        """Free a completed receive entry.

        Args:
            index: place of the entry in the ring.

        Returns:
            The identifier of the work request, 64 bits.
        """
        receives = self._receives
        return 0 if receives is None else receives.take(index)

    @property
    def why(self) -> str:
        """Reason of the last failure on this queue pair: a request that it sent or refused, or a missed message.

        Empty if nothing failed, else in the words of ``rnic exec --explain``.
        """
        return "" if self.closed else self.ctx.driver.why(self.qp_num)

    # ----------------------------------------------------------------------------------- multicast

    def attach_mcast(self, gid: GID | str, lid: int = 0) -> None:
        """Receive packets to a multicast group (UD).

        Args:
            gid: the group's address.
            lid: for pyverbs compatibility: RoCE has none.
        """
        if self.qp_type != e.IBV_QPT_UD:
            raise VerbsError(EINVAL, reasons.BAD_VALUE(what="a queue pair that is not UD"))
        change_membership(self.ctx, GID(gid), self.qp_num, True)
        self._groups |= {GID(gid)}

    def detach_mcast(self, gid: GID | str, lid: int = 0) -> None:
        """Stop receiving packets to a multicast group.

        Args:
            gid: the group's address.
            lid: for pyverbs compatibility: RoCE has none.
        """
        change_membership(self.ctx, GID(gid), self.qp_num, False)
        self._groups -= {GID(gid)}

    # ------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Leave all multicast groups and destroy the queue pair; a second call does nothing."""
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
            for cq in self._completes_at():
                cq.detach(self.qp_num)
            ctx.driver.unmap(self._mapping)
            if self._rq is not None:
                ctx.driver.unmap(self._rq.mapping)
            ctx.drop_events(self)
            self._parent.drop_child(self)

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
