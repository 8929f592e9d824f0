"""Carry a bridge's requests over a queue pair, and reconnect when one fails."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from errno import EINVAL
from typing import Protocol

from rnic.arrays.handshake import BufferInfo, Endpoint
from rnic.cm.line_socket import ExchangeError
from rnic.cm.work_queue import Operation, WorkQueue
from rnic.link.base import format_address
from rnic.paxi import bridge as b
from rnic.paxi.bridge import Bridge, BridgeConfig
from rnic.spec.errors import RnicError, VerbsError
from rnic.spec.limits import MAX_RD_ATOMIC, MTU_BYTES, MTU_CODES
from rnic.spec.psn import psn_add
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, SGE, WC, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, SendWR
from rnic.verbs.cq import CQ
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP

RD_ATOMIC = 16
TIMEOUT = 14
RETRIES = 7
"""With a timeout of 67 ms, seven retries detect a lost remote within about half a second."""
PSN_STEP = 1 << 22
"""Distance of a new connection's PSNs from the old one's, so that packets still in flight do not match."""

_OUTCOMES = {
    e.IBV_WC_SUCCESS: b.SUCCESS,
    e.IBV_WC_REM_ACCESS_ERR: b.REFUSED,
    e.IBV_WC_RETRY_EXC_ERR: b.UNKNOWN,
    e.IBV_WC_RNR_RETRY_EXC_ERR: b.UNKNOWN,
    e.IBV_WC_WR_FLUSH_ERR: b.UNKNOWN,
    e.IBV_WC_GENERAL_ERR: b.UNKNOWN,
}
"""Result of a work request by its completion status; for every other status the request was not executed."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Progress of the remote when its queue pair was stopped."""

    expected_psn: int
    fault: bool
    """True if it refused the request with that PSN by a NAK."""


class Remote(Protocol):
    """The remote's side of a window. Its methods raise ``RnicError`` if the remote is gone."""

    def stop(self) -> Stopped:
        """Stop its end of the connection."""

    def close(self) -> None:
        """Close the window."""


class Far(Remote, Protocol):
    """The remote's side of a window behind a queue pair."""

    def meet(self, mine: Endpoint) -> Endpoint:
        """Connect its queue pair to this end; return its endpoint, with its memory as the only buffer."""


def make_qp(pd: PD, cq: CQ, depth: int) -> QP:
    """Return a queue pair in RESET whose work requests are WRITEs and READs."""
    return QP(pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(depth, 1, 1, 1, 0), cq, cq))


def endpoint_of(qp: QP, psn: int, buffers: tuple[BufferInfo, ...] = ()) -> Endpoint:
    """Return the endpoint of a queue pair, for the peer."""
    ctx = qp.ctx
    return Endpoint(
        qpn=qp.qp_num,
        psn=psn,
        gid=ctx.query_gid().raw,
        udp_port=ctx.udp_port,
        mtu=MTU_BYTES[ctx.query_port().active_mtu],
        gso=True,
        selective_repeat=ctx.selective_repeat,
        max_rd_atomic=RD_ATOMIC,
        buffers=buffers,
    )


def bring_up(qp: QP, psn: int, peer: Endpoint, access: int) -> int:
    """Bring a queue pair in any state to RTS toward ``peer``; return the path MTU in bytes.

    Raises:
        ExchangeError: the two ends are incompatible.
    """
    ctx = qp.ctx
    gid = GID(peer.gid)
    if len(gid.address) != len(GID(ctx.query_gid()).address):
        raise ExchangeError(
            f"the peer's NIC is on {format_address(gid.address)}, this end's on {ctx.address}: "
            "use addresses of one IP version"
        )
    if qp.qp_state not in (e.IBV_QPS_RESET, e.IBV_QPS_INIT):
        qp.modify(QPAttr(e.IBV_QPS_RESET), e.IBV_QP_STATE)
    attr = QPAttr()
    mtu = min(peer.mtu, MTU_BYTES[ctx.query_port().active_mtu])
    attr.qp_access_flags = access
    attr.path_mtu = MTU_CODES[mtu]
    attr.dest_qp_num = peer.qpn
    attr.rq_psn = peer.psn
    attr.sq_psn = psn
    attr.max_rd_atomic = min(RD_ATOMIC, peer.max_rd_atomic, MAX_RD_ATOMIC)
    attr.max_dest_rd_atomic = RD_ATOMIC
    attr.timeout = TIMEOUT
    attr.retry_cnt = RETRIES
    attr.rnr_retry = 7
    attr.gso, attr.selective_repeat = peer.gso, peer.selective_repeat and ctx.selective_repeat
    attr.ah_attr = AHAttr(GlobalRoute(gid), udp_dport=peer.udp_port)
    try:
        qp.to_rts(attr)
    except VerbsError as error:
        raise ExchangeError(f"the queue pair cannot be connected: {error}") from None
    return mtu


