"""``rnic sim FILE --run COMMAND``: run programs on a fabric in real time."""

from __future__ import annotations

import gc
import os
import random
import secrets
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rnic.cli.exec_fabric import said
from rnic.cli.serve import make_runtime, raise_descriptor_limit
from rnic.cm.service import CmService
from rnic.nic_process.idle_backoff import SPIN_ROUNDS
from rnic.nic_process.process import NicProcess
from rnic.sim.live import LiveFabric, keep_fabric

if TYPE_CHECKING:
    from rnic.sim.scenario import Scenario

SAMPLE_NS = 1_000_000
"""Shortest time between two samples, in real time."""

NICE = 3
"""Nice value of the programs, above that of this process."""


def live(scenario: Scenario, slower: int | None) -> LiveFabric:
    """Return the fabric of a scenario, and report by how much its time is slower."""
    fabric = LiveFabric(scenario, slower or 0)
    if fabric.slower > 1 and slower is None:
        click.echo(f"rnic sim: {said(fabric.slower)}; --slower sets another number", err=True)
    return fabric


def sample_ns(scenario: Scenario, real: LiveFabric) -> int:
    """Return the time between two samples of a run in real time; 0 for none."""
    return max(scenario.sample_ns, SAMPLE_NS // real.slower) if scenario.sample_ns else 0


def run(fabric: LiveFabric, file: Path, command: str) -> int:
    """Run a shell command whose programs under ``rnic exec`` are the fabric's hosts. Return its exit status.

    This process is their NIC process until the command ends.

    Args:
        fabric: the fabric that their NICs are connected to.
        file: the scenario file; programs find the fabric by its name.
        command: the command.

    Raises:
        OSError: ``nice`` is not installed.
    """
    path = str(file.resolve())
    keep_fabric(path, fabric)
    raise_descriptor_limit()
    gc.freeze()
    with tempfile.TemporaryDirectory(prefix="rnic-sim-") as name:
        service = CmService(random.Random(secrets.randbits(256)))
        process = NicProcess(Path(name), make_runtime, service)
        env = {**os.environ, "RNIC_RUNTIME_DIR": name, "RNIC_FABRIC": path, "RNIC_SLOWER": str(fabric.slower)}
        with _interrupts_passed():
            # spinning programs would starve the fabric
            child = subprocess.Popen(["nice", "-n", str(NICE), "sh", "-c", command], env=env)

            def wait() -> None:
                child.wait()
                process.stop()

            threading.Thread(target=wait, daemon=True).start()
            try:
                process.serve(None, SPIN_ROUNDS)
            finally:
                if child.poll() is None:
                    child.terminate()
                process.close()
    return child.wait()


@contextmanager
def _interrupts_passed() -> Iterator[None]:
    """Ignore Ctrl-C: the terminal sends it to the command as well."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
