"""Records of 64-bit words: tables, and Python views whose attributes are the words.

A record is a :class:`~rnic.spec.layout.Layout` like any other, with one word of eight bytes for each field, so that
C reads it as a ``struct`` of ``uint64_t`` and Python as one item of a memory view. ``access`` names the field's owner:
the one unit that writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import get_annotations
from typing import Any, Final, TypeVar

from rnic.spec.layout import Layout, wide

WORD_BYTES: Final = 8
WORD_SHIFT: Final = 3
"""log2 of it: an offset shifted by this is a place in an arena's words."""
NONE: Final = (1 << 64) - 1
"""In a word: no such index, no such PSN."""

Owned = tuple[str, str, str]
"""Name, owner and meaning of a word."""

T = TypeVar("T")


class Word:
    """Annotation of an attribute that is a word of a record: an ``int`` to read, an ``int`` of 64 bits to store."""

    def __get__(self, obj: object, owner: type) -> int:
        """Stands for the property that :func:`view` puts in its place."""
        raise NotImplementedError

    def __set__(self, obj: object, value: int) -> None:
        """As :meth:`__get__`."""
        raise NotImplementedError


def record(name: str, source: str, words: tuple[Owned, ...], at_least: int = 0) -> Layout:
    """The layout of a record: ``words`` one after another, in whole cache lines or at least ``at_least`` words."""
    size = max(len(words), at_least)
    fields = tuple(wide(word, index * WORD_BYTES, doc, 8, owner) for index, (word, owner, doc) in enumerate(words))
    return Layout(name, size * WORD_BYTES, "little", source, fields)


def place(layout: Layout, name: str) -> int:
    """Which word of the record a field is."""
    return layout[name].byte // WORD_BYTES


def part(prefix: str, layout: Layout) -> tuple[Owned, ...]:
    """The words of a record as a run of words of a larger one, where their names begin with ``prefix``."""
    return tuple((prefix + field.name, field.access, field.doc) for field in layout.fields)


def within(layout: Layout, prefix: str, inner: Layout) -> slice:
    """Where :func:`part` put the words of ``inner`` in a record."""
    first = place(layout, prefix + inner.fields[0].name)
    return slice(first, first + len(inner.fields))


def _whole(index: int, doc: str) -> property:
    def get(self: Any) -> int:
        value: int = self.words[index]
        return value

    def put(self: Any, value: int) -> None:
        self.words[index] = value

    return property(get, put, doc=doc)


def _item(index: int, doc: str) -> property:
    def get(self: Any) -> int:
        value: int = self.words[self.base + index]
        return value

    def put(self: Any, value: int) -> None:
        self.words[self.base + index] = value

    return property(get, put, doc=doc)


def view(layout: Layout, *owners: str, item: bool = False) -> Callable[[type[T]], type[T]]:
    """Give a class an attribute for each field of ``layout``, or for those of ``owners``.

    The object's ``words`` is the record as words; with ``item`` a run of records, in which its own begins at ``base``.
    Annotations say the names to type checkers; a field without one, or one without a field, is an error.

    Raises:
        TypeError: the annotations of the class are not those fields.
    """
    make = _item if item else _whole

    def decorate(cls: type[T]) -> type[T]:
        fields = {field.name: field for field in layout.fields if not owners or field.access in owners}
        declared = {name for name, kind in get_annotations(cls).items() if kind == "Word"}
        if declared != set(fields):
            raise TypeError(f"{cls.__name__} and {layout.name} differ in {sorted(declared ^ set(fields))}")
        for name, field in fields.items():
            setattr(cls, name, make(field.byte // WORD_BYTES, field.doc))
        return cls

    return decorate
