"""The libraries use nothing that glibc 2.28 lacks: a release builds them there, for programs on any later one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

OLDEST = 28
MOVED = re.compile(r"(__)?pthread_\w+|dl(addr|sym|vsym|open|close|error)|[fl]?stat(64)?|(sem|shm|timer)_\w+")
"""Functions with a newer version that older ones have too: those of libpthread, libdl and librt, which are part of libc
since 2.34, and those that were inline before 2.33."""
NEEDED = re.compile(r"\bUND (?P<name>\w+)@GLIBC_2\.(?P<minor>\d+)")


def too_new(library: Path) -> set[str]:
    done = subprocess.run(["readelf", "--dyn-syms", "--wide", library], capture_output=True, text=True, check=True)
    found = {(match["name"], int(match["minor"])) for match in NEEDED.finditer(done.stdout)}
    assert found
    return {f"{name} (2.{minor})" for name, minor in found if minor > OLDEST and not MOVED.fullmatch(name)}


@pytest.mark.parametrize("name", ["libibverbs.so.1", "librdmacm.so.1", "librnicpaths.so", "librspreload.so"])
def test_each_library(libraries: Path, name: str) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed: apt install binutils")
    assert too_new(libraries / name) == set()
