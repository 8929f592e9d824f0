"""One end of a performance test: queue pairs with their buffer, and the TCP line that synchronizes both ends."""

from __future__ import annotations

import random
import secrets
import select
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rnic.cli.faults import rate_rule
from rnic.cli.peer import Line, PeerError
from rnic.link.base import Link
from rnic.link.faults import FaultyLink
from rnic.link.recorder import Recorder
from rnic.link.udp import UdpLink
from rnic.link.verbs_faults import for_packets
from rnic.spec.limits import GRH_BYTES, MTU_BYTES, MTU_CODES, ROCE_UDP_PORT
from rnic.verbs import (
    AH,
    CQ,
    GID,
    MR,
    PD,
    QP,
    SGE,
    WC,
    AHAttr,
    Context,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
)
from rnic.verbs import enums as e
from rnic.verbs import open as open_device
from rnic.verbs.on_command import fail_verbs

QKEY = 0x11111111
SERVICES = {"RC": e.IBV_QPT_RC, "UC": e.IBV_QPT_UC, "UD": e.IBV_QPT_UD}
_SPINS_BEFORE_SLEEP = 2_000
_SLEEP_S = 0.002
ATOMIC_BYTES = 8

Rules = Sequence[Mapping[str, object]]
"""Fault rules of :mod:`rnic.link.fault_script`."""


