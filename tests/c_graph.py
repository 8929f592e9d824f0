"""Dependencies between C files, by the symbols of their objects: a file depends on those that define what it uses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

Uses = dict[str, dict[str, list[str]]]
"""For each file the files that it depends on, each with the symbols that it uses of it."""


def compile_objects(compiler: list[str], flags: Iterable[str], sources: Iterable[Path], out: Path) -> dict[str, Path]:
    """Compile ``sources`` into ``out`` and return the object of each file, named by its folder and name.

    Nothing is optimized, so that no call disappears by inlining.
    """
    objects = {f"{source.parent.name}/{source.name}": source for source in sources}
    for name, source in objects.items():
        objects[name] = out / f"{name.replace('/', '_')}.o"
        command = [*compiler, *flags, "-O0", "-w", "-c", str(source), "-o", str(objects[name])]
        subprocess.run(command, check=True)
    return objects


def dependencies(objects: dict[str, Path]) -> Uses:
    """Which file depends on which, as ``nm`` lists what their objects define and leave undefined."""
    defined: dict[str, str] = {}
    undefined: dict[str, list[str]] = {}
    for name, path in objects.items():
        listed = subprocess.run(["nm", "-g", "-P", str(path)], check=True, capture_output=True, text=True).stdout
        undefined[name] = []
        for symbol, kind in (line.split()[:2] for line in listed.splitlines()):
            if kind in "Uwv":
                undefined[name].append(symbol)
            else:
                defined[symbol] = name
    uses: Uses = {name: {} for name in objects}
    for name, symbols in undefined.items():
        for symbol in symbols:
            if symbol in defined:
                uses[name].setdefault(defined[symbol], []).append(symbol)
    return uses


def find_cycle(uses: Uses) -> str:
    """One circle of files, each with the symbols that it uses of the next; empty if there is none."""
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        files: list[str] = error.args[1][::-1]
        steps = (f"{file} uses {', '.join(uses[file][other])} of {other}" for file, other in pairwise(files))
        return "; ".join(steps)
    return ""
