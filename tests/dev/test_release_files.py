"""``.ci/release_files.py``: checksums that sha256sum takes, and an SBOM that names each file and requirement."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
METADATA = """Metadata-Version: 2.4
Name: rnic
Version: 1.2.3
License-Expression: Apache-2.0
Requires-Dist: click>=8.1
Requires-Dist: isal>=1.6; implementation_name == "cpython"
Requires-Dist: numpy>=1.24; extra == "numpy"
"""


def run(place: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / "release_files.py"), str(place)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "rnic-1.2.3-py3-none-any.whl", "w") as archive:
        archive.writestr("rnic-1.2.3.dist-info/METADATA", METADATA)
    (tmp_path / "rnic-1.2.3.tar.gz").write_bytes(b"sources")
    (tmp_path / "notes.txt").touch()
    return tmp_path


def test_what_is_written(dist: Path) -> None:
    assert run(dist).returncode == 0
    said = json.loads((dist / "rnic-1.2.3.cdx.json").read_text())
    component = said["metadata"]["component"]
    assert (component["purl"], component["licenses"][0]["license"]["id"]) == ("pkg:pypi/rnic@1.2.3", "Apache-2.0")
    assert {each["name"]: each["hashes"][0]["content"] for each in component["components"]} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dist.glob("rnic-1.2.3[-.][pt]*")
    }
    assert {each["name"]: each["scope"] for each in said["components"]} == {"click": "required", "isal": "optional"}
    if shutil.which("sha256sum"):
        assert subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist, check=False).returncode == 0
    assert len((dist / "SHA256SUMS").read_text().splitlines()) == 3


def test_made_again_it_is_the_same(dist: Path) -> None:
    run(dist)
    first = [(dist / name).read_bytes() for name in ("SHA256SUMS", "rnic-1.2.3.cdx.json")]
    run(dist)
    assert [(dist / name).read_bytes() for name in ("SHA256SUMS", "rnic-1.2.3.cdx.json")] == first


def test_without_a_wheel(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"release_files: {tmp_path} has no wheel: ./dev wheels makes some\n"
