"""A bridge over RC Link instead of RoCEv2, as in SUE2.0 (004 7.8): one QP for each connection.

:mod:`rnic.paxi.messages` defines the messages. This module has the two ends on an endpoint of :mod:`rnic.rclink`, and
the driver of an endpoint on a socket: RC Link has no engine of its own, so a thread receives packets while no call
waits.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from errno import EIO
from typing import Any, Final, Protocol

from rnic.arrays.handshake import VERSION, PeerObject, json_object, to_line
from rnic.link.base import LinkError, format_address, parse_address
from rnic.link.udp import UdpLink
from rnic.paxi import bridge as b
from rnic.paxi.bridge import Bridge, BridgeConfig
from rnic.paxi.messages import HEADER, Memory, Requester
from rnic.paxi.port import Carrier, Remote, Stopped
from rnic.rclink import Path, RcLinkConfig, RcLinkPort, Recovery, set_up
from rnic.rclink.endpoint import IRQ_RETRY_OUT, RcLinkEndpoint
from rnic.rclink.numbers import PSN_MASK, TYPE1_PKT_LEN
from rnic.runtime.report import log_report
from rnic.runtime.wait import wait_readable
from rnic.spec.axi import BOUNDARY_BYTES
from rnic.spec.errors import VerbsError
from rnic.spec.psn import PSN_MASK as COUNT_MASK

TRANSPORT: Final = "rclink"
QPS: Final = 16
"""Number of QPs. A new connection takes the next one, so that packets in flight to an old one meet a disabled QP."""
PIECE: Final = TYPE1_PKT_LEN - HEADER.size
"""Most bytes of data in a packet."""
ANSWER_NS: Final = 1_000_000_000
"""Time without an answer after which a window asks the remote for its progress and reconnects."""
RETRY_TIMER_NS: Final = 4_000_000
"""Retry timeout (Go-Back-N); 15 in a row end the connection."""
_SPINS: Final = 200
_NAP_S: Final = 0.001
_IDLE_S: Final = 0.05


def rclink_config(port: int) -> RcLinkConfig:
    """Return the endpoint configuration of a window or a target; ``port`` is the UDP port of its link."""
    return RcLinkConfig(port=port, type2_port=port, qp_num=QPS, retry_timer_ns=RETRY_TIMER_NS)


@dataclass(frozen=True, slots=True)
class RcEnd:
    """Parameters of one end, sent to the other."""

    address: bytes
    """4 or 16 bytes."""
    udp_port: int
    qpid: int
    psn: int
    """PSN of the first packet that it sends."""
    size: int = 0
    """Bytes of its memory, from address 0 on."""

    def to_line(self) -> bytes:
        """Return the line of the exchange."""
        return to_line(
            {
                "rnic": VERSION,
                "paxi": TRANSPORT,
                "address": format_address(self.address),
                "udp_port": self.udp_port,
                "qpid": self.qpid,
                "psn": self.psn,
                "size": self.size,
            }
        )


def parse_end(line: bytes, where: str) -> RcEnd:
    """Parse the parameters of a peer; raise :class:`~rnic.cm.line_socket.ExchangeError` if they are invalid."""
    values = json_object(line, where)
    said = PeerObject(values, where)
    if values.get("paxi") != TRANSPORT:
        said.refuse("paxi", values.get("paxi"), f"{TRANSPORT!r}: both ends name one transport")
    text = said.text("address", 50)
    try:
        address = parse_address(text)
    except LinkError:
        said.refuse("address", text, "an IP address")
    return RcEnd(
        address,
        said.number("udp_port", 1, 0xFFFF),
        said.number("qpid", 0, QPS - 1),
        said.number("psn", 0, PSN_MASK),
        said.number("size", 0, 1 << 63),
    )


class RcFar(Remote, Protocol):
    """The remote's side of a window over RC Link."""

    def meet(self, mine: RcEnd) -> RcEnd:
        """Connect a QP to this end; return its parameters."""


class Drive(Protocol):
    """An endpoint with a progress function, such as :class:`~rnic.rclink.port.RcLinkPort`."""

    @property
    def endpoint(self) -> RcLinkEndpoint:
        """The endpoint."""

    @property
    def clock(self) -> Callable[[], int]:
        """The time in nanoseconds."""

    def progress(self) -> bool:
        """Run one round."""


