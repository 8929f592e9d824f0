"""What plain Python can do with UDP sockets on this machine: the yardstick for rnic's own figures.

Sender and receiver are two processes with nothing but sockets between them: no ICRC, no queues, no memory
checks. :func:`throughput` sends the segments of 1 MiB WRITEs at PMTU 4096; :func:`half_rtt` bounces datagrams
of 40 bytes, the size of an 8-byte WRITE. Both are short and bounded, so that a benchmark can run them in turn
with what it measures.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

MESSAGE_BYTES = 1 << 20
FIRST_SEGMENT = 12 + 16 + 4096 + 4
"""BTH, RETH, payload, ICRC."""
SEGMENT = 12 + 4096 + 4
RUN = 15
"""Segments of one send: 16 would pass 65,507 bytes."""
SMALL = 40

_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104
_IP_MTU_DISCOVER, _PMTUDISC_DO = 10, 2
_BUFFER_BYTES = 4 << 20
_RUN_TRUESIZE = 62_700
"""What one run takes of a receive buffer, measured: 134 runs in 8 MiB."""
_SEGMENTS = MESSAGE_BYTES // 4096 - 1
_MESSAGE_WIRE_BYTES = FIRST_SEGMENT + _SEGMENTS * SEGMENT
_ACK = struct.Struct("=Q")
_IDLE_S = 5.0
"""The peer ends when nothing came for so long, should its parent die."""
_STALL_S = 0.05
_SPINS = 200

_Send = tuple[list[memoryview], list[tuple[int, int, bytes]], int]
"""Buffers, ancillary data and bytes of one ``sendmsg``."""


def throughput(seconds: float = 1.0) -> float:
    """Payload GB/s (1e9 bytes) of 1 MiB messages to another process, a few of them in flight.

    Args:
        seconds: how long to send, up to 10.

    Raises:
        RuntimeError: the other process did not start.
    """
    seconds = min(seconds, 10.0)
    with _peer() as (sock, to, granted):
        plan = _message_plan()
        window = min(4 * _MESSAGE_WIRE_BYTES, max(2, granted * 3 // 4 // _RUN_TRUESIZE) * RUN * SEGMENT)
        sent = acked = lost = 0
        start = now = time.perf_counter()
        end = start + seconds
        while now < end:
            for buffer, options, size in plan:
                while sent - acked - lost + size > window:
                    answer = _receive_small(sock, _STALL_S)
                    if len(answer) == _ACK.size:
                        acked = max(acked, _ACK.unpack(answer)[0])
                    elif not answer:
                        lost = sent - acked
                sock.sendmsg(buffer, options, 0, to)
                sent += size
            now = time.perf_counter()
        return acked / _MESSAGE_WIRE_BYTES * MESSAGE_BYTES / (time.perf_counter() - start) / 1e9


def half_rtt(count: int = 2_000) -> float:
    """Best of ten means of half a round trip of 40 bytes, in microseconds, both ends polling.

    Args:
        count: round trips in all, up to 200,000.

    Raises:
        RuntimeError: the other process did not start, or stopped to answer.
    """
    chunk = max(1, min(count, 200_000) // 10)
    message = bytes(SMALL)
    best = float("inf")
    with _peer() as (sock, to, _):
        for _ in range(10):
            start = time.perf_counter()
            for _ in range(chunk):
                sock.sendto(message, to)
                if len(_receive_small(sock, _STALL_S)) != SMALL:
                    raise RuntimeError("the raw UDP peer stopped to answer: run the benchmark on an idle machine")
            best = min(best, (time.perf_counter() - start) / chunk)
    return best / 2 * 1e6


def _message_plan() -> list[_Send]:
    """Sends of one message: the longer first segment alone, then runs."""
    data = memoryview(bytearray(_MESSAGE_WIRE_BYTES))
    plan: list[_Send] = [([data[:FIRST_SEGMENT]], [], FIRST_SEGMENT)]
    option = [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", SEGMENT))]
    for start in range(FIRST_SEGMENT, len(data), RUN * SEGMENT):
        run = data[start : start + RUN * SEGMENT]
        plan.append(([run], option, len(run)))
    return plan


def _receive_small(sock: socket.socket, timeout_s: float) -> bytes:
    """One datagram, by polling first and waiting then; empty when none came in time."""
    for _ in range(_SPINS):
        try:
            return sock.recv(64)
        except BlockingIOError:
            continue
    readable, _, _ = select.select([sock], [], [], timeout_s)
    return sock.recv(64) if readable else b""


def _open() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_DO)
    return sock


@contextlib.contextmanager
def _peer() -> Iterator[tuple[socket.socket, tuple[str, int], int]]:
    """A running peer: our socket, its address, and the receive buffer that it was granted."""
    command = [sys.executable, "-S", os.path.abspath(__file__), "--serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process, _open() as sock:
        assert process.stdin is not None
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if len(words) != 2:
            raise RuntimeError("the raw UDP peer did not start: see its message above")
        try:
            yield sock, ("127.0.0.1", int(words[0])), int(words[1])
        finally:
            # The peer ends when its standard input does.
            process.stdin.close()


def _serve() -> None:
    """Echo small datagrams; count long ones and acknowledge what came, at least four times a window."""
    sock = _open()
    sock.setsockopt(_SOL_UDP, _UDP_GRO, 1)
    granted = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    sys.stdout.write(f"{sock.getsockname()[1]} {granted}\n")
    sys.stdout.flush()
    ack_every = min(_MESSAGE_WIRE_BYTES, max(1, granted * 3 // 4 // _RUN_TRUESIZE // 4) * RUN * SEGMENT)
    buffer = [memoryview(bytearray(1 << 16))]
    awaited: tuple[socket.socket | int, ...] = (sock, 0)
    counted = acked = 0
    spins = 0
    while True:
        try:
            size, _, _, sender = sock.recvmsg_into(buffer, 64)
        except BlockingIOError:
            spins += 1
            if spins < _SPINS:
                continue
            spins = 0
            readable, _, _ = select.select(awaited, (), (), _IDLE_S)
            if not readable or 0 in readable:
                return
            continue
        spins = 0
        if size == SMALL:
            sock.sendto(buffer[0][:SMALL], sender)
            continue
        counted += size
        if counted - acked >= ack_every:
            acked = counted
            sock.sendto(_ACK.pack(counted), sender)


def main() -> None:
    """Serve when asked to; else print both figures."""
    if sys.argv[1:] == ["--serve"]:
        _serve()
        return
    sys.stdout.write(f"raw UDP throughput {throughput():.2f} GB/s, half round trip {half_rtt():.2f} us\n")


if __name__ == "__main__":
    main()
