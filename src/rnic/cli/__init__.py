"""The ``rnic`` command. This door to it loads next to nothing, so that Ctrl-C finds somebody who takes it."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def main() -> None:
    """Run the command line; Ctrl-C while it is still loaded is one line, too."""
    try:
        from rnic.cli.commands import run  # noqa: PLC0415 - it takes its time

        run()
    except KeyboardInterrupt:
        print("rnic: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
