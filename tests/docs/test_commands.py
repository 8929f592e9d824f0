"""Every ``rnic`` command on every page is one that the command line takes: it is there, and so are its options.

Nothing is run here; ``test_examples.py`` runs those of the how-tos.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rnic.cli.commands import group
from rnic.cli.exec import execute

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENDS = {"&", "|", "&&", "||", ";", ">", ">>", "<", "2>"}


def calls(block: str) -> Iterator[list[str]]:
    """The arguments of each call of rnic that begins a command in a block of shell."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="();<>|&")
        words.whitespace_split = True
        try:
            parts = list(words)
        except ValueError:  # quotes that end on another line: a script within a script
            continue
        at_start = True
        while parts:
            word = parts.pop(0)
            if at_start and word == "rnic":
                end = next((place for place, part in enumerate(parts) if part in ENDS), len(parts))
                yield parts[:end]
            at_start = word in ENDS


ALL = [
    pytest.param(call, id=f"{page.relative_to(ROOT)}: {' '.join(call)}")
    for page in PAGES
    if "_build" not in page.parts
    for block in FENCE.findall(page.read_text(encoding="utf-8"))
    for call in calls(block)
]


def parse(arguments: list[str]) -> None:
    """Parse a call as the command line would, down to the last command, and carry nothing out."""
    command: click.Command = group
    context: click.Context | None = None
    rest = list(arguments)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        context = click.Context(command, parent=context, info_name=command.name)
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
    command.make_context(command.name, rest, parent=context)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that pages name."""
    monkeypatch.chdir(tmp_path)
    for call in ALL:
        words = call.values[0]
        assert isinstance(words, list)
        for word in words:
            if re.fullmatch(r"[\w/.-]+\.(pcap|pcapng|toml|json|gz)", str(word)) and not str(word).startswith("/"):
                path = tmp_path / str(word)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("call", ALL)
def test_the_command_line_takes_it(call: list[str]) -> None:
    try:
        parse(call)
    except click.UsageError as error:
        if "it wants" not in str(error):
            raise
        pytest.skip(str(error))  # an extra that is not installed here


def test_the_page_on_programs_has_every_option_of_exec() -> None:
    table = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8").partition("| option | environment | |")[2]
    rows = [line.split("|")[1:3] for line in table.partition("\n\n")[0].splitlines()[2:]]
    for option in execute.params:
        if isinstance(option, click.Option):
            (row,) = [
                row for row in rows if set(re.findall(r"--[\w-]+", row[0])) & {*option.opts, *option.secondary_opts}
            ]
            said = option.envvar or ""
            variable = said if isinstance(said, str) else said[0]  # behind it stand old names
            variable = variable and f"`{variable}`"
            assert row[1].strip() == variable, option.name


@pytest.mark.parametrize("call", [["no-such"], ["decode", "--no-such", "x.pcap"], ["qp", "not-a-number-of-a-qp"]])
def test_what_it_does_not_take_fails(call: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse(call)


def test_calls_are_found_in_shell() -> None:
    block = "rnic exec --faults '[1]' -- a b &  # why\nsleep 1; rnic qp 16 | head\n$ rnic top \\\n  --once > x\n"
    assert list(calls(block)) == [["exec", "--faults", "[1]", "--", "a", "b"], ["qp", "16"], ["top", "--once"]]
    assert len(ALL) > 50
