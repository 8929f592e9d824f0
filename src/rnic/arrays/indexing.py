"""Resolve an index of a remote array into runs of adjacent elements, each transferred by one request."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from errno import EINVAL
from math import prod
from types import EllipsisType
from typing import Any

from rnic.spec.errors import VerbsError, VerbsIndexError

MAX_RUNS = 1 << 17
"""Most requests of one call. To read more scattered elements, read the range that contains them."""

MAX_SHOWN = 60
"""Longest value shown in an error message, in characters."""

Index = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """Elements that an index selects: a shape, and runs in the order of that shape."""

    shape: tuple[int, ...]
    firsts: Sequence[int]
    """First element of each run, counted in the flat array."""
    count: int
    """Elements of each run."""

    @property
    def size(self) -> int:
        """Elements of all runs."""
        return len(self.firsts) * self.count


def whole_number(name: str, value: Any, instead: str = "a whole number, counted in elements") -> int:
    """Return ``value`` as an int, if it is one.

    Args:
        instead: valid input, for the error message.

    Raises:
        VerbsError: EINVAL naming it for any other type, including bool, and float even without a fraction.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise VerbsError(EINVAL, f"{name}={_shown(value)} is a {type(value).__name__}; give {instead}") from None


def _instead(item: Any) -> str:
    """Return the suggestion shown for an index that NumPy accepts but a remote array does not."""
    if isinstance(item, str):
        return "whole numbers and slices; a field is read with its records, array[...][field]"
    if isinstance(item, Iterable):
        return "whole numbers and slices; read_many reads by a list of offsets"
    return "a whole number, counted in elements"


def _shown(value: Any) -> str:
    """Return the value's ``repr`` in one line, of at most :data:`MAX_SHOWN` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def select(shape: tuple[int, ...], index: Any, name: str) -> Selection:
    """Return the elements of an array of ``shape`` (C order) that ``index`` selects by NumPy's rules of basic indexing.

    Args:
        index: whole numbers, slices of any step, an ellipsis, or a tuple of these.
        name: the array's, for messages.

    Raises:
        VerbsIndexError: EINVAL for an index out of range, or of more dimensions than there are.
        VerbsError: EINVAL for an index of another type, or one that takes more than :data:`MAX_RUNS` requests.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    dots = sum(item is Ellipsis for item in items)
    if dots > 1 or len(items) - dots > len(shape):
        raise VerbsIndexError(EINVAL, f"{name!r} has {len(shape)} dimensions; index {_shown(index)} names more")
    if not dots:
        items.append(Ellipsis)
    at = next(place for place, item in enumerate(items) if item is Ellipsis)
    items[at : at + 1] = [slice(None)] * (len(shape) - len(items) + 1)
    ranges: list[range] = []
    kept: list[int] = []
    for axis, (item, extent) in enumerate(zip(items, shape, strict=True)):
        if isinstance(item, slice):
            for part in (item.start, item.stop, item.step):
                if part is not None:
                    whole_number("slice bound", part)
            chosen = range(*item.indices(extent))
            kept.append(len(chosen))
        else:
            place = whole_number("index", item, _instead(item))
            if not -extent <= place < extent:
                raise VerbsIndexError(
                    EINVAL, f"index {place} is outside axis {axis} of {name!r}, which has {extent} elements"
                )
            chosen = range(place % extent, place % extent + 1)
        ranges.append(chosen)
    return Selection(tuple(kept), *_runs(shape, ranges, name))


def _runs(shape: tuple[int, ...], ranges: list[range], name: str) -> tuple[Sequence[int], int]:
    """Return the longest possible runs: trailing axes that are selected whole extend the runs of the axis before."""
    if any(not chosen for chosen in ranges):
        return [], 0
    count, axis = 1, len(shape)
    while axis:
        chosen = ranges[axis - 1]
        if len(chosen) > 1 and chosen.step != 1:
            break
        count *= len(chosen)
        axis -= 1
        if len(chosen) != shape[axis]:
            break
    first = sum(ranges[place][0] * prod(shape[place + 1 :]) for place in range(axis, len(shape)))
    outer = prod(len(chosen) for chosen in ranges[:axis])
    if outer > MAX_RUNS:
        raise VerbsError(
            EINVAL, f"this index of {name!r} takes {outer} requests; read at most {MAX_RUNS} pieces at a time"
        )
    return [first + base for base in _bases(shape, ranges[:axis])], count


def _bases(shape: tuple[int, ...], ranges: list[range]) -> Iterator[int]:
    if not ranges:
        yield 0
        return
    stride = prod(shape[len(ranges) :])  # elements per step of the last of these axes
    for base in _bases(shape, ranges[:-1]):
        for place in ranges[-1]:
            yield base + place * stride
