"""``rnic serve``: the NIC process of this user."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import random
import resource
import secrets
import select
import signal
import sys
from collections import Counter
from functools import partial
from typing import Any, BinaryIO, cast

import click

from rnic.cc.settings import MODES, CongestionSettings
from rnic.cli.faults import fault_rules
from rnic.cli.options import UDP_PORT_RENAMED, Command, faults, udp_port
from rnic.cm.service import CmService
from rnic.device.parameters import PROFILES, profile_settings
from rnic.link.base import Link
from rnic.link.faults import FaultyLink
from rnic.link.recorder import Recorder
from rnic.link.udp import MAX_SOURCE_PORTS, UdpLink
from rnic.nic_process.client import Client
from rnic.nic_process.idle_backoff import SPIN_ROUNDS
from rnic.nic_process.inspect import command_of
from rnic.nic_process.process import NicProcess
from rnic.runtime.attach import IDLE_EXIT
from rnic.runtime.directory import ProcessError, runtime_directory
from rnic.runtime.loop import Runtime
from rnic.runtime.report import LOGGER
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.trace.counters import Counters
from rnic.verbs.devices import runtime_on

LOOPBACK = "127.0.0.1"
MOST_DESCRIPTORS = 1 << 16
"""More than all programs of a NIC process that is full need together."""


def open_capture(path: str) -> BinaryIO:
    """A file to record to, which makes nobody wait.

    Raises:
        OSError: it cannot be opened for writing; a FIFO (ENXIO) needs its reader first.
    """
    # appended to, since several devices may record to one file: each writes whole blocks
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    return cast("BinaryIO", os.fdopen(os.open(path, flags, 0o666), "wb", buffering=0))


def report_capture(path: str, error: OSError) -> None:
    """One line for the log: a recording has ended before its link."""
    LOGGER.warning("capture file %s: %s: recording has ended, all else goes on", path, error.strerror or error)


def make_runtime(address: str, port: int | None, options: dict[str, object]) -> Runtime:
    """A NIC on a UDP link, with a fault script and a recording where ``options`` ask for them.

    Args:
        address: local IP address.
        port: UDP port; ``None`` for 4791, 0 for any free one.
        options: ``faults`` is a script (JSON text of a list of rules), ``capture`` a path, ``name`` the device's,
            ``profile`` and ``parameters`` those of the core that it stands for, ``source_ports`` how many there are,
            ``congestion`` a mode of :class:`~rnic.cc.settings.CongestionSettings`.

    Raises:
        VerbsError: a profile, parameter or mode that does not exist, or a value out of range.
        ProcessError: a bad script, or a file that cannot be written.
        LinkError: the address is not local, or its port is taken.
    """
    parameters: Any = options.get("parameters") or {}
    settings = profile_settings(str(options.get("profile") or ""), parameters)
    if options.get("congestion"):
        settings["congestion"] = CongestionSettings(str(options["congestion"]))
    source_ports: Any = options.get("source_ports") or 0
    counters = Counters()
    wanted = ROCE_UDP_PORT if port is None else port
    socket_link = UdpLink(address, wanted, source_ports=source_ports, counters=counters)
    socket_link.lends = False  # it serves many programs, and keeps nothing that one of them has made it open
    link: Link = socket_link
    try:
        capture, faults = options.get("capture"), options.get("faults")
        if capture:
            link = Recorder(link, open_capture(str(capture)), ended=partial(report_capture, str(capture)))
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
    return runtime_on(link, counters, name=options["name"], **settings)


def parameter(text: str) -> tuple[str, int]:
    """``NAME=VALUE`` of the command line; ``BadParameter`` for anything else."""
    name, _, value = text.partition("=")
    if not name or not value.isdigit():
        words = f"{text!r} is no parameter: give NAME=VALUE, such as QP_NUM=1024"
        raise click.BadParameter(words, param_hint="--parameter")
    return name, int(value)


def raise_descriptor_limit() -> None:
    """Every program costs descriptors: take as many as this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def detach() -> int:
    """Go on as nobody's child, whom no program waits for; the descriptor to say on that all is well.

    The process that was started ends once that is said, or with status 2 once this one has ended without.
    """
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        os._exit(0 if os.read(read, 1) else 2)
    os.close(read)
    os.setsid()
    return write


def ready_line(process: NicProcess) -> str:
    """That it answers, where, and what to do next."""
    devices = ", ".join(str(runtime.nic.config) for runtime in process.devices.runtimes())
    where = devices or "devices are made as programs ask for them"
    return f"rnic serve: ready in {runtime_directory()}: {where}; rnic top shows it live, Ctrl-C ends it"


