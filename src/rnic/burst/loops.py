"""Which loops a device uses: the compiled ones where they are, with the C function behind ``rnic.wire.crc``."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import zlib
from pathlib import Path
from types import ModuleType

from rnic.burst import plain, small
from rnic.spec.twins import compiled_twin, in_use
from rnic.wire.crc import CRC_BACKEND, crc32

_SAMPLE = bytes(range(256)) * 5


def _c_crc() -> tuple[int, bool] | None:
    """Address of a C CRC-32, and whether it has zlib's signature; ``None`` where none is exported."""
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


def _choose() -> ModuleType:
    twin: ModuleType | None = compiled_twin("rnic.burst.plain", "rnic.burst._compiled")
    if twin is None:
        return plain
    found = _c_crc()
    if found is None or not _same_crc(*found):
        in_use["rnic.burst.plain"] = False
        return plain
    twin.use_crc(*found)
    return twin


def _choose_small() -> ModuleType:
    """The lean path compiled, unless its source was edited since."""
    twin: ModuleType | None = compiled_twin("rnic.burst.small", "rnic.burst._small")
    if twin is None:
        return small
    with contextlib.suppress(OSError):  # installed without sources
        if zlib.crc32(Path(small.__file__).read_bytes()) != getattr(twin, "SOURCE_CRC", None):
            in_use["rnic.burst.small"] = False
            return small
    return twin


LOOPS = _choose()
SMALL = _choose_small()
"""The lean path for messages of one packet: :mod:`rnic.burst.small`, or the same compiled."""
COMPILED = LOOPS is not plain
