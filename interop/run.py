#!/usr/bin/env python3
"""Live runs of ibverbs-utils' ping-pong programs in a guest with Linux Soft-RoCE, against `rnic pingpong --compat ibv`
and against the same unmodified programs on this machine under `rnic exec`.

Boots the guest, runs the programs, which check the data, prints one row per run, and tears everything down.
Exit status: 0 all runs passed, 1 a run failed, 2 wrong arguments, 77 this machine cannot run the guest.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import nvmeof_run
import reorder_run
from cm_runs import PROGRAMS, Program
from cm_runs import run as run_program
from rig import SMOKE, UNAVAILABLE, Rig, UnavailableError, booted

from rnic.link.pcap import read_packets
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.spec.opcodes import CNP

RNIC = Path(sys.executable).parent / "rnic"
HERE = Path(__file__).resolve().parent
PORT = 18515
GUEST_SECONDS = 60
GID_INDEX = {4: 1, 6: 2}  # in the guest's GID table


@dataclass(frozen=True)
class Tool:
    """A program of ibverbs-utils, and the options for rnic as its peer."""

    name: str
    rnic_options: tuple[str, ...] = ()
    mtus: tuple[int | None, ...] = (1024, 4096)  # None: the tool has no such option
    sizes: tuple[int, ...] = (1, 1024, 3001, 65536, 1048576)
    quick: tuple[tuple[int | None, int], ...] = ((1024, 3001),)
    """Path MTU and size of the runs without ``--all``."""
    quick_events: bool = False
    connects: Program | None = None
    """Program that connects with librdmacm on both sides."""

    @property
    def program(self) -> str:
        """The guest's program."""
        if self.connects is not None:
            return self.connects.name
        return _PROGRAMS.get(self.name, f"ibv_{self.name}_pingpong")


_PROGRAMS = {
    "reorder": "ibv_rc_pingpong",
    "late": "late_receiver",
    "conform": "conform-agent",
    "nvmeof": "nvmeof_host.py",
}
TOOLS = (
    Tool("rc", quick=((1024, 1), (1024, 3001), (1024, 1048576), (4096, 65536)), quick_events=True),
    # an ibv pingpong waits forever for a lost datagram or UC message: avoid bursts of a thousand packets
    Tool("uc", ("--connection", "UC"), sizes=(1, 1024, 3001, 16384)),
    Tool("ud", ("--connection", "UD"), mtus=(None,), sizes=(1, 1024, 2048, 3001, 4096), quick=((None, 3001),)),
    Tool("srq", ("--srq",), sizes=(1, 1024, 3001, 65536)),
)


LATE = Tool("late")
"""Receiver in the guest that posts its receives 30 ms late (``late_receiver.c``), and a sender with three retries."""
LATE_MESSAGES, LATE_MS = 8, 30
CONFORM = Tool("conform")
"""All of `rnic conform` against the agent in the guest: only known deviations of Soft-RoCE may fail."""
CONFORM_SECONDS = 300
NVMEOF = Tool("nvmeof")
"""PyPI's NVMe-oF host under `rnic exec` against the kernel's target."""
REORDER = Tool("reorder", quick=())
"""Reordered packets from the guest: rnic takes hardly longer than a second guest (``reorder_run.py``)."""
MARKS = json.dumps([{"match": {"direction": "rx", "opcode": "RC_SEND*"}, "every": 4, "action": "mark"}])
_BTH = 14 + 20 + 8
"""Offset of the BTH in a frame over IPv4."""


@dataclass(frozen=True)
class Case:
    """A run. ``role`` is rnic's; ``family`` is the IP version of the GIDs (the TCP exchange uses IPv4)."""

    tool: Tool
    role: str
    family: int
    mtu: int | None
    size: int
    events: bool
    unmodified: bool = False
    """True if rnic's side is the same program under ``rnic exec``."""
    marks: bool = False
    """True to mark every fourth packet from the guest (CE): the guest gets CNPs, and must not fail."""

    @property
    def iters(self) -> int:
        """Number of exchanges; more for short messages."""
        return 10 if self.size > 500_000 else 100 if self.size > 5000 else 500

    @property
    def quick(self) -> bool:
        """True if it runs without ``--all``."""
        if self.tool.connects is not None:
            return self.tool.connects.quick
        if self.tool in (LATE, CONFORM, NVMEOF) or self.marks:
            return True
        if self.unmodified:
            return self.family == 4
        return self.tool.quick_events if self.events else (self.mtu, self.size) in self.tool.quick

    @property
    def name(self) -> str:
        """Name for ``-k``."""
        parts = [self.tool.name, self.role, f"ipv{self.family}"]
        if self.tool.connects is not None:
            return "-".join((*parts, "cm"))
        parts += [f"mtu{self.mtu}"] if self.mtu else []
        parts += [f"size{self.size}"] + (["events"] if self.events else [])
        return "-".join(parts + (["exec"] if self.unmodified else []) + (["marks"] if self.marks else []))

    def options(self) -> list[str]:
        """Return the options common to both programs."""
        words = ["-p", str(PORT), "-n", str(self.iters), "-s", str(self.size), "-c"]
        words += ["-m", str(self.mtu)] if self.mtu else []
        return words + (["-e"] if self.events else [])


