from __future__ import annotations

import pytest

from rnic.spec.errors import shown
from rnic.spec.json_text import json_value


@pytest.mark.parametrize("text", ["[" * 60_000, "9" * 5_000, "NaN", "[Infinity]", "", "{", b"\xff"])
def test_what_is_no_json_is_a_value_error_of_one_line(text: str | bytes) -> None:
    with pytest.raises(ValueError) as caught:
        json_value(text)
    assert "\n" not in str(caught.value)


def test_values_are_shown_shortly_whatever_they_are() -> None:
    nest: list[object] = []
    for _ in range(5_000):
        nest = [nest]
    assert shown(10**5000) == "a int that is too long to show"
    assert shown(nest) == "a list that is too long to show"
    assert len(shown("x" * 1000)) == 60
    assert shown("x") == "'x'"
