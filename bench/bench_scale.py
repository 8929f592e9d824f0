"""What many queue pairs and a lossy wire cost: memory, time an operation, goodput.

Queue pairs are made and connected up to 8,192 and up to all that a device has. Memory is what the process takes for
each: device, state in the arena, verbs objects and rings together.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from functools import partial
from itertools import count
from statistics import median

import harness
from flow import Flow
from harness import Found, Row, resident_bytes

from rnic.link.base import Link
from rnic.link.faults import FaultRates, FaultyLink
from rnic.spec import opcodes as op
from rnic.testing import QpPair, SimNet
from rnic.verbs import CQ, PD, QP, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr
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
        self._before = resident_bytes()

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
        return (resident_bytes() - self._before) // len(self._kept)

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
    seeds = count()

    def lossy(link: Link) -> Link:
        return FaultyLink(link, clock=time.monotonic_ns, rng=random.Random(next(seeds)), tx=FaultRates(drop=loss))

    flow = Flow(MESSAGE, 16, lossy)
    (qp, _), (cq, _), (mine, theirs) = flow.qps, flow.cqs, flow.mrs
    posted = done = 0
    start = time.perf_counter()
    while done < messages:
        while posted < messages and posted - done < 8:
            qp.post_rdma(op.WR_WRITE, mine.buf, MESSAGE, mine.lkey, theirs.buf, theirs.rkey)
            posted += 1
        got, completions = cq.poll(8)
        assert all(wc.status == e.IBV_WC_SUCCESS for wc in completions)
        done += got
        flow.contexts[1].runtime.progress()
    rate = messages * MESSAGE / (time.perf_counter() - start) / 1e9
    flow.close()
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


def main(argv: list[str]) -> None:
    """Measure and print."""
    parser = harness.Parser("scale", __doc__, json=True)
    most = 16_384 - 64
    parser.add_argument("qps", nargs="?", type=harness.at_least_one, default=most, help=f"at the most; {most}")
    given = parser.read(argv)
    rows: list[Row] = []
    found: Found = {}

    def say(what: str, unit: str, value: float, most: float | None = None) -> None:
        """A figure that is taken once."""
        rows.append(Row(what, what, unit, most, less=True))
        found[what] = [value]

    with QpPair(settings={"log_max_qps": 14}) as pair:  # so many that what tables grow by is shared out
        objects = Crowd(pair.net).traced(2_048)
    with QpPair(settings={"log_max_qps": 14}) as pair:
        say("8-byte WRITE with one queue pair, processor", "us", alone := operation_us(pair))
        crowd = Crowd(pair.net)
        say("objects of a connected queue pair", "bytes", objects, 8192)
        for number in sorted({min(8_192, given.qps), given.qps}):
            crowd.grow(number)
            crowded = operation_us(pair)
            say(f"{number} queue pairs made and connected, processor", "s", crowd.total)
            say(f"{number}: the last beside the first, processor time", "", crowd.flat, 1.2)
            say(f"{number}: memory of each, rings included", "bytes", crowd.bytes_each)
            say(f"{number}: 8-byte WRITE beside them", "us", crowded)
            say(f"{number}: ratio", "", crowded / alone, 1.2)
    for what, measure, rounds in (
        ("goodput", goodput, 3),
        ("simulated at 1 us a packet, 2 us each way", partial(simulated_goodput, latency_ns=2_000), 1),
        ("simulated at 1 us a packet, 20 us each way", partial(simulated_goodput, latency_ns=20_000), 1),
    ):
        clean, lossy = f"{what}, without loss", f"{what}, at 1 % loss"
        rows += [Row(clean, clean, "GB/s"), Row(lossy, lossy, "GB/s", 0.4, against=(clean,))]
        found |= harness.in_turn([(clean, partial(measure, 0.0)), (lossy, partial(measure, 0.01))], rounds)[0]
    harness.report(given, rows, found)


if __name__ == "__main__":
    harness.run(main)
