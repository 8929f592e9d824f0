#!/usr/bin/env python3
"""The steps of the whole check and what runs them; `.ci/run` and `./dev check` are this.

Steps without inputs run always. A step with inputs depends on few files: it runs if one of them, the interpreter, the
compiler or a version of what it installs has changed since it last passed whole, or if that was more than 14 days ago.
``record.json`` says so; a step writes its entry when it has passed. Steps that are named run whatever the record says.
A step that this machine cannot run exits with 77 and prints why. All steps run, also behind one that failed.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import functools
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / ".ci" / "record.json"
MAX_AGE_DAYS = 14
LEFT_OUT = 77
FAILURE_LINES = 20
"""Lines of a failed step that the end of the check repeats."""
BESIDE_TIMEOUT_S = 600
"""Longest time of a test of a step beside others."""
OUTPUT_SECONDS = 5
"""Time for which a step's output is read behind its end; a process that it left may hold it open."""
LANES = 2
"""Rows of steps that measure no time, beside the row of those that do."""

PACKAGES = {
    "cc": "gcc libc6-dev",
    "tshark": "tshark",
    "valgrind": "valgrind",
    "/usr/include/infiniband/verbs.h": "libibverbs-dev",
    "/usr/include/rdma/rsocket.h": "librdmacm-dev",
    "chromium-headless-shell": "chromium-headless-shell",
    "iverilog": "iverilog",
    "ibv_rc_pingpong": "ibverbs-utils",
    "rping": "rdmacm-utils",
    "ib_write_bw": "perftest",
    "qperf": "qperf",
    "/usr/share/doc/rdma-core/tests": "python3-pyverbs",
    "ucx_perftest": "ucx-utils",
    "fi_pingpong": "libfabric-bin",
    "ibstat": "infiniband-diags",
    "mpicc.mpich": "mpich libmpich-dev",
    "mpicc.openmpi": "openmpi-bin libopenmpi-dev",
    "mmdebstrap": "mmdebstrap",
    "qemu-aarch64-static": "qemu-user-static",
    "ip": "iproute2",
    "unzip": "unzip",
    "dpkg-source": "dpkg-dev",
    "make": "make",
    "/usr/share/doc/python3-netifaces": "python3-netifaces",
    "podman": "podman netavark aardvark-dns",
    "buildah": "buildah",
    "runc": "runc",
    "iptables": "iptables",
    "slirp4netns": "slirp4netns",
    "newuidmap": "uidmap",
    "catatonit": "catatonit",
}
"""Programs or files that steps want, and Debian's packages that have them."""

SUITE = ("cc", "tshark", "valgrind", "/usr/include/infiniband/verbs.h", "/usr/include/rdma/rsocket.h")
BROWSER = "chromium-headless-shell"
RDMA = ("cc", "ibv_rc_pingpong", "ib_write_bw", "/usr/share/doc/rdma-core/tests")
OTHER_RDMA = ("rping", "ucx_perftest", "fi_pingpong", "ibstat", "mpicc.mpich", "mpicc.openmpi")

VALKEY = ("/usr/include/rdma/rsocket.h", "/usr/share/doc/python3-netifaces", "dpkg-source", "make")
"""Tools for its job of docs/ci/recipes.yml."""

