"""Unmodified programs through a NIC process, against `rnic perf` through one of the same kind, and ways to wait.

    ./dev bench programs [ROUNDS] [--bypass] [--guest]

``--bypass`` leaves out all rows but those of programs that run the engine themselves, and of what they are held
against: plain UDP sockets in C (``raw_udp.c``), one copy by the kernel (``process_vm.c``) and UCX over TCP. ``--guest``
(root) adds perftest in a guest that QEMU runs, on rnic and on the kernel's Soft-RoCE (``guest_programs.py``); where
this machine cannot run it, the exit status is 77.

Each round runs every row once, in turn, latencies four times; best and median of all are printed, and the ratios of
both; the verdict is that of the best, as ``bench_rc.py`` has it. What waits how: the program polls and yields after
some empty polls (100 unless said otherwise), never yields, or sleeps on events; the NIC process makes some empty rounds
before it sleeps (30), none, or many. Rows without their program are left out; what does not end in a minute is shown
as 0 MB/s or inf. The targets are the issue's; a missed one is printed as such and does not fail the
run, since machines differ.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from guest import UnavailableError
from guest_programs import GuestRow, measured

from rnic.abi.build import build, find_compiler
from rnic.spec.attach import SOCKET_NAME
from rnic.testing import own_network

RNIC = [sys.executable, "-m", "rnic.cli"]
ROUNDS = 3
SECONDS = 60.0
MESSAGE = 1 << 20
BW = ("-s", str(MESSAGE), "-n", "300")
LONG = "3000"
# 300 take 70 ms where the program runs the engine itself: how a run begins counted as much as what follows
LONG_BW = ("-s", str(MESSAGE), "-n", LONG)
LAT = ("-s", "8", "-n", "10000")
SHORT_LAT = ("-s", "8", "-n", "300")
LEAST_BW, MOST_LAT = 0.8, 1.3
BYPASS = {"RNIC_BYPASS": "1", "RNIC_SHM": "0"}
SHM = {"RNIC_BYPASS": "1", "RNIC_SHM": "1"}
RAW_LAT, RAW_BW = "raw UDP in C, 8 B", "raw UDP in C with GSO"
Verdict = tuple[str, str, str, bool, float, float]
"""What, row, the row that it is held against, whether less is better, floor, aim."""
VERDICTS: list[Verdict] = [
    ("ib_write_lat / raw UDP", "bypass: ib_write_lat 8 B", RAW_LAT, True, 2.0, 1.3),
    ("ib_write_lat / ucx tcp", "bypass: ib_write_lat 8 B", "ucx_perftest tcp, tag 8 B", True, 1.1, 0.7),
    ("ib_send_lat / ucx tcp", "bypass: ib_send_lat 8 B", "ucx_perftest tcp, tag 8 B", True, 1.1, 0.7),
    ("ib_write_bw / raw UDP", "bypass: ib_write_bw 1 MiB", RAW_BW, False, 0.6, 0.72),
    ("ib_read_bw / ib_write_bw", "bypass: ib_read_bw 1 MiB", "bypass: ib_write_bw 1 MiB", False, 0.85, 0.95),
    ("ib_send_bw / ib_write_bw", "bypass: ib_send_bw 1 MiB", "bypass: ib_write_bw 1 MiB", False, 0.85, 0.95),
]
SLEEPS, RAW_SLEEPS = "bypass: ib_send_lat 8 B, on events", "raw UDP in C, 8 B, blocking"
VERDICTS.append(("ib_send_lat -e / raw blocking", SLEEPS, RAW_SLEEPS, True, 1.6, 1.2))
COPY = "process_vm_readv of 1 MiB"
VERDICTS.append(("ib_write_bw --shm / copy", "shm: ib_write_bw 1 MiB", COPY, False, 0.6, 0.9))
OWN_TIME = "bypass: NIC process, of the time of 10 GB"
MOST_OWN, AIM_OWN = 2.0, 0.0
"""Percent of the time that two programs take to move 10 GB."""
RATE = "bypass: ib_write_bw 8 B, lists of 64"
LEAST_RATE, AIM_RATE = 2.0, 8.0
"""Million messages a second."""
NEVER = "4294967295"
LEFT_OUT = 77
OWN = ("raw_udp", "process_vm")
"""C programs beside this one."""


@dataclass
class Row:
    """One way to measure. ``figure`` is where its output has the number, ``env`` what it is told."""

    name: str
    unit: str
    command: tuple[str, ...]
    figure: int
    env: dict[str, str] = field(default_factory=dict)
    got: list[float] = field(default_factory=list)


def rows() -> list[Row]:
    """Everything that is measured."""
    policies: list[tuple[str, dict[str, str]]] = [
        ("never yields, NIC sleeps at once", {"RNIC_YIELD_AFTER": NEVER, "RNIC_SPINS": "0"}),
        ("never yields, NIC spins 30", {"RNIC_YIELD_AFTER": NEVER}),
        ("yields after 100, NIC sleeps at once", {"RNIC_SPINS": "0"}),
        ("yields after 100, NIC spins 1000", {"RNIC_SPINS": "1000"}),
        ("yields at once, NIC spins 30", {"RNIC_YIELD_AFTER": "0"}),
    ]
    found = [
        Row("ib_write_bw 1 MiB", "MB/s", ("ib_write_bw", "-x", "0", "-F", *BW), 3),
        Row("rnic perf write_bw 1 MiB", "MB/s", ("rnic", "write_bw", *BW, "-t", "128"), 0),
        Row("ucx_perftest tcp, put 1 MiB", "MB/s", ("ucx_perftest", "-t", "ucp_put_bw", *BW), 5),
        Row("ib_write_lat 8 B", "us", ("ib_write_lat", "-x", "0", "-F", *LAT), 4),
        Row("rnic perf write_lat 8 B", "us", ("rnic", "write_lat", *LAT), 0),
        Row("ucx_perftest tcp, tag 8 B", "us", ("ucx_perftest", "-t", "tag_lat", *LAT), 2),
        Row("ib_send_lat 8 B", "us", ("ib_send_lat", "-x", "0", "-F", *LAT), 4),
        Row("ib_send_lat 8 B, on events", "us", ("ib_send_lat", "-x", "0", "-F", "-e", *LAT), 4),
    ]
    found += [
        Row(f"ib_write_lat 8 B, {name}", "us", ("ib_write_lat", "-x", "0", "-F", *SHORT_LAT), 4, env)
        for name, env in policies
    ]
    return [row for row in found if row.command[0] == "rnic" or shutil.which(row.command[0])]


def bypass_rows() -> list[Row]:
    """Programs that run the engine themselves, and what they are held against."""
    quick = ("-x", "0", "-F")
    found = [
        Row(RAW_LAT, "us", ("raw_udp", "lat", "20000"), 0),
        Row("ucx_perftest tcp, tag 8 B", "us", ("ucx_perftest", "-t", "tag_lat", *LAT), 2),
        Row("bypass: ib_write_lat 8 B", "us", ("ib_write_lat", *quick, *LAT), 4, BYPASS),
        Row("bypass: ib_send_lat 8 B", "us", ("ib_send_lat", *quick, *LAT), 4, BYPASS),
        Row(RAW_SLEEPS, "us", ("raw_udp", "sleep", "10000"), 0),
        Row(SLEEPS, "us", ("ib_send_lat", *quick, "-e", *LAT), 4, BYPASS),
        Row(RAW_BW, "MB/s", ("raw_udp", "bw", "4112", "1"), 0),
        Row("bypass: ib_write_bw 1 MiB", "MB/s", ("ib_write_bw", *quick, *LONG_BW), 3, BYPASS),
        Row("bypass: ib_read_bw 1 MiB", "MB/s", ("ib_read_bw", *quick, *LONG_BW), 3, BYPASS),
        Row("bypass: ib_send_bw 1 MiB", "MB/s", ("ib_send_bw", *quick, *LONG_BW), 3, BYPASS),
        Row(COPY, "MB/s", ("process_vm", str(MESSAGE), LONG), 0),
        Row("shm: ib_write_bw 1 MiB", "MB/s", ("ib_write_bw", *quick, *LONG_BW), 3, SHM),
        Row("shm: ib_send_bw 1 MiB", "MB/s", ("ib_send_bw", *quick, *LONG_BW), 3, SHM),
        Row("shm: ib_read_bw 1 MiB", "MB/s", ("ib_read_bw", *quick, *LONG_BW), 3, SHM),
        Row("shm: ib_write_lat 8 B", "us", ("ib_write_lat", *quick, *LAT), 4, SHM),
        Row(RATE, "M/s", ("ib_write_bw", *quick, "-s", "8", "-l", "64", "-n", "640000"), 4, BYPASS),
        Row(OWN_TIME, "%", ("ib_write_bw", *quick, "-s", str(MESSAGE), "-n", "10000"), 3, BYPASS),
    ]
    return [row for row in found if row.command[0] in OWN or shutil.which(row.command[0])]


def raw(row: Row, folder: Path) -> float:
    """A figure of ``raw_udp.c`` or ``process_vm.c``, which is built where it is not there yet."""
    program = folder / row.command[0]
    if not program.exists():
        compiler = find_compiler()
        assert compiler is not None
        source = Path(__file__).with_name(f"{row.command[0]}.c")
        subprocess.run([compiler, "-O2", str(source), "-o", str(program)], check=True)
    done = subprocess.run([program, *row.command[1:]], capture_output=True, text=True, timeout=SECONDS, check=True)
    figure = float(done.stdout.split()[row.figure])
    return figure * 1e9 / (1 << 20) if row.unit == "MB/s" else figure  # perftest's MB are MiB


def verdict(what: str, figures: tuple[float, float], floor: float, aim: float, less: bool) -> str:
    """One line: the figure of the best rounds and that of the medians, floor and aim, met by the first or missed."""
    good = [figures[0] <= bound if less else figures[0] >= bound for bound in (floor, aim)]
    word = "aim met" if good[1] else "floor met" if good[0] else "MISSED"
    return f"{what:37} {figures[0]:7.2f} {figures[1]:7.2f} {floor:7.2f} {aim:7.2f} {word}"


def best(got: list[float], unit: str) -> float:
    """Of a row's rounds."""
    return min(got) if unit in ("us", "%", "cycles") else max(got)


