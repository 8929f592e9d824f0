"""Count functions of the engine that messages enter, with an engine that counts (:mod:`bench_calls`)."""

from __future__ import annotations

import ctypes
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import rnic
from rnic.engine import _engine
from rnic.testing import own_network
from rnic.verbs import CQ, GID, MR, PD, QP, SGE, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, SendWR
from rnic.verbs import enums as e

MESSAGES = 1_000
"""In one turn."""
WARM_UP = 2_000
LIMIT_S = 20.0
MOST_FUNCTIONS = 16_384


class Counter:
    """The counters of the engine that counts."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_engine.__file__)
        self._library.calls_here.restype = self._library.calls_elsewhere.restype = ctypes.c_uint64
        self._library.calls_of.restype = ctypes.c_uint64

    def totals(self) -> tuple[int, int]:
        """Return the calls of this thread, and of all others."""
        return self._library.calls_here(), self._library.calls_elsewhere()

    def functions(self, here: bool) -> dict[int, int]:
        """Return the calls of each function, by its distance from ``calls_of``."""
        places, calls = (ctypes.c_uint64 * MOST_FUNCTIONS)(), (ctypes.c_uint64 * MOST_FUNCTIONS)()
        found: dict[int, int] = {}
        for at in range(self._library.calls_of(int(here), places, calls, ctypes.c_uint64(MOST_FUNCTIONS))):
            found[places[at]] = found.get(places[at], 0) + calls[at]
        return found


class End:
    """One end of a reliable connection."""

    def __init__(self, address: str, port: int, directory: Path | None) -> None:
        if directory is None:
            self.ctx = rnic.Context(addr=address, port=port)
        else:
            self.ctx = rnic.open(address, port=port, directory=directory, bypass=True)
            if not self.ctx.bypass:
                raise SystemExit("this machine gives programs no slot")
        pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 16)
        self.mr = MR(pd, bytearray(64), e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        self.qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(8, 8, 1, 1), self.cq, self.cq, None))
        attr = QPAttr()
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        self.qp.to_init(attr)

    def connect(self, peer: End) -> None:
        """Bring the queue pair to RTS toward another."""
        attr = QPAttr()
        attr.path_mtu, attr.timeout, attr.retry_cnt, attr.rnr_retry = e.IBV_MTU_1024, 14, 7, 7
        attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer = 1, 1, 1
        attr.dest_qp_num = peer.qp.qp_num
        attr.ah_attr = AHAttr(GlobalRoute(GID(peer.ctx.address)), udp_dport=peer.ctx.udp_port)
        self.qp.to_rts(attr)


def ends_of(carrier: str, directory: Path) -> tuple[End, End]:
    """Open two ends whose packets travel by ``carrier``: ``in process``, ``udp`` or ``rings``."""
    net, port = own_network(), 4791
    where = None if carrier == "in process" else directory
    one, other = (f"{net}.1", f"{net}.1" if carrier == "rings" else f"{net}.2")
    return End(one, port, where), End(other, port, where)


def count(carrier: str, directory: str, turns: int) -> dict[str, Any]:
    """Count the calls of 8-byte WRITEs, each acknowledged before the next; both ends poll in this thread.

    Returns:
        ``figures`` of each turn: calls of a message in this thread, calls of other threads for 1,000 messages, and
        polls of a message; ``functions``: the calls of each function in all turns, in this thread and in others.
    """
    one, other = ends_of(carrier, Path(directory))
    with closing(one.ctx), closing(other.ctx):
        one.connect(other)
        other.connect(one)
        wr = SendWR(1, e.IBV_WR_RDMA_WRITE, sg=[SGE(one.mr.buf, 8, one.mr.lkey)])
        wr.set_wr_rdma(other.mr.rkey, other.mr.buf)

        def write() -> int:
            one.qp.post_send(wr)
            polls, end = 0, time.monotonic() + LIMIT_S
            while True:
                polls += 2
                other.cq.poll(1)
                done, found = one.cq.poll(1)
                if done:
                    if found[0].status:
                        raise SystemExit(f"a WRITE ended with status {found[0].status}")
                    return polls
                if time.monotonic() > end:
                    raise SystemExit(f"a WRITE has not completed within {LIMIT_S:g} s")

        for _ in range(WARM_UP):
            write()
        counter = Counter()
        before = [counter.functions(here) for here in (True, False)]
        figures: list[tuple[float, float, float]] = []
        for _ in range(turns):
            began = counter.totals()
            polls = sum(write() for _ in range(MESSAGES))
            here, elsewhere = (now - then for now, then in zip(counter.totals(), began, strict=True))
            figures.append((here / MESSAGES, elsewhere * 1_000 / MESSAGES, polls / MESSAGES))
        after = [counter.functions(where) for where in (True, False)]
    each = [
        {place: calls - then.get(place, 0) for place, calls in now.items() if calls > then.get(place, 0)}
        for then, now in zip(before, after, strict=True)
    ]
    return {"figures": figures, "functions": each}
