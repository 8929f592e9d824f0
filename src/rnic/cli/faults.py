"""Fault rules on the command line: a file, the rules themselves, or rates as a short form."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rnic.runtime.directory import ProcessError
from rnic.spec.json_text import json_value

_RATE = re.compile(r"(drop|corrupt|duplicate|mark)=(?:1/(\d+)|(\d*\.?\d+)(%?))")


def rate_rule(action: str, probability: float, direction: str = "rx") -> dict[str, object]:
    """Return a rule that applies to random packets of one direction."""
    return {"match": {"direction": direction}, "probability": probability, "action": action}


def from_rates(text: str) -> list[dict[str, object]] | None:
    """Parse rates such as ``drop=1%,mark=1/50`` into rules for random arriving packets; ``None`` if it is not a list.

    Raises:
        ValueError: a rate is 0 or above 1; the message is one line.
    """
    rules = []
    for part in text.split(","):
        found = _RATE.fullmatch(part.strip())
        if found is None:
            return None
        action, one_in, number, percent = found.groups()
        if one_in is not None:
            rate = 1 / int(one_in) if int(one_in) else 2.0
        else:
            rate = float(number) / (100 if percent else 1)
        if not 0 < rate <= 1:
            raise ValueError(
                f"rate {part.strip()!r} is not above 0 and at most 1: give drop=1%, drop=0.01 or drop=1/100"
            )
        rules.append(rate_rule(action, rate))
    return rules


def fault_rules(text: str | None) -> str | None:
    """Return the rules as JSON text, read from the file that ``text`` names unless it is rules or rates.

    They are checked here, since a device that already runs refuses any script.

    Raises:
        ProcessError: no such file, or not a fault script; the message is one line.
    """
    if text is None:
        return None
    if not text:
        raise ProcessError("fault script is empty: give a JSON file of rules, the rules themselves, or drop=1%")
    where = "fault script"
    try:
        rates = from_rates(text)
    except ValueError as error:
        raise ProcessError(f"{where}: {error}") from None
    if rates is not None:
        return json.dumps(rates)
    script = text
    if not text.lstrip().startswith(("[", "{")):
        where += f" {text}"
        try:
            script = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            hint = "give a file of rules, the rules themselves, or rates such as drop=1%"
            raise ProcessError(f"{where}: {error.strerror}: {hint}") from None
        except UnicodeDecodeError:
            raise ProcessError(f"{where} is not valid JSON: it is not text") from None
    from rnic.link.fault_script import parse_script  # noqa: PLC0415 - most programs do not need it
    from rnic.link.verbs_faults import parse_verbs_rules  # noqa: PLC0415

    try:
        rules = json_value(script)
        parse_script(rules)
        parse_verbs_rules(rules)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        near = _before(script, error.pos)
        raise ProcessError(f"{where} is not valid JSON: {error.msg} at {place}: {near}") from None
    except ValueError as error:
        raise ProcessError(f"{where}: {error}") from None
    return script


def _before(text: str, at: int) -> str:
    """Return the text before an offset, to show where an error is."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return f"after {line[-20:]!r}" if line else "at the beginning of the line"
