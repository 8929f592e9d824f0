"""Connections a second, by rdma-core's ``cmtime``: rnic and Linux's Soft-RoCE in the same guest, each against itself.

    ./dev bench cm [CONNECTIONS]

The guest is the one of `./dev interop` (root); this Python and rnic are copied into it, so that both have the same
processor, and the same program at both ends. Without hardware virtualisation it is many times slower than the machine:
the proportion is what counts. A third row is rnic on this machine itself. The floor is half of what Soft-RoCE does; a
missed one is printed as such and does not fail the run. Exit status 77 where this machine cannot run the guest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "interop"))

from rig import Rig, UnavailableError, booted  # noqa: E402

import rnic  # noqa: E402
from rnic.abi.build import build  # noqa: E402
from rnic.testing import own_network  # noqa: E402

CONNECTIONS = 20
SECONDS = 240
FLOOR = 0.5
LEFT_OUT = 77
PLACE = "/opt/rnic"
OWN_PORT = 4792
"""The kernel has RoCEv2's own."""
_STEP = re.compile(r"^(?P<step>[a-z ]+?) *:.* (?P<each>[\d.]+)$", re.MULTILINE)
_MADE = ("create id", "resolve addr", "resolve route", "create qp", "connect")
_UNUSED = {"test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "site-packages", "turtledemo", "pydoc_data"}
_NEEDED = ("click", "rich", "markdown_it", "mdurl", "pygments", "isal")


def rate(said: str) -> float:
    """Connections a second: one after the other takes what all steps of one take together.

    Raises:
        ValueError: the program did not come to its table.
    """
    each = {found["step"].strip(): float(found["each"]) for found in _STEP.finditer(said)}
    if any(step not in each for step in _MADE):
        raise ValueError(f"cmtime said no times:\n{said[-2000:]}")
    return 1e6 / sum(each[step] for step in _MADE)


def rejected(said: str) -> int:
    """Connections that were not made."""
    return said.count("RDMA_CM_EVENT_") - said.count("RDMA_CM_EVENT_ESTABLISHED")


def archive(target: Path) -> None:
    """This Python, what rnic needs of it, rnic and its C libraries."""

    def wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = set(Path(info.name).parts)
        return None if parts & _UNUSED or info.name.endswith(".a") or "config-3" in info.name else info

    base = Path(sys.base_prefix)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = Path(sysconfig.get_paths()["purelib"])
    with tarfile.open(target, "w") as tar, tempfile.TemporaryDirectory() as libraries:
        tar.add(base / "bin" / version, f"bin/{version}")
        tar.add(base / "lib" / version, f"lib/{version}", filter=wanted)
        modules = [*(base / "lib" / version / "lib-dynload").glob("*.so"), base / "bin" / version]
        for library in shared(modules):
            tar.add(Path(library).resolve(), f"lib/{Path(library).name}")
        for name in _NEEDED:
            if (packages / name).exists():
                tar.add(packages / name, f"packages/{name}")
        tar.add(Path(rnic.__file__).parent, "packages/rnic")
        build(Path(libraries))
        for path in Path(libraries).iterdir():
            tar.add(path, f"packages/libraries/{path.name}")


def shared(programs: list[Path]) -> set[str]:
    """Shared libraries that programs and modules load, but for the C library's own."""
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    found = set(re.findall(r"=> (/\S+)", said))
    return {path for path in found if not re.match(r"(libc|libm|libdl|libpthread|librt|libgcc_s)\.so", Path(path).name)}


def in_guest(rig: Rig, under: str, connections: int) -> str:
    """Both ends in the guest; what the client said."""
    server = rig.in_guest(f"{under} cmtime -b {rig.guest[4]} -c {connections} > /dev/null 2>&1", SECONDS)
    time.sleep(15 if under else 3)  # nothing outside shows when it listens
    said = rig.ask_guest(f"{under} cmtime -s {rig.guest[4]} -c {connections} 2>&1", SECONDS)
    rig.ask_guest("killall cmtime")
    server.communicate()
    return said


def here(connections: int) -> str:
    """Both ends on this machine."""
    address = f"{own_network()}.201"
    with tempfile.TemporaryDirectory(prefix="rnic-cm-") as place:
        env = os.environ | {"RNIC_RUNTIME_DIR": place}
        command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", address, "--", "cmtime", "-c", str(connections)]
        server = subprocess.Popen(
            [*command, "-b", address], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(3)
            client = subprocess.run(
                [*command, "-s", address], env=env, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        finally:
            server.kill()
            server.wait()
    return client.stdout


def main(argv: list[str]) -> int:
    """Print the table."""
    connections = int(argv[0]) if argv else CONNECTIONS
    own = [("rnic, on this machine", here(connections))] if shutil.which("cmtime") else []
    try:
        with booted() as rig, tempfile.TemporaryDirectory() as work:
            archive(Path(work, "rnic.tar"))
            rig.put(Path(work, "rnic.tar"), "/tmp/rnic.tar")
            rig.ask_guest(f"mkdir -p {PLACE} && tar -C {PLACE} -xf /tmp/rnic.tar && rm /tmp/rnic.tar", 60)
            version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
            env = f"env LD_LIBRARY_PATH={PLACE}/lib PYTHONHOME={PLACE} PYTHONPATH={PLACE}/packages"
            env += f" RNIC_LIBRARIES={PLACE}/packages/libraries RNIC_RUNTIME_DIR=/tmp/nic"
            rnic_exec = f"{PLACE}/bin/{version} -m rnic.cli exec --port {OWN_PORT} --addr {rig.guest[4]}"
            under = f"mkdir -p -m 700 /tmp/nic; {env} {rnic_exec} --"
            soft = in_guest(rig, "", connections)
            mine = in_guest(rig, under, connections)
    except UnavailableError as reason:
        print(f"bench cm: LEFT OUT: {reason}", file=sys.stderr)
        return LEFT_OUT
    rates = {}
    for name, said in [("Soft-RoCE, in the guest", soft), ("rnic, in the same guest", mine), *own]:
        rates[name] = rate(said)
        print(f"{name:28} {rates[name]:8.1f} connections/s  ({connections}, {rejected(said)} refused or lost)")
    share = rates["rnic, in the same guest"] / rates["Soft-RoCE, in the guest"]
    print(f"rnic / Soft-RoCE             {share:8.2f}  floor {FLOOR}: {'reached' if share >= FLOOR else 'MISSED'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
