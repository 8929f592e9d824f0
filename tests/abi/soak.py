"""A soak: pairs of programs that exchange checked messages while others are killed and all are stopped at random.

`./dev soak [--minutes N]` runs it. Pairs (``soak.c``) reach each other by the wire, by rings or through the NIC
process, and wait by polling or by events; the sockets of a second NIC process lose datagrams. Processes that never rest
compete for the cores. Exit status 1: a wrong byte, an error that no kill explains, a pair that does not end, or what a
NIC process keeps of programs that have gone.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rnic.abi.build import ENGINE, FLAGS, SOURCES, STRICT, build, engine_sources, find_compiler
from rnic.abi.header import write_headers
from rnic.runtime.attach import ask
from rnic.testing import own_network
from tests.abi import test_kills
from tests.abi.test_kills import Nic, served
from tests.abi.test_storm import held

HERE = Path(__file__).parent
WAYS = {"wire": ("1", "0"), "rings": ("1", "1"), "process": ("0", "0")}
"""RNIC_BYPASS and RNIC_SHM of each way that packets take."""
WAITS = ("events", "poll", "polls")
TICK_S, SAMPLE_S, END_S = 0.02, 10.0, 180.0
BOTH = re.compile(r"^(\d+) (\d+)$", re.MULTILINE)
DONE = re.compile(r"messages (\d+) bytes (\d+) longest (\d+) ms")
_PIDFD_OPEN, _PIDFD_GETFD, _SO_ATTACH_FILTER = 434, 438, 26


def compile_pair(out: Path) -> tuple[Path, Path]:
    """Build the libraries and ``soak.c``; the program and the libraries' directory."""
    compiler, libraries, objects = find_compiler(), out / "libraries", out / "objects"
    if (out / "soak").exists():
        return out / "soak", libraries
    if compiler is None:
        raise SystemExit("soak: no C compiler: install one")
    libraries.mkdir(parents=True)
    build(libraries, strict=True)
    objects.mkdir()
    write_headers(objects)
    command = [compiler, *FLAGS, *STRICT, "-O1", f"-I{SOURCES}", f"-I{ENGINE}", f"-I{objects}"]
    ours = [path for path in SOURCES.glob("*.c") if not path.name.startswith("rdmacm")]
    for part, sources in (("library", ours), ("engine", engine_sources())):  # some have the same names
        (objects / part).mkdir()
        subprocess.run([*command, "-c", *map(str, sources)], cwd=objects / part, check=True)
    linked = [str(HERE / "soak.c"), *sorted(map(str, objects.glob("*/*.o")))]
    subprocess.run([*command, *linked, "-o", str(out / "soak")], check=True)
    return out / "soak", libraries


