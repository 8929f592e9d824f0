"""Numbers of AXI4 (ARM IHI 0022): responses, burst types, limits."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Resp(IntEnum):
    """AXI response codes."""

    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


class Burst(IntEnum):
    """AXI burst types; the descriptor engine sends INCR only, PAXI accepts all."""

    FIXED = 0
    INCR = 1
    WRAP = 2


BOUNDARY_BYTES: Final = 4096
"""No burst crosses a multiple of this address (A3.4.1)."""
MAX_BEATS: Final = 256
"""Most beats of an INCR burst."""
MAX_LEN: Final = MAX_BEATS - 1
"""Largest AxLEN: beats less one."""
MAX_FIXED_BEATS: Final = 16
WRAP_BEATS: Final = (2, 4, 8, 16)
"""Legal lengths of a WRAP burst; the largest is also the limit of a FIXED burst (A3.4.1)."""
MAX_DATA_BITS: Final = 1024
MIN_DATA_BITS: Final = 8
"""Narrowest and widest data bus (A1.2.1)."""
