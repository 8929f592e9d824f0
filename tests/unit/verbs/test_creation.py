"""What is left of an object whose creation fails half-way: nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rnic.spec.errors import VerbsError
from rnic.testing import SimNet
from rnic.verbs import CQ, MR, PD, QP, SRQ, Context, QPAttr, QPCap, QPInitAttr, SrqAttr, SrqInitAttr


class Domain:
    """A context with what queue pairs are made of."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.pd, self.cq = PD(ctx), CQ(ctx, 16)

    def make_qp(self, attr: QPAttr | None = None) -> QP:
        return QP(self.pd, QPInitAttr(scq=self.cq, rcq=self.cq, cap=QPCap(16, 16)), attr)

    def make_srq(self, limit: int = 0) -> SRQ:
        return SRQ(self.pd, SrqInitAttr(SrqAttr(16, 1, limit)))

    def held(self) -> tuple[object, ...]:
        """All that is mapped, allocated and known."""
        ctx = self.ctx
        numbers = {kind: dict(pool.owners) for kind, pool in ctx.nic.resources.pools.items()}
        known = [dict(table) for table in (ctx._qps, ctx._cqs, ctx._srqs, self.cq._queues)]
        children = set(ctx._children), set(self.pd._children)
        return list(ctx.driver.space._by_va._items), numbers, known, children


@pytest.fixture
def domain() -> Iterator[Domain]:
    with SimNet(1) as net:
        yield Domain(net.nodes[0].ctx)


MAKERS: dict[str, tuple[Callable[[Domain], Any], int]] = {
    "a queue pair": (Domain.make_qp, 2),
    "a queue pair in INIT": (lambda domain: domain.make_qp(QPAttr()), 3),
    "a completion queue": (lambda domain: CQ(domain.ctx, 16), 3),
    "a shared receive queue": (Domain.make_srq, 3),
    "a region": (lambda domain: MR(domain.pd, bytearray(64)), 2),
    "a region of its own memory": (lambda domain: MR(domain.pd, 64), 2),
}
"""Each with the commands that it takes."""


@pytest.mark.parametrize("error", [VerbsError(errno.ENOMEM, "the device is full"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize(
    ("what", "command"), [(what, command) for what, (_, commands) in MAKERS.items() for command in range(commands)]
)
def test_nothing_is_left_where_a_command_fails(
    domain: Domain, monkeypatch: pytest.MonkeyPatch, what: str, command: int, error: BaseException
) -> None:
    make, commands = MAKERS[what]
    run, calls = domain.ctx.command, 0

    def fail(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == command + 1:
            raise error
        return run(*args, **named)

    before = domain.held()
    with monkeypatch.context() as patch:
        patch.setattr(domain.ctx, "command", fail)
        with pytest.raises(type(error)):
            make(domain)
    assert domain.held() == before
    with monkeypatch.context() as patch:
        command, calls = commands, 0
        patch.setattr(domain.ctx, "command", fail)
        make(domain)
    assert calls == commands
    assert domain.held() != before


def test_nothing_is_left_where_an_attribute_is_refused(domain: Domain) -> None:
    before = domain.held()
    attr = QPAttr()
    attr.port_num = 9
    with pytest.raises(VerbsError):
        domain.make_qp(attr)
    assert domain.held() == before


def test_nothing_is_left_where_the_device_is_gone(domain: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the one that came first, and not that numbers cannot be given back."""
    run, calls = domain.ctx.command, 0

    def end(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            domain.ctx.driver.close()
        return run(*args, **named)

    monkeypatch.setattr(domain.ctx, "command", end)
    mapped = list(domain.ctx.driver.space._by_va._items)
    with pytest.raises(VerbsError, match="is closed: open it again") as error:
        domain.make_qp()
    assert error.value.__context__ is None
    assert list(domain.ctx.driver.space._by_va._items) == mapped
