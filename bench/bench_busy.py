"""Many busy queue pairs over UDP between two processes: time, failures, retransmissions.

Each queue pair WRITEs 1 MiB, all at once, with timeout 14: one way (one NIC to one), both ways, and all to one (up to
16 NICs of one process to one). In the same round and processes, a single queue pair moves the same bytes between as
many buffers. Prints best and median of the rounds, and verdicts: no failure, less than 1 % of the packets
retransmitted, at most 1.2 times the time of the single queue pair.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from statistics import median

import harness
from harness import Row

from rnic.spec import opcodes as op
from rnic.verbs import CQ, GID, MR, PD, QP, AHAttr, Context, GlobalRoute, QPAttr, QPCap, QPInitAttr
from rnic.verbs import enums as e

ROUNDS = 3
QPS = (1, 16, 64, 256, 1024)
MESSAGE = 1 << 20
MTU = 4096
SOURCES = 16
WORST_TIME, WORST_REPEATED = 1.2, 0.01
PATTERNS = ("one way", "both ways", "all to one")
ADDRESS = "127.0.0.1"
PATIENCE_S = 60.0
_ROUNDS_BETWEEN_LOOKS = 64
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE


class End:
    """NICs of one process: queue pairs, and a buffer of 1 MiB for each message sent or received."""

    def __init__(self, sources: int, qps: int, buffers: int) -> None:
        self.contexts = [Context(addr=ADDRESS, port=0) for _ in range(sources)]
        self.buffers = buffers
        self.memory = bytearray(buffers * MESSAGE)
        self.cqs, self.qps, self.mrs = [], [], []
        for context in self.contexts:
            pd, cq = PD(context), CQ(context, 2 * max(qps, buffers) + 16)
            self.cqs.append(cq)
            self.mrs.append(MR(pd, self.memory, RIGHTS))
            depth = max(1, -(-buffers // qps))
            cap = QPCap(depth, 1)
            init = QPInitAttr(e.IBV_QPT_RC, cap=cap, scq=cq, rcq=cq)
            self.qps += [(QP(pd, init), self.mrs[-1]) for _ in range(qps // sources)]

    def about(self) -> list[tuple[bytes, int, int, int, int]]:
        """Return the parameters of each queue pair for the peer: address, port, QPN, memory address and R_Key."""
        return [(qp.pd.ctx.query_gid().raw, qp.pd.ctx.udp_port, qp.qp_num, mr.buf, mr.rkey) for qp, mr in self.qps]

    def connect(self, peers: list[tuple[bytes, int, int, int, int]]) -> None:
        """Bring each queue pair to RTS with its peer."""
        self.peers = peers
        for (qp, _), (gid, port, number, _, _) in zip(self.qps, peers, strict=True):
            attr = QPAttr()
            attr.path_mtu, attr.timeout, attr.retry_cnt, attr.gso = e.IBV_MTU_4096, 14, 7, True
            attr.dest_qp_num = number
            attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
            attr.ah_attr = AHAttr(GlobalRoute(GID(gid)), udp_dport=port)
            qp.to_rts(attr)

    def work(self, conn: Connection, active: bool) -> dict[str, float]:
        """Post all WRITEs if ``active``, and drive the NICs until the other end reports completion."""
        before = self.counters()
        start = time.perf_counter()
        left = 0
        if active:
            for number in range(self.buffers):
                place = number % len(self.qps)
                (qp, mr), peer = self.qps[place], self.peers[place]
                at = number * MESSAGE
                qp.post_rdma(op.WR_WRITE, mr.buf + at, MESSAGE, mr.lkey, peer[3] + at, peer[4])
                left += 1
        failed, seconds, said = 0, 0.0, False
        while True:
            for _ in range(_ROUNDS_BETWEEN_LOOKS):
                for cq in self.cqs:
                    count, completions = cq.poll(64)
                    if count:
                        left -= count
                        failed += sum(wc.status != e.IBV_WC_SUCCESS for wc in completions)
            if left <= 0 and not said:
                seconds = time.perf_counter() - start
                conn.send("done")
                said = True
            if conn.poll() and conn.recv() == "end":
                break
            if time.perf_counter() - start > PATIENCE_S:
                failed += left
                left = 0
        after = self.counters()
        moved = {name: after[name] - before.get(name, 0) for name in after}
        again = moved.get("retransmitted_packets", 0) + moved.get("retransmitted_requests", 0)
        return {
            "seconds": seconds,
            "failed": failed,
            "again": again + 2 * moved.get("probes", 0),
            "timeouts": moved.get("ack_timeouts", 0),
        }

    def counters(self) -> dict[str, int]:
        """Return the sums of all NICs' counters."""
        total: dict[str, int] = {}
        for context in self.contexts:
            for name, value in context.nic.counters.items():
                total[name] = total.get(name, 0) + value
        return total

    def close(self) -> None:
        """Close everything."""
        for context in self.contexts:
            context.close()


