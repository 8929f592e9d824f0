"""Encode arrays in messages: type, shape and bytes. Without NumPy, arrays are plain bytes."""

from __future__ import annotations

import json
import struct
import sys
import warnings
from collections.abc import Callable
from errno import EINVAL, ENOMEM
from math import prod
from mmap import mmap
from typing import Any

from rnic.arrays.handshake import DTYPE_PATTERN, MAX_DIMENSIONS, BufferInfo, Fields, fields_bytes, item_bytes
from rnic.mem.space import byte_view
from rnic.spec.errors import VerbsError

BYTES = "|u1"
HEADER_BYTES = 256
"""Room for a message's header; the array follows it."""

_NATIVE = "<" if sys.byteorder == "little" else ">"
_ORDERS = {"@": _NATIVE, "=": _NATIVE, "<": "<", ">": ">", "!": ">"}
"""Byte orders of a buffer's format, as NumPy writes them."""
_KINDS = dict.fromkeys("bhilqn", "i") | dict.fromkeys("BHILQN", "u") | dict.fromkeys("efd", "f") | {"?": "b"}
"""Kinds of numbers by the letter of a buffer's format."""
_LENGTH = struct.Struct("<HH")
_ALIGN = 16


def describe(buffer: object) -> tuple[str, tuple[int, ...], Fields | None]:
    """Return the array type, as ``numpy.dtype.str``, the shape, and the fields of a structured type.

    Other buffers of numbers, such as ``array.array`` and ctypes arrays, keep type and shape; the rest is bytes.

    Raises:
        VerbsError: EINVAL for a type that peers do not accept, or an array that is not in C order.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(buffer, numpy.ndarray | numpy.generic):
        return *(_numbers(buffer) or (BYTES, (byte_view(buffer).nbytes,))), None
    if not buffer.flags.c_contiguous:
        raise VerbsError(
            EINVAL,
            "array is not contiguous in C order, in which peers count its elements; give numpy.ascontiguousarray(it)"
            + (", or its transpose (it.T)" if buffer.flags.f_contiguous else ""),
        )
    kind = buffer.dtype
    if not DTYPE_PATTERN.fullmatch(kind.str):
        raise VerbsError(EINVAL, f"dtype={kind} is a type that does not travel; convert the array")
    fields: Any = None
    if kind.names is not None:
        with warnings.catch_warnings():
            # fields that overlap or lie out of order have no such description; they are sent as plain bytes
            warnings.simplefilter("ignore", UserWarning)
            fields = _listed(numpy.lib.format.dtype_to_descr(kind))
        if not isinstance(fields, list):
            fields = None
    return str(kind.str), tuple(buffer.shape), fields


def _numbers(buffer: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return type and shape of a buffer of numbers that is not a NumPy array; ``None`` for bytes and non-buffers."""
    try:
        with memoryview(buffer) as view:
            order, letter = (view.format[0], view.format[1:]) if view.format[0] in _ORDERS else ("=", view.format)
            kind = _KINDS.get(letter)
            if kind is None or not view.nbytes or not view.c_contiguous:
                return None
            return f"{'|' if view.itemsize == 1 else _ORDERS[order]}{kind}{view.itemsize}", tuple(view.shape or ())
    except TypeError:
        return None


def _listed(value: Any) -> Any:
    """Return ``value`` as JSON decodes it: with lists for tuples."""
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def _tupled(fields: Any) -> Any:
    """Return fields as NumPy expects them: a list of tuples."""
    if isinstance(fields, str):
        return fields
    return [(field[0], _tupled(field[1]), *(tuple(shape) for shape in field[2:])) for field in fields]


def array_type(dtype: str, fields: Fields | None = None) -> Any:
    """Return the NumPy type; ``None`` if NumPy is not installed.

    Raises:
        VerbsError: EINVAL for a type that NumPy does not know, or to which it gives another size.
    """
    try:
        import numpy  # noqa: PLC0415 - optional, and slow to import for programs that read no array
    except ImportError:
        return None
    try:
        kind = numpy.dtype(dtype) if fields is None else numpy.lib.format.descr_to_dtype(_tupled(fields))
        if kind.itemsize != item_bytes(dtype):
            raise ValueError(kind.itemsize)
    except (TypeError, ValueError, RecursionError):
        raise VerbsError(
            EINVAL, f"dtype={dtype!r} of the remote buffer is none that this NumPy knows; read into= a bytearray"
        ) from None
    return kind


def new_array(dtype: str, shape: tuple[int, ...], fields: Fields | None = None) -> Any:
    """Allocate an array: a NumPy array, or a bytearray if NumPy is not installed.

    Raises:
        VerbsError: EINVAL as :func:`array_type`, ENOMEM for an array that is too large.
    """
    kind = array_type(dtype, fields)
    if kind is None:
        return _allocated(lambda: bytearray(prod(shape) * item_bytes(dtype)), dtype, shape)
    numpy: Any = sys.modules["numpy"]
    return _allocated(lambda: numpy.empty(shape, kind), dtype, shape)


