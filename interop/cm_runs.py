"""Live runs of connection management: librdmacm's programs in a guest with Linux Soft-RoCE against the same unmodified
programs on this machine under `rnic exec`, each as client and as server.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rig import Rig

from rnic.runtime.attach import ask
from rnic.runtime.directory import ProcessError

RNIC = Path(sys.executable).parent / "rnic"
SECONDS = 60
SETTLE_S = 3.0
"""Start-up time of a server in the guest that does not listen, and so cannot be detected."""
GOODBYE_S = 10.0
"""Time within which a server exits after its client has disconnected."""
_COMM_BYTES = 15
_LISTENS_SECONDS = 30.0
_DEVICES = ("rnic0", "rnic1")
_WIRE = "eth0"
"""The guest's network interface."""


@dataclass(frozen=True)
class Program:
    """A program and further arguments of server and client; ``SERVER`` and ``CLIENT`` stand for the addresses.

    A server that ``stays`` is terminated after its client has exited. A program that does not ``listen`` joins a group
    or only has a socket. ``netem`` impairs all packets that the guest sends, including CM messages. Programs that are
    not ``quick`` run only with ``--all``.
    """

    name: str
    options: tuple[str, ...]
    families: tuple[int, ...] = (4,)
    server: tuple[str, ...] = ()
    client: tuple[str, ...] = ("-s", "SERVER")
    label: str = ""
    stays: bool = False
    listens: bool = True
    netem: str = ""
    quick: bool = True

    def words(self, serves: bool, server: str, client: str) -> list[str]:
        """Return the command line."""
        names = {"SERVER": server, "CLIENT": client}
        own = self.server if serves else self.client
        return [self.name, *self.options, *(names.get(word, word) for word in own)]


_BY_NAME = ("SERVER",)
_BOUND = ("-b", "SERVER")
_LISTENS_AGAIN = "delay 200ms"
"""perftest's server ends the connection for parameters with a message, and then listens again. On that message the
client connects again, at once and only once. In an emulated guest, or on a busy machine, the server does not listen by
then, so delay it."""
_STREAM = ("-S", "4096", "-I", "10", "-C", "10")
PROGRAMS = (
    Program("rping", ("-C", "10", "-V"), (4, 6), ("-s", "-a", "SERVER"), ("-c", "-a", "SERVER")),
    Program("ucmatose", ("-c", "8", "-C", "10")),
    Program("ucmatose", ("-c", "4", "-C", "4"), (6,), server=_BOUND),
    Program("ucmatose", ("-c", "100", "-C", "2"), label="hundred"),
    Program("udaddy", ("-c", "4", "-C", "8")),
    Program("udaddy", ("-c", "2", "-C", "4"), (6,), server=_BOUND),
    Program("mckey", ("-m", "239.1.2.3", "-C", "8"), server=_BOUND, client=("-b", "CLIENT", "-s"), listens=False),
    Program("cmtime", ("-c", "50"), stays=True),
    Program("rstream", _STREAM),
    Program("riostream", _STREAM, quick=False),
    Program(
        "rping",
        ("-C", "5", "-V"),
        server=("-s", "-a", "SERVER"),
        client=("-c", "-a", "SERVER"),
        label="netem",
        netem="delay 3ms 2ms loss 10% duplicate 10% reorder 25%",
    ),
    # an emulated guest handles a few messages per millisecond
    *(
        Program(name, ("-R", "-F", "-n", "20", "-s", "4096"), client=_BY_NAME, netem=_LISTENS_AGAIN)
        for name in ("ib_write_bw", "ib_read_bw", "ib_send_bw")
    ),
)


def run(rig: Rig, program: Program, family: int, rnic_serves: bool, runtime: str) -> tuple[str, str]:
    """Run a program; return the problem, empty if there is none, and the output of both ends."""
    if not program.netem:
        return _run(rig, program, family, rnic_serves, runtime)
    said = rig.ask_guest(f"tc qdisc replace dev {_WIRE} root netem {program.netem} && echo set")
    if "set" not in said:
        return "netem cannot be set up in the guest (tc)", said
    try:
        return _run(rig, program, family, rnic_serves, runtime)
    finally:
        rig.ask_guest(f"tc qdisc del dev {_WIRE} root")


def _run(rig: Rig, program: Program, family: int, rnic_serves: bool, runtime: str) -> tuple[str, str]:
    here, there = rig.host[family], rig.guest[family]
    places = (here, there) if rnic_serves else (there, here)
    ours = ["env", f"RNIC_RUNTIME_DIR={runtime}", str(RNIC), "exec", "--addr", here, "--"]

    def start(serves: bool, on_host: bool) -> subprocess.Popen[str]:
        words = program.words(serves, *places)
        return rig.beside("timeout", str(SECONDS), *ours, *words) if on_host else rig.in_guest(" ".join(words), SECONDS)

    server = start(True, rnic_serves)
    if rnic_serves:
        wait_services(Path(runtime), server)
    elif program.listens:
        wait_guest(rig, program.name, server)
    else:
        time.sleep(SETTLE_S)
    client = start(False, not rnic_serves)
    said = {"client": client.communicate()[0]}
    # Linux sends DREQ only once if its program exits at once: if that is lost, the server cannot know
    waits_on = bool(program.netem) and rnic_serves and not client.returncode and not _ends(server)
    if client.returncode or program.stays or waits_on:
        server.terminate()
        rig.ask_guest(f"killall {program.name}")
    said["server"] = server.communicate()[0]
    output = "".join(f"--- {name}\n{text}" for name, text in said.items())
    ends = (("client", client),) if program.stays or waits_on else (("client", client), ("server", server))
    for name, end in ends:
        if end.returncode:
            return f"{name} exited with {end.returncode}", output
    return "", output


def _ends(server: subprocess.Popen[str]) -> bool:
    """Return whether it exits by itself within :data:`GOODBYE_S`."""
    try:
        server.wait(GOODBYE_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def wait_guest(rig: Rig, name: str, server: subprocess.Popen[str]) -> None:
    """Wait until a program in the guest listens, as its kernel shows, or has exited."""
    end = time.monotonic() + _LISTENS_SECONDS
    while time.monotonic() < end and server.poll() is None:
        shown = rig.ask_guest("rdma resource show cm_id").splitlines()
        if any(" LISTEN " in line and f" comm {name[:_COMM_BYTES]} " in line for line in shown):
            return
        time.sleep(0.1)


def wait_services(runtime: Path, server: subprocess.Popen[str]) -> None:
    """Wait until a server under `rnic exec` listens on QP1, has joined a group, or has exited."""
    end = time.monotonic() + _LISTENS_SECONDS
    while time.monotonic() < end and server.poll() is None:
        for device in _DEVICES:
            with contextlib.suppress(ProcessError):
                seen = ask(runtime, device, "cm")
                if seen["services"] or seen["groups"]:
                    return
        time.sleep(0.05)
