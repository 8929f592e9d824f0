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
                assert go_on.wait(30)
            return command(*args, **kwargs)

        monkeypatch.setattr(ctx, "command", held)
        closers = [pool.submit(made.close)]
        assert in_command.wait(30)
        closers.append(pool.submit((made if second == "the object" else ctx).close))
        go_on.set()
        for closer in closers:
            closer.result(30)
        assert made.closed
        assert not any(name == kind for name in map(type_name, ctx._children))


def type_name(thing: object) -> str:
    """Return the name of its class."""
    return type(thing).__name__


@pytest.mark.parametrize("closed", ["context", "domain"])
def test_objects_of_a_kind_are_closed_in_the_order_of_their_making(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are given back in that order, so that a run in virtual time is the same each time."""
    order: list[Any] = []
    close = MR.close

    def noting(self: MR) -> None:
        order.append(self)
        close(self)

    monkeypatch.setattr(MR, "close", noting)
    with SimNet(1) as net:
        pd = PD(net.nodes[0].ctx)
        made = [MR(pd, 64) for _ in range(40)]
        (pd if closed == "domain" else pd.ctx).close()
        assert order[: len(made)] == made
