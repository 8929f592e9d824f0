"""Runs commands and keeps what a terminal shows of them as a picture: the one at the head of the README.

    python docs/record.py [FILE]

Everything in the picture was printed by the run that made it. Wants ``ibv_rc_pingpong`` (Debian's ibverbs-utils).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
COLUMNS = 112
MOST_LINES = 9
"""Of one command; what comes between the first and the last ones is left out, and said to be."""
COMMANDS = (
    'rnic exec --faults \'[{"every": 50, "action": "drop"}]\' --capture run.pcapng -- sh pingpong.sh',
    "rnic check run.pcapng",
    "rnic decode run.pcapng | grep -B2 -A2 -m1 'NAK'",
)
PINGPONG = """\
ibv_rc_pingpong -g 0 -n 100 > /dev/null &
sleep 1
ibv_rc_pingpong -g 0 -n 100 127.0.0.1 && wait
"""


def run(command: str, folder: Path) -> list[str]:
    """Run a command and return what it prints, at most :data:`MOST_LINES`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "RNIC_RUNTIME_DIR": str(folder / "r"), "COLUMNS": str(COLUMNS)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    lines = done.stdout.decode().splitlines()
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command} ended with status {done.returncode}: {' '.join(lines)}")
    if len(lines) > MOST_LINES:
        rest = len(lines) - MOST_LINES + 1
        lines[MOST_LINES - 3 : -2] = [f"... {rest} lines more"]
    return lines


def main() -> None:
    """Write the picture."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "exec.svg"
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    with tempfile.TemporaryDirectory(prefix="rnic-") as work:
        folder = Path(work)
        (folder / "r").mkdir(mode=0o700)
        (folder / "pingpong.sh").write_text(PINGPONG)
        console.print(Text("$ cat pingpong.sh", "bold green"))
        console.print(Text(PINGPONG.rstrip()))
        for command in COMMANDS:
            console.print(Text(f"$ {command}", "bold green"))
            for line in run(command, folder):
                console.print(Text(line, "yellow" if "NAK" in line else ""))
    drawn = console.export_svg(title="rnic")
    # no font from elsewhere: every viewer has a monospaced one
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")
    target.write_text(drawn + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
