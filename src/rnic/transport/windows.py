"""Memory window work requests: bind (type 1 and 2B) and local invalidate (IBA 10.6.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnic.context.qp_context import QpContext
    from rnic.mem.table import MemoryTable
    from rnic.transport.message import Message


def bind_window(memory: MemoryTable, ctx: QpContext, message: Message) -> bool:
    """Bind the window whose key is ``old_rkey`` to the region of ``lkey``; ``new_rkey`` is its key from now on.

    A length of 0 unbinds. False if the window or region refuses: wrong PD, no MW_BIND right, out of range.
    """
    return memory.bind_window(
        message.old_rkey,
        message.new_rkey,
        message.lkey,
        ctx.pd,
        ctx.local_qpn,
        message.start,
        message.bind_length,
        message.access,
    )


def invalidate_local(memory: MemoryTable, ctx: QpContext, key: int) -> bool:
    """Invalidate a type 2 window or a region's remote access by local request."""
    return memory.invalidate(key, ctx.pd, ctx.local_qpn)
