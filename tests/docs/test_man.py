"""The manual pages: one for each command, with every option, and no line that man would take for a macro of its own."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import click
import pytest

from rnic.cli.commands import COMMANDS, group

DOCS = Path(__file__).resolve().parents[2] / "docs"
MACROS = {"TH", "SH", "SS", "PP", "TP", "B", "BR", "nf", "fi"}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_man", DOCS / "gen_man.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


man = load()


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    pages: dict[str, str] = man.manual(group, "rnic", None, "an RDMA NIC in software")
    return pages


def test_every_command_has_a_page(pages: dict[str, str]) -> None:
    assert {f"rnic-{name}.1" for name in COMMANDS} | {"rnic.1", "rnic-paxi-serve.1"} <= set(pages)


def test_every_option_is_on_the_page(pages: dict[str, str]) -> None:
    context = click.Context(group, info_name="rnic")
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        text = pages[f"rnic-{name}.1"].replace("\\-", "-")
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[-1] in text, name


def test_only_known_macros_begin_a_line(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        assert set(re.findall(r"^\.(\w+)", text, re.MULTILINE)) <= MACROS, name
        assert not re.search(r"^(?:'|\.(?!\w))", text, re.MULTILINE), name


@pytest.mark.parametrize(
    ("text", "line"),
    [("a -b", "a \\-b"), (".exe", "\\&.exe"), ("'x'", "\\&'x'"), ("a\\b", "a\\eb"), (" a\n  b ", "a b")],
)
def test_text_is_escaped(text: str, line: str) -> None:
    assert man.roff(text) == line


def test_man_has_no_complaint(pages: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    page = tmp_path / "rnic-exec.1"
    page.write_text(pages[page.name], encoding="utf-8")
    command = ["groff", "-ww", "-z", "-man", "-Tutf8", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
