"""pyverbs' ``CMID``, with its arguments and behavior: a connection through the CM, and its queue pair.

A program written for ``pyverbs.cmid`` imports from here, from :mod:`rnic.cm.cm_enums` and from :mod:`rnic`.
Both modes are supported: synchronous, with an :class:`AddrInfo`, and asynchronous, with the events of a
:class:`CMEventChannel`. ``RDMA_PS_TCP`` makes reliable connections. ``RDMA_PS_UDP``, asynchronous only as in pyverbs,
finds a peer's datagram queue pair and joins multicast groups.
"""

from __future__ import annotations

import contextlib
from errno import EINVAL, ENOTCONN
from types import TracebackType

from rnic.cm import cm_enums as ce
from rnic.cm.cm_connection import CmConnectError, connect_error
from rnic.cm.cm_listener import own_device
from rnic.cm.cmid_datagrams import JoinMCAttrEx, UDParam, group_of
from rnic.cm.cmid_events import AddrInfo, CMEvent, CMEventChannel, ConnParam, Place, checked_port_space
from rnic.cm.manager import Event, Manager, manager_of
from rnic.cm.rc_connection import REMOTE_RIGHTS
from rnic.cm.work_queue import MAX_WAIT_S
from rnic.runtime.wait import wait_readable
from rnic.spec import attach_cm as wire
from rnic.spec.cm import UDP_QKEY
from rnic.spec.errors import VerbsError
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, SGE, WC, QPAttr, QPInitAttr, RecvWR, SendWR
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.event_queues import CompChannel
from rnic.verbs.memory import AH, MR, PD
from rnic.verbs.qp import QP
from rnic.verbs.qp_states import INIT_MASK, RTR_MASK, RTS_MASK


