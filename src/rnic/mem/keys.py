"""Memory keys (``design.md`` "R_Key"; 004 7.3 "MR Table"): 32 bits that hold an index and a tag.

``index = key >> 16 | (key >> 8 & 0xFF) << 16`` and ``tag = key & 0xFF``: with up to 65,536 regions the middle
byte is 0 and the key is 004's, 16 bits of index and 8 bits of key.
"""

from __future__ import annotations

INDEX_LIMIT = 1 << 24
"""Indices lie below this."""
TAG_MASK = 0xFF


def key_index(key: int) -> int:
    """Index of a key into the memory table, 0 to 2^24 - 1."""
    return key >> 16 | (key >> 8 & 0xFF) << 16


def key_tag(key: int) -> int:
    """Tag of a key, 0 to 255. It changes each time the index is used again, so that stale keys fail."""
    return key & TAG_MASK


def make_key(index: int, tag: int) -> int:
    """The key with this index (0 to 2^24 - 1) and tag (0 to 255)."""
    return (index & 0xFFFF) << 16 | index >> 16 << 8 | tag
