"""The short API's connection: one-sided READ, WRITE and atomics on the peer's shared arrays, and messages.

Every operation comes twice: blocking (``read``) and for asyncio (``aread``). Offsets and counts are in elements of
the remote array, as in NumPy.
"""

from __future__ import annotations

import random
import socket
import time
from collections import deque
from errno import EINVAL
from typing import Any

from rnic.arrays.batch import Batch, Pending
from rnic.arrays.codec import HEADER_BYTES, in_c_order, is_empty, message_header, open_message
from rnic.arrays.exports import Shares
from rnic.arrays.handshake import Endpoint
from rnic.arrays.one_sided import BOUNCE_BYTES, ORDERED, OneSided
from rnic.cm.line_socket import ExchangeError, LineSocket
from rnic.cm.work_queue import LOOK_S, Job, Jobs, PeerClosedError, hung_up
from rnic.link.base import format_address
from rnic.mem.space import byte_view
from rnic.spec.errors import VerbsError
from rnic.spec.limits import MAX_RD_ATOMIC, MTU_BYTES, MTU_CODES
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, SGE, WC, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from rnic.verbs.memory import MR
from rnic.verbs.qp import QP

DEPTH = 64
"""Send work requests in flight on one connection."""
MESSAGE_BYTES = 1 << 20
RECEIVES = 8
RD_ATOMIC = 16
_TIMEOUT = 14
_RETRIES = 7
_MIN_RNR_TIMER = 12
"""67 ms and seven retries: a peer that is gone is noticed within about half a second."""
_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC


class Connection(OneSided):
    """A reliable connection to a peer. Made by :func:`rnic.connect` and :meth:`rnic.arrays.listener.Listener.accept`.

    ``remote`` holds the peer's shared buffers by name, as :class:`~rnic.arrays.handshake.BufferInfo`. Methods may be
    called from several threads and tasks; a buffer in use by one of them is the caller's to protect.

    Every operation raises :class:`~rnic.spec.errors.WorkCompletionError` when it fails on the way or at the peer, and
    the connection is then broken, as the standard says: later operations fail too.
    """

    def __init__(self, shares: Shares, message_bytes: int, receives: int, owned: bool) -> None:
        for name, value, low, high in (
            ("message_bytes", message_bytes, 0, 1 << 30),
            ("receives", receives, 0, 4_096),
        ):
            if not low <= value <= high:
                raise VerbsError(EINVAL, f"{name}={value} is out of range; use {low} to {high}")
        ctx = shares.ctx
        jobs = Jobs(ctx, DEPTH, DEPTH + receives + 1, self._received)
        try:
            super().__init__(shares, jobs, DEPTH)
        except BaseException:
            jobs.close()
            raise
        self._owned = owned
        self._message_bytes = message_bytes
        self._peer_message_bytes = 0
        self._messages: deque[WC] = deque()
        self._broken: WC | None = None
        self._psn = random.SystemRandom().getrandbits(24)
        self._slot_bytes = HEADER_BYTES + message_bytes
        self._receives = receives if message_bytes else 0
        self._slots: MR | None = None
        self._slot_view = memoryview(b"")
        self._attr = QPAttr()
        self._attr.qp_access_flags = _ACCESS
        cap = QPCap(DEPTH, max(1, receives), 2, 1, 0)
        cq = self._jobs.cq
        try:
            self._qp = QP(shares.pd, QPInitAttr(e.IBV_QPT_RC, None, cap, cq, cq))
            self._jobs.use(self._qp)
            self._qp.to_init(self._attr)
            if self._receives:
                memory = bytearray(self._slot_bytes * self._receives)
                self._slots = MR(shares.pd, memory)
                self._slot_view = memoryview(memory)
                for slot in range(self._receives):
                    self._post_slot(slot)
        except BaseException:
            self._let_go()
            raise
        # A passive side must answer while its program does something else.
        ctx.driver.start()

    # ----------------------------------------------------------------------------- setting up

    def endpoint(self) -> Endpoint:
        """What the peer must know of this end."""
        ctx = self._shares.ctx
        return Endpoint(
            qpn=self._qp.qp_num,
            psn=self._psn,
            gid=ctx.query_gid().raw,
            udp_port=ctx.udp_port,
            mtu=MTU_BYTES[ctx.query_port().active_mtu],
            gso=True,
            selective_repeat=ctx.selective_repeat,
            max_rd_atomic=RD_ATOMIC,
            message_bytes=self._message_bytes if self._receives else 0,
            receives=self._receives,
            buffers=self._shares.infos(),
        )

    def bring_up(self, peer: Endpoint, lines: LineSocket) -> None:
        """Make the queue pair ready for a peer; ``lines`` stays open, and its end tells of the peer's.

        Raises:
            ExchangeError: the two ends do not fit together.
        """
        ctx = self._shares.ctx
        gid = GID(peer.gid)
        if len(gid.address) != len(GID(ctx.query_gid()).address):
            raise ExchangeError(
                f"{lines.where} has its NIC on {format_address(gid.address)}, this end on {ctx.address}: "
                "use addresses of one IP version"
            )
        attr = self._attr
        attr.path_mtu = MTU_CODES[min(peer.mtu, MTU_BYTES[ctx.query_port().active_mtu])]
        attr.dest_qp_num = peer.qpn
        attr.rq_psn = peer.psn
        attr.sq_psn = self._psn
        attr.max_rd_atomic = min(RD_ATOMIC, peer.max_rd_atomic, MAX_RD_ATOMIC)
        attr.max_dest_rd_atomic = RD_ATOMIC
        attr.min_rnr_timer = _MIN_RNR_TIMER
        attr.timeout = _TIMEOUT
        attr.retry_cnt = _RETRIES
        attr.rnr_retry = 7
        attr.gso, attr.selective_repeat = peer.gso, peer.selective_repeat and ctx.selective_repeat
        attr.ah_attr = AHAttr(GlobalRoute(gid), udp_dport=peer.udp_port)
        try:
            self._qp.to_rts(attr)
        except VerbsError as error:
            raise ExchangeError(f"{lines.where} cannot be connected to: {error}") from None
        self._peer_message_bytes = peer.message_bytes
        self._lines = lines
        self.remote = {info.name: info for info in peer.buffers}
        self.peer = lines.where

    def batch(self) -> Batch:
        """Several operations under way at once: ``with connection.batch() as batch``, whose end waits for all."""
        return Batch(self)

    # ------------------------------------------------------------------------------- messages

    def send(self, data: Any) -> None:
        """Send a message: bytes, or an array, which arrives with its type and shape.

        Waits until the peer's NIC has it, which is while the peer has a receive free.

        Raises:
            VerbsError: EINVAL where it is longer than the peer's receives (``message_bytes`` of the peer).
            WorkCompletionError: it could not be delivered.
        """
        self.begin_send(data).result()

    async def asend(self, data: Any) -> None:
        """:meth:`send` for asyncio."""
        await self._slot_free()
        await self.begin_send(data)

    def recv(self, timeout_s: float | None = None) -> Any:
        """The next message: bytes, or an array of its own memory.

        Raises:
            TimeoutError: none came in time.
            PeerClosedError: the peer closed the connection and nothing is left.
            VerbsError: EINVAL once this end is closed, by another thread too.
        """
        sock = self._usable()
        self._may_receive()
        while (wc := self._next_message()) is None:
            ready = self._jobs.wait(self._has_news, timeout_s, sock)
            self._usable()  # another thread may have closed it
            if not ready:
                self._no_message(timeout_s, sock)
        return self._open(wc)

    async def arecv(self) -> Any:
        """:meth:`recv` for asyncio; ``asyncio.timeout`` bounds it."""
        sock = self._usable()
        self._may_receive()
        while (wc := self._next_message()) is None:
            ready = await self._jobs.wait_async(self._has_news, sock)
            self._usable()  # another task may have closed it
            if not ready:
                self._no_message(None, sock)
        return self._open(wc)

    # --------------------------------------------------------------------------------- ending

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Wait until the peer closes it, or another thread does; false where none did within ``timeout_s``."""
        if self._lines is None:
            return True
        sock = self._lines.sock
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.closed:
            self._shares.ctx.driver.rest()
            left = LOOK_S if end is None else end - time.monotonic()
            if hung_up(sock, max(0, min(left, LOOK_S))):
                return True
            if left <= 0:
                return False
        return True

    def peer_gone(self) -> bool:
        """Whether the peer closed the connection."""
        return self._lines is not None and hung_up(self._lines.sock)

    def close(self) -> None:
        """End the connection; the peer's operations on it fail from now on. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        # what arrived last may still want its acknowledgement
        self._shares.ctx.driver.kick()
        self._let_go()
        if self._owned:
            self._shares.close()
        if self._lines is not None:
            self._lines.close()

    def _let_go(self) -> None:
        """Destroy what was made in the device; the queue pair is not there where making it failed."""
        if hasattr(self, "_qp"):
            self._qp.close()
        self._jobs.close()
        for mr in (self._slots, self._bounce):
            if mr is not None:
                mr.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Connection to {self.peer} {state}, {len(self.remote)} remote buffers>"

    # ------------------------------------------------------------------------------- the jobs

    def begin_send(self, data: Any) -> Pending[None]:
        """Start :meth:`send`."""
        self._usable()
        data = in_c_order(data)
        is_bytes = isinstance(data, bytes | bytearray | memoryview)
        size = 0 if is_empty(data) else byte_view(data).nbytes
        if size > self._peer_message_bytes:
            raise VerbsError(
                EINVAL,
                f"message of {size} bytes is longer than the {self._peer_message_bytes} that {self.peer} receives; "
                "raise its message_bytes, or share an array",
            )
        header = message_header(data, is_bytes)
        slot, view, address = self._take_slot()
        view[: len(header)] = header
        parts = [SGE(address, len(header), self._bounce.lkey)]
        mr: MR | None = None
        if len(header) + size <= BOUNCE_BYTES:
            if size:
                view[len(header) : len(header) + size] = byte_view(data)
            parts[0].length += size
        else:
            mr = MR(self._shares.pd, data, 0)
            parts.append(SGE(mr.buf, mr.length, mr.lkey))

        def release() -> None:
            self._give_slot(slot)
            if mr is not None:
                mr.close()

        job = Job("SEND", release)
        self._jobs.post(job, [SendWR(opcode=e.IBV_WR_SEND, send_flags=ORDERED, sg=parts)])
        return Pending(self, job, lambda: None)

    # ------------------------------------------------------------------------------- receives

    def _post_slot(self, slot: int) -> None:
        slots = self._slots
        assert slots is not None
        sge = SGE(slots.buf + slot * self._slot_bytes, self._slot_bytes, slots.lkey)
        self._qp.post_recv(RecvWR(slot, 1, [sge]))

    def _received(self, wc: WC) -> None:
        if wc.status == e.IBV_WC_SUCCESS:
            self._messages.append(wc)
        else:
            self._broken = wc

    def _has_news(self) -> bool:
        return bool(self._messages) or self._broken is not None

    def _next_message(self) -> WC | None:
        try:
            return self._messages.popleft()
        except IndexError:
            pass
        if self._broken is not None:
            job = Job("receive")
            job.failed = self._broken
            job.check(self.peer)
        return None

    def _open(self, wc: WC) -> Any:
        start = wc.wr_id * self._slot_bytes
        try:
            return open_message(self._slot_view[start : start + wc.byte_len])
        finally:
            self._post_slot(wc.wr_id)

    def _may_receive(self) -> None:
        if not self._receives:
            raise VerbsError(EINVAL, "this end posts no receives; connect with receives and message_bytes above 0")

    def _no_message(self, timeout_s: float | None, sock: socket.socket) -> None:
        if timeout_s is not None and not hung_up(sock):
            raise TimeoutError(f"no message from {self.peer} within {timeout_s:g} s")
        raise PeerClosedError(f"{self.peer} closed the connection")
