"""Rows of `./dev bench programs --bypass --guest`: unmodified perftest in the guest of `./dev interop`, on rnic with
the engine in the programs, and on Soft-RoCE.

Both ends of a row are in one guest, on its address of the wire, with the same path MTU; the two run alternately.
Without hardware virtualization the guest is much slower than the machine, so only the ratio counts. Latencies are in
cycles as counted by perftest, not in microseconds: its estimate of the processor's frequency is unreliable there, and
was ``inf`` in one run of eight. There are enough messages that pauses do not dominate.

Soft-RoCE loops packets to its own device back inside the device. So does rnic by default, and the floors are for that.
With ``--no-shm`` each packet goes through a socket and the guest's network stack, unlike Soft-RoCE's; those rows have
an aim but no floor.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from itertools import count

from guest import Rig, booted, install
from harness import Found, Row, in_turn, last_row

SECONDS = 600
STARTS_S = 120.0
"""Seconds within which a server listens, even in an emulated guest."""
STARTS = 5
"""Attempts to start a NIC process, since a slow emulated guest may exceed the time that a program waits for one."""
PORT = 18600
SOFT = "-d rxe0 -x 1"
OWN = "-x 0"


@dataclass(frozen=True)
class GuestRow:
    """A program that is measured on both, with ``floor`` and ``aim`` of the ratio.

    ``wire``: true if rnic's packets go through a socket, while Soft-RoCE's stay inside the device.
    """

    what: str
    unit: str
    command: str
    figure: int
    floor: float
    wire: bool = False

    @property
    def less(self) -> bool:
        """True if lower is better."""
        return self.unit == "cycles"


ROWS = [
    GuestRow(f"{what}{', by socket' if wire else ''}", unit, command, figure, floor, wire)
    for what, unit, command, figure, floor in (
        ("ib_write_lat 8 B", "cycles", "ib_write_lat -F -C -s 8 -n 20000", 4, 1.2),
        ("ib_write_bw 1 MiB", "MB/s", "ib_write_bw -F -s 1048576 -n 100 -m 4096", 3, 0.8),
        ("ib_write_bw 64 KiB, -q 256", "MB/s", "ib_write_bw -F -s 65536 -n 10 -q 256 -m 4096", 3, 0.8),
    )
    for wire in (False, True)
]
AIM = 1.0


def measure(rig: Rig, under: str, row: GuestRow, ports: count[int]) -> float:
    """Measure one figure; ``under`` is empty for Soft-RoCE. A run that does not end gives 0 MB/s or inf cycles."""
    port = next(ports)
    program = row.command.split()[0]
    command = f"{under} {row.command} {OWN if under else SOFT} -p {port}"
    server = rig.in_guest(f"{command} 2>&1", SECONDS)
    said = "the server does not listen"
    if rig.wait_listening("guest", port, STARTS_S):
        said = rig.ask_guest(f"{command} {rig.guest[4]} 2>&1", SECONDS)
    rig.ask_guest(f"killall {program}")
    heard = server.communicate()[0]
    if found := last_row(said):
        return float(found[row.figure])
    print(f"{program} in the guest: {said[-500:]}\n{heard[-500:]}", file=sys.stderr)
    return float("inf") if row.less else 0.0


def started(rig: Rig, under: str) -> subprocess.Popen[str]:
    """Start a NIC process in the guest, wait until it runs, since Python starts slowly there, and return its owner."""
    for _ in range(STARTS):
        if "well" in rig.ask_guest(f"{under} echo well", SECONDS):
            break
    return rig.in_guest(f"{under} sleep {SECONDS * 100}", SECONDS * 100)


def measured(rounds: int) -> tuple[list[Row], Found]:
    """Return the rows of the table, with figures of Soft-RoCE and rnic and their ratios, and all figures.

    Raises:
        LeftOutError: this machine cannot run the guest.
    """
    ports = count(PORT)
    with booted() as rig:
        under = install(rig, "--bypass")
        wire = under.replace("--bypass", "--bypass --no-shm")
        holds = started(rig, under)
        takes = [
            (f"{name}, {row.what}", partial(measure, rig, place, row, ports))
            for row in ROWS
            for name, place in (("Soft-RoCE", ""), ("rnic", wire if row.wire else under))
        ]
        found, _ = in_turn(takes, rounds)
        holds.kill()
    rows = []
    for row in ROWS:
        own, soft = f"rnic, {row.what}", f"Soft-RoCE, {row.what}"
        # a run that did not end is no baseline
        found[soft] = [value for value in found[soft] if 0 < value < float("inf")]
        rows += [
            Row(f"guest: {soft}", soft, row.unit, less=row.less),
            Row(f"guest: {row.what}", own, row.unit, None if row.wire else row.floor, AIM, (soft,), row.less),
        ]
    return rows, found


__all__ = ["measured"]
