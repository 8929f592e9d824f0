"""Run the commands of the CI jobs of ``docs/ci/recipes.yml`` on this machine.

Each job has its own network (a user namespace, in which ``sudo`` and ``apt-get`` do nothing), rnic and Python from
this environment, and a directory with files in place of a user's tests. Packages that a job would install must be
installed already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import ucx_tests
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FILE = ROOT / "docs" / "ci" / "recipes.yml"
NEEDS = {
    "perftest": ("ib_write_bw",),
    "mpi": ("mpicc.openmpi", "mpirun.openmpi"),
    "ucx": ("ucx_perftest",),
    "libfabric": ("fi_pingpong",),
    "mooncake": (),
    "nixl": (),
    "nvmeof": (),
    "rsockets": (),
    "valkey": ("make", "cc", "apt-get", "dpkg-source"),
    "rust-ibverbs": ("cargo", "clang", "cmake", "git"),
    "mooncake-store": ("git",),
}
"""Programs by job that ``apt-get`` would install."""
MODULES = {
    "mooncake": ("mooncake",),
    "nixl": ("nixl",),
    "nvmeof": ("nvmeof",),
    "mooncake-store": ("mooncake",),
}
"""Python modules that a job would install."""
SOURCES = {"valkey": "testing"}
"""Jobs in another project's own tree: Debian's source package of that name, and the suite that has it."""
CHECKOUTS = {
    "rust-ibverbs": ("--recurse-submodules", "--shallow-submodules", "https://github.com/jonhoo/rust-ibverbs"),
    "mooncake-store": ("https://github.com/kvcache-ai/Mooncake",),
}
"""Jobs in another project's own tree: words of ``git clone``, the address last."""
NETIFACES = Path("/usr/share/doc/python3-netifaces")
MACHINE = frozenset({"nvmeof"})
"""Jobs without a namespace of their own: they boot a guest as root."""
_TESTS = ("mpi_check.c", "pypi_mooncake.py", "pypi_nixl.py")
_SHIMS = {
    "sudo": 'exec "$@"',
    "apt-get": "exit 0",
    "rnic": f'exec "{sys.executable}" -m rnic.cli "$@"',
    "python3": f'case "$*" in "-m pip install"*) exit 0;; esac\nexec "{sys.executable}" "$@"',
}
_SHELL = "bash --noprofile --norc -eo pipefail"


def jobs() -> dict[str, list[tuple[str, dict[str, str]]]]:
    """Return the commands of each job in order, with their environment, by name."""
    found = {}
    for name, job in yaml.safe_load(FILE.read_text(encoding="utf-8"))["jobs"].items():
        steps = [step for step in job["steps"] if "run" in step]
        found[name] = [(step["run"], job.get("env", {}) | step.get("env", {})) for step in steps]
    return found


def clone(words: tuple[str, ...], where: Path) -> Path:
    """Clone another project, and fetch the crates that it needs; return its folder.

    Raises:
        RuntimeError: one line: it could not be fetched.
    """
    fetch(["git", "clone", "--quiet", "--depth=1", *words, str(where)], where.parent)
    if (where / "Cargo.toml").exists():
        fetch(["cargo", "fetch", "--quiet"], where)
    return where


def fetch(command: list[str], place: Path) -> None:
    """Run a command that wants a network.

    Raises:
        RuntimeError: it failed: its last line.
    """
    done = subprocess.run(
        command, cwd=place, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"{command[0]} ended with {done.returncode}"])[-1])


def prepare(name: str, place: Path) -> list[str]:
    """Return the command that runs a job in a directory that was made for it, and is made ready here.

    Raises:
        RuntimeError: one line: the source of another project could not be fetched.
    """
    shims = place / "shims"
    shims.mkdir()
    for program, words in _SHIMS.items():
        (shims / program).write_text(f"#!/bin/sh\n{words}\n")
        (shims / program).chmod(0o755)
    for file in _TESTS:
        shutil.copy(HERE / file, place)
    tree = place
    if name in SOURCES:
        (fetched := place / "source").mkdir()
        tree = ucx_tests.fetch_source(name, fetched, SOURCES[name])
    if name in CHECKOUTS:
        tree = clone(CHECKOUTS[name], place / "source")
    (place / "rnic").symlink_to(ROOT)
    programs = Path(sys.executable).parent  # of Python's packages
    lines = ["set -e", f'export PATH="{shims}:$PATH:{programs}"', f'cd "{tree}"']
    if name not in MACHINE:
        lines.append("ip link set lo up")
    for number, (words, env) in enumerate(jobs()[name]):
        script = place / f"step-{number}"
        script.write_text(words)
        given = " ".join(f"{key}='{value}'" for key, value in env.items())
        lines.append(f"env {given} {_SHELL} {script}")
    script = place / "job"
    script.write_text("\n".join([*lines, ""]))
    return ["sh", str(script)] if name in MACHINE else ["unshare", "-rn", "sh", str(script)]


def missing(name: str) -> str:
    """Return why this machine cannot run a job; empty if it can."""
    for program in NEEDS[name]:
        if shutil.which(program) is None:
            return f"{program} is not installed: the job has the apt-get command"
    if name == "valkey" and not NETIFACES.exists():
        return "python3-netifaces is not installed: the job has the apt-get command"
    for module in MODULES.get(name, ()):
        if not any(Path(place, module).exists() for place in sys.path):
            return f"Python's {module} is not installed: the job has the pip command"
    return "it boots a guest, which requires root" if name in MACHINE and os.geteuid() else ""
