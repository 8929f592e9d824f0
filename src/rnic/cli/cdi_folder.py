"""Make the folder mounted in containers: the libraries, and a Python with rnic for the NIC process.

Programs in a container use the container's C library; the NIC process uses one from the folder. The folder holds its
Python, all libraries that Python needs, and the dynamic linker, so the image needs none of them.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import rnic
from rnic.abi.library_paths import PATHS_LIBRARY
from rnic.cli.elf import list_libraries, patch_interpreter, read_elf
from rnic.cli.exec import library_directory
from rnic.runtime.directory import ProcessError

INSIDE = Path("/opt/rnic")
"""Path of the folder in a container."""
LIBRARIES_INSIDE = INSIDE / "libraries"
PACKAGES_INSIDE = INSIDE / "packages"
"""Directory of packages, named by ``PYTHONPATH``: Debian's Python has no ``site-packages``."""
PRELOADED = ("libibverbs.so.1", "librdmacm.so.1", PATHS_LIBRARY)
"""Libraries that ``/etc/ld.so.preload`` names: the image's own library of the same SONAME is then not loaded."""
CAPTURES_INSIDE = Path("/run/rnic-captures")
PRELOAD_FILE = "ld.so.preload"
PACKAGES = ("click", "isal")
"""Third-party packages that the NIC process imports; those not installed are left out."""
ROOMS_LEFT_OUT = ("abi/lib", "abi/src", "conform", "coyote", "gateware", "judge", "paxi", "rclink", "sim", "testing")
STDLIB_LEFT_OUT = (
    *("idlelib", "lib-dynload", "tkinter", "turtledemo", "lib2to3", "ensurepip", "distutils", "pydoc_data", "unittest"),
    *("site-packages", "dist-packages", "venv", "sqlite3", "curses", "dbm"),
)
MODULES_LEFT_OUT = re.compile(
    r"(_test|xx|_xx|_tkinter|_sqlite3|_curses|_dbm|_gdbm|_ssl|_hashlib|_codecs_|nis|readline|ossaudiodev|_ctypes_test)"
)
"""Compiled modules of the standard library that the NIC process does not need; some need large libraries."""
_GLIBC_VERSION = re.compile(rb"GLIBC_2\.(\d+)\0")


@dataclass(frozen=True)
class Folder:
    """The result of :func:`make_folder`.

    Args:
        path: where it is.
        files: number of its files.
        bytes: their total size.
        glibc: minor version of the oldest glibc 2 with which programs can load the libraries.
    """

    path: Path
    files: int
    bytes: int
    glibc: int


