"""What the device's control structure costs: creating and connecting queue pairs, in time and memory; lookups.
Then who waits how long beside a busy program (bench/fairness.py), with verdicts.

python bench/bench_device.py [--qps 8192] [--json] [--no-fairness] [--against TREE]

``--against`` measures the rates of one queue pair in this tree and in another checkout, in turn, in processes of
their own: 1 MiB WRITEs and 8-byte WRITEs between two NICs of one process, over the in-memory link.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import fairness

from rnic.link.loopback import loopback_pair
from rnic.mem.table import MemoryEntry, MemoryTable
from rnic.rings.sqe import SGE_BYTES, SQE_BYTES
from rnic.testing.net import SimNet
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, SGE, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, SendWR
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP

LOOKUPS = 200_000
LARGE, SMALL = 1 << 20, 8
TURNS = 5


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * mmap.PAGESIZE


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
        QP(pd, init).to_rts(attr)  # whatever is made once
        before = resident_bytes()
        began = time.perf_counter()
        pairs = [QP(pd, init) for _ in range(count)]
        for pair in pairs:
            pair.to_rts(attr)
        seconds = time.perf_counter() - began
        rings = (init.cap.max_send_wr + 1) * SQE_BYTES + (init.cap.max_recv_wr + 1) * SGE_BYTES
        return seconds, (resident_bytes() - before) // count - rings


def lookups(entries: int) -> float:
    """Nanoseconds of one check among ``entries`` regions."""
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


class Flow:
    """Two connected queue pairs of two NICs in this process."""

    def __init__(self) -> None:
        links = loopback_pair(bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)), 4791)
        contexts = [Context(link=link) for link in links]
        self.cqs = [CQ(context, 256) for context in contexts]
        domains = [PD(context) for context in contexts]
        rights = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.regions = [MR(pd, bytearray(LARGE), rights) for pd in domains]
        pairs = zip(domains, self.cqs, strict=True)
        self.qps = [QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(64, 1), scq=cq, rcq=cq)) for pd, cq in pairs]
        for number, qp in enumerate(self.qps):
            attr = QPAttr()
            attr.path_mtu, attr.timeout, attr.retry_cnt, attr.gso = e.IBV_MTU_4096, 14, 7, True
            attr.qp_access_flags, attr.dest_qp_num = e.IBV_ACCESS_REMOTE_WRITE, self.qps[1 - number].qp_num
            attr.ah_attr = AHAttr(GlobalRoute(contexts[1 - number].query_gid()))
            qp.to_rts(attr)

    def rate(self, size: int, depth: int, seconds: float = 0.5) -> float:
        """WRITEs of ``size`` bytes a second of processor time, ``depth`` of them outstanding."""
        (qp, _), (here, there) = self.qps, self.regions
        wr = SendWR(1, e.IBV_WR_RDMA_WRITE, sg=[SGE(here.buf, size, here.lkey)], send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_rdma(there.rkey, there.buf)
        outstanding = done = 0
        began = now = time.process_time()
        while now - began < seconds or outstanding:
            while outstanding < depth and now - began < seconds:
                qp.post_send(wr)
                outstanding += 1
            count, found = self.cqs[0].poll(64)
            assert all(wc.status == e.IBV_WC_SUCCESS for wc in found)
            outstanding -= count
            done += count
            self.cqs[1].poll(1)
            now = time.process_time()
        return done / (now - began)


def rates() -> dict[str, float]:
    """Gigabytes a second of large WRITEs, thousands a second of small ones."""
    flow = Flow()
    flow.rate(LARGE, 8, 0.1)
    flow.rate(SMALL, 32, 0.1)
    return {"large_gbps": flow.rate(LARGE, 8) * LARGE / 1e9, "small_kops": flow.rate(SMALL, 32) / 1e3}


def against(tree: Path) -> dict[str, float]:
    """Best and median rates of this checkout and of ``tree``, and their ratios."""
    here = Path(__file__).resolve().parents[1]
    found: dict[str, list[dict[str, float]]] = {"this": [], "that": []}
    for turn in range(TURNS):
        for name in ("this", "that") if turn % 2 else ("that", "this"):
            source = (here if name == "this" else tree) / "src"
            command = [sys.executable, __file__, "--rates"]
            done = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, check=True
            )
            found[name].append(json.loads(done.stdout))
    figures: dict[str, float] = {}
    for key in ("large_gbps", "small_kops"):
        for which, choose in (("best", max), ("median", median)):
            this, that = (choose(row[key] for row in found[name]) for name in ("this", "that"))
            figures |= {f"{key}_{which}": round(this, 3), f"{key}_{which}_ratio": round(this / that, 3)}
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qps", type=int, default=8192)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--against", type=Path, metavar="TREE")
    parser.add_argument("--no-fairness", action="store_true", help="leave out what takes a NIC process and two minutes")
    parser.add_argument("--rates", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rates or args.against:
        print(json.dumps(rates() if args.rates else against(args.against)))
        return
    seconds, size = connect(args.qps)
    figures = {
        "connect_qps": args.qps,
        "connect_s": round(seconds, 2),
        "connected_qp_bytes": size,
        "lookup_1_ns": round(lookups(1)),
        "lookup_32768_ns": round(lookups(1 << 15)),
    }
    shared = {} if args.no_fairness else fairness.measure_all()
    if args.json:
        print(json.dumps(figures | {"fairness": shared}))
        return
    print(f"create and connect {args.qps} RC queue pairs: {figures['connect_s']} s")
    print(f"a connected queue pair beyond its rings: {size} bytes")
    print(f"memory check: {figures['lookup_1_ns']} ns with 1 region, {figures['lookup_32768_ns']} ns with 32768")
    for tools, measured in shared.items():
        for line in fairness.verdicts(measured):
            print(f"{tools}: {line}")


if __name__ == "__main__":
    main()
