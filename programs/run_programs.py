#!/usr/bin/env python3
"""Run Debian's RDMA programs, unmodified, and print the results (``./dev programs``).

Every row has its own NIC process and local addresses, so that several run at a time (``--jobs``). It has two devices
unless stated otherwise, and writes a pcapng capture of its packets. A row passes if all ends exit with 0 and the
capture has RoCEv2 packets, all with a correct ICRC. Exit status: 0 all rows passed, 1 a row failed, 2 wrong
arguments, 77 none could run here.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path

import recipes
import suite
import trees
import ucx_tests
from ends import End, StuckError, end_nic_process, last_line, last_packets, wait_all
from rich.console import Console
from rich.table import Table
from rows import LEFT_OUT, OWN_FILE, PINGPONG, Row, rows

from rnic.cli.exec import library_directory
from rnic.link.pcap import CaptureError, read_packets
from rnic.runtime.attach import IDLE_EXIT, ask
from rnic.runtime.directory import ProcessError
from rnic.testing import own_network
from rnic.wire.dissect import ROCE, dissect

HERE = Path(__file__).resolve().parent
RNIC = (sys.executable, "-m", "rnic.cli")
CONSUMER = str(HERE / "pypi_ibverbs.py")
QPERF_PORT = 19_765
QPERF_TRIES = 3
RACED = "qperf's server announced its port before it listened there: run once more"
"""Result of an invalid attempt: the connection was rejected since no program listened yet."""
UDPONG_PORT = 7_174
DAPLTEST_PORT = 63_000
_HOSTS = 250
"""Addresses per network; each row has its own."""
UNAVAILABLE = 77
PACKAGES = "ibverbs-utils perftest rdmacm-utils qperf python3-pyverbs"
"""Debian packages with most of the programs."""
OTHER_PACKAGES = {
    "ibstat": "infiniband-diags",
    "ibstatus": "infiniband-diags",
    "ibping": "infiniband-diags",
    "perfquery": "infiniband-diags",
    "smpquery": "infiniband-diags",
    "rdma": "iproute2",
    "ucx_perftest": "ucx-utils",
    "ucx_info": "ucx-utils",
    "fi_info": "libfabric-bin",
    "fi_pingpong": "libfabric-bin",
    "verbs_check": "gcc libc6-dev libibverbs-dev",
    "curl": "curl",
    "dapltest": "dapl2-utils",
    "fio": "fio",
    "oshrun": "openmpi-bin libopenmpi-dev",
    "socat": "socat",
    "mpirun.mpich": "mpich libmpich-dev",
    "mpirun.openmpi": "openmpi-bin libopenmpi-dev",
}
"""Debian packages of the others, by program."""
WHEELS = {
    "pypi_ibverbs.py": ("ibverbs", "ibverbs"),
    "pypi_mooncake.py": ("mooncake", "mooncake-transfer-engine-non-cuda"),
    "pypi_nixl.py": ("nixl", "--no-deps nixl nixl-cu12"),
}
"""Third-party modules of the scripts here, and their pip packages."""
MPI_CHECK, SHMEM_CHECK = HERE / "mpi_check.c", HERE / "shmem_check.c"
VERBS_CHECK = HERE / "verbs_check.c"
VERBS_HEADER = Path("/usr/include/infiniband/verbs.h")
_RECORDED = ("namespace", "recipe")
"""Kinds of rows that are captured even with ``--bypass``."""
_LONG = ("ucx", "pyverbs", "mpi")
_JOBS = 2
_given_ports: set[int] = set()
_ports_lock = threading.Lock()


class Bench:
    """Run rows, a few at a time.

    Args:
        libraries: directory of the C libraries.
        captures: directory for the captures.
        timeout: time limit of a program in seconds.
        cache: directory for Python byte code: a row starts several Pythons, and compiling dominates their start.
        bypass: programs run the engine themselves. Then only rows with faults, which use the NIC process, are captured;
            packets are counted by the device.
        shm: with ``bypass``, both ends of a row are on one device, and must use rings if they can.
        tree: the programs are those of another distribution.
    """

    def __init__(
        self,
        libraries: Path,
        captures: Path,
        timeout: float,
        cache: Path,
        bypass: bool = False,
        shm: bool = False,
        tree: trees.Tree | None = None,
    ) -> None:
        self.captures = captures
        self.tree = tree
        self.timeout = timeout
        self.bypass = bypass
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._env = {"PYTHONPYCACHEPREFIX": str(cache), **kept, "RNIC_LIBRARIES": str(libraries)}
        self._env |= {"RNIC_BYPASS": str(int(bypass)), "RNIC_SHM": str(int(shm))}
        # its counters are read at the end, and some programs take seconds to exit after closing their devices
        self._env[IDLE_EXIT] = "60"
        self.shm = shm
        self._one_address = threading.Lock()
        """Lock for rows on an address that exists only once (``::1``)."""

    def run(self, row: Row, number: int) -> None:
        """Run one row; its result is ``ok``, ``left out: why``, or a line that describes the failure."""
        row.result = self._missing(row) or self._run(row, number)

    def _run(self, row: Row, number: int) -> str:
        capture = self.captures / f"{number:02d}-{row.program.removesuffix('.py')}.pcapng"
        with self._one_address if row.alone else contextlib.nullcontext():
            began = time.monotonic()
            result = self._on_its_own(row, number, capture)
            row.seconds = round(time.monotonic() - began, 1)
        if result == "ok" and row.kind not in ("alone", "watch", "refused", "recipe"):
            row.packets, wrong = (row.packets, 0) if self.counts(row) else _packets(capture)
            if wrong or not row.packets:
                return f"recording {capture.name}: {row.packets} RoCEv2 packets, {wrong} with a wrong ICRC"
        return result

    def counts(self, row: Row) -> bool:
        """Return whether a row's packets are counted by the device, not captured."""
        return row.kind == "ucx" or (self.bypass and not (row.faults or row.tap) and row.kind not in _RECORDED)

    def _on_its_own(self, row: Row, number: int, capture: Path) -> str:
        """Run a row with its own runtime directory, and so its own NIC process."""
        with tempfile.TemporaryDirectory(prefix="rnic-run-", ignore_cleanup_errors=True) as name:
            env = {**self._env, **row.env, "RNIC_RUNTIME_DIR": name}
            try:
                result = Run(row, number, env, None if self.counts(row) else capture, self.timeout, self.tree).result()
                row.packets = _counted(Path(name)) if self.counts(row) else 0
                if self.shm and row.rings and result == "ok" and not _counted(Path(name), "shm_packets"):
                    result = "no packet used a ring"
            except StuckError as error:
                result = str(error)
                row.report = [*error.report, *last_packets(capture)]
            seen = end_nic_process(Path(name))
        if seen and result == "ok":
            result = "its NIC process did not exit after SIGTERM"
        row.report += seen
        if row.report:
            capture.with_suffix(".txt").write_text("\n".join([row.title, result, *row.report, ""]))
        return result

    def _missing(self, row: Row) -> str:
        if self.tree is not None:
            why = self._missing_in(self.tree, row)
        elif row.kind == "pyverbs":
            why = suite.missing()
        elif row.kind == "recipe":
            why = recipes.missing(row.options[0])
        elif row.kind == "ucx":
            why = ucx_tests.missing()
        elif row.kind.startswith("consumer") and importlib.util.find_spec(WHEELS[row.program][0]) is None:
            why = f"a PyPI package is not installed: pip install {WHEELS[row.program][1]}"
        else:
            wanted = "ibv_rc_pingpong" if row.kind == "consumer-pair" else row.program
            if row.kind == "cm" and row.peer:
                wanted = row.peer[0]
            if row.kind == "mpi" and shutil.which(row.program) is not None:
                wanted = row.program.replace("run", "cc")
            if row.kind == "built":
                wanted = "cc"
                if not VERBS_HEADER.exists():
                    return f"{LEFT_OUT}: {VERBS_HEADER} is not installed: apt-get install libibverbs-dev"
            found = row.kind == "consumer" or shutil.which(wanted, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            packages = OTHER_PACKAGES.get(wanted if row.kind == "cm" else row.program, PACKAGES)
            why = None if found else f"{wanted} is not installed: apt-get install {packages}"
        apart = row.tap or row.kind == "namespace" or (row.kind == "recipe" and row.options[0] not in recipes.MACHINE)
        if not why and apart and subprocess.run(["unshare", "-rn", "true"], check=False).returncode:
            why = "this user may not create network namespaces"
        return f"{LEFT_OUT}: {why}" if why else ""

    @staticmethod
    def _missing_in(tree: trees.Tree, row: Row) -> str | None:
        """Return why a row cannot run with a distribution's programs, or ``None``."""
        if row.kind not in trees.KINDS or row.sockets:
            return f"not a program of {tree.suite}"
        if row.kind == "pyverbs":
            return None if tree.tests is not None else f"{tree.suite} ships no tests of pyverbs"
        return None if tree.find(row.program) is not None else f"{tree.suite} has no {row.program}"


@dataclass
class Run:
    """A running row. It has its own addresses, so that an exiting NIC process does not disturb other rows."""

    row: Row
    number: int
    env: dict[str, str]
    capture: Path | None
    timeout: float
    tree: trees.Tree | None = None

    def result(self) -> str:
        """Return the result."""
        return {
            "alone": self._alone,
            "watch": self._watch,
            "refused": self._refused,
            "pair": self._pair,
            "python-first": self._pair,
            "pyverbs": self._pyverbs,
            "consumer": self._consumer,
            "consumer-pair": self._pair,
            "mpi": self._mpi,
            "built": self._built,
            "recipe": self._recipe,
            "ucx": self._ucx,
            "cm": self._by_cm,
            "namespace": self._in_namespace,
        }[self.row.kind]()

    def _address(self, end: int) -> str:
        host = self.row.hosts[end]
        if ":" in host:
            return host
        place, wide = 2 * self.number % _HOSTS, 2 * self.number // _HOSTS
        return f"{own_network(os.getpid() + wide)}.{place + (0 if host == 'same' or self._one_device else end) + 1}"

    @property
    def _one_device(self) -> bool:
        """Return whether both ends are on one device, to use rings. A peer with its own NIC cannot be, and some rows
        need two devices."""
        row = self.row
        own = row.kind in ("python-first", "consumer", "built") or (row.kind == "pair" and bool(row.peer))
        return self.env["RNIC_SHM"] == "1" and not own

    def _exec(self, *program: str, end: int = 0, recorded: bool = True) -> list[str]:
        options = ["--addr", self._address(end)]
        if recorded and (end == 0 or self.row.kind == "python-first"):
            options += self._recorded()
            options += ["--faults", self.row.faults] if self.row.faults else []
        options += ["--sockets"] if self.row.sockets else []
        return [*RNIC, "exec", *options, "--", *self._of_tree(*program)]

    def _of_tree(self, *program: str) -> list[str]:
        return list(program) if self.tree is None else self.tree.command(program, self.env["RNIC_LIBRARIES"])

    def _recorded(self) -> list[str]:
        return [] if self.capture is None else ["--capture", str(self.capture)]

    def _start(self, name: str, command: list[str], cwd: str | None = None) -> End:
        return End(name, command, self.env, cwd)

    def _done(self, command: list[str], timeout: float | None = None, cwd: str | None = None) -> tuple[int, str]:
        with self._start("program", command, cwd) as end:
            self._wait([end], timeout)
            return end.process.returncode, end.text

    def _wait(self, ends: list[End], timeout: float | None = None) -> None:
        wait_all(ends, timeout or self.timeout, Path(self.env["RNIC_RUNTIME_DIR"]))

    @staticmethod
    def _verdict(server: End, client: End, stayed: bool = False) -> str:
        if not client.status and (stayed or not server.status):
            return "ok"
        for end in (client, server):
            if end.status == -signal.SIGTERM and not (stayed and end is server):
                return f"{end.name} was terminated by a SIGTERM from another process on this machine"
        words = last_line(client.text if client.status else server.text)
        return f"client {client.status}, server {server.status}: {words}"

    def _alone(self) -> str:
        status, text = self._done(self._exec(self.row.program, *self.row.options, recorded=False))
        return "ok" if status == 0 and self.row.said in text else last_line(text)

    def _refused(self) -> str:
        status, text = self._done(self._exec(self.row.program, *self.row.options, recorded=False))
        line = next((line for line in text.splitlines() if self.row.refused in line), None)
        if not status or line is None:
            return f"not refused as expected: {last_line(text)}"
        self.row.notes.append(line.strip())
        return "ok"

    def _watch(self) -> str:
        command = self._exec("stdbuf", "-o0", self.row.program, recorded=False)
        with subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
            assert child.stdout is not None
            said = child.stdout.readline().decode()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.5)
            watching = child.poll() is None
            child.send_signal(signal.SIGKILL)
        return "ok" if watching and "rnic0" in said else f"ended with {child.returncode}: {said.strip()}"

    def _pair(self) -> str:
        row, port = self.row, _free_port()
        host = "127.0.0.1"
        options = ("-p", str(port), *row.options)
        server = self._exec(row.program, *options)
        client = self._exec(row.program, *options, host, end=1)
        python = [*RNIC, *row.peer, "-p", str(port), "--addr"]
        if row.kind == "python-first":
            server = [*python, self._address(0)]
        elif row.peer:
            client = [*python, self._address(1), host]
        elif row.kind == "consumer-pair":
            server = self._exec("ibv_rc_pingpong", "-p", str(port), *PINGPONG)
            client = self._exec(sys.executable, CONSUMER, host, str(port), end=1)
        with self._start("server", server) as first:
            _wait_listening(port, first.process)
            with self._start("client", client) as second:
                self._wait([first, second])
                return self._verdict(first, second)

    def _by_cm(self) -> str:
        with tempfile.TemporaryDirectory(prefix="rnic-copy-") as name:
            copy = Path(name, "copy")
            result = self._with_manager(copy)
            for _ in range(QPERF_TRIES - 1):
                if result != RACED:
                    break
                self.row.notes.append(RACED)
                result = self._with_manager(copy)
            copied = result == "ok" and any("COPY" in word for end in self.row.ends for word in end)
            if copied and copy.read_bytes() != Path(OWN_FILE).read_bytes():
                return "the copy differs from the original"
        return result

    def _with_manager(self, copy: Path) -> str:
        row = self.row
        names = {"SERVER": self._address(0), "CLIENT": self._address(1), "SERVER:COPY": f"{self._address(0)}:{copy}"}
        names["SERVER:GUID"] = f"0x0000ffff{int(ip_address(self._address(0))):08x}"
        names["COPY"] = str(copy)

        def named(word: str) -> str:
            """Put this row's address in place of SERVER, and its file in place of COPY."""
            return names.get(word) or word.replace("SERVER", names["SERVER"]).replace("COPY", names["COPY"])

        ends, shared = [[named(word) for word in end] for end in row.ends], [named(word) for word in row.options]
        with self._start("server", self._exec(row.program, *shared, *ends[0])) as first:
            self._wait_services(first.process)
            command = self._exec(*(row.peer or (row.program,)), *shared, *ends[1], end=1)
            with self._start("client", command) as second:
                if row.stays:
                    self._wait([second])
                    first.process.terminate()
                self._wait([first, second])
                if row.program == "qperf" and second.status and "reject" in second.text.lower():
                    return RACED
                return self._verdict(first, second, row.stays)

    def _wait_services(self, server: subprocess.Popen[bytes]) -> None:
        """Wait until a server listens, has joined a group or has an agent; qperf first listens on TCP."""
        if self.row.program == "qperf":
            _wait_listening(QPERF_PORT, server)
            return
        if self.row.program == "dapltest":
            _wait_listening(DAPLTEST_PORT, server)
            return
        if self.row.program == "udpong":
            _wait_listening(UDPONG_PORT, server, ("udp", "udp6"), "07")
            return
        for _ in range(800):
            with contextlib.suppress(ProcessError):
                seen = ask(Path(self.env["RNIC_RUNTIME_DIR"]), "", "cm")
                if seen["services"] or seen["groups"] or seen["agents"]:
                    return
            if server.poll() is not None:
                return
            time.sleep(0.025)

    def _in_namespace(self) -> str:
        status, text = self._done(
            ["unshare", "-rn", *self._inside(), *self._of_tree(self.row.program, *self.row.options)]
        )
        return last_line(text) if status else "ok"

    def _inside(self, *words: str) -> list[str]:
        return [sys.executable, str(HERE / "in_namespace.py"), *words, str(self.capture)]

    def _built(self) -> str:
        """Build a C program of this directory with the system's headers and libraries, and run it."""
        with tempfile.TemporaryDirectory(prefix="rnic-built-") as name:
            check = str(Path(name, self.row.program))
            built = self._done(["cc", "-O1", str(VERBS_CHECK), "-o", check, "-libverbs"])
            if built[0]:
                return f"cc: {last_line(built[1])}"
            status, text = self._done([*RNIC, "exec", *self._both(), "--", check, *self.row.options])
        self.row.notes.append(last_line(text))
        return last_line(text) if status else "ok"

    def _recipe(self) -> str:
        """Run a job of the documentation with its own commands."""
        with tempfile.TemporaryDirectory(prefix="rnic-job-") as name:
            job = self.row.options[0]
            long = 15 if job in (*recipes.SOURCES, *recipes.CHECKOUTS) else 5 if job in recipes.MACHINE else 2
            self.env["RNIC_CAPTURE"] = str(self.capture)
            try:
                command = recipes.prepare(job, Path(name))
            except RuntimeError as error:
                return f"{LEFT_OUT}: {error}"
            status, text = self._done(command, long * self.timeout)
        if status == UNAVAILABLE:
            return f"{LEFT_OUT}: {last_line(text)}"
        return f"status {status}: {last_line(text)}" if status else "ok"

    def _ucx(self) -> str:
        try:
            program = ucx_tests.ready()
        except RuntimeError as error:
            return f"{LEFT_OUT}: {error}"
        suite_name = self.row.options[0]
        command = self._exec(str(program), *ucx_tests.arguments(suite_name), recorded=False)
        status, text = self._done(command, ucx_tests.SECONDS, str(program.parent))
        result, self.row.notes = ucx_tests.verdict(text, status, suite_name)
        return result

    def _pyverbs(self) -> str:
        with tempfile.TemporaryDirectory(prefix="rnic-pyverbs-") as name:
            shipped = suite.SHIPPED if self.tree is None else self.tree.tests
            suite.unpack(Path(name), self._address(0), shipped or suite.SHIPPED)
            path = f"PATH={name}/bin:{os.environ['PATH']}"
            home = () if self.tree is None else (f"PYTHONHOME={self.tree.root / 'usr'}",)
            python = self._of_tree("/usr/bin/python3", *self.row.options, "--dev", "rnic0")
            clean = ("env", "-u", "PYTHONPATH", path, *home, *python)
            status, text = self._done(self._exec(*clean), 10 * self.timeout, name)
        part = set(suite.CONNECTIONS) <= set(self.row.options)
        result, self.row.notes = suite.verdict(text, status, suite.LEAST_CONNECTIONS if part else suite.LEAST)
        return result

    def _mpi(self) -> str:
        """Run an MPI launcher whose ranks share two devices."""
        with tempfile.TemporaryDirectory(prefix="rnic-mpi-") as name:
            check = Path(name, "mpi_check")
            compiler = self.row.program.replace("run", "cc")
            source = SHMEM_CHECK if compiler == "oshcc" else MPI_CHECK
            built = self._done([compiler, "-O1", str(source), "-o", str(check)])
            if built[0]:
                return f"{compiler}: {last_line(built[1])}"
            ranks = [self.row.program, *self.row.options, str(check)]
            command = [*RNIC, "exec", *self._both(), "--", *ranks]
            if self.row.tap:
                command = ["unshare", "-rn", *self._inside("--one"), *ranks]
            status, text = self._done(command)
        said = [line for line in text.splitlines() if "went over the device" in line]
        self.row.notes += said
        return "ok" if not status and said else f"status {status}: {last_line(text)}"

    def _consumer(self) -> str:
        script = str(HERE / self.row.program)
        status, text = self._done([*RNIC, "exec", *self._both(), "--", sys.executable, script])
        return last_line(text) if status else "ok"

    def _both(self) -> list[str]:
        """Return options for a program that uses two devices."""
        addresses = dict.fromkeys((self._address(0), self._address(1)))
        options = [word for address in addresses for word in ("--addr", address)] + self._recorded()
        return [*options, "--preload"] if self.row.preload else options


