"""Programs of a world and the ends of their connections: verbs objects and expected completions."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, NoReturn

from rnic.mem.space import SimAddressSpace
from rnic.rings.queue_block import RQ_TAIL, SQ_DOORBELL, SQ_FLAGS, SQ_TAIL
from rnic.testing.live_model import FindingError
from rnic.testing.net import Node
from rnic.testing.pair import ALL_RIGHTS, QKEY, SERVICES
from rnic.testing.world.plan import INLINE, OPERANDS, QUEUES, SLOT, SLOTS, Step
from rnic.testing.world.shadow import OPCODES, WORD, Direction, Slots, Work
from rnic.verbs import enums as e
from rnic.verbs.attrs import (
    GID,
    SGE,
    WC,
    AHAttr,
    BindInfo,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
)
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.memory import AH, MR, MW, PD, next_key
from rnic.verbs.qp import QP
from rnic.verbs.srq import SRQ
from rnic.verbs.xrc import XRCD

if TYPE_CHECKING:
    from collections.abc import Callable

DEPTH = 64
_REGISTERS = (SQ_TAIL, SQ_DOORBELL, SQ_FLAGS, RQ_TAIL)
"""Registers of a queue pair that software writes."""
_CQ_DEPTH = 4_096
_RECEIVE = 1 << 62
"""Bit of a receive's number, so that a send request with a garbled number is not taken for one."""
_RIGHTS = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC


class Receives:
    """A receive queue and the memory of its entries.

    Args:
        pd: protection domain of the memory.
        queue: a queue pair, or an SRQ, which several queue pairs share.
    """

    def __init__(self, pd: PD, queue: QP | SRQ) -> None:
        self.pd = pd
        self.queue = queue
        self.shared = isinstance(queue, SRQ)
        self.slots = Slots()
        self.mr = MR(pd, self.slots.memory, e.IBV_ACCESS_LOCAL_WRITE)
        self.failed = False

    def post(self, count: int, number: Callable[[], int]) -> int:
        """Post up to ``count`` receives, limited by free entries; return how many."""
        slots = self.slots
        count = 0 if self.failed else max(0, min(count, len(slots.free)))
        for _ in range(count):
            place, wr_id = slots.free.popleft(), number() | _RECEIVE
            slots.posted[wr_id] = place
            piece = SGE(self.mr.buf + place * SLOT, SLOT, self.mr.lkey)
            self.queue.post_recv(RecvWR(wr_id, 1, [piece]))
        return count


class XrcQueues:
    """XRC SRQs of a program in one domain, each with its own protection domain, and one in another XRC domain.

    Args:
        ctx: the program's context; it makes the domain, and receives.
        cq: for all receives.
    """

    def __init__(self, ctx: Context, cq: CQ) -> None:
        self.xrcd, elsewhere = XRCD(ctx), XRCD(ctx)
        self.queues = [Receives(pd, self._srq(pd, self.xrcd, cq)) for pd in (PD(ctx) for _ in range(QUEUES))]
        self.stray = self._srq(self.queues[0].pd, elsewhere, cq)

    @staticmethod
    def _srq(pd: PD, xrcd: XRCD, cq: CQ) -> SRQ:
        return SRQ(pd, SrqInitAttr(SrqAttr(SLOTS, 1), None, e.IBV_SRQT_XRC, xrcd, cq))


