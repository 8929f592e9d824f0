"""What verbs has of a device in this process, and what a forked child has of its parent's."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator

import pytest

import rnic
from rnic.runtime.driver import LocalDriver
from rnic.spec import commands as cmd
from rnic.verbs import CQ, MR, PD, QP, Context, QPInitAttr

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
TOO_LONG_S = 5


@pytest.fixture
def ctx() -> Iterator[Context]:
    with Context(addr="127.0.0.1", port=0) as made:
        yield made


def child_says(act: Callable[[], bool]) -> bool:
    """What ``act`` says in a child, which must not wait for a thread that is not there."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if act() else 1
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1), "the child failed"
    return status == 0


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
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with local(ctx).lock, cq.lock:
            held.set()
            assert done.wait(TOO_LONG_S)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(TOO_LONG_S)
        assert child_says(lambda: local(ctx).lock.acquire(blocking=False) and cq.lock.acquire(blocking=False))
    finally:
        done.set()
        thread.join()


def test_a_child_does_not_take_its_parents_packets(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(ctx.runtime.link.__class__, "receive", lambda link, limit: asked.append(limit) or [])
    assert child_says(lambda: not ctx.driver.progress() and not ctx.runtime.progress() and not asked)


def test_a_second_close_does_nothing() -> None:
    with Context(addr="127.0.0.1", port=0) as ctx, Context(runtime=ctx.runtime) as other:
        local(other).close()
        local(other).close()
        assert not ctx.runtime.closed
        PD(ctx).close()
