"""Build the page to drop a capture on: ``rnic.judge`` in the browser, with Pyodide's core from npm.

    python docs/gen_judge_page.py TARGET [PYODIDE.tgz]

Where no package is named npm brings it; without npm the page is left out, and that is said.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "rnic"
PYODIDE = "pyodide@314.0.7"
PARTS = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
"""Of the package, what a page loads that needs no other package."""
ROOMS = ("judge", "link/__init__.py", "link/pcap.py", "rclink", "spec", "state", "trace", "wire")
COMMANDS = (
    "__init__.py",
    "check_gzip.py",
    "check_html.py",
    "check_report.py",
    "decode_protocols.py",
    "decode_recorded.py",
    "ladder.py",
)
"""Modules of a report: it imports the standard library alone."""
LEFT_OUT = 77
NPM_S = 300
"""Longest time of npm."""


def pack(target: Path) -> Path | None:
    """Let npm bring Pyodide's package; ``None`` where that does not work."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    command = [npm, "pack", "--silent", "--pack-destination", str(target), PYODIDE]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=NPM_S)
    except subprocess.TimeoutExpired:
        return None
    found = sorted(target.glob("pyodide-*.tgz"))
    return found[-1] if run.returncode == 0 and found else None


def build(target: Path, package: Path) -> None:
    """Write the page and all that it loads to ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(package) as archive:
        for part in PARTS:
            member = archive.extractfile(f"package/{part}")
            if member is None:
                raise SystemExit(f"{package}: has no {part}: not Pyodide's core")
            (target / part).write_bytes(member.read())
    with zipfile.ZipFile(target / "rnic.zip", "w", zipfile.ZIP_DEFLATED) as archive_out:
        archive_out.write(SOURCE / "__init__.py", "rnic/__init__.py")
        for path in sorted({*(SOURCE / "cli" / name for name in COMMANDS), *_sources()}):
            archive_out.write(path, f"rnic/{path.relative_to(SOURCE)}")
    shutil.copy(ROOT / "docs" / "judge_page.html", target / "index.html")


def _sources() -> list[Path]:
    found: list[Path] = []
    for room in ROOMS:
        path = SOURCE / room
        found += [path] if path.is_file() else path.rglob("*.py")
    return found


def main(argv: list[str]) -> int:
    """Build the page, or say why not."""
    target = Path(argv[0])
    target.mkdir(parents=True, exist_ok=True)
    package = Path(argv[1]) if len(argv) > 1 else pack(target)
    if package is None:
        print(f"docs: the page to drop a capture on is left out: npm does not bring {PYODIDE}")
        return LEFT_OUT
    build(target, package)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
