"""Unmodified programs with a NIC process, compared with `rnic perf` with a NIC process, and strategies of waiting.

``--bypass`` runs only rows of programs that run the engine themselves, and their baselines: UDP sockets in C
(``raw_udp.c``), one copy by the kernel (``process_vm.c``) and UCX over TCP. ``--guest`` (root) adds perftest in a QEMU
guest, on rnic and on Soft-RoCE (``guest_programs.py``), with exit status 77 if this machine cannot run it. ``--before``
also measures each row of rnic with another tree's rnic, alternately, and prints the ratio.

Each round runs every row once, latencies four times. Best and median of all rounds are printed, with their ratios; the
verdict uses the best, as in ``bench_rc.py``. Strategies of waiting: the program polls and yields after some empty polls
(100 by default), never yields, or sleeps on events; the NIC process runs some empty rounds before it sleeps (30), none,
or many. Rows without their program are left out; a run that does not end within a minute is shown as 0 MB/s or inf. A
missed target is printed but does not fail the run, since machines differ.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import harness
import peers
from guest_programs import measured
from harness import LeftOutError, Take, free_port, last_row

from rnic.spec.attach import SOCKET_NAME
from rnic.testing import own_network

ROUNDS = 3
SECONDS = 60.0
MESSAGE = 1 << 20
BW = ("-s", str(MESSAGE), "-n", "300")
LONG = "3000"
# 300 take only 70 ms if the program runs the engine itself, and the start of a run would dominate
LONG_BW = ("-s", str(MESSAGE), "-n", LONG)
LAT = ("-s", "8", "-n", "10000")
SHORT_LAT = ("-s", "8", "-n", "300")
LEAST_BW, MOST_LAT = 0.8, 1.3
BYPASS = {"RNIC_BYPASS": "1", "RNIC_SHM": "0"}
SHM = {"RNIC_BYPASS": "1", "RNIC_SHM": "1"}
RAW_LAT, RAW_BW = "raw UDP in C, 8 B", "raw UDP in C with GSO"
SLEEPS, RAW_SLEEPS = "bypass: ib_send_lat 8 B, on events", "raw UDP in C, 8 B, blocking"
UCX_LAT = "ucx_perftest tcp, tag 8 B"
WRITE_BW, COPY = "bypass: ib_write_bw 1 MiB", "process_vm_readv of 1 MiB"
CAPTURE = "a capture"
RAW_CAPTURE = f"{RAW_BW}, {CAPTURE}"
FEATURES = {
    "faults that match nothing": (
        0.9,
        0.97,
        (),
        {"RNIC_FAULTS": '[{"match": {"opcode": "UC_SEND_ONLY"}, "action": "drop"}]'},
    ),
    "1 % loss": (0.6, 0.75, (), {"RNIC_FAULTS": "drop=1%"}),
    "service level 3": (0.95, 1.0, ("-S", "3"), {}),
    CAPTURE: (0.25, 0.4, (), {"RNIC_CAPTURE": "{memory}/run.pcapng"}),
    "dcqcn without marks": (0.9, 0.97, (), {"RNIC_CONGESTION": "dcqcn"}),
}
"""Features that must not slow a program down: floor and aim relative to the program without it, options, and
environment, in which ``{memory}`` is a directory in tmpfs."""
MEMORY = Path("/dev/shm")
START, START_BESIDE = "rnic exec -- true", "rnic exec -- true, beside a NIC process"
OWN_TIME = "bypass: NIC process, of the time of 10 GB"
RATE = "bypass: ib_write_bw 8 B, lists of 64"
VERDICTS = [
    harness.Row("ib_write_lat / raw UDP", "bypass: ib_write_lat 8 B", "us", 2.0, 1.3, (RAW_LAT,), less=True),
    harness.Row("ib_write_lat / ucx tcp", "bypass: ib_write_lat 8 B", "us", 1.1, 0.7, (UCX_LAT,), less=True),
    harness.Row("ib_send_lat / ucx tcp", "bypass: ib_send_lat 8 B", "us", 1.1, 0.7, (UCX_LAT,), less=True),
    harness.Row("ib_write_bw / raw UDP", WRITE_BW, "MB/s", 0.6, 0.72, (RAW_BW,)),
    *(
        harness.Row(f"ib_write_bw, {name} / without", f"{WRITE_BW}, {name}", "MB/s", floor, aim, (WRITE_BW,))
        for name, (floor, aim, _, _) in FEATURES.items()
    ),
    harness.Row("ib_write_bw / raw UDP, both captured", f"{WRITE_BW}, {CAPTURE}", "MB/s", 0.6, 0.75, (RAW_CAPTURE,)),
    harness.Row("ib_read_bw / ib_write_bw", "bypass: ib_read_bw 1 MiB", "MB/s", 0.85, 0.95, (WRITE_BW,)),
    harness.Row("ib_send_bw / ib_write_bw", "bypass: ib_send_bw 1 MiB", "MB/s", 0.85, 0.95, (WRITE_BW,)),
    harness.Row("ib_send_lat -e / raw blocking", SLEEPS, "us", 1.6, 1.2, (RAW_SLEEPS,), less=True),
    harness.Row("ib_write_bw --shm / copy", "shm: ib_write_bw 1 MiB", "MB/s", 0.6, 0.9, (COPY,)),
    harness.Row("messages a second, millions", RATE, "M/s", 2.0, 8.0),
    harness.Row("start-up", START, "ms", 150.0, 60.0, less=True),
    harness.Row("NIC process, percent", OWN_TIME, "%", 2.0, 0.0, less=True),
    harness.Row("ib_write_bw / rnic perf", "ib_write_bw 1 MiB", "MB/s", LEAST_BW, None, ("rnic perf write_bw 1 MiB",),
                middle=True),
    harness.Row("ib_write_lat / rnic perf", "ib_write_lat 8 B", "us", MOST_LAT, None, ("rnic perf write_lat 8 B",),
                less=True, middle=True),
]  # fmt: skip
NEVER = "4294967295"
OWN = ("raw_udp", "process_vm")
"""C programs in this directory."""


@dataclass(frozen=True)
class Row:
    """A measurement. ``figure`` is the column of the result in its output, ``env`` its environment."""

    name: str
    unit: str
    command: tuple[str, ...]
    figure: int
    env: dict[str, str] = field(default_factory=dict)

    @property
    def less(self) -> bool:
        """True if lower is better."""
        return self.unit in ("us", "ms", "%")

    @property
    def own(self) -> bool:
        """True if it runs rnic, so that another tree can be measured."""
        return self.command[0] not in (*OWN, "ucx_perftest")


def rows() -> list[Row]:
    """Return all rows."""
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
        Row(UCX_LAT, "us", ("ucx_perftest", "-t", "tag_lat", *LAT), 2),
        Row("ib_send_lat 8 B", "us", ("ib_send_lat", "-x", "0", "-F", *LAT), 4),
        Row("ib_send_lat 8 B, on events", "us", ("ib_send_lat", "-x", "0", "-F", "-e", *LAT), 4),
    ]
    found += [
        Row(f"ib_write_lat 8 B, {name}", "us", ("ib_write_lat", "-x", "0", "-F", *SHORT_LAT), 4, env)
        for name, env in policies
    ]
    return [row for row in found if row.command[0] == "rnic" or shutil.which(row.command[0])]


def bypass_rows() -> list[Row]:
    """Return the rows of programs that run the engine themselves, and of their baselines."""
    quick = ("-x", "0", "-F")
    found = [
        Row(RAW_LAT, "us", ("raw_udp", "lat", "20000"), 0),
        Row(UCX_LAT, "us", ("ucx_perftest", "-t", "tag_lat", *LAT), 2),
        Row("bypass: ib_write_lat 8 B", "us", ("ib_write_lat", *quick, *LAT), 4, BYPASS),
        Row("bypass: ib_send_lat 8 B", "us", ("ib_send_lat", *quick, *LAT), 4, BYPASS),
        Row(RAW_SLEEPS, "us", ("raw_udp", "sleep", "10000"), 0),
        Row(SLEEPS, "us", ("ib_send_lat", *quick, "-e", *LAT), 4, BYPASS),
        Row(RAW_BW, "MB/s", ("raw_udp", "bw", "4112", "1"), 0),
        Row(RAW_CAPTURE, "MB/s", ("raw_udp", "capture", "4112", "1", "{memory}/raw"), 0),
        Row(WRITE_BW, "MB/s", ("ib_write_bw", *quick, *LONG_BW), 3, BYPASS),
        *(
            Row(f"{WRITE_BW}, {name}", "MB/s", ("ib_write_bw", *quick, *more, *LONG_BW), 3, {**BYPASS, **env})
            for name, (_, _, more, env) in FEATURES.items()
        ),
        Row("bypass: ib_read_bw 1 MiB", "MB/s", ("ib_read_bw", *quick, *LONG_BW), 3, BYPASS),
        Row("bypass: ib_send_bw 1 MiB", "MB/s", ("ib_send_bw", *quick, *LONG_BW), 3, BYPASS),
        Row(COPY, "MB/s", ("process_vm", str(MESSAGE), LONG), 0),
        Row("shm: ib_write_bw 1 MiB", "MB/s", ("ib_write_bw", *quick, *LONG_BW), 3, SHM),
        Row("shm: ib_send_bw 1 MiB", "MB/s", ("ib_send_bw", *quick, *LONG_BW), 3, SHM),
        Row("shm: ib_read_bw 1 MiB", "MB/s", ("ib_read_bw", *quick, *LONG_BW), 3, SHM),
        Row("shm: ib_write_lat 8 B", "us", ("ib_write_lat", *quick, *LAT), 4, SHM),
        Row(RATE, "M/s", ("ib_write_bw", *quick, "-s", "8", "-l", "64", "-n", "640000"), 4, BYPASS),
        Row(START, "ms", ("exec", "true"), 0),
        Row(START_BESIDE, "ms", ("exec", "true"), 0),
        Row(OWN_TIME, "%", ("ib_write_bw", *quick, "-s", str(MESSAGE), "-n", "10000"), 3, BYPASS),
    ]
    return [row for row in found if row.command[0] in (*OWN, "exec") or shutil.which(row.command[0])]


@dataclass(frozen=True)
class Tree:
    """rnic of a tree: its Python, and its C libraries."""

    python: Path
    libraries: Path

    def command(self, *words: str) -> list[str]:
        """Return a command line of ``rnic``."""
        return [str(self.python), "-m", "rnic.cli", *words]

    def build(self) -> Tree:
        """Build the libraries."""
        subprocess.run(
            [self.python, "-m", "rnic.abi.build", "--out", self.libraries], stdout=subprocess.DEVNULL, check=True
        )
        return self


def measure(row: Row, tree: Tree, numbers: count[int]) -> float:
    """Measure one figure."""
    address = f"{own_network()}.{next(numbers) % 250 + 1}"
    try:
        # its NIC process may still write there, until it notices that no program is left
        with (
            tempfile.TemporaryDirectory(prefix="rnic-bench-", ignore_cleanup_errors=True) as name,
            tempfile.TemporaryDirectory(prefix="rnic-bench-", dir=MEMORY) as memory,
        ):
            return _measure(row, tree, address, Path(name), memory)
    except subprocess.TimeoutExpired:
        return float("inf") if row.less else 0.0


def _measure(row: Row, tree: Tree, address: str, runtime: Path, memory: str) -> float:
    if row.command[0] in OWN:
        figure = peers.c_program(tree.libraries, *[word.replace("{memory}", memory) for word in row.command])
        return figure * 1e9 / (1 << 20) if row.unit == "MB/s" else figure  # perftest's MB are MiB
    own = {"RNIC_RUNTIME_DIR": str(runtime), "RNIC_LIBRARIES": str(tree.libraries)}
    told = {name: value.replace("{memory}", memory) for name, value in row.env.items()}
    env = {**os.environ, "RNIC_BYPASS": "0", **told, **own}
    if row.command[0] == "exec":
        return _start(tree.command("exec", "--addr", address, "--", *row.command[1:]), env, row.name == START_BESIDE)
    if row.command[0] == "rnic":
        command = tree.command("perf", *row.command[1:], "--addr", address, "--nic-process", "--json")
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=True)
        found = json.loads(done.stdout)[0]
        return float(found["bw_average_MBps" if row.unit == "MB/s" else "t_typical_us"])
    port = free_port()
    prefix = tree.command("exec", "--addr", address, "--")
    if row.command[0] == "ucx_perftest":
        prefix, env = [], {**env, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    command = [*prefix, *row.command, "-p", port]
    busy = _Busy(runtime) if row.unit == "%" else None
    server = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = _client([*command, "127.0.0.1"], env, busy, int(port))
        return float(last_row(said)[row.figure]) if busy is None else busy.percent()
    finally:
        server.kill()
        server.communicate()


def _start(command: list[str], env: dict[str, str], beside: bool) -> float:
    """Measure the ms that ``rnic exec`` takes to run a trivial program; with ``beside`` a NIC process is running."""
    if beside:
        subprocess.run(command, env=env, timeout=SECONDS, check=True)
    began = time.monotonic()
    subprocess.run(command, env=env, timeout=SECONDS, check=True)
    return 1000 * (time.monotonic() - began)


class _Busy:
    """Processor time of a runtime directory's NIC process, as a share of elapsed time."""

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
        """Start counting; return whether there is a NIC process."""
        try:
            self._began, self._ticks = time.monotonic(), self._used()
        except OSError:
            return False
        return True

    def percent(self) -> float:
        return 100 * (self._used() - self._ticks) / (time.monotonic() - self._began)


