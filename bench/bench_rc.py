"""RC over UDP on loopback against raw UDP sockets, and in memory: ratios, measured in turn in one run.

    ./dev bench rc [ROUNDS]

Compiled loops and plain Python are measured in turn too, each in processes of its own. Prints best and median of
the rounds. The targets are those of the project's first milestone; a missed one is
printed as such and does not fail the run, since machines differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from statistics import median

import raw_udp

from rnic.burst import COMPILED
from rnic.cli.perf import measure, own_peer
from rnic.link.loopback import loopback_pair
from rnic.spec import opcodes as op
from rnic.verbs import CQ, MR, PD, QP, AHAttr, Context, GlobalRoute, QPAttr, QPCap, QPInitAttr
from rnic.verbs import enums as e

ROUNDS = 5
MESSAGE = 1 << 20
ADDRESS = "127.0.0.1"


def rnic_row(test: str, size: int, iterations: int) -> dict[str, float]:
    """One row of rnic perf between two processes."""
    with own_peer(ADDRESS) as (host, port):
        rows = list(measure(test, [size], host, port, addr=ADDRESS, udp_port=0, iterations=iterations))
    assert rows[0]["verified"]
    return {key: float(value) for key, value in rows[0].items() if isinstance(value, int | float)}


def loopback_gbps(seconds: float = 0.5) -> float:
    """GB/s of 1 MiB WRITEs with ICRC between two NICs of this process, over the in-memory link."""
    links = loopback_pair(bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)), 4791)
    contexts = [Context(link=link) for link in links]
    sides = []
    for context in contexts:
        pd = PD(context)
        cq = CQ(context, 64)
        cap = QPCap(16, 1)
        qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=cap, scq=cq, rcq=cq))
        mr = MR(pd, bytearray(os.urandom(MESSAGE)), e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        sides.append((qp, cq, mr, context))
    for (qp, _, _, _), (peer, _, _, other) in (sides, sides[::-1]):
        attr = QPAttr()
        attr.path_mtu = e.IBV_MTU_4096
        attr.dest_qp_num = peer.qp_num
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        attr.gso = True
        attr.ah_attr = AHAttr(GlobalRoute(other.query_gid()), udp_dport=other.udp_port)
        qp.to_rts(attr)
    (qp, cq, mr, context), (_, _, target, other) = sides
    done = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        qp.post_rdma(op.WR_WRITE, mr.buf, MESSAGE, mr.lkey, target.buf, target.rkey)
        while not cq.poll(1)[0]:
            other.runtime.progress()
        done += 1
    rate = done * MESSAGE / (time.perf_counter() - start) / 1e9
    assert mr.buffer == target.buffer
    for each in contexts:
        each.close()
    return rate


def one_round() -> dict[str, float]:
    """This process's twin: GB/s of long WRITEs, microseconds of short ones, GB/s in memory."""
    return {
        "bandwidth": rnic_row("write_bw", MESSAGE, 500)["bw_average_MBps"] / 1e3,
        "latency": rnic_row("write_lat", 8, 3_000)["t_typical_us"],
        "memory": loopback_gbps(),
    }


def round_of(plain: bool) -> dict[str, float]:
    """:func:`one_round` in a process that uses one of the twins, and whose peer does."""
    env = {**os.environ, "RNIC_PLAIN": "1" if plain else "0"}
    command = [sys.executable, os.path.abspath(__file__), "--one-round"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def show(name: str, rounds: list[dict[str, float]], raw_bw: list[float], raw_lat: list[float]) -> None:
    """Figures of one twin beside those of the raw sockets of the same rounds."""
    bw, lat, memory = ([figures[key] for figures in rounds] for key in ("bandwidth", "latency", "memory"))
    rows = (
        ("WRITE 1 MiB, PMTU 4096, GB/s", max(bw), median(bw), ""),
        ("  ratio to raw", max(bw) / max(raw_bw), median(bw) / median(raw_bw), ">= 0.4"),
        ("WRITE 8 bytes, half round trip, us", min(lat), median(lat), ""),
        ("  ratio to raw", min(lat) / min(raw_lat), median(lat) / median(raw_lat), "<= 3"),
        ("in-memory loopback, 1 MiB with ICRC, GB/s", max(memory), median(memory), ">= 1.5"),
    )
    print(f"rnic, {name}")
    for what, best, middle, target in rows:
        print(f"  {what:<44}{best:>10.2f}{middle:>10.2f}   {target}")


def main(argv: list[str]) -> int:
    """Measure and print."""
    if argv == ["--one-round"]:
        print(json.dumps(one_round()))
        return 0
    count = int(argv[0]) if argv else ROUNDS
    raw_bw, raw_lat = [], []
    twins: dict[str, list[dict[str, float]]] = (
        {"compiled": [], "plain Python": []} if COMPILED else {"plain Python": []}
    )
    for turn in range(count):
        print(f"round {turn + 1} of {count}", file=sys.stderr, flush=True)
        raw_bw.append(raw_udp.throughput(0.5))
        raw_lat.append(raw_udp.half_rtt(3_000))
        for name, rounds in twins.items():
            rounds.append(round_of(plain=name != "compiled"))
    print(f"{'figure':<46}{'best':>10}{'median':>10}   target")
    print("raw UDP sockets, plain Python")
    print(f"  {'GSO/GRO, 1 MiB, GB/s':<44}{max(raw_bw):>10.2f}{median(raw_bw):>10.2f}")
    print(f"  {'half round trip of 40 bytes, us':<44}{min(raw_lat):>10.2f}{median(raw_lat):>10.2f}")
    for name, rounds in twins.items():
        show(name, rounds, raw_bw, raw_lat)
    if not COMPILED:
        print("rnic, compiled: not here (no C compiler when it was installed, or RNIC_PLAIN is set)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