def make_folder(path: Path, settings: dict[str, str]) -> Folder:
    """Make a new folder. Running containers keep the old one.

    Args:
        path: where to make it.
        settings: variables of the NIC process, such as ``RNIC_FAULTS``; variables of the container override them.

    Raises:
        ProcessError: the libraries were not built, or this Python is not built for glibc; the message has a remedy.
        OSError: it cannot be written.
    """
    libraries = library_directory()
    new, old = (path.with_name(f"{path.name}.{word}") for word in ("new", "old"))
    for each in (new, old):
        shutil.rmtree(each, ignore_errors=True)
    _copy_python(new)
    (new / "libraries").mkdir()
    for name in (*PRELOADED, "librspreload.so"):
        shutil.copy2(libraries / name, new / "libraries" / name)
    glibc = max(oldest_glibc(new / "libraries" / name) for name in PRELOADED)
    fixed = {
        "RNIC_PYTHON": str(INSIDE / "bin" / "python3"),
        "LD_LIBRARY_PATH": str(INSIDE / "lib"),
        "PYTHONHOME": str(INSIDE),
        "PYTHONPATH": str(PACKAGES_INSIDE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
    }
    lines = [*(f"{name}={value}" for name, value in fixed.items()), *(f"?{n}={value}" for n, value in settings.items())]
    (new / "libraries" / "environment").write_text("\n".join([*lines, ""]), encoding="utf-8")
    preloaded = "".join(f"{LIBRARIES_INSIDE / name}\n" for name in PRELOADED)
    (new / PRELOAD_FILE).write_text(preloaded, encoding="utf-8")
    if path.exists():
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    sizes = [each.stat().st_size for each in path.rglob("*") if each.is_file()]
    return Folder(path, len(sizes), sum(sizes), glibc)


def _copy_python(new: Path) -> None:
    python = Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
    elf = read_elf(str(python))
    if elf is None or "ld-linux" not in elf.interpreter:
        raise ProcessError(f"{python} is no Python for glibc: install rnic with one that is, such as Debian's python3")
    (new / "bin").mkdir(parents=True)
    (new / "lib").mkdir()
    shutil.copy2(elf.interpreter, new / "lib" / "ld.so")
    shutil.copy2(python, new / "bin" / "python3")
    standard = new / sys.platlibdir / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    _copy_modules(new, Path(os.__file__).parent, standard, STDLIB_LEFT_OUT)
    dynamic = Path(str(sysconfig.get_config_var("DESTSHARED") or Path(os.__file__).parent / "lib-dynload"))
    (standard / "lib-dynload").mkdir(exist_ok=True)
    for module in dynamic.glob("*.so"):
        if not MODULES_LEFT_OUT.match(module.name):
            shutil.copy2(module, standard / "lib-dynload")
    packages = {"rnic": Path(rnic.__file__).parent}
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin:
            packages[name] = Path(found.origin).parent
    for name, place in packages.items():
        _copy_modules(new, place, new / PACKAGES_INSIDE.name / name, ROOMS_LEFT_OUT if name == "rnic" else ())
    _copy_libraries(new, elf.interpreter)
    # the kernel starts the linker by this path; its own libraries are found by LD_LIBRARY_PATH
    patch_interpreter(new / "bin" / "python3", str(INSIDE / "lib" / "ld.so"))


def _copy_modules(new: Path, source: Path, target: Path, left_out: tuple[str, ...]) -> None:
    """Copy compiled modules, and bytecode of the others, since the container cannot write any."""
    for place, folders, files in os.walk(source):
        folders[:] = sorted(
            each for each in folders if not _is_left_out(Path(place, each).relative_to(source), left_out)
        )
        to = target / Path(place).relative_to(source)
        to.mkdir(parents=True, exist_ok=True)
        for name in sorted(files):
            if name.endswith(".py"):
                inside = INSIDE / to.relative_to(new) / name
                py_compile.compile(
                    str(Path(place) / name),
                    cfile=str(to / f"{name}c"),
                    dfile=str(inside),
                    doraise=False,
                    quiet=2,
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )
            elif re.search(r"\.(so|abi3\.so)$", name):
                shutil.copy2(Path(place) / name, to / name)


def _is_left_out(folder: Path, left_out: tuple[str, ...]) -> bool:
    return (
        folder.name in ("__pycache__", "test", "tests")
        or folder.parts[0].startswith("config-")
        or any(folder == Path(each) for each in left_out)
    )


def _copy_libraries(new: Path, linker: str) -> None:
    """Copy each library that Python or one of its modules is linked to."""
    for file in [new / "bin" / "python3", *sorted(new.rglob("*.so"))]:
        for name, place in list_libraries(linker, str(file), {}).items():
            if place == "not found":
                raise ProcessError(f"{file.name} needs {name}, which is not installed: install it")
            if Path(name).name.startswith("ld-linux") or Path(place).is_relative_to(new):
                continue
            target = new / "lib" / Path(name).name
            if not target.exists():
                shutil.copy2(place, target)


def oldest_glibc(library: Path) -> int:
    """Return the minor version of the oldest glibc 2 that has all symbols a library needs."""
    return max((int(found) for found in _GLIBC_VERSION.findall(library.read_bytes())), default=0)


def glibc_of(root: Path) -> Iterator[int]:
    """Yield the minor version of each glibc 2 in an image's root file system."""
    for folder in ("lib64", "usr/lib64", "lib", "usr/lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"):
        for place in (root / folder, root / "usr" / folder):
            file = place / "libc.so.6"
            if file.is_file() and (found := re.search(rb"release version 2\.(\d+)", file.read_bytes())):
                yield int(found[1])


def why_not(root: Path, glibc: int) -> str:
    """Return a message why programs of an image cannot load the libraries; empty if they can, or if that is unknown.

    Args:
        root: root file system of the container.
        glibc: minor version of the oldest glibc 2 that works.
    """
    found = list(glibc_of(root))
    if not found and any(root.glob("lib/ld-musl-*")):
        return (
            "this image has musl, and rnic's libraries are made for glibc: its programs would find no device;"
            " use an image with glibc, such as debian or ubuntu"
        )
    if found and max(found) < glibc:
        return (
            f"this image has glibc 2.{max(found)}, and rnic's libraries need 2.{glibc}: its programs would not load"
            " them; use a newer image, or install rnic from a wheel, whose libraries need 2.28"
        )
    return ""


__all__ = ["CAPTURES_INSIDE", "INSIDE", "PRELOAD_FILE", "Folder", "make_folder", "why_not"]
