"""``rnic vectors``: the scripts of ``rnic conform`` as frames in and expected frames out."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import click

from rnic.conform.script import SUITES, scripts
from rnic.conform.vectors import write


@click.command()
@click.option("--out", required=True, type=click.Path(file_okay=False), help="The folder, made where it is not there.")
@click.option("--suite", "suites", multiple=True, type=click.Choice(SUITES), help="Only such tests.")
@click.option("-k", "words", multiple=True, metavar="PATTERN", help="Only tests of such names: gap*, *@4096.")
def vectors(out: str, suites: tuple[str, ...], words: tuple[str, ...]) -> None:
    """Write test vectors: for each rule the frames that go into a device and those that must come out.

    SUITE/TEST.json (all of it), .hex (frames alone) and .pcapng (for Wireshark), and index.json over all.
    """
    chosen = [
        script
        for script in scripts()
        if (not suites or script.suite in suites) and (not words or any(fnmatchcase(script.name, w) for w in words))
    ]
    if not chosen:
        raise click.UsageError("no test has such a name; rnic conform --list shows them")
    try:
        count = write(chosen, Path(out))
    except OSError as error:
        raise click.UsageError(f"{out}: cannot be written: {error.strerror}") from None
    click.echo(f"{out}: {count} tests")
