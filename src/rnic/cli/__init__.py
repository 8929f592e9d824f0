"""The ``rnic`` command. This entry point loads almost nothing, so that Ctrl-C always finds a handler."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""


def main() -> None:
    """Run the command line; Ctrl-C while it is still loading prints one line, too."""
    try:
        from rnic.cli.commands import run  # noqa: PLC0415 - slow to import

        run()
    except KeyboardInterrupt:
        print("rnic: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
