"""Untrusted JSON: any input gives a value or a ``ValueError`` of one line."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON")


def json_value(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not valid JSON (``json.JSONDecodeError``), has a number with too many digits or
            one that JSON does not allow, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
