"""The memory's side, and the handshake of both sides: :func:`serve` and :func:`open_window`.

The handshake is rnic's own (:mod:`rnic.arrays.handshake`): the window's endpoint, then the target's with one buffer.
The TCP connection stays open. If the window sends ``{"paxi": "stop"}``, the target stops the queue pair and answers
with its progress, ``{"expected_psn": ..., "fault": ...}``; another exchange of endpoints then reconnects. A window over
RC Link sends ``{"paxi": "rclink", ...}`` instead of an endpoint, with its address, UDP port, QP and PSN, and gets the
target's, with the size of the memory (:mod:`rnic.paxi.rclink`).
"""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import threading
import time
from errno import EINVAL
from typing import Any

from rnic.arrays.exports import Shares, open_context
from rnic.arrays.handshake import VERSION, Endpoint, PeerObject, json_object, parse_endpoint, refusal_line, to_line
from rnic.arrays.listener import local_address
from rnic.cm.line_socket import DEFAULT_TIMEOUT_S, ExchangeError, LineSocket, dial, listen_socket
from rnic.mem.space import byte_view
from rnic.paxi.bridge import BridgeConfig
from rnic.paxi.port import Port, Stopped, bring_up, endpoint_of, make_qp
from rnic.paxi.rclink import TRANSPORT, Driver, RcEnd, RcPort, RcServed, parse_end
from rnic.paxi.window import Window
from rnic.spec.errors import RnicError, VerbsError
from rnic.spec.psn import PSN_MASK
from rnic.verbs import enums as e
from rnic.verbs.attrs import QPAttr
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ

DEFAULT_PORT = 7472
TRANSPORTS = ("rocev2", TRANSPORT)
MAX_WINDOWS = 64
"""Most windows that a target serves at a time; it refuses others."""
RECOVERY_TIMEOUT_S = 2.0
"""Time that a window waits for the target during a reconnect."""
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
        # this queue pair sends no requests, so only a refused request of the peer can put it into the error state
        fault = qp.qp_state == e.IBV_QPS_ERR
        if not fault:
            qp.modify(QPAttr(e.IBV_QPS_ERR), e.IBV_QP_STATE)
        return Stopped(qp.query()[0].rq_psn, fault)

    def close(self) -> None:
        """See :class:`~rnic.paxi.port.Far`."""
        # the last request received may still need its response
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


class _RcRemote:
    """A target in another process: a :class:`~rnic.paxi.rclink.RcFar` over TCP."""

    def __init__(self, lines: LineSocket, timeout_s: float) -> None:
        self._remote = _Remote(lines, timeout_s)
        self._lines = lines
        self._timeout_s = timeout_s

    def meet(self, mine: RcEnd) -> RcEnd:
        self._lines.send(mine.to_line(), self._timeout_s)
        peer = parse_end(self._lines.receive(self._timeout_s), self._lines.where)
        self._timeout_s = RECOVERY_TIMEOUT_S
        return peer

    def stop(self) -> Stopped:
        return self._remote.stop()

    def close(self) -> None:
        self._lines.close()


class _RcWindow:
    """One window over RC Link at the memory's side, on a socket of its own."""

    def __init__(self, target: Target) -> None:
        self._driver = Driver(target.address, random.Random(secrets.randbits(64)))
        self._served = RcServed(self._driver.end, target.memory, target.readonly)
        self._driver.turn = self._served.turn

    def meet(self, line: bytes, where: str) -> bytes:
        """Return the answer to a window that connects or reconnects."""
        with self._driver.lock:
            return self._served.meet(parse_end(line, where)).to_line()

    def stop(self) -> Stopped:
        """Stop after the window's connection broke; return the progress."""
        with self._driver.lock:
            return self._served.stop()

    def close(self) -> None:
        with self._driver.lock:
            self._served.close()
        self._driver.close()


class _RdmaWindow:
    """One window behind a queue pair at the memory's side."""

    def __init__(self, target: Target) -> None:
        self._served = Served(target.shares, random.Random(secrets.randbits(64)))

    def meet(self, line: bytes, where: str) -> bytes:
        """Return the answer to a window that connects or reconnects."""
        return self._served.meet(parse_endpoint(line, where)).to_line()

    def stop(self) -> Stopped:
        """Stop after the window's connection broke; return the progress."""
        return self._served.stop()

    def close(self) -> None:
        self._served.close()