def _allocated(make: Callable[[], Any], dtype: str, shape: tuple[int, ...]) -> Any:
    try:
        return make()
    except (MemoryError, OverflowError, ValueError):
        raise VerbsError(ENOMEM, f"no memory for an array of {shape} elements of {dtype}; read into=") from None


# ---------------------------------------------------------- values written to and read from a remote array


def is_raw(buffer: object) -> bool:
    """Return whether a buffer holds untyped bytes, which are written and read without conversion."""
    if isinstance(buffer, bytes | bytearray | mmap):
        return True
    return isinstance(buffer, memoryview) and buffer.format in ("B", "b", "c")


def typed(data: Any, info: BufferInfo, casting: str | None) -> Any:
    """Return ``data`` as a buffer of the remote type.

    Bytes are not converted. Lists and numbers become elements of the remote type if it can hold them.

    Raises:
        VerbsError: EINVAL if ``data`` is of another type and ``casting`` does not allow the conversion, or if its
            shape does not match the remote array's.
    """
    if is_raw(data):
        return data
    kind = array_type(info.dtype, info.fields)
    if kind is None:
        return data
    numpy: Any = sys.modules["numpy"]
    try:
        array = data if isinstance(data, numpy.ndarray | numpy.generic) else numpy.asarray(memoryview(data))
    except TypeError:
        return _elements(numpy, data, kind, info)
    if array.dtype != kind:
        if casting is None or not numpy.can_cast(array.dtype, kind, casting):
            raise VerbsError(EINVAL, f"data is {array.dtype}, {info.name!r} is {kind}: {_convert(casting)}")
        array = array.astype(kind)
    _same_rows(tuple(array.shape), info, "data")
    return in_c_order(array)


def is_empty(data: Any) -> bool:
    """Return whether ``data`` has no bytes: nothing to register, nothing to send."""
    return not len(data) if isinstance(data, bytes | bytearray) else getattr(data, "nbytes", None) == 0


def in_c_order(data: Any) -> Any:
    """Return an array in C order, copied if necessary; return anything else unchanged."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(data, numpy.ndarray) or data.flags.c_contiguous:
        return data
    return numpy.ascontiguousarray(data)


def _elements(numpy: Any, data: Any, kind: Any, info: BufferInfo, rows: bool = True) -> Any:
    """Return Python numbers as elements of the remote type; raise if one would lose precision."""
    try:
        if kind.names is not None:
            array = numpy.array(data, kind)
            if not _kept(data, array.tolist()):
                raise ValueError
            if rows:
                _same_rows(tuple(array.shape), info, "data")
            return array
        given = numpy.asarray(data)
        # 2.0 is accepted for an integer: the values are compared below; a complex number never is
        casting = "unsafe" if kind.kind in "iu" and given.dtype.kind != "c" else "same_kind"
        if not numpy.can_cast(given.dtype, kind, casting):
            raise ValueError
        array = given.astype(kind)
        if kind.kind not in "fc" and not bool((array == given).all()):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise VerbsError(EINVAL, f"data={data!r:.60} does not fit {info.name!r}, which is {kind}") from None
    if rows:
        _same_rows(tuple(array.shape), info, "data")
    return array


def _kept(given: Any, got: Any) -> bool:
    """Return whether a record holds the given values; floats may be rounded to the field's type."""
    given, got = (value.tolist() if hasattr(value, "tolist") else value for value in (given, got))  # NumPy's types
    if isinstance(got, list | tuple):
        return (
            isinstance(given, list | tuple)
            and len(given) == len(got)
            and all(_kept(mine, theirs) for mine, theirs in zip(given, got, strict=True))
        )
    if isinstance(got, float | complex):
        return True
    if isinstance(got, bytes) and isinstance(given, str):
        given = given.encode()
    return bool(given == got)


def check_into(into: Any, info: BufferInfo, casting: str | None) -> bool:
    """Return whether data read must be converted for ``into``; raise as :func:`typed`."""
    if is_raw(into):
        return False
    kind = array_type(info.dtype, info.fields)
    if kind is None:
        return False
    numpy: Any = sys.modules["numpy"]
    try:
        array = into if isinstance(into, numpy.ndarray) else numpy.asarray(memoryview(into))
    except (TypeError, ValueError):
        return False  # not a buffer that NumPy knows: read into its bytes, if it has any
    _same_rows(tuple(array.shape), info, "into")
    if not array.flags.c_contiguous:
        raise VerbsError(EINVAL, "into is not contiguous in C order; read into an array that is, and copy it")
    if not array.flags.writeable:
        raise VerbsError(EINVAL, "into is read-only; give a bytearray or an array of your own")
    if array.dtype == kind:
        return False
    if casting is None or not numpy.can_cast(kind, array.dtype, casting):
        raise VerbsError(EINVAL, f"into is {array.dtype}, {info.name!r} is {kind}: {_convert(casting)}")
    return True


