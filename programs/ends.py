"""Run the programs of a row: handle their exits, and diagnose programs that hang."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rnic.spec.attach import SOCKET_NAME

PATIENCE = 5.0
"""Seconds for the other end to exit after one has failed; it may wait for that one forever."""
_LOOK_SECONDS = 20.0
END_SECONDS = 10.0
"""Seconds for a NIC process to exit after SIGTERM."""
_SLICE = 0.1
"""Longest time counted between two checks, in case this process itself was stopped in between."""
_WANTS_A_CORE = "RTt"
_LOG_SECONDS = 1.0
_MOST_PROCESSES = 12
_LAST_PACKETS = 40
_WORDS_OF_AN_END = 15
_MOST_QUEUES = 8
_DEVICES = ("rnic0", "rnic1")
_UCRED = struct.Struct("3i")
_THREAD_FILES = ("wchan", "syscall")


class StuckError(Exception):
    """A program hangs: the message says which one, ``report`` has diagnostics of all."""

    def __init__(self, line: str, report: list[str]) -> None:
        super().__init__(line)
        self.report = report


class End:
    """A program of a row. Its output goes to a file, to be read while the program runs."""

    def __init__(self, name: str, command: Sequence[str], env: dict[str, str], cwd: str | None = None) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
        self.process = subprocess.Popen(
            command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=self._said, stderr=subprocess.STDOUT
        )

    @property
    def status(self) -> int | None:
        """Its exit status; ``None`` while it runs."""
        return self.process.poll()

    @property
    def text(self) -> str:
        """Its output so far."""
        size = os.fstat(self._said.fileno()).st_size
        return os.pread(self._said.fileno(), size, 0).decode(errors="replace")

    def __enter__(self) -> End:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.status is None:
            for pid in reversed(_family(self.process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
        self._said.close()


def last_line(text: str) -> str:
    """Return the last line of a program's output."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "said nothing"


def wait_all(ends: Sequence[End], timeout: float, runtime: Path, patience: float = PATIENCE) -> None:
    """Wait until all programs have exited.

    Args:
        ends: the programs of a row.
        timeout: seconds, restarted whenever one exits with success; counted as by :class:`Had`.
        runtime: the row's runtime directory, for the report.
        patience: seconds for the others after one has failed.

    Raises:
        StuckError: one did not exit in time. All are still running when the report is made.
    """
    running = list(ends)
    left = limit = timeout
    nic: list[int] = []

    def pids() -> Iterable[int]:
        if not nic:
            found = _nic_process(runtime)
            nic.extend([] if found is None else [found])
        return [*nic, *(pid for end in running for pid in _family(end.process.pid))]

    had = Had(pids)
    while running:
        began = time.monotonic()
        piece = min(left, _SLICE)
        _wait_one(running, piece)
        left -= had.of(min(piece, time.monotonic() - began))
        still = [end for end in running if end.status is None]
        if len(still) == len(running):
            if left > 0:
                continue
            raise StuckError(_headline(ends, limit), report(ends, runtime))
        if any(end.status for end in running if end.status is not None):
            limit = min(limit, patience)
        left = limit
        running = still


def _wait_one(ends: Iterable[End], seconds: float) -> None:
    """Wait until one of them exits, or for ``seconds``."""
    poller = select.poll()
    with contextlib.ExitStack() as held:
        for end in ends:
            if end.status is not None:
                return
            fd = os.pidfd_open(end.process.pid)
            held.callback(os.close, fd)
            poller.register(fd, select.POLLIN)
        poller.poll(max(0.0, seconds) * 1000)


def _headline(ends: Sequence[End], limit: float) -> str:
    """Return a line with the running programs and the exit statuses of the others."""
    running = " and ".join(end.name for end in ends if end.status is None)
    ended = [f"{end.name} {end.status}: {last_line(end.text)}" for end in ends if end.status is not None]
    return "; ".join([f"no end of {running} within {limit:.0f} s", *ended])


def report(ends: Sequence[End], runtime: Path) -> list[str]:
    """Return diagnostics of the programs and their NIC process: output, states, stacks, queues, counters."""
    lines = []
    for end in ends:
        state = "runs" if end.status is None else f"ended with {end.status}"
        pids = [] if end.status is not None else _family(end.process.pid)
        seen = [line for pid in pids[:_MOST_PROCESSES] for line in _process(pid)]
        lines += [f"--- {end.name} {state}: {' '.join(map(str, end.process.args))}", *seen]  # type: ignore[arg-type]
        # gdb has flushed its output buffer
        lines += [f"    said: {line}" for line in end.text.splitlines()[-_WORDS_OF_AN_END:]]
    pid = _nic_process(runtime)
    if pid is None:
        return [*lines, "--- no NIC process runs"]
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)  # it writes its stack to its log
    return [*lines, "--- NIC process", *_process(pid, flush=False), *_queues(runtime), *_log(runtime)]


def _nic_process(runtime: Path) -> int | None:
    """Find the NIC process by its socket, without asking it, since it may hang."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.connect(str(runtime / SOCKET_NAME))
        except OSError:
            return None
        pid: int = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0]
        return pid


def _family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for each in found:
        for task in _tasks(each):
            with contextlib.suppress(OSError):
                found += map(int, task.joinpath("children").read_text().split())
    return found


def _tasks(pid: int) -> list[Path]:
    """Return the /proc directories of a process's threads; empty if it exits meanwhile."""
    try:
        return sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name))
    except OSError:
        return []


