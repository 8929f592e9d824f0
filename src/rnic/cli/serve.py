"""``rnic serve``: the NIC process of this user."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import secrets
import signal
from pathlib import Path

import click

from rnic.link.base import Link
from rnic.link.faults import FaultyLink
from rnic.link.recorder import Recorder
from rnic.link.udp import UdpLink
from rnic.runtime.directory import ProcessError, runtime_directory
from rnic.runtime.loop import Runtime
from rnic.runtime.process import SPIN_ROUNDS, NicProcess
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.trace.counters import Counters
from rnic.verbs.context import runtime_on

MOST_DESCRIPTORS = 1 << 16
"""More than all programs of a NIC process that is full need together."""


def make_runtime(address: str, port: int | None, options: dict[str, object]) -> Runtime:
    """A NIC on a UDP link, with a fault script and a recording where ``options`` ask for them.

    Args:
        address: local IP address.
        port: UDP port; ``None`` for 4791, 0 for any free one.
        options: ``faults`` is a script (JSON text of a list of rules), ``capture`` a path, ``name`` the device's.

    Raises:
        ProcessError: a bad script, or a file that cannot be written.
        LinkError: the address is not local, or its port is taken.
    """
    counters = Counters()
    link: Link = UdpLink(address, ROCE_UDP_PORT if port is None else port, counters=counters)
    try:
        capture, faults = options.get("capture"), options.get("faults")
        if capture:
            link = Recorder(link, Path(str(capture)).open("wb", buffering=0))  # noqa: SIM115 - the recorder's
        if faults:
            import time  # noqa: PLC0415

            rng = random.Random(secrets.randbits(64))
            link = FaultyLink(link, clock=time.monotonic_ns, rng=rng, script=json.loads(str(faults)))
    except OSError as error:
        link.close()
        raise ProcessError(f"capture file {options.get('capture')}: {error.strerror}") from None
    except ValueError as error:
        link.close()
        raise ProcessError(f"fault script: {error}") from None
    return runtime_on(link, counters, name=options["name"])


def raise_descriptor_limit() -> None:
    """Every program costs descriptors: take as many as this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@click.command()
@click.option("--addr", "addresses", multiple=True, help="Local IP address of a device; may be given again.")
@click.option("--port", type=click.IntRange(1, 65535), help="UDP port of these devices, 4791 by default.")
@click.option("--faults", type=click.Path(exists=True, dir_okay=False), help="Fault script (JSON) for these devices.")
@click.option("--capture", type=click.Path(dir_okay=False), help="Record every packet to this pcapng file.")
@click.option("--idle-exit", type=click.FloatRange(0.0), help="End when nobody has used it for so many seconds.")
@click.option(
    "--spins", type=click.IntRange(0), envvar="RNIC_SPINS", default=SPIN_ROUNDS, help="Empty rounds before it sleeps."
)
def serve(
    addresses: tuple[str, ...],
    port: int | None,
    faults: str | None,
    capture: str | None,
    idle_exit: float | None,
    spins: int,
) -> None:
    """Run the NIC process that serves all programs of this user, until it is interrupted."""
    raise_descriptor_limit()
    process = NicProcess(runtime_directory(), make_runtime)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    try:
        options: dict[str, object] = {
            "faults": Path(faults).read_text(encoding="utf-8") if faults else None,
            "capture": os.path.abspath(capture) if capture else None,
        }
        for address in addresses:
            process.add(address, port, options)
        process.serve(idle_exit, spins)
    finally:
        process.close()
