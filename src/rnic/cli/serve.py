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
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, BinaryIO, cast

import click

from rnic.cc.settings import CongestionSettings
from rnic.cli.faults import fault_rules
from rnic.cli.looks import core_of, look_options, looks_of, parameter_option
from rnic.cli.options import UDP_PORT_RENAMED, Command, ControlName, capture_policy, faults, snaplen, udp_port
from rnic.cm.service import CmService
from rnic.device.parameters import profile_settings
from rnic.link.base import Link
from rnic.link.faults import FaultyLink
from rnic.link.recorder import Recorder
from rnic.link.recording import SNAP_MAX, Recording
from rnic.link.udp import UdpLink
from rnic.link.verbs_faults import VerbsFaults, for_packets, parse_verbs_rules
from rnic.nic_process.client import Client
from rnic.nic_process.idle_backoff import SPIN_ROUNDS
from rnic.nic_process.inspect import command_of
from rnic.nic_process.process import NicProcess
from rnic.runtime.attach import IDLE_EXIT
from rnic.runtime.directory import ProcessError, runtime_directory
from rnic.runtime.loop import Runtime
from rnic.runtime.non_rdma_port import NonRdmaPort
from rnic.runtime.report import LOGGER
from rnic.spec.appearance import appearance
from rnic.spec.attach import MAX_SOURCE_PORTS
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.trace.counters import Counters
from rnic.verbs.devices import runtime_on

LOOPBACK = "127.0.0.1"
MOST_DESCRIPTORS = 1 << 16
"""Upper limit on descriptors: more than the programs of a full NIC process need in total."""


def open_capture(path: str, again: bool = False) -> BinaryIO:
    """Open a capture file for writing, without waiting for a reader.

    Args:
        path: path of the file.
        again: the file was opened before: append to it.

    Raises:
        OSError: it cannot be opened for writing; a FIFO (ENXIO) needs its reader first.
    """
    # append: several devices may record to one file, each in whole blocks
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    if not again:
        flags |= os.O_TRUNC
    return cast("BinaryIO", os.fdopen(os.open(path, flags, 0o666), "wb", buffering=0))


_begun: set[str] = set()
"""Capture files of programs that this process has started; further devices and contexts of a program append to them."""


def report_capture(path: str, error: OSError) -> None:
    """Log that a recording ended before its link."""
    LOGGER.warning("capture file %s: %s: recording has ended, all else goes on", path, error.strerror or error)