def _process(pid: int, flush: bool = True) -> list[str]:
    """Return state, threads and stacks of a process, and flush its output buffer."""
    root = Path(f"/proc/{pid}")
    try:
        name = root.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        state = [line for line in root.joinpath("status").read_text().splitlines() if line.startswith("State")]
    except OSError as error:
        return [f"  process {pid}: {error.strerror}"]
    lines = [f"  process {pid}: {name}: {' '.join(state)}"]
    for task in _tasks(pid):
        seen = []
        for file in _THREAD_FILES:
            with contextlib.suppress(OSError):
                seen.append(f"{file} {task.joinpath(file).read_text().strip()}")
        lines.append(f"    thread {task.name}: {', '.join(seen)}")
    gdb = shutil.which("gdb")
    if gdb is None:
        return [*lines, "    no stacks: gdb is not installed"]
    commands = ["-ex", "thread apply all backtrace 25"]
    if flush:
        commands += ["-ex", "call (int)fflush((void *)0)"]
    said = _said([gdb, "--batch", "-nx", "-p", str(pid), *commands])
    return lines + [f"    {line}" for line in said if line.startswith(("Thread", "#"))]


def _said(command: list[str], env: dict[str, str] | None = None) -> list[str]:
    """Return the output of a tool, with a time limit."""
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=_LOOK_SECONDS, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return [f"# {command[0]}: no end within {_LOOK_SECONDS:.0f} s"]
    return (done.stdout + done.stderr).splitlines()


class Had:
    """Time that processes were running or sleeping, without times in which they were stopped or waited for a core.

    Beside busy processes of higher priority, or many of the same, they may get a hundredth of a core; a minute then
    proves nothing. Processes that hang are either all asleep or running.

    Args:
        pids: returns the present processes.
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._ran: dict[int, float] = {}
        self.of(0.0)

    def of(self, seconds: float) -> float:
        """Return their share of the last ``seconds``."""
        before, used, wanted = self._ran, 0.0, False
        self._ran = {}
        for pid in self._pids():
            for task in _tasks(pid):
                with contextlib.suppress(OSError, IndexError):  # it has just exited
                    state = task.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                    ran = int(task.joinpath("schedstat").read_text().split()[0]) / 1e9
                    self._ran[int(task.name)] = ran
                    used += ran - before.get(int(task.name), ran)
                    wanted |= state in _WANTS_A_CORE
        return min(used, seconds) if wanted else seconds


def end_nic_process(runtime: Path, seconds: float = END_SECONDS) -> list[str]:
    """Terminate a row's NIC process; if it does not exit, kill it and return diagnostics."""
    pid = _nic_process(runtime)
    if pid is None:
        return []
    with contextlib.suppress(ProcessLookupError), contextlib.ExitStack() as held:  # it may exit by itself
        fd = os.pidfd_open(pid)
        held.callback(os.close, fd)
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        had = Had(lambda: [pid])
        while seconds > 0:
            if poller.poll(_SLICE * 1000):
                return []
            seconds -= had.of(_SLICE)
        log = _log(runtime)
        signal.pidfd_send_signal(fd, signal.SIGUSR1)  # its own stack goes to its log
        seen = ["--- NIC process", *_process(pid, flush=False), *_settled_log(runtime, pid, log)]
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        return seen
    return []


def _settled_log(runtime: Path, pid: int, before: list[str]) -> list[str]:
    """Return its log once it has grown and then stopped growing for a while, since a stack is written by lines."""
    had = Had(lambda: [pid])
    log, left, still = before, _LOG_SECONDS, 0.0
    while left > 0 and still < _SLICE:
        time.sleep(_SLICE / 10)
        passed = had.of(_SLICE / 10)
        left -= passed
        now = _log(runtime)
        still = still + passed if now == log != before else 0.0
        log = now
    return log


def _log(runtime: Path) -> list[str]:
    """Return the log of a NIC process."""
    with contextlib.suppress(OSError):
        return [f"    log: {line}" for line in (runtime / "nic.log").read_text(errors="replace").splitlines()]
    return []


def _queues(runtime: Path) -> list[str]:
    """Return queue pairs, their CQs, and counters of each device, as printed by ``rnic``."""
    env = {**os.environ, "RNIC_RUNTIME_DIR": str(runtime)}

    def asked(*words: str) -> list[str]:
        return _said([sys.executable, "-m", "rnic.cli", *words], env)

    lines = []
    for device in _DEVICES:
        seen = asked("qp", "--json", "--device", device)
        try:
            numbers = [str(pair["qpn"]) for pair in json.loads(seen[0])]
        except (ValueError, IndexError, TypeError):
            lines += [f"    {device}: {line}" for line in seen]
            continue
        cqs = set()
        for number in numbers[:_MOST_QUEUES]:
            said = asked("qp", number, "--device", device)
            cqs |= {line.split()[1] for line in said if line.startswith(("send_cq", "receive_cq"))}
            lines += [f"    {device} qp {number}: {line}" for line in said if not line.startswith("  ")]
        for number in sorted(cqs)[:_MOST_QUEUES]:
            said = asked("cq", str(int(number, 0)), "--device", device)
            lines += [f"    {device} cq {number}: {line}" for line in said]
        lines += [f"    {device}: {line}" for line in asked("counters", "--device", device)]
    return lines


def last_packets(capture: Path) -> list[str]:
    """Return the last packets of a capture."""
    if not capture.exists():
        return ["--- no recording"]
    said = _said([sys.executable, "-m", "rnic.cli", "decode", str(capture)])
    return [f"--- {capture.name}, the last of {len(said)} lines", *(f"    {line}" for line in said[-_LAST_PACKETS:])]
