"""``rnic completion``: what makes a shell complete commands and options."""

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
"""Where each shell looks, below the home directory; zsh, once its ``fpath`` names the folder."""


class CompletionError(RnicError):
    """The completion cannot be made or written. One line."""


def script(shell: str) -> str:
    """Return the shell's code."""
    kind = get_completion_class(shell)
    if kind is None:
        raise CompletionError(f"this version of click has no completion for {shell}: use one of {', '.join(SHELLS)}")
    return kind(click.Group("rnic"), {}, "rnic", "_RNIC_COMPLETE").source()


def own_shell() -> str:
    """Return the user's shell, by ``SHELL``.

    Raises:
        CompletionError: it is another one, or not said.
    """
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise CompletionError(f"SHELL={name or 'nothing'}: name the shell: rnic completion {'|'.join(SHELLS)}")
    return name


@click.command()
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@click.option("--install", is_flag=True, help="Write it where the shell finds it, for this user.")
def completion(shell: str | None, install: bool) -> None:
    """Print the completion of commands and options for SHELL (by default this user's), or install it.

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
