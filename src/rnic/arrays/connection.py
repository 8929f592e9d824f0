"""The short API's connection: one-sided READ, WRITE and atomics on the peer's shared arrays, and messages.

Every operation comes twice: blocking (``read``) and for asyncio (``aread``). Offsets and counts are in elements of
the remote array, as in NumPy.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from errno import EINVAL
from functools import cached_property
from typing import Any

from rnic.arrays.batch import Batch
from rnic.arrays.codec import HEADER_BYTES, in_c_order, is_empty, message_header, open_message
from rnic.arrays.exports import Shares
from rnic.arrays.handshake import Endpoint
from rnic.arrays.one_sided import BOUNCE_BYTES, ORDERED, OneSided
from rnic.cm.line_socket import ExchangeError, LineSocket
from rnic.cm.rc_connection import RD_ATOMIC, Pending, check_message_limits
from rnic.cm.work_queue import Operation
from rnic.link.base import format_address
from rnic.mem.space import byte_view
from rnic.runtime.wait import wait_readable
from rnic.spec.errors import VerbsError
from rnic.spec.limits import MAX_RD_ATOMIC, MTU_BYTES, MTU_CODES
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, SGE, AHAttr, GlobalRoute, QPAttr, SendWR
from rnic.verbs.memory import MR

MESSAGE_BYTES = 1 << 20
RECEIVES = 8
_MIN_RNR_TIMER = 12
_TIMEOUT = 14
_RETRIES = 7
"""With an ACK timeout of 67 ms (code 14) a dead peer is noticed within about half a second."""

_open_lines: set[LineSocket] = set()
"""Sockets of open connections: kept here so that the garbage collector does not close them before the connection."""


class Connection(OneSided):
    """A reliable connection to a peer. :func:`rnic.connect` and :meth:`rnic.arrays.listener.Listener.accept`
    make it.

    ``remote`` holds the peer's shared buffers by name, as :class:`~rnic.arrays.handshake.BufferInfo`. Messages are
    bytes or arrays, which arrive with their type and shape. Methods may be called from several threads and tasks; the
    caller protects a buffer that one of them uses.

    Every operation raises :class:`~rnic.spec.errors.WorkCompletionError` when it fails in transit or at the peer.
    The connection is then broken, as the standard requires: later operations fail too.
    """

    END = "closed the connection"

    def __init__(self, shares: Shares, message_bytes: int, receives: int, owned: bool) -> None:
        self._lines: LineSocket | None = None
        self._message_bytes = message_bytes
        self._peer_message_bytes = 0
        self._psn = random.SystemRandom().getrandbits(24)
        with ExitStack() as made:
            made.callback(self._close_lines)
            if owned:
                made.callback(shares.close)
            check_message_limits(message_bytes, receives, 0)
            super().__init__(made, shares, HEADER_BYTES + message_bytes, receives if message_bytes else 0)
            self._made = made.pop_all()

    # ----------------------------------------------------------------------------- setting up

    @cached_property
    def endpoint(self) -> Endpoint:
        """The facts that the peer needs to connect to this end."""
        ctx = self._shares.ctx
        return Endpoint(
            qpn=self.qp.qp_num,
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
        """Bring the queue pair to RTS for a peer; ``lines`` stays open, and is closed with the peer's end.

        A client calls :meth:`get_ready` before, while the listener makes its end.

        Raises:
            ExchangeError: the two ends do not fit together.
        """
        ctx, own = self._shares.ctx, self.endpoint
        gid = GID(peer.gid)
        if len(gid.address) != len(GID(own.gid).address):
            raise ExchangeError(
                f"{lines.where} has its NIC on {format_address(gid.address)}, this end on {ctx.address}: "
                "use addresses of one IP version"
            )
        if self.qp.qp_state == e.IBV_QPS_RESET:
            self.get_ready()
        attr = QPAttr()
        attr.path_mtu = MTU_CODES[min(peer.mtu, own.mtu)]
        attr.dest_qp_num = peer.qpn
        attr.rq_psn = peer.psn
        attr.sq_psn = own.psn
        attr.max_rd_atomic = min(RD_ATOMIC, peer.max_rd_atomic, MAX_RD_ATOMIC)
        attr.max_dest_rd_atomic = RD_ATOMIC
        attr.min_rnr_timer = _MIN_RNR_TIMER
        attr.timeout = _TIMEOUT
        attr.retry_cnt = _RETRIES
        attr.rnr_retry = 7
        attr.gso, attr.selective_repeat = peer.gso, peer.selective_repeat and ctx.selective_repeat
        attr.ah_attr = AHAttr(GlobalRoute(gid, ctx.gid_index), udp_dport=peer.udp_port)
        try:
            self.qp.to_rts(attr)
        except VerbsError as error:
            raise ExchangeError(f"{lines.where} cannot be connected to: {error}") from None
        self._peer_message_bytes = peer.message_bytes
        self._lines = lines
        _open_lines.add(lines)
        self.remote = {info.name: info for info in peer.buffers}
        self.peer = lines.where

    def batch(self) -> Batch:
        """Start several operations at once: ``with connection.batch() as batch``. Its end waits for all of them."""
        return Batch(self)

    # ------------------------------------------------------------------------------- messages

    async def asend(self, data: Any) -> None:
        """Send a message as :meth:`send`, for asyncio.

        Args:
            data: array or bytes, at most the peer's ``message_bytes``.
        """
        await self._wait_bounce_free()
        await self.begin_send(data)

    def begin_send(self, data: Any) -> Pending[None]:
        """Start :meth:`send`.

        Args:
            data: array or bytes, at most the peer's ``message_bytes``.

        Returns:
            The pending operation.
        """
        self._check_open()
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
        buffer, view, address = self._take_bounce()
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
            self._free_bounce(buffer)
            if mr is not None:
                mr.close()

        request = SendWR(opcode=e.IBV_WR_SEND, send_flags=ORDERED, sg=parts)
        return self._begin(Operation("SEND", release), [request], lambda: None)

    def _decode(self, data: memoryview) -> Any:
        return open_message(data)

    # --------------------------------------------------------------------------------- ending

    def peer_gone(self) -> bool:
        """True once the peer closed the connection."""
        if self._lines is None:
            return False
        # the peer sends nothing after the handshake: a readable socket means that it closed
        descriptor = self.peer_fileno()
        return descriptor < 0 or wait_readable([descriptor], 0)

    def peer_fileno(self) -> int:
        """See :class:`~rnic.cm.rc_connection.RcConnection`."""
        return -1 if self._lines is None else self._lines.sock.fileno()

    def _close_lines(self) -> None:
        if self._lines is not None:
            self._lines.close()
            _open_lines.discard(self._lines)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Connection to {self.peer} {state}, {len(self.remote)} remote buffers>"
