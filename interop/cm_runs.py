"""Live runs of connection management: librdmacm's programs in a guest with Linux Soft-RoCE against the same programs of
this machine, unmodified, under `rnic exec`; each as client and as server.
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
"""How long a server in the guest may take until it listens; nothing outside shows when it does."""
_LISTENS_SECONDS = 30.0
_DEVICES = ("rnic0", "rnic1")


@dataclass(frozen=True)
class Program:
    """One program: what server and client are told besides, with ``SERVER`` for the address."""

    name: str
    options: tuple[str, ...]
    families: tuple[int, ...] = (4,)
    server: tuple[str, ...] = ()
    client: tuple[str, ...] = ("-s", "SERVER")

    def words(self, serves: bool, address: str) -> list[str]:
        """As it is typed."""
        own = self.server if serves else self.client
        return [self.name, *self.options, *(word.replace("SERVER", address) for word in own)]


_BY_NAME = ("SERVER",)
PROGRAMS = (
    Program("rping", ("-C", "10", "-V"), (4, 6), ("-s", "-a", "SERVER"), ("-c", "-a", "SERVER")),
    Program("ucmatose", ("-c", "8", "-C", "10")),
    Program("udaddy", ("-c", "4", "-C", "8")),
    # a guest that is emulated takes a few messages a millisecond
    Program("ib_write_bw", ("-R", "-F", "-n", "20", "-s", "4096"), client=_BY_NAME),
    Program("ib_read_bw", ("-R", "-F", "-n", "20", "-s", "4096"), client=_BY_NAME),
    Program("ib_send_bw", ("-R", "-F", "-n", "20", "-s", "4096"), client=_BY_NAME),
)


def run(rig: Rig, program: Program, family: int, rnic_serves: bool, runtime: str) -> tuple[str, str]:
    """One run; what is wrong with it, empty if nothing is, and what both said."""
    address = rig.host[family] if rnic_serves else rig.guest[family]
    ours = ["env", f"RNIC_RUNTIME_DIR={runtime}", str(RNIC), "exec", "--addr", rig.host[family], "--"]

    def start(serves: bool, here: bool) -> subprocess.Popen[str]:
        words = program.words(serves, address)
        return rig.beside("timeout", str(SECONDS), *ours, *words) if here else rig.in_guest(" ".join(words), SECONDS)

    server = start(True, rnic_serves)
    if rnic_serves:
        wait_services(Path(runtime), server)
    else:
        time.sleep(SETTLE_S)
    client = start(False, not rnic_serves)
    said = {"client": client.communicate()[0]}
    if client.returncode:
        server.kill()
        rig.ask_guest(f"killall {program.name}")
    said["server"] = server.communicate()[0]
    output = "".join(f"--- {name}\n{text}" for name, text in said.items())
    for name, end in (("client", client), ("server", server)):
        if end.returncode:
            return f"{name} exited with {end.returncode}", output
    return "", output


def wait_services(runtime: Path, server: subprocess.Popen[str]) -> None:
    """Until a server under `rnic exec` listens on QP1, or has ended."""
    end = time.monotonic() + _LISTENS_SECONDS
    while time.monotonic() < end and server.poll() is None:
        for device in _DEVICES:
            with contextlib.suppress(ProcessError):
                if ask(runtime, device, "cm")["services"]:
                    return
        time.sleep(0.05)
