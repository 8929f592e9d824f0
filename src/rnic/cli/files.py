"""Types of command-line arguments, checked before anything is measured."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import click

from rnic.spec.source import install_hint


class OutFile(click.ParamType):  # type: ignore[type-arg] # generic in newer versions alone
    """A file that will be written. It need not exist; its directory must, and must be writable.

    Args:
        package: package that writes it, such as ``matplotlib``, if that is an extra.
        extra: the extra.
    """

    name = "file"

    def __init__(self, package: str | None = None, extra: str = "") -> None:
        self._package = package
        self._extra = extra

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, or fail with a usage error that names the obstacle."""
        path = Path(value)
        if path.is_dir():
            self.fail(f"{path} is a directory; give a file", param, ctx)
        if path.exists():
            if not os.access(path, os.W_OK):
                self.fail(f"{path} cannot be written: no permission", param, ctx)
        elif not path.parent.is_dir():
            self.fail(f"{path} cannot be written: there is no directory {path.parent}", param, ctx)
        elif not os.access(path.parent, os.W_OK):
            self.fail(f"{path} cannot be written: no permission in {path.parent}", param, ctx)
        if self._package is not None and importlib.util.find_spec(self._package) is None:
            self.fail(f"it wants {self._package}: {install_hint(self._extra)}", param, ctx)
        return path
