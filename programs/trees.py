"""RDMA programs of another distribution: its own tree, made once by mmdebstrap and kept, run by its own loader.

The tree is a directory of the cache (``RNIC_TREES``, or ``rnic/trees`` in the user's cache). Its programs run as they
are, with rnic's libraries ahead of the tree's.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PACKAGES = (
    *("perftest", "ibverbs-utils", "rdmacm-utils", "ibverbs-providers", "infiniband-diags", "iproute2", "qperf"),
    *("ucx-utils", "libfabric-bin", "python3-pyverbs"),
)
KINDS = frozenset({"alone", "refused", "pair", "python-first", "cm", "namespace", "pyverbs"})
"""Kinds of rows whose programs can be another distribution's; the others build here, or are this Python's."""
_PLACES = ("usr/bin", "usr/sbin", "bin", "sbin")
_SECONDS = 1800.0


@dataclass(frozen=True)
class Tree:
    """An unpacked distribution."""

    suite: str
    root: Path

    def find(self, program: str) -> Path | None:
        """Return a program's path in the tree, without the links, which lead out of it."""
        for place in _PLACES:
            path = self.root / place / program
            if path.is_file():
                return path.resolve() if path.resolve().is_relative_to(self.root) else path
        return None

    def libraries(self) -> list[Path]:
        """Return the directories of its libraries."""
        triplet = f"{platform.machine()}-linux-gnu"
        return [self.root / "usr/lib" / triplet, self.root / "lib" / triplet, self.root / "usr/lib"]

    def command(self, words: tuple[str, ...], own: str) -> list[str]:
        """Return the command for a program of the tree; words that are no program of it come back as they are.

        Args:
            words: program and arguments.
            own: directory of rnic's libraries, which come first.
        """
        program = self.find(words[0].removeprefix("/usr/bin/"))
        loader = next((each for each in self.libraries() if (each / _LOADER).exists()), None)
        if program is None or loader is None:
            return list(words)
        path = ":".join([own, *map(str, self.libraries())])
        return [str(loader / _LOADER), "--library-path", path, str(program), *words[1:]]

    def describe(self) -> str:
        """Return the suite and the version of its rdma-core."""
        libraries = (each / "libibverbs.so.1" for each in self.libraries())
        found = next((each.resolve().name for each in libraries if each.exists()), "")
        version = found.removeprefix("libibverbs.so.").split(".")
        return f"{self.suite}, rdma-core {version[2]}" if len(version) > 2 else self.suite

    @property
    def tests(self) -> Path | None:
        """Directory of pyverbs' tests, as its package ships them."""
        shipped = (self.root / "usr/share/doc" / name / "tests" for name in ("rdma-core", "python3-pyverbs"))
        return next((each for each in shipped if each.is_dir()), None)


_LOADER = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}.get(platform.machine(), "")


def ready(suite: str) -> Tree:
    """Return the tree of a suite, made if it is not there.

    Raises:
        RuntimeError: one line: it cannot be made here.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rnic" / "trees"
    place = Path(os.environ.get("RNIC_TREES") or cache).resolve() / suite
    done = place.parent / f"{suite}.done"
    if done.exists():
        return Tree(suite, place)
    if not _LOADER:
        raise RuntimeError(f"the loader of {platform.machine()} is not known")
    if shutil.which("mmdebstrap") is None:
        raise RuntimeError("no mmdebstrap: apt-get install mmdebstrap")
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    options = ["--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    options += ["--aptopt=Acquire::Check-Valid-Until false"]  # for a mirror that stands still
    made = subprocess.run(
        ["mmdebstrap", *options, suite, place], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if made.returncode:
        last = next((line for line in reversed(made.stderr.splitlines()) if line.strip()), "no message")
        raise RuntimeError(f"mmdebstrap of {suite} exited with {made.returncode}: {last}")
    done.touch()
    return Tree(suite, place)
