"""Captures in gzip, decompressed while they are read."""

from __future__ import annotations

import gzip
import zlib
from io import BufferedReader
from typing import BinaryIO, cast

_MAGIC = b"\x1f\x8b"

DAMAGED_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
"""Errors of reading a file that is truncated, has a bad header or checksum, or is not a deflate stream."""


def decompressed(file: BufferedReader) -> BinaryIO:
    """Return a file, decompressed if it starts with gzip's magic number."""
    if file.peek(len(_MAGIC))[: len(_MAGIC)] == _MAGIC:
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    return cast("BinaryIO", file)
