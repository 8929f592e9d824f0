"""Check the size and the memory of the ring of a CQ or EQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rnic.device.entry_ring import reachable
from rnic.rings.cqe import CQE_SHIFT
from rnic.spec import commands as cmd
from rnic.spec.access import LOCAL_WRITE
from rnic.spec.limits import LOG_MAX_CQ

if TYPE_CHECKING:
    from rnic.device.uar import Uar
    from rnic.mem.table import MemoryTable


def ring_status(memory: MemoryTable, uar: Uar, values: Mapping[str, int]) -> int:
    """Check the ring of a CQC or EQC; return a command status, ``ST_OK`` if it is valid."""
    if not 1 <= values["logsize"] <= LOG_MAX_CQ:
        return cmd.ST_BAD_SIZE
    start, length, key = values["start"], 1 << CQE_SHIFT + values["logsize"], values["lkey"]
    if key:
        region = memory.lookup(key)
        start = start or (0 if region is None else region.start)
        right = memory.check(key, values["pd"], start, length, LOCAL_WRITE, local=True) is not None
    else:
        right = reachable(uar, start, length, True)
    return cmd.ST_OK if right and not start & 3 else cmd.ST_BAD_PARAM