@dataclass(frozen=True)
class Result:
    """Result of a run; ``problem`` is empty if it passed."""

    case: Case
    seconds: float
    problem: str
    output: str


def cases() -> Iterator[Case]:
    """Yield every run, in the order of the table."""
    for tool in TOOLS:
        for role in ("client", "server"):
            for family in (4, 6):
                for mtu in tool.mtus:
                    for size in tool.sizes:
                        yield Case(tool, role, family, mtu, size, events=False)
                yield Case(tool, role, family, tool.mtus[0], tool.sizes[2], events=True)
    # last, since their NIC process keeps its addresses for another second
    for tool in TOOLS:
        for role in ("client", "server"):
            for family in (4, 6):
                yield Case(tool, role, family, tool.mtus[0], tool.sizes[2], events=False, unmodified=True)
    yield Case(TOOLS[0], "server", 4, 1024, 65536, events=False, unmodified=True, marks=True)
    yield Case(LATE, "client", 4, 1024, 1024, events=False)
    for program in PROGRAMS:
        for family in program.families:
            for role in ("client", "server"):
                name = "-".join(filter(None, (program.name, program.label)))
                yield Case(Tool(name, connects=program), role, family, None, 0, events=False, unmodified=True)
    yield Case(NVMEOF, "client", 4, 1024, 1024, events=False)
    yield Case(REORDER, "client", 4, 1024, 3001, events=False)
    for family in (4, 6):
        yield Case(CONFORM, "client", family, 1024, 1024, events=False)


def verdict(case: Case, ends: list[tuple[str, int | None, str]]) -> str:
    """Return the problem of a run; empty if there is none.

    ``ends`` holds name, exit status (``None`` on timeout) and output of each side, client first, since the
    server is stopped when its client fails. The guest's tool reports wrong data only in its output.
    """
    done = f"{case.iters} iters in" if case.tool is not LATE else f"{LATE_MESSAGES} messages"
    for side, status, output in ends:
        if status is None:
            return f"{side} did not end within {GUEST_SECONDS} s"
        if "invalid data" in output:
            return f"{side} saw wrong data"
        if status:
            return f"{side} exited with {status}"
        if done not in output:
            return f"{side} did not print {done!r}"
    return ""


def marks_verdict(recording: Path) -> str:
    """Return the problem of a run with marked packets beyond the programs' own; empty if there is none."""
    opcodes = [packet.data[_BTH] for packet in read_packets(recording) if len(packet.data) > _BTH]
    if CNP not in opcodes:
        return f"no CNP among the {len(opcodes)} packets recorded"
    return ""


def end(process: subprocess.Popen[str], seconds: int = GUEST_SECONDS + 20) -> tuple[int | None, str]:
    """Wait for a program; return exit status and output. Kill it on timeout, with status ``None``."""
    try:
        output = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return None, process.communicate()[0]
    return process.returncode, output


def rnic_command(rig: Rig, case: Case, runtime: str) -> list[str | Path]:
    """Return the command of rnic's side. ``runtime`` is the directory of the NIC process, if there is one."""
    address = rig.host[case.family]
    if case.unmodified:
        found: list[str | Path] = [
            "env",
            f"RNIC_RUNTIME_DIR={runtime}",
            RNIC,
            "exec",
            "--addr",
            address,
        ]
        if case.marks:
            found += ["--faults", MARKS, "--capture", Path(runtime) / "marks.pcapng"]
        return [*found, "--", case.tool.program, "-g", "0", *case.options()]
    return [RNIC, "pingpong", "--compat", "ibv", *case.tool.rnic_options, "--addr", address, *case.options()]


