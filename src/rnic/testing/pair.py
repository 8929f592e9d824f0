"""Two connected queue pairs on two NICs in virtual time, with everything that a test of an operation needs."""

from __future__ import annotations

from errno import EINVAL
from typing import Any, Self

from rnic.spec.errors import VerbsError, WorkCompletionError
from rnic.spec.limits import GRH_BYTES, MTU_CODES
from rnic.testing.diagnosis import MOST_RNR_NAKS, diagnose, rnr_naks
from rnic.testing.faults import FaultMethods
from rnic.testing.net import DEFAULT_LIMIT_NS, Node, SimNet
from rnic.testing.packets import PacketFactory
from rnic.verbs import enums as e
from rnic.verbs.attrs import (
    GID,
    SGE,
    WC,
    AHAttr,
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
from rnic.verbs.memory import AH, MR, PD
from rnic.verbs.on_command import fail_verbs
from rnic.verbs.qp import QP
from rnic.verbs.srq import SRQ
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow

SERVICES = {"RC": e.IBV_QPT_RC, "UC": e.IBV_QPT_UC, "UD": e.IBV_QPT_UD}
QKEY = 0x1111_1111
ALL_RIGHTS = (
    e.IBV_ACCESS_LOCAL_WRITE
    | e.IBV_ACCESS_REMOTE_WRITE
    | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_FLUSH_GLOBAL
    | e.IBV_ACCESS_REMOTE_ATOMIC
    | e.IBV_ACCESS_MW_BIND
)
ATTRIBUTES: dict[str, Any] = {
    "path_mtu": e.IBV_MTU_1024,
    "rq_psn": 0,
    "sq_psn": 0,
    "max_rd_atomic": 16,
    "max_dest_rd_atomic": 16,
    "min_rnr_timer": 1,
    "timeout": 14,
    "retry_cnt": 7,
    "rnr_retry": 7,
}
"""Default attributes of a pair: fields of :class:`~rnic.verbs.attrs.QPAttr`."""


class VerbsSide(FaultMethods):
    """One end of a connection on any device: a domain, a queue pair, a CQ for both directions, a region of memory.

    ``buf`` is the region's memory. Verbs objects are plain attributes, for whatever the helpers do not do. Fault events
    for its NIC are methods (:class:`~rnic.testing.faults.FaultMethods`), which apply to its own queues by default.
    """

    peer: VerbsSide

    def __init__(
        self, ctx: Context, service: str, size: int, depth: int, cap: QPCap, use_srq: bool, access: int
    ) -> None:
        self.ctx = ctx
        self.service = service
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 4 * depth)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(depth, cap.max_recv_sge))) if use_srq else None
        self.buf = bytearray(size)
        self.mr = MR(self.pd, self.buf, access)
        self.qp = QP(self.pd, QPInitAttr(SERVICES[service], None, cap, self.cq, self.cq, self.srq))
        self.ah: AH | None = None
        self.peer = self
        self.wcs: list[WC] = []
        """Completions taken from the CQ that no call has returned yet."""
        self._qpn, self._cqn, self._key = self.qp.qp_num, self.cq.cqn, self.mr.rkey
        if self.srq is not None:
            self._srqn = self.srq.srqn

    def sge(self, length: int, offset: int = 0) -> SGE:
        """Return part of the region."""
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def send_wr(
        self,
        opcode: int,
        length: int,
        offset: int = 0,
        *,
        remote: int = 0,
        wr_id: int = 0,
        flags: int = e.IBV_SEND_SIGNALED,
        imm: int = 0,
        compare_add: int = 0,
        swap: int = 0,
    ) -> SendWR:
        """Return a work request on the region, toward offset ``remote`` of the peer's."""
        wr = SendWR(wr_id, opcode, imm_data=imm, send_flags=flags, sg=[self.sge(length, offset)])
        there = self.peer.mr
        if opcode in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
            wr.set_wr_atomic(there.rkey, there.buf + remote, compare_add, swap)
        else:
            wr.set_wr_rdma(there.rkey, there.buf + remote)
        if self.ah is not None:
            wr.set_wr_ud(self.ah, self.peer.qp.qp_num, QKEY)
        return wr

    def post_send(self, opcode: int, length: int, offset: int = 0, **more: Any) -> None:
        """Post :meth:`send_wr`."""
        self.qp.post_send(self.send_wr(opcode, length, offset, **more))

    def post_recv(self, length: int, offset: int = 0, wr_id: int = 0) -> None:
        """Post a receive on the region, to the SRQ if there is one."""
        wr = RecvWR(wr_id, 1, [self.sge(length, offset)])
        (self.qp if self.srq is None else self.srq).post_recv(wr)

    def poll(self) -> list[WC]:
        """Return all available completions."""
        found, self.wcs = self.wcs, []
        while (got := self.cq.poll(64))[0]:
            found += got[1]
        return found

    def to_rts(self, gid: GID, mtu_code: int, attributes: dict[str, Any]) -> None:
        """Bring the queue pair to RTS toward the peer's, with :data:`ATTRIBUTES` and the given ones.

        Args:
            gid: the peer's.
            mtu_code: the device's path MTU, one of ``IBV_MTU_*``.
            attributes: fields of :class:`~rnic.verbs.attrs.QPAttr`.
        """
        attr = QPAttr()
        for name, value in (ATTRIBUTES | attributes).items():
            setattr(attr, name, value)
        attr.path_mtu = min(attr.path_mtu, mtu_code)
        attr.qkey = QKEY
        attr.qp_access_flags = ALL_RIGHTS & ~e.IBV_ACCESS_MW_BIND
        attr.dest_qp_num = self.peer.qp.qp_num
        attr.gso = True
        attr.ah_attr = AHAttr(GlobalRoute(gid, self.ctx.gid_index), udp_dport=self.peer.ctx.udp_port)
        self.qp.to_rts(attr)
        if self.service == "UD":
            self.ah = AH(self.pd, attr.ah_attr)


