"""Find a congestion control by name: a built-in one, one of an installed package, or ``module:Class``."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Final

from rnic.cc.control import CONTROL_OTHER, Control

GROUP: Final = "rnic.cc"
"""Entry point group of packages that provide a congestion control."""
OWN: Final = {
    "none": "rnic.cc.control:Control",
    "limit": "rnic.cc.limit:Limit",
    "dcqcn": "rnic.cc.dcqcn:Dcqcn",
    "timely": "rnic.cc.timely:Timely",
    "swift": "rnic.cc.swift:Swift",
    "hpcc": "rnic.cc.hpcc:Hpcc",
}
"""Built-in congestion controls by name."""


def points() -> dict[str, str]:
    """Return the entry points of installed packages: names and ``module:Class``."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to load, and seldom needed

    return {point.name: point.value for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """Return the names that :func:`find` accepts, besides the form ``module:Class``."""
    return [*OWN, *sorted(points().keys() - OWN.keys())]


def in_python(name: str) -> bool:
    """Return whether a congestion control exists in Python only, so that Python must run the data path."""
    kind = find(name)
    return kind is not Control and kind.number == CONTROL_OTHER


@cache
def find(name: str) -> type[Control]:
    """Return the class of a congestion control.

    Args:
        name: a name of :func:`names`, or ``module:Class``, or ``FOLDER/module:Class``.

    Raises:
        ValueError: the class does not exist or is not a :class:`~rnic.cc.control.Control`.
    """
    where = OWN.get(name, name)
    if ":" not in where:
        if name not in (known := points()):
            raise ValueError(f"{name!r} is not a congestion control; use {', '.join(names())} or module:Class")
        where = known[name]
    module, _, path = where.partition(":")
    folder, _, module = module.rpartition("/")
    if folder and folder not in sys.path:
        sys.path.append(folder)
    try:
        made = getattr(import_module(module), path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r} is not a congestion control: {error}; use a module on the Python path") from None
    if not isinstance(made, type) or not issubclass(made, Control):
        raise ValueError(f"{name!r} is not a congestion control; derive {path} from rnic.cc.control.Control")
    return made