def _free_port() -> int:
    """Return an unused TCP port that no other row was given."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        with _ports_lock:
            if port not in _given_ports:
                _given_ports.add(port)
                return port


def _wait_listening(
    port: int, server: subprocess.Popen[bytes], tables: tuple[str, ...] = ("tcp", "tcp6"), state: str = "0A"
) -> None:
    """Wait until a server listens on a TCP port, by the kernel's table, since a connection would disturb it."""
    wanted = f":{port:04X}"
    for _ in range(800):
        for table in tables:
            path = Path("/proc/net", table)
            for line in path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else ():
                words = line.split()
                if words[1].endswith(wanted) and words[3] == state:
                    return
        if server.poll() is not None:
            return
        time.sleep(0.025)


def _counted(runtime: Path, name: str = "rx_packets") -> int:
    """Return a counter of a row's devices, by default received RoCEv2 packets, from its NIC process; 0 without one."""
    packets = 0
    for device in ("rnic0", "rnic1"):
        with contextlib.suppress(ProcessError):
            packets += ask(runtime, device, "counters").get(name, 0)
    return packets


def _packets(capture: Path) -> tuple[int, int]:
    """Return the number of RoCEv2 packets in a capture, and of those with a wrong ICRC."""
    try:
        frames = [dissect(memoryview(packet.data), packet.linktype) for packet in read_packets(capture)]
    except CaptureError:
        return 0, 0
    checked = [frame.icrc_ok for frame in frames if frame.kind == ROCE]
    return len(checked), checked.count(False)


