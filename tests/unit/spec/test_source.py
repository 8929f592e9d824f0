"""Where rnic is installed from stands once: pages and hints agree with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rnic.spec import source

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("docs/ci/*"),
    *ROOT.glob("examples/**/*"),
    *ROOT.glob("src/**/*.py"),
]
SPARED = ("CHANGELOG.md", "source.py")
INSTALL = re.compile(r"pip install (?:--?\S+ )*['\"]?(\S+)")


def test_command_names_source_and_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    assert source.install_command() == "pip install ."
    assert source.install_command("numpy", "plot") == "pip install '.[numpy,plot]'"
    assert source.install_hint("plot") == "in a checkout of rnic, pip install '.[plot]'"
    monkeypatch.setattr(source, "SOURCE", "rnic")
    assert source.install_hint("plot") == "pip install 'rnic[plot]'"
    monkeypatch.setattr(source, "SOURCE", "git+https://example.org/rnic")
    assert source.install_command("plot") == "pip install 'rnic[plot] @ git+https://example.org/rnic'"
    assert source.install_command() == "pip install git+https://example.org/rnic"


def test_nothing_tells_people_to_install_what_is_on_no_index() -> None:
    pages = [page for page in PAGES if page.is_file() and "_build" not in page.parts and page.name not in SPARED]
    assert len(pages) > 100
    wrong = [
        f"{page.relative_to(ROOT)}: {what}"
        for page in pages
        for what in INSTALL.findall(page.read_text(encoding="utf-8"))
        if re.match(r"rnic\b(?!-)", what) and not source.SOURCE.startswith("rnic")
    ]
    assert wrong == []


def test_source_that_is_on_no_index_is_a_path_or_an_address() -> None:
    assert source.SOURCE in (".", "rnic") or source.SOURCE.startswith("git+https://")