class Endpoint:
    """A device context with queue pairs that share one buffer and one completion queue.

    Args:
        addr: local IP address.
        udp_port: UDP port, ``None`` for 4791, 0 for any.
        service: ``RC``, ``UC`` or ``UD``.
        size: largest message in bytes; the buffer has one half for sending and one for receiving.
        depth: outstanding work requests of each queue pair.
        mtu: path MTU in bytes, 0 for the port's.
        capture: pcapng file to record this end's packets in.
        attach: a device of this user's NIC process instead of one in this process.
        faults: rules of :mod:`rnic.link.fault_script` for a device in this process.
        gid_index: entry of the GID table.
        qps: queue pairs, at least 1.
    """

    def __init__(
        self,
        addr: str,
        udp_port: int | None,
        service: str,
        size: int,
        depth: int,
        mtu: int,
        capture: Path | None = None,
        attach: bool = False,
        faults: Rules = (),
        gid_index: int = 0,
        qps: int = 1,
    ) -> None:
        self._capture: BinaryIO | None = None
        self._gid_index = gid_index
        one_in = _drops_one_in(faults)
        if attach:
            self.ctx = open_device(addr, port=udp_port, capture=capture)
        elif capture is None and (one_in or not faults):
            self.ctx = Context(addr=addr, port=udp_port)
        else:
            link: Link = UdpLink(addr, ROCE_UDP_PORT if udp_port is None else udp_port)
            if capture is not None:
                self._capture = open_capture(capture)
                link = Recorder(link, self._capture)
            if faults and for_packets(faults) and not one_in:
                link = FaultyLink(link, clock=time.monotonic_ns, rng=random.Random(len(faults)), script=faults)
            self.ctx = Context(link=link)
            fail_verbs(self.ctx, faults)
        if one_in:
            self.ctx.runtime.drop_one_in(one_in, seed=one_in)
        self.driver = self.ctx.driver
        self.service = service
        self.depth = depth
        port = self.ctx.query_port()
        self.mtu = MTU_CODES.get(mtu, 0) if mtu else port.active_mtu
        if not 0 < self.mtu <= port.active_mtu:
            allowed = ", ".join(str(size) for size, code in MTU_CODES.items() if code <= port.active_mtu)
            self.ctx.close()
            raise PeerError(f"mtu={mtu}: this port takes {allowed}: give -m {MTU_BYTES[port.active_mtu]}")
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 4 * depth * qps + 16)
        cap = QPCap(depth + 1, 2 * depth + 1, 1, 1, 0)
        init = QPInitAttr(SERVICES[service], cap=cap, scq=self.cq, rcq=self.cq)
        self.qps = [QP(self.pd, init) for _ in range(qps)]
        self.qp = self.qps[0]
        self.slot = max(size + GRH_BYTES, 64)
        self.buffer = bytearray(2 * self.slot)
        rights = (
            e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
        )
        self.mr = MR(self.pd, self.buffer, rights)
        self.out = self.mr.buf
        self.into = self.mr.buf + self.slot
        self._receives = [0] * qps
        self.psn = secrets.randbits(24)
        self.ah: AH | None = None
        self.peer: dict[str, Any] = {}

    def describe(self) -> dict[str, Any]:
        """Return what the peer must know."""
        return {
            "qpns": [qp.qp_num for qp in self.qps],
            "psn": self.psn,
            "gid": self.ctx.query_gid(1, self._gid_index).raw.hex(),
            "udp_port": self.ctx.udp_port,
            "mtu": self.mtu,
            "rkey": self.mr.rkey,
            "into": self.into,
            "out": self.out,
            "gso": True,
            "keeps": self.ctx.selective_repeat,
        }

    def connect(self, peer: dict[str, Any]) -> None:
        """Bring each queue pair to RTS toward the peer's queue pair of the same index."""
        self.peer = peer
        if len(peer["qpns"]) != len(self.qps):
            raise PeerError(f"qps={len(self.qps)}: the peer has {len(peer['qpns'])}: give both the same -q")
        attr = QPAttr()
        attr.path_mtu = self.mtu = min(self.mtu, int(peer["mtu"]))
        attr.rq_psn = int(peer["psn"])
        attr.sq_psn = self.psn
        attr.qkey = QKEY
        attr.qp_access_flags = self.mr.access
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 16
        attr.timeout = 14
        attr.gso = bool(peer.get("gso"))
        attr.selective_repeat = self.ctx.selective_repeat and bool(peer.get("keeps"))
        path = AHAttr(GlobalRoute(GID(bytes.fromhex(peer["gid"])), self._gid_index), udp_dport=int(peer["udp_port"]))
        attr.ah_attr = path
        for qp, number in zip(self.qps, peer["qpns"], strict=True):
            attr.dest_qp_num = int(number)
            qp.to_rts(attr)
        if self.service == "UD":
            self.ah = AH(self.pd, path)

    def fill_receives(self, completions: Iterable[WC] = ()) -> None:
        """Post receive entries, into the second half of the buffer, until each queue pair has twice the depth.

        Args:
            completions: completions since the last call; those of sends are ignored.
        """
        for wc in completions:
            if wc.opcode & e.IBV_WC_RECV:
                self._receives[wc.wr_id] -= 1
        for at, qp in enumerate(self.qps):
            missing = 2 * self.depth - self._receives[at]
            if missing:
                wr = RecvWR(at, sg=[SGE(self.into, self.slot, self.mr.lkey)])
                qp.post_recv([wr] * missing)
                self._receives[at] += missing

    def wait(self, done: Any, timeout_s: float = 60.0, line: Line | None = None) -> None:
        """Drive the NIC until ``done()`` is true: spin for a while, then sleep on the socket.

        Raises:
            PeerError: the time is up, or the peer closed the connection.
        """
        progress = self.driver.progress
        idle = 0
        end = time.monotonic() + timeout_s
        while not done():
            if progress():
                idle = 0
                continue
            idle += 1
            if idle % 512 == 0:
                if time.monotonic() > end:
                    raise PeerError(f"nothing completed within {timeout_s:g} s")
                if idle > _SPINS_BEFORE_SLEEP:
                    waited_for = self.driver.filenos()
                    if line is not None:
                        waited_for.append(line.sock.fileno())
                    select.select(waited_for, [], [], _SLEEP_S)

    def close(self) -> None:
        """Release everything."""
        self.ctx.close()
        if self._capture is not None:
            self._capture.close()


def _drops_one_in(faults: Rules) -> int:
    """Return N if the rules only drop one arriving packet in N, which the engine does itself; else 0."""
    rate = faults[0].get("probability") if len(faults) == 1 else None
    if not isinstance(rate, float | int) or faults[0] != rate_rule("drop", rate):
        return 0
    one_in = round(1 / rate)
    return one_in if abs(one_in * rate - 1) < 1e-6 else 0


def open_capture(path: Path) -> BinaryIO:
    """Open a capture file; raise :class:`PeerError` if that fails."""
    try:
        return path.open("wb")
    except OSError as error:
        raise PeerError(f"--capture {path} cannot be written: {error.strerror}") from None


def dial(host: str, port: int, timeout_s: float = 10.0) -> Line:
    """Connect to the TCP line of ``rnic perf --listen``."""
    try:
        return Line(socket.create_connection((host, port), timeout=timeout_s))
    except OSError as error:
        words = f"no rnic perf answers at {host} port {port} ({error.strerror or error})"
        raise PeerError(
            f"{words}: start one there with rnic perf write_bw --listen --addr {host} --port {port}"
        ) from None
