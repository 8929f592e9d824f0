"""Check for ``rnic doctor -- PROGRAM`` whether a program would load rnic's libraries."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rnic.abi.library_paths import LIBRARIES
from rnic.cli.doctor_machine import FAILS, NOTE, OK, Finding
from rnic.cli.elf import Elf, list_libraries, read_elf
from rnic.cli.exec import environment

OURS = ("libibverbs.so.1", "librdmacm.so.1")
PROVIDERS = re.compile(r"lib(mlx[45]|efa|hns|mana)\.so")
"""Libraries for the direct verbs of a vendor's devices."""
BUNDLED = re.compile(r"lib(ibverbs|rdmacm)-[0-9a-f]{8,}\.so")
"""File name that auditwheel gives a bundled library."""
GLIBC = re.compile(r"ld-linux[\w.-]*\.so\.\d|ld64?\.so\.\d")
"""File name of glibc's dynamic linkers."""
MOST_SCRIPTS = 4
"""Most nested script interpreters, as in the kernel."""


def program_findings(program: str, libraries: Path | None = None) -> Iterator[Finding]:
    """Yield the findings on a program or library, and on the interpreters of a script.

    Args:
        program: path, or a name on PATH.
        libraries: directory of rnic's libraries; by default the package's own.
    """
    found = shutil.which(program) or (program if Path(program).is_file() else None)
    if found is None:
        yield Finding("program", FAILS, f"{program!r} was not found", "", "install it, or give its path")
        return
    for _ in range(MOST_SCRIPTS):
        words = interpreter_of(found)
        if not words:
            break
        yield Finding("script", OK, found, f"started by {' '.join(words)}")
        name = words[1] if Path(words[0]).name == "env" and len(words) > 1 else words[0]
        found = shutil.which(name)
        if found is None:
            yield Finding("interpreter", FAILS, f"{name!r} was not found", "the script does not start", "install it")
            return
    elf = read_elf(found)
    yield from file_findings(found, elf, libraries or Path(os.environ.get("RNIC_LIBRARIES") or LIBRARIES))


def interpreter_of(path: str) -> list[str]:
    """Return the words after ``#!`` in a script's first line; empty for other files."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        head = file.read(256)
        if head.startswith(b"#!"):
            return head[2:].partition(b"\n")[0].decode(errors="replace").split(None, 1)
    return []


def file_findings(path: str, elf: Elf | None, libraries: Path) -> Iterator[Finding]:
    """Yield the findings on one ELF file."""
    own = read_elf(sys.executable)
    if elf is None or (elf.bits == 64 and not elf.is_program):
        yield Finding("program", FAILS, f"{path} is no ELF program", "", "name the program that it starts")
        return
    if elf.bits != 64 or (own is not None and elf.machine != own.machine):
        kind = f"{elf.bits}-bit, machine {elf.machine}" if elf.bits == 64 else f"{elf.bits}-bit"
        yield Finding(
            "program", FAILS, f"{path} is {kind}", "rnic's libraries are of another kind", "build it for this machine"
        )
        return
    if elf.is_static:
        yield Finding(
            "static",
            FAILS,
            f"{path} is linked statically",
            "it takes neither libibverbs nor device paths from here",
            "link it dynamically; or give it the tree that `rnic exec --print-sysfs` names, if it has such an option",
        )
        return
    linker = Path(elf.interpreter).name
    if elf.interpreter and not GLIBC.fullmatch(linker):
        kind = "musl" if "musl" in linker else "another C library than glibc"
        yield Finding(
            "interpreter",
            FAILS,
            f"{elf.interpreter} of {path}",
            f"it is made for {kind}, and rnic's libraries for glibc",
            "build it for glibc, or use its Debian package",
        )
        return
    yield Finding("program", OK, path, f"dynamic linker {elf.interpreter}" if elf.interpreter else "a library")
    if elf.is_go:
        yield Finding("Go", NOTE, "Go's linker made it", "its own system calls see no device paths", "")
    yield from rights(path)
    yield from search_path(elf, path)
    starter = elf.interpreter or (own.interpreter if own is not None else "")
    if (libraries / OURS[0]).exists() and Path(starter).exists():
        yield from loaded(path, starter, libraries)


def rights(path: str) -> Iterator[Finding]:
    """Yield a finding if the program gains privileges when it starts: the dynamic linker then ignores ``LD_*``."""
    status = Path(path).stat()
    gained = []
    if status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid():
        gained.append(f"setuid of user {status.st_uid}")
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getegid():
        gained.append(f"setgid of group {status.st_gid}")
    with contextlib.suppress(OSError, AttributeError):
        if os.getxattr(path, "security.capability") and os.geteuid() != 0:
            gained.append("file capabilities")
    if gained:
        yield Finding(
            "rights",
            FAILS,
            ", ".join(gained),
            "the dynamic linker ignores LD_LIBRARY_PATH and LD_PRELOAD, so it loads the system's libibverbs",
            "run a copy without them: cp makes one",
        )


def search_path(elf: Elf, path: str) -> Iterator[Finding]:
    """Yield findings on RPATH and RUNPATH."""
    origin = str(Path(path).resolve().parent)
    for name, said in (("RPATH", elf.rpath), ("RUNPATH", elf.runpath)):
        if not said:
            continue
        places = [Path(re.sub(r"\$(ORIGIN|\{ORIGIN\})", lambda _: origin, each)) for each in said.split(":")]
        held = [str(place / each) for place in places for each in OURS if (place / each).exists()]
        if held and name == "RPATH":
            yield Finding(
                name, FAILS, f"{said} has {', '.join(held)}", "it goes before LD_LIBRARY_PATH", "rnic exec --preload"
            )
        else:
            yield Finding(name, OK, said, "no libibverbs in it" if not held else "it goes after LD_LIBRARY_PATH")


def loaded(path: str, linker: str, libraries: Path) -> Iterator[Finding]:
    """Yield findings on the libraries that a program would load at its start."""
    try:
        found = list_libraries(linker, path, environment([], Path("/"), libraries))
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("libraries", NOTE, f"{linker} --list: {error}", "what it loads is unknown", "")
        return
    missing = sorted(name for name, place in found.items() if place == "not found")
    if missing:
        yield Finding("libraries", FAILS, f"{', '.join(missing)} not found", "it does not start", "install them")
    wanted = {name: place for name, place in found.items() if Path(name).name in OURS}
    ours = [name for name, place in wanted.items() if Path(place).parent == libraries]
    for name, place in wanted.items():
        if name not in ours and place != "not found":
            yield Finding(name, FAILS, place, "it is not rnic's", "rnic exec --preload")
    if ours:
        yield Finding("loads", OK, ", ".join(ours), f"rnic's, from {libraries}")
    bundled = sorted(name for name in found if BUNDLED.match(Path(name).name))
    if bundled:
        yield Finding("loads", FAILS, f"{', '.join(bundled)} of its wheel", "it is not rnic's", "rnic exec --preload")
    if providers := sorted(name for name in found if PROVIDERS.match(Path(name).name)):
        yield Finding(
            "loads", OK, ", ".join(providers), "direct verbs of these vendors find no device here; plain verbs do"
        )
    if not wanted and not bundled:
        yield Finding(
            "loads",
            OK,
            "no libibverbs when it starts",
            "it may load one later, as Python does",
            "name the library or extension module instead of the program to have it looked at",
        )


__all__ = ["program_findings"]