def late_commands(rig: Rig, case: Case, runtime: str) -> tuple[list[str], list[str | Path]]:
    """Build the late receiver and copy it to the guest; return the guest's and rnic's commands."""
    program = Path(runtime) / LATE.program
    subprocess.run(["cc", "-O1", HERE / "late_receiver.c", "-o", program, "-libverbs"], check=True)
    rig.put(program, f"/bin/{LATE.program}")
    count, size = str(LATE_MESSAGES), str(case.size)
    guest = [LATE.program, "rxe0", str(GID_INDEX[case.family]), str(PORT), count, size, str(LATE_MS)]
    return guest, [sys.executable, HERE / "early_sender.py", rig.host[case.family], str(PORT), count, size]


def late_left_out() -> str:
    """Return why programs for the guest cannot be built here; empty if they can."""
    if shutil.which("cc") is None:
        return "no C compiler (cc)"
    return "" if Path("/usr/include/infiniband/verbs.h").exists() else "no infiniband/verbs.h (libibverbs-dev)"


def run_conform(rig: Rig, case: Case, runtime: str) -> Result:
    """Build the agent for the guest, and run all packet scripts against it."""
    start = time.monotonic()
    program, source = Path(runtime) / case.tool.program, Path(runtime) / "agent.c"
    source.write_text(
        subprocess.run([RNIC, "conform", "--agent-source"], check=True, capture_output=True, text=True).stdout
    )
    subprocess.run(["cc", "-O1", source, "-o", program, "-libverbs"], check=True)
    rig.put(program, f"/bin/{case.tool.program}")
    words = [case.tool.program, "rxe0", str(GID_INDEX[case.family]), str(PORT)]
    agent = rig.in_guest(shlex.join(words), CONFORM_SECONDS)
    status: int | None = None
    output = ""
    problem = f"the agent did not listen on TCP port {PORT}"
    if rig.wait_listening("guest", PORT):
        tester = rig.beside(RNIC, "conform", rig.guest[4], "--addr", rig.host[case.family], "--agent-port", str(PORT))
        status, output = end(tester, CONFORM_SECONDS)
        problem = conform_verdict(status, output)
    rig.ask_guest(f"killall {case.tool.program}")
    end(agent)
    return Result(case, time.monotonic() - start, problem, output)


def conform_verdict(status: int | None, output: str) -> str:
    """Return the problem of a run of the scripts; empty if there is none."""
    if status is None:
        return f"the scripts did not end within {CONFORM_SECONDS} s"
    last = output.splitlines()[-1] if output else ""
    if status or "0 fail" not in last:
        return f"rnic conform exited with {status}: {last}"
    return ""


def run_case(rig: Rig, case: Case, runtime: str) -> Result:
    """Run one case; never raise for its failure."""
    if case.marks or not (case.unmodified or case.tool.connects):
        rig.wait_free(ROCE_UDP_PORT)
    if case.tool is CONFORM:
        return run_conform(rig, case, runtime)
    start = time.monotonic()
    if case.tool is NVMEOF:
        problem, output = nvmeof_run.run(rig, RNIC, runtime)
        return Result(case, time.monotonic() - start, problem, output)
    if case.tool is REORDER:
        problem, output = reorder_run.run(rig, RNIC)
        return Result(case, time.monotonic() - start, problem, output)
    if case.tool.connects is not None:
        problem, output = run_program(rig, case.tool.connects, case.family, case.role == "server", runtime)
        return Result(case, time.monotonic() - start, problem, output)
    options = case.options()
    guest_words = [case.tool.program, "-d", "rxe0", "-g", str(GID_INDEX[case.family]), *options]
    rnic_words = rnic_command(rig, case, runtime)
    if case.tool is LATE:
        guest_words, rnic_words = late_commands(rig, case, runtime)
    rnic_serves = case.role == "server"
    server = rig.beside(*rnic_words) if rnic_serves else rig.in_guest(shlex.join(guest_words), GUEST_SECONDS)
    client_side, server_side = ("guest", "rnic") if rnic_serves else ("rnic", "guest")
    ends: list[tuple[str, int | None, str]] = []
    if rig.wait_listening("host" if rnic_serves else "guest", PORT):
        if rnic_serves:
            client = rig.in_guest(shlex.join([*guest_words, rig.host[4]]), GUEST_SECONDS)
        else:
            client = rig.beside(*rnic_words, rig.guest[4])
        ends.append((client_side, *end(client)))
    if not ends or ends[0][1] != 0:  # then the server may wait forever
        rig.ask_guest(f"killall {case.tool.program}")
        server.terminate()
    ends.append((server_side, *end(server)))
    problem = verdict(case, ends) if len(ends) == 2 else f"{server_side} did not listen on TCP port {PORT}"
    if case.marks and not problem:
        problem = marks_verdict(Path(runtime) / "marks.pcapng")
    output = "".join(f"--- {side}\n{text}" for side, _, text in ends)
    return Result(case, time.monotonic() - start, problem, output)


