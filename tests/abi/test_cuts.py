"""How runs of packets are cut on their way into a socket, by a C program on the pump itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rnic.abi.build import ENGINE, find_compiler
from rnic.testing import own_network


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing cuts what is sent")
def test_runs_and_single_packets_arrive_as_they_were_cut(tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler is here")
    program = tmp_path / "cuts"
    sources = [Path(__file__).with_name("cuts.c"), ENGINE / "io" / "udp.c"]
    command = [
        compiler,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-g",
        "-O1",
        f"-I{ENGINE}",
        *map(str, sources),
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [str(program), f"{own_network()}.83"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "cuts\n", "")
