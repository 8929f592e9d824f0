"""Read the parts of a program's file that the dynamic linker reads: ELF headers and dynamic section."""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"\x7fELF"
_EXECUTABLE, _SHARED = 2, 3
_LOAD, _DYNAMIC, _INTERPRETER, _NOTE = 1, 2, 3, 4
_HEADER = struct.Struct("<HHIQQQIHHH")
"""Header of a 64-bit file, starting at byte 16: type, machine, version, entry, segments, sections, flags, sizes,
count."""
_SEGMENT_BYTES = 56
"""Smallest entry of the segment table, in bytes."""
_PROGRAM_FIELDS = struct.Struct("<IIQQQQ")
"""Segment table entry: type, flags, offset in the file, two addresses, size in the file."""
_TAG = struct.Struct("<qQ")
_NEEDED, _STRINGS, _SONAME, _RPATH, _RUNPATH = 1, 5, 14, 15, 29
_MOST_BYTES = 4096
_MOST_STRING_BYTES = 1 << 16
"""Most bytes read of a name in the string table: paths are short, and sizes in the file are not trusted."""
_FARTHEST = 1 << 40
"""Largest plausible file offset; offsets in the file are not trusted."""
_LISTED = re.compile(r"^\s*(?P<name>\S+) => (?P<path>not found|\S.*?)(?: \(0x[0-9a-f]+\))?$", re.MULTILINE)
"""Line of ``ld.so --list``."""
_SECONDS = 30
_GO = b"\x04\0\0\0"
"""Length of the name in a Go linker note; the name follows two more words."""


@dataclass(frozen=True)
class Elf:
    """Facts of an ELF file that matter to its dynamic linker.

    Args:
        bits: 32 or 64. Nothing else is read unless the file is 64-bit and little-endian.
        machine: ``e_machine``, such as 62 for x86-64 and 183 for aarch64.
        is_program: an executable or a shared object.
        interpreter: path of its dynamic linker, empty for a library or a static program.
        is_static: it is a program that no dynamic linker loads.
        needed: sonames of the libraries that it is linked to.
        rpath: search path before ``LD_LIBRARY_PATH``; empty if there is a ``runpath``.
        runpath: search path after ``LD_LIBRARY_PATH``.
        is_go: it was linked by Go's linker.
    """

    bits: int = 64
    machine: int = 0
    is_program: bool = False
    interpreter: str = ""
    is_static: bool = False
    needed: tuple[str, ...] = ()
    rpath: str = ""
    runpath: str = ""
    is_go: bool = False


def looks_static(path: str) -> bool:
    """Return whether a file is a little-endian 64-bit ELF program that no dynamic linker loads; false if that is
    unknown.

    False for scripts: their interpreters are not checked. Also false for the dynamic linker itself, which has a SONAME;
    a user may run it with a program as its argument.
    """
    found = read_elf(path)
    return found is not None and found.is_static


def read_elf(path: str) -> Elf | None:
    """Return the facts of an ELF file; ``None`` if it cannot be read, is damaged, or is not ELF."""
    try:
        with open(path, "rb") as file:
            return _read(file)
    except OSError:
        return None


def list_libraries(linker: str, path: str, env: dict[str, str]) -> dict[str, str]:
    """Return what glibc's dynamic linker would load for a program or library, without running it.

    Args:
        linker: path of the dynamic linker.
        path: path of the file.
        env: complete environment in which it would start.

    Returns:
        Path by name, ``not found`` for missing libraries.
    """
    import subprocess  # noqa: PLC0415 - `rnic exec` starts without it

    command = [linker, "--list", os.path.abspath(path)]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
    )
    return {match["name"]: match["path"] for match in _LISTED.finditer(done.stdout)}


def patch_interpreter(path: Path, linker: str) -> None:
    """Replace the path of the dynamic linker in a program's file.

    Raises:
        ValueError: the new path is longer than the old one, or the file has none.
    """
    found = read_elf(str(path))
    if found is None or not found.interpreter or len(linker) > len(found.interpreter):
        raise ValueError(f"{path} has no room for the path {linker} of its dynamic linker")
    old = found.interpreter.encode() + b"\0"
    data = path.read_bytes()
    path.write_bytes(data.replace(old, linker.encode().ljust(len(old), b"\0"), 1))


def _read(file: BinaryIO) -> Elf | None:
    head = file.read(_MOST_BYTES)
    if len(head) < 16 + _HEADER.size or head[:4] != _MAGIC:
        return None
    if head[4:6] != b"\2\1":
        return Elf(bits=32 if head[4] == 1 else 64)
    kind, machine, _, _, segments, _, _, _, size, count = _HEADER.unpack_from(head, 16)
    if kind not in (_EXECUTABLE, _SHARED):
        return Elf(machine=machine)
    if not count or size < _SEGMENT_BYTES or segments + count * size > len(head):
        return None
    entries = [_PROGRAM_FIELDS.unpack_from(head, segments + size * index) for index in range(count)]
    parts = {segment: (offset, length) for segment, _, offset, _, _, length in entries}
    interpreter = ""
    if _INTERPRETER in parts:
        interpreter = _at(file, *parts[_INTERPRETER]).partition(b"\0")[0].decode(errors="replace")
    section = _at(file, *parts.get(_DYNAMIC, (0, 0)))
    tags = list(_TAG.iter_unpack(section[: len(section) // _TAG.size * _TAG.size]))
    values = dict(tags)
    strings = values.get(_STRINGS, 0)
    start = next(
        (strings - va + at for kind, _, at, va, _, n in entries if kind == _LOAD and va <= strings < va + n), 0
    )

    def text(place: int) -> str:
        return _at(file, start + place, _MOST_STRING_BYTES).partition(b"\0")[0].decode(errors="replace")

    runpath = text(values[_RUNPATH]) if _RUNPATH in values else ""
    return Elf(
        machine=machine,
        is_program=True,
        interpreter=interpreter,
        is_static=_INTERPRETER not in parts and _SONAME not in values and _NEEDED not in values,
        needed=tuple(text(value) for tag, value in tags if tag == _NEEDED),
        rpath=text(values[_RPATH]) if _RPATH in values and not runpath else "",
        runpath=runpath,
        is_go=any(
            (note := _at(file, at, length))[:4] == _GO and note[12:16] == b"Go\0\0"
            for segment, _, at, _, _, length in entries
            if segment == _NOTE
        ),
    )


def _at(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(min(offset, _FARTHEST))
    return file.read(min(length, _MOST_STRING_BYTES))


__all__ = ["Elf", "list_libraries", "looks_static", "patch_interpreter", "read_elf"]
