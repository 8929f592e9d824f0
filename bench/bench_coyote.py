"""Coyote's WRITE and READ compared with ``rnic perf`` in the same rounds, each between two processes.

A Coyote thread has 32 transfers in flight, as many as ``rnic perf`` has messages, and its peer also has its own core.
All data is checked: written data is read back, and read data is compared with the owner's. With ``--look`` both sides
have a shell that inspects each memory request in Python.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import harness
from harness import LeftOutError, Row
from rc_figures import gbps

from rnic.cli.perf import _keep_apart
from rnic.cm.line_socket import ExchangeError
from rnic.coyote import CoyoteOper, CThread, Device, rdmaSg
from rnic.coyote.device import CountingShell
from rnic.link.udp import UdpLink

SERVER, CLIENT = "127.0.0.51", "127.0.0.52"
LONG, SHORT = 1 << 20, 1 << 16
IN_FLIGHT = 32
FLOOR = 0.9
OPERATIONS = {"write": CoyoteOper.REMOTE_RDMA_WRITE, "read": CoyoteOper.REMOTE_RDMA_READ}


class LookingShell(CountingShell):
    """A user's shell that inspects each request."""


@contextmanager
def thread_on(address: str, look: bool) -> Iterator[CThread]:
    """Yield a Coyote thread on its own address."""
    if not look:
        with CThread(device=address, timeout=20) as thread:
            yield thread
        return
    device = Device(UdpLink(address), shell=LookingShell)
    device.stack.runtime.start()
    with CThread(device=device, timeout=20) as thread:
        yield thread
    device.close()


def pattern(size: int) -> bytes:
    """Return the contents of the server's memory, which the client also writes."""
    return random.Random(size).randbytes(size)


def serve(port: int, size: int, look: bool) -> None:
    """Run the passive side, with two adjacent buffers of ``size`` bytes; the second holds the pattern."""
    with thread_on(SERVER, look) as thread:
        memory = thread.initRDMA(2 * size, port, timeout=20)
        memory[size:] = pattern(size)
        thread.connSync()
        thread.connSync()
        thread.connClose()


def _connect(thread: CThread, size: int, port: int) -> memoryview:
    end = time.monotonic() + 20
    while True:
        try:
            return thread.initRDMA(2 * size, port, SERVER)
        except ExchangeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def coyote(operation: str, size: int, count: int, look: bool = False) -> float:
    """Measure GB/s of ``count`` transfers, 32 in flight."""
    port = harness.free_port()
    command = [sys.executable, __file__, "serve", port, str(size), str(int(look))]
    with subprocess.Popen(command) as peer:
        restore = _keep_apart(peer.pid)
        try:
            with thread_on(CLIENT, look) as thread:
                memory = _connect(thread, size, int(port))
                thread.connSync()
                rate = _run(thread, memory, operation, size, count)
                thread.connSync()
                thread.connClose()
        except Exception:
            peer.kill()
            raise
        finally:
            restore()
        if peer.wait(20):
            raise LeftOutError("the passive side failed")
    return rate


def _run(thread: CThread, memory: memoryview, operation: str, size: int, count: int) -> float:
    oper, sg = OPERATIONS[operation], rdmaSg(len=size, remote_offs=0 if operation == "write" else size)
    memory[:size] = pattern(size) if operation == "write" else bytes(size)
    began = time.perf_counter()
    done = posted = 0
    while done < count:
        while posted < count and posted - done < IN_FLIGHT:
            thread.invoke(oper, sg)
            posted += 1
        done = thread.checkCompleted(oper)
    seconds = time.perf_counter() - began
    if operation == "write":
        thread.invoke(CoyoteOper.REMOTE_RDMA_READ, rdmaSg(len=size, local_offs=size))
        thread.wait(CoyoteOper.REMOTE_RDMA_READ)
        memory[:size] = memory[size:]
    if memory[:size] != pattern(size):
        raise LeftOutError(f"{operation} of {size} bytes: data differs from what was sent")
    return size * count / seconds / 1e9


def rows(look: bool) -> list[Row]:
    """Return the rows of each operation and size, against ``rnic perf``."""
    made = []
    for operation in OPERATIONS:
        for name, size in (("1 MiB", LONG), ("64 KiB", SHORT)):
            figure = f"{operation} {size}"
            floor = None if look else FLOOR
            made.append(Row(f"{operation} {name}", figure, "GB/s", floor, against=(f"perf {figure}",), middle=True))
            made.append(Row(f"rnic perf, {operation} {name}", f"perf {figure}", "GB/s"))
    return made


def takes(total: int, look: bool) -> list[tuple[str, Callable[[], float]]]:
    """Return the name of each figure, and a function that measures it with ``total`` bytes."""
    made: list[tuple[str, Callable[[], float]]] = []
    for operation in OPERATIONS:
        for size in (LONG, SHORT):
            count = max(IN_FLIGHT, total // size)
            made.append((f"{operation} {size}", partial(coyote, operation, size, count, look)))
            made.append((f"perf {operation} {size}", partial(gbps, operation, size, count, 0)))
    return made


def main(argv: Sequence[str]) -> int:
    """Run and print."""
    if argv[:1] == ["serve"]:
        port, size, look = (int(word) for word in argv[1:])
        serve(port, size, bool(look))
        return 0
    parser = harness.Parser("coyote", __doc__, rounds=5, short="one round, of less data", json=True)
    parser.add_argument("--look", action="store_true", help="with a shell that inspects each request")
    given = parser.read(list(argv))
    total = (64 if given.short or given.look else 512) << 20
    found, missing = harness.in_turn(takes(total, given.look), given.rounds)
    return harness.report(given, rows(given.look), found, missing)


if __name__ == "__main__":
    harness.run(main)