HEAD = f"{'':37} {'best':>7} {'median':>7} {'floor':>7} {'aim':>7}"


def in_guest(rows: list[GuestRow]) -> list[str]:
    """Figures of the guest, rnic's against Soft-RoCE's."""
    lines = [f"{'in the guest':40} {'Soft-RoCE':>9} {'rnic':>9}  (medians)"]
    lines += [f"{row.what:40} {median(row.soft):9.2f} {median(row.own):9.2f} {row.unit}" for row in rows]
    lines.append(f"{HEAD}  (Soft-RoCE's packets, and rnic's but by socket, stay inside of the device)")
    for row in rows:
        soft = [figure for figure in row.soft if 0 < figure < float("inf")]  # what came to no end is none to be held to
        if not soft:
            lines.append(f"{row.what:37} not measured: Soft-RoCE came to no end")
            continue
        ratios = best(row.own, row.unit) / best(soft, row.unit), median(row.own) / median(soft)
        if row.wire:
            lines.append(f"{row.what:37} {ratios[0]:7.2f} {ratios[1]:7.2f} {'none':>7} {row.aim:7.2f}")
        else:
            lines.append(verdict(row.what, ratios, row.floor, row.aim, row.unit == "cycles"))
    return lines


def verdicts(wanted: list[Row]) -> list[str]:
    """The best rounds against each other, and the medians: floors and aims, met or missed."""
    found = {row.name: (best(row.got, row.unit), median(row.got)) for row in wanted}
    lines = [HEAD]
    for what, row, base, less, floor, aim in VERDICTS:
        if row in found and base in found and all(found[base]):
            ratios = found[row][0] / found[base][0], found[row][1] / found[base][1]
            lines.append(verdict(what, ratios, floor, aim, less))
    if RATE in found:
        lines.append(verdict("messages a second, millions", found[RATE], LEAST_RATE, AIM_RATE, less=False))
    if OWN_TIME in found:
        lines.append(verdict("NIC process, percent", found[OWN_TIME], MOST_OWN, AIM_OWN, less=True))
    return lines


