"""The kernel's NVMe-oF target (``nvmet-rdma``) in the guest, over Soft-RoCE, and a host on rnic's side."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from rig import Rig

HERE = Path(__file__).resolve().parent
NQN = "nqn.2026-11.io.example:rnic"
SECONDS = 120
_MEBIBYTES = 16
_TARGET = f"""
modprobe nvmet && modprobe nvmet-rdma && modprobe brd rd_nr=1 rd_size={_MEBIBYTES * 1024} || exit 1
mkdir -p /sys/kernel/config; mount -t configfs none /sys/kernel/config 2>/dev/null
cd /sys/kernel/config/nvmet || exit 1
if [ ! -d ports/1 ]; then
  mkdir subsystems/{NQN} && cd subsystems/{NQN} && echo 1 > attr_allow_any_host
  mkdir namespaces/1 && echo -n /dev/ram0 > namespaces/1/device_path && echo 1 > namespaces/1/enable
  cd ../.. && mkdir ports/1 && cd ports/1
  echo TARGET > addr_traddr; echo rdma > addr_trtype; echo 4420 > addr_trsvcid; echo ipv4 > addr_adrfam
  cd ../.. && ln -s /sys/kernel/config/nvmet/subsystems/{NQN} ports/1/subsystems/{NQN}
fi
ls ports/1/subsystems
"""


def left_out() -> str:
    """Return why this machine cannot run it; empty if it can."""
    return "" if importlib.util.find_spec("nvmeof") else "PyPI's nvmeof is not installed: pip install nvmeof"


def run(rig: Rig, rnic: Path, runtime: str) -> tuple[str, str]:
    """Run it; return the problem, empty if there is none, and the output of the programs."""
    said = rig.ask_guest(_TARGET.replace("TARGET", rig.guest[4]), 60)
    if NQN not in said:
        return "the guest has no NVMe-oF target", said
    command: list[str | Path] = [
        "env",
        f"RNIC_RUNTIME_DIR={runtime}",
        rnic,
        "exec",
        "--addr",
        rig.host[4],
        "--",
        sys.executable,
    ]
    host = rig.beside(*command, HERE / "nvmeof_host.py", rig.guest[4], rig.host[4], NQN)
    try:
        output = host.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        host.kill()
        return f"the host did not end within {SECONDS} s", host.communicate()[0]
    return (f"the host exited with {host.returncode}" if host.returncode else ""), output