def verdict(row: Row) -> str:
    """Return the result as text for tables."""
    if row.kind == "refused" and row.result == "ok":
        return f"refused: {row.notes[0]}"
    return f"{row.result}: {row.notes[0]}" if row.notes and row.result == "ok" else row.result


def totals(done: list[Row]) -> str:
    """Return the totals in one line."""
    good = sum(row.result == "ok" for row in done)
    out = sum(row.result.startswith(LEFT_OUT) for row in done)
    bad = len(done) - good - out
    return f"{len(done)} rows: {good} good, {bad} failed, {out} left out; {sum(row.packets for row in done)} packets"


def markdown(done: list[Row]) -> str:
    """Return the table of docs/programs.md."""
    lines = ["| program | options | result |", "|---|---|---|"]
    for row in done:
        options = " ".join((f"`{' '.join(row.options)}`" if row.options else "", row.note)).strip()
        lines.append(f"| `{row.program}` | {options} | {verdict(row).replace('|', '/')} |")
    return "\n".join([*lines, "", f"{totals(done)}."])


def table(done: list[Row]) -> Table:
    """Return the table of the terminal."""
    shown = Table(box=None, pad_edge=False)
    for column in ("program", "options", "result"):
        shown.add_column(column, overflow="fold")
    for column in ("packets", "s"):
        shown.add_column(column, justify="right")
    for row in done:
        options = " ".join((*row.options, f"({row.note})" if row.note else "")).strip()
        style = None if row.good else "red"
        shown.add_row(row.program, options, verdict(row), str(row.packets or ""), f"{row.seconds:.1f}", style=style)
    return shown


