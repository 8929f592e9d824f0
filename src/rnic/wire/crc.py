"""CRC-32 as the ICRC uses it: ISA-L's if its wheel is installed, else zlib's (the same function, slower)."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32

    CRC_BACKEND = "isal"
except ImportError:  # the wheel does not exist for every platform
    from zlib import crc32

    CRC_BACKEND = "zlib"

__all__ = ["CRC_BACKEND", "crc32"]
