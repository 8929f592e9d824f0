"""Basic indexing of remote arrays against NumPy's own."""

from __future__ import annotations

from errno import EINVAL
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rnic.arrays import indexing
from rnic.arrays.indexing import select
from rnic.spec.errors import VerbsError


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_elements_are_those_that_numpy_selects(data: Any) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5))
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=False))
    flat = np.arange(np.prod(shape)).reshape(shape)
    selection = select(shape, index, "a")
    found = [first + place for first in selection.firsts for place in range(selection.count)]
    assert found == flat[index].ravel().tolist()
    assert selection.shape == flat[index].shape


@pytest.mark.parametrize(
    ("index", "runs", "count"),
    [
        (np.s_[10:20], [300], 300),
        (np.s_[3], [90], 30),
        (np.s_[:], [0], 3000),
        (np.s_[2, 4:9], [64], 5),
        (np.s_[1:3, 4:9], [34, 64], 5),
        (np.s_[::50], [0, 1500], 30),
        (np.s_[0, ::15], [0, 15], 1),
        (np.s_[5:5], [], 0),
    ],
)
def test_neighbours_are_one_request(index: Any, runs: list[int], count: int) -> None:
    selection = select((100, 30), index, "a")
    assert (list(selection.firsts), selection.count) == (runs, count)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (1.0, "index=1.0 is a float; give a whole number"),
        ("x", "index='x' is a str"),
        (slice(0.5, 3), "slice bound=0.5 is a float"),
        (100, "index 100 is outside axis 0 of 'a', which has 100 elements"),
        ((0, -31), "index -31 is outside axis 1"),
        ((1, 2, 3), "has 2 dimensions"),
        ((..., ...), "names more"),
        ([1, 2], "is a list"),
        (
            np.arange(4000).reshape(-1, 2) > 5,
            r"^index=array.{10,60}\.\.\. is a ndarray; give whole numbers and slices[^\n]*$",
        ),
    ],
)
def test_what_is_no_index_is_refused_by_name(index: Any, says: str) -> None:
    with pytest.raises(VerbsError, match=says):
        select((100, 30), index, "a")


@pytest.mark.parametrize("index", [100, (0, -31), (1, 2, 3)])
def test_a_place_that_is_not_there_is_an_index_error(index: Any) -> None:
    with pytest.raises(IndexError, match="'a'") as caught:
        select((100, 30), index, "a")
    assert isinstance(caught.value, VerbsError)
    assert caught.value.errno == EINVAL


def test_requests_of_one_call_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "MAX_RUNS", 49)
    with pytest.raises(VerbsError, match="takes 50 requests"):
        select((100,), slice(None, None, 2), "a")