def make_runtime(address: str, port: int | None, options: dict[str, object]) -> Runtime:
    """Return a NIC on a UDP link, with a fault script and a recording if ``options`` ask for them.

    Args:
        address: local IP address.
        port: UDP port; ``None`` for 4791, 0 for any free one.
        options: ``faults`` is a script (JSON text of a list of rules), ``capture`` a path, ``name`` the device's,
            ``profile`` and ``parameters`` those of the core that it models, ``source_ports`` their number,
            ``congestion`` a mode of :class:`~rnic.cc.settings.CongestionSettings`, ``non_rdma_port`` the UDP port of
            the non-RDMA channel.

    Raises:
        VerbsError: a profile, parameter or mode does not exist, or a value is out of range.
        ProcessError: the fault script is invalid, or the file cannot be written.
        LinkError: the address is not local, or its port is taken.
    """
    parameters: Any = options.get("parameters") or {}
    settings = profile_settings(str(options.get("profile") or ""), parameters)
    settings["appearance"] = appearance(str(options.get("look") or ""))
    settings["index"] = options.get("index", -1)
    if options.get("congestion"):
        settings["congestion"] = CongestionSettings(str(options["congestion"]))
    source_ports: Any = options.get("source_ports") or 0
    make: Callable[..., Runtime]
    link: Link
    if options.get("fabric"):
        link, counters, make = _on_fabric(port, options)
    else:
        counters = Counters()
        wanted = ROCE_UDP_PORT if port is None else port
        link = socket_link = UdpLink(address, wanted, source_ports=source_ports, counters=counters)
        socket_link.lends = False  # it serves many programs: do not keep a FIFO open for one of them
        make = partial(runtime_on, counters=counters)
    with contextlib.ExitStack() as undo:
        undo.callback(lambda: link.close())  # noqa: PLW0108 - the outermost link by then
        capture, faults = options.get("capture"), options.get("faults")
        try:
            if capture:
                ended = partial(report_capture, str(capture))
                policy, snap = options.get("capture_policy") or "wait", options.get("snaplen") or SNAP_MAX
                if policy not in ("wait", "drop"):
                    raise ProcessError(f"capture policy {policy!r} does not exist: give wait or drop")
                if not isinstance(snap, int) or not 0 < snap <= SNAP_MAX:
                    raise ProcessError(f"snap length {snap!r} is out of range: give 1 to {SNAP_MAX} bytes")

                def record(pid: int) -> Recording:
                    place = str(capture).replace("%p", str(pid))
                    file = open_capture(place, again=place in _begun)
                    if place != str(capture):
                        _begun.add(place)
                    return Recording(file, counters, ended=ended, snap=snap, waits=policy == "wait")

                recording = record(os.getpid())
                if "%p" in str(capture):
                    recording.of_program = record
                link = Recorder(link, recording, owns=True)
            script = json.loads(str(faults)) if faults else []
            rules = parse_verbs_rules(script, secrets.randbits(64))
            if faults and for_packets(script):
                import time  # noqa: PLC0415

                rng = random.Random(secrets.randbits(64))
                link = FaultyLink(link, clock=time.monotonic_ns, rng=rng, script=script)
        except OSError as error:
            raise ProcessError(f"capture file {capture}: {error.strerror}") from None
        except ValueError as error:
            raise ProcessError(f"fault script: {error}") from None
        runtime = make(link, name=options["name"], **settings)
        undo.pop_all()
    if rules:
        runtime.fail_verbs(VerbsFaults(rules))
    non_rdma_port: Any = options.get("non_rdma_port")
    if non_rdma_port is not None:
        try:
            NonRdmaPort(runtime, socket_link, non_rdma_port)
        except BaseException:
            runtime.close()
            raise
    return runtime


def _on_fabric(port: int | None, options: Mapping[str, Any]) -> tuple[Link, Counters, Callable[..., Runtime]]:
    """Return the link, counters and factory of a NIC on a simulated fabric.

    Raises:
        ProcessError: another UDP port is asked for.
        OSError, RnicError: as :func:`rnic.sim.live.live_fabric`.
    """
    from rnic.sim.live import live_fabric  # noqa: PLC0415 - few programs need it

    if port not in (None, ROCE_UDP_PORT):
        raise ProcessError(f"udp_port={port} cannot be on a simulated fabric: leave it out, all use {ROCE_UDP_PORT}")
    fabric = live_fabric(str(options["fabric"]), options.get("slower") or 0)
    host = fabric.host(int(options.get("host") or 0))
    return fabric.connect(host), host.counters, partial(fabric.runtime, host)


