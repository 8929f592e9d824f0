"""The memory's side, and the exchange between both: :func:`serve` and :func:`open_window`.

The exchange is rnic's own (:mod:`rnic.arrays.handshake`): the window's endpoint, then the target's with one buffer. The
TCP connection stays. On it the window may say ``{"paxi": "stop"}``; the target stops the queue pair and answers how far
it had come, ``{"expected_psn": ..., "fault": ...}``; another pair of endpoints then makes the connection anew.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import threading
import time
from typing import Any

from rnic.arrays.exports import Shares, open_context
from rnic.arrays.handshake import VERSION, Endpoint, PeerObject, json_object, parse_endpoint, refusal_line, to_line
from rnic.arrays.listener import local_address
from rnic.cm.line_socket import DEFAULT_TIMEOUT_S, ExchangeError, LineSocket, dial, listen_socket
from rnic.paxi.bridge import BridgeConfig
from rnic.paxi.port import Port, Stopped, bring_up, endpoint_of, make_qp
from rnic.paxi.window import Window
from rnic.spec.errors import RnicError
from rnic.spec.psn import PSN_MASK
from rnic.verbs import enums as e
from rnic.verbs.attrs import QPAttr
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ

DEFAULT_PORT = 7472
MAX_WINDOWS = 64
"""Windows that a target serves at a time; it refuses the others."""
RECOVERY_TIMEOUT_S = 2.0
"""How long a window waits for the target while it makes the connection anew."""
_MEMORY = "memory"
_STOP = "stop"
_CHECK_S = 0.5
_ACCESS = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE


class Served:
    """One window's queue pair at the memory's side: a :class:`~rnic.paxi.port.Far` for a window of this process."""

    def __init__(self, shares: Shares, rng: random.Random) -> None:
        self._shares = shares
        self._rng = rng
        self._cq = CQ(shares.ctx, 4)
        self._qp = make_qp(shares.pd, self._cq, 1)

    def meet(self, mine: Endpoint) -> Endpoint:
        """See :class:`~rnic.paxi.port.Far`."""
        psn = self._rng.getrandbits(24)
        bring_up(self._qp, psn, mine, _ACCESS)
        return endpoint_of(self._qp, psn, self._shares.infos())

    def stop(self) -> Stopped:
        """See :class:`~rnic.paxi.port.Far`."""
        qp = self._qp
        # this queue pair asks for nothing itself, so only a request that was refused can have failed it
        fault = qp.qp_state == e.IBV_QPS_ERR
        if not fault:
            qp.modify(QPAttr(e.IBV_QPS_ERR), e.IBV_QP_STATE)
        return Stopped(qp.query()[0].rq_psn, fault)

    def close(self) -> None:
        """See :class:`~rnic.paxi.port.Far`."""
        # what arrived last may still want its answer
        self._shares.ctx.driver.kick()
        self._qp.close()
        self._cq.close()


class _Remote:
    """A target in another process: a :class:`~rnic.paxi.port.Far` over TCP."""

    def __init__(self, lines: LineSocket, timeout_s: float) -> None:
        self._lines = lines
        self._timeout_s = timeout_s

    def meet(self, mine: Endpoint) -> Endpoint:
        self._lines.send(mine.to_line(), self._timeout_s)
        peer = parse_endpoint(self._lines.receive(self._timeout_s), self._lines.where)
        self._timeout_s = RECOVERY_TIMEOUT_S
        return peer

    def stop(self) -> Stopped:
        lines = self._lines
        lines.send(to_line({"rnic": VERSION, "paxi": _STOP}), self._timeout_s)
        received = PeerObject(json_object(lines.receive(self._timeout_s), lines.where), lines.where)
        return Stopped(received.number("expected_psn", 0, PSN_MASK), received.flag("fault"))

    def close(self) -> None:
        self._lines.close()


class Target:
    """Serves one buffer to every window that is opened onto it. Made by :func:`serve`."""

    def __init__(self, shares: Shares, listening: socket.socket) -> None:
        self._shares = shares
        self._socket = listening
        self.address: str = listening.getsockname()[0]
        self.port: int = listening.getsockname()[1]
        self.windows = 0
        """Windows that are open now."""
        self.opened = 0
        """Windows that were ever opened."""
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._lines: set[LineSocket] = set()
        shares.ctx.driver.start()
        self._thread = threading.Thread(target=self._run, name=f"rnic paxi target {self.port}", daemon=True)
        self._thread.start()

    def wait(self, windows: int | None = None, timeout_s: float | None = None) -> bool:
        """Serve until ``windows`` windows were opened and all are closed again; by default, until :meth:`close`.

        Returns:
            Whether that came about within ``timeout_s``.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self.closed or (windows is not None and self.opened >= windows and not self.windows), timeout_s
            )

    @property
    def closed(self) -> bool:
        """Whether it serves no more."""
        return self._closing.is_set()

    def close(self) -> None:
        """Stop serving: windows get SLVERR from now on. A second call does nothing."""
        with self._changed:
            if self.closed:
                return
            self._closing.set()
            self._changed.notify_all()
            for lines in self._lines:
                _shut(lines.sock)
        _shut(self._socket)
        self._thread.join(timeout=5)
        self._socket.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, 5)
            for lines in self._lines:  # of threads that had no turn in that time
                lines.close()
        self._shares.close()

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Target on {self.address} port {self.port}{' closed' if self.closed else ''}>"

    def _run(self) -> None:
        self._socket.settimeout(_CHECK_S)
        while not self.closed:
            try:
                sock, address = self._socket.accept()
            except (TimeoutError, OSError):
                continue
            # a machine that vanished without a word must not keep its place for ever
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            lines = LineSocket(sock, f"window {address[0]} port {address[1]}")
            with self._lock:
                full = len(self._lines) >= MAX_WINDOWS
                if not full:
                    self._lines.add(lines)
            if full:
                _refuse(lines, f"{MAX_WINDOWS} windows are open")
                lines.close()
                continue
            threading.Thread(target=self._serve, args=(lines,), daemon=True).start()

    def _serve(self, lines: LineSocket) -> None:
        """One window, from its first line to the end of its connection."""
        served: Served | None = None
        try:
            peer = parse_endpoint(lines.receive(), lines.where)
            served = Served(self._shares, random.Random(secrets.randbits(64)))
            met = served.meet(peer)
            with self._changed:  # before its opener knows, who may ask at once how many there are
                self.windows += 1
                self.opened += 1
            try:
                lines.send(met.to_line())
                while True:
                    lines.send(_answer(served, lines.receive(None), lines.where))
            finally:
                with self._changed:
                    self.windows -= 1
        except RnicError as error:
            # the window is told, where it still listens; a target serves on
            _refuse(lines, str(error))
        finally:
            if served is not None:
                with contextlib.suppress(RnicError):
                    served.close()
            lines.close()
            with self._changed:
                self._lines.discard(lines)
                self._changed.notify_all()


