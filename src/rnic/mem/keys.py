"""Memory keys (``design.md`` "R_Key"; 004 7.3 "MR Table"): an index and a tag in 32 bits.

``index = key >> 16 | (key >> 8 & 0xFF) << 16`` and ``tag = key & 0xFF``. With up to 65,536 regions the second-lowest
byte is 0, and the key has 004's form: 16 bits of index and 8 bits of key.
"""

from __future__ import annotations

INDEX_LIMIT = 1 << 24
"""Indices are below this."""
TAG_MASK = 0xFF


def key_index(key: int) -> int:
    """Return a key's index into the memory table, 0 to 2^24 - 1."""
    return key >> 16 | (key >> 8 & 0xFF) << 16


def key_tag(key: int) -> int:
    """Return a key's tag, 0 to 255. The tag changes whenever the index is reused, so that stale keys fail."""
    return key & TAG_MASK


def make_key(index: int, tag: int) -> int:
    """Return the key with this index (0 to 2^24 - 1) and tag (0 to 255)."""
    return (index & 0xFFFF) << 16 | index >> 16 << 8 | tag
