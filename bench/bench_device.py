"""What the device's control structure costs: creating and connecting queue pairs, in time and memory; lookups.

python bench/bench_device.py [--qps 8192] [--json]
"""

from __future__ import annotations

import argparse
import json
import mmap
import random
import time
from pathlib import Path

from rnic.mem.table import MemoryEntry, MemoryTable
from rnic.rings.sqe import SGE_BYTES, SQE_BYTES
from rnic.testing.net import SimNet
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr
from rnic.verbs.cq import CQ
from rnic.verbs.memory import PD
from rnic.verbs.qp import QP

LOOKUPS = 200_000


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qps", type=int, default=8192)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    seconds, size = connect(args.qps)
    figures = {
        "connect_qps": args.qps,
        "connect_s": round(seconds, 2),
        "connected_qp_bytes": size,
        "lookup_1_ns": round(lookups(1)),
        "lookup_32768_ns": round(lookups(1 << 15)),
    }
    if args.json:
        print(json.dumps(figures))
        return
    print(f"create and connect {args.qps} RC queue pairs: {figures['connect_s']} s")
    print(f"a connected queue pair beyond its rings: {size} bytes")
    print(f"memory check: {figures['lookup_1_ns']} ns with 1 region, {figures['lookup_32768_ns']} ns with 32768")


if __name__ == "__main__":
    main()