class Program:
    """A process on a NIC: a context, a CQ for all its queue pairs, an SRQ, and XRC SRQs where a plan needs them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.ctx = Context(runtime=node.ctx.runtime, space=SimAddressSpace())
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, _CQ_DEPTH)
        self.ends: dict[int, End] = {}
        """Ends by queue pair number."""
        self.alive = True
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(SLOTS, 1)))
        self.shared = Receives(self.pd, self.srq)
        self._xrc: XrcQueues | None = None

    @property
    def xrc(self) -> XrcQueues:
        """Its XRC SRQs, which the first use makes."""
        if self._xrc is None:
            self._xrc = XrcQueues(self.ctx, self.cq)
        return self._xrc

    @property
    def all_shared(self) -> list[Receives]:
        """All its shared receive queues."""
        return [self.shared, *(self._xrc.queues if self._xrc is not None else ())]

    @property
    def spoiled(self) -> bool:
        """True if one of its SRQs has failed: another program replaces it at the next settle."""
        return any(receives.failed for receives in self.all_shared)

    def stop_receivers(self) -> None:
        """Stop XRC queue pairs that receive: the CQ's failure fails none, since the CQ is that of their SRQs."""
        for end in self.ends.values():
            if end.xrc:
                end.receiver.modify(QPAttr(e.IBV_QPS_ERR), e.IBV_QP_STATE)

    def close(self) -> None:
        """End the program, with all its objects."""
        self.alive = False
        self.ctx.close()


