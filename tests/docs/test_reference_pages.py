"""The pages of reference have what the code has: variables of the environment, exit statuses, settings."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path

import click

from rnic.cli.commands import COMMANDS, group
from rnic.device.config import NicConfig
from rnic.device.parameters import UNIVISTA

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
READ = re.compile(
    r"(?:environ(?:\.get\(|\[)|getenv\(|env_flag\(|envvar=\(?|IDLE_EXIT = |ENVIRONMENT = |wanted\()"
    r"\s*\"(RNIC_\w+)\"(?:, \"(RNIC_\w+)\")?"
)


def test_every_variable_that_is_read_stands_on_the_page() -> None:
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    read = {
        name
        for path in [*(ROOT / "src" / "rnic").rglob("*.py"), *(ROOT / "src" / "rnic").rglob("*.c"), ROOT / "setup.py"]
        for found in READ.findall(path.read_text(encoding="utf-8"))
        for name in found
        if name
    }
    assert len(read) > 20
    assert read - set(re.findall(r"`(\w+)`", page)) == set()


def test_every_command_that_tells_its_exit_status_stands_on_the_page() -> None:
    page = (DOCS / "exit-status.md").read_text(encoding="utf-8")
    context = click.Context(group, info_name="rnic")
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        found = {name: command}
        if isinstance(command, click.Group):
            found = {f"{name} {each}": one for each, one in command.commands.items()}
        for path, one in found.items():
            if "xit status" in (one.help or ""):
                assert f"`rnic {path}`" in page


def test_every_setting_stands_on_the_page_of_configuration() -> None:
    spec = importlib.util.spec_from_file_location("gen_configuration", DOCS / "gen_configuration.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tables = module.tables()
    for field in dataclasses.fields(NicConfig):
        assert (f"| `{field.name}` |" in tables) == field.init
    assert all(f"| `{each.name}` |" in tables for each in UNIVISTA)
    assert not re.search(r"\| +\|$", tables, re.MULTILINE), "a setting without a meaning"