class Target:
    """Server of one buffer to all windows that open it. Made by :func:`serve`."""

    def __init__(self, shares: Shares, listening: socket.socket, memory: memoryview, readonly: bool) -> None:
        self.shares = self._shares = shares
        self.memory = memory
        self.readonly = readonly
        self._socket = listening
        self.address: str = listening.getsockname()[0]
        self.port: int = listening.getsockname()[1]
        self.windows = 0
        """Number of open windows."""
        self.opened = 0
        """Number of windows opened so far."""
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._lines: set[LineSocket] = set()
        shares.ctx.driver.start()
        self._thread = threading.Thread(target=self._run, name=f"rnic paxi target {self.port}", daemon=True)
        self._thread.start()

    def wait(self, windows: int | None = None, timeout_s: float | None = None) -> bool:
        """Serve until ``windows`` windows were opened and all are closed; by default until :meth:`close`.

        Returns:
            False on timeout.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self.closed or (windows is not None and self.opened >= windows and not self.windows), timeout_s
            )

    @property
    def closed(self) -> bool:
        """True once it has stopped serving."""
        return self._closing.is_set()

    def close(self) -> None:
        """Stop serving; windows then get SLVERR. A second call does nothing."""
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
            for lines in self._lines:  # of threads that have not ended in that time
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
            # a machine that vanished without closing must not keep its place forever
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
        """Serve one window, from its first line to the end of its connection."""
        served: _RdmaWindow | _RcWindow | None = None
        try:
            line = lines.receive()
            over_rclink = json_object(line, lines.where).get("paxi") == TRANSPORT
            served = _RcWindow(self) if over_rclink else _RdmaWindow(self)
            met = served.meet(line, lines.where)
            with self._changed:  # before its opener is answered, which may read the count at once
                self.windows += 1
                self.opened += 1
            try:
                lines.send(met)
                while True:
                    lines.send(_answer(served, lines.receive(None), lines.where))
            finally:
                with self._changed:
                    self.windows -= 1
        except RnicError as error:
            # report to the window if it still listens; the target continues to serve
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
    """Wake the thread that waits on a socket, if the kernel allows it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _answer(served: _RdmaWindow | _RcWindow, line: bytes, where: str) -> bytes:
    """Return the target's answer to a line of a window."""
    if json_object(line, where).get("paxi") == _STOP:
        stopped = served.stop()
        return to_line({"rnic": VERSION, "expected_psn": stopped.expected_psn, "fault": stopped.fault})
    return served.meet(line, where)


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
        memory: any contiguous buffer; it is kept alive. A read-only one is served for reading only.
        addr: local address, also of the NIC.
        port: TCP port of the handshake; 0 for any free one.
        readonly: true to serve for reading only; writes get DECERR.
        udp_port: UDP port of the NIC, as for :func:`rnic.listen`.
        context: opened device to use.

    Raises:
        ExchangeError: the TCP port is in use, or the address is not local.
        LinkError: the NIC's UDP port is in use, or the address is not local.
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
    view = byte_view(memory)
    return Target(shares, listening, view, readonly or view.readonly)


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
    transport: str = "rocev2",
) -> Window:
    """Open a window onto the memory that a target serves.

    Args:
        host: the target's name or address.
        port: its TCP port.
        config: parameters of the bridge: bus width, base and size of the window, slots. By default 512 bits, bus
            address 0, all of the memory, 16 outstanding reads and 16 outstanding writes.
        offset: offset of the window's first byte in the target's memory.
        addr: local address of the NIC; by default that of the route to ``host``.
        udp_port: UDP port of the NIC, as for :func:`rnic.connect`.
        timeout_s: time to connect, in seconds.
        context: opened device to use.
        transport: ``"rocev2"``, or ``"rclink"`` for RC Link on the window's own UDP socket, without a NIC.

    Raises:
        ExchangeError: no server answers, it is not a PAXI target, or it refuses.
        VerbsError: EINVAL for a window outside the target's memory, or an unknown transport.
        LinkError: no NIC can be opened on ``addr``.
    """
    if transport not in TRANSPORTS:
        raise VerbsError(EINVAL, f"transport={transport!r}: use {' or '.join(TRANSPORTS)}")
    lines = dial(host, port, timeout_s)
    if transport == TRANSPORT:
        local = addr or local_address(lines.sock)
        return _over_rclink(lines, local, config or BridgeConfig(), offset, udp_port, timeout_s)
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


def _over_rclink(
    lines: LineSocket, addr: str, config: BridgeConfig, offset: int, udp_port: int | None, timeout_s: float
) -> Window:
    """Return a window over RC Link."""
    try:
        driver = Driver(addr, random.Random(secrets.randbits(64)), udp_port=udp_port or 0)
    except RnicError:
        lines.close()
        raise
    # the port closes driver and lines, even if its constructor fails
    port = RcPort(driver.end, _RcRemote(lines, timeout_s), config, offset, driver.wait, driver.lock, driver.close)
    driver.turn = port.idle
    return Window(port)
