"""CRC-32 for the ICRC: ISA-L's if its wheel is installed, else zlib's (the same function, slower)."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32

    CRC_BACKEND = "isal"
except ImportError:  # not every platform has a wheel
    from zlib import crc32

    CRC_BACKEND = "zlib"

__all__ = ["CRC_BACKEND", "crc32"]
