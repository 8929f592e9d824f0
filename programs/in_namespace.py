"""Run both ends of a program that ignores loopback interfaces, on a TAP interface in a network namespace.

    unshare -rn python in_namespace.py CAPTURE PROGRAM [OPTION...]
    unshare -rn python in_namespace.py --one CAPTURE PROGRAM [OPTION...]

Both run under ``rnic exec`` with the same options; the client also gets the server's address. With ``--one`` it is one
program with a device on each of the two addresses. Exit status 1 if either fails; their output goes to standard output.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

SERVER, CLIENT = "192.0.2.1", "192.0.2.2"
SECONDS = 60.0
_NETWORK = (
    "link set lo up",
    "tuntap add rnic0 mode tap",
    f"addr add {SERVER}/24 dev rnic0",
    f"addr add {CLIENT}/24 dev rnic0",
    "link set rnic0 up",
)
_CONTROL_PORT = 47592
"""TCP control port of libfabric's server."""


def listens(port: int) -> bool:
    """Return whether a program listens on a TCP port, by the kernel's table."""
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return any(f":{port:04X} " in line and " 0A " in line for line in lines)


def main(*words: str) -> int:
    """Set up the network, and run the program on it."""
    for step in _NETWORK:
        subprocess.run(["ip", *step.split()], check=True)
    under = [sys.executable, "-m", "rnic.cli", "exec"]
    if words[0] != "--one":
        return both(under, *words)
    _, capture, *program = words
    command = [*under, "--addr", SERVER, "--addr", CLIENT, "--capture", capture, "--", *program]
    return int(bool(subprocess.run(command, timeout=SECONDS, check=False).returncode))


def both(under: list[str], capture: str, *program: str) -> int:
    """Run both ends."""
    first = [*under, "--addr", SERVER, "--capture", capture, "--", *program]
    with subprocess.Popen(first, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            end = time.monotonic() + SECONDS
            while not listens(_CONTROL_PORT) and server.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            client = subprocess.run(
                [*under, "--addr", CLIENT, "--", *program, SERVER],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            printed = server.communicate(timeout=SECONDS)[0]
        finally:
            server.kill()
    print(f"{printed}{client.stdout}")
    return int(bool(server.returncode or client.returncode))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
