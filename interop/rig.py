"""The Soft-RoCE guest as a Python object: build, boot, run commands in it and on the host, tear down."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "rxe-guest" / "rxe-guest"
SMOKE = SCRIPT.parent / "peer_smoke.py"
UNAVAILABLE = 77  # exit status of the scripts: this machine cannot do it


class UnavailableError(Exception):
    """This machine cannot run the guest; the message says why, in one line."""


class Rig:
    """A guest on a private wire. Addresses are those of the wire in the namespace."""

    def __init__(self) -> None:
        printed = subprocess.run([SCRIPT, "env"], check=True, capture_output=True, text=True).stdout
        values = dict(pair.split("=", 1) for pair in printed.split())
        self.host = {4: values["RXE_HOST4"], 6: values["RXE_HOST6"]}
        self.guest = {4: values["RXE_GUEST4"], 6: values["RXE_GUEST6"]}

    def _step(self, *args: str) -> None:
        """Run a step of the script and show its output as progress."""
        step = subprocess.run([SCRIPT, *args], stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        status = step.returncode
        if status == UNAVAILABLE:
            raise UnavailableError(f"rxe-guest {args[0]}: see the line above")
        if status:
            raise RuntimeError(f"rxe-guest {args[0]} failed with status {status}; see the lines above")

    def build(self) -> None:
        """Build kernel and file system of the guest, unless they exist and are newer than the scripts."""
        if subprocess.run([SCRIPT, "fresh"], check=False).returncode:
            self._step("build")

    def up(self, *guests: int) -> None:
        """Boot guest 1, or the given ones unless up; return when they accept commands."""
        self._step("up", *map(str, guests))

    def down(self, *guests: int) -> None:
        """Stop the given guests, or stop all and remove the wire."""
        subprocess.run([SCRIPT, "down", *map(str, guests)], stdin=subprocess.DEVNULL, check=False)

    def in_guest(self, command: str, seconds: int, guest: int = 1) -> subprocess.Popen[str]:
        """Start a shell command in a guest, which kills it after ``seconds``."""
        return self._start([str(SCRIPT), "run", "-n", str(guest), "-t", str(seconds), command])

    def put(self, local: Path, remote: str) -> None:
        """Copy a program into the guest."""
        self._step("put", str(local), remote, "755")

    def beside(self, *command: str | Path) -> subprocess.Popen[str]:
        """Start a program of the host on the wire."""
        return self._start([str(SCRIPT), "ns", *map(str, command)])

    @staticmethod
    def _start(command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def ask_guest(self, command: str, seconds: int = 10) -> str:
        """Return the output of a short command in the guest."""
        return self.in_guest(command, seconds).communicate()[0]

    def wait_listening(self, where: str, port: int, seconds: float = 10) -> bool:
        """Return whether a program listens on a TCP port in the ``guest`` or on the ``host`` within some seconds."""
        command = f"ss -ltnH 'sport = :{port}'"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if where == "guest":
                seen = self.ask_guest(command)
            else:
                seen = self.beside("sh", "-c", command).communicate()[0]
            if str(port) in seen:
                return True
            time.sleep(0.1)
        return False

    def wait_free(self, port: int, seconds: float = 10) -> None:
        """Wait until no UDP socket of the host holds a port: a NIC process stays a second after its last program."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.beside("ss", "-aunH", f"sport = :{port}").communicate()[0]:
            time.sleep(0.1)


def why_not() -> str | None:
    """Return an obvious reason why this machine cannot run the guest, or ``None``."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the guest runs on Linux x86_64, this is {platform.system()} {platform.machine()}"
    if os.geteuid() != 0:
        return "creating TAP devices and a network namespace requires root"
    if not shutil.which("apt-get"):
        return "the guest is built from Debian packages, and there is no apt-get"
    return None


@contextmanager
def booted(keep: bool = False) -> Iterator[Rig]:
    """Yield a running guest; stop it at the end in any case, unless ``keep``.

    Raises:
        UnavailableError: this machine cannot run it.
        RuntimeError: the guest failed to start.
    """
    reason = why_not()
    if reason:
        raise UnavailableError(reason)
    rig = Rig()
    work = Path(os.environ.get("RXE_WORK") or Path(os.environ.get("TMPDIR") or "/tmp") / "rxe-guest")
    work.mkdir(parents=True, exist_ok=True)
    with open(work / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(f"another run uses the guest ({work / 'lock'} is locked)") from None
        try:
            rig.build()
            rig.up()
            yield rig
        finally:
            if not keep:
                rig.down()
