"""Devices that look like an adapter's, as programs, ``/sys`` and iproute2 see them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.testing import own_network
from tests.abi.test_verbs_check import build

pytestmark = pytest.mark.slow
NET = own_network()
SOURCE = Path(__file__).with_name("looks.c")
FULL = ["--addr", f"{NET}.1", "--profile", "2x400g"]


def run(env: dict[str, str], *command: str, options: list[str] | None = None) -> str:
    started = [sys.executable, "-m", "rnic.cli", "exec", *(FULL if options is None else options), "--", *command]
    done = subprocess.run(started, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(SOURCE, libraries, tmp_path_factory.mktemp("looks"))


def test_a_program_sees_the_adapters_tables(program: Path, env: dict[str, str]) -> None:
    lines = run(env, str(program)).splitlines()
    assert lines[0] == "mlx5_0 mlx5_1"
    assert lines[1] == "gids 4 types 0 1 0 1 ex 1 2 1 2 speed 128 width 2"
    assert lines[2] == "rtr 22 22 22 0", "RoCE v1, link-local, RoCE v1, and the one to use"
    assert lines[3] == "ah 22 22 22 0"
    assert lines[4] == "written"


def test_what_sys_shows_leads_to_a_pci_function(env: dict[str, str]) -> None:
    script = "; ".join(
        (
            "readlink -f /sys/class/infiniband/mlx5_1/device",
            "cat /sys/class/infiniband/mlx5_1/device/numa_node",
            "cat /sys/bus/pci/devices/0000:24:00.0/class",
            "cat /sys/class/infiniband/mlx5_0/ports/1/rate",
            "cat /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/*",
            "ls /sys/bus/pci/devices /sys/devices | wc -l",
        )
    )
    lines = run(env, "sh", "-c", script).splitlines()
    assert lines[:4] == ["/sys/devices/pci0000:24/0000:24:00.0", "1", "0x020700", "400 Gb/sec (4X NDR)"]
    assert lines[4:8] == ["IB/RoCE v1", "RoCE v2"] * 2
    machine = sum(len(os.listdir(place)) for place in ("/sys/bus/pci/devices", "/sys/devices") if Path(place).exists())
    assert int(lines[8]) >= machine, "the machine's own are there as ever"


def test_iproute2_sees_devices_ports_and_resources(env: dict[str, str]) -> None:
    rdma = tool("rdma")
    devices, links, resources = (
        json.loads(run(env, rdma, "-j", *words)) for words in (("dev",), ("link",), ("resource",))
    )
    assert [(each["ifname"], each["node_type"]) for each in devices] == [("mlx5_0", "ca"), ("mlx5_1", "ca")]
    assert [(each["ifname"], each["port"], each["state"]) for each in links] == [
        ("mlx5_0", 1, "ACTIVE"),
        ("mlx5_1", 1, "ACTIVE"),
    ]
    assert [each["ifname"] for each in resources] == ["mlx5_0", "mlx5_1"]
    assert {"qp", "cq", "pd", "mr", "ctx"} <= set(resources[0])
    assert run(env, rdma, "link", "show", "mlx5_1/1").startswith("link mlx5_1/1 state ACTIVE physical_state LINK_UP")


def test_iproute2_counts_what_a_program_has(program: Path, env: dict[str, str]) -> None:
    rdma = tool("rdma")
    shown = run(env, str(program), rdma)
    assert "qp 1 cm_id 0 cq 1 pd 1 mr 1 ctx 1 srq 0" in shown
    assert "type RC state INIT" in shown


def test_a_name_and_a_row_of_addresses(env: dict[str, str]) -> None:
    options = ["--addr", f"{NET}.21", "--name", "bnxt_re0", "--count", "8", "--rate", "100"]
    script = "ls /sys/class/infiniband; cat /sys/class/infiniband/bnxt_re7/ports/1/gids/0"
    lines = run(env, "sh", "-c", script, options=options).split()
    assert lines[:8] == [f"bnxt_re{at}" for at in range(8)]
    assert lines[8].endswith(f"{21 + 7:02x}")


def test_programs_that_connect_by_librdmacm_take_the_right_gid(env: dict[str, str]) -> None:
    rping = tool("rping")
    script = f"{rping} -s -a {NET}.1 -C 5 & sleep 1; {rping} -c -a {NET}.1 -C 5 -V && wait && echo all came"
    assert run(env, "sh", "-c", script).endswith("all came\n")


def test_a_name_belongs_to_one_address(env: dict[str, str]) -> None:
    inner = [sys.executable, "-m", "rnic.cli", "exec", "--name", "mlx5_0", "--addr", f"{NET}.33", "--", "true"]
    outer = [sys.executable, "-m", "rnic.cli", "exec", "--name", "mlx5_0", "--addr", f"{NET}.32", "--", *inner]
    done = subprocess.run(outer, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert f"device mlx5_0 at {NET}.32 port 4791 has that name already: give another by --name" in done.stderr


def test_a_program_runs_on_a_core(env: dict[str, str]) -> None:
    """As by ``rnic serve``; a core or a parameter that there is not is refused in the words of the NIC process."""
    core = ["--addr", f"{NET}.34", "--profile", "univista"]
    code = f"import rnic; ctx = rnic.open('{NET}.34'); print(ctx.query_device().max_qp, bool(ctx.bypass))"
    program = [sys.executable, "-c", code]
    assert run(env, *program, options=[*core, "--parameter", "QP_NUM=256"]).split()[0] == "256"
    command = [sys.executable, "-m", "rnic.cli", "exec", *core, "--parameter", "SPEED=1", "--", "true"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "SPEED is not a parameter: use QP_NUM" in done.stderr