class Attached:
    """Says on stderr which programs begin and cease to use a device; one that opens it many times is told of once.

    Nobody has to read it: what would have to be waited for is left out.
    """

    def __init__(self, process: NicProcess) -> None:
        self._devices = process.devices
        self._contexts: Counter[tuple[int, str]] = Counter()
        self._commands: dict[int, str] = {}
        self._writable = select.poll()
        self._writable.register(sys.stderr.fileno(), select.POLLOUT)

    def __call__(self, client: Client, came: bool) -> None:
        """A context of a program was opened, or is gone."""
        user = client.pid, client.device
        before = self._contexts[user]
        self._contexts[user] += 1 if came else -1
        if came and not before:
            self._commands.setdefault(client.pid, command_of(client.pid))
            where = self._devices[client.device].runtime.nic.config if client.device in self._devices else client.device
            self._say(f"{self._commands[client.pid]} ({client.pid}) is attached to {where}")
        elif not self._contexts[user]:
            del self._contexts[user]
            command = self._commands[client.pid]
            if all(pid != client.pid for pid, _ in self._contexts):
                del self._commands[client.pid]
            self._say(
                f"{command} ({client.pid}) has left {client.device}; {len(self._contexts) or 'nobody'} still there"
            )

    def _say(self, what: str) -> None:
        if self._writable.poll(0):
            with contextlib.suppress(OSError):
                click.echo(f"rnic serve: {what}", err=True)


@click.command(cls=Command, renamed=UDP_PORT_RENAMED)
@click.option(
    "--addr",
    "addresses",
    multiple=True,
    help="Local IP address of a device; repeatable. Without it, devices are made as programs ask for them; one on"
    " 127.0.0.1 if another option describes a device.",
)
@udp_port("UDP port of these devices, 4791 by default.", low=1)
@faults()
@click.option("--capture", type=click.Path(dir_okay=False), help="Record every packet to this pcapng file.")
@click.option("--profile", type=click.Choice(tuple(PROFILES)), help="The core that these devices stand for.")
@click.option("--parameter", "parameters", multiple=True, help="One of its parameters, NAME=VALUE; may be given again.")
@click.option(
    "--source-ports",
    type=click.IntRange(0, MAX_SOURCE_PORTS),
    default=0,
    help="Send from so many UDP ports, by queue pair, so that switches spread them.",
)
@click.option("--congestion", type=click.Choice(MODES), help="What a congestion notification does (004 7.4).")
@click.option(
    "--idle-exit",
    type=click.FloatRange(0.0),
    envvar=IDLE_EXIT,
    help="End when nobody has used it for so many seconds.",
)
@click.option("--detach", "detached", is_flag=True, help="Go to the background once it answers.")
@click.option(
    "--spins", type=click.IntRange(0), envvar="RNIC_SPINS", default=SPIN_ROUNDS, help="Empty rounds before it sleeps."
)
def serve(
    addresses: tuple[str, ...],
    udp_port: int | None,
    faults: str | None,
    capture: str | None,
    profile: str | None,
    parameters: tuple[str, ...],
    source_ports: int,
    congestion: str | None,
    idle_exit: float | None,
    spins: int,
    detached: bool,
) -> None:
    """Run the NIC process that serves all programs of this user, until it is interrupted."""
    raise_descriptor_limit()
    said = detach() if detached else -1
    gc.freeze()  # modules stay: what looks for a closed device's cycles need not look through them each time
    service = CmService(random.Random(secrets.randbits(256)))
    process = NicProcess(runtime_directory(), make_runtime, service)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    faulthandler.register(signal.SIGUSR1)  # says where it is, whatever it does: see docs/programs.md
    try:
        options: dict[str, object] = {
            "faults": fault_rules(faults),
            "capture": os.path.abspath(capture) if capture else None,
            "profile": profile,
            "parameters": dict(parameter(each) for each in parameters),
            "source_ports": source_ports,
            "congestion": congestion,
        }
        if not addresses and (udp_port is not None or any(options.values())):
            addresses = (LOOPBACK,)  # else what was asked for would be of no device, and nobody told
        for address in addresses:
            process.devices.add(address, udp_port, options)
        if said >= 0:
            os.write(said, b"\1")
            os.close(said)
        else:
            click.echo(ready_line(process), err=True)
            process.devices.on_context = Attached(process)
        process.serve(idle_exit, spins)
    finally:
        process.close()
