"""Writes a manual page for each command from the command itself, into docs/_build/man or the folder named."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import click

from rnic.cli.commands import GROUPS, LazyGroup, group

HERE = Path(__file__).resolve().parent
TARGET = HERE / "_build" / "man"


def roff(text: str, indent: str = "") -> str:
    """Return one line of text as man's macros take it; with an indent, its inner spaces stay."""
    line = (text.rstrip() if indent else " ".join(text.split())).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def paragraphs(text: str) -> list[list[str]]:
    """Return the lines of each paragraph of a help text; one that click must not wrap keeps its lines."""
    found = []
    for part in re.split(r"\n\s*\n", text.replace("\f", "")):
        if part.lstrip("\n ").startswith("\b"):
            lines = part.partition("\b")[2].strip("\n").splitlines()
            found.append([".nf", *(roff(line, " " * (len(line) - len(line.lstrip()))) for line in lines), ".fi"])
        elif part.strip():
            found.append([roff(part)])
    return found


def variables(command: click.Command) -> list[tuple[str, str]]:
    """Return the variables of the environment that a command reads, with the option of each."""
    found = []
    for option in command.params:
        names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
        found += [(name, option.opts[-1]) for name in names[:1]]
    return sorted(found)


def manual(command: click.Command, path: str, above: click.Context | None, short: str) -> dict[str, str]:
    """Return the pages of a command and of all below it, by file name."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=above)
    name = path.replace(" ", "-")
    lines = [f'.TH {name.upper()} 1 "" "rnic {version("rnic")}" "rnic manual"']
    lines += [".SH NAME", f"{roff(name)} \\- {roff(short.rstrip('.'))}"]
    lines += [".SH SYNOPSIS", f".B {roff(path)}", roff(" ".join(command.collect_usage_pieces(context)))]
    lines += [".SH DESCRIPTION"]
    told = paragraphs(command.help or short) + paragraphs(command.epilog or "")
    for number, part in enumerate(told):
        lines += [*([".PP"] if number else []), *part]
    records = [record for option in command.params if (record := option.get_help_record(context)) is not None]
    if records:
        lines += [".SH OPTIONS"]
        for names, meaning in records:
            lines += [".TP", f".B {roff(names)}", roff(meaning)]
    pages: dict[str, str] = {}
    if isinstance(command, LazyGroup):
        lines += [".SH COMMANDS"]
        for title, commands in GROUPS.items():
            lines += [f".SS {roff(title)}"]
            for each, (_, text) in commands.items():
                lines += [".TP", f".B {roff(each)}", roff(text)]
                below = command.get_command(context, each)
                assert below is not None
                pages |= manual(below, f"{path} {each}", context, text)
    elif isinstance(command, click.Group):
        lines += [".SH COMMANDS"]
        for each, below in sorted(command.commands.items()):
            lines += [".TP", f".B {roff(each)}", roff(below.get_short_help_str(200))]
            pages |= manual(below, f"{path} {each}", context, below.get_short_help_str(200))
    if read := variables(command):
        lines += [".SH ENVIRONMENT"]
        for variable, option in read:
            lines += [".TP", f".B {roff(variable)}", f"stands for {roff(option)}"]
    if above is not None:
        lines += [".SH SEE ALSO", f".BR {roff((above.info_name or 'rnic').replace(' ', '-'))} (1)"]
    return {f"{name}.1": "\n".join(lines) + "\n"} | pages


def main(argv: list[str]) -> None:
    """Write all pages."""
    target = Path(argv[0]) if argv else TARGET
    target.mkdir(parents=True, exist_ok=True)
    for name, text in manual(group, "rnic", None, "an RDMA NIC in software").items():
        (target / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