class End:
    """One end: an endpoint, and the QP of the current connection.

    Args:
        port: the endpoint, configured by :func:`rclink_config`.
        address: address of its link; ``udp_port`` is the link's UDP port.
        rng: source of PSNs.
    """

    def __init__(self, port: Drive, address: bytes, udp_port: int, rng: random.Random) -> None:
        self.port = port
        self.endpoint = port.endpoint
        self._address = address
        self._udp_port = udp_port
        self._rng = rng
        self.qpid = QPS - 1
        self._used = False
        self._psn = 0
        self._freeing: list[Recovery] = []

    def offer(self, size: int = 0) -> RcEnd:
        """Move on to the next QP and return its parameters."""
        self.retire()
        self.qpid, self._psn = (self.qpid + 1) % QPS, self._rng.getrandbits(12)
        return RcEnd(self._address, self._udp_port, self.qpid, self._psn, size)

    def bring_up(self, peer: RcEnd) -> None:
        """Connect the offered QP to the peer's."""
        set_up(self.endpoint, self.qpid, Path(peer.address, peer.qpid, peer.udp_port, self._psn, peer.psn))
        self._used = True

    def retire(self) -> None:
        """Disable the QP and start freeing its slots."""
        if self._used:
            self._used = False
            self._freeing.append(Recovery(self.endpoint, self.qpid))
        self.turn()

    def turn(self) -> None:
        """Continue freeing slots."""
        now_ns = self.port.clock()
        self._freeing = [each for each in self._freeing if each.advance(now_ns) is not None]

    def lost(self) -> bool:
        """True if the current QP reached its retry limit."""
        found = False
        while (interrupt := self.endpoint.next_interrupt()) is not None:
            found |= interrupt == (IRQ_RETRY_OUT, self.qpid)
        return found


