"""Arrays as they travel: type and shape beside the bytes. NumPy is used where it is installed, else plain bytes are."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from errno import EINVAL, ENOMEM
from math import prod
from typing import Any

from rnic.cm.exchange import DTYPE_PATTERN, MAX_DIMENSIONS, item_bytes
from rnic.mem.space import byte_view
from rnic.spec.errors import VerbsError

BYTES = "|u1"
HEADER_BYTES = 256
"""Room for a message's header; the array follows it."""

_LENGTH = struct.Struct("<HH")
_ALIGN = 16


def describe(buffer: object) -> tuple[str, tuple[int, ...]]:
    """Array type, as ``numpy.dtype.str``, and shape; of what is no NumPy array, bytes."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(buffer, numpy.ndarray | numpy.generic):
        return str(buffer.dtype.str), tuple(buffer.shape)
    return BYTES, (byte_view(buffer).nbytes,)


def new_array(dtype: str, shape: tuple[int, ...]) -> Any:
    """Memory for an array: a NumPy array, or a bytearray where NumPy is not installed.

    Raises:
        VerbsError: EINVAL for a type that NumPy does not know or takes for another size, ENOMEM for what is too big.
    """
    try:
        import numpy  # noqa: PLC0415 - optional, and slow to import for who reads no array
    except ImportError:
        return _allocated(lambda: bytearray(prod(shape) * item_bytes(dtype)), dtype, shape)
    try:
        kind = numpy.dtype(dtype)
        if kind.itemsize != item_bytes(dtype):
            raise ValueError(kind.itemsize)
        return _allocated(lambda: numpy.empty(shape, kind), dtype, shape)
    except (TypeError, ValueError):
        raise VerbsError(
            EINVAL, f"dtype={dtype!r} of the remote buffer is none that this NumPy knows; read into="
        ) from None


def _allocated(make: Callable[[], Any], dtype: str, shape: tuple[int, ...]) -> Any:
    try:
        return make()
    except (MemoryError, OverflowError):
        raise VerbsError(ENOMEM, f"no memory for an array of {shape} elements of {dtype}; read into=") from None


def message_header(buffer: object, is_bytes: bool) -> bytes:
    """What goes in front of a message: its type and shape, padded so that the array behind it is aligned."""
    text = b"" if is_bytes else json.dumps(describe(buffer), separators=(",", ":")).encode()
    size = -(-(_LENGTH.size + len(text)) // _ALIGN) * _ALIGN
    if size > HEADER_BYTES:
        raise VerbsError(EINVAL, "an array of so many dimensions does not fit a message; send it flattened")
    return (_LENGTH.pack(size, len(text)) + text).ljust(size, b"\0")


def open_message(view: memoryview) -> Any:
    """A received message as what was sent: bytes, or an array of its own memory.

    Raises:
        VerbsError: EINVAL where the peer's header makes no sense.
    """
    try:
        size, length = _LENGTH.unpack_from(view)
        if not length:
            return bytes(view[size:]) if size >= _LENGTH.size else _refuse()
        dtype, shape = json.loads(bytes(view[_LENGTH.size : _LENGTH.size + length]))
    except (struct.error, ValueError, TypeError, RecursionError):
        _refuse()
    if not isinstance(dtype, str) or not DTYPE_PATTERN.fullmatch(dtype) or not isinstance(shape, list):
        _refuse()
    if len(shape) > MAX_DIMENSIONS or any(type(extent) is not int or extent < 0 for extent in shape):
        _refuse()
    data = view[size:]
    if prod(shape) * item_bytes(dtype) != len(data):
        _refuse()
    array = new_array(dtype, tuple(shape))
    if len(data):
        byte_view(array)[:] = data
    return array


def _refuse() -> Any:
    raise VerbsError(EINVAL, "the peer sent a message without a valid header; does it use rnic's send()?")