def _listens(port: int) -> bool:
    """Return whether a program listens on a TCP port of this machine, without connecting to it."""
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()[1:]]
    return any(int(row[1].rpartition(":")[2], 16) == port and row[3] == "0A" for row in rows)


def _client(command: list[str], env: dict[str, str], busy: _Busy | None, port: int) -> str:
    """Run the client once its server listens; return its output."""
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


def main(argv: list[str]) -> int:
    """Print the figures, and their ratios with verdicts."""
    every = {row.name: row for row in (*rows(), *bypass_rows())}
    parser = harness.Parser(
        "programs", __doc__, rounds=ROUNDS, rows=(*every, *(row.what for row in VERDICTS)), json=True,
        before="also measure this tree or commit, set up with ./dev setup; print ratios",
    )  # fmt: skip
    parser.add_turns()
    parser.add_argument("--bypass", action="store_true", help="only programs that run the data path themselves")
    parser.add_argument("--guest", action="store_true", help="also in the guest, beside Soft-RoCE (root)")
    given = parser.read(argv)
    chosen = {name for name in every if given.only in name} | harness.figures_for(VERDICTS, given.only)
    wanted = [row for row in (bypass_rows() if given.bypass else every.values()) if row.name in chosen]
    figures = [harness.Row(row.name, row.name, row.unit, less=row.less) for row in wanted]
    numbers = count()
    with harness.tree_of(given.before, build=True) as before, tempfile.TemporaryDirectory(prefix="rnic-libs-") as name:
        this = Tree(Path(sys.executable), Path(name) / "this").build()
        other = Tree(before / ".venv/bin/python", Path(name) / "before").build() if before else None
        takes: list[tuple[str, Take]] = []
        for row in [*wanted, *(3 * [row for row in wanted if row.unit == "us"])]:
            takes.append((row.name, partial(measure, row, this, numbers)))
            if other is not None and row.own:
                takes.append((f"before: {row.name}", partial(measure, row, other, numbers)))
        found, missing = harness.in_turn(takes, given.rounds)
    if other is not None:
        figures = [both for row in figures for both in (row, *harness.beside([row] if every[row.what].own else []))]
    judged = [row for row in VERDICTS if {row.figure, *row.against} <= found.keys()]
    status, given.only = 0, ""
    if given.guest:
        try:
            guests, more = measured(given.rounds)
            judged += guests
            found |= more
        except LeftOutError as reason:
            print(f"bench programs: LEFT OUT: {reason}", file=sys.stderr)
            status = harness.LEFT_OUT
    harness.report(given, [row for row in figures if row.figure in found] + judged, found, missing)
    return status


if __name__ == "__main__":
    harness.run(main)