class Side(VerbsSide):
    """One end of a :class:`QpPair`."""

    peer: Side

    def __init__(self, node: Node, service: str, size: int, depth: int, cap: QPCap, use_srq: bool, access: int) -> None:
        super().__init__(node.ctx, service, size, depth, cap, use_srq, access)
        self.node = node
        self.net: SimNet | None = None

    def fault(self, name: str, *values: object) -> None:
        """See :meth:`rnic.testing.faults.FaultMethods.fault`."""
        self.ctx.runtime.faults().do(name, *values)

    def fail_verb(self, verb: str, action: str = "fail", **rule: Any) -> None:
        """Make a verb of this side's program fail by one rule (:mod:`rnic.link.verbs_faults`).

        Args:
            verb: a function's name without ``ibv_``.
            action: ``"fail"``, ``"status"``, ``"late"``, ``"limit"``, or an event.
            rule: the rule's other keys, such as ``nth=2, errno="EAGAIN"``; it counts from now on.

        Raises:
            ValueError: a bad rule, in one line.
        """
        fail_verbs(self.ctx, [{"verb": verb, "action": action, **rule}])

    @property
    def counters(self) -> dict[str, int]:
        """Counters of this side's NIC and link."""
        return self.node.counters

    def poll(self) -> list[WC]:
        """Return all available completions; time does not advance."""
        if self.net is None:
            return super().poll()
        self.net.driving = True
        try:
            return super().poll()
        finally:
            self.net.driving = False

    def wait(self, count: int = 1, limit_ns: int = DEFAULT_LIMIT_NS) -> list[WC]:
        """Return the next ``count`` completions.

        Raises:
            TimeoutError: they do not arrive within ``limit_ns`` of virtual time, or never can, or the peer keeps
                sending RNR NAKs. The text includes the result of :func:`~rnic.testing.diagnosis.diagnose`.
        """
        assert self.net is not None
        refused, heard = self._refused(), self.counters.get("rx_packets", 0)

        def enough() -> bool:
            got = len(self.wcs)
            self.wcs = self.poll()
            if len(self.wcs) < count and self._refused() - refused > MOST_RNR_NAKS:
                raise TimeoutError(f"{got} of {count} completions came")
            return len(self.wcs) >= count

        try:
            if not self.net.run(enough, limit_ns):
                there = f": {self.wcs}" if self.wcs else ""
                raise TimeoutError(f"{len(self.wcs)} of {count} completions came, and nothing more will{there}")
        except TimeoutError as error:
            found = diagnose(self)
            if not found and self.counters.get("rx_packets", 0) == heard:
                found = ["no packet came to this side: nobody posted what it waits for"]
            raise TimeoutError("; ".join([str(error), *found])) from None
        taken, self.wcs = self.wcs[:count], self.wcs[count:]
        return taken

    def _refused(self) -> int:
        """Return the number of RNR NAKs of both ends."""
        return sum(rnr_naks(end) for end in (self, self.peer))

    def expect(self, status: int = e.IBV_WC_SUCCESS, count: int = 1, limit_ns: int = DEFAULT_LIMIT_NS) -> list[WC]:
        """Return the next ``count`` completions, all of them with ``status``.

        Args:
            status: an ``IBV_WC_*`` number.
            count: number of completions.
            limit_ns: limit in virtual time.

        Raises:
            WorkCompletionError: one has another status; the text includes the result of
                :func:`~rnic.testing.diagnosis.diagnose`.
            TimeoutError: as :meth:`wait`.
        """
        found = self.wait(count, limit_ns)
        for wc in found:
            if wc.status != status:
                wanted = [] if status == e.IBV_WC_SUCCESS else [f"expected status {status}"]
                raise WorkCompletionError(wc.status, "; ".join([repr(wc), *wanted, *diagnose(self, found)]))
        return found


