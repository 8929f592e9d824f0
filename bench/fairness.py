"""Who waits how long beside one busy program, all of them served by one NIC process.

A bulk writer (``ib_write_bw``, or ``rnic perf`` where that is not installed) keeps the NIC process busy; beside it a
device command and an 8-byte ping-pong are timed, and both once more with nobody beside. Part of ``./dev bench device``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import rnic
from rnic.abi.build import build
from rnic.runtime.attach import ask, connect
from rnic.testing import own_network

RNIC = [sys.executable, "-m", "rnic.cli"]
COMMANDS = 200
PINGS = 500
ROUNDS = 2
WARM_S = 1.5
LIMIT_S = 60.0
MOST_COMMAND_MS = 2.0
MOST_PING_RATIO = 5.0


def free_port() -> str:
    """A TCP port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


class Programs:
    """Programs that share the NIC process of one runtime directory, at one address."""

    def __init__(self, directory: Path, native: bool) -> None:
        self.native = native
        self.address = f"{own_network()}.1"
        self.env = {**os.environ, "RNIC_RUNTIME_DIR": str(directory), "PYTHONUNBUFFERED": "1"}
        if native:
            libraries = directory / "libraries"
            build(libraries)
            self.env["RNIC_LIBRARIES"] = str(libraries)
        self.nic = subprocess.Popen([*RNIC, "serve", "--addr", self.address], env=self.env, stdout=subprocess.DEVNULL)
        end = time.monotonic() + LIMIT_S
        while (connection := connect(directory)) is None:
            if time.monotonic() > end or self.nic.poll() is not None:
                raise RuntimeError("the NIC process does not answer")
            time.sleep(0.02)
        connection.close()
        self.ctx = rnic.open(self.address, directory=directory)
        self.ping_us()  # the first run finds nothing warm

    def _command(self, tool: str, *options: str) -> list[str]:
        if self.native:
            return [*RNIC, "exec", "--addr", self.address, "--", f"ib_{tool}", "-x", "0", "-F", *options]
        return [*RNIC, "perf", tool, *options, "--addr", self.address, "--nic-process"]

    def _pair(self, tool: str, *options: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
        """Server and client of a test, the client begun once the server listens."""
        command = self._command(tool, "-p", free_port(), *options)
        kinds = {"env": self.env, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        passive = [] if self.native else ["--listen"]
        server: subprocess.Popen[str] = subprocess.Popen([*command, *passive], **kinds)  # type: ignore[call-overload]
        time.sleep(0.6)
        peer = "127.0.0.1" if self.native else self.address
        client: subprocess.Popen[str] = subprocess.Popen([*command, peer], **kinds)  # type: ignore[call-overload]
        return server, client

    def ping_us(self) -> float:
        """Half a round trip of 8 bytes, as the tool says it, typically."""
        options = ("-s", "8", "-n", str(PINGS)) + (() if self.native else ("--json",))
        server, client = self._pair("send_lat", *options)
        text = str(client.communicate(timeout=LIMIT_S)[0])
        server.communicate(timeout=LIMIT_S)
        if client.returncode:
            raise RuntimeError(f"{client.args!r}: {text[-400:]}")
        if not self.native:
            return float(json.loads(text[text.index("[") :])[0]["t_typical_us"])
        lines = [line.split() for line in text.splitlines() if re.match(r"^\s*8\s", line)]
        return float(lines[-1][4])

    def command_ms(self) -> list[float]:
        """How long device commands take."""
        took = []
        for _ in range(COMMANDS):
            began = time.perf_counter()
            self.ctx.query_port(1)
            took.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.002)
        return took

    def bulk(self) -> tuple[subprocess.Popen[str], ...]:
        """A bulk writer that goes on until it is stopped."""
        if self.native:
            pair = self._pair("write_bw", "-s", str(1 << 20), "-D", "100")
        else:
            pair = self._pair("write_bw", "-s", str(1 << 20), "-n", "1000000", "-t", "8")
        time.sleep(WARM_S)
        return pair

    def close(self) -> None:
        """End everything."""
        self.ctx.close()
        self.nic.send_signal(signal.SIGTERM)
        self.nic.wait(LIMIT_S)


def stop(processes: tuple[subprocess.Popen[str], ...]) -> None:
    """End what was begun, and see to it that it ran until now."""
    ended = [process.args for process in processes if process.poll() is not None]
    for process in processes:
        process.kill()
        process.communicate()
    if ended:
        raise RuntimeError(f"the bulk writer did not last: {ended}")


def sent_bytes(directory: Path) -> int:
    """What the device has sent: beside a bulk writer the rest is little."""
    return int(ask(directory, "rnic0", "counters")["tx_bytes"])


def measure(native: bool) -> dict[str, float]:
    """Medians of commands (ms) and ping-pongs (us), idle and beside one bulk writer; GB/s of that meanwhile."""
    found: dict[str, list[float]] = {
        "command_idle_ms": [],
        "command_busy_ms": [],
        "ping_idle_us": [],
        "ping_busy_us": [],
        "bulk_gbps": [],
    }
    with tempfile.TemporaryDirectory(prefix="rnic-fair-") as name:
        directory = Path(name)
        directory.chmod(0o700)
        programs = Programs(directory, native)
        try:
            for _ in range(ROUNDS):
                found["command_idle_ms"] += programs.command_ms()
                found["ping_idle_us"].append(programs.ping_us())
                busy = programs.bulk()
                try:
                    found["command_busy_ms"] += programs.command_ms()
                    sent, began = sent_bytes(directory), time.monotonic()
                    found["ping_busy_us"].append(programs.ping_us())
                    seconds = time.monotonic() - began
                    found["bulk_gbps"].append((sent_bytes(directory) - sent) / seconds / 1e9)
                finally:
                    stop(busy)
        finally:
            programs.close()
    figures = {name: round(median(values), 3) for name, values in found.items()}
    figures["command_busy_p95_ms"] = round(quantiles(found["command_busy_ms"], n=20)[-1], 3)
    figures["ping_ratio"] = round(figures["ping_busy_us"] / figures["ping_idle_us"], 2)
    return figures


def verdicts(figures: dict[str, float]) -> list[str]:
    """The figures in words, each with its verdict."""
    slow = figures["command_busy_ms"] > MOST_COMMAND_MS
    late = figures["ping_ratio"] > MOST_PING_RATIO
    command, ping = "command beside a bulk writer", "8-byte ping-pong beside a bulk writer"
    return [
        f"{command}: {figures['command_busy_ms']} ms (95 % {figures['command_busy_p95_ms']}, idle"
        f" {figures['command_idle_ms']}): at most {MOST_COMMAND_MS} ms {'MISSED' if slow else 'met'}",
        f"{ping}: {figures['ping_busy_us']} us (idle {figures['ping_idle_us']}), {figures['ping_ratio']} times:"
        f" at most {MOST_PING_RATIO} times {'MISSED' if late else 'met'}; the writer meanwhile:"
        f" {figures['bulk_gbps']} GB/s",
    ]


def measure_all() -> dict[str, dict[str, float]]:
    """:func:`measure` by perftest, where it is installed, and by ``rnic perf``."""
    found = {}
    if shutil.which("ib_write_bw"):
        found["perftest"] = measure(native=True)
    else:
        print("perftest is not installed: rnic perf alone", file=sys.stderr)
    found["rnic perf"] = measure(native=False)
    return found


__all__ = ["measure", "measure_all", "verdicts"]
