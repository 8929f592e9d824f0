"""Writes the command-line reference from the commands themselves."""

from __future__ import annotations

from pathlib import Path

import click

from rnic.cli.commands import COMMANDS, LazyGroup, group
from rnic.spec.errors import RnicError

HERE = Path(__file__).resolve().parent
TARGET = HERE / "layouts" / "cli.md"


def help_texts(command: click.Command, path: str, above: click.Context | None = None) -> list[tuple[str, str]]:
    """Name and help of a command and of all below it."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=above, max_content_width=100)
    found = [(path, command.get_help(context))]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                found += help_texts(below, f"{path} {name}", context)
    return found


def main() -> None:
    """Write the page."""
    assert isinstance(group, LazyGroup)
    parts = ["# Command line", "", "What each command prints with `--help`.", ""]
    for path, text in help_texts(group, "rnic"):
        parts += [f"## `{path}`", "", "```text", text.rstrip(), "```", ""]
    missing = [name for name in COMMANDS if f"## `rnic {name}`" not in parts]
    if missing:
        raise RnicError(f"no help for {', '.join(missing)}")
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
