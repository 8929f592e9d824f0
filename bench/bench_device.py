"""Cost of the device's control path: time and memory to create and connect queue pairs; lookups. Then waiting times of
programs beside a busy one (bench/fairness.py), with verdicts.

``--against`` only measures the rates of one queue pair in this tree and in another checkout, alternately, in separate
processes: 1 MiB WRITEs and 8-byte WRITEs between two NICs of one process, over the in-memory link.
"""

from __future__ import annotations

import argparse
import random
import time

import fairness
import harness
from flow import Flow
from harness import ROOT, Found, Row, resident_bytes

from rnic.mem.table import MemoryEntry, MemoryTable
from rnic.rings.sqe import SGE_BYTES, SQE_BYTES
from rnic.testing.net import SimNet
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, SGE, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, SendWR
from rnic.verbs.cq import CQ
from rnic.verbs.memory import PD
from rnic.verbs.qp import QP

LOOKUPS = 200_000
LARGE, SMALL = 1 << 20, 8
TURNS = 5


def connect(count: int) -> tuple[float, int]:
    """Create ``count`` RC queue pairs by commands and bring them to RTS.

    Returns:
        Seconds, and resident bytes for each beyond its rings: verbs object, device object, context, cached and in
        host memory, queue block.
    """
    with SimNet(2, settings={"log_max_qps": 14}) as net:
        node = net.nodes[0]
        pd, cq = PD(node.ctx), CQ(node.ctx, 1024)
        attr = QPAttr()
        attr.path_mtu, attr.dest_qp_num, attr.port_num = e.IBV_MTU_1024, 17, 1
        attr.ah_attr = AHAttr(GlobalRoute(GID(net.nodes[1].nic.config.address)))
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(8, 8, 1, 1, 0))
        QP(pd, init).to_rts(attr)  # create everything that exists once per device
        before = resident_bytes()
        began = time.perf_counter()
        pairs = [QP(pd, init) for _ in range(count)]
        for pair in pairs:
            pair.to_rts(attr)
        seconds = time.perf_counter() - began
        rings = (init.cap.max_send_wr + 1) * SQE_BYTES + (init.cap.max_recv_wr + 1) * SGE_BYTES
        return seconds, (resident_bytes() - before) // count - rings


def lookups(entries: int) -> float:
    """Measure the time of a memory check with ``entries`` regions, in nanoseconds."""
    rng = random.Random(1)
    table = MemoryTable(rng)
    memory = memoryview(bytearray(4096))
    keys = []
    for _ in range(entries):
        key = table.alloc_key()
        table.enable(MemoryEntry(key, 1, 1, 0x1000, 4096, view=memory))
        keys.append(key)
    asked = [rng.choice(keys) for _ in range(1000)]
    began = time.perf_counter()
    for _ in range(LOOKUPS // len(asked)):
        for key in asked:
            table.check(key, 1, 0x1000, 64, 0)
    return (time.perf_counter() - began) / LOOKUPS * 1e9


def rate(flow: Flow, size: int, depth: int, seconds: float = 0.5) -> float:
    """Measure WRITEs of ``size`` bytes per second of processor time, ``depth`` outstanding."""
    qp, (cq, other), (here, there) = flow.qps[0], flow.cqs, flow.mrs
    wr = SendWR(1, e.IBV_WR_RDMA_WRITE, sg=[SGE(here.buf, size, here.lkey)], send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_rdma(there.rkey, there.buf)
    outstanding = done = 0
    began = now = time.process_time()
    while now - began < seconds or outstanding:
        while outstanding < depth and now - began < seconds:
            qp.post_send(wr)
            outstanding += 1
        count, found = cq.poll(64)
        assert all(wc.status == e.IBV_WC_SUCCESS for wc in found)
        outstanding -= count
        done += count
        other.poll(1)
        now = time.process_time()
    return done / (now - began)


def rates() -> dict[str, float]:
    """Measure GB/s of large WRITEs, and thousands per second of small ones."""
    flow = Flow(LARGE, 64)
    rate(flow, LARGE, 8, 0.1)
    rate(flow, SMALL, 32, 0.1)
    return {"1 MiB WRITEs": rate(flow, LARGE, 8) * LARGE / 1e9, "8-byte WRITEs": rate(flow, SMALL, 32) / 1e3}


def against(given: argparse.Namespace) -> int:
    """Print the rates of this checkout and of another, measured alternately."""
    with harness.tree_of(given.before) as before:
        assert before is not None

        def earlier() -> dict[str, float]:
            return {f"before: {name}": value for name, value in harness.call_in(before, "bench_device.rates").items()}

        takes = [("this", lambda: harness.call_in(ROOT, "bench_device.rates")), ("before", earlier)]
        found, missing = harness.in_turn(takes, given.rounds)
    rows = [Row(name, name, unit) for name, unit in (("1 MiB WRITEs", "GB/s"), ("8-byte WRITEs", "k/s"))]
    return harness.report(given, harness.beside(rows), found, missing)


def main(argv: list[str]) -> None:
    """Measure and print."""
    text = "only measure the rates of one queue pair, in both trees alternately"
    parser = harness.Parser("device", __doc__, rounds=TURNS, before=text, json=True)
    parser.add_argument("--qps", type=harness.at_least_one, default=8192, help="queue pairs to connect; 8192")
    parser.add_argument("--no-fairness", action="store_true", help="skip the fairness rows, which take two minutes")
    given = parser.read(argv)
    if given.before:
        against(given)
        return
    seconds, size = connect(given.qps)
    figures = [
        (f"create and connect {given.qps} RC queue pairs", "s", seconds),
        ("a connected queue pair beyond its rings", "bytes", size),
        ("memory check with 1 region", "ns", lookups(1)),
        ("memory check with 32768 regions", "ns", lookups(1 << 15)),
    ]
    rows = [Row(what, what, unit, less=True) for what, unit, _ in figures]
    found: Found = {what: [value] for what, _, value in figures}
    if not given.no_fairness:
        rows += fairness.measure_all(found)
    harness.report(given, rows, found)


if __name__ == "__main__":
    harness.run(main)
