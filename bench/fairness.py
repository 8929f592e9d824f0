"""Waiting times of programs beside a busy program, all served by one NIC process.

A bulk writer (``ib_write_bw``, or ``rnic perf`` if that is not installed) keeps the NIC process busy while a device
command and an 8-byte ping-pong are timed; both are also timed without it. Part of ``./dev bench device``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

from harness import Found, Row, free_port, last_row

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
        self.ping_us()  # warm up

    def _command(self, tool: str, *options: str) -> list[str]:
        if self.native:
            return [*RNIC, "exec", "--addr", self.address, "--", f"ib_{tool}", "-x", "0", "-F", *options]
        return [*RNIC, "perf", tool, *options, "--addr", self.address, "--nic-process"]

    def _pair(self, tool: str, *options: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
        """Start a test's server and client; return both."""
        command = self._command(tool, "-p", free_port(), *options)
        kinds = {"env": self.env, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        passive = [] if self.native else ["--listen"]
        server: subprocess.Popen[str] = subprocess.Popen([*command, *passive], **kinds)  # type: ignore[call-overload]
        time.sleep(0.6)
        peer = "127.0.0.1" if self.native else self.address
        client: subprocess.Popen[str] = subprocess.Popen([*command, peer], **kinds)  # type: ignore[call-overload]
        return server, client

    def ping_us(self) -> float:
        """Measure half a round trip of 8 bytes in us, the tool's typical value."""
        options = ("-s", "8", "-n", str(PINGS)) + (() if self.native else ("--json",))
        server, client = self._pair("send_lat", *options)
        text = str(client.communicate(timeout=LIMIT_S)[0])
        server.communicate(timeout=LIMIT_S)
        if client.returncode:
            raise RuntimeError(f"{client.args!r}: {text[-400:]}")
        if not self.native:
            return float(json.loads(text[text.index("[") :])[0]["t_typical_us"])
        return float(last_row(text)[4])

    def command_ms(self) -> list[float]:
        """Measure the times of device commands in ms."""
        took = []
        for _ in range(COMMANDS):
            began = time.perf_counter()
            self.ctx.query_port(1)
            took.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.002)
        return took

    def bulk(self) -> tuple[subprocess.Popen[str], ...]:
        """Start a bulk writer that runs until it is stopped."""
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
    """Stop processes; raise if one had exited already."""
    ended = [process.args for process in processes if process.poll() is not None]
    for process in processes:
        process.kill()
        process.communicate()
    if ended:
        raise RuntimeError(f"the bulk writer exited early: {ended}")


def sent_bytes(directory: Path) -> int:
    """Return the bytes sent by the device, nearly all of them by the bulk writer."""
    return int(ask(directory, "rnic0", "counters")["tx_bytes"])


def measure(tools: str, found: Found) -> list[Row]:
    """Measure commands (ms) and ping-pongs (us), idle and beside a bulk writer, and the writer's GB/s; return rows."""
    command, ping, bulk = (
        f"{tools}: {what}" for what in ("command", "8-byte ping-pong", "the bulk writer beside the ping-pong")
    )
    busy_command, busy_ping = f"{command} beside a bulk writer", f"{ping} beside a bulk writer"
    for name in (command, busy_command, ping, busy_ping, bulk):
        found[name] = []
    with tempfile.TemporaryDirectory(prefix="rnic-fair-") as name:
        directory = Path(name)
        directory.chmod(0o700)
        programs = Programs(directory, tools == "perftest")
        try:
            for _ in range(ROUNDS):
                found[command] += programs.command_ms()
                found[ping].append(programs.ping_us())
                busy = programs.bulk()
                try:
                    found[busy_command] += programs.command_ms()
                    sent, began = sent_bytes(directory), time.monotonic()
                    found[busy_ping].append(programs.ping_us())
                    seconds = time.monotonic() - began
                    found[bulk].append((sent_bytes(directory) - sent) / seconds / 1e9)
                finally:
                    stop(busy)
        finally:
            programs.close()
    late = f"{busy_command}, 95 %"
    found[late] = [quantiles(found[busy_command], n=20)[-1]]
    return [
        Row(command, command, "ms", less=True),
        Row(busy_command, busy_command, "ms", MOST_COMMAND_MS, less=True, middle=True),
        Row(late, late, "ms", less=True),
        Row(ping, ping, "us", less=True),
        Row(busy_ping, busy_ping, "us", MOST_PING_RATIO, against=(ping,), less=True, middle=True),
        Row(bulk, bulk, "GB/s"),
    ]


def measure_all(found: Found) -> list[Row]:
    """Run :func:`measure` with perftest, if installed, and with ``rnic perf``."""
    tools = ["perftest"] if shutil.which("ib_write_bw") else []
    if not tools:
        print("perftest is not installed: rnic perf alone", file=sys.stderr)
    return [row for name in (*tools, "rnic perf") for row in measure(name, found)]


__all__ = ["measure", "measure_all"]