def choose(options: argparse.Namespace) -> list[tuple[int, Row]]:
    """Return new rows selected by the options, with their numbers.

    With ``--short`` and ``--bypass`` each program has its first row, and its first with events, IPv6, datagrams and an
    SRQ: the others differ only in code that both modes share.
    """
    chosen = [
        (number, row)
        for number, row in enumerate(rows())
        if (row.short or not options.short)
        and (options.full or not row.full)
        and (not options.only or options.only in row.title)
    ]
    if not (options.short and options.bypass):
        return chosen
    first: dict[tuple[object, ...], tuple[int, Row]] = {}
    for number, row in chosen:
        special = tuple(word in row.options for word in ("-e", "UD", "UC", "--use-srq"))
        if row.kind not in ("alone", "refused", "recipe") and not row.tap and row.program not in _LONG:
            first.setdefault((row.program, row.note == "IPv6", *special), (number, row))
    return list(first.values())


def run_list(
    chosen: list[tuple[int, Row]], bench: Bench, jobs: int, end: float = float("inf"), quiet: bool = False
) -> list[Row]:
    """Run the rows and print their results; do not start rows after ``end`` (monotonic)."""

    def begin(row: Row, number: int) -> None:
        if time.monotonic() < end:
            bench.run(row, number)

    # start long rows first, so that nothing waits for them at the end
    order = sorted(chosen, key=lambda each: each[1].kind not in _LONG)
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(begin, row, number): row for number, row in order}
        for each in as_completed(running):
            each.result()
            row = running[each]
            line = f"{row.seconds:6.1f} s  {row.title}: {row.result}"
            if row.result and not (quiet and row.good):
                print(line, *row.report, sep="\n", file=sys.stderr, flush=True)
    return [row for _, row in chosen]