class _Carried(Operation):
    """A posted work request of the bridge."""

    __slots__ = ("port", "serial")

    def __init__(self, port: Port, serial: int) -> None:
        super().__init__("")
        self.port = port
        self.serial = serial

    def complete(self, wc: WC) -> None:
        """Handle its completion."""
        self.remaining -= 1
        port = self.port
        port.bridge.complete(self.serial, _OUTCOMES.get(wc.status, b.FAILED), port.clock())


class Carrier(ABC):
    """A bridge and the connection to its remote.

    Masters use :attr:`bridge`; :meth:`progress` or :meth:`wait` drives it. Only one thread at a time may call. A
    subclass sets :attr:`peer` and :attr:`bridge` once it is connected to the remote.

    Args:
        far: the remote's side; closed with the port.
        clock: the time in nanoseconds.
    """

    bridge: Bridge
    peer: str

    def __init__(self, far: Remote, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.closed = False
        self._remote = far

    @staticmethod
    def fit(config: BridgeConfig, offset: int, addr: int, length: int) -> BridgeConfig:
        """Return ``config`` for a remote's memory from ``offset`` on: the rest of it unless ``config`` has a size.

        Raises:
            VerbsError: EINVAL for a window that leaves that memory.
        """
        size = config.size or length - offset
        if offset < 0 or not 1 <= size <= length - offset:
            raise VerbsError(EINVAL, f"offset={offset}, size={size} leave the remote's memory of {length} bytes")
        try:
            return replace(config, size=size, remote=addr + offset)
        except ValueError as error:
            raise VerbsError(EINVAL, str(error)) from None

    @property
    @abstractmethod
    def mtu(self) -> int:
        """Most bytes of data in one packet."""

    def progress(self) -> bool:
        """Post requests, take completions, repair a broken connection. Return whether anything was done."""
        before = self.bridge.counters["paxi_requests"], self.bridge.pending
        self._post()
        if self.bridge.pending:
            self._complete()
        if self.bridge.link == b.BROKEN:
            self._mend()
        self._post()
        return before != (self.bridge.counters["paxi_requests"], self.bridge.pending)

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Drive the bridge until ``ready()``; return false on timeout."""

        def turn() -> bool:
            self.progress()
            return ready()

        return turn() or self._wait(turn, timeout_s)

    def recover(self) -> None:
        """Try to reach a lost remote again. Does nothing while the link is up."""
        if self.bridge.link == b.DOWN:
            try:
                self._remote.stop()
                self._renew()
            except RnicError:
                return

    def close(self) -> None:
        """Release all resources; a second call does nothing. Outstanding transactions get no response."""
        if not self.closed:
            self.closed = True
            self._release()
            self._remote.close()

    def _mend(self) -> None:
        """Repair a broken connection: wait for the last completion, ask the remote, and reconnect or give up."""
        bridge = self.bridge
        if not bridge.drained:
            self._break()
            return
        if bridge.hopeless:
            bridge.abandon(self.clock())
            return
        try:
            stopped = self._remote.stop()
            bridge.resume(stopped.expected_psn, stopped.fault, self.clock())
            self._renew()
        except RnicError:
            bridge.abandon(self.clock())

    @abstractmethod
    def _post(self) -> None:
        """Post the bridge's requests."""

    @abstractmethod
    def _complete(self) -> None:
        """Report completions to the bridge."""

    @abstractmethod
    def _break(self) -> None:
        """Make outstanding requests complete: the connection is lost."""

    @abstractmethod
    def _renew(self) -> None:
        """Reconnect."""

    @abstractmethod
    def _wait(self, turn: Callable[[], bool], timeout_s: float | None) -> bool:
        """Drive the transport until ``turn()`` is true or the timeout ends."""

    @abstractmethod
    def _release(self) -> None:
        """Release this end's resources."""


class Port(Carrier):
    """A bridge whose remote is behind a queue pair.

    Args:
        pd: protection domain of an opened device.
        far: the remote's side; closed with the port.
        config: parameters of the bridge; ``size`` 0 takes the rest of the remote's memory, ``remote`` is ignored.
        offset: offset of the window's first byte in the remote's memory.
        rng: source of the first PSN.
        clock: the time in nanoseconds.

    Raises:
        ExchangeError: the remote does not answer, or the two ends are incompatible.
        VerbsError: EINVAL for a window that leaves the remote's memory.
    """

    def __init__(
        self, pd: PD, far: Far, config: BridgeConfig, offset: int, rng: random.Random, clock: Callable[[], int]
    ) -> None:
        super().__init__(far, clock)
        self.ctx = pd.ctx
        self._far = far
        self._queue = WorkQueue(self.ctx, config.requests, config.requests + 1, lambda wc: None)
        self._qp = make_qp(pd, self._queue.cq, config.requests)
        self._queue.use(self._qp)
        memory = bytearray(config.staging_bytes)
        self._memory = MR(pd, memory)
        self._psn = rng.getrandbits(24)
        try:
            peer, mtu = self._meet()
            (buffer,) = peer.buffers
            config = self.fit(config, offset, buffer.addr, buffer.length)
        except RnicError:
            self.close()
            raise
        self._rkey = buffer.rkey
        self.peer = f"{format_address(GID(peer.gid).address)} port {peer.udp_port}"
        self.bridge = Bridge(config, memoryview(memory))
        self.bridge.connected(self._psn, mtu)

    @property
    def mtu(self) -> int:
        """Path MTU in bytes."""
        return MTU_BYTES[self._qp.query()[0].path_mtu]

    def _complete(self) -> None:
        self._queue.dispatch()

    def _wait(self, turn: Callable[[], bool], timeout_s: float | None) -> bool:
        return self._queue.wait(turn, timeout_s)

    def _release(self) -> None:
        self._qp.close()
        self._queue.close()
        self._memory.close()

    def _post(self) -> None:
        memory, key = self._memory, self._rkey
        while (request := self.bridge.next_request()) is not None:
            opcode = e.IBV_WR_RDMA_WRITE if request.write else e.IBV_WR_RDMA_READ
            wr = SendWR(0, opcode, sg=[SGE(memory.buf + request.offset, request.length, memory.lkey)])
            wr.set_wr_rdma(key, request.remote)
            self._queue.post(_Carried(self, request.serial), [wr])

    def _break(self) -> None:
        if self._qp.qp_state != e.IBV_QPS_ERR:
            self._qp.modify(QPAttr(e.IBV_QPS_ERR), e.IBV_QP_STATE)

    def _renew(self) -> None:
        self._psn = psn_add(self._psn, PSN_STEP)
        self.bridge.connected(self._psn, self._meet()[1])

    def _meet(self) -> tuple[Endpoint, int]:
        """Connect or reconnect; return the remote's endpoint and the path MTU."""
        qp = self._qp
        peer = self._far.meet(endpoint_of(qp, self._psn))
        if len(peer.buffers) != 1:
            raise ExchangeError(f"the peer shares {len(peer.buffers)} buffers: a PAXI target shares one")
        return peer, bring_up(qp, self._psn, peer, 0)
