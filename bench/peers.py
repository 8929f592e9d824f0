"""Figures of other programs on this machine: UCX, libfabric and ZeroMQ over TCP on loopback, if installed, and the C
programs in this directory, which are built on demand.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from harness import LeftOutError, free_port

UCX_ENVIRONMENT = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
PATIENCE_S = 30.0
_ZMQ_COUNT = 3_000
_ZMQ_CODE = """
import sys, time, zmq
context = zmq.Context()
if sys.argv[1] == "pull":
    sock = context.socket(zmq.PULL)
    print(sock.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    for _ in range(int(sys.argv[2])):
        sock.recv(copy=False)
    print("done", flush=True)
else:
    sock = context.socket(zmq.PUSH)
    sock.connect("tcp://127.0.0.1:" + sys.argv[3])
    data = bytes(int(sys.argv[4]))
    for _ in range(int(sys.argv[2])):
        sock.send(data, copy=False)
    sock.close()
    context.term()
"""


def c_program(folder: Path, name: str, *words: str) -> float:
    """Build ``raw_udp.c`` or ``process_vm.c`` in a directory, if needed, and return its figure."""
    program = folder / name
    if not program.exists():
        compiler = shutil.which("cc")
        if compiler is None:
            raise LeftOutError(f"no C compiler (cc) to build {name}.c with")
        source = Path(__file__).with_name(f"{name}.c")
        build = [compiler, "-O2", "-std=gnu11", "-o", str(program), str(source)]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LeftOutError(f"{name}.c was not built: {(done.stderr.splitlines() or ['cc failed'])[0]}")
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise LeftOutError(done.stderr.strip() or f"{name} failed")
    return float(done.stdout.split()[0])


def apart() -> tuple[list[str], list[str]]:
    """Return command prefixes that pin server and client to different cores."""
    if not hasattr(os, "sched_getaffinity") or shutil.which("taskset") is None:
        return [], []
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return [], []
    return ["taskset", "-c", str(cores[-1])], ["taskset", "-c", str(cores[0])]


def pair(server: list[str], client: list[str], environment: dict[str, str] | None = None) -> str:
    """Run a server and its client, and return the client's output; raise ``LeftOutError`` if they fail."""
    env = {**os.environ, **(environment or {})}
    theirs, ours = apart()
    with subprocess.Popen([*theirs, *server], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + PATIENCE_S
            while True:
                time.sleep(0.2)
                done = subprocess.run(
                    [*ours, *client], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
                )
                if not done.returncode and done.stdout:
                    return done.stdout
                if process.poll() is not None or time.monotonic() > end:
                    words = (done.stderr or done.stdout or "it said nothing").strip().splitlines()
                    raise LeftOutError(f"{client[0]} failed: {words[-1]}")
        except subprocess.TimeoutExpired:
            raise LeftOutError(f"{client[0]} did not end within {PATIENCE_S:g} s") from None
        finally:
            process.kill()


def ucx(test: str, size: int, count: int) -> list[float]:
    """Return the last line of ``ucx_perftest`` over TCP: latencies in us (typical, mean, overall), MB/s and messages
    per second (each average and overall)."""
    program = shutil.which("ucx_perftest")
    if program is None:
        raise LeftOutError("ucx_perftest is not installed")
    port = free_port()
    ask = ["-t", test, "-s", str(size), "-n", str(count), "-w", str(max(10, count // 10)), "-f", "-v"]
    text = pair([program, "-p", port], [program, "127.0.0.1", "-p", port, *ask], UCX_ENVIRONMENT)
    return [float(word) for word in text.strip().splitlines()[-1].split(",")[1:]]


def ucx_tag_latency(count: int) -> float:
    """Measure half a round trip of 8 bytes in us, typical."""
    return ucx("tag_lat", 8, count)[0]


def ucx_tag_rate(count: int) -> float:
    """Measure millions of 8-byte messages per second."""
    return ucx("tag_bw", 8, count)[-1] / 1e6


def ucx_tag_gbps(size: int, count: int) -> float:
    """Measure GB/s of messages one way."""
    return ucx("tag_bw", size, count)[-1] * size / 1e9


def libfabric_gbps(size: int, count: int) -> float:
    """Measure GB/s of ``fi_pingpong`` with one message in flight; libfabric has no other benchmark."""
    program = shutil.which("fi_pingpong")
    if program is None:
        raise LeftOutError("fi_pingpong is not installed")
    port = free_port()
    ask = ["-p", "tcp", "-e", "msg", "-S", str(size), "-I", str(count)]
    text = pair([program, "-B", port, *ask], [program, "-P", port, *ask, "127.0.0.1"])
    return float(text.strip().splitlines()[-1].split()[5]) / 1e3


def zeromq_gbps(size: int) -> float:
    """Measure GB/s from a PUSH to a PULL socket, with pyzmq."""
    if importlib.util.find_spec("zmq") is None:
        raise LeftOutError("pyzmq is not installed")
    theirs, ours = apart()
    command = [sys.executable, "-c", _ZMQ_CODE]
    pull = [*theirs, *command, "pull", str(_ZMQ_COUNT)]
    with subprocess.Popen(pull, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        start = time.perf_counter()
        subprocess.run([*ours, *command, "push", str(_ZMQ_COUNT), port, str(size)], check=True, timeout=PATIENCE_S)
        process.stdout.readline()
        return _ZMQ_COUNT * size / (time.perf_counter() - start) / 1e9
