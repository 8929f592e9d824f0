"""Libraries built once for the tests of this directory, and NIC processes in directories of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.abi.build import FLAGS, SANITIZERS, SOURCES, STRICT, build, find_compiler
from rnic.abi.header import c_header

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of freshly built libraries."""
    if sys.platform != "linux" or find_compiler() is None:
        pytest.skip("needs Linux and a C compiler")
    out = tmp_path_factory.mktemp("libraries")
    build(out, strict=True)
    return out


@pytest.fixture(scope="session")
def byte_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of Python's byte code: most of a start is compiling, where nobody keeps that."""
    return tmp_path_factory.mktemp("byte_code")


@pytest.fixture
def env(libraries: Path, byte_code: Path, tmp_path: Path) -> dict[str, str]:
    """Environment of programs on a NIC process of this test alone."""
    runtime = tmp_path / "nic"
    runtime.mkdir(mode=0o700)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ours = {"RNIC_RUNTIME_DIR": str(runtime), "RNIC_LIBRARIES": str(libraries)}
    return {"PYTHONPYCACHEPREFIX": str(byte_code), **kept, **ours}


def _compile(out: Path, name: str, flags: list[str]) -> Path:
    """A C program of this directory with the library's sources inside."""
    compiler = find_compiler()
    assert compiler is not None
    (out / "rnic_hw.h").write_text(c_header())
    sources = [str(path) for path in SOURCES.glob("*.c") if not path.name.startswith("rdmacm")]
    includes = [f"-I{out}", f"-I{SOURCES}"]
    command = [compiler, *FLAGS, *STRICT, *flags, *includes, str(HERE / f"{name}.c"), *sources, "-o", str(out / name)]
    subprocess.run(command, check=True)
    return out / name


@pytest.fixture(scope="session")
def sanitized(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program under AddressSanitizer and UBSan."""
    return _compile(tmp_path_factory.mktemp("sanitized"), "loop", [*SANITIZERS, "-O1"])


@pytest.fixture(scope="session")
def plain(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program without optimizations, as valgrind likes it."""
    return _compile(tmp_path_factory.mktemp("plain"), "loop", ["-O0"])


@pytest.fixture(scope="session")
def many(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program with thousands of queue pairs."""
    return _compile(tmp_path_factory.mktemp("many"), "many", ["-O1"])
