"""Connections per second with rdma-core's ``cmtime``: rnic and Linux Soft-RoCE in the same guest, each with itself.

The guest is that of `./dev interop` (root). This Python and rnic are copied into it, so that both run the same program
on the same processor. Without hardware virtualization the guest is much slower than the machine, so only the ratio
counts. A third row is rnic on this machine. A fourth is the time from an RTU on the wire to ESTABLISHED in a server's
program there (``established.c``), which ``--here`` measures alone. The floor is half the rate of Soft-RoCE; a missed
floor is printed but does not fail the run. Exit status 77 if this machine cannot run the guest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import established
import harness
from guest import Rig, booted, install
from harness import Row

from rnic.testing import own_network

CONNECTIONS = 20
SECONDS = 240
FLOOR = 0.5
_STEP = re.compile(r"^(?P<step>[a-z ]+?) *:.* (?P<each>[\d.]+)$", re.MULTILINE)
_MADE = ("create id", "resolve addr", "resolve route", "create qp", "connect")


def rate(said: str) -> float:
    """Return the connections per second if made sequentially: each takes the sum of its steps.

    Raises:
        ValueError: the output has no table.
    """
    each = {found["step"].strip(): float(found["each"]) for found in _STEP.finditer(said)}
    if any(step not in each for step in _MADE):
        raise ValueError(f"cmtime printed no times:\n{said[-2000:]}")
    return 1e6 / sum(each[step] for step in _MADE)


def rejected(said: str) -> int:
    """Return the number of failed connections."""
    return said.count("RDMA_CM_EVENT_") - said.count("RDMA_CM_EVENT_ESTABLISHED")


def in_guest(rig: Rig, under: str, connections: int) -> str:
    """Run both ends in the guest; return what the client printed."""
    server = rig.in_guest(f"{under} cmtime -b {rig.guest[4]} -c {connections} > /dev/null 2>&1", SECONDS)
    time.sleep(15 if under else 3)  # there is no way to detect when it listens
    said = rig.ask_guest(f"{under} cmtime -s {rig.guest[4]} -c {connections} 2>&1", SECONDS)
    rig.ask_guest("killall cmtime")
    server.communicate()
    return said


def here(connections: int) -> str:
    """Run both ends on this machine."""
    address = f"{own_network()}.201"
    with tempfile.TemporaryDirectory(prefix="rnic-cm-") as place:
        env = os.environ | {"RNIC_RUNTIME_DIR": place}
        command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", address, "--", "cmtime", "-c", str(connections)]
        server = subprocess.Popen(
            [*command, "-b", address], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(3)
            client = subprocess.run(
                [*command, "-s", address], env=env, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        finally:
            server.kill()
            server.wait()
    return client.stdout


SOFT, OWN, HERE = "Soft-RoCE, in the guest", "rnic, in the same guest", "rnic, on this machine"
RTU = "RTU to ESTABLISHED, on this machine"
ROWS = (*(Row(name, name, "conn/s") for name in (SOFT, OWN, HERE)),
        Row("rnic / Soft-RoCE", OWN, "conn/s", FLOOR, against=(SOFT,)), Row(RTU, RTU, "us", less=True))  # fmt: skip


def main(argv: list[str]) -> None:
    """Print the table."""
    parser = harness.Parser("cm", __doc__, json=True)
    parser.add_argument(
        "connections", nargs="?", type=harness.at_least_one, default=CONNECTIONS, help=f"connections; {CONNECTIONS}"
    )
    parser.add_argument("--here", action="store_true", help="only the time to ESTABLISHED, without the guest")
    given = parser.read(argv)
    missing = {} if shutil.which("cmtime") else {HERE: "cmtime is not installed"}
    found = {}
    try:
        found[RTU] = established.measure(given.connections)
    except harness.LeftOutError as error:
        missing[RTU] = str(error)
    if given.here:
        harness.report(given, ROWS[-1:], found, missing)
        return
    said = {} if HERE in missing else {HERE: here(given.connections)}
    with booted() as rig:
        under = install(rig)
        said |= {SOFT: in_guest(rig, "", given.connections), OWN: in_guest(rig, under, given.connections)}
    found |= {name: [rate(text)] for name, text in said.items()}
    notes = {name: f"{given.connections}, {rejected(text)} refused or lost" for name, text in said.items()}
    harness.report(given, ROWS, found, missing, notes)


if __name__ == "__main__":
    harness.run(main)
