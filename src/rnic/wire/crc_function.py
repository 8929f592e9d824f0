"""The C function behind :data:`rnic.wire.crc.crc32`, for loops that are compiled."""

from __future__ import annotations

import ctypes
import sys
import zlib
from types import ModuleType

from rnic.wire.crc import CRC_BACKEND, crc32

_SAMPLE = bytes(range(256)) * 5


def _exported() -> tuple[int, bool] | None:
    name, symbol = ("isal.isal_zlib", "crc32_gzip_refl") if CRC_BACKEND == "isal" else ("zlib", "crc32")
    module: ModuleType = sys.modules.get(name, zlib)
    try:
        function = getattr(ctypes.CDLL(getattr(module, "__file__", None)), symbol)
    except (AttributeError, OSError):
        return None
    address = ctypes.cast(function, ctypes.c_void_p).value
    return None if address is None else (address, CRC_BACKEND != "isal")


def _same_crc(address: int, zlib_signature: bool) -> bool:
    """Whether the C function answers as the Python one: a symbol of that name may be something else."""
    if zlib_signature:
        zlib_kind = ctypes.CFUNCTYPE(ctypes.c_ulong, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_uint)
        return bool(zlib_kind(address)(12345, _SAMPLE, len(_SAMPLE)) == crc32(_SAMPLE, 12345))
    isal_kind = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)
    return bool(isal_kind(address)(12345, _SAMPLE, len(_SAMPLE)) == crc32(_SAMPLE, 12345))


def c_crc() -> tuple[int, bool] | None:
    """Address of a C CRC-32, and whether it has zlib's signature, else ISA-L's; ``None`` where none is exported."""
    found = _exported()
    return found if found is not None and _same_crc(*found) else None
