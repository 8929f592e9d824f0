"""Which loops a device uses: the compiled ones where they are, with the C function behind ``rnic.wire.crc``."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from types import ModuleType

from rnic.burst import plain, small
from rnic.spec.twins import compiled_twin, in_use
from rnic.wire.crc_function import c_crc


def _choose() -> ModuleType:
    twin: ModuleType | None = compiled_twin("rnic.burst.plain", "rnic.burst._compiled")
    if twin is None:
        return plain
    found = c_crc()
    if found is None:
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