class End:
    """A queue pair and its posted work requests; with XRC a pair of them, one of which sends and the other receives.

    Args:
        connection: number and service, for messages.
        program: its program.
        step: the plan's connect step.
        out, into: the direction of its requests, and that of its peer's.
        reasons: completion statuses explained by events of this world; both ends share the set.
    """

    peer: End

    def __init__(
        self, connection: str, program: Program, step: Step, out: Direction, into: Direction, reasons: set[int]
    ) -> None:
        self.name = f"connection {connection}, NIC {program.node.index}"
        self.program = program
        self.step = step
        self.service: str = step["service"]
        self.out, self.into = out, into
        self.reasons = reasons
        self.failed = False
        """True if this end or its peer is in error."""
        self._flushing = False
        """True if a request has completed in error, so that all requests after it are flushed."""
        self.pending: deque[Work] = deque()
        """Posted requests not known to be complete."""
        self.window_key = 0
        """Key of the window on ``into.target``, while it is bound and the peer may use it."""
        self.bound = False
        """True while the window is bound: until a SEND with invalidate arrives."""
        self.wild = False
        """True if its program has written garbage into its queues since the last settle."""
        self.binding = (0, 0)
        """Number of the pending bind, and its requested key."""
        self.pd = PD(program.ctx)
        self.xrc = self.service == "XRC"
        self.qp = self._make_qp(program.srq if step["srq"] and self.service == "RC" else None)
        self.receiver = QP(program.xrc.xrcd, QPInitAttr(e.IBV_QPT_XRC_RECV)) if self.xrc else self.qp
        """The queue pair that the peer's requests reach; :attr:`qp` except for XRC."""
        self.queues = self._make_queues()
        self.source = MR(self.pd, out.source, e.IBV_ACCESS_LOCAL_WRITE)
        self.result = MR(self.pd, out.result, e.IBV_ACCESS_LOCAL_WRITE)
        self.targets = self._make_targets()
        """The memory that the peer may access, in the protection domain of each of its queues."""
        self.window = self._make_window() if self.service == "RC" else None
        self.ah: AH | None = None
        for qp in self.qps:
            program.ends[qp.qp_num] = self

    @property
    def alive(self) -> bool:
        """True while its program runs."""
        return self.program.alive

    @property
    def qps(self) -> list[QP]:
        """Its queue pairs: with XRC the one that sends, and the one that receives."""
        return [self.qp, self.receiver] if self.xrc else [self.qp]

    @property
    def target(self) -> MR:
        """The memory that the peer may access."""
        return self.targets[0]

    def _make_qp(self, srq: SRQ | None) -> QP:
        cq, kind = self.program.cq, e.IBV_QPT_XRC_SEND if self.xrc else SERVICES[self.service]
        cap = QPCap(DEPTH, 0 if self.xrc else SLOTS, 2, 0 if self.xrc else 1, INLINE)
        return QP(self.pd, QPInitAttr(kind, None, cap, cq, cq, srq))

    def _make_queues(self) -> list[Receives]:
        if self.xrc:
            return self.program.xrc.queues
        return [Receives(self.pd, self.qp) if self.qp.srq is None else self.program.shared]

    def _make_targets(self) -> list[MR]:
        pds = [receives.pd for receives in self.queues] if self.xrc else [self.pd]
        return [MR(pd, self.into.target, ALL_RIGHTS) for pd in pds]

    def _make_window(self) -> MW:
        return MW(self.pd, e.IBV_MW_TYPE_1 if self.step.get("window") == 1 else e.IBV_MW_TYPE_2)

    def find(self, text: str) -> NoReturn:
        """Raise :class:`FindingError` with the name of this end."""
        raise FindingError(f"{self.name}: {text}")

    def to_rts(self, psns: tuple[int, int]) -> None:
        """Connect it to its peer; ``psns`` are the first PSNs that it sends and expects."""
        self._connect(self.qp, self.peer.receiver, psns)
        if self.xrc:
            self._connect(self.receiver, self.peer.qp, psns)

    def _connect(self, qp: QP, other: QP, psns: tuple[int, int]) -> None:
        step, peer = self.step, self.peer
        attr = QPAttr()
        attr.sq_psn, attr.rq_psn = psns
        attr.path_mtu, attr.timeout = step["mtu"], step["timeout"]
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 8
        attr.min_rnr_timer, attr.retry_cnt, attr.rnr_retry = 1, 7, 7
        attr.qkey, attr.dest_qp_num, attr.gso = QKEY, other.qp_num, True
        attr.selective_repeat = step["selective"]
        attr.qp_access_flags = _RIGHTS | e.IBV_ACCESS_FLUSH_GLOBAL
        there = peer.program.ctx
        gid = GID(there.nic.config.address)
        attr.ah_attr = AHAttr(GlobalRoute(gid, self.program.ctx.gid_index, traffic_class=2), udp_dport=there.udp_port)
        qp.to_rts(attr)
        if self.service == "UD":
            self.ah = AH(self.pd, attr.ah_attr)

    def reset(self) -> None:
        """Forget posted requests, for a new connection of the same queue pair."""
        for qp in self.qps:
            qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        self.pending.clear()
        self.failed = self._flushing = False
        self.binding = (0, 0)
        for receives in self.queues:
            if not receives.shared:
                receives.slots.forget()
        if self.window is not None:
            self.window.close()
            self.window = self._make_window()
        self.window_key, self.bound = 0, False

    def close(self) -> None:
        """Destroy it and its memory's keys; the program continues."""
        for qp in self.qps:
            del self.program.ends[qp.qp_num]
        if self.xrc:
            self.receiver.close()
            for target in self.targets:
                target.close()
        self.pd.close()

    # ----------------------------------------------------------------------------------------- posting

    def post(self, work: Work, step: Step) -> None:
        """Post a request of a plan."""
        wr = self._request(work, step)
        if self.xrc:
            wr.set_qp_type_xrc(self._srqn(work, step.get("key")))
        self.qp.post_send(wr)
        self.pending.append(work)
        self.out.post(work)

    def _srqn(self, work: Work, key: str | None) -> int:
        """Return the number of the SRQ that an XRC request names."""
        program = self.peer.program
        if key == "queue":
            return (program.srq.srqn, 0, 0xFFFFFF)[work.imm % 3]
        srq = program.xrc.stray if key == "domain" else program.xrc.queues[work.queue].queue
        return srq.srqn if isinstance(srq, SRQ) else 0

    def _remote(self, work: Work, key: str | None) -> tuple[int, int]:
        """Return key and address of the peer's memory for a request; ``key`` is what the step says of it."""
        targets = self.peer.targets
        target = targets[work.queue - 1 if key == "pd" else work.queue]
        return int(target.rkey), targets[work.queue].buf + work.to

    def _request(self, work: Work, step: Step) -> SendWR:
        peer = self.peer
        flags = e.IBV_SEND_SIGNALED if work.signaled else 0
        if work.fence:
            flags |= e.IBV_SEND_FENCE
        if work.verb in OPERANDS:
            return self._operand_request(work, flags, step.get("key"))
        region = self.result if work.verb in ("READ", "CMP_SWAP", "FETCH_ADD") else self.source
        parts = [work.length]
        if step["how"] == "list" and work.length > 1:
            parts = [work.length // 3, work.length - work.length // 3]
        elif step["how"] == "inline" and region is self.source and work.length <= INLINE:
            flags |= e.IBV_SEND_INLINE
        pieces, at = [], region.buf + work.at
        for part in parts:
            pieces.append(SGE(at, part, region.lkey))
            at += part
        wr = SendWR(work.number, OPCODES[work.verb][0], imm_data=work.imm, send_flags=flags, sg=pieces)
        key, there = self._remote(work, step.get("key"))
        if step.get("key") == "window" and peer.window_key:
            key = peer.window_key
        elif step.get("key") == "wrong":
            key ^= 0x40
        if work.verb == "SEND_INV":
            wr.invalidate_rkey = work.imm
        if work.verb in ("CMP_SWAP", "FETCH_ADD"):
            wr.set_wr_atomic(key, there, work.operand, work.swap)
        elif work.verb != "SEND_INV":
            wr.set_wr_rdma(key, there)
        if self.ah is not None:
            wr.set_wr_ud(self.ah, peer.qp.qp_num, QKEY)
        return wr

    def _operand_request(self, work: Work, flags: int, key_of: str | None) -> SendWR:
        """Return a FLUSH of eight bytes, or an ATOMIC WRITE."""
        wr = SendWR(work.number, OPCODES[work.verb][0], send_flags=flags)
        key, there = self._remote(work, key_of)
        if work.verb == "FLUSH":
            wr.set_wr_flush(key, there, work.length)
        else:
            wr.set_wr_atomic_write(key, there, work.operand.to_bytes(WORD, "little"))
        return wr

    def bind(self, number: int) -> None:
        """Bind the window to all memory that the peer may access, unless it is bound."""
        window, target = self.window, self.target
        again = self.invalidates or self.peer.pending  # a key in use must stay
        if window is None or (self.bound and again) or self.binding[0] or self.failed:
            return
        info = BindInfo(target, target.buf, target.length, _RIGHTS)
        self.window_key = 0
        if self.invalidates:
            wr = SendWR(number, e.IBV_WR_BIND_MW)
            wr.set_bind_wr(window, next_key(window.rkey), info)
            self.qp.post_send(wr)
        else:
            window.bind(self.qp, info, number)
        self.binding = number, int(window.rkey)
        self.pending.append(Work(number, "BIND"))

    @property
    def invalidates(self) -> bool:
        """Return whether a peer's SEND may invalidate the window: it is of type 2."""
        return self.window is not None and self.window.mw_type == e.IBV_MW_TYPE_2

    def garbage(self, what: str, seed: int) -> bool:
        """Write random bytes into this end's queues; return false if others would be affected.

        Args:
            what: ``"sends"`` or ``"receives"`` for a ring, ``"registers"`` for its queue block.
            seed: seed of the random bytes.
        """
        rng, qp, receives = random.Random(seed), self.qp, self.qp._rq
        if (what == "receives" and receives is None) or (what == "sends" and self.service == "UD"):
            return False  # other queue pairs share the ring, and a datagram may reach any queue pair
        registers = _REGISTERS if what == "registers" else (SQ_TAIL if what == "sends" else RQ_TAIL,)
        if what != "registers":
            ring = qp._ring if what == "sends" or receives is None else receives.mapping.view
            for _ in range(rng.choice((1, 4, 64))):
                piece = rng.randbytes(min(rng.choice((1, 4, 64)), len(ring)))
                at = rng.randrange(len(ring) - len(piece) + 1)
                ring[at : at + len(piece)] = piece
        for _ in range(rng.randint(1, 4)):
            value = rng.getrandbits(32) if what == "registers" and rng.random() < 0.5 else rng.randrange(SLOTS)
            self.program.ctx.driver.store(qp._block, rng.choice(registers), value)
        return True

    def rekey(self) -> bool:
        """Deregister the memory that the peer may access, and register it again; return false if a window is bound."""
        if self.bound or self.binding[0]:
            return False
        for target in self.targets:
            target.close()
        self.targets = self._make_targets()
        return True

    # ------------------------------------------------------------------------------------- completions

    def completed(self, wc: WC) -> None:
        """Judge a completion of this queue pair."""
        if self.wild:
            for receives in self.queues:
                if receives.shared and (place := receives.slots.take_back(wc.wr_id)) is not None:
                    receives.slots.accept(place)  # others share it, and count on it
            return
        queue = next((at for at, receives in enumerate(self.queues) if wc.wr_id in receives.slots.posted), None)
        if queue is not None:
            self._received(wc, queue)
        else:
            self._sent(wc)

    def _received(self, wc: WC, queue: int) -> None:
        receives = self.queues[queue]
        slots = receives.slots
        first = next(iter(slots.posted))
        if not receives.shared and wc.wr_id != first:
            self.find(f"{wc!r} completes a receive before {first}, which was posted earlier")
        if self.xrc and wc.qp_num != self.receiver.qp_num:
            self.find(f"{wc!r} is not of the queue pair that receives, {self.receiver.qp_num}")
        place = slots.take_back(wc.wr_id)
        assert place is not None
        if wc.status == e.IBV_WC_SUCCESS:
            self.into.received(wc, slots, place, queue)
            if wc.wc_flags & e.IBV_WC_WITH_INV:
                self.bound = False
        elif not self.reasons:
            self.find(f"nothing explains {wc!r}")
        else:
            self.fail()
            slots.accept(place)

    def _sent(self, wc: WC) -> None:
        while self.pending:
            work = self.pending.popleft()
            if work.number == wc.wr_id:
                break
            if self._flushing or work.signaled:
                self.find(f"{wc!r} arrived before the completion of {work!r}, which was posted earlier")
            work.done = True
        else:
            self.find(f"{wc!r} belongs to no pending request")
        if wc.status != e.IBV_WC_SUCCESS:
            explained = self.reasons | ({work.expect} if work.expect else set())
            if not self._flushing and wc.status not in explained and not self.into.wild:
                self.find(f"nothing explains {wc!r} of {work!r}")
            if self._flushing and wc.status != e.IBV_WC_WR_FLUSH_ERR:
                self.find(f"{wc!r} follows an error")
            self.fail()
            self._flushing = True
            return
        if self._flushing or work.expect or not work.signaled or wc.opcode != OPCODES[work.verb][1]:
            self.find(f"{wc!r} is a success, but {work!r} must fail")
        work.done = True
        if work.number == self.binding[0]:
            self.window_key, self.binding, self.bound = self.binding[1], (0, 0), True

    def fail(self) -> None:
        """Mark the connection failed: both ends may be in error."""
        self.failed = True
        self.reasons |= FAILED

    def settled(self) -> None:
        """Check after a settle that every required completion has arrived."""
        states = [qp.query()[0].qp_state for qp in self.qps]
        if self.wild:
            self.pending.clear()
            self.failed, self.wild = True, False
            return
        left = next((work for work in self.pending if work.signaled or self._flushing), None)
        if left is not None:
            self.find(f"no completion of {left!r} has arrived")
        for work in self.pending:
            work.done = True
        self.pending.clear()
        for state in states:
            if state != e.IBV_QPS_RTS and not self.reasons:
                self.find(f"the queue pair is in state {state}, and nothing explains it")
            self.failed |= state != e.IBV_QPS_RTS


FAILED = {e.IBV_WC_WR_FLUSH_ERR, e.IBV_WC_RETRY_EXC_ERR, e.IBV_WC_REM_OP_ERR}
"""Completion statuses that both ends of a connection may get once one of them is in error."""
__all__ = ["DEPTH", "FAILED", "End", "Program", "Receives"]