def repeat(options: argparse.Namespace, bench: Bench) -> int:
    """Run the rows repeatedly; keep captures of failures (``round-N``)."""
    end = float("inf") if options.seconds is None else time.monotonic() + options.seconds
    ran, rounds, failures = 0, 0, []
    captures = bench.captures
    for number in range(1, options.repeat + 1):
        if time.monotonic() >= end:
            break
        bench.captures = captures / f"round-{number}"
        bench.captures.mkdir(exist_ok=True)
        done = [row for row in run_list(choose(options), bench, options.jobs, end, quiet=True) if row.result]
        bad = [row for row in done if not row.good]
        failures += bad
        ran += sum(row.result == "ok" for row in done) + len(bad)
        rounds += len(done) == len(choose(options))
        if not bad:
            shutil.rmtree(bench.captures)
        print(f"round {number}: {len(done)} rows, {len(bad)} failed", file=sys.stderr, flush=True)
    counts = Counter(row.title for row in failures)
    if options.json:
        print(json.dumps({"rounds": rounds, "runs": ran, "failures": counts}))
    else:
        print(
            *(f"{count:5} failures  {title}" for title, count in counts.most_common()),
            sep="\n",
            end="\n" * bool(counts),
        )
        print(f"{rounds} whole rounds, {ran} runs, {len(failures)} failed")
    return 1 if failures else 0


