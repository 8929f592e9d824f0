"""The scripted queue pair in channels mode: before it acts, it asks CtxMgt's six channels (002) for its context."""

from __future__ import annotations

from typing import Any

from rnic.context import messages as m
from rnic.context.ctxmgt import ContextManager, Status
from rnic.device.channels import ask, qp_fields, take
from rnic.mem.space import SimAddressSpace
from rnic.trace import Counters
from rnic.wire.bursts import TxBurst

LOG_QPS = 5
PAGE = 4096
TABLES = {"qpc_base": 0x1000 >> 8, "cqc_base": 0x8000 >> 8, "eqc_base": 0x9000 >> 8}


def contexts_for(qpn: int) -> ContextManager:
    """A CtxMgt with memory for the contexts of so many queue pairs."""
    space = SimAddressSpace()
    contexts = ContextManager(LOG_QPS, Counters())
    assert contexts.init_hca(m.ICMMAP.pack(TABLES)) == Status.OK
    pages = (256 << LOG_QPS) // PAGE
    lent = space.map(bytearray((pages + 1) * PAGE)).va
    assert contexts.map_icm(space, [(0x1000, -(-lent // PAGE) * PAGE, pages)]) == Status.OK
    assert qpn < 1 << LOG_QPS
    return contexts


def channel_script(base: type[Any]) -> type[Any]:
    """``base`` in channels mode: what a channel answers is forgotten, and taken from the answer."""

    class ChannelScript(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.contexts = contexts_for(self.ctx.local_qpn)

        def fetch(self) -> None:
            ctx, number = self.ctx, self.ctx.local_qpn
            assert self.contexts.write_qp(number, ctx.store()) == Status.OK
            fields = qp_fields(ask(self.contexts, number))
            take(ctx, {name: (~getattr(ctx, name), width) for name, (_, width) in fields.items()})
            take(ctx, fields)

        def bursts(self, budget: int = 256) -> list[TxBurst]:
            self.fetch()
            return super().bursts(budget)  # type: ignore[no-any-return]

        def inject(self, name: str, psn: int, **fields: Any) -> None:
            self.fetch()
            super().inject(name, psn, **fields)

        def handle_timer(self) -> None:
            self.fetch()
            super().handle_timer()

    return ChannelScript