def measure(row: Row, libraries: Path, number: int) -> float:
    """One figure."""
    # its NIC process may still write there, until it finds nobody left
    with tempfile.TemporaryDirectory(prefix="rnic-bench-", ignore_cleanup_errors=True) as name:
        env = {**os.environ, "RNIC_BYPASS": "0", **row.env, "RNIC_RUNTIME_DIR": name, "RNIC_LIBRARIES": str(libraries)}
        if row.command[0] in OWN:
            return raw(row, libraries)
        address = f"{own_network()}.{number % 250 + 1}"
        if row.command[0] == "rnic":
            command = [*RNIC, "perf", *row.command[1:], "--addr", address, "--nic-process", "--json"]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=True)
            found = json.loads(done.stdout)[0]
            return float(found["bw_average_MBps" if row.unit == "MB/s" else "t_typical_us"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        prefix = [*RNIC, "exec", "--addr", address, "--"]
        if row.command[0] == "ucx_perftest":
            prefix, env = [], {**env, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "UCX_WARN_UNUSED_ENV_VARS": "n"}
        command = [*prefix, *row.command, "-p", port]
        busy = _Busy(Path(name)) if row.unit == "%" else None
        server = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said = _client([*command, "127.0.0.1"], env, busy, int(port))
            return _figure(said, row) if busy is None else busy.percent()
        finally:
            server.kill()
            server.communicate()


class _Busy:
    """The processor time of the NIC process of a directory, of the time that passes."""

    def __init__(self, runtime: Path) -> None:
        self._runtime = runtime
        self._began = self._ticks = 0.0

    def _used(self) -> float:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(self._runtime / SOCKET_NAME))
            pid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def begin(self) -> bool:
        """Count from now on; whether there is a NIC process."""
        try:
            self._began, self._ticks = time.monotonic(), self._used()
        except OSError:
            return False
        return True

    def percent(self) -> float:
        return 100 * (self._used() - self._ticks) / (time.monotonic() - self._began)


def _listens(port: int) -> bool:
    """Whether somebody listens on a TCP port of this machine, who is not disturbed by the question."""
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()[1:]]
    return any(int(row[1].rpartition(":")[2], 16) == port and row[3] == "0A" for row in rows)