def columns(options: argparse.Namespace, libraries: Path, captures: Path, cache: Path) -> int:
    """Run the rows with each distribution's own programs, and print a table with one column for each."""
    found: dict[str, list[Row]] = {}
    for name in options.distribution:
        try:
            tree = trees.ready(name)
        except RuntimeError as error:
            print(f"programs: {name}: left out: {error}", file=sys.stderr)
            continue
        (captures / name).mkdir(exist_ok=True)
        bench = Bench(libraries, captures / name, options.timeout, cache, options.bypass, options.shm, tree)
        found[tree.describe()] = run_list(choose(options), bench, options.jobs)
    if not found:
        return UNAVAILABLE
    kept = [
        rows for rows in zip(*found.values(), strict=True) if any(not row.result.startswith(LEFT_OUT) for row in rows)
    ]
    if options.json:
        print(json.dumps({name: [asdict(row) for row in done] for name, done in found.items()}))
    else:
        print("| program | options |", " | ".join(found), "|")
        print("|---|---|" + "---|" * len(found))
        for rows in kept:
            first = rows[0]
            words = " ".join((f"`{' '.join(first.options)}`" if first.options else "", first.note)).strip()
            cells = (verdict(row).replace("|", "/") for row in rows)
            print(f"| `{first.program}` | {words} |", " | ".join(cells), "|")
        print(*(f"{name}: {totals(done)}" for name, done in found.items()), sep="\n")
    done = [row for each in found.values() for row in each]
    if not all(row.good for row in done):
        return 1
    return 0 if any(row.result == "ok" for row in done) else UNAVAILABLE


