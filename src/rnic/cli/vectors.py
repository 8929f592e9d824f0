"""``rnic vectors``: write the scripts of ``rnic conform`` as input frames and expected output frames."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import click

from rnic.conform.script import SUITES, scripts
from rnic.conform.vectors import write


@click.command()
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False),
    help="Directory to write to; it is created if it is missing.",
)
@click.option(
    "--suite", "suites", multiple=True, type=click.Choice(SUITES), help="Write only tests of this suite; repeatable."
)
@click.option(
    "-k",
    "words",
    multiple=True,
    metavar="PATTERN",
    help="Write only tests whose name matches, such as gap* or *@4096; repeatable.",
)
def vectors(out: str, suites: tuple[str, ...], words: tuple[str, ...]) -> None:
    """Write test vectors: for each rule, the frames that go into a device and the expected output frames.

    Each test becomes SUITE/TEST.json (everything), .hex (frames alone) and .pcapng (for Wireshark). index.json lists
    all tests.
    """
    chosen = [
        script
        for script in scripts()
        if (not suites or script.suite in suites) and (not words or any(fnmatchcase(script.name, w) for w in words))
    ]
    if not chosen:
        raise click.UsageError("no test matches; rnic conform --list shows all names")
    try:
        count = write(chosen, Path(out))
    except OSError as error:
        raise click.UsageError(f"{out}: cannot be written: {error.strerror}") from None
    click.echo(f"{out}: {count} tests")