class RcPort(Carrier):
    """A bridge whose remote is behind a QP of RC Link.

    Args:
        end: this end.
        far: the remote's side; closed with the port.
        config: as for :class:`~rnic.paxi.port.Port`.
        offset: offset of the window's first byte in the remote's memory.
        wait: drives the endpoint until its first argument returns true; the second is a timeout in seconds.
        lock: held during all accesses to the endpoint, which a thread may drive as well.
        release: called once, when the port is closed.

    Raises:
        ExchangeError: the remote does not answer.
        VerbsError: EINVAL for a window that leaves the remote's memory.
    """

    def __init__(
        self,
        end: End,
        far: RcFar,
        config: BridgeConfig,
        offset: int,
        wait: Callable[[Callable[[], bool], float | None], bool],
        lock: AbstractContextManager[Any] | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(far, end.port.clock)
        self._lock = nullcontext() if lock is None else lock
        self._heard_ns = 0
        self._end = end
        self._far = far
        self._waiting = wait
        self._released = release
        self._staging = memoryview(bytearray(config.staging_bytes))
        try:
            with self._lock:
                peer = self._meet()
            config = self.fit(config, offset, 0, peer.size)
        except BaseException:
            self.close()
            raise
        self.peer = f"{format_address(peer.address)} UDP port {peer.udp_port}, RC Link"
        self.bridge = Bridge(config, self._staging)
        with self._lock:
            self._begin()

    @property
    def mtu(self) -> int:
        """Most bytes of data in one packet."""
        return PIECE

    def progress(self) -> bool:
        """See :class:`~rnic.paxi.port.Carrier`."""
        with self._lock:
            return super().progress()

    def recover(self) -> None:
        """See :class:`~rnic.paxi.port.Carrier`."""
        with self._lock:
            super().recover()

    def idle(self) -> bool:
        """Free slots of old connections while no call waits. Return false: nothing was received."""
        self._end.turn()
        return False

    def _meet(self) -> RcEnd:
        peer = self._far.meet(self._end.offer())
        self._end.bring_up(peer)
        return peer

    def _begin(self) -> None:
        self._requester = Requester(self._end.endpoint, self._end.qpid, PIECE, self._staging, self._done)
        # a request counts as one packet, since the remote counts requests from 0
        self.bridge.connected(0, BOUNDARY_BYTES)

    def _done(self, serial: int, refused: bool) -> None:
        self._heard_ns = self.clock()
        self.bridge.complete(serial, b.REFUSED if refused else b.SUCCESS, self.clock())

    def _post(self) -> None:
        requester = self._requester
        if not requester.flying:
            self._heard_ns = self.clock()
        while (request := self.bridge.next_request()) is not None:
            requester.post(request)
        requester.send()

    def _complete(self) -> None:
        end, requester = self._end, self._requester
        requester.turn()
        end.port.progress()
        end.turn()
        requester.turn()
        # a remote whose QP stopped because its answers were lost stays silent
        silent = bool(requester.flying) and self.clock() - self._heard_ns > ANSWER_NS
        if end.lost() or requester.refused or silent:
            self._break()

    def _break(self) -> None:
        flying = self._requester.flying
        while flying:
            self.bridge.complete(flying.popleft().serial, b.UNKNOWN, self.clock())

    def _renew(self) -> None:
        self._meet()
        self._begin()

    def _wait(self, turn: Callable[[], bool], timeout_s: float | None) -> bool:
        return self._waiting(turn, timeout_s)

    def _release(self) -> None:
        self._end.retire()
        self._released()


class RcServed:
    """The memory's side of one window: a :class:`RcFar` for a window of this process.

    Args:
        end: this end.
        memory: the served memory.
        readonly: true to refuse writes.
    """

    def __init__(self, end: End, memory: memoryview, readonly: bool) -> None:
        self._end = end
        self._bytes = memory
        self._readonly = readonly
        self._memory: Memory | None = None

    def meet(self, mine: RcEnd) -> RcEnd:
        """See :class:`RcFar`."""
        end = self._end
        offered = end.offer(len(self._bytes))
        end.bring_up(mine)
        self._memory = Memory(end.endpoint, end.qpid, PIECE, self._bytes, self._readonly)
        return offered

    def stop(self) -> Stopped:
        """See :class:`~rnic.paxi.port.Remote`."""
        memory, self._memory = self._memory, None
        self._end.retire()
        return Stopped(0, False) if memory is None else Stopped(memory.executed & COUNT_MASK, memory.refused)

    def close(self) -> None:
        """See :class:`~rnic.paxi.port.Remote`."""
        self.stop()

    def turn(self) -> bool:
        """Execute received requests; return whether there were any."""
        self._end.turn()
        if self._end.lost():
            self._end.retire()  # the window notices, asks for our progress, and reconnects
        return self._memory is not None and self._memory.turn()


class Driver:
    """An endpoint on its own UDP socket, and the thread that drives it.

    Args:
        address: local IP address.
        rng: source of PSNs.
        turn: called after each round under :attr:`lock`; returns whether it did anything.
        udp_port: UDP port of the socket; any free one by default.
        wrap: wraps the link in middleware, such as faults.
    """

    def __init__(
        self,
        address: str,
        rng: random.Random,
        turn: Callable[[], bool] = lambda: False,
        udp_port: int = 0,
        wrap: Callable[[UdpLink], Any] = lambda link: link,
    ) -> None:
        self._udp = UdpLink(address, udp_port, gso=False, gro=False)
        self.port = RcLinkPort(wrap(self._udp), rclink_config(self._udp.port), time.monotonic_ns)
        self.end = End(self.port, parse_address(address), self._udp.port, rng)
        self.turn = turn
        self.lock = threading.RLock()
        self._closing = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="rnic paxi rclink", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._drive()
        except Exception as error:  # noqa: BLE001 - reported by wait, and here for a target, for which no call waits
            self._failure = error
            log_report("the thread of an RC Link endpoint has ended", error)

    def _drive(self) -> None:
        while not self._closing.is_set():
            with self.lock:
                moved = self.port.progress()
                moved = self.turn() or moved
                deadline = self.port.next_deadline_ns()
            if not moved:
                nap = _IDLE_S if deadline is None else (deadline - time.monotonic_ns()) / 1e9
                wait_readable(self._udp.filenos(), min(max(nap, 0), _IDLE_S))

    def wait(self, turn: Callable[[], bool], timeout_s: float | None) -> bool:
        """Call ``turn`` under the lock until it returns true or the timeout ends.

        Raises:
            VerbsError: EIO if the thread has ended by an exception, which is the cause.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        spins = 0
        while True:
            with self.lock:
                if turn():
                    return True
            if self._failure is not None:
                words = f"the thread of this RC Link endpoint has ended by {self._failure!r}: open the window anew"
                raise VerbsError(EIO, words) from self._failure
            if end is not None and time.monotonic() >= end:
                return False
            spins += 1
            if spins > _SPINS:
                wait_readable(self._udp.filenos(), _NAP_S)

    def close(self) -> None:
        """Stop the thread and close the socket; a second call does nothing."""
        if not self._closing.is_set():
            self._closing.set()
            if self._thread is not threading.current_thread():
                self._thread.join(timeout=5)
            self._udp.close()
