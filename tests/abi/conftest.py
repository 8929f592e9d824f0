"""Libraries built once for the tests of this directory, and NIC processes in directories of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rnic.abi.build import build, find_compiler


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of freshly built libraries."""
    if sys.platform != "linux" or find_compiler() is None:
        pytest.skip("needs Linux and a C compiler")
    out = tmp_path_factory.mktemp("libraries")
    build(out, strict=True)
    return out


@pytest.fixture
def env(libraries: Path, tmp_path: Path) -> dict[str, str]:
    """Environment of programs on a NIC process of this test alone."""
    runtime = tmp_path / "nic"
    runtime.mkdir(mode=0o700)
    return {**os.environ, "RNIC_RUNTIME_DIR": str(runtime), "RNIC_LIBRARIES": str(libraries)}
