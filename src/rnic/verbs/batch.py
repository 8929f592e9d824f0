"""Work requests and completions as arrays: NumPy types with the layout of the rings, and checks of such arrays.

The types are built from the layout tables. A field that fills whole bytes has its own name; bits that share a word are
reached through that word: ``flags`` of a descriptor holds ``FLAG_*`` bits of :mod:`rnic.rings.sqe`, ``flags`` of a
completion ``CQE_*`` bits of :mod:`rnic.rings.cqe`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from errno import EINVAL, ENOSYS
from typing import TYPE_CHECKING, Any

from rnic.mem.order import fence
from rnic.rings.cqe import CQ_ENTRY, CQE_BYTES, CQE_PHASE
from rnic.rings.ring import PhaseConsumer
from rnic.rings.sqe import FLAG_FENCE, FLAG_SIGNALED, FLAG_SOLICITED, SQ_ENTRY_ATOMIC, SQ_ENTRY_UD, SQE_BYTES
from rnic.spec.errors import VerbsError
from rnic.spec.layout import Layout
from rnic.spec.source import install_hint

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

BATCH_FLAGS = FLAG_SIGNALED | FLAG_SOLICITED | FLAG_FENCE
"""Descriptor flags that an entry of a batch may have: inline data and lists need the slab, which batches do not use."""

_FORMATS = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "V16"}
_SEND_WORDS = {6: "flags"}
_DATAGRAM_WORDS = {6: "flags", 16: "path", 56: "dqpn_hop_limit"}
_COMPLETION_WORDS = {12: "flags"}


def array_fields(layout: Layout, words: Mapping[int, str]) -> dict[str, Any]:
    """Return the argument of ``numpy.dtype`` for a layout's structure.

    Args:
        layout: a little-endian structure.
        words: names of the words that hold bit fields, by byte; a word with a single field has that field's name.
    """
    places: dict[str, tuple[int, int]] = {}
    for field in layout.fields:
        if field.lsb % 8 == 0 and field.width in (8, 16, 32, 64, 128):
            places[field.name] = field.byte + field.lsb // 8, field.width // 8
        elif field.byte in words:
            places[words[field.byte]] = field.byte, field.unit
        else:
            places[field.name] = field.byte, field.unit
    return {
        "names": list(places),
        "formats": [_FORMATS[size] for _, size in places.values()],
        "offsets": [at for at, _ in places.values()],
        "itemsize": layout.size,
    }


def _numpy() -> Any:
    try:
        import numpy  # noqa: PLC0415 - optional, and slow to import for programs without arrays
    except ImportError:
        raise VerbsError(ENOSYS, f"batches are NumPy arrays, and NumPy is missing: {install_hint('numpy')}") from None
    return numpy


@functools.cache
def send_dtype() -> numpy.dtype[Any]:
    """Return the type of a descriptor of an RC or UC queue pair, 64 bytes: :data:`rnic.rings.sqe.SQ_ENTRY_ATOMIC`.

    Raises:
        VerbsError: ENOSYS without NumPy.
    """
    kind: numpy.dtype[Any] = _numpy().dtype(array_fields(SQ_ENTRY_ATOMIC, _SEND_WORDS))
    return kind


@functools.cache
def datagram_dtype() -> numpy.dtype[Any]:
    """Return the type of a descriptor of a UD queue pair, 64 bytes: :data:`rnic.rings.sqe.SQ_ENTRY_UD`.

    ``path`` holds flow label, traffic class (bit 20 on) and service level (bit 28 on), ``dqpn_hop_limit`` the
    destination QPN and the hop limit (bit 24 on). Raises as :func:`send_dtype`.
    """
    kind: numpy.dtype[Any] = _numpy().dtype(array_fields(SQ_ENTRY_UD, _DATAGRAM_WORDS))
    return kind


@functools.cache
def completion_dtype() -> numpy.dtype[Any]:
    """Return the type of a completion, 32 bytes: :data:`rnic.rings.cqe.CQ_ENTRY`. Raises as :func:`send_dtype`."""
    kind: numpy.dtype[Any] = _numpy().dtype(array_fields(CQ_ENTRY, _COMPLETION_WORDS))
    return kind


def checked(array: object, kind: numpy.dtype[Any], maker: str, *, filled: bool = False) -> NDArray[Any]:
    """Return ``array`` if it is a row of entries of type ``kind``; an output array must be writable and without gaps.

    Raises:
        VerbsError: EINVAL for anything else.
    """
    numpy: Any = sys.modules["numpy"]
    if not isinstance(array, numpy.ndarray):
        raise VerbsError(
            EINVAL, f"array={type(array).__name__} is not a NumPy array: make one of dtype rnic.verbs.{maker}()"
        )
    if (array.dtype is not kind and array.dtype != kind) or array.ndim != 1:
        has = str(array.dtype) if array.dtype.names is None else "fields " + ", ".join(array.dtype.names)
        raise VerbsError(
            EINVAL, f"array has dtype {has} and {array.ndim} dimensions: give one of dtype rnic.verbs.{maker}()"
        )
    if filled and not (array.flags.writeable and array.flags.c_contiguous):
        raise VerbsError(EINVAL, "array is read-only or has gaps between its entries: give one made by numpy.zeros")
    row: NDArray[Any] = array
    return row


def check_identifiers(wr_ids: object, least: int) -> None:
    """Check that an array has room for ``least`` identifiers. Raises ``VerbsError`` (EINVAL) otherwise."""
    numpy: Any = sys.modules["numpy"]
    if not isinstance(wr_ids, numpy.ndarray) or wr_ids.dtype.kind not in "iu" or wr_ids.dtype.itemsize != 8:
        raise VerbsError(EINVAL, "wr_ids is not an array of dtype int64 or uint64: make one by numpy.zeros")
    if wr_ids.ndim != 1 or len(wr_ids) < least:
        raise VerbsError(EINVAL, f"wr_ids has shape {wr_ids.shape}: give one dimension of at least {least}")


def words_of(entries: NDArray[Any]) -> NDArray[Any]:
    """Return descriptors as rows of 32-bit words: a view if they are contiguous, else a copy."""
    numpy: Any = sys.modules["numpy"]
    words: NDArray[Any] = numpy.ascontiguousarray(entries).view("<u4").reshape(len(entries), -1)
    return words


def first_bad(words: NDArray[Any], opcodes: frozenset[int]) -> tuple[int, str]:
    """Return the index of the first descriptor that cannot be posted as an array, and why; the length if all can be.

    The device checks keys, addresses and rights, as with any descriptor.
    """
    kinds = words[:, 1]
    if alike(kinds):
        reason = _fault(int(kinds[0]), opcodes)
        return (0, reason) if reason else (len(words), "")
    faults = {kind: reason for kind in set(kinds.tolist()) if (reason := _fault(kind, opcodes))}
    return next(((at, faults[kind]) for at, kind in enumerate(kinds.tolist()) if kind in faults), (len(words), ""))


def alike(column: NDArray[Any]) -> bool:
    """Return whether one or more 32-bit words are all equal; comparing bytes takes a quarter of the time of NumPy's
    ``all``."""
    data = column.tobytes()
    return data == data[:4] * len(column)


def _fault(kind: int, opcodes: frozenset[int]) -> str:
    """Return the error in opcode and flags, the second word of a descriptor."""
    opcode, flags = kind & 0xFFFF, kind >> 16
    if opcode not in opcodes:
        return f"opcode={opcode:#x} cannot be posted here by the array"
    if flags & ~BATCH_FLAGS:
        return f"flags={flags:#x}: a batch takes signaled, solicited and fence; post inline data and lists singly"
    return ""


class BatchRing:
    """A send ring as rows of 32-bit words."""

    __slots__ = ("_rows",)

    def __init__(self, ring: memoryview, entries: int) -> None:
        self._rows: NDArray[Any] = _numpy().frombuffer(ring[: entries * SQE_BYTES], "<u4").reshape(entries, -1)

    def put(self, tail: int, words: NDArray[Any]) -> list[int]:
        """Store descriptors from ``tail`` on, with wraparound; there must be room. Return their identifiers."""
        rows = self._rows
        first = len(rows) - tail
        rows[tail : tail + len(words)] = words[:first]
        if first < len(words):
            rows[: len(words) - first] = words[first:]
        ids: list[int] = words[:, 0].tolist()
        return ids


class BatchPolls:
    """A completion ring as rows of 32-bit words."""

    __slots__ = ("_ring", "_rows")

    def __init__(self, ring: PhaseConsumer) -> None:
        self._ring = ring
        count = ring.size * (CQE_BYTES // 4)
        self._rows: NDArray[Any] = _numpy().frombuffer(ring.view, "<u4", count).reshape(ring.size, -1)

    def of(self, ring: PhaseConsumer) -> bool:
        """Return whether this object is for ``ring``; a resized queue has another ring."""
        return self._ring is ring

    def take(self, words: NDArray[Any]) -> int:
        """Move completions up to the ring's end into rows of eight words. Return their number."""
        ring = self._ring
        head = ring.head
        rows = self._rows[head : head + len(words)]
        in_phase = (rows[:, 3] >= CQE_PHASE).tobytes()
        count = in_phase.find(b"\0" if ring.phase else b"\1")
        if count < 0:
            count = len(rows)
        fence()  # read the other words after the phase
        words[:count] = rows[:count]
        ring.skip(count)
        return count
