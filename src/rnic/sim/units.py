"""Quantities with units, as papers write them, and suggestions for misspelled keys.

A key's last word is its unit, such as ``size_bytes`` and ``delay_ns``. A number is in that unit; text names one:
``"64 KiB"``, ``"1 us"``, ``"40 Mb/s"``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from rnic.spec.congestion_regs import WINDOW_NS
from rnic.spec.errors import shown

_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_RATES = {"b/s": 1, "kb/s": 10**3, "Mb/s": 10**6, "Gb/s": 10**9, "Tb/s": 10**12}
_KINDS: dict[str, tuple[Mapping[str, int], Fraction]] = {
    "bytes": (_BYTES, Fraction(1)),
    "ns": (_TIMES, Fraction(1)),
    "us": (_TIMES, Fraction(10**3)),
    "ms": (_TIMES, Fraction(10**6)),
    "gbps": (_RATES, Fraction(10**9)),
    # the registers' unit: bytes in a window of 1,024 ns
    "rate": (_RATES, Fraction(8 * 10**9, WINDOW_NS)),
}
"""For the last word of a key: allowed units, and the size of the key's own unit."""
_QUANTITY = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{0,30})?)\s*([A-Za-z/]{1,5})\s*")
_PAPER_DCQCN = {
    "r_ai": "additive_rate",
    "r_hai": "hyper_rate",
    "f": "recovery_rounds",
    "byte_counter": "counter_bytes",
    "timer": "timer_ns",
    "alpha_timer": "alpha_ns",
    "min_rate": "least_rate",
}
"""Names of the DCQCN paper, and fields of :class:`~rnic.cc.dcqcn.DcqcnSettings`."""


def plain(key: str, value: Any) -> Any:
    """Convert text with a unit to a number in the unit of its key; return other values unchanged.

    Args:
        key: name whose last word is a unit.
        value: number, or text such as ``"64 KiB"``.

    Raises:
        ValueError: the text has no number, or a unit that the key does not allow.
    """
    kind = _KINDS.get(key.rsplit("_", 1)[-1])
    if kind is None or not isinstance(value, str):
        return value
    units, own = kind
    found = _QUANTITY.fullmatch(value)
    if found is None or found[2] not in units:
        raise ValueError(f"{key}={shown(value)} is no quantity: give a number, and one of {', '.join(units)} behind it")
    exact = Fraction(found[1]) * units[found[2]] / own
    if exact.denominator == 1:
        return int(exact)
    return float(exact) if key.endswith(("us", "ms", "gbps")) else max(1, round(exact))


def plain_table(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with all quantities converted to numbers, including nested tables.

    Raises:
        ValueError: as :func:`plain`.
    """
    return {key: plain_table(value) if isinstance(value, Mapping) else plain(key, value) for key, value in rows.items()}


def paper_dcqcn(rows: object) -> object:
    """Return DCQCN settings by rnic's names, from a table that may use the paper's names, and ``g``.

    Raises:
        ValueError: ``g`` is not one over a power of two, or a value as :func:`plain`.
    """
    if not isinstance(rows, Mapping):
        return rows
    named = {_PAPER_DCQCN.get(str(key), str(key)): value for key, value in rows.items()}
    g = named.pop("g", None)
    if g is not None:
        try:
            part = Fraction(g).limit_denominator(1 << 20)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError):
            part = Fraction(0)
        shift = part.denominator.bit_length() - 1
        if part.numerator != 1 or part.denominator != 1 << shift:
            raise ValueError(f"g={shown(g)} cannot be: give one over a power of two, such as 1/256 in quotes")
        named["g_shift"] = shift
    return plain_table(named)


def near(name: str, known: Iterable[str]) -> str:
    """Return a suggestion of the known key most similar to a misspelled one, followed by a space; or an empty
    string."""
    found = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {found[0]}? " if found else ""