class QpPair:
    """Sides ``a`` and ``b``, connected.

    Args:
        service: ``"RC"``, ``"UC"`` or ``"UD"``.
        net: a net whose first two nodes are used; by default a new one, made with ``seed``, ``faults`` and so on.
        size: bytes of each side's region.
        depth: work requests of each queue.
        srq: receive through shared receive queues.
        access: rights of the regions.
        attributes: fields of :class:`~rnic.verbs.attrs.QPAttr` besides :data:`ATTRIBUTES`.
        connect: bring the queue pairs to RTS; else they stay in RESET until :meth:`connect`.
        net_options: options of :class:`~rnic.testing.net.SimNet`.
    """

    def __init__(
        self,
        service: str = "RC",
        *,
        net: SimNet | None = None,
        size: int = 1 << 20,
        depth: int = 64,
        cap: QPCap | None = None,
        srq: bool = False,
        access: int = ALL_RIGHTS,
        attributes: dict[str, Any] | None = None,
        connect: bool = True,
        **net_options: Any,
    ) -> None:
        if service not in SERVICES:
            raise VerbsError(EINVAL, f"service={service!r}; use one of {', '.join(SERVICES)}")
        self.net = net or SimNet(2, **net_options)
        self.service = service
        cap = cap or QPCap(depth, depth, 4, 4, 256)
        self.a, self.b = (Side(node, service, size, depth, cap, srq, access) for node in self.net.nodes[:2])
        for side, peer in ((self.a, self.b), (self.b, self.a)):
            side.net = self.net
            side.peer = peer
        if connect:
            self.connect(**(attributes or {}))

    @property
    def clock(self) -> Any:
        """The virtual clock."""
        return self.net.clock

    def connect(self, **attributes: Any) -> None:
        """Bring both queue pairs to RTS with :data:`ATTRIBUTES` and the given ones."""
        for side in (self.a, self.b):
            gid = GID(side.peer.node.nic.config.address)
            side.to_rts(gid, MTU_CODES[side.node.nic.config.mtu], attributes)

    def run(self, limit_ns: int = DEFAULT_LIMIT_NS) -> None:
        """Run until everything is idle."""
        self.net.run(None, limit_ns)

    @property
    def recv_offset(self) -> int:
        """Offset of a received payload in its buffer: the GRH space of a UD receive, else 0."""
        return GRH_BYTES if self.service == "UD" else 0

    def factory(self, side: Side) -> PacketFactory:
        """Return a factory of packets that look as if sent by ``side``'s peer."""
        here, there = side.node.nic.config, side.peer.node.nic.config
        return PacketFactory(Flow(there.address, here.address, there.port, here.port), dqpn=side.qp.qp_num)

    def inject(self, side: Side, packet: bytes) -> None:
        """Pass one packet of :meth:`factory` to ``side``'s NIC, bypassing all faults, then let both NICs work."""
        here, there = side.node.nic.config, side.peer.node.nic.config
        flow = Flow(there.address, here.address, there.port, here.port)
        side.node.nic.receive(RxBurst(flow, memoryview(packet), len(packet), len(packet), 0), self.net.clock.now_ns)
        self.net.turn()

    def close(self) -> None:
        """Close the net and everything in it."""
        self.net.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
