"""Compiles Verilator's own runtime once for all simulators of a run: ``OBJCACHE`` of Verilator's makefiles.

    python objcache.py DIRECTORY COMPILER ARGUMENT...

It is the same for every model but takes longer to compile than a small one. Everything else is compiled as it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """The compiler's exit status."""
    place, command = Path(sys.argv[1]), sys.argv[2:]
    source = Path(command[-1])
    runtime = Path(os.environ["VERILATOR_ROOT"]) / "include"
    if "-c" not in command or "-o" not in command or runtime.resolve() not in source.resolve().parents:
        return subprocess.call(command)
    out = Path(command[command.index("-o") + 1])
    said = [part for part in command if part not in ("-o", str(out))]
    kept = place / f"{source.stem}-{hashlib.sha256(' '.join(said).encode()).hexdigest()[:16]}.o"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=place) as scratch:  # two workers may come here at once
            made = Path(scratch) / "made.o"
            command[command.index("-o") + 1] = str(made)
            status = subprocess.call(command)
            if status:
                return status
            made.replace(kept)
    shutil.copyfile(kept, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
