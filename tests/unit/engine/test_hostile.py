"""The engine's C alone, under AddressSanitizer and UBSan, against hostile memory and packets, up to a socket's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rnic.engine import header

HERE = Path(__file__).parent
CC = shutil.which(os.environ.get("CC", "cc"))
WARN = ("-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror")
SANITIZE = (*WARN, f"-I{header.PATH.parent}", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SOURCES = sorted(path for path in header.PATH.parent.glob("*/*.c"))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make one of the programs here, with the engine, under sanitizers."""
    if CC is None:
        pytest.skip("no C compiler")
    place = tmp_path_factory.mktemp("sanitized")
    program = place / "probe"
    empty = b"#include <sanitizer/asan_interface.h>\nint main(void){return 0;}"
    probe = subprocess.run([CC, *SANITIZE, "-xc", "-", "-o", str(program)], input=empty, check=False)
    if probe.returncode or subprocess.run([str(program)], check=False).returncode:
        pytest.skip("the compiler has no sanitizers that run here")
    subprocess.run([CC, *SANITIZE, "-c", *map(str, SOURCES)], check=True, cwd=place)

    def make(name: str) -> Path:
        made = place / name.removesuffix(".c")
        subprocess.run([CC, *SANITIZE, str(HERE / name), *map(str, place.glob("*.o")), "-o", str(made)], check=True)
        return made

    return make


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_hostile_memory_and_packets_under_sanitizers(build: Callable[[str], Path]) -> None:
    program = build("hostile.c")
    for seed in (1, 2, 3):
        done = subprocess.run([str(program), str(seed), "30000"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        taken, made, answered, late, asked, placed, datagrams = map(int, done.stdout.split())
        # most rounds are refused, but many must get past every check for the others to mean anything
        enough = (taken > 2_000, made > 2_000, answered > 700, late > 500, asked > 200, placed > 120, datagrams > 130)
        assert enough == (True,) * 7, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform != "linux", reason="rounds on a socket are Linux's")
def test_a_hostile_network_before_a_whole_device_under_sanitizers(build: Callable[[str], Path]) -> None:
    program = build("hostile_device.c")
    for seed in (1, 2, 3):
        done = subprocess.run([str(program), str(seed), "20000"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        taken, made, left, took = map(int, done.stdout.split())
        assert (taken > 5_000, made > 3_000, left > 10_000, took > 600) == (True,) * 4, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform != "linux", reason="rings in shared memory are Linux's")
def test_garbage_in_the_peers_rings_under_sanitizers(build: Callable[[str], Path]) -> None:
    """The counters say no more than was moved, whatever the notes claim: the program is judged by them."""
    program = build("hostile_rings.c")
    for seed in (1, 2, 3):
        command = [str(program), str(seed), "20000"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        put, moved, refused, sent, ended = map(int, done.stdout.split())
        enough = (put > 30_000, moved > 4_000, refused > 10, sent > 1_000, ended > 50)
        assert enough == (True,) * 5, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform != "linux", reason="rounds are Linux's")
def test_packets_beyond_a_gap_are_executed_in_order_or_not_at_all(
    build: Callable[[str], Path],
) -> None:
    """Selective repeat: each byte in memory is one that a right packet of its PSN had, whatever else came."""
    program = build("hostile_reorder.c")
    for seed in (1, 2, 3):
        command = [str(program), str(seed), "30000"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        sent, executed, released = map(int, done.stdout.split())
        assert (sent >= 30_000, executed > 3_000, released > 2_000) == (True,) * 3, done.stdout
