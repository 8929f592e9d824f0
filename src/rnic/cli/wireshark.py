"""``rnic wireshark``: install running devices as Wireshark's capture interfaces, and findings on packets."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import click

from rnic.spec.errors import RnicError

MARK = "Written by rnic wireshark --install; rnic wireshark --uninstall removes it."
"""Marker in every installed file, so that nothing else is overwritten or removed."""
_EXTCAP, _SINGLE, _LUA = "Personal Extcap path", "Extcap path", "Personal Lua Plugins"
"""Names of the directories in the output of ``tshark -G folders``."""
_BELOW_HOME = Path(".local/lib/wireshark")
"""Default directory on Linux, if no Wireshark is installed that could be asked."""
_SECONDS = 30
_MOST_BYTES = 1 << 16
"""Most bytes read of a file to see whether rnic wrote it."""


class WiresharkError(RnicError):
    """A file cannot be installed or removed. The message is one line."""


@dataclass(frozen=True)
class Part:
    """One file. ``state`` is the action taken, or the file's state: installed, removed, there, absent, not ours."""

    what: str
    path: str
    state: str
    hint: str = ""


def folders() -> dict[str, str]:
    """Return the directories of this machine's Wireshark, by its names; empty if it is not installed."""
    program = shutil.which("tshark") or shutil.which("wireshark")
    if program is None:
        return {}
    try:
        done = subprocess.run(
            [program, "-G", "folders"], capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = [line.partition(":") for line in done.stdout.splitlines()]
    return {name.strip(): path.strip() for name, _, path in rows if path.strip()}


def places(extcap_folder: str | None, plugin_folder: str | None) -> list[tuple[str, Path, str]]:
    """Return for each file its description, its path, and what the user must do so that Wireshark finds it.

    Since 4.2, Wireshark has a personal directory for capture interfaces. Older versions have a single one, writable by
    root only; for other users, ``WIRESHARK_EXTCAP_DIR`` names another.

    Args:
        extcap_folder: for the capture interfaces; else as above.
        plugin_folder: directory for the post-dissector; by default the one that Wireshark reports.
    """
    known = folders()
    here = Path.home() / _BELOW_HOME
    named, single, personal = os.environ.get("WIRESHARK_EXTCAP_DIR"), known.get(_SINGLE), known.get(_EXTCAP)
    if personal is None and single is not None and (single == named or os.access(single, os.W_OK)):
        personal = single
    extcap = Path(extcap_folder or personal or named or here / "extcap").absolute()
    found = [Path(path).absolute() for path in (personal, single) if path]
    hint = "" if not known or extcap in found else f"Wireshark looks there if WIRESHARK_EXTCAP_DIR={extcap} is set"
    plugins = Path(plugin_folder or known.get(_LUA) or here / "plugins").absolute()
    return [("capture interfaces", extcap / "rnic", hint), ("findings on packets", plugins / "rnic.lua", "")]


def text_of(path: Path) -> str:
    """Return the text to install in a file."""
    if path.suffix == ".lua":
        return resources.files("rnic.cli").joinpath("wireshark.lua").read_text(encoding="utf-8")
    # -P: import no module from the directory in which Wireshark was started
    return f'#!/bin/sh\n# {MARK}\nexec {shlex.quote(sys.executable)} -P -m rnic.cli extcap "$@"\n'


def state_of(path: Path) -> str:
    """Return whether a file is there, absent, or not ours: other text, a link, a device. An empty file is absent."""
    number, line = (0, f"-- {MARK}") if path.suffix == ".lua" else (1, f"# {MARK}")
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return "not ours"
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return "absent"
    except OSError as error:
        raise WiresharkError(f"{path}: cannot be read: {error.strerror}") from None
    if not data:
        return "absent"
    return "there" if data.split(b"\n")[number : number + 1] == [line.encode()] else "not ours"


def check_ours(path: Path) -> None:
    """Raise if a path holds a file that rnic did not write.

    Raises:
        WiresharkError: there is such a file, or it cannot be read.
    """
    if state_of(path) == "not ours":
        raise WiresharkError(
            f"{path}: was not written by rnic: remove it, or choose another folder with --extcap-folder or"
            " --plugin-folder"
        )


def install(path: Path) -> None:
    """Write one file, whole or not at all.

    Raises:
        WiresharkError: the file cannot be written, or rnic did not write it.
    """
    check_ours(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            made = Path(file.name)
            try:
                file.write(text_of(path))
                file.flush()
                made.chmod(0o644 if path.suffix == ".lua" else 0o755)
                made.replace(path)
            except BaseException:
                made.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise WiresharkError(f"{path}: cannot be written: {error.strerror}") from None


def remove(path: Path) -> str:
    """Remove one file if rnic wrote it; return its new state."""
    state = state_of(path)
    if state != "there":
        return state
    try:
        path.unlink()
    except OSError as error:
        raise WiresharkError(f"{path}: cannot be removed: {error.strerror}") from None
    return "removed"


@click.command()
@click.option(
    "--install", "installs", is_flag=True, help="Install both files for this user, where Wireshark finds them."
)
@click.option("--uninstall", "removes", is_flag=True, help="Remove both files.")
@click.option("--extcap-folder", type=click.Path(file_okay=False), help="Directory for the extcap program.")
@click.option("--plugin-folder", type=click.Path(file_okay=False), help="Folder for the Lua post-dissector.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each file.")
def wireshark(
    installs: bool, removes: bool, extcap_folder: str | None, plugin_folder: str | None, as_json: bool
) -> None:
    """Install capture interfaces and a findings plugin for Wireshark, for this user.

    Without an option, show what is installed, and where.
    """
    if installs and removes:
        raise click.UsageError("--install and --uninstall exclude each other")
    parts, found = [], places(extcap_folder, plugin_folder)
    for _, path, _ in found if installs else ():
        check_ours(path)
    for what, path, hint in found:
        if installs:
            install(path)
        state = "installed" if installs else remove(path) if removes else state_of(path)
        parts.append(Part(what, str(path), state, hint if state in ("installed", "there") else ""))
    if as_json:
        click.echo(json.dumps([asdict(part) for part in parts], indent=1))
        return
    for part in parts:
        click.echo(f"{part.what}: {part.path}: {part.state}{part.hint and f'; {part.hint}'}")
    if installs:
        click.echo("start Wireshark again: it lists each running NIC (rnic serve) beside the interfaces")
