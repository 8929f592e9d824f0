"""Installation source of rnic: the only definition, used by every hint and page."""

from __future__ import annotations

SOURCE = "."
"""Argument of ``pip install``: the root of a checkout until rnic is on an index, then ``rnic``. A fork may set its Git
URL (``git+https://...``)."""


def install_command(*extras: str) -> str:
    """Return the command that installs rnic with extras, such as ``pip install '.[plot]'``."""
    if not extras:
        return f"pip install {SOURCE}"
    wanted = ",".join(extras)
    if SOURCE.startswith("git+"):
        return f"pip install 'rnic[{wanted}] @ {SOURCE}'"
    return f"pip install '{SOURCE}[{wanted}]'"


def install_hint(*extras: str) -> str:
    """Return :func:`install_command` with the place to run it."""
    command = install_command(*extras)
    return f"in a checkout of rnic, {command}" if SOURCE == "." else command
