"""Cost of many queue pairs and of packet loss: memory, time of an operation, goodput.

Queue pairs are created and connected up to 8,192 and up to the device's limit. Memory is that of the process per queue
pair: device, state in the arena, verbs objects and rings.
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
"""Number of batches at the start and at the end to compare, by their best, since the machine has other load."""


class Crowd:
    """A growing number of queue pairs of node 0, connected to its peer.

    ``seconds`` is the processor time to create one and bring it to RTS, by batch; ``total`` that of all.
    """

    def __init__(self, net: SimNet) -> None:
        ctx, peer = (node.ctx for node in net.nodes[:2])
        self._pd, self._cq, self._gid = PD(ctx), CQ(ctx, 16), peer.query_gid()
        self._kept: list[QP] = []
        self.seconds: list[float] = []
        self.total = 0.0
        self._before = resident_bytes()

    def grow(self, count: int) -> None:
        """Create more, up to ``count``."""
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
        """Process memory per queue pair, including its rings and its state in the arena."""
        return (resident_bytes() - self._before) // len(self._kept)

    def traced(self, count: int) -> int:
        """Create ``count`` more; return the bytes of Python objects for each, without its rings."""
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        self.grow(len(self._kept) + count)
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        return taken // count - (2 * 64 + 2 * 16)

    @property
    def flat(self) -> float:
        """Return the time to create the last ones relative to the first."""
        return min(self.seconds[-FEW:]) / min(self.seconds[:FEW])


def operation_us(pair: QpPair, turns: int = 30, rounds: int = 100) -> float:
    """Measure the processor time in us of an 8-byte WRITE from post to completion, for both NICs.

    Return the best median of some turns.
    """
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
    """Measure GB/s of 1 MiB WRITEs between two NICs of this process, at a loss rate, in real time.

    Without loss this is about 4 us per packet for both ends together, so recovery costs what it costs in a fast
    network. Both directions lose packets, including ACKs and NAKs.
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
    """Measure the same in virtual time, over wires of 1 us per packet: the cost of the protocol, not of the program."""
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
        """Print a figure that is measured once."""
        rows.append(Row(what, what, unit, most, less=True))
        found[what] = [value]

    with QpPair(settings={"log_max_qps": 14}) as pair:  # enough to amortize the growth of tables
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
