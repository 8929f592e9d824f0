"""One side of an RC Link ping-pong: an endpoint on a UDP link, and messages segmented into packets."""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, BinaryIO, ClassVar

from rnic.cli.peer import Line, PeerError
from rnic.cli.pingpong_data import Data, DataError
from rnic.cli.pingpong_peer import Watch
from rnic.link.base import Link, LinkError, format_address, parse_address
from rnic.link.faults import FaultyLink
from rnic.link.recorder import Recorder
from rnic.link.udp import UdpLink
from rnic.link.verbs_faults import is_verbs_rule
from rnic.rclink import Path, RcLinkConfig, RcLinkPort, set_up
from rnic.rclink.endpoint import IRQ_NAMES
from rnic.rclink.numbers import PSN_MASK, RcLinkError

_SPINS = 300
_NAP_S = 0.001
_POOL_QPS = 4
"""QPs of the endpoint; one of them is chosen at random, so that both sides' numbers usually differ."""


@dataclass(slots=True)
class Settings:
    """Settings that both sides must agree on (size, iters, packet), and this side's own choices."""

    addr: str
    udp_port: int
    size: int = 4_096
    iters: int = 1_000
    packet: int = 1_344
    speed: int = 0
    """Bytes that may be sent per rate window; 0 sets no limit."""
    cc_window: int = 0
    retry_timer_ns: int = 20_000_000
    retry_limit: int = 15
    faults: Sequence[Mapping[str, object]] = ()
    """Rules of :mod:`rnic.link.fault_script` for this side's link."""
    seed: int = 1
    capture: str = ""
    timeout_s: float = 30.0


