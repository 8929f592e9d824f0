#!/usr/bin/env python3
"""``./dev programs``: run Debian's RDMA programs, unmodified, and print what became of each.

Every row has a NIC process and local addresses of its own, two devices unless it says otherwise, and leaves a pcapng
of what went over the wire. A row is good when all ends exit with 0 and the recording holds RoCEv2 packets, all with
a right ICRC. Exit status: 0 all rows good, 1 one was not, 2 wrong arguments, 77 none could be run here.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import suite
from ends import End, StuckError, last_line, packets, wait_all
from rich.console import Console
from rich.table import Table

from rnic.abi.build import BuildError, build
from rnic.runtime.attach import ask
from rnic.runtime.directory import ProcessError
from rnic.testing import own_network

HERE = Path(__file__).resolve().parent
RNIC = (sys.executable, "-m", "rnic.cli")
CONSUMER = str(HERE / "pypi_ibverbs.py")
PINGPONG = ("-g", "0", "-n", "200", "-c")
PERFTEST = ("-x", "0", "-F")
QPERF_PORT = 19_765
UNAVAILABLE = 77
LEFT_OUT = "left out"
PACKAGES = "ibverbs-utils perftest rdmacm-utils qperf python3-pyverbs"
"""Debian's packages with most programs of the list."""
OTHER_PACKAGES = {
    "ibstat": "infiniband-diags",
    "ibstatus": "infiniband-diags",
    "ucx_perftest": "ucx-utils",
    "ucx_info": "ucx-utils",
    "mpirun.mpich": "mpich libmpich-dev",
    "mpirun.openmpi": "openmpi-bin libopenmpi-dev",
}
"""And with the others."""
WHEELS = {
    "pypi_ibverbs.py": ("ibverbs", "ibverbs"),
    "pypi_mooncake.py": ("mooncake", "mooncake-transfer-engine-non-cuda"),
    "pypi_nixl.py": ("nixl", "--no-deps nixl nixl-cu12"),
}
"""What our scripts import of others, and how pip installs it."""
MPI_CHECK = HERE / "mpi_check.c"
MPI_ENV = {
    "UCX_TLS": "rc_v,ud_v,self",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
"""Ranks of one machine would talk through shared memory, were they not told."""
OPEN_MPI = ("--oversubscribe", "--bind-to", "none", "--mca", "pml", "ucx", "--mca", "osc", "ucx")

LOSS = '[{"every": 61, "action": "drop"}]'
CM_LOSS = '[{"every": 7, "action": "drop"}]'


@dataclass
class Row:
    """One program with its options.

    ``kind`` is how it is run, ``peer`` the other end's command where that is another program, ``refused`` what a
    refusal has to say, ``said`` what a program that is run alone has to say, ``env`` its environment beside. ``ends``
    are what server and client of a ``cm`` row are told besides, with ``SERVER`` and ``CLIENT`` for the addresses; a
    server that ``stays`` is ended once its client has. Rows that are not ``short`` move much data, or take long, and CI
    leaves them out.
    """

    program: str
    options: tuple[str, ...] = ()
    kind: str = "pair"
    short: bool = True
    refused: str = ""
    said: str = "rnic0"
    peer: tuple[str, ...] = ()
    hosts: tuple[str, str] = ("", "")
    env: dict[str, str] = field(default_factory=dict)
    preload: bool = False
    ends: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    stays: bool = False
    faults: str = ""
    note: str = ""
    result: str = ""
    seconds: float = 0.0
    packets: int = 0
    notes: list[str] = field(default_factory=list)
    report: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """As it is typed, and what is special about it."""
        return " ".join((self.program, *self.options)) + (f" ({self.note})" if self.note else "")

    @property
    def good(self) -> bool:
        """Not failed: it may have been left out."""
        return self.result == "ok" or self.result.startswith(LEFT_OUT)


def _pingpong(name: str, *options: str, **more: object) -> Row:
    return Row(f"ibv_{name}_pingpong", (*PINGPONG, *options), **more)  # type: ignore[arg-type]


def _perftest(name: str, *options: str, **more: object) -> Row:
    return Row(f"ib_{name}", (*PERFTEST, *options), **more)  # type: ignore[arg-type]


def _python(service: str, *options: str) -> tuple[str, ...]:
    shared = ("--srq", "-q", "16") if service == "srq" else ("--service", service.upper())
    return ("pingpong", "--compat", "ibv", *shared, "-n", "200", "-c", *options)


def rows() -> Iterator[Row]:
    """The list, in the order in which it is run."""
    yield Row("ibv_devices", kind="alone")
    yield Row("ibv_devinfo", ("-v",), kind="alone")
    yield Row("ibv_asyncwatch", kind="watch")
    yield from _pingpongs()
    yield Row("ibv_xsrq_pingpong", ("-g", "0"), kind="refused", refused="XRC is not supported")
    yield from _perftests()
    yield Row("ibstat", kind="alone")
    yield Row("ibstatus", kind="alone")
    yield from _ucx()
    yield from _mpi()
    yield from _connection_manager()
    yield Row("rstream", kind="refused", refused="rsockets")
    yield Row("ib_write_bw", ("--use_cuda=0",), kind="refused", refused="use_cuda")
    yield Row("pyverbs", ("tests/run_tests.py", "-v"), kind="pyverbs", note="Debian's own test suite")
    yield Row("pypi_ibverbs.py", kind="consumer", note="PyPI's ibverbs")
    yield Row("pypi_mooncake.py", kind="consumer", note="PyPI's mooncake-transfer-engine")
    ucx = {"UCX_TLS": "rc_v,ud_v"}
    yield Row("pypi_nixl.py", kind="consumer", env=ucx, preload=True, note="PyPI's nixl, with the UCX of its wheel")
    yield Row("pypi_ibverbs.py", ("HOST", "PORT"), kind="consumer-pair", note="against ibv_rc_pingpong")


def _pingpongs() -> Iterator[Row]:
    yield _pingpong("rc")
    yield _pingpong("rc", "-e")
    yield _pingpong("rc", "-s", "1")
    yield _pingpong("rc", "-s", "65536", "-m", "4096")
    yield _pingpong("rc", "-s", "1048576", "-n", "10", "-m", "256", short=False)
    yield _pingpong("rc", hosts=("same", "same"), note="both on one device")
    yield _pingpong("rc", hosts=("::1", "::1"), note="IPv6")
    yield _pingpong("rc", faults=LOSS, note="every 61st packet lost")
    yield _pingpong("uc")
    yield _pingpong("uc", "-e", "-s", "16384")
    yield _pingpong("ud", "-s", "1024")
    yield _pingpong("ud", "-s", "2048", "-e")
    yield _pingpong("ud", "-s", "1024", hosts=("::1", "::1"), note="IPv6")
    yield _pingpong("srq")
    yield _pingpong("srq", "-e", "-q", "4", "-s", "65536")
    for name in ("rc", "uc", "ud", "srq"):
        small = ("-s", "1024") if name == "ud" else ()
        yield _pingpong(name, *small, peer=_python(name, *small), note="against rnic in Python")
    yield _pingpong("rc", "-e", peer=_python("rc", "-e"), kind="python-first", note="Python serves")


def _perftests() -> Iterator[Row]:
    for verb in ("write", "read", "send", "atomic"):
        yield _perftest(f"{verb}_bw", "-n", "200")
        yield _perftest(f"{verb}_lat", "-n", "200")
        yield _perftest(f"{verb}_bw", "-n", "100", "-q", "4")
        yield _perftest(f"{verb}_bw", "-n", "100", "-b")
        yield _perftest(f"{verb}_bw", "-n", "100", "--use_old_post_send")
        yield _perftest(f"{verb}_lat", "-n", "100", "--use_old_post_send")
        if verb != "atomic":
            yield _perftest(f"{verb}_bw", "-n", "5", "-a", short=False)
            yield _perftest(f"{verb}_lat", "-n", "5", "-a", short=False)
        if verb != "write":
            yield _perftest(f"{verb}_bw", "-n", "200", "-e")
            yield _perftest(f"{verb}_lat", "-n", "200", "-e")
    yield _perftest("atomic_bw", "-n", "200", "-A", "CMP_AND_SWAP")
    for verb in ("write", "send"):
        yield _perftest(f"{verb}_bw", "-n", "100", "-c", "UC")
        yield _perftest(f"{verb}_lat", "-n", "100", "-c", "UC")
    yield _perftest("send_bw", "-n", "200", "-c", "UD")
    yield _perftest("send_lat", "-n", "200", "-c", "UD", "-e")
    yield _perftest("send_bw", "-n", "200", "-c", "UD", "-q", "4")
    yield _perftest("send_bw", "-n", "200", "-r", "64", "--use-srq")
    yield _perftest("write_lat", "-n", "200", "-s", "64", "-I", "128")
    yield _perftest("write_bw", "-n", "96", "-m", "1024", "-l", "8")
    yield _perftest("send_bw", "-n", "50", "-s", "1048576", "-b", short=False)
    yield _perftest("write_bw", "-n", "100", faults=LOSS, note="every 61st packet lost")
    yield _perftest("read_bw", "-n", "100", faults=LOSS, note="every 61st packet lost")


def _ucx() -> Iterator[Row]:
    """Every test of UCX's protocol layer over each of its two verbs transports."""
    yield Row("ucx_info", ("-d",), kind="alone", said="rc_verbs")
    few = {"rc_v": ("tag_lat", "ucp_put_bw", "ucp_get", "ucp_am_bw", "stream_bw", "ucp_cswap"), "ud_v": ("tag_bw",)}
    every = [f"tag_{way}" for way in ("lat", "bw", "sync_lat", "sync_bw")]
    every += [f"ucp_{name}" for name in ("put_lat", "put_bw", "get", "am_lat", "am_bw")]
    every += ["stream_lat", "stream_bw", *(f"ucp_{name}" for name in ("add", "fadd", "swap", "cswap"))]
    for transport, short in few.items():
        for test in every:
            options = ("-t", test, "-n", "100", "-w", "10")
            env = {"UCX_TLS": transport}
            yield Row("ucx_perftest", options, env=env, note=f"UCX_TLS={transport}", short=test in short)
        much = ("-t", "tag_bw", "-n", "20", "-w", "2", "-s", "1000000")
        yield Row("ucx_perftest", much, env=env, note=f"UCX_TLS={transport}", short=False)


def _mpi() -> Iterator[Row]:
    """Ring, all-reduce and RMA with checked data; the devices' counters have to say that it went over them."""
    for ranks in ("2", "4"):
        short = ranks == "2"
        yield Row("mpirun.mpich", ("-np", ranks), kind="mpi", env=MPI_ENV, note="MPICH over UCX", short=short)
        yield Row("mpirun.openmpi", (*OPEN_MPI, "-np", ranks), kind="mpi", env=MPI_ENV, short=short)


def _cm(program: str, *options: str, ends: tuple[tuple[str, ...], tuple[str, ...]], **more: object) -> Row:
    return Row(program, options, kind="cm", ends=ends, **more)  # type: ignore[arg-type]


def _connection_manager() -> Iterator[Row]:
    """Programs that connect by librdmacm."""
    by_option = ((), ("-s", "SERVER"))
    by_name = ((), ("SERVER",))
    rping = (("-s", "-a", "SERVER"), ("-c", "-a", "SERVER"))
    groups = (("-b", "SERVER"), ("-b", "CLIENT", "-s"))
    yield _cm("rping", "-V", "-C", "20", ends=rping)
    yield _cm("rping", "-V", "-C", "5", "-S", "16384", ends=rping)
    yield _cm("rping", "-V", "-C", "20", ends=rping, hosts=("::1", "::1"), note="IPv6")
    yield _cm("rping", "-V", "-C", "20", ends=rping, faults=CM_LOSS, note="every 7th packet lost")
    yield _cm("ucmatose", "-c", "8", "-C", "10", ends=by_option)
    yield _cm(
        "ucmatose", "-c", "2", "-C", "10", ends=(("-b", "SERVER"), ("-s", "SERVER")), hosts=("::1", "::1"), note="IPv6"
    )
    yield _cm("udaddy", "-c", "4", "-C", "8", ends=by_option)
    yield _cm("mckey", "-m", "239.1.2.3", "-C", "8", ends=groups)
    yield _cm("cmtime", "-c", "100", ends=by_option, stays=True)
    yield _cm("rdma_server", ends=by_option, peer=("rdma_client",))
    for name in ("write_bw", "read_lat", "send_bw", "atomic_bw"):
        yield _cm(f"ib_{name}", "-R", "-F", "-n", "200", ends=by_name)
    yield _cm("ib_read_bw", "-R", "-F", "-n", "100", "-q", "4", ends=by_name)
    yield _cm("ib_send_lat", "-R", "-F", "-n", "100", "-c", "UD", ends=by_name)
    yield _cm("qperf", ends=((), ("-t", "1", "-cm", "1", "SERVER", "rc_lat", "rc_bw")), stays=True)


class Bench:
    """Runs rows, one after the other, with libraries that were built for it."""

    def __init__(self, libraries: Path, captures: Path, timeout: float) -> None:
        self.libraries = libraries
        self.captures = captures
        self.timeout = timeout

    def run(self, row: Row, number: int) -> None:
        """Run one row; its result is ``ok``, ``left out: why``, or one line that says what went wrong."""
        row.result = self._missing(row)
        if row.result:
            return
        began = time.monotonic()
        capture = self.captures / f"{number:02d}-{row.program.removesuffix('.py')}.pcapng"
        # the NIC process ends a second after its last user, and cleans up as well
        with tempfile.TemporaryDirectory(prefix="rnic-run-", ignore_cleanup_errors=True) as name:
            env = {**os.environ, **row.env, "RNIC_RUNTIME_DIR": name, "RNIC_LIBRARIES": str(self.libraries)}
            try:
                row.result = Run(row, number, env, capture, self.timeout).result()
            except StuckError as error:
                row.result = str(error)
                row.report = [*error.report, *packets(capture)]
                capture.with_suffix(".txt").write_text("\n".join([row.title, row.result, *row.report, ""]))
        row.seconds = round(time.monotonic() - began, 1)
        if row.result == "ok" and row.kind not in ("alone", "watch", "refused"):
            row.packets, wrong = _packets(capture)
            if wrong or not row.packets:
                row.result = f"recording {capture.name}: {row.packets} RoCEv2 packets, {wrong} with a wrong ICRC"

    def _missing(self, row: Row) -> str:
        if row.kind == "pyverbs":
            why = suite.missing()
        elif row.kind.startswith("consumer") and importlib.util.find_spec(WHEELS[row.program][0]) is None:
            why = f"a PyPI package is not installed: pip install {WHEELS[row.program][1]}"
        else:
            wanted = "ibv_rc_pingpong" if row.kind == "consumer-pair" else row.program
            if row.kind == "mpi" and shutil.which(row.program) is not None:
                wanted = row.program.replace("run", "cc")
            found = row.kind == "consumer" or shutil.which(wanted, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            packages = OTHER_PACKAGES.get(row.program, PACKAGES)
            why = None if found else f"{wanted} is not installed: apt-get install {packages}"
        return f"{LEFT_OUT}: {why}" if why else ""


@dataclass
class Run:
    """One row while it runs. Addresses are the row's own, so that a NIC process that is ending disturbs nobody."""

    row: Row
    number: int
    env: dict[str, str]
    capture: Path
    timeout: float

    def result(self) -> str:
        """What became of it."""
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
            "cm": self._by_cm,
        }[self.row.kind]()

    def _address(self, end: int) -> str:
        host = self.row.hosts[end]
        return host if ":" in host else f"{own_network()}.{2 * self.number % 250 + (0 if host == 'same' else end) + 1}"

    def _exec(self, *program: str, end: int = 0, recorded: bool = True) -> list[str]:
        options = ["--addr", self._address(end)]
        if recorded and (end == 0 or self.row.kind == "python-first"):
            options += ["--capture", str(self.capture)]
            options += ["--faults", self.row.faults] if self.row.faults else []
        return [*RNIC, "exec", *options, "--", *program]

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
        if client.status or (server.status and not stayed):
            words = last_line(client.text if client.status else server.text)
            return f"client {client.status}, server {server.status}: {words}"
        return "ok"

    def _alone(self) -> str:
        status, text = self._done(self._exec(self.row.program, *self.row.options, recorded=False))
        return "ok" if status == 0 and self.row.said in text else last_line(text)

    def _refused(self) -> str:
        status, text = self._done(self._exec(self.row.program, *self.row.options, recorded=False))
        line = next((line for line in text.splitlines() if self.row.refused in line), None)
        if not status or line is None:
            return f"not refused as it should be: {last_line(text)}"
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
        row = self.row
        names = {"SERVER": self._address(0), "CLIENT": self._address(1)}
        ends = [[names.get(word, word) for word in end] for end in row.ends]
        with self._start("server", self._exec(row.program, *row.options, *ends[0])) as first:
            self._wait_services(first.process)
            command = self._exec(*(row.peer or (row.program,)), *row.options, *ends[1], end=1)
            with self._start("client", command) as second:
                if row.stays:
                    self._wait([second])
                    first.process.terminate()
                self._wait([first, second])
                return self._verdict(first, second, row.stays)

    def _wait_services(self, server: subprocess.Popen[bytes]) -> None:
        """Until a server listens, or has joined a group; qperf first waits on TCP."""
        if self.row.program == "qperf":
            _wait_listening(QPERF_PORT, server)
            return
        for _ in range(800):
            with contextlib.suppress(ProcessError):
                seen = ask(Path(self.env["RNIC_RUNTIME_DIR"]), "", "cm")
                if seen["services"] or seen["groups"]:
                    return
            if server.poll() is not None:
                return
            time.sleep(0.025)

    def _pyverbs(self) -> str:
        with tempfile.TemporaryDirectory(prefix="rnic-pyverbs-") as name:
            suite.unpack(Path(name), self._address(0))
            path = f"PATH={name}/bin:{os.environ['PATH']}"
            clean = ("env", "-u", "PYTHONPATH", path, "/usr/bin/python3", *self.row.options, "--dev", "rnic0")
            status, text = self._done(self._exec(*clean), 10 * self.timeout, name)
        result, self.row.notes = suite.verdict(text, status)
        return result

    def _mpi(self) -> str:
        """One launcher, whose ranks share two devices."""
        with tempfile.TemporaryDirectory(prefix="rnic-mpi-") as name:
            check = Path(name, "mpi_check")
            compiler = self.row.program.replace("run", "cc")
            built = self._done([compiler, "-O1", str(MPI_CHECK), "-o", str(check)])
            if built[0]:
                return f"{compiler}: {last_line(built[1])}"
            ranks = [self.row.program, *self.row.options, str(check)]
            status, text = self._done([*RNIC, "exec", *self._both(), "--", *ranks])
        said = [line for line in text.splitlines() if "went over the device" in line]
        self.row.notes += said
        return "ok" if not status and said else f"status {status}: {last_line(text)}"

    def _consumer(self) -> str:
        script = str(HERE / self.row.program)
        status, text = self._done([*RNIC, "exec", *self._both(), "--", sys.executable, script])
        return last_line(text) if status else "ok"

    def _both(self) -> list[str]:
        """Options for a program that uses two devices."""
        options = ["--addr", self._address(0), "--addr", self._address(1), "--capture", str(self.capture)]
        return [*options, "--preload"] if self.row.preload else options


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _wait_listening(port: int, server: subprocess.Popen[bytes]) -> None:
    """Until a server listens on a TCP port, as the kernel's table says: a connection would disturb it."""
    wanted = f":{port:04X}"
    for _ in range(800):
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            if not os.path.exists(table):
                continue
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if words[1].endswith(wanted) and words[3] == "0A":
                    return
        if server.poll() is not None:
            return
        time.sleep(0.025)


def _packets(capture: Path) -> tuple[int, int]:
    """RoCEv2 packets of a recording, and how many of them have a wrong ICRC."""
    done = subprocess.run([*RNIC, "decode", str(capture)], capture_output=True, text=True, check=False)
    found = re.search(r"ICRC ok (\d+), wrong (\d+)", done.stdout)
    right, wrong = (int(found[1]), int(found[2])) if found else (0, 0)
    return right + wrong, wrong


def verdict(row: Row) -> str:
    """The result as tables say it."""
    if row.kind == "refused" and row.result == "ok":
        return f"refused: {row.notes[0]}"
    return f"{row.result}: {row.notes[0]}" if row.notes and row.result == "ok" else row.result


def totals(done: list[Row]) -> str:
    """One line."""
    good = sum(row.result == "ok" for row in done)
    out = sum(row.result.startswith(LEFT_OUT) for row in done)
    bad = len(done) - good - out
    return f"{len(done)} rows: {good} good, {bad} failed, {out} left out; {sum(row.packets for row in done)} packets"


def markdown(done: list[Row]) -> str:
    """The table of docs/programs.md."""
    lines = ["| program | options | result |", "|---|---|---|"]
    for row in done:
        options = " ".join((f"`{' '.join(row.options)}`" if row.options else "", row.note)).strip()
        lines.append(f"| `{row.program}` | {options} | {verdict(row).replace('|', '/')} |")
    return "\n".join([*lines, "", f"{totals(done)}."])


def table(done: list[Row]) -> Table:
    """The table of the terminal."""
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


def main(argv: list[str] | None = None) -> int:
    """Run the list."""
    parser = argparse.ArgumentParser(prog="./dev programs", description=__doc__)
    parser.add_argument("--short", action="store_true", help="without the rows that move much data, as CI runs it")
    parser.add_argument("--only", metavar="TEXT", help="rows whose title contains this")
    parser.add_argument("--list", action="store_true", help="print the rows, run nothing")
    parser.add_argument("--captures", type=Path, default=Path("captures"), help="directory for the recordings")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for a program (60)")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/programs.md")
    options = parser.parse_args(argv)
    chosen = [
        (number, row)
        for number, row in enumerate(rows())
        if (row.short or not options.short) and (not options.only or options.only in row.title)
    ]
    if options.list:
        print(json.dumps([asdict(row) for _, row in chosen]) if options.json else "\n".join(r.title for _, r in chosen))
        return 0
    captures = options.captures.resolve()
    captures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rnic-libraries-") as name:
        try:
            build(Path(name))
        except BuildError as error:
            print(f"programs: {error}", file=sys.stderr)
            return UNAVAILABLE
        bench = Bench(Path(name), captures, options.timeout)
        for number, row in chosen:
            bench.run(row, number)
            line = f"{row.seconds:6.1f} s  {row.title}: {row.result}"
            print(line, *row.report, sep="\n", file=sys.stderr, flush=True)
    done = [row for _, row in chosen]
    if options.json:
        print(json.dumps([asdict(row) for row in done]))
    elif options.markdown:
        print(markdown(done))
    else:
        Console().print(table(done))
        print(f"\n{totals(done)}; recordings in {captures}")
    if not all(row.good for row in done):
        return 1
    return 0 if any(row.result == "ok" for row in done) else UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
