"""Memory window work requests: bind (type 1 and 2B) and local invalidate (IBA 10.6.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.transport.wqe import Wqe

if TYPE_CHECKING:
    from rnic.context.qp_context import QpContext
    from rnic.mem.table import MemoryTable


def bind_window(memory: MemoryTable, ctx: QpContext, wqe: Wqe) -> bool:
    """Bind the window whose key is ``wqe.imm`` to the region in ``wqe.sges``; ``wqe.rkey`` is its new key.

    A length of 0 unbinds. False if the window or region refuses: wrong PD, no MW_BIND right, out of range.
    """
    start, length, lkey = wqe.sges[0]
    return memory.bind_window(wqe.imm, wqe.rkey, lkey, ctx.pd, ctx.local_qpn, start, length, wqe.bind_access)


def invalidate_local(memory: MemoryTable, ctx: QpContext, key: int) -> bool:
    """Invalidate a type 2 window or a region's remote access by local request."""
    return memory.invalidate(key, ctx.pd, ctx.local_qpn)