def _client(command: list[str], env: dict[str, str], busy: _Busy | None, port: int) -> str:
    """What the client printed, once its server listens."""
    said = "its server does not listen"
    for _ in range(100):
        time.sleep(0.1)
        if not _listens(port) or (busy is not None and not busy.begin()):
            continue
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode == 0:
            return done.stdout
        said = done.stdout[-300:] + done.stderr[-300:]
    raise RuntimeError(f"{' '.join(command)}: {said}")


def _figure(text: str, row: Row) -> float:
    lines = [line.split() for line in text.splitlines() if re.match(r"^\s*(\d+|Final:)\s", line)]
    return float(lines[-1][row.figure])


def main(argv: list[str]) -> int:
    """Print the table and the two ratios."""
    parser = argparse.ArgumentParser(prog="./dev bench programs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=ROUNDS, help=f"rounds of all figures; {ROUNDS}")
    parser.add_argument("--bypass", action="store_true", help="only programs that run the data path themselves")
    parser.add_argument("--guest", action="store_true", help="also in the guest, beside Soft-RoCE (root)")
    options = parser.parse_args(argv)
    rounds = options.rounds
    before = [] if options.bypass else rows()
    wanted = before + [row for row in bypass_rows() if row.name not in {row.name for row in before}]
    with tempfile.TemporaryDirectory(prefix="rnic-libraries-") as name:
        build(Path(name))
        turns = wanted + 3 * [row for row in wanted if row.unit == "us"]
        for turn in range(rounds):
            for index, row in enumerate(turns):
                try:
                    row.got.append(measure(row, Path(name), turn * len(turns) + index))
                except subprocess.TimeoutExpired:
                    row.got.append(float("inf") if row.unit == "us" else 0.0)
    print(f"{'':60} {'best':>9} {'median':>9}")
    for row in wanted:
        print(f"{row.name:60} {best(row.got, row.unit):9.2f} {median(row.got):9.2f} {row.unit}")
    middle = {row.name: median(row.got) for row in wanted}
    if "ib_write_bw 1 MiB" in middle:
        ratio = middle["ib_write_bw 1 MiB"] / middle["rnic perf write_bw 1 MiB"]
        print(f"ib_write_bw / rnic perf: {ratio:.2f} (at least {LEAST_BW}: {'met' if ratio >= LEAST_BW else 'MISSED'})")
        ratio = middle["ib_write_lat 8 B"] / middle["rnic perf write_lat 8 B"]
        print(f"ib_write_lat / rnic perf: {ratio:.2f} (at most {MOST_LAT}: {'met' if ratio <= MOST_LAT else 'MISSED'})")
    print("\n".join(verdicts(wanted)))
    if not options.guest:
        return 0
    try:
        print("\n".join(in_guest(measured(rounds))))
    except UnavailableError as reason:
        print(f"bench programs: the guest is LEFT OUT: {reason}", file=sys.stderr)
        return LEFT_OUT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
