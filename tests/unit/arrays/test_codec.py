from __future__ import annotations

import array
import builtins
import contextlib
import ctypes
import json
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest

from rnic.arrays.codec import HEADER_BYTES, describe, message_header, new_array, open_message
from rnic.spec.errors import VerbsError


def arrived(data: Any, is_bytes: bool) -> Any:
    return open_message(memoryview(message_header(data, is_bytes) + memoryview(data).tobytes()))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float64).reshape(2, 3),
        np.arange(4, dtype=">i2"),
        np.array([1 + 2j]),
        np.array([True, False]),
        np.float32(2.5).reshape(()),
        np.arange(24, dtype=np.uint8).reshape(1, 2, 3, 4),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_an_array_arrives_as_it_was(array: Any) -> None:
    copy = open_message(memoryview(message_header(array, False) + array.tobytes()))
    assert copy.dtype == array.dtype
    assert copy.shape == array.shape
    assert (copy == array).all()
    copy[...] = 0  # its own memory


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256))])
def test_bytes_arrive_as_bytes(data: bytes) -> None:
    assert arrived(data, True) == data


def test_the_array_behind_the_header_is_aligned() -> None:
    for shape in ((1,), (10, 10), (1,) * 32):
        header = message_header(np.empty(shape), False)
        assert len(header) % 16 == 0
        assert len(header) <= HEADER_BYTES


def test_describe_of_what_is_no_array() -> None:
    assert describe(bytearray(12)) == ("|u1", (12,), None)
    assert describe(memoryview(bytes(8))) == ("|u1", (8,), None)
    assert describe((ctypes.c_char * 5)()) == ("|u1", (5,), None)


@pytest.mark.parametrize(
    "buffer",
    [
        *(array.array(code, [1, 2, 3]) for code in "bBhHiIlLqQfd"),
        (ctypes.c_double * 3)(1, 2, 3),
        ((ctypes.c_int16 * 2) * 3)(),
        (ctypes.c_uint32.__ctype_be__ * 2)(1, 2),
        (ctypes.c_bool * 2)(True, False),
        ctypes.c_int64(7),
        memoryview(array.array("f", [0.5, 2])),
    ],
    ids=lambda buffer: memoryview(buffer).format + str(memoryview(buffer).shape),
)
def test_a_buffer_of_numbers_keeps_its_type(buffer: Any) -> None:
    """As NumPy takes it; and it arrives as such."""
    wanted = np.asarray(memoryview(buffer))
    assert describe(buffer) == (wanted.dtype.str, wanted.shape, None)
    copy = arrived(buffer, False)
    assert copy.dtype == wanted.dtype
    assert (copy == wanted).all()
    assert describe(np.zeros((2, 2), np.int16)) == ("<i2", (2, 2), None)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0",
        b"\0\0\0\0",
        b"\x10\0\xff\xff" + b"[" * 2000,
        b"\x10\0\x02\0[]".ljust(16, b"\0"),
        b"\x10\0\x01\x003".ljust(16, b"\0"),
        b'\x20\0\x0b\0["|O8",[1]]'.ljust(32, b"\0") + bytes(8),
        b'\x20\0\x0b\0["<f8",[2]]'.ljust(32, b"\0") + bytes(8),
        b'\x20\0\x0c\0["<f8",[-1]]'.ljust(32, b"\0"),
        b'\x20\0\x0a\0["<f8",""]'.ljust(32, b"\0"),
        b'\x20\0\x0b\0["<f3",[1]]'.ljust(32, b"\0") + bytes(3),
    ],
)
def test_a_hostile_message_is_refused(message: bytes) -> None:
    with pytest.raises(VerbsError):
        open_message(memoryview(message))


def test_without_numpy_there_are_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name == "numpy":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert new_array("<f8", (2, 3)) == bytearray(48)


@pytest.mark.parametrize("shape", [[1 << 40], [1 << 62], [0, 1 << 62], [1 << 20] * 3, [(1 << 63) - 1, 2]])
@pytest.mark.parametrize("dtype", ["|S0", "<U0", "|V0", "|S00", "<f0", "<f3", "<i9", "<M8[s]", "|u1", "<c16"])
def test_no_header_makes_more_than_the_bytes_that_came(dtype: str, shape: list[int]) -> None:
    text = json.dumps([dtype, shape]).encode()
    message = struct.pack("<HH", 4 + len(text), len(text)) + text
    tracemalloc.start()
    with contextlib.suppress(VerbsError):
        assert open_message(memoryview(message)).nbytes == 0
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20
