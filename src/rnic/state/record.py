"""Records of 64-bit words: layout tables, and Python views with an attribute for each word.

A record is a :class:`~rnic.spec.layout.Layout` with one 8-byte word for each field: C reads it as a ``struct`` of
``uint64_t``, Python as items of a memory view. ``access`` names the field's owner, the only class that writes it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from inspect import get_annotations
from typing import Any, Final, Generic, Self, TypeVar

from rnic.spec.layout import Layout, wide
from rnic.state.structure import structure

WORD_BYTES: Final = 8
WORD_SHIFT: Final = 3
"""log2 of :data:`WORD_BYTES`: an offset shifted by this is an index in an arena's words."""
NONE: Final = (1 << 64) - 1
"""Value of a word without a valid index or PSN."""

Owned = tuple[str, str, str]
"""Name, owner and meaning of a word."""

T = TypeVar("T")


class Word:
    """Annotation of an attribute that is a word of a record: an ``int``, truncated to 64 bits when stored."""

    def __get__(self, obj: object, owner: type) -> int:
        """Declare the type for checkers; :func:`view` replaces it by the real attribute."""
        raise NotImplementedError

    def __set__(self, obj: object, value: int) -> None:
        """Declare the type, as :meth:`__get__` does."""
        raise NotImplementedError


class Part(Word):
    """Annotation of an attribute that is a bit field of a layout that :func:`overlay` names."""


def record(name: str, source: str, words: tuple[Owned, ...], at_least: int = 0) -> Layout:
    """Return the layout of a record: consecutive ``words``, padded to whole cache lines or to ``at_least`` words."""
    size = max(len(words), at_least)
    fields = tuple(wide(word, index * WORD_BYTES, doc, 8, owner) for index, (word, owner, doc) in enumerate(words))
    return Layout(name, size * WORD_BYTES, "little", source, fields)


def place(layout: Layout, name: str) -> int:
    """Return the index of a field's word in the record."""
    return layout[name].byte // WORD_BYTES


def part(prefix: str, layout: Layout) -> tuple[Owned, ...]:
    """Return the words of a record, to embed in a larger one; their names get ``prefix``."""
    return tuple((prefix + field.name, field.access, field.doc) for field in layout.fields)


def within(layout: Layout, prefix: str, inner: Layout) -> slice:
    """Return the slice of a record that holds the words of ``inner``, embedded by :func:`part`."""
    first = place(layout, prefix + inner.fields[0].name)
    return slice(first, first + len(inner.fields))


def _word(index: int, doc: str) -> property:
    def get(self: Any) -> int:
        value: int = self.words[index]
        return value

    def put(self: Any, value: int) -> None:
        self.words[index] = value

    return property(get, put, doc=doc)


class Record(ctypes.Structure):
    """Base of classes whose objects overlay a record: :func:`view` makes their attributes fields that ``ctypes``
    accesses.

    This halves the access time compared with other classes, but the record must not move while the object lives. Values
    are truncated to 64 bits.

    Args:
        memory: memory that holds the record, in bytes. Further arguments go to the class itself.
        at: offset of the record in the memory.
    """

    __slots__ = ()

    def __new__(cls, memory: memoryview, at: int, *more: object) -> Self:
        """Overlay the memory, which the object keeps alive."""
        return cls.from_buffer(memory, at)

    def __init__(self, *what: object) -> None:
        """Do nothing: ``__new__`` has taken the arguments."""


R = TypeVar("R", bound=Record)


class Run(dict[int, R], Generic[R]):
    """An array of records of one kind: each view is made on first access and knows its index.

    Args:
        kind: the class of the views.
        memory: memory that holds the records.
        first: offset of the first record.
        size: bytes of one record.
    """

    __slots__ = ("_first", "_kind", "_memory", "_size")

    def __init__(self, kind: type[R], memory: memoryview, first: int, size: int) -> None:
        self._kind = kind
        self._memory = memory
        self._first = first
        self._size = size

    def __missing__(self, index: int) -> R:
        found = self[index] = self._kind(self._memory, self._first + index * self._size, index)
        return found


def fields(layout: Layout) -> dict[str, Any]:
    """Return the fields of a layout as attributes for subclasses of :class:`Record`, by name."""
    kind: Any = ctypes.LittleEndianStructure if layout.endian == "little" else ctypes.BigEndianStructure
    found = vars(type(kind)("Whole", (kind,), {"_pack_": 1, "_layout_": "ms", "_fields_": structure(layout)}))
    return {field.name: found[field.name] for field in layout.fields if field.name in found}


def view(layout: Layout, *owners: str) -> Callable[[type[T]], type[T]]:
    """Give a class an attribute for each field of ``layout``, or for those of ``owners``.

    For a :class:`Record` they are fields of the underlying memory; for any other class, items of its ``words``, a
    record that may move. Annotations declare the names for type checkers; fields and annotations must match.

    Raises:
        TypeError: the class's annotations differ from those fields.
    """

    def decorate(cls: type[T]) -> type[T]:
        own = {field.name: field for field in layout.fields if not owners or field.access in owners}
        declared = {name for name, kind in get_annotations(cls).items() if kind == "Word"}
        if declared != set(own):
            raise TypeError(f"{cls.__name__} and {layout.name} differ in {sorted(declared ^ set(own))}")
        if issubclass(cls, Record):
            found = fields(layout)
            for name in own:
                setattr(cls, name, found[name])
        else:
            for name, field in own.items():
                setattr(cls, name, _word(field.byte // WORD_BYTES, field.doc))
        return cls

    return decorate


def overlay(*layouts: Layout) -> Callable[[type[R]], type[R]]:
    """Give a :class:`Record` an attribute for each annotation :class:`Part`: a field of the first layout that has it.

    Raises:
        TypeError: no layout has the field.
    """

    def decorate(cls: type[R]) -> type[R]:
        known: dict[str, Any] = {}
        for layout in reversed(layouts):
            known |= fields(layout)
        for name, kind in get_annotations(cls).items():
            if kind == "Part":
                if name not in known:
                    raise TypeError(
                        f"{cls.__name__}.{name} is not a field of {', '.join(each.name for each in layouts)}"
                    )
                setattr(cls, name, known[name])
        return cls

    return decorate