class CMID:
    """An ``rdma_cm_id``.

    Args:
        creator: an :class:`AddrInfo` for synchronous calls; a :class:`CMEventChannel` for calls that report by events;
            or, with ``listen_id``, a :class:`CMEvent` that is a connection request.
        qp_init_attr: with an :class:`AddrInfo`, make the queue pair; a listener makes one for each request.
        pd: protection domain; by default a new one.
        port_space: ``RDMA_PS_TCP`` or ``RDMA_PS_UDP``; an :class:`AddrInfo` and a request have their own.
        listen_id: the listener, for a request.

    Raises:
        VerbsError: EINVAL for a creator of another type, EPROTONOSUPPORT for another port space.
        CmConnectError: the peer's address cannot be reached.
    """

    def __init__(
        self,
        creator: AddrInfo | CMEventChannel | CMEvent,
        qp_init_attr: QPInitAttr | None = None,
        pd: PD | None = None,
        port_space: int = ce.RDMA_PS_TCP,
        listen_id: CMID | None = None,
    ) -> None:
        self.port_space = checked_port_space(port_space)
        self.qp: QP | None = None
        self.closed = False
        self.context: Context | None = None
        self._device: _Device | None = None
        self._manager: Manager | None = None
        self._number = 0
        self._init_attr = qp_init_attr
        self._pd = pd
        self._own_pd = False
        self._offered: dict[str, int] = {}
        self._made: list[CQ | CompChannel] = []
        self._joining: dict[int, tuple[GID, bool]] = {}
        self._joins = 0
        self._sync = isinstance(creator, AddrInfo)
        if isinstance(creator, CMEvent):
            self.event_channel = creator.channel
            self._take_request(creator.manager, creator.event, listen_id)
        elif isinstance(creator, CMEventChannel):
            self.event_channel = creator
        elif isinstance(creator, AddrInfo):
            self.port_space = creator.port_space
            if self.datagrams:
                raise VerbsError(EINVAL, "a CMID of RDMA_PS_UDP works by events: make it of a CMEventChannel")
            self.event_channel = CMEventChannel()
            try:
                self._begin(creator)
            except BaseException:
                self.close()
                raise
        else:
            raise VerbsError(EINVAL, f"a CMID is made of an AddrInfo, a CMEventChannel or a CMEvent: {creator!r:.40}")

    def _begin(self, info: AddrInfo) -> None:
        """Do what ``rdma_create_ep`` does."""
        if info.passive:
            self.bind_addr(info)
            return
        self.resolve_addr(info)
        self.resolve_route()
        if self._init_attr is not None:
            self.create_qp(self._init_attr)

    # ----------------------------------------------------------------------------------- addresses

    def bind_addr(self, lai: AddrInfo) -> None:
        """Bind to a local address and port: ``lai.src``.

        Args:
            lai: its ``src`` is the local IP address and port; port 0 takes a free one.

        Raises:
            VerbsError: EINVAL without ``src``, else with the connection manager's errno.
        """
        place = self._wants(lai.src, "bind_addr", "src")
        self._open(lai, place)
        self._request(wire.CM_BIND, src=int.from_bytes(place.gid, "little"), src_port=place.port)

    def resolve_addr(self, rai: AddrInfo, timeout_ms: int = 2000) -> None:
        """Find the device for ``rai.dst``, immediately.

        Args:
            rai: its ``dst`` is the peer's address and port; ``src``, if given, the local address.
            timeout_ms: milliseconds to wait; for pyverbs compatibility: nothing waits.

        Raises:
            VerbsError: EINVAL without ``dst``, else with the connection manager's errno.
        """
        place = self._wants(rai.dst, "resolve_addr", "dst")
        if self._manager is None:
            self._open(rai, rai.src, place)
        source = rai.src.gid if rai.src is not None else self._context().query_gid().raw
        self._request(
            wire.CM_RESOLVE_ADDR,
            src=int.from_bytes(source, "little"),
            src_port=0 if rai.src is None else rai.src.port,
            dst=int.from_bytes(place.gid, "little"),
            dst_port=place.port,
        )
        self._done(ce.RDMA_CM_EVENT_ADDR_RESOLVED, f"{place.text} cannot be reached from {self._context().address}")

    def resolve_route(self, timeout_ms: int = 2000) -> None:
        """Resolve the route, immediately: IP needs no path query.

        Args:
            timeout_ms: milliseconds to wait; for pyverbs compatibility: nothing waits.
        """
        self._request(wire.CM_RESOLVE_ROUTE)
        self._done(ce.RDMA_CM_EVENT_ROUTE_RESOLVED, "no route")

    @staticmethod
    def _wants(place: Place | None, what: str, which: str) -> Place:
        if place is None:
            raise VerbsError(EINVAL, f"{what}: the AddrInfo has no {which}")
        return place

    def _open(self, info: AddrInfo, own: Place | None, peer: Place | None = None) -> None:
        """Open the device, and create the ID with its connection manager."""
        if self._manager is not None:
            raise VerbsError(EINVAL, "the CMID is bound already; make another one")
        if info.context is not None:
            device = _Device(info.context, False)
        elif own is not None:
            device = _Device(Context(addr=own.text, port=info.udp_port), True)
        else:
            assert peer is not None
            device = _Device(own_device(None, peer.family, peer.sockaddr, info.udp_port), True)
        self._hold(device, manager_of(device.context))
        channel = self._at_channel()
        qp_type = wire.QP_UD if self.datagrams else wire.QP_RC
        self._number = self._managed().create_id(channel, self.port_space, qp_type)
        self._known()
        device.context.driver.start()

    def _hold(self, device: _Device, manager: Manager) -> None:
        device.users += 1
        self._device, self.context, self._manager = device, device.context, manager

    def _at_channel(self) -> int:
        assert self._manager is not None
        return self.event_channel.number_at(self._manager)

    def _known(self) -> None:
        assert self._manager is not None
        self.event_channel.ids[self._manager, self._number] = self

    # --------------------------------------------------------------------------------- listening

    def listen(self, backlog: int = 0) -> None:
        """Listen for connection requests.

        Args:
            backlog: requests that may wait to be taken, 0 for 1,024; further peers retransmit their requests.
        """
        self._request(wire.CM_LISTEN, value=backlog)

    def get_request(self) -> CMID:
        """Wait for the next request, to accept or to reject; only for a CMID made with an :class:`AddrInfo`.

        If its queue pair cannot be made, reject the peer and raise the error.
        """
        if not self._sync:
            raise VerbsError(EINVAL, "get_request: requests of this CMID are events of its channel")
        manager = self._managed()
        while True:
            _, event = self.event_channel.wait([self._context()])
            if event.event == ce.RDMA_CM_EVENT_CONNECT_REQUEST:  # any other event means that the device is gone
                break
        child = CMID(CMEventChannel(), self._init_attr, self._pd)
        child._sync = True
        try:
            child._take_request(manager, event, self)
            if self._init_attr is not None:
                child.create_qp(self._init_attr)
        except BaseException:
            child.close()  # rejects the peer, and releases the device
            raise
        return child

    def _take_request(self, manager: Manager, event: Event, listening: CMID | None) -> None:
        """Make this CMID the passive side of a connection request."""
        if event.event != ce.RDMA_CM_EVENT_CONNECT_REQUEST or listening is None or listening._device is None:
            raise VerbsError(EINVAL, "a CMID is made of a RDMA_CM_EVENT_CONNECT_REQUEST with its listen_id")
        self._hold(listening._device, manager)
        self._number = event.number
        self._offered = event.fields
        self.port_space = listening.port_space
        if self._at_channel() != listening._at_channel():
            self._request(wire.CM_MIGRATE, channel=self._at_channel())
        self._known()
        if self._pd is None:
            self._pd = listening._pd

    # ---------------------------------------------------------------------------------- connecting

    def create_qp(self, qp_init: QPInitAttr) -> None:
        """Create the queue pair, and completion queues if ``qp_init`` has none.

        Args:
            qp_init: attributes of the queue pair; missing completion queues are created.

        Raises:
            VerbsError: EINVAL if the CMID has a queue pair, or the type does not fit its port space.
        """
        if self.qp is not None:
            raise VerbsError(EINVAL, "the CMID has a queue pair already")
        ctx, cap = self._context(), qp_init.cap
        scq = self._make_cq(ctx, cap.max_send_wr) if qp_init.scq is None else qp_init.scq
        rcq = self._make_cq(ctx, cap.max_recv_wr) if qp_init.rcq is None else qp_init.rcq
        if (qp_init.qp_type == e.IBV_QPT_UD) is not self.datagrams:
            raise VerbsError(EINVAL, "a CMID of RDMA_PS_UDP takes a queue pair of type IBV_QPT_UD, and no other does")
        attr = QPInitAttr(qp_init.qp_type, qp_init.qp_context, cap, scq, rcq, qp_init.srq, qp_init.sq_sig_all)
        self.qp = QP(self.pd, attr)
        first = QPAttr()
        if self.datagrams:
            first.qkey = UDP_QKEY
            self.qp.to_rts(first)
            return
        first.qp_access_flags = REMOTE_RIGHTS
        self.qp.to_init(first)

    def _make_cq(self, ctx: Context, entries: int) -> CQ:
        channel = CompChannel(ctx)
        self._made.append(channel)
        return CQ(ctx, max(entries, 1), channel=channel)

    def connect(self, param: ConnParam | None = None) -> None:
        """Request a connection from the peer.

        Args:
            param: private data, READ and atomic depths, retry counts and numbers of the queue pair; defaults without.

        Raises:
            CmRejectedError: the peer rejected the request; only in synchronous mode.
            CmTimeoutError: the peer did not answer; only in synchronous mode.
        """
        self._offer(wire.CM_CONNECT, param or ConnParam())
        if not self._sync:
            return
        event = self._next()
        if event == ce.RDMA_CM_EVENT_CONNECT_RESPONSE:
            return  # without a queue pair, the program calls establish() later
        if event != ce.RDMA_CM_EVENT_ESTABLISHED:
            raise self._refusal()

    def accept(self, param: ConnParam | None = None) -> None:
        """Accept the connection request of this CMID.

        Args:
            param: as of :meth:`connect`.
        """
        param = param or ConnParam()
        if self.datagrams:
            self._offer(wire.CM_ACCEPT, param)
            return
        param_fields = dict(param.fields)
        if self._offered:
            for ours in ("responder_resources", "initiator_depth"):
                param_fields[ours] = min(param_fields[ours], self._offered[ours])
        if self.qp is not None:
            self._make_ready(param_fields["responder_resources"], param_fields["initiator_depth"])
        self._offer(wire.CM_ACCEPT, param, param_fields)
        if self._sync and self._next() != ce.RDMA_CM_EVENT_ESTABLISHED:
            raise self._refusal()

    def establish(self) -> None:
        """Send RTU once the program's own queue pair is ready; only on the active side."""
        self._request(wire.CM_ESTABLISH)

    def reject(self, private_data: bytes | str | None = None, private_data_len: int = 0) -> None:
        """Reject the request (REJ with reason 28, IBA vol. 1, 12.6.7).

        Args:
            private_data: at most 148 bytes for the peer.
            private_data_len: bytes of ``private_data`` that count; 0 for all of them.
        """
        data = private_data.encode() if isinstance(private_data, str) else private_data or b""
        self._request(wire.CM_REJECT, data[: private_data_len or len(data)])

    def disconnect(self) -> None:
        """Disconnect; outstanding work requests of the queue pair end with an error."""
        if self.qp is not None:
            self.qp.modify(QPAttr(e.IBV_QPS_ERR), e.IBV_QP_STATE)
        self._request(wire.CM_DISCONNECT)

    def _offer(self, op: int, param: ConnParam, fields: dict[str, int] | None = None) -> None:
        number = param.qpn if self.qp is None else self.qp.qp_num
        if self.datagrams:
            self._request(op, param.private_data, qpn=number, qkey=UDP_QKEY)
            return
        if not number:
            raise VerbsError(EINVAL, "the CMID has no queue pair: create_qp() first, or name one in ConnParam(qp_num=)")
        self._request(op, param.private_data, qpn=number, **(fields or param.fields))

    def handle_event(self, event: Event) -> int:
        """Act on an event, and return it as the program sees it: REP brings the queue pair to RTS and sends RTU."""
        if event.event == ce.RDMA_CM_EVENT_CONNECT_RESPONSE and self.qp is not None:
            self._make_ready()
            self._request(wire.CM_ESTABLISH)
            return ce.RDMA_CM_EVENT_ESTABLISHED
        if event.event == ce.RDMA_CM_EVENT_MULTICAST_JOIN and self.qp is not None:
            gid, receives = self._joining.pop(event.fields["context"])
            if receives:
                self.qp.attach_mcast(gid)
        return event.event

    # ----------------------------------------------------------------------------------- datagrams

    @property
    def datagrams(self) -> bool:
        """True if the port space is ``RDMA_PS_UDP``."""
        return self.port_space == ce.RDMA_PS_UDP

    def join_multicast(
        self, addr: AddrInfo | None = None, mc_attr: JoinMCAttrEx | None = None, context: int = 0
    ) -> None:
        """Join a multicast group; the queue pair receives its datagrams after ``RDMA_CM_EVENT_MULTICAST_JOIN``.

        Args:
            addr: the group's address, as ``src`` or ``dst``; or ``mc_attr`` has it.
            context: for pyverbs compatibility.
        """
        if not self.datagrams:
            raise VerbsError(EINVAL, "join_multicast: the CMID is not of RDMA_PS_UDP")
        gid = group_of(addr if addr is not None or mc_attr is None else mc_attr.addr)
        receives = mc_attr is None or mc_attr.join_flags == ce.RDMA_MC_JOIN_FLAG_FULLMEMBER
        self._joins += 1
        self._joining[self._joins] = gid, receives
        self._request(wire.CM_JOIN, dst=int.from_bytes(gid.raw, "little"), context=self._joins)

    def leave_multicast(self, addr: AddrInfo) -> None:
        """Leave a multicast group.

        Args:
            addr: the group's address, as ``src`` or ``dst``.
        """
        gid = group_of(addr)
        if self.qp is not None:
            self.qp.detach_mcast(gid)
        self._request(wire.CM_LEAVE, dst=int.from_bytes(gid.raw, "little"))

    def post_ud_send(
        self, mr: MR, ah: AH, rqpn: int = 0, flags: int = e.IBV_SEND_SIGNALED, length: int | None = None
    ) -> None:
        """Send the beginning of a region as a datagram.

        Args:
            mr: the region, of at most one path MTU of data.
            ah: address handle of the destination.
            rqpn: its queue pair, 24 bits.
            flags: ``IBV_SEND_*``.
            length: bytes to send, by default all of the region.
        """
        request = SendWR(0, e.IBV_WR_SEND, 1, 0, flags, _piece(mr, length))
        request.set_wr_ud(ah, rqpn, UDP_QKEY)
        self._ready_qp().post_send(request)

    def _make_ready(self, resources: int | None = None, depth: int | None = None) -> None:
        assert self.qp is not None
        for state in (e.IBV_QPS_RTR, e.IBV_QPS_RTS):
            attr, mask = self.init_qp_attr(state)
            if resources is not None and depth is not None:
                attr.max_dest_rd_atomic, attr.max_rd_atomic = resources, depth
            self.qp.modify(attr, mask)

    def init_qp_attr(self, qp_state: int) -> tuple[QPAttr, int]:
        """Return the attributes and the mask that bring the program's own queue pair to a state.

        Args:
            qp_state: ``IBV_QPS_INIT``, ``IBV_QPS_RTR`` or ``IBV_QPS_RTS``.
        """
        masks = {e.IBV_QPS_INIT: INIT_MASK, e.IBV_QPS_RTR: RTR_MASK, e.IBV_QPS_RTS: RTS_MASK}
        if qp_state not in masks:
            raise VerbsError(EINVAL, f"qp_state={qp_state}: use IBV_QPS_INIT, IBV_QPS_RTR or IBV_QPS_RTS")
        attr = self._managed().qp_attr(self._number, self._context().udp_port)
        attr.qp_state = qp_state
        return attr, masks[qp_state][e.IBV_QPT_RC]

    def query_qp(self, attr_mask: int = 0) -> tuple[QPAttr, QPInitAttr]:
        """Query the queue pair, as :meth:`rnic.QP.query`.

        Args:
            attr_mask: ``IBV_QP_*``; for pyverbs compatibility: all attributes are returned.
        """
        return self._ready_qp().query(attr_mask)

    # ------------------------------------------------------------------------------------- traffic

    def reg_msgs(self, size: int) -> MR:
        """Register ``size`` bytes to send from and receive to.

        Args:
            size: bytes of the region.

        Returns:
            The region, with local write access.
        """
        return MR(self.pd, size, e.IBV_ACCESS_LOCAL_WRITE)

    def reg_read(self, size: int) -> MR:
        """Register ``size`` bytes that the peer may read, too.

        Args:
            size: bytes of the region.

        Returns:
            The region, with local write and remote read access.
        """
        return MR(self.pd, size, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ)

    def reg_write(self, size: int) -> MR:
        """Register ``size`` bytes that the peer may write, too.

        Args:
            size: bytes of the region.

        Returns:
            The region, with local and remote write access.
        """
        return MR(self.pd, size, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)

    def post_recv(self, mr: MR, length: int | None = None) -> None:
        """Receive the next message to the beginning of a region.

        Args:
            mr: the region.
            length: bytes that the message may have, by default all of the region.
        """
        self._ready_qp().post_recv(RecvWR(0, 1, _piece(mr, length)))

    def post_send(self, mr: MR, flags: int = e.IBV_SEND_SIGNALED, length: int | None = None) -> None:
        """Send the beginning of a region.

        Args:
            mr: the region.
            flags: ``IBV_SEND_*``.
            length: bytes to send, by default all of the region.
        """
        self._ready_qp().post_send(SendWR(0, e.IBV_WR_SEND, 1, 0, flags, _piece(mr, length)))

    def post_read(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """READ from the peer's memory to the beginning of a region.

        Args:
            mr: the region.
            length: bytes to read.
            remote_addr: address in the peer's memory, 64 bits.
            rkey: the peer's key to it, 32 bits.
            flags: ``IBV_SEND_*``.
        """
        self._remote(e.IBV_WR_RDMA_READ, mr, length, remote_addr, rkey, flags)

    def post_write(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """WRITE the beginning of a region to the peer's memory.

        Args:
            mr: the region.
            length: bytes to write.
            remote_addr: address in the peer's memory, 64 bits.
            rkey: the peer's key to it, 32 bits.
            flags: ``IBV_SEND_*``.
        """
        self._remote(e.IBV_WR_RDMA_WRITE, mr, length, remote_addr, rkey, flags)

    def _remote(self, opcode: int, mr: MR, length: int, remote_addr: int, rkey: int, flags: int) -> None:
        request = SendWR(0, opcode, 1, 0, flags, _piece(mr, length))
        request.set_wr_rdma(rkey, remote_addr)
        self._ready_qp().post_send(request)

    def get_send_comp(self) -> WC:
        """Wait for the next send completion."""
        return self._completion(self._ready_qp().scq)

    def get_recv_comp(self) -> WC:
        """Wait for the next receive completion."""
        return self._completion(self._ready_qp().rcq)

    def _completion(self, cq: object) -> WC:
        assert isinstance(cq, CQ)
        ctx = self._context()
        channel = cq.channel
        while True:
            found = cq.poll()[1]
            if not found:
                cq.req_notify()
                found = cq.poll()[1]
            if found:
                return found[0]
            if channel is None:
                ctx.driver.check()
                ctx.driver.progress()
                continue
            ctx.driver.check()
            ctx.driver.rest()
            if wait_readable([channel.fileno(), *ctx.driver.hangup_filenos()], MAX_WAIT_S):
                with contextlib.suppress(VerbsError):
                    channel.get_cq_event(block=False)

    # --------------------------------------------------------------------------------------- rest

    @property
    def pd(self) -> PD:
        """Protection domain of the CMID."""
        if self._pd is None:
            self._pd = PD(self._context())
            self._own_pd = True
        return self._pd

    @property
    def qpn(self) -> int:
        """Number of the queue pair, 0 if there is none."""
        return 0 if self.qp is None else self.qp.qp_num

    @property
    def dev_name(self) -> str:
        """Name of the device."""
        return self._context().name

    @property
    def port_num(self) -> int:
        """Number of the device's port."""
        return 1

    @property
    def port(self) -> int:
        """Local port in rdma_cm's port space. Not in pyverbs."""
        return self._request(wire.CM_QUERY)["src_port"]

    def close(self) -> None:
        """Disconnect, and release queue pair, memory and device; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        manager, device = self._manager, self._device
        if self.qp is not None:
            self.qp.close()
        for each in self._made:
            each.close()
        if self._own_pd and self._pd is not None:
            self._pd.close()
        if manager is not None:
            self.event_channel.ids.pop((manager, self._number), None)
            with contextlib.suppress(VerbsError):  # the device or the channel is already gone
                manager.request(wire.CM_DESTROY, id=self._number)
        if self._sync:
            self.event_channel.close()
        if device is not None:
            device.drop()

    def __enter__(self) -> CMID:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "nowhere" if self.context is None else self.context.address
        return f"<CMID on {where}{' closed' if self.closed else ''}>"

    def _context(self) -> Context:
        if self.context is None or self.closed:
            why = "is closed; make another one" if self.closed else "has no device: bind_addr() or resolve_addr() first"
            raise VerbsError(EINVAL, f"the CMID {why}")
        return self.context

    def _managed(self) -> Manager:
        self._context()
        assert self._manager is not None
        return self._manager

    def _ready_qp(self) -> QP:
        if self.qp is None:
            raise VerbsError(ENOTCONN, "the CMID has no queue pair: create_qp() first")
        return self.qp

    def _request(self, op: int, private: bytes = b"", **fields: int) -> dict[str, int]:
        return self._managed().request(op, private, id=self._number, **fields)

    def _next(self) -> int:
        """Wait for the next event of a CMID that works synchronously."""
        _, self._event = self.event_channel.wait([self._context()])
        return self.handle_event(self._event)

    def _done(self, event: int, otherwise: str) -> None:
        if self._sync and self._next() != event:
            raise CmConnectError(otherwise)

    def _refusal(self) -> CmConnectError:
        return connect_error(self._event, "the peer", self._context().udp_port, "no connection was made")


class _Device:
    """An opened device, and how many CMIDs use it."""

    def __init__(self, context: Context, owned: bool) -> None:
        self.context = context
        self.owned = owned
        self.users = 0

    def drop(self) -> None:
        """Drop one CMID's use of the device; the last one closes a device that was opened for CMIDs."""
        self.users -= 1
        if not self.users and self.owned:
            self.context.close()


def _piece(mr: MR, length: int | None) -> list[SGE]:
    return [SGE(mr.buf, mr.length if length is None else length, mr.lkey)]


__all__ = ["CMID", "AddrInfo", "CMEvent", "CMEventChannel", "ConnParam", "JoinMCAttrEx", "UDParam"]
