"""The engine's C parts that stand alone, as a library of their own."""

from __future__ import annotations

import ctypes
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rnic.engine
from rnic.abi.build import find_compiler

SOURCES = Path(rnic.engine.__file__).parent
PARTS = ("queue_pair/crc32.c", "memory/fault_guard.c", "memory/guarded.c", "memory/own_process.c", "memory/proc_mem.c")
PROGRAM_FLAGS = ["-std=gnu11", "-g", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror"]
FLAGS = ["-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]


def build(out: Path, *names: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """A library of some of the sources."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) here")
    command = [compiler, *FLAGS, f"-I{SOURCES}", *flags, "-o", str(out), *(str(SOURCES / name) for name in names)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(out))


@pytest.fixture(scope="session")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a program of a C file of these tests, with some of the sources; flags begin with ``-``."""
    if sys.platform != "linux":
        pytest.skip("what these programs look at is Linux's")
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler (cc) here")

    def make(name: str, *with_what: str) -> Path:
        program = tmp_path_factory.mktemp("program") / name.removesuffix(".c")
        flags = [word for word in with_what if word.startswith("-")]
        sources = [str(SOURCES / word) for word in with_what if not word.startswith("-")]
        command = [*shlex.split(compiler), *PROGRAM_FLAGS, *flags, f"-I{SOURCES}", str(Path(__file__).with_name(name))]
        subprocess.run([*command, *sources, "-o", str(program)], check=True)
        return program

    return make


@pytest.fixture(scope="session")
def builds() -> Callable[..., ctypes.CDLL]:
    """:func:`build`, on Linux."""
    if sys.platform != "linux":
        pytest.skip("the parts that do I/O are Linux's")
    return build


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """CRC and ways to memory."""
    if sys.platform != "linux":
        pytest.skip("the ways to memory are Linux's")
    library = build(tmp_path_factory.mktemp("parts") / "parts.so", *PARTS)
    library.engine_crc32.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64)
    library.engine_crc32.restype = ctypes.c_uint32
    library.engine_crc32_copy.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
    library.engine_crc32_copy.restype = ctypes.c_uint32
    return library
