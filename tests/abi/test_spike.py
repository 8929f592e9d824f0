"""A C program with nothing but the generated header drives a device of the NIC process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rnic
from rnic import enums as e
from rnic.abi.header import c_header
from rnic.mem.mpt import MPT_REGION, flags_from_access
from rnic.runtime.attach import connect
from rnic.spec import attach
from rnic.testing import own_network
from rnic.verbs import qp_states

CC = shutil.which("cc") or shutil.which("gcc")
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE


@pytest.mark.slow
@pytest.mark.skipif(CC is None, reason="no C compiler is here")
def test_a_c_program_writes_by_store_and_doorbell(tmp_path: Path) -> None:
    assert CC is not None
    tmp_path.chmod(0o700)
    (tmp_path / "rnic_hw.h").write_text(c_header())
    numbers = {
        "MPT_FLAGS": flags_from_access(RIGHTS) | MPT_REGION,
        "INIT_MASK": qp_states.INIT_MASK[e.IBV_QPT_RC],
        "RTR_MASK": qp_states.RTR_MASK[e.IBV_QPT_RC],
        "RTS_MASK": qp_states.RTS_MASK[e.IBV_QPT_RC],
    }
    defines = [f"-D{name}={value}u" for name, value in numbers.items()]
    source, program = Path(__file__).with_name("spike.c"), tmp_path / "spike"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}", *defines]
    subprocess.run([CC, *flags, str(source), "-o", str(program)], check=True)
    assert b"libpython" not in program.read_bytes()
    nic = subprocess.Popen(
        [sys.executable, "-m", "rnic.cli", "serve"], env=os.environ | {"RNIC_RUNTIME_DIR": str(tmp_path)}
    )
    try:
        end = time.monotonic() + 20
        while (connection := connect(tmp_path)) is None:
            assert time.monotonic() < end
        connection.close()
        with rnic.open(f"{own_network()}.97", port=4000, directory=tmp_path) as ctx:
            done = subprocess.run(
                [str(program), str(tmp_path / attach.SOCKET_NAME), ctx.name],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        assert (done.stdout, done.stderr, done.returncode) == ("wrote 100 bytes\n", "", 0)
    finally:
        nic.terminate()
        nic.wait()