def _shut(sock: socket.socket) -> None:
    """Wake the thread that waits on a socket, where the system lets us."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _answer(served: Served, line: bytes, where: str) -> bytes:
    """What a target says to a window's line."""
    if json_object(line, where).get("paxi") == _STOP:
        stopped = served.stop()
        return to_line({"rnic": VERSION, "expected_psn": stopped.expected_psn, "fault": stopped.fault})
    return served.meet(parse_endpoint(line, where)).to_line()


def _refuse(lines: LineSocket, reason: str) -> None:
    with contextlib.suppress(ExchangeError):
        lines.send(refusal_line(reason))


def serve(
    memory: Any,
    addr: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    *,
    readonly: bool = False,
    udp_port: int | None = None,
    context: Context | None = None,
) -> Target:
    """Let windows of other processes and machines read and write ``memory``.

    Args:
        memory: any contiguous buffer; kept alive. Read-only ones are served for reading.
        addr: local address, of the NIC too.
        port: TCP port of the exchange; 0 for any free one.
        readonly: serve for reading alone; writes are answered with DECERR.
        udp_port: UDP port of the NIC, as for :func:`rnic.listen`.
        context: use this opened device.

    Raises:
        ExchangeError: the TCP port is taken, or not a local address.
        LinkError: the same of the NIC's UDP port.
        VerbsError: EINVAL for a buffer that cannot be registered.
    """
    listening = listen_socket(addr, port)
    try:
        nic_address = listening.getsockname()[0] if context is None else context.address
        shares = Shares(context or open_context(nic_address, udp_port), owned=context is None)
        try:
            shares.add({_MEMORY: memory}, writable=not readonly)
        except RnicError:
            shares.close()
            raise
    except RnicError:
        listening.close()
        raise
    return Target(shares, listening)


def open_window(
    host: str,
    port: int = DEFAULT_PORT,
    *,
    config: BridgeConfig | None = None,
    offset: int = 0,
    addr: str | None = None,
    udp_port: int | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    context: Context | None = None,
) -> Window:
    """Open a window onto the memory that a target serves.

    Args:
        host: the target's name or address.
        port: its TCP port.
        config: what the bridge is built as: width of the bus, base and size of the window, slots. By default 512
            bits, at bus address 0, all of the memory, 16 reads and 16 writes outstanding.
        offset: of the window's first byte in the target's memory.
        addr: local address of the NIC; by default the one that leads to ``host``.
        udp_port: UDP port of the NIC, as for :func:`rnic.connect`.
        timeout_s: for the connection to be made.
        context: use this opened device.

    Raises:
        ExchangeError: nobody serves there, or it is no target, or it refuses.
        VerbsError: EINVAL for a window that leaves the target's memory.
        LinkError: no NIC can be opened on ``addr``.
    """
    lines = dial(host, port, timeout_s)
    far = _Remote(lines, timeout_s)
    try:
        shares = Shares(context or open_context(addr or local_address(lines.sock), udp_port), owned=context is None)
        try:
            rng = random.Random(secrets.randbits(64))
            window_port = Port(shares.pd, far, config or BridgeConfig(), offset, rng, time.monotonic_ns)
        except RnicError:
            shares.close()
            raise
    except RnicError:
        far.close()
        raise
    return Window(window_port, shares)