PACKAGING = ("pyproject.toml", "setup.py", "MANIFEST.in", "dev", "src/*.pyx", "src/*.pxi")
"""Files that decide whether rnic builds and installs elsewhere."""
GATEWARE = (
    *("src/rnic/gateware/*", "src/rnic/context/*", "src/rnic/paxi/*", "src/rnic/rings/*", "src/rnic/trace/counters.py"),
    *(f"src/rnic/mem/{name}.py" for name in ("dma", "mpt", "table")),
    *(
        f"src/rnic/spec/{name}.py"
        for name in (
            *("access", "axi", "drops", "engine_*", "errors", "events", "layout", "limits", "opcodes", "psn"),
            *("registers", "source", "states", "status", "syndromes"),
        )
    ),
    *(
        f"src/rnic/wire/{name}.py"
        for name in (
            *("atomiceth", "bth", "bursts", "crc", "engine_header", "ethernet", "flow", "ip", "opcode", "packet"),
        )
    ),
    *(f"src/rnic/device/{name}.py" for name in ("config", "nic", "queue_pair")),
    "src/rnic/transport/responder*.py",
    *("src/rnic/testing/cocotb/*", "tests/gateware/*", "tests/cocotb/*"),
)
"""The gateware, what it imports, and its tests."""
OF_ONE_PROCESSOR = (
    "src/rnic/engine/bypass/bypass.c",
    "src/rnic/engine/io/clock.c",
    "src/rnic/engine/io/lookout.c",
    "src/rnic/engine/queue_pair/crc32.c",
)
"""C that is another on another kind of processor."""

ROOT_TESTS = (
    "tests/abi/test_bad_input.py tests/docs/test_containers.py tests/unit/link tests/verbs/test_link_state.py"
    " tests/verbs/test_nic_process.py tests/verbs/test_service.py"
)
"""Tests that skip if an ordinary user runs the suite."""
PLAIN_TESTS = "tests/scripts tests/property tests/fuzz tests/unit/link tests/unit/mem"
"""Tests that call the compiled twins."""
ONE = "-q -n 0 -o faulthandler_timeout=0"
"""Options of pytest for tests that take minutes each."""
PROGRAMS = 'dev programs --captures "$WORK/captures"'
WHEELS = "dev_pip mooncake-transfer-engine-non-cuda && dev_pip --no-deps nixl nixl-cu12 || true"
"""Wheels of others for which there is no extra; rows without theirs say so."""

PRELUDE = """
set -euo pipefail
dev() { "$PYTHON" "$ROOT/dev" "$@"; }
dev_pip() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }
as_root() { [ "$(id -u)" = 0 ] || { echo "LEFT OUT: this is not root"; return 77; }; "$@"; }
# 77 if a part of it was skipped or left out
whole() { "$@" 2>&1 | tee "$WORK/$STEP.said"; ! grep -qE '^LEFT OUT|[0-9] skipped' "$WORK/$STEP.said" || return 77; }
"""


