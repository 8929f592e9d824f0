"""What verbs has of a device in this process, and what a forked child has of its parent's."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

import rnic
from rnic.link.base import Link
from rnic.runtime.driver import LocalDriver
from rnic.spec import commands as cmd
from rnic.verbs import CQ, MR, PD, QP, Context, QPInitAttr
from rnic.wire.bursts import RxBurst
from tests.forks import child_says, held_by_a_thread

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture
def ctx() -> Iterator[Context]:
    with Context(addr="127.0.0.1", port=0) as made:
        yield made


def local(ctx: Context) -> LocalDriver:
    assert isinstance(ctx.driver, LocalDriver)
    return ctx.driver


def test_a_child_closes_what_it_inherited_and_the_parents_is_as_it_was(ctx: Context) -> None:
    pd, cq = PD(ctx), CQ(ctx, 16)
    qp, mr = QP(pd, QPInitAttr(scq=cq, rcq=cq)), MR(pd, 64)
    link = ctx.runtime.link

    def close_all() -> bool:
        for each in (qp, mr, cq, pd, ctx):
            each.close()
        return ctx.closed and link.filenos()[0] >= 0

    assert child_says(close_all)
    assert qp.query()[1].qp_type == qp.qp_type
    assert not local(ctx).closed
    assert not ctx.runtime.closed


def test_commands_of_a_child_say_that_the_device_is_gone(ctx: Context) -> None:
    def refused() -> bool:
        with pytest.raises(rnic.VerbsError, match="is closed: open it again") as error:
            PD(ctx)
        answer = local(ctx).command(cmd.NOP, 0, 0, b"")
        return error.value.errno == errno.ENODEV and answer.status == cmd.ST_BAD_SYS_STATE

    assert child_says(refused)
    PD(ctx).close()


def test_a_child_does_not_wait_for_locks_of_its_parents_threads(ctx: Context) -> None:
    cq = CQ(ctx, 16)
    with held_by_a_thread(local(ctx).lock, cq.lock):
        assert child_says(lambda: local(ctx).lock.acquire(blocking=False) and cq.lock.acquire(blocking=False))


def test_a_child_does_not_take_its_parents_packets(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def receive(link: Link, limit: int) -> list[RxBurst]:
        asked.append(limit)
        return []

    monkeypatch.setattr(ctx.runtime.link.__class__, "receive", receive)
    assert child_says(lambda: not ctx.driver.progress() and not ctx.runtime.progress() and not asked)


def test_a_second_close_does_nothing() -> None:
    with Context(addr="127.0.0.1", port=0) as ctx, Context(runtime=ctx.runtime) as other:
        local(other).close()
        local(other).close()
        assert not ctx.runtime.closed
        PD(ctx).close()