def lose_datagrams(pid: int, one_in: int, known: set[str]) -> None:
    """Have each UDP socket of a process that is not ``known`` yet lose one datagram in so many, by a filter."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = libc.syscall(_PIDFD_OPEN, pid, 0)
    for link in Path("/proc", str(pid), "fd").iterdir():
        try:
            name = os.readlink(link)
        except OSError:
            continue
        if not name.startswith("socket:") or name in known:
            continue
        fd = libc.syscall(_PIDFD_GETFD, pidfd, int(link.name), 0)
        if fd < 0 and ctypes.get_errno() == errno.EBADF:
            continue  # it was closed since it was listed
        if fd < 0:
            raise OSError(ctypes.get_errno(), f"cannot take descriptors of process {pid}: give --loss 0")
        with socket.socket(fileno=fd) as sock:
            known.add(name)
            if sock.family == socket.AF_UNIX or sock.type != socket.SOCK_DGRAM:
                continue
            least = 0xFFFFFFFF // one_in
            rows = ((0x20, 0, 0, 0xFFFFF038), (0x35, 0, 1, least), (0x06, 0, 0, 0x40000), (0x06, 0, 0, 0))
            code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in rows))
            sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(rows), ctypes.addressof(code)))
    os.close(pidfd)


class Pair:
    """Two programs, until they are told to end, fail, or are killed."""

    def __init__(
        self, program: Path, env: dict[str, str], nic: Nic, way: str, waits: str, life: float, lossy: bool, *args: int
    ) -> None:
        self.nic, self.way, self.waits, self.lossy = nic, way, waits, lossy
        env = {**env, "RNIC_BYPASS": WAYS[way][0], "RNIC_SHM": WAYS[way][1]}
        command = [str(program), waits, *map(str, args)]
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.heard = time.monotonic()
        self.ends = self.heard + life
        self.said = ""
        self.ending = False

    def __str__(self) -> str:
        return f"{self.way} {self.waits}{' with losses' if self.lossy else ''} {self.pids()}"

    def read(self) -> str:
        """Everything that both have said so far."""
        assert self.process.stdout is not None
        if self.process.stdout.closed:
            return self.said
        try:
            while block := os.read(self.process.stdout.fileno(), 65_536):
                self.said += block.decode(errors="replace")
                self.heard = time.monotonic()
        except BlockingIOError:
            pass
        return self.said

    def pids(self) -> list[int]:
        """Both, once they have said so."""
        found = BOTH.search(self.read())
        return [int(pid) for pid in found.groups()] if found else []

    def signal(self, number: int, pids: list[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill(self) -> None:
        """Both, whatever state they are in."""
        self.signal(signal.SIGKILL, self.pids() or [self.process.pid])
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Soak:
    """What runs, and what was counted."""

    def __init__(self, given: argparse.Namespace, program: Path, env: dict[str, str], nics: list[Nic]) -> None:
        self.given, self.program, self.env, self.nics = given, program, env, nics
        self.rng = random.Random(given.seed)
        self.pairs: list[Pair] = []
        self.stopped: dict[int, float] = {}
        self.stops: list[tuple[int, float, float]] = []
        """Who was stopped, from when until when."""
        self.lossy: set[str] = set()
        self.findings: list[str] = []
        self.counts = {"pairs": 0, "killed": 0, "stops": 0, "messages": 0, "bytes": 0, "longest_ms": 0, "late": 0}
        self.samples: list[tuple[int, ...]] = []

    def begin_pair(self) -> None:
        given, rng = self.given, self.rng
        nic = rng.choice(self.nics)
        env = {**self.env, "RNIC_RUNTIME_DIR": str(nic.directory)}
        way = rng.choice(given.ways)
        life = given.life * (0.5 + rng.random())
        waits, lossy = rng.choice(given.waits), bool(given.loss) and nic is self.nics[-1]
        self.pairs.append(Pair(self.program, env, nic, way, waits, life, lossy, given.timeout, given.retries))

    def find(self, pair: Pair, what: str) -> None:
        """Note a finding, with what the NIC process says of it, and end the pair."""
        text = f"{pair}: {what}"
        self.findings.append(text)
        print(f"FINDING {text}", flush=True)
        now, pids = time.monotonic(), [*pair.pids(), pair.nic.process.pid]
        stops = [f"{pid} {first - now:.3f} to {last - now:.3f}" for pid, first, last in self.stops if pid in pids]
        print(f"  stops, in seconds from now: {stops[-12:]}", flush=True)
        for view in ("slots", "top", "counters"):
            try:
                seen = ask(pair.nic.directory, "rnic0", view)
            except Exception as error:  # noqa: BLE001 - whatever it is, the soak goes on
                seen = str(error)
            with (self.given.log / f"finding-{len(self.findings)}-{view}.json").open("w") as file:
                json.dump(seen, file, indent=1)
        rows = Path("/proc/net/udp").read_text().splitlines()[1:]
        drops = [row.split()[-1] for row in rows if row.split()[-1] != "0"]
        print(f"  drops of UDP sockets: {drops}", flush=True)
        pair.kill()

    def look_after(self, pair: Pair, now: float) -> bool:
        """Return whether a pair goes on."""
        said = pair.read()
        if "failed" in said or "errno" in said:
            self.find(pair, said.split("\n", 1)[-1].strip()[:600])
            return False
        if pair.process.poll() is not None:
            said = pair.read()
            done = DONE.search(said)
            if pair.process.returncode or not done:
                self.find(pair, f"ended with {pair.process.returncode}: {said[-300:]}")
                return False
            messages, count, longest = map(int, done.groups())
            self.counts["pairs"] += 1
            self.counts["messages"] += messages
            self.counts["bytes"] += count
            self.counts["longest_ms"] = max(self.counts["longest_ms"], longest)
            for line in said.splitlines():
                if line.startswith("late"):
                    self.counts["late"] += 1
                    print(f"{pair}, {line}", flush=True)
            pair.kill()
            return False
        if not pair.ending and pair.pids() and (now > pair.ends or not self.given.life):
            pair.ending, pair.ends = True, now
            pair.signal(signal.SIGTERM, [pair.process.pid])
        if now > max(pair.heard, pair.ends) + END_S:  # one that is only late says so again and again
            self.find(pair, f"does not end: {said[-300:]}")
            return False
        return True

    def disturb(self, now: float) -> None:
        """Stop somebody for a while, let those go on whose time has come, and kill a pair now and then."""
        given, rng = self.given, self.rng
        for pid in [pid for pid, until in self.stopped.items() if until <= now]:
            del self.stopped[pid]
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
        if rng.random() < given.stops * TICK_S:
            nics = [nic.process.pid for nic in self.nics]
            pids = nics if rng.random() < 0.05 else [pid for pair in self.pairs for pid in pair.pids()]
            pid = rng.choice(pids) if pids else 0
            if pid and pid not in self.stopped:
                try:
                    os.kill(pid, signal.SIGSTOP)
                except ProcessLookupError:
                    return
                self.stopped[pid] = now + rng.random() * given.stop_ms / 1_000
                self.stops = [*self.stops[-500:], (pid, now, self.stopped[pid])]
                self.counts["stops"] += 1
        if rng.random() < given.kills * TICK_S and (able := [pair for pair in self.pairs if pair.pids()]):
            pair = rng.choice(able)
            pair.signal(signal.SIGKILL, [rng.choice(pair.pids())])
            pair.kill()
            self.pairs.remove(pair)
            self.counts["killed"] += 1

    def sample(self, began: float) -> None:
        row = [int(time.monotonic() - began)]
        for nic in self.nics:
            status = Path("/proc", str(nic.process.pid), "status").read_text()
            found = re.search(r"VmRSS:\s+(\d+)", status)
            row += [int(found[1]) if found else 0, len(os.listdir(f"/proc/{nic.process.pid}/fd"))]
        self.samples.append(tuple(row))
        print(
            f"{row[0]:5d} s  pairs {self.counts['pairs']}, killed {self.counts['killed']}, stops {self.counts['stops']}"
            f", {self.counts['messages']:,} messages, {self.counts['bytes']:,} bytes, findings {len(self.findings)}"
            f", KiB and files of NIC processes: {row[1:]}",
            flush=True,
        )

    def run(self) -> None:
        given, began = self.given, time.monotonic()
        next_sample = began
        while (now := time.monotonic()) < began + 60 * given.minutes and len(self.findings) < given.findings:
            if given.loss:
                lose_datagrams(self.nics[-1].process.pid, given.loss, self.lossy)
            if len(self.pairs) < given.pairs:
                self.begin_pair()
            self.disturb(now)
            self.pairs = [pair for pair in self.pairs if self.look_after(pair, now)]
            for nic in self.nics:
                if nic.process.poll() is not None:
                    raise SystemExit(f"soak: a NIC process ended with {nic.process.returncode}")
            if now >= next_sample:
                next_sample = now + SAMPLE_S
                self.sample(began)
            time.sleep(TICK_S)
        given.life = given.stops = given.kills = 0
        while self.pairs:
            now = time.monotonic()
            self.disturb(now)
            self.pairs = [pair for pair in self.pairs if self.look_after(pair, now)]
            time.sleep(TICK_S)
        self.sample(began)


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev soak", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="default: %(default)s")
    parser.add_argument("--pairs", type=int, default=12, help="pairs at a time; default: %(default)s")
    parser.add_argument("--spinners", type=int, default=16, help="processes that never rest; default: %(default)s")
    parser.add_argument("--spin-nice", type=int, default=19, help="their nice value; default: %(default)s")
    parser.add_argument("--life", type=float, default=40, help="seconds that a pair lives, half to one and a half")
    parser.add_argument("--stops", type=float, default=4, help="per second; default: %(default)s")
    parser.add_argument("--stop-ms", type=float, default=400, help="how long at most; default: %(default)s")
    parser.add_argument("--kills", type=float, default=0.25, help="per second; default: %(default)s")
    parser.add_argument("--loss", type=int, default=200, help="one datagram in so many, 0 for none; of one NIC process")
    parser.add_argument("--timeout", type=int, default=16, help="code of the local ACK timeout; default: %(default)s")
    parser.add_argument("--retries", type=int, default=7, help="retry_cnt; default: %(default)s")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--waits", nargs="+", default=list(WAITS), choices=WAITS)
    parser.add_argument("--findings", type=int, default=20, help="end after so many; default: %(default)s")
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFF)
    parser.add_argument("--built", type=Path, default=None, help="directory to build in once, for several runs")
    parser.add_argument("--log", type=Path, default=None, help="where to write what is known of findings")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    given = arguments(words)
    test_kills.LONGEST = END_S  # a loaded machine is what this is for
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    with ExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rnic-soak-")))
        given.log = given.log or Path(tempfile.mkdtemp(prefix="rnic-soak-log-"))
        given.log.mkdir(exist_ok=True)
        program, libraries = compile_pair((given.built or out).resolve())
        env = {**os.environ, "RNIC_LIBRARIES": str(libraries)}
        nics = []
        for last in range(81, 83 if given.loss else 82):
            directory = out / str(last)
            directory.mkdir(mode=0o700)
            one = {**env, "RNIC_RUNTIME_DIR": str(directory)}
            nics.append(stack.enter_context(served(one, f"{own_network()}.{last}")))
        before = [held(nic) for nic in nics]
        for _ in range(given.spinners):
            spinner = subprocess.Popen(["nice", "-n", str(given.spin_nice), sys.executable, "-c", "while True: pass"])
            stack.callback(spinner.kill)
        soak = Soak(given, program, env, nics)
        print(f"soak: seed {given.seed}, {given.minutes} minutes; findings go to {given.log}", flush=True)
        try:
            soak.run()
        finally:
            for pair in soak.pairs:
                pair.kill()
        after = [held(nic) for nic in nics]
        for begun, ended in zip(before, after, strict=True):
            if begun != ended:
                soak.findings.append(f"a NIC process had {begun} at the start and has {ended} at the end")
        print(*soak.findings, sep="\n")
        third = max(1, len(soak.samples) // 3)
        for index in range(len(nics)):
            memory = [row[1 + 2 * index] for row in soak.samples]
            files = [row[2 + 2 * index] for row in soak.samples]
            print(
                f"NIC process {index}: KiB {memory[0]} {memory[third]} {memory[-1]} (most {max(memory)}),"
                f" files {files[0]} {files[third]} {files[-1]} (most {max(files)})"
            )
        print(", ".join(f"{name} {count:,}" for name, count in soak.counts.items()), f"findings {len(soak.findings)}")
        return int(bool(soak.findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
