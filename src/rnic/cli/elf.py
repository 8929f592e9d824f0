"""What the head of a program's file says."""

from __future__ import annotations

import struct

_MAGIC = b"\x7fELF"
_INTERPRETER = 3
_EXECUTABLE, _SHARED = 2, 3
_HEADER = struct.Struct("<HHIQQQIHHH")
"""Of a 64-bit file, from byte 16 on: type, machine, version, entry, segments, sections, flags, sizes, count."""
_SEGMENT_BYTES = 56
"""Of an entry of the segment table; larger ones are allowed."""
_MOST_BYTES = 4096


def looks_static(path: str) -> bool:
    """Whether a file is a little-endian 64-bit ELF program that no dynamic linker loads; false where that is unknown.

    Scripts are not: what interprets them is not looked at.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_MOST_BYTES)
    except OSError:
        return False
    if len(head) < 16 + _HEADER.size or head[:4] != _MAGIC or head[4:6] != b"\2\1":
        return False
    kind, _, _, _, segments, _, _, _, size, count = _HEADER.unpack_from(head, 16)
    if kind not in (_EXECUTABLE, _SHARED) or not count or size < _SEGMENT_BYTES or segments + count * size > len(head):
        return False
    kinds = [struct.unpack_from("<I", head, segments + size * index)[0] for index in range(count)]
    return _INTERPRETER not in kinds


__all__ = ["looks_static"]
