"""Two threads close the same object, or one its context: the second waits for the first and finds nothing to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rnic.testing import SimNet
from rnic.verbs import CQ, MR, MW, PD, QP, SRQ, Context, QPAttr, QPCap, QPInitAttr, SrqInitAttr


def make_qp(ctx: Context) -> QP:
    cq = CQ(ctx, 16)
    return QP(PD(ctx), QPInitAttr(scq=cq, rcq=cq, cap=QPCap(16, 16)), QPAttr())


MAKERS: dict[str, Callable[[Context], Any]] = {
    "CQ": lambda ctx: CQ(ctx, 16),
    "QP": make_qp,
    "SRQ": lambda ctx: SRQ(PD(ctx), SrqInitAttr()),
    "PD": PD,
    "MR": lambda ctx: MR(PD(ctx), 64),
    "MW": lambda ctx: MW(PD(ctx)),
}


@pytest.mark.parametrize("second", ["the object", "its context"])
@pytest.mark.parametrize("kind", list(MAKERS))
def test_a_second_close_waits_for_the_first(kind: str, second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SimNet(1) as net, ThreadPoolExecutor(2) as pool:
        ctx = net.nodes[0].ctx
        made = MAKERS[kind](ctx)
        in_command, go_on = threading.Event(), threading.Event()
        command = ctx.command

        def held(*args: Any, **kwargs: Any) -> tuple[int, bytes]:
            if not in_command.is_set():
                in_command.set()
                assert go_on.wait(5)
            return command(*args, **kwargs)

        monkeypatch.setattr(ctx, "command", held)
        closers = [pool.submit(made.close)]
        assert in_command.wait(5)
        closers.append(pool.submit((made if second == "the object" else ctx).close))
        go_on.set()
        for closer in closers:
            closer.result(5)
        assert made.closed
        assert not any(name == kind for name in map(type_name, ctx._children))


def type_name(thing: object) -> str:
    """Return the name of its class."""
    return type(thing).__name__
