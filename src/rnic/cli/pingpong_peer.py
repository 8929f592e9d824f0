"""One side of a ping-pong: its queue pairs and buffers, their connection, and the exchange of messages."""

from __future__ import annotations

import secrets
import select
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rnic.cli.peer import Line, PeerError
from rnic.cli.perf_peer import QKEY, SERVICES
from rnic.cli.pingpong_data import Data, DataError
from rnic.cm.rdmacore_pingpong import Destination
from rnic.spec.addresses import address_text
from rnic.spec.limits import GRH_BYTES, MTU_BYTES, MTU_CODES
from rnic.verbs import (
    AH,
    CQ,
    GID,
    MR,
    PD,
    QP,
    SGE,
    SRQ,
    WC,
    AHAttr,
    CompChannel,
    Context,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
)
from rnic.verbs import enums as e
from rnic.verbs import open as open_device

_SEND, _RECV = 1, 2
_BATCH = 16
_SPINS = 300
_NAP_S = 0.001
_ACK_TIMEOUT = 17
"""Code for 0.54 s. The tail-loss probe detects losses sooner; a shorter timeout floods a slow peer with retries of many
QPs."""
_QUIET_S = 0.25
"""Seconds of silence after which a side assumes that its last ACK arrived, if the peer does not say so."""


@dataclass(slots=True)
class Settings:
    """Settings that both sides must agree on, and this side's own choices."""

    addr: str
    udp_port: int
    service: str = "RC"
    size: int = 4096
    mtu: int = 1024
    rx_depth: int = 500
    iters: int = 1000
    sl: int = 0
    events: bool = False
    gid_index: int = 0
    queues: int = 1
    shared: bool = False
    """One receive queue for all queue pairs."""
    timeout_s: float = 30.0
    attach: bool = False
    """A device of this user's NIC process instead of one in this process."""


@dataclass(slots=True)
class Outcome:
    """Measured values."""

    seconds: float
    local: list[Destination] = field(default_factory=list)
    remote: list[Destination] = field(default_factory=list)