def other_process(conn: Connection) -> None:
    """Run commands: ("make", ...), ("connect", ...), ("work", ...), ("close",)."""
    end: End | None = None
    while True:
        command, *args = conn.recv()
        if command == "make":
            end = End(*args)
            conn.send(end.about())
        elif command == "connect":
            assert end is not None
            end.connect(*args)
            conn.send(None)
        elif command == "work":
            assert end is not None
            conn.send(end.work(conn, *args))
        else:
            if end is not None:
                end.close()
                end = None
            if command == "stop":
                return
            conn.send(None)


def measure(conn: Connection, sources: int, qps: int, buffers: int, both: bool) -> dict[str, float]:
    """Measure one transfer between fresh NICs; this process is the target and the other the source, or each is both."""
    conn.send(("make", sources, qps, buffers))
    here = End(1, qps, buffers)
    theirs = conn.recv()
    conn.send(("connect", here.about()))
    here.connect(theirs)
    conn.recv()
    conn.send(("work", True))
    # the other end sends "done"; this end continues until both are done
    mine = Finish(conn, here, both).run()
    figures = conn.recv()
    conn.send(("close",))
    conn.recv()
    here.close()
    return {
        "seconds": max(mine["seconds"], figures["seconds"]),
        "failed": mine["failed"] + figures["failed"],
        "again": mine["again"] + figures["again"],
        "timeouts": mine["timeouts"] + figures["timeouts"],
    }


class Finish:
    """Replacement of the connection at this end of :meth:`End.work`, which ends when both ends are done."""

    def __init__(self, conn: Connection, here: End, active: bool) -> None:
        self.conn, self.here, self.active = conn, here, active
        self.done: set[str] = set()

    def send(self, word: str) -> None:
        """Record that this end is done."""
        self.done.add("here")

    def poll(self) -> bool:
        """Return whether both ends are done."""
        if "there" not in self.done and self.conn.poll():
            self.conn.recv()
            self.done.add("there")
        return len(self.done) == 2

    def recv(self) -> str:
        """Tell the other process that both ends are done."""
        self.conn.send("end")
        return "end"

    def run(self) -> dict[str, float]:
        """Run :meth:`End.work` at this end."""
        return self.here.work(self, self.active)  # type: ignore[arg-type]


def one_round(conn: Connection, pattern: str, qps: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the figures of one queue pair and of ``qps``, with the same bytes and the same number of buffers."""
    both = pattern == "both ways"
    alone = measure(conn, 1, 1, qps, both)
    busy = measure(conn, min(qps, SOURCES) if pattern == "all to one" else 1, qps, qps, both)
    return alone, busy


@contextmanager
def other_end() -> Iterator[Connection]:
    """Yield a connection to the other process; stop the process at the end."""
    conn, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=other_process, args=(there,), daemon=True)
    process.start()
    yield conn
    conn.send(("stop",))
    process.join(10)


def main(argv: list[str]) -> None:
    """Measure and print."""
    parser = harness.Parser("busy", __doc__, rounds=ROUNDS, json=True)
    parser.add_turns()
    parser.add_argument("qps", nargs="*", type=harness.at_least_one, help=f"numbers of queue pairs; {QPS}")
    given = parser.read(argv)
    rows, notes, wrong = [], {}, {}
    with other_end() as conn:

        def take(name: str, pattern: str, qps: int) -> dict[str, float]:
            alone, busy = one_round(conn, pattern, qps)
            packets = qps * MESSAGE // MTU * (2 if pattern == "both ways" else 1)
            figures = {"again": busy["again"] / packets, "timeouts": busy["timeouts"], "failed": busy["failed"]}
            figures |= {"alone": alone["seconds"], "busy": busy["seconds"]}
            return {f"{name}: {key}": value for key, value in figures.items()}

        takes = []
        for qps in given.qps or QPS:
            for pattern in PATTERNS:
                name = f"{pattern}, {qps} QPs"
                rows.append(Row(name, f"{name}: busy", "s", WORST_TIME, against=(f"{name}: alone",), less=True))
                takes.append((name, partial(take, name, pattern, qps)))
        found, missing = harness.in_turn(takes, given.rounds)
    for row in rows:
        again, timeouts, failed, alone = (
            found.get(f"{row.what}: {key}", [0.0]) for key in ("again", "timeouts", "failed", "alone")
        )
        notes[row.what] = (
            f"one QP {min(alone):.3f} s, median {median(alone):.3f}; again {max(again):.2%},"
            f" timeouts {sum(timeouts):.0f}, failed {sum(failed):.0f}"
        )
        if sum(failed) or max(again) >= WORST_REPEATED:
            wrong[row.what] = "FAILED" if sum(failed) else f"repeated >= {WORST_REPEATED:.0%}"
    harness.report(given, rows, found, missing, notes=notes, wrong=wrong)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    harness.run(main)