def tests_of_mutants() -> list[str]:
    """Return patterns of the tests that must fail for one of the chosen mutants."""
    rows = tomllib.loads((ROOT / "bench" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    named = sorted({test.partition("::")[0] for row in rows for test in row["tests"]})
    return [f"{name}/*" if (ROOT / name).is_dir() else name for name in named]


@dataclass(frozen=True)
class Step:
    """One part of the check."""

    name: str
    command: str
    """A line of bash, run in the tree, with the functions of ``PRELUDE``."""
    minutes: int = 15
    """Limit of its job in CI; 0: there it has no job, or one of another kind."""
    extras: str = ""
    """Extras of rnic that it wants in ``.venv``."""
    tools: tuple[str, ...] = ()
    """Keys of ``PACKAGES``."""
    inputs: tuple[str, ...] = ()
    """Patterns of the files that it depends on; ``names:`` in front: the names alone."""
    beside: bool = False
    """It measures no time: it runs beside the others, in what time they leave."""
    only_all: bool = False
    """It takes long and runs with ``--all`` alone."""


STEPS = (
    Step("demo", '(cd "$WORK" && dev demo && test -s demo.png)'),
    Step("test", '.ci/as-user "$WORK/copy" ./dev test', minutes=30, extras="test", tools=(*SUITE, BROWSER)),
    Step("root", f"as_root dev test -q -n 2 {ROOT_TESTS}", minutes=0, extras="test", tools=SUITE),
    Step("programs", f"{WHEELS}; {PROGRAMS} --short", minutes=30, extras="programs", tools=(*RDMA, *OTHER_RDMA)),
    Step("bypass", f"{PROGRAMS} --short --bypass", minutes=30, extras="programs", tools=RDMA),
    Step("interop", "dev interop", minutes=30, extras="programs"),
    Step("gateware", "dev gateware --quick", extras="gateware-test", beside=True),
    Step("docs", "dev docs", extras="docs", tools=(BROWSER,), beside=True),
    Step("lint", "dev lint", extras="lint", beside=True),
    Step("plain", f"RNIC_PLAIN=1 dev test -q -n 2 {PLAIN_TESTS}", extras="test", beside=True),
    Step("howtos", f"dev test {ONE} tests/docs/test_examples.py -k howto", extras="test", tools=RDMA, beside=True),
    Step(
        "gateware-short",
        "dev gateware --short",
        minutes=30,
        extras="gateware-test",
        tools=("iverilog",),
        inputs=GATEWARE,
        beside=True,
    ),
    Step(
        "wheels",
        "dev wheels",
        extras="wheels",
        inputs=(*PACKAGING, ".ci/try_wheel.py", "names:src/*"),
        beside=True,
    ),
    Step(
        "distributions",
        '.ci/distributions "$WORK/distributions"',
        minutes=0,
        extras="wheels",
        tools=("mmdebstrap", "ip"),
        only_all=True,
    ),
    Step(
        "mutants",
        "whole dev mutate --chosen",
        minutes=30,
        extras="test",
        tools=(*SUITE, *RDMA),
        inputs=("bench/mutants.toml", "bench/mutate.py", "bench/chosen_mutants.py", *tests_of_mutants()),
        beside=True,
    ),
    Step(
        "pythons",
        "dev pythons",
        minutes=0,
        extras="test-core,wheels",
        inputs=PACKAGING,
        beside=True,
    ),
    Step(
        "aarch64",
        '.ci/aarch64 "$WORK/aarch64" -q -n 2 tests/scripts/test_re*.py',  # all of tests/scripts takes minutes there
        minutes=0,
        extras="test-core",
        tools=("mmdebstrap", "qemu-aarch64-static", "ip", "unzip"),
        inputs=(*PACKAGING, ".ci/aarch64", *OF_ONE_PROCESSOR),
        beside=True,
    ),
    Step(
        "newest-python",
        '.ci/newest-python "$WORK/newest" -q -n 2 tests/scripts',
        minutes=0,
        extras="test-core",
        tools=("mmdebstrap",),
        inputs=(*PACKAGING, ".ci/newest-python", ".ci/try_wheel.py"),
        beside=True,
    ),
    Step(
        "ci-example",
        f"whole dev test {ONE} --full tests/abi/test_ci_example.py",
        extras="test",
        tools=RDMA,
        inputs=(*PACKAGING, "docs/ci/*", "tests/abi/test_ci_example.py"),
        beside=True,
    ),
    Step(
        "ray",
        f"whole dev test {ONE} tests/unit/sim/test_sweep.py",
        extras="ray,test",
        inputs=("src/rnic/sim/sweep*.py", "src/rnic/cli/sim_sweep.py", "tests/unit/sim/test_sweep.py"),
        beside=True,
    ),
    Step(
        "containers",
        f"whole dev test {ONE} --full tests/docs/test_containers.py",
        minutes=0,
        extras="test",
        tools=("mmdebstrap", "podman", "buildah", "runc", "iptables", "slirp4netns", "newuidmap", "catatonit"),
        inputs=(*PACKAGING, "docs/howto.md", "src/rnic/cli/cdi*.py", "tests/docs/test_containers.py"),
        beside=True,
    ),
    Step(
        "programs-long",
        f"{WHEELS}; {PROGRAMS} && {PROGRAMS} --bypass --shm",
        minutes=0,
        extras="programs",
        tools=(*RDMA, *OTHER_RDMA, "qperf", *VALKEY),
        only_all=True,
    ),
    Step("interop-long", "dev interop --all", minutes=0, extras="programs", only_all=True),
    Step("test-full", "dev test --full -n 2 -o faulthandler_timeout=0", minutes=0, extras="test", only_all=True),
    Step("coverage", "dev coverage", minutes=0, extras="test", only_all=True),
    Step("gateware-full", "dev gateware", minutes=0, extras="gateware-test", only_all=True),
)


def dev_script() -> Any:
    """Import ``./dev`` as a module."""
    loader = importlib.machinery.SourceFileLoader("dev_script", str(ROOT / "dev"))
    spec = importlib.util.spec_from_loader("dev_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


# ---------------------------------------------------------------- the record


def tree_files() -> list[str]:
    """Return the files of the tree known to Git, with new ones; empty outside a checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return sorted(name for name in set(done.stdout.splitlines()) if (ROOT / name).is_file())


def compiler() -> str:
    """Return the C compiler with its version; empty without one."""
    found = shutil.which(os.environ.get("CC", "cc"))
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout if found else ""
    return said.partition("\n")[0]


def canonical(requirement: str) -> str:
    """Return the name of the distribution that a requirement asks for, as indexes compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]).lower()


@functools.cache
def resolved() -> dict[str, str]:
    """Return versions by name: of packages in ``.venv``, and of those that pip would add for extras of steps.

    Raises:
        ValueError: pip cannot say.
    """
    dev = dev_script()
    dev.environment()
    wanted = dev.requirements_of({extra for step in STEPS if step.inputs for extra in step.extras.split(",")})

    def ask(*words: str) -> Any:
        done = subprocess.run([dev.PYTHON, "-m", "pip", *words], capture_output=True, text=True, check=False)
        try:
            return json.loads(done.stdout)
        except ValueError:
            raise ValueError((done.stderr.strip().splitlines() or ["pip said nothing"])[-1]) from None

    found = {canonical(each["name"]): each["version"] for each in ask("list", "--format", "json")}
    if missing := [each for each in wanted if canonical(each) not in found]:
        report = ask("install", "--quiet", "--dry-run", "--no-deps", "--report", "-", *missing)
        found |= {canonical(each["metadata"]["name"]): each["metadata"]["version"] for each in report["install"]}
    return found


def versions_of(step: Step) -> list[str]:
    """Name and version of what a step's extras ask for."""
    names = {canonical(each) for each in dev_script().requirements_of(set(step.extras.split(",")))}
    return [f"{name} {resolved().get(name)}" for name in sorted(names)]


def fingerprint(step: Step, files: list[str], versions: list[str]) -> str:
    """Return a hash of all that a step depends on."""
    python = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    facts = [python, compiler(), step.command, *versions]
    digest = hashlib.sha256("\n".join(facts).encode())
    for pattern in step.inputs:
        for name in fnmatch.filter(files, pattern.removeprefix("names:")):
            digest.update(f"\n{name}\n".encode())
            if not pattern.startswith("names:"):
                digest.update(hashlib.sha256((ROOT / name).read_bytes()).digest())
    return digest.hexdigest()[:16]


def read_record() -> dict[str, dict[str, str]]:
    """Return by step ``inputs``, the hash with which it last passed whole, and ``passed``, the date."""
    try:
        record = json.loads(RECORD.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def note_passed(name: str, inputs: str, today: datetime.date) -> None:
    """Write down that a step has passed whole."""
    record = {**read_record(), name: {"inputs": inputs, "passed": today.isoformat()}}
    new = RECORD.with_suffix(".new")
    new.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    new.replace(RECORD)


def skip_reason(entry: dict[str, str] | None, inputs: str, today: datetime.date) -> str:
    """Return why a step need not run; empty if it has to."""
    if not entry or entry.get("inputs") != inputs:
        return ""
    passed = datetime.date.fromisoformat(entry["passed"])
    if not 0 <= (today - passed).days <= MAX_AGE_DAYS:
        return ""
    return f"passed {passed}, its inputs are the same"


# ---------------------------------------------------------------- running


class Check:
    """One run of chosen steps."""

    def __init__(self, work: Path, forced: bool) -> None:
        self.forced = forced
        self._work = work
        self._start = time.monotonic()
        self._output = threading.Lock()
        self._inputs: dict[str, str] = {}
        self._failures: dict[str, list[str]] = {}
        self.rows: dict[str, tuple[str, float, str]] = {}
        """By step: result, seconds, remark."""

    def say(self, text: str) -> None:
        """Print a heading with the time since the beginning."""
        print(f"\n=== {text} ({time.monotonic() - self._start:.0f} s)", flush=True)

    def run(self, steps: list[Step]) -> int:
        """Run them; 1 if one failed."""
        demo = [step for step in steps if step.name == "demo"]
        self.prepare(demo)  # and nothing else: it shows what a user sees on a machine without anything installed
        for step in demo:
            self.run_step(step)
            if self.rows[step.name][0] == "failed":
                print("\n=== the other steps would fail in the same way, and do not run", flush=True)
                return self.table(steps)
        others = [step for step in steps if step not in demo and self.wanted(step)]
        self.prepare(others)
        with ThreadPoolExecutor(LANES, initializer=yield_to_others) as pool:
            beside = [pool.submit(self.run_step, step) for step in others if step.beside]
            for step in others:
                if not step.beside:
                    self.run_step(step)
            for each in beside:
                each.result()
        return self.table(steps)

    def wanted(self, step: Step) -> bool:
        """Return whether a step has to run; its inputs are looked up on the way."""
        if not step.inputs:
            return True
        files = tree_files()
        if files:
            try:
                self._inputs[step.name] = fingerprint(step, files, versions_of(step))
            except ValueError as error:
                print(f"{step.name}: runs, since what it depends on is unknown: {error}", flush=True)
        reason = skip_reason(
            read_record().get(step.name), self._inputs.get(step.name, "unknown"), datetime.date.today()
        )
        if reason and not self.forced:
            self.rows[step.name] = ("skipped", 0.0, reason)
            return False
        return True

    def prepare(self, steps: list[Step]) -> None:
        """Install what steps want: Debian's packages where this is root, extras into ``.venv``."""
        missing = [tool for tool in dict.fromkeys(tool for step in steps for tool in step.tools) if not present(tool)]
        packages = [PACKAGES[tool] for tool in missing]
        if missing and not self.apt_install(packages):
            for tool in missing:
                if not present(tool):
                    print(f"LEFT OUT: what wants {tool}: apt-get install {PACKAGES[tool]}", flush=True)
        extras = sorted({extra for step in steps for extra in step.extras.split(",") if extra})
        if extras and subprocess.run([sys.executable, ROOT / "dev", "setup", *extras], check=False).returncode:
            print(f"LEFT OUT: {', '.join(extras)} together: each step tries what it wants by itself", flush=True)

    def apt_install(self, packages: list[str]) -> bool:
        """Install all, or each that there is; return whether all are there now."""
        if os.geteuid() or not shutil.which("apt-get"):
            return False
        self.say(f"apt-get install {' '.join(packages)}")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]

        def quietly(*command: str) -> bool:
            return not subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False).returncode

        quietly("apt-get", "update", "-qq")
        if quietly(*install, *(word for each in packages for word in each.split())):
            return True
        return not [each for each in packages if not quietly(*install, *each.split())]

    def run_step(self, step: Step) -> None:
        """Run one, print what it says (of steps beside others when it is done), and write down how it ended."""
        began = time.monotonic()
        if not step.beside:
            self.say(step.name)
        env = {**os.environ, "PYTHON": sys.executable, "ROOT": str(ROOT), "WORK": str(self._work), "STEP": step.name}
        if step.beside:  # it gets a core when no other step wants one
            env["PYTEST_TIMEOUT"] = str(BESIDE_TIMEOUT_S)
        command = ["bash", "-c", PRELUDE + step.command]
        lines: list[str] = []
        step_process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        reader = threading.Thread(target=copy_lines, args=(step_process.stdout, lines, not step.beside), daemon=True)
        reader.start()
        status = step_process.wait()
        reader.join(OUTPUT_SECONDS)
        if step.beside:
            with self._output:
                self.say(f"{step.name}, in {time.monotonic() - began:.0f} s")
                print("".join(lines), end="", flush=True)
        result = {0: "passed", LEFT_OUT: "left out"}.get(status, "failed")
        remark = {"left out": "the reason is above", "failed": f"status {status}"}.get(result, "")
        self.rows[step.name] = (result, time.monotonic() - began, remark)
        if result == "failed":
            self._failures[step.name] = telling(lines)
        if result == "passed" and step.name in self._inputs:
            with self._output:
                note_passed(step.name, self._inputs[step.name], datetime.date.today())

    def table(self, steps: list[Step]) -> int:
        """Print how each step ended; 1 if one failed."""
        self.say("steps")
        print(f"{'step':14} {'result':9} {'s':>5}")
        for step in steps:
            result, seconds, remark = self.rows.get(step.name, ("not run", 0.0, ""))
            print(f"{step.name:14} {result:9} {seconds:5.0f}  {remark}".rstrip())
        print(f"{'all':24} {time.monotonic() - self._start:5.0f}", flush=True)
        failed = [step.name for step in steps if self.rows.get(step.name, ("",))[0] == "failed"]
        for name in failed:
            print(f"--- {name} failed:\n{''.join(self._failures[name])}", end="")
        print(f"check: {'failed: ' + ', '.join(failed) if failed else 'passed'}", flush=True)
        return 1 if failed else 0


