"""``rnic completion``: shell completion of commands and options."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from rnic.spec.errors import RnicError

SHELLS = ("bash", "fish", "zsh")
PLACES = {
    "bash": ".local/share/bash-completion/completions/rnic",
    "fish": ".config/fish/completions/rnic.fish",
    "zsh": ".local/share/zsh/site-functions/_rnic",
}
"""Completion directory of each shell, below the home directory; for zsh, ``fpath`` must name the directory."""


class CompletionError(RnicError):
    """The completion cannot be made or written. The message is one line."""


def script(shell: str) -> str:
    """Return the completion code for a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise CompletionError(f"this version of click has no completion for {shell}: use one of {', '.join(SHELLS)}")
    return kind(click.Group("rnic"), {}, "rnic", "_RNIC_COMPLETE").source()


def own_shell() -> str:
    """Return the user's shell, as named by ``SHELL``.

    Raises:
        CompletionError: ``SHELL`` is not set, or names an unsupported shell.
    """
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise CompletionError(f"SHELL={name or 'nothing'}: name the shell: rnic completion {'|'.join(SHELLS)}")
    return name


@click.command()
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@click.option("--install", is_flag=True, help="Install it for this user, where the shell finds it.")
def completion(shell: str | None, install: bool) -> None:
    """Print or install the completion of commands and options for SHELL (default: your login shell).

    rnic completion --install
    """
    shell = shell or own_shell()
    text = script(shell)
    if not install:
        click.echo(text)
        return
    path = Path.home() / PLACES[shell]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CompletionError(f"{path}: {error.strerror}") from None
    hint = f"; fpath must have {path.parent}, before compinit" if shell == "zsh" else ""
    click.echo(f"{path} written: it works in new shells{hint}")
