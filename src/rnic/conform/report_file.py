"""The report as a file, which any user may submit: its fields, and a reader that trusts no input.

A report is a JSON object of :data:`FIELDS`; its ``results`` are objects of :data:`RESULT_FIELDS`. Other fields are
ignored, so that a later version may add some.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rnic.conform.runner import VERDICTS
from rnic.conform.script import SUITES
from rnic.spec.errors import RnicError
from rnic.spec.json_text import json_value

FORMAT = "rnic conform report"
VERSION = 1
MAX_BYTES = 16 << 20
"""Largest report file, in bytes."""
MAX_RESULTS = 10_000
MAX_TEXT = 1_000
"""Longest text value, in characters."""


class ReportError(RnicError):
    """The file is not a report; the message is one line with the file, the field, its value and the valid values."""


class Entry(NamedTuple):
    """One field. ``kind`` is its type; a text without ``needed`` is optional; ``values`` are the valid ones."""

    kind: type
    needed: bool
    says: str
    values: tuple[object, ...] = ()


FIELDS: dict[str, Entry] = {
    "format": Entry(str, True, "what this is", (FORMAT,)),
    "version": Entry(int, True, "of this form", (VERSION,)),
    "rnic": Entry(str, True, "version of the rnic that played the scripts"),
    "made": Entry(str, True, "when, as ISO 8601"),
    "peer": Entry(dict, True, "the peer: its fields are below"),
    "results": Entry(list, True, "a result for each script"),
    "title": Entry(str, False, "the command"),
    "counts": Entry(dict, False, "how many results have which verdict"),
    "deviations": Entry(dict, False, "scripts by the name of the deviation that they show"),
}
PEER_FIELDS: dict[str, Entry] = {
    "name": Entry(str, True, "what it is: card, firmware, kernel"),
    "maker": Entry(str, True, "whose known deviations hold, as its agent says"),
    "mtu": Entry(int, False, "largest path MTU in bytes"),
}
RESULT_FIELDS: dict[str, Entry] = {
    "test": Entry(str, True, "name of the script; each once"),
    "suite": Entry(str, True, "its suite", SUITES),
    "clause": Entry(str, True, "clause of the standard"),
    "says": Entry(str, True, "the rule in a sentence"),
    "verdict": Entry(str, True, "verdict of the script", VERDICTS),
    "detail": Entry(str, False, "of a fail, what arrived instead; of a deviation, its name; else the reason"),
    "seconds": Entry(float, False, "duration"),
    "script": Entry(list, False, "lines of the script"),
    "log": Entry(list, False, "log of the run, one line per event"),
}
_TYPES = {str: "a text", int: "a whole number", float: "a number", dict: "an object", list: "a list"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one script."""

    test: str
    suite: str
    clause: str
    says: str
    verdict: str
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """Results of one peer. ``made`` and ``rnic`` are the time and the rnic version of the run."""

    name: str
    maker: str
    made: str
    rnic: str
    results: tuple[Verdict, ...]


def read_report(path: str | os.PathLike[str]) -> Report:
    """Read a report that ``rnic conform --report`` wrote, or that claims so.

    Raises:
        ReportError: it cannot be read, is too large, or is not a report.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ReportError(f"{path}: is not a report: more than {MAX_BYTES:,} bytes")
    try:
        return report_of(json_value(data))
    except ValueError as error:  # bad encoding, bad JSON, or a bad field
        raise ReportError(f"{path}: is not a report: {' '.join(str(error).split())[:MAX_TEXT]}") from None


def report_of(value: object) -> Report:
    """Convert a JSON value to a report.

    Raises:
        ValueError: it is not a report; the message is one line.
    """
    report = _checked(value, FIELDS, "the file")
    peer = _checked(report["peer"], PEER_FIELDS, "peer")
    if not 0 < len(report["results"]) <= MAX_RESULTS:
        raise ValueError(f"results has {len(report['results'])} entries: 1 to {MAX_RESULTS} are right")
    results: dict[str, Verdict] = {}
    for number, each in enumerate(report["results"]):
        found = _checked(each, RESULT_FIELDS, f"results[{number}]")
        if found["test"] in results:
            raise ValueError(f"results[{number}].test is {found['test']!r} for the second time")
        results[found["test"]] = Verdict(**{name: found.get(name, "") for name in Verdict.__slots__})
    return Report(peer["name"], peer["maker"], report["made"], report["rnic"], tuple(results.values()))


def _checked(value: object, fields: Mapping[str, Entry], where: str) -> dict[str, Any]:
    """Return the known fields of an object, after checking their types."""
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {_shown(value)}: give an object")
    prefix = "" if where == "the file" else f"{where}."
    found = {}
    for name, entry in fields.items():
        if name not in value:
            if entry.needed:
                raise ValueError(f"{prefix}{name} is missing: {entry.says}")
            continue
        held = value[name]
        kinds = (int, float) if entry.kind is float else entry.kind
        if isinstance(held, bool) or not isinstance(held, kinds):
            raise ValueError(f"{prefix}{name} is {_shown(held)}: give {_TYPES[entry.kind]}")
        if entry.values and held not in entry.values:
            right = " or ".join(str(each) for each in entry.values)
            raise ValueError(f"{prefix}{name} is {_shown(held)}: give {right}")
        if isinstance(held, str):
            if len(held) > MAX_TEXT:
                raise ValueError(f"{prefix}{name} has {len(held)} characters: at most {MAX_TEXT} are right")
            held = "".join(char if char.isprintable() else " " for char in held)
        found[name] = held
    return found


def _shown(value: object) -> str:
    """Return a value for a message: short, in one line."""
    return ascii(value)[:80] if isinstance(value, str | int | float) or value is None else _TYPES[type(value)]


__all__ = [
    "FIELDS",
    "FORMAT",
    "PEER_FIELDS",
    "RESULT_FIELDS",
    "VERSION",
    "Report",
    "ReportError",
    "Verdict",
    "read_report",
    "report_of",
]