def copy_lines(source: IO[str], lines: list[str], show: bool) -> None:
    """Append each line of a step's output to ``lines``; print it, too, if ``show``."""
    with source:
        for line in source:
            lines.append(line)
            if show:
                print(line, end="", flush=True)


def telling(lines: list[str]) -> list[str]:
    """Return what a failed step said of its failures, or else its last lines: the end alone shows why."""
    found = [line for line in lines if re.search(r"\bFAILED\b|\b[Ff]ail(ed)?:|\bsurvived\b|Error\b", line)]
    return found[-FAILURE_LINES:] or lines[-FAILURE_LINES:]


def yield_to_others() -> None:
    """Let this thread and its programs have only spare time: tests that measure are not disturbed."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def present(tool: str) -> bool:
    """Return whether a program or file of ``PACKAGES`` is on this machine."""
    if tool == BROWSER and shutil.which("chromium"):
        return True
    return Path(tool).exists() if tool.startswith("/") else shutil.which(tool, path=search_path()) is not None


def search_path() -> str:
    """Return the folders of programs, those for root alone too."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def matrix() -> list[dict[str, object]]:
    """Return the steps that have a job of the workflow."""
    packages = {step.name: " ".join(PACKAGES[tool] for tool in step.tools) for step in STEPS}
    return [
        {"step": step.name, "minutes": step.minutes, "packages": packages[step.name]} for step in STEPS if step.minutes
    ]


def main(argv: list[str]) -> int:
    """Exit status: 0 passed, 1 a step failed, 2 wrong arguments."""
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(prog="./dev check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"these alone, always: {', '.join(names)}")
    parser.add_argument("--all", action="store_true", help="every step, always")
    parser.add_argument("--list-json", action="store_true", help="the steps with a job in CI, and stop")
    options = parser.parse_args(argv)
    if options.list_json:
        print(json.dumps(matrix()))
        return 0
    if unknown := [name for name in options.steps if name not in names]:
        parser.error(f"{unknown[0]}: no such step; there are {', '.join(names)}")
    chosen = [
        step for step in STEPS if (step.name in options.steps if options.steps else options.all or not step.only_all)
    ]
    with tempfile.TemporaryDirectory(prefix="rnic-check-") as work:
        return Check(Path(work), forced=bool(options.all or options.steps)).run(chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