def convert_into(into: Any, array: Any, casting: str | None) -> Any:
    """Copy data read into the first elements of an array of another type; return that array."""
    numpy: Any = sys.modules["numpy"]
    flat = numpy.asarray(into).reshape(-1)  # a view, not a copy: the array is contiguous
    numpy.copyto(flat[: array.size], array.reshape(-1), casting=casting)
    return into


def filling(value: Any, info: BufferInfo, shape: tuple[int, ...]) -> Any:
    """Return ``value`` as a contiguous array of a shape, broadcast as NumPy broadcasts a value assigned to a slice.

    Raises:
        VerbsError: EINVAL if it does not fit the shape, or as :func:`typed`.
    """
    if is_raw(value):
        if len(byte_view(value)) != prod(shape) * item_bytes(info.dtype):
            raise VerbsError(EINVAL, f"{len(value)} bytes are not what {shape} elements of {info.name!r} take")
        return value
    kind = array_type(info.dtype, info.fields)
    if kind is None:
        return value
    numpy: Any = sys.modules["numpy"]
    array = (
        value if isinstance(value, numpy.ndarray | numpy.generic) else _elements(numpy, value, kind, info, rows=False)
    )
    if array.dtype != kind:
        raise VerbsError(EINVAL, f"data is {array.dtype}, {info.name!r} is {kind}: convert it first")
    try:
        return numpy.ascontiguousarray(numpy.broadcast_to(array, shape))
    except ValueError:
        raise VerbsError(EINVAL, f"data of the shape {array.shape} does not fill {shape} of {info.name!r}") from None


def _convert(casting: str | None) -> str:
    if casting is None:
        return "convert it, or give casting='same_kind'"
    return f"casting={casting!r} does not allow it"


def _same_rows(shape: tuple[int, ...], info: BufferInfo, what: str) -> None:
    """Raise if an array has rows that are not the remote array's; a flat array fits anywhere."""
    if len(shape) > 1 and (len(shape) > len(info.shape) or shape[1:] != info.shape[len(info.shape) - len(shape) + 1 :]):
        raise VerbsError(
            EINVAL, f"{what} has the shape {shape}, {info.name!r} has {info.shape}: other rows; reshape or flatten it"
        )


def message_header(buffer: object, is_bytes: bool) -> bytes:
    """Return the header of a message: its type and shape, padded so that the array after it is aligned."""
    text = b""
    if not is_bytes:
        dtype, shape, fields = describe(buffer)
        described = [dtype, shape] if fields is None else [dtype, shape, fields]
        text = json.dumps(described, separators=(",", ":")).encode()
    size = -(-(_LENGTH.size + len(text)) // _ALIGN) * _ALIGN
    if size > HEADER_BYTES:
        raise VerbsError(
            EINVAL, f"dtype and shape take {len(text)} bytes, a message has {HEADER_BYTES} for them; share the array"
        )
    return (_LENGTH.pack(size, len(text)) + text).ljust(size, b"\0")


def open_message(view: memoryview) -> Any:
    """Decode a received message: return bytes, or an array with memory of its own.

    Raises:
        VerbsError: EINVAL if the peer's header is malformed.
    """
    try:
        size, length = _LENGTH.unpack_from(view)
        if not length:
            return bytes(view[size:]) if size >= _LENGTH.size else _refuse()
        dtype, shape, *more = json.loads(bytes(view[_LENGTH.size : _LENGTH.size + length]))
        fields = more[0] if more else None
        if more and (len(more) > 1 or dtype != f"|V{fields_bytes(fields)}"):
            _refuse()
    except (struct.error, ValueError, TypeError, RecursionError):
        _refuse()
    if not isinstance(dtype, str) or not DTYPE_PATTERN.fullmatch(dtype) or not isinstance(shape, list):
        _refuse()
    if len(shape) > MAX_DIMENSIONS or any(type(extent) is not int or extent < 0 for extent in shape):
        _refuse()
    data = view[size:]
    if prod(shape) * item_bytes(dtype) != len(data):
        _refuse()
    array = new_array(dtype, tuple(shape), fields)
    if len(data):
        byte_view(array)[:] = data
    return array


def _refuse() -> Any:
    raise VerbsError(EINVAL, "the peer sent a message without a valid header; does it use rnic's send()?")