def main(argv: list[str] | None = None) -> int:
    """Run the rows."""
    parser = argparse.ArgumentParser(prog="./dev programs", description=__doc__)
    parser.add_argument("--short", action="store_true", help="without rows that move much data, as in CI")
    parser.add_argument("--full", action="store_true", help="also rows that build their programs first, and take long")
    parser.add_argument("--bypass", action="store_true", help="programs run the data path themselves")
    parser.add_argument("--shm", action="store_true", help="with --bypass: both ends on one device, using rings")
    parser.add_argument("--only", metavar="TEXT", help="only rows whose title contains TEXT")
    parser.add_argument(
        "--distribution",
        metavar="SUITE",
        action="append",
        default=[],
        help="programs of another distribution (trixie, sid), from its own tree; repeat it for a column of each",
    )
    parser.add_argument("--list", action="store_true", help="print the rows and exit")
    parser.add_argument("--captures", type=Path, default=Path("captures"), help="directory for captures")
    parser.add_argument("--timeout", type=float, default=60.0, help="time limit of a program in seconds (60)")
    parser.add_argument("--jobs", type=int, default=_JOBS, help=f"rows that run in parallel ({_JOBS})")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/programs.md")
    parser.add_argument("--repeat", type=int, metavar="N", help="run the rows N times, and print how often each failed")
    parser.add_argument("--seconds", type=float, help="with --repeat: start no further rows after this time")
    options = parser.parse_args(argv)
    if options.seconds is not None and options.repeat is None:
        parser.error("argument --seconds: requires --repeat")
    if options.shm and not options.bypass:
        parser.error("argument --shm: requires --bypass")
    if options.list:
        listed = [row for _, row in choose(options)]
        print(json.dumps([asdict(row) for row in listed]) if options.json else "\n".join(row.title for row in listed))
        return 0
    captures = options.captures.resolve()
    captures.mkdir(parents=True, exist_ok=True)
    try:
        libraries = library_directory()
    except ProcessError as error:
        print(f"programs: {error}", file=sys.stderr)
        return UNAVAILABLE
    with tempfile.TemporaryDirectory(prefix="rnic-bytecode-") as name:
        if options.distribution:
            return columns(options, libraries, captures, Path(name))
        bench = Bench(libraries, captures, options.timeout, Path(name), options.bypass, options.shm)
        if options.repeat is not None:
            return repeat(options, bench)
        done = run_list(choose(options), bench, options.jobs)
    if options.json:
        print(json.dumps([asdict(row) for row in done]))
    elif options.markdown:
        print(markdown(done))
    else:
        Console().print(table(done))
        print(f"\n{totals(done)}; captures in {captures}")
    if not all(row.good for row in done):
        return 1
    return 0 if any(row.result == "ok" for row in done) else UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
