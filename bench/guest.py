"""Run rnic in the guest of `./dev interop`, with this Python and its libraries, so that both sides of a comparison with
Soft-RoCE have the same processor and programs. The guest requires root.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import ROOT, LeftOutError

sys.path.insert(0, str(ROOT / "interop"))

import rig as interop
from rig import Rig

import rnic
from rnic.abi.build import build

PLACE = "/opt/rnic"
OWN_PORT = 4792
"""UDP port of rnic; the kernel uses RoCEv2's."""
UNPACK_S = 300
"""Seconds to unpack 100 MB in an emulated guest on a loaded machine."""
_RUNTIME = "/tmp/nic"
_UNUSED = {"test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "site-packages", "turtledemo", "pydoc_data"}
_NEEDED = ("click", "rich", "markdown_it", "mdurl", "pygments", "isal")


@contextmanager
def booted() -> Iterator[Rig]:
    """Yield the guest; raise :class:`~harness.LeftOutError` if this machine cannot run it."""
    try:
        with interop.booted() as rig:
            yield rig
    except interop.UnavailableError as reason:
        raise LeftOutError(f"the guest: {reason}") from None


def install(rig: Rig, *options: str) -> str:
    """Copy rnic into the guest; return the command prefix that runs a program there under `rnic exec`."""
    with tempfile.TemporaryDirectory() as work:
        archive(Path(work, "rnic.tar"))
        rig.put(Path(work, "rnic.tar"), "/tmp/rnic.tar")
    said = rig.ask_guest(
        f"mkdir -p {PLACE} && tar -C {PLACE} -xf /tmp/rnic.tar && rm /tmp/rnic.tar && echo there", UNPACK_S
    )
    if "there" not in said:
        raise RuntimeError(f"rnic could not be copied into the guest: {said}")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    env = f"env LD_LIBRARY_PATH={PLACE}/lib PYTHONHOME={PLACE} PYTHONPATH={PLACE}/packages"
    env += f" RNIC_LIBRARIES={PLACE}/packages/libraries RNIC_RUNTIME_DIR={_RUNTIME}"
    words = ["exec", "--udp-port", str(OWN_PORT), "--addr", rig.guest[4], *options, "--"]
    return f"mkdir -p -m 700 {_RUNTIME}; {env} {PLACE}/bin/{version} -m rnic.cli {' '.join(words)}"


def archive(target: Path) -> None:
    """Pack this Python with the modules that rnic needs, rnic, and its C libraries."""

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
    """Return the shared libraries that programs and modules load, except those of the C library."""
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    found = set(re.findall(r"=> (/\S+)", said))
    return {path for path in found if not re.match(r"(libc|libm|libdl|libpthread|librt|libgcc_s)\.so", Path(path).name)}


__all__ = ["Rig", "booted", "install"]
