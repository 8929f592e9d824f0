"""A wheel that is built twice from the same sources, in folders of other names, is the same byte for byte."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rnic.abi.build import find_compiler

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def built_wheel(place: Path, seconds: int) -> Path:
    """Build in a copy of the tree whose files are as old as the copy."""
    place.mkdir(parents=True)
    for name in NAMES:
        shutil.copyfile(ROOT / name, place / name)
    left_out = shutil.ignore_patterns("*.so", "*.so.1", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", place / "src", ignore=left_out, copy_function=shutil.copyfile)
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "RNIC_REQUIRE_COMPILED": "1"}
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "-w",
        "dist",
        ".",
    ]
    done = subprocess.run(
        command, cwd=place, env=env, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return next((place / "dist").glob("*.whl"))


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_a_wheel_that_is_built_twice(tmp_path: Path) -> None:
    if find_compiler() is None:
        pytest.skip("there is no C compiler")
    first, second = (built_wheel(tmp_path / name, 1100) for name in ("here", "another/place"))
    contents = []
    for wheel in (first, second):
        with zipfile.ZipFile(wheel) as archive:
            contents.append({each: hashlib.sha256(archive.read(each)).hexdigest() for each in archive.namelist()})
    names = contents[0].keys() | contents[1].keys()
    differing = sorted(name for name in names if contents[0].get(name) != contents[1].get(name))
    assert differing == []
    assert first.read_bytes() == second.read_bytes()
