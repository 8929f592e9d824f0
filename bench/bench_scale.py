"""What many queue pairs and a lossy wire cost: memory, time an operation, goodput.

    ./dev bench scale [QPS]

Queue pairs are made and connected up to 8,192 and up to all that a device has. Memory is what the process takes for
each: device, state in the arena, verbs objects and rings together.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
import tracemalloc
from pathlib import Path
from statistics import median

from rnic.link.faults import FaultRates, FaultyLink
from rnic.link.loopback import loopback_pair
from rnic.spec import opcodes as op
from rnic.testing import QpPair, SimNet
from rnic.verbs import CQ, MR, PD, QP, AHAttr, Context, GlobalRoute, QPAttr, QPCap, QPInitAttr, runtime_on
from rnic.verbs import enums as e

MESSAGE = 1 << 20
BATCH = 512
FEW = 5
"""Batches, the first and the last of which are compared: the best of each, since others use the machine, too."""


class Crowd:
    """Queue pairs of node 0, connected to its peer, more and more of them.

    ``seconds`` is the processor time of one, made and brought to RTS, batch by batch; ``total`` that of all.
    """

    def __init__(self, net: SimNet) -> None:
        ctx, peer = (node.ctx for node in net.nodes[:2])
        self._pd, self._cq, self._gid = PD(ctx), CQ(ctx, 16), peer.query_gid()
        self._kept: list[QP] = []
        self.seconds: list[float] = []
        self.total = 0.0
        self._before = resident()

    def grow(self, count: int) -> None:
        """Make more, until there are ``count``."""
        while len(self._kept) < count:
            most = min(BATCH, count - len(self._kept))
            start = time.process_time()
            for _ in range(most):
                qp = QP(self._pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(1, 1), scq=self._cq, rcq=self._cq))
                attr = QPAttr()
                attr.dest_qp_num = len(self._kept) % 1000 + 16
                attr.ah_attr = AHAttr(GlobalRoute(self._gid))
                qp.to_rts(attr)
                self._kept.append(qp)
            taken = time.process_time() - start
            self.total += taken
            self.seconds.append(taken / most)

    @property
    def bytes_each(self) -> int:
        """Memory that each has made the process take, its rings and its state in the arena included."""
        return (resident() - self._before) // len(self._kept)

    def traced(self, count: int) -> int:
        """Bytes of Python objects that each of ``count`` more takes, without its rings."""
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        self.grow(len(self._kept) + count)
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        return taken // count - (2 * 64 + 2 * 16)

    @property
    def flat(self) -> float:
        """What the last ones took beside the first, in time."""
        return min(self.seconds[-FEW:]) / min(self.seconds[:FEW])


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def operation_us(pair: QpPair, turns: int = 30, rounds: int = 100) -> float:
    """Microseconds of processor time of one 8-byte WRITE from post to completion, both NICs' work included: the best
    median of some turns."""
    found = []
    for _ in range(turns):
        times = []
        for _ in range(rounds):
            start = time.process_time_ns()
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8)
            pair.a.wait()
            times.append(time.process_time_ns() - start)
        found.append(median(times))
    return min(found) / 1e3


def goodput(loss: float, messages: int = 60) -> float:
    """GB/s of 1 MiB WRITEs between two NICs of this process, at a loss rate, in real time.

    Without loss this is about 4 us a packet for both ends together: a fast network's pace, so that what recovery
    costs is what it costs there. Both ways lose packets alike, ACKs and NAKs among them.
    """
    links = [
        FaultyLink(link, clock=time.monotonic_ns, rng=random.Random(seed), tx=FaultRates(drop=loss))
        for seed, link in enumerate(loopback_pair(bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)), 4791))
    ]
    ends = [Context(runtime=runtime_on(link)) for link in links]
    sides = []
    for ctx in ends:
        pd, cq = PD(ctx), CQ(ctx, 64)
        qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(16, 1), scq=cq, rcq=cq))
        sides.append((qp, cq, MR(pd, MESSAGE, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)))
    for here, there in ((0, 1), (1, 0)):
        attr = QPAttr()
        attr.path_mtu, attr.dest_qp_num, attr.timeout, attr.gso = e.IBV_MTU_4096, sides[there][0].qp_num, 14, True
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        attr.ah_attr = AHAttr(GlobalRoute(ends[there].query_gid()))
        sides[here][0].to_rts(attr)
    (qp, cq, mine), (_, _, theirs) = sides
    posted = done = 0
    start = time.perf_counter()
    while done < messages:
        while posted < messages and posted - done < 8:
            qp.post_rdma(op.WR_WRITE, mine.buf, MESSAGE, mine.lkey, theirs.buf, theirs.rkey)
            posted += 1
        count, completions = cq.poll(8)
        assert all(wc.status == e.IBV_WC_SUCCESS for wc in completions)
        done += count
        ends[1].runtime.progress()
    rate = messages * MESSAGE / (time.perf_counter() - start) / 1e9
    for ctx in ends:
        ctx.close()
    return rate


def simulated_goodput(loss: float, latency_ns: int, messages: int = 60) -> float:
    """The same in virtual time, over wires that take 1 us for a packet: what the rules cost and not the program."""
    net = SimNet(2, tx=FaultRates(drop=loss), packet_ns=1_000, latency_ns=latency_ns)
    attributes = {"path_mtu": e.IBV_MTU_4096, "timeout": 14}
    with QpPair(net=net, size=MESSAGE, depth=16, attributes=attributes) as pair:
        start = net.clock.now_ns
        for number in range(messages):
            if number >= 8:
                pair.a.wait()
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, MESSAGE)
        assert all(wc.status == e.IBV_WC_SUCCESS for wc in pair.a.wait(8))
        return messages * MESSAGE / (net.clock.now_ns - start)


def main(argv: list[str]) -> int:
    """Measure and print."""
    most = int(argv[0]) if argv else 16_384 - 64
    crowds: list[tuple[str, str, str]] = []
    with QpPair(settings={"log_max_qps": 14}) as pair:  # so many that what tables grow by is shared out
        objects = Crowd(pair.net).traced(2_048)
    with QpPair(settings={"log_max_qps": 14}) as pair:
        alone = operation_us(pair)
        crowds.append(("8-byte WRITE with one queue pair, processor us", f"{alone:.1f}", ""))
        crowd = Crowd(pair.net)
        crowds.append(("objects of a connected queue pair, bytes", f"{objects}", "<= 8192"))
        for count in sorted({min(8_192, most), most}):
            crowd.grow(count)
            crowded = operation_us(pair)
            crowds += (
                (f"{count} queue pairs made and connected, processor s", f"{crowd.total:.1f}", ""),
                ("  the last beside the first, processor time", f"{crowd.flat:.2f}", "<= 1.2"),
                ("  memory of each, rings included, bytes", f"{crowd.bytes_each}", ""),
                ("  8-byte WRITE beside them, us", f"{crowded:.1f}", ""),
                ("    ratio", f"{crowded / alone:.2f}", "<= 1.2"),
            )
    clean = max(goodput(0.0) for _ in range(3))
    lossy = max(goodput(0.01) for _ in range(3))
    simulated: list[tuple[str, str, str]] = []
    for latency_us in (2, 20):
        ideal, real = (simulated_goodput(loss, latency_us * 1_000) for loss in (0.0, 0.01))
        simulated += (
            (f"simulated at 1 us a packet, {latency_us} us each way, GB/s", f"{ideal:.2f}", ""),
            ("  at 1 % loss", f"{real:.2f}", ""),
            ("  ratio", f"{real / ideal:.2f}", ">= 0.4"),
        )
    rows = (
        *crowds,
        ("goodput without loss, 1 MiB WRITE, GB/s", f"{clean:.2f}", ""),
        ("goodput at 1 % loss", f"{lossy:.2f}", ""),
        ("  ratio", f"{lossy / clean:.2f}", ">= 0.4"),
        *simulated,
    )
    print(f"{'figure':<58}{'value':>10}   {'target':<10}verdict")
    for name, value, target in rows:
        print(f"{name:<58}{value:>10}   {target:<10}{verdict(value, target)}")
    return 0


def verdict(value: str, target: str) -> str:
    """Whether a figure keeps its target; a miss is a miss."""
    if not target:
        return ""
    relation, bound = target.split()
    met = float(value) <= float(bound) if relation == "<=" else float(value) >= float(bound)
    return "met" if met else "MISSED"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
