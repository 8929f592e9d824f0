"""Figures of rnic for ``./dev bench rc``, between two processes unless stated otherwise."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from flow import Flow
from harness import LeftOutError

from rnic.cli.faults import rate_rule
from rnic.cli.perf import connected, measure, own_peer
from rnic.cli.perf_peer import Endpoint
from rnic.cli.perf_tests import Run
from rnic.rings.sqe import FLAG_SIGNALED
from rnic.spec import opcodes as op
from rnic.spec import status as st
from rnic.verbs import SGE, SendWR, completion_dtype, send_dtype
from rnic.verbs import enums as e

ADDRESS = "127.0.0.1"
LONG = 1 << 20
A_DOORBELL = 64
IN_MEMORY = 4
"""Messages in flight between two NICs of one process."""
_WAIT_S = 20.0
_DEPTH = 1024


@contextmanager
def running(operation: str, size: int, depth: int = 32, mtu: int = 0, lose: int = 0) -> Iterator[Run]:
    """Yield a queue pair toward a passive side in another process that serves ``operation``.

    Args:
        lose: drop one in this many packets that arrive at either side, 0 for none.
    """
    with own_peer(ADDRESS) as (host, port):
        faults = [rate_rule("drop", 1 / lose)] if lose else []
        end = Endpoint(ADDRESS, 0, "RC", size, depth, mtu, faults=faults)
        with closing(end), connected(end, f"{operation}_bw", size, host, port, faults) as run:
            yield run


def verify(run: Run, size: int) -> None:
    """Check the data at the passive side; raise :class:`LeftOutError` if it is wrong."""
    if not run._verify(size):
        raise LeftOutError(f"{run.operation} of {size} bytes: data differs from what was sent")


def perf(test: str, size: int, count: int, mtu: int = 0) -> dict[str, Any]:
    """Return one row of ``rnic perf``."""
    with own_peer(ADDRESS) as (host, port):
        # run it to its orderly end: otherwise the peer reports that this side hung up
        (row,) = measure(test, [size], host, port, addr=ADDRESS, udp_port=0, iterations=count, mtu=mtu)
    if not row["verified"]:
        raise LeftOutError(f"{test} of {size} bytes: data differs from what was sent")
    return row


def gbps(operation: str, size: int, count: int, mtu: int = 4096) -> float:
    """Measure GB/s of messages, 32 outstanding."""
    return float(perf(f"{operation}_bw", size, count, mtu)["bw_average_MBps"]) / 1e3


def write_latency(count: int) -> float:
    """Measure the typical half round trip of 8-byte WRITEs in us."""
    return float(perf("write_lat", 8, count)["t_typical_us"])


def batch_rate(seconds: float) -> float:
    """Measure millions of 8-byte WRITEs per second with ``post_batch``, 64 per doorbell; refill after each poll."""
    with running("write", 8, _DEPTH) as run:
        run._begin(8, 0)
        end = run.end
        entries = np.zeros(A_DOORBELL, send_dtype())
        entries["opcode"], entries["length"], entries["lkey"] = op.WR_WRITE, 8, end.mr.lkey
        entries["flags"][-1] = FLAG_SIGNALED
        entries["local_addr"], entries["remote_addr"] = end.out, int(end.peer["into"])
        entries["rkey"] = int(end.peer["rkey"])
        found = np.zeros(A_DOORBELL, completion_dtype())
        posted = done = 0
        start = time.perf_counter()
        while not (over := time.perf_counter() - start >= seconds) or done < posted:
            while not over and posted - done < _DEPTH // A_DOORBELL:
                if end.qp.post_batch(entries) != A_DOORBELL:
                    raise LeftOutError("the send queue was full although it had room")
                posted += 1
            if got := end.cq.poll_batch(found):
                if (found["status"][:got] != st.SUCCESS).any():
                    raise LeftOutError("a WRITE of a batch completed in error")
                done += got
            elif time.perf_counter() - start > seconds + _WAIT_S:
                raise LeftOutError(f"{done} of {posted} batches completed within {_WAIT_S:g} s")
        rate = done * A_DOORBELL / (time.perf_counter() - start) / 1e6
        verify(run, 8)
        return rate


def send_rate(seconds: float) -> float:
    """Measure millions of 8-byte SENDs per second with ``post_send``, one per doorbell, up to 64 outstanding."""
    with running("send", 8, A_DOORBELL) as run:
        run._begin(8, 0)
        end = run.end
        wr = SendWR(0, e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED, sg=[SGE(end.out, 8, end.mr.lkey)])
        posted = done = 0
        start = time.perf_counter()
        while not (over := time.perf_counter() - start >= seconds) or done < posted:
            if not over and posted - done < A_DOORBELL:
                end.qp.post_send(wr)
                posted += 1
            done += run._take(A_DOORBELL)
            if time.perf_counter() - start > seconds + _WAIT_S:
                raise LeftOutError(f"{done} of {posted} SENDs completed within {_WAIT_S:g} s")
        rate = done / (time.perf_counter() - start) / 1e6
        verify(run, 8)
        return rate


def lossy_gbps(lose: int, count: int) -> float:
    """Measure GB/s of 1 MiB WRITEs with one in ``lose`` packets lost, chosen by a seed; 0 for none."""
    with running("write", LONG, 32, 4096, lose) as run:
        row = run.bandwidth(LONG, count)
        if not row["verified"]:
            raise LeftOutError("with losses: data differs from what was sent")
        return float(row["bw_average_MBps"]) / 1e3


def memory_gbps(seconds: float) -> float:
    """Measure GB/s of 1 MiB WRITEs with ICRC between two NICs of this process, over the in-memory link.

    Several are in flight. As with another process, this thread does not drive the target; the target's thread does.
    """
    flow = Flow(LONG, 16)
    qp, cq = flow.qps[0], flow.cqs[0]
    mr, target = flow.mrs
    mr.buffer[:] = random.Random(7).randbytes(LONG)
    other = flow.contexts[1]
    other.runtime.start()
    done = posted = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        while posted < done + IN_MEMORY:
            qp.post_rdma(op.WR_WRITE, mr.buf, LONG, mr.lkey, target.buf, target.rkey)
            posted += 1
        done += cq.poll(IN_MEMORY)[0]
    while done < posted:
        done += cq.poll(IN_MEMORY)[0]
    rate = done * LONG / (time.perf_counter() - start) / 1e9
    if mr.buffer != target.buffer:
        raise LeftOutError("in memory: data differs from what was sent")
    flow.close()
    return rate