def smoke(rig: Rig) -> None:
    """Test the rig with a peer that is not rnic; raise ``RuntimeError`` if it is broken."""
    server = rig.in_guest(f"ibv_rc_pingpong -d rxe0 -g 1 -n 20 -s 3001 -m 1024 -p {PORT}", 20)
    rig.wait_listening("guest", PORT)
    status, output = end(rig.beside(sys.executable, SMOKE, rig.guest[4], "20", "3001"))
    guest_status, guest_output = end(server)
    if status or guest_status:
        raise RuntimeError(f"the rig fails without rnic:\n{output}{guest_output}")


def counters(rig: Rig) -> dict[str, int]:
    """Return the guest's Soft-RoCE counters."""
    printed = rig.ask_guest("cd /sys/class/infiniband/rxe0/ports/1/hw_counters; grep . *")
    pairs = (line.split(":") for line in printed.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def run_all(selected: list[Case], keep: bool, say: bool) -> list[Result]:
    """Boot the guest, run the cases, tear down. With ``say``, print each row as it comes."""
    results = []
    with booted(keep) as rig, tempfile.TemporaryDirectory(prefix="rnic-live-") as runtime:
        smoke(rig)
        before = counters(rig)
        for case in selected:
            if case.unmodified and shutil.which(case.tool.program) is None:
                print(f"interop: left out: {case.name}: {case.tool.program} is not installed here", file=sys.stderr)
                continue
            if case.tool in (LATE, CONFORM) and late_left_out():
                print(f"interop: left out: {case.name}: {late_left_out()}", file=sys.stderr)
                continue
            if case.tool is NVMEOF and nvmeof_run.left_out():
                print(f"interop: left out: {case.name}: {nvmeof_run.left_out()}", file=sys.stderr)
                continue
            result = run_case(rig, case, runtime)
            results.append(result)
            if say:
                print(f"{case.name:44} {result.seconds:6.1f} s  {result.problem or 'ok'}", flush=True)
                if case.tool is CONFORM and not result.problem:
                    lines = result.output.splitlines()
                    print(
                        "\n".join(
                            f"    {line}" for line in lines if line.startswith("deviation: ") and line.endswith(")")
                        )
                        + f"\n    {lines[-1]}",
                        flush=True,
                    )
        moved = {name: value - before.get(name, 0) for name, value in counters(rig).items()}
        if say:
            print("guest's counters: " + ", ".join(f"{name} {n}" for name, n in moved.items() if n))
    return results


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the arguments; exit with status 2 if they are wrong."""
    parser = argparse.ArgumentParser(prog="./dev interop", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--all", action="store_true", help="all runs, not only the quick ones")
    parser.add_argument("-k", metavar="WORD", help="only runs whose name contains WORD (see --list)")
    parser.add_argument("--list", action="store_true", help="print the names of the runs and exit")
    parser.add_argument("--keep", action="store_true", help="leave the guest running (rxe-guest down stops it)")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    args = parser.parse_args(argv)
    args.cases = [case for case in cases() if (args.k in case.name if args.k else args.all or case.quick)]
    if not args.cases:
        parser.error(f"argument -k: no run's name contains {args.k!r}; --list shows them")
    return args


def row(result: Result) -> dict[str, object]:
    """Return a result as flat JSON."""
    case = result.case
    return {
        "name": case.name,
        **asdict(case),
        "tool": case.tool.program,
        "iters": case.iters,
        "seconds": round(result.seconds, 3),
        "problem": result.problem,
        "output": result.output,
    }


def report(results: list[Result], as_json: bool) -> int:
    """Print the summary; return the exit status."""
    bad = [result for result in results if result.problem]
    if as_json:
        print(json.dumps([row(result) for result in results], indent=1))
        return 1 if bad else 0
    for result in bad:
        print(f"\n{result.case.name}: {result.problem}\n{result.output}", file=sys.stderr)
    print(f"interop: {len(results) - len(bad)} passed, {len(bad)} failed")
    for result in bad:
        print(f"FAILED {result.case.name}: {result.problem}")
    return 1 if bad else 0


def main(argv: list[str]) -> int:
    """Run the cases; always tear down, even on SIGTERM."""
    args = parse(argv)
    if args.list:
        print("\n".join(case.name for case in args.cases))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return report(run_all(args.cases, args.keep, say=not args.json), args.json)
    except UnavailableError as error:
        print(f"interop: left out: {error}", file=sys.stderr)
        return UNAVAILABLE
    except RuntimeError as error:
        print(f"interop: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
