"""``rnic sim FILE --run COMMAND``: unmodified programs whose NICs hang on simulated switches."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rnic.cli.exec_fabric import RANKS
from rnic.cli.sim import sim

EXAMPLES = Path(__file__).parents[2] / "examples"
STAR = """\
sample_us = 1000
[topology]
kind = "star"
hosts = 2
mtu = 4096
gbps = 100
delay_ns = "50 ms"
[[workload]]
kind = "flow"
"""
LATENCY_US = 100_000
"""Of two links; what a packet of 86 bytes takes them is nothing to that."""
PAIR = """\
RNIC_HOST=0 rnic exec -- ib_send_lat -x 0 -F -u 20 -n 10 -p {port} > server.txt 2>&1 &
for attempt in $(seq 100); do
    RNIC_HOST=1 rnic exec -- ib_send_lat -x 0 -F -u 20 -n 10 -p {port} 127.0.0.1 > client.txt 2>&1 && break
    sleep 0.1
done
wait
"""


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def environment() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in RANKS}
    return {**env, "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}


def run(folder: Path, file: Path, *words: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rnic.cli", "sim", str(file), *words]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=limit_s, check=False
    )


@pytest.mark.slow
def test_perftest_measures_what_idle_links_take(tmp_path: Path) -> None:
    needs("ib_send_lat", "nice")
    (tmp_path / "star.toml").write_text(STAR)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "pair.sh").write_text(PAIR.format(port=port))
    done = run(tmp_path, tmp_path / "star.toml", "--slower", "1", "--json", "--run", "sh pair.sh", limit_s=120)
    said = (tmp_path / "client.txt").read_text()
    assert done.returncode == 0, done.stderr + said
    found = re.search(r"^ 2 +10 +([\d.]+)", said, re.MULTILINE)
    assert found is not None, said
    assert LATENCY_US <= float(found[1]) <= 1.1 * LATENCY_US
    figures = json.loads(done.stdout)
    ports = {row["port"]: row for row in figures["ports"]}
    assert ports["h1 > s0"]["packets"] == ports["s0 > h0"]["packets"] > 10
    assert figures["summary"]["dropped"] == 0
    assert figures["summary"]["late_p99_ns"] <= figures["summary"]["late_max_ns"]


@pytest.mark.full
def test_eight_ranks_reduce_over_a_leaf_spine_with_a_slow_link(tmp_path: Path) -> None:
    needs("mpirun.openmpi", "mpicc.openmpi", "nice")
    pytest.importorskip("matplotlib")
    subprocess.run(
        ["mpicc.openmpi", "-O1", str(EXAMPLES / "all_reduce.c"), "-o", "all_reduce"], cwd=tmp_path, check=True
    )
    settings = "env UCX_TLS=rc_v,self OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    ranks = "mpirun.openmpi --oversubscribe --bind-to none --mca pml ucx -n 8 rnic exec -- ./all_reduce"
    done = run(tmp_path, EXAMPLES / "mpi_leaf_spine.toml", "--run", f"{settings} {ranks}", limit_s=400)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all-reduce") == 5
    assert "wrong" not in done.stdout
    slow = next(line for line in done.stdout.splitlines() if line.startswith("leaf1 > h7"))
    assert done.stdout.index(slow) == done.stdout.index(" > ") - len("leaf1"), "the slow link's queue is the longest"
    assert re.search(r"cnps received +[1-9]", done.stdout)
    assert (tmp_path / "mpi_leaf_spine.png").read_bytes().startswith(b"\x89PNG")


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "star.toml"
    path.write_text(STAR)
    for words, said in (
        (["--slower", "2"], "give --run, too"),
        (["--run", "true", "--seeds", "2"], "leave out --sweep and --seeds"),
    ):
        result = CliRunner().invoke(sim, [str(path), *words])
        assert result.exit_code == 2
        assert said in result.output


@pytest.mark.slow
def test_the_commands_exit_status_is_that_of_the_run(tmp_path: Path) -> None:
    needs("nice")
    (tmp_path / "star.toml").write_text(STAR)
    done = run(tmp_path, tmp_path / "star.toml", "--run", "exit 7", limit_s=60)
    assert done.returncode == 7, done.stderr
    assert "times slower" in done.stderr
