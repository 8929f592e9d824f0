"""The API page has every public name, and every public name and method has a docstring."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"^\.\. auto\w+:: (?:\w+\.)*(\w+)$", PAGE, re.MULTILINE))
PUBLIC = [
    (package, name)
    for package in ("rnic", "rnic.verbs", "rnic.testing", "rnic.sim")
    for name in importlib.import_module(package).__all__
    if name != "__version__"
]


def test_every_public_name_is_on_the_page() -> None:
    assert [f"{package}.{name}" for package, name in PUBLIC if name not in NAMED] == []


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_it_says_what_it_is(package: str, name: str) -> None:
    value = getattr(importlib.import_module(package), name)
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        members = {key: each for key, each in vars(value).items() if not key.startswith("_")}
        methods = {key: each for key, each in members.items() if callable(each) or isinstance(each, property)}
        assert [key for key, each in methods.items() if not inspect.getdoc(each)] == []