class RcLinkSide:
    """An endpoint with one QP, and the exchange of messages.

    Raises:
        RnicError: the address is not local, the port is taken, or a value is invalid.
        OSError: the capture file cannot be written.
    """

    KIND: ClassVar[str] = "rclink"
    AGREED: ClassVar[tuple[str, ...]] = ("size", "iters", "packet")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.address = parse_address(settings.addr)
        self._files = contextlib.ExitStack()
        udp = UdpLink(settings.addr, settings.udp_port, gso=False, gro=False)
        self._files.callback(udp.close)
        try:
            link: Link = udp
            if settings.capture:
                file: BinaryIO = FilePath(settings.capture).open("wb")  # noqa: SIM115 - closed with the side
                self._files.callback(file.close)
                link = Recorder(link, file, solve_idents=False)
            if any(is_verbs_rule(rule) for rule in settings.faults):
                raise ValueError("rules for verbs are for RDMA devices: give rules for packets")
            if settings.faults:
                rng = random.Random(settings.seed)
                link = FaultyLink(link, clock=time.monotonic_ns, rng=rng, script=settings.faults)
            self._link = link
            config = RcLinkConfig(
                port=udp.port,
                qp_num=_POOL_QPS,
                ost=max(1, min(512, udp.window_packets)),
                pkt_len=settings.packet,
                retry_timer_ns=settings.retry_timer_ns,
                retry_limit=settings.retry_limit,
                cc_window=settings.cc_window,
                type2_port=udp.port,
            )
            self.port = RcLinkPort(link, config, time.monotonic_ns)
        except BaseException:
            self._files.close()
            raise
        self.qpid = secrets.randbelow(_POOL_QPS)
        self.psn = secrets.randbits(12)

    @property
    def udp_port(self) -> int:
        """UDP port of the link."""
        return self._link.port

    def describe(self) -> dict[str, object]:
        """Return what the peer needs to know."""
        return {"address": self.address.hex(), "udp_port": self.udp_port, "qpid": self.qpid, "psn": self.psn}

    def bring_up(self, hello: Mapping[str, Any]) -> None:
        """Set up the QP toward the peer's; raise ``ValueError`` if the peer's values are invalid."""
        address = bytes.fromhex(str(hello["address"]))
        qpid, psn, udp_port = numbers = [int(str(hello[name])) for name in ("qpid", "psn", "udp_port")]
        if len(address) not in (4, 16) or min(numbers) < 0 or udp_port > 0xFFFF:
            raise ValueError(hello)
        self.peer = address
        self.remote = {"qpid": qpid, "psn": psn & PSN_MASK, "udp_port": udp_port}
        path = Path(address, qpid, udp_port, self.psn, psn & PSN_MASK)
        if self.settings.speed:
            path = Path(address, qpid, udp_port, self.psn, psn & PSN_MASK, speed=self.settings.speed)
        try:
            set_up(self.port.endpoint, self.qpid, path)
        except (RcLinkError, LinkError) as error:
            raise ValueError(str(error)) from None

    def show(self, kind: str) -> None:
        """Print this side's QP or the peer's."""
        address, end = self.settings.addr, {"qpid": self.qpid, "psn": self.psn, "udp_port": self.udp_port}
        if kind == "remote":
            address, end = format_address(self.peer), self.remote
        print(
            f"  {kind + ' QP:':<11} {end['qpid']}, PSN {end['psn']:#05x}, {address} UDP port {end['udp_port']}",
            flush=True,
        )

    def play(self, data: Data, first: bool, line: Line) -> float:
        """Exchange all messages; return the time in seconds.

        Args:
            data: fills and checks them.
            first: whether this side sends the first one.
            line: TCP line on which the peer reports that it is done.

        Raises:
            PeerError: the data is wrong, or the peer is silent or gone.
        """
        watch = Watch(line, self.settings.timeout_s)
        start = time.monotonic()
        for number in range(self.settings.iters):
            if first:
                self._send(data, watch)
            self._receive(data, number, watch)
            if not first:
                self._send(data, watch)
        # the last packets sent must be acknowledged before this side is done
        self._drive(watch, lambda: self.port.endpoint.free_slots == self.port.endpoint.config.ost)
        seconds = time.monotonic() - start
        line.send(done=True)
        self._drive(watch, lambda: watch.peer_done)
        return seconds

    def _send(self, data: Data, watch: Watch) -> None:
        settings, endpoint = self.settings, self.port.endpoint
        message = memoryview(bytearray(settings.size))
        data.fill(0, message)
        for at in range(0, settings.size, settings.packet):
            if not endpoint.free_slots:
                self._drive(watch, lambda: endpoint.free_slots > 0)
            endpoint.send(self.qpid, message[at : at + settings.packet])
        self.port.progress()

    def _receive(self, data: Data, number: int, watch: Watch) -> None:
        size, endpoint = self.settings.size, self.port.endpoint
        message = bytearray()
        while len(message) < size:
            received = endpoint.recv()
            if received is None:
                self._drive(watch, lambda: endpoint.waiting > 0)
                continue
            message += received.payload
            watch.seen()
        try:
            data.check(0, memoryview(message))
        except DataError as error:
            raise PeerError(f"wrong data in message {number} (QP {self.qpid}): {error}") from None

    def _drive(self, watch: Watch, until: Callable[[], bool]) -> None:
        """Make progress until ``until()`` is true."""
        spins = 0
        while not until():
            if self.port.progress():
                spins = 0
                interrupt = self.port.endpoint.next_interrupt()
                if interrupt is not None:
                    code, qpid = interrupt
                    raise PeerError(f"QP {qpid}: interrupt {IRQ_NAMES[code]!r}: is the peer alive?")
                continue
            spins += 1
            if spins > _SPINS:
                watch.wait(self._link.filenos(), self._nap_s())

    def _nap_s(self) -> float:
        deadline = self.port.next_deadline_ns()
        if deadline is None:
            return _NAP_S
        return min(max((deadline - time.monotonic_ns()) / 1e9, 0), _NAP_S)

    def close(self) -> None:
        """Release link and files."""
        self._files.close()