def raise_descriptor_limit() -> None:
    """Raise the descriptor limit to this user's maximum: every program takes some descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def detach() -> int:
    """Continue as a daemon; return the descriptor on which to report success.

    The original process exits after that report, or with status 2 if the daemon ends without one.
    """
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        os._exit(0 if os.read(read, 1) else 2)
    os.close(read)
    os.setsid()
    return write


def take_handed(fds: str) -> tuple[int, socket.socket, socket.socket]:
    """Return the descriptors that ``rnic exec`` passed to this process: lock, socket and connection."""
    lock, listener, connection = map(int, fds.split(","))
    for fd in (lock, listener, connection):
        os.set_inheritable(fd, False)
    return lock, socket.socket(fileno=listener), socket.socket(fileno=connection)


def ready_line(process: NicProcess) -> str:
    """Return the line that reports where the NIC process listens, and what to do next."""
    devices = ", ".join(str(runtime.nic.config) for runtime in process.devices.runtimes())
    where = devices or "devices are made as programs ask for them"
    return f"rnic serve: ready in {runtime_directory()}: {where}; rnic top shows it live, Ctrl-C ends it"


class Attached:
    """Reports on stderr when a program starts and stops using a device, once per program.

    It never waits for a reader of stderr: lines that would block are dropped.
    """

    def __init__(self, process: NicProcess) -> None:
        self._devices = process.devices
        self._contexts: Counter[tuple[int, str]] = Counter()
        self._commands: dict[int, str] = {}
        self._writable = select.poll()
        self._writable.register(sys.stderr.fileno(), select.POLLOUT)

    def __call__(self, client: Client, came: bool) -> None:
        """Note that a program's context was opened or closed."""
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
    help="Local IP address of a device; repeatable. Without it, devices are created on demand; one on"
    " 127.0.0.1 if another option describes a device.",
)
@udp_port("UDP port of these devices, 4791 by default.", low=1)
@faults()
@click.option("--capture", type=click.Path(dir_okay=False), help="Record every packet to this pcapng file.")
@capture_policy()
@snaplen()
@click.option("--profile", help="Core that these devices model (univista), or their appearance (8x400g).")
@look_options
@parameter_option
@click.option(
    "--source-ports",
    type=click.IntRange(0, MAX_SOURCE_PORTS),
    default=0,
    help="Spread queue pairs over this many UDP source ports, for ECMP.",
)
@click.option(
    "--non-rdma-port",
    type=click.IntRange(1, 0xFFFF),
    help="UDP port on each device's address for traffic that is not RDMA.",
)
@click.option(
    "--congestion",
    type=ControlName(),
    help="Congestion control: none, limit, dcqcn, timely, swift, hpcc, or module:Class.",
)
@click.option(
    "--idle-exit",
    type=click.FloatRange(0.0),
    envvar=IDLE_EXIT,
    help="Exit after this many seconds without a client.",
)
@click.option("--detach", "detached", is_flag=True, help="Run in the background once the NIC process is ready.")
@click.option("--handed", hidden=True)
@click.option("--view", hidden=True)
@click.option(
    "--spins",
    type=click.IntRange(0),
    envvar="RNIC_SPINS",
    default=SPIN_ROUNDS,
    help="Empty polling rounds before the process sleeps.",
)
def serve(
    addresses: tuple[str, ...],
    udp_port: int | None,
    faults: str | None,
    capture: str | None,
    capture_policy: str | None,
    snaplen: int | None,
    profile: str | None,
    name: str | None,
    gids: str | None,
    rate: str | None,
    numa: int | None,
    pci: str | None,
    count: int | None,
    parameters: tuple[str, ...],
    source_ports: int,
    non_rdma_port: int | None,
    congestion: str | None,
    idle_exit: float | None,
    spins: int,
    detached: bool,
    handed: str | None,
    view: str | None,
) -> None:
    """Run the NIC process that serves all programs of this user, until it is interrupted."""
    core, chosen = core_of(profile, parameters)
    raise_descriptor_limit()
    said = detach() if detached else -1
    gc.freeze()  # freeze modules, so that the garbage collector does not scan them
    service = CmService(random.Random(secrets.randbits(256)))
    lock, listener, first = take_handed(handed) if handed is not None else (-1, None, None)
    given = (lock, listener) if listener is not None else None
    process = NicProcess(runtime_directory(), make_runtime, service, given)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    faulthandler.register(signal.SIGUSR1)  # dumps all stacks, whatever the process does: see docs/programs.md
    try:
        options: dict[str, object] = {
            "faults": fault_rules(faults),
            "capture": os.path.abspath(capture) if capture else None,
            "capture_policy": capture_policy,
            "snaplen": snaplen,
            "profile": core,
            "parameters": chosen,
            "source_ports": source_ports,
            "non_rdma_port": non_rdma_port,
            "congestion": congestion,
        }
        look = {"name": name, "gids": gids, "rate": rate, "numa": numa, "pci": pci, "count": count}
        looks = profile if core is None else None
        asked = [udp_port, looks, *look.values()]
        if not addresses and (any(value is not None for value in asked) or any(options.values())):
            addresses = (LOOPBACK,)  # otherwise the options would silently apply to no device
        for address, each in looks_of(addresses, looks, **look) if addresses else ():  # type: ignore[arg-type]
            process.devices.add(address, udp_port, {**options, "look": each.look}, wanted=each.name)
        if first is not None:
            process.adopt(first, view.split(",") if view else [])
        elif said >= 0:
            os.write(said, b"\1")
            os.close(said)
        else:
            click.echo(ready_line(process), err=True)
            process.devices.on_context = Attached(process)
        process.serve(idle_exit, spins)
    finally:
        process.close()