class Side:
    """Queue pairs, buffers and completion queue of one side.

    Raises:
        PeerError: the port does not support the path MTU or size.
        RnicError: the address is not local, or the port is taken.
    """

    KIND: ClassVar[str] = "pingpong"
    AGREED: ClassVar[tuple[str, ...]] = ("service", "size", "iters", "mtu", "queues")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        if settings.attach:
            self.ctx = open_device(settings.addr, port=settings.udp_port)
        else:
            self.ctx = Context(addr=settings.addr, port=settings.udp_port)
        try:
            self._build(settings)
        except BaseException:
            self.ctx.close()
            raise

    def _build(self, settings: Settings) -> None:
        ctx = self.ctx
        self.gid = ctx.query_gid(1, settings.gid_index)
        active = MTU_BYTES[ctx.query_port().active_mtu]
        datagrams = settings.service == "UD"
        if datagrams and settings.size > active:
            raise PeerError(f"--size {settings.size}: a UD message fits the port's MTU of {active} bytes")
        if not datagrams and settings.mtu > active:
            raise PeerError(f"--mtu {settings.mtu}: {settings.addr} carries 256 to {active}")
        self.channel = CompChannel(ctx) if settings.events else None
        self.pd = PD(ctx)
        self.cq = CQ(ctx, settings.rx_depth + 2 * settings.queues, None, self.channel)
        self._header = GRH_BYTES if datagrams else 0
        self._slot = settings.size + self._header
        # The peer answers one message at a time on each queue pair, so a queue pair with its own receive queue
        # needs one buffer. On a shared receive queue, other queue pairs overtake one that waits.
        slots = settings.rx_depth if settings.shared else 1
        self.inbox = MR(self.pd, slots * self._slot)
        self.outbox = MR(self.pd, settings.queues * settings.size)
        self._in = memoryview(self.inbox.buffer)
        self._out = memoryview(self.outbox.buffer)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(settings.rx_depth))) if settings.shared else None
        receives = 1 if settings.shared else settings.rx_depth
        init = QPInitAttr(
            SERVICES[settings.service], cap=QPCap(1, receives, 1, 1), scq=self.cq, rcq=self.cq, srq=self.srq
        )
        attr = QPAttr()
        attr.qkey = QKEY
        self.qps = [QP(self.pd, init) for _ in range(settings.queues)]
        for qp in self.qps:
            qp.to_init(attr)
        self._number: dict[int, int] = {qp.qp_num: index for index, qp in enumerate(self.qps)}
        self.local = [Destination(qp.qp_num, secrets.randbits(24), self.gid.raw) for qp in self.qps]
        self.remote: list[Destination] = []
        self._ah: AH | None = None
        for index in range(settings.rx_depth):
            self._post_receive(index if settings.shared else 0)

    def connect(self, remote: list[Destination], udp_port: int = 0, gso: bool = False) -> None:
        """Bring the queue pairs to RTS toward the peer's, which receive at ``udp_port`` (0: 4791)."""
        settings = self.settings
        self.remote = remote[: len(self.qps)]
        for qp, mine, theirs in zip(self.qps, self.local, self.remote, strict=True):
            attr = QPAttr(path_mtu=MTU_CODES[settings.mtu])
            attr.dest_qp_num = theirs.qpn
            attr.rq_psn = theirs.psn
            attr.sq_psn = mine.psn
            attr.gso = gso
            attr.timeout = _ACK_TIMEOUT
            route = GlobalRoute(GID(theirs.gid), settings.gid_index)
            attr.ah_attr = AHAttr(route, sl=settings.sl, udp_dport=udp_port)
            qp.to_rts(attr)
            if settings.service == "UD":
                self._ah = AH(self.pd, attr.ah_attr)

    def describe(self) -> dict[str, object]:
        """Return what an rnic peer needs to know."""
        ends = [[end.qpn, end.psn] for end in self.local]
        return {"gid": self.gid.raw.hex(), "udp_port": self.ctx.udp_port, "ends": ends}

    def bring_up(self, hello: Mapping[str, Any]) -> None:
        """Connect to the rnic peer that sent ``hello``."""
        gid = bytes.fromhex(str(hello["gid"]))
        ends = hello["ends"]
        if not isinstance(ends, list) or len(ends) != len(self.local) or len(gid) != 16:
            raise ValueError(ends)
        remote = [Destination(int(qpn), int(psn), gid) for qpn, psn in ends]
        self.connect(remote, int(str(hello["udp_port"])), gso=True)

    def show(self, kind: str) -> None:
        """Print this side's queue pairs or the peer's."""
        for end in self.local if kind == "local" else self.remote:
            shown = address_text(end.gid)
            print(f"  {kind + ' address:':<15} LID {end.lid:#06x}, QPN {end.qpn:#08x}, PSN {end.psn:#08x}, GID {shown}")
        sys.stdout.flush()

    def _post_receive(self, slot: int) -> None:
        wr = RecvWR(slot, sg=[SGE(self.inbox.buf + slot * self._slot, self._slot, self.inbox.lkey)])
        if self.srq is not None:
            self.srq.post_recv(wr)
        else:
            self.qps[0].post_recv(wr)

    def _send(self, queue: int, data: Data) -> None:
        size = self.settings.size
        at = queue * size
        data.fill(queue, self._out[at : at + size])
        wr = SendWR(0, sg=[SGE(self.outbox.buf + at, size, self.outbox.lkey)])
        if self._ah is not None:
            wr.set_wr_ud(self._ah, self.remote[queue].qpn, QKEY)
        self.qps[queue].post_send(wr)

    def play(self, data: Data, first: bool, line: Line | None = None) -> Outcome:
        """Exchange all messages.

        Args:
            data: fills and checks them.
            first: whether this side sends the first one.
            line: TCP line on which the peer reports that it is done, if there is one.

        Raises:
            PeerError: wrong data, a completion in error, or a peer that is silent or gone.
        """
        settings = self.settings
        iters = settings.iters
        watch = Watch(line, settings.timeout_s)
        pending = [_RECV] * settings.queues
        start = time.monotonic()
        if self.channel is not None:
            self.cq.req_notify()
        if first:
            for queue in range(settings.queues):
                pending[queue] = _SEND | _RECV
                self._send(queue, data)
        sent = received = 0
        while received < iters or sent < iters:
            for wc in self._completions(watch):
                queue = self._number[wc.qp_num]
                if wc.status != e.IBV_WC_SUCCESS:
                    what = "receive" if wc.opcode & e.IBV_WC_RECV else "send"
                    raise PeerError(
                        f"{what} on QPN {wc.qp_num:#08x} completed with {wc.status_name} after {sent} messages sent"
                        f" and {received} received: is the peer alive, with the same options?"
                    )
                if wc.opcode & e.IBV_WC_RECV:
                    self._look(wc, queue, data, received)
                    received += 1
                    pending[queue] &= ~_RECV
                else:
                    sent += 1
                    pending[queue] &= ~_SEND
                if sent < iters and not pending[queue]:
                    pending[queue] = _SEND | _RECV
                    self._send(queue, data)
        seconds = time.monotonic() - start
        self._linger(watch)
        return Outcome(seconds, self.local, self.remote)

    def _look(self, wc: WC, queue: int, data: Data, number: int) -> None:
        """Check a message, and repost its receive."""
        at = wc.wr_id * self._slot + self._header
        length = wc.byte_len - self._header
        try:
            if length != self.settings.size:
                raise DataError(f"it has {length} bytes, not {self.settings.size}")
            data.check(queue, self._in[at : at + length])
        except DataError as error:
            raise PeerError(f"wrong data in message {number} (QPN {wc.qp_num:#08x}): {error}") from None
        self._post_receive(wc.wr_id)

    def _completions(self, watch: Watch) -> list[WC]:
        """Wait for completions; return at least one."""
        poll = self.cq.poll
        channel = self.channel
        spins = 0
        while True:
            count, found = poll(_BATCH)
            if count:
                watch.seen()
                return found
            if channel is None and self.ctx.driver.progress():
                spins = 0
                continue
            spins += 1
            if channel is not None:
                if watch.wait([channel.fileno()], 1.0, channel.fileno()):
                    channel.get_cq_event(self.cq, block=False)
                    self.cq.req_notify()
            elif spins > _SPINS:
                watch.wait(self.ctx.driver.filenos(), _NAP_S)

    def _linger(self, watch: Watch) -> None:
        """Wait until the peer has the last ACK: it reports that, or nothing arrives for a while."""
        runtime = self.ctx.driver
        if watch.line is not None:
            watch.line.send(done=True)
            while not watch.peer_done:
                while runtime.progress():
                    pass
                watch.wait(runtime.filenos(), _NAP_S)
            return
        end = time.monotonic() + _QUIET_S
        while (left := end - time.monotonic()) > 0:
            if runtime.progress():
                end = time.monotonic() + _QUIET_S
            else:
                select.select(runtime.filenos(), [], [], min(left, 10 * _NAP_S))

    def close(self) -> None:
        """Release everything."""
        self.ctx.close()


class Watch:
    """Monitors the peer while this side waits: whether it closed, and how long it has been silent."""

    def __init__(self, line: Line | None, timeout_s: float) -> None:
        self.line = line
        self.peer_done = False
        self._timeout_s = timeout_s
        self.seen()

    def seen(self) -> None:
        """Restart the silence timeout: something arrived."""
        self._end = time.monotonic() + self._timeout_s

    def wait(self, descriptors: list[int], timeout_s: float, wanted: int = -1) -> bool:
        """Sleep until a descriptor is readable; return whether ``wanted`` is. :class:`PeerError` if the peer left."""
        sockets: list[int | socket.socket] = [*descriptors]
        line = None if self.peer_done else self.line
        if line is not None:
            sockets.append(line.sock)
        readable = select.select(sockets, [], [], timeout_s)[0]
        if line is not None and line.sock in readable:
            self.peer_done = bool(line.receive().get("done"))
            self.seen()
        if time.monotonic() > self._end:
            raise PeerError(f"nothing came from the peer for {self._timeout_s:g} s: --timeout sets how long to wait")
        return wanted in readable
