"""perf_rdma, Coyote's RDMA benchmark, for two processes: the client sweeps sizes, and every byte is checked.

With WRITE the client writes a pattern, the server checks it and writes the complement back, which the client checks.
With READ the client reads the server's pattern; the server does nothing. The client puts its parameters in its own
buffer, and the server fetches them with an RDMA READ.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from rnic.coyote.oper import CoyoteOper, rdmaSg
from rnic.coyote.thread import CoyoteError, CThread

HEAD_BYTES: Final = 256
"""Length of the parameters in the client's buffer: a JSON object, padded with spaces."""
_INVERT = bytes(255 - value for value in range(256))


class Plan(NamedTuple):
    """Parameters: sizes from ``min_size`` bytes, doubled up to ``max_size``; ``runs`` runs of ``reps`` transfers."""

    write: bool = True
    min_size: int = 64
    max_size: int = 1 << 20
    reps: int = 8
    runs: int = 10

    @property
    def sizes(self) -> list[int]:
        """Transfer sizes in bytes."""
        found = [self.min_size]
        while found[-1] * 2 <= self.max_size:
            found.append(found[-1] * 2)
        return found


class Row(NamedTuple):
    """One line of the result: transfer size, bytes per second in each direction, one-way latency in microseconds."""

    size: int
    bytes_per_s: float
    latency_us: float


def pattern(size: int) -> bytes:
    """Return the data of transfers of this size."""
    return random.Random(size).randbytes(size)


def check_plan(plan: Plan, room: int) -> Plan:
    """Return the plan, if it is valid for a buffer of ``room`` bytes.

    Raises:
        CoyoteError: the plan is invalid; the message says why.
    """
    if not 1 <= plan.min_size <= plan.max_size:
        raise CoyoteError(f"min_size={plan.min_size} max_size={plan.max_size}: sizes go from at least 1 upward")
    if plan.max_size > room:
        raise CoyoteError(f"max_size={plan.max_size}: the smaller buffer has {room} bytes, give both sides the same")
    if not (1 <= plan.reps <= 10_000 and 1 <= plan.runs <= 10_000):
        raise CoyoteError(f"reps={plan.reps} runs={plan.runs}: use 1 to 10000 of each")
    return plan


def buffer_bytes(max_size: int) -> int:
    """Return the size of the buffer for transfers up to ``max_size``."""
    return max(max_size, HEAD_BYTES)


def client(
    thread: CThread, memory: memoryview, plan: Plan, each: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """Measure, and return a row for each size. ``memory`` is the thread's buffer.

    Raises:
        CoyoteError: data was wrong, an operation failed, or the server is gone.
    """
    assert thread.remote_queue is not None
    check_plan(plan, min(len(memory), thread.remote_queue.size))
    memory[:HEAD_BYTES] = json.dumps(plan._asdict()).encode().ljust(HEAD_BYTES)
    thread.connSync()
    thread.connSync()
    rows = []
    for size in plan.sizes:
        fast = _client_round(thread, memory, plan, size, plan.reps)
        slow = _client_round(thread, memory, plan, size, 1)
        ways = 2 if plan.write else 1
        row = Row(size, ways * size * plan.reps / fast, slow / ways * 1e6)
        each(row)
        rows.append(row)
    return rows


def _client_round(thread: CThread, memory: memoryview, plan: Plan, size: int, reps: int) -> float:
    """Return the average time of a run in seconds; check the data after each run."""
    wanted = pattern(size)
    oper = CoyoteOper.REMOTE_RDMA_WRITE if plan.write else CoyoteOper.REMOTE_RDMA_READ
    seconds = 0.0
    for _ in range(plan.runs):
        memory[:size] = wanted if plan.write else bytes(size)
        thread.clearCompleted()
        thread.connSync()
        began = time.perf_counter()
        for _ in range(reps):
            thread.invoke(oper, rdmaSg(len=size))
        thread.wait(CoyoteOper.LOCAL_WRITE, reps)
        seconds += time.perf_counter() - began
        if memory[:size] != (wanted.translate(_INVERT) if plan.write else wanted):
            raise CoyoteError(f"{size} bytes came back wrong")
        if not plan.write:
            thread.connSync()  # only now may the server's buffer change
    return seconds / plan.runs


def server(thread: CThread, memory: memoryview) -> Plan:
    """Serve one client; return its plan.

    Raises:
        CoyoteError: data was wrong, an operation failed, or the client is gone or sent an invalid plan.
    """
    thread.connSync()
    thread.invoke(CoyoteOper.REMOTE_RDMA_READ, rdmaSg(len=HEAD_BYTES))
    thread.wait(CoyoteOper.REMOTE_RDMA_READ)
    try:
        said = json.loads(bytes(memory[:HEAD_BYTES]))
        plan = check_plan(Plan(bool(said["write"]), *(int(said[name]) for name in Plan._fields[1:])), len(memory))
    except (ValueError, TypeError, KeyError) as error:
        raise CoyoteError(f"the client's buffer holds no parameters ({error!r}): is it perf_rdma?") from None
    thread.connSync()
    for size in plan.sizes:
        for reps in (plan.reps, 1):
            _server_round(thread, memory, plan, size, reps)
    return plan


def _server_round(thread: CThread, memory: memoryview, plan: Plan, size: int, reps: int) -> None:
    wanted = pattern(size)
    for _ in range(plan.runs):
        memory[:size] = bytes(size) if plan.write else wanted
        thread.clearCompleted()
        thread.connSync()
        if not plan.write:
            thread.connSync()
            continue
        thread.wait(CoyoteOper.LOCAL_WRITE, reps)
        if memory[:size] != wanted:
            raise CoyoteError(f"{size} bytes arrived wrong")
        memory[:size] = wanted.translate(_INVERT)
        for _ in range(reps):
            thread.invoke(CoyoteOper.REMOTE_RDMA_WRITE, rdmaSg(len=size))
        thread.wait(CoyoteOper.REMOTE_RDMA_WRITE, reps)
