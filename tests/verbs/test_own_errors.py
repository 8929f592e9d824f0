"""The last guards: an exception planted wherever our own code runs fails whom it concerns, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rnic.device.icrc import IcrcCheck
from rnic.spec import commands as cmd
from rnic.testing import QpPair
from rnic.trace.guard import OWN_ERRORS
from rnic.verbs import enums as e
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow

OwnErrors = list[tuple[str, Exception]]
SIZE = 4096


class PlantedError(Exception):
    """A mistake of our own, made on purpose."""


def broken(*args: object, **kwargs: object) -> None:
    raise PlantedError


def state(side: Any) -> int:
    return int(side.qp.query()[0].qp_state)


class Neighbours:
    """Two connections between the same two NICs; the mistake is made in the first one's queue pair of side a."""

    def __init__(self) -> None:
        self.first = QpPair(size=SIZE)
        self.second = QpPair(net=self.first.net, size=SIZE)
        self.nic = self.first.a.node.nic
        self.qp = self.nic.qps[self.first.a.qp.qp_num]
        self.reports: list[str] = []
        self.nic.guard.report = lambda line, error: self.reports.append(line)
        # the paths of a connection's first packets are others than those of all that follow
        for pair in (self.first, self.second):
            for side in (pair.a, pair.b):
                side.post_send(e.IBV_WR_RDMA_WRITE, 8)
                assert side.wait()[0].status == e.IBV_WC_SUCCESS

    def __enter__(self) -> Neighbours:
        return self

    def __exit__(self, *exc: object) -> None:
        self.first.close()

    def second_works(self) -> None:
        """Writes, sends and reads of the other connection, both ways."""
        for side in (self.second.a, self.second.b):
            side.peer.post_recv(2000, 2000)
            side.post_send(e.IBV_WR_RDMA_WRITE, 2000)
            side.post_send(e.IBV_WR_SEND, 1999)
            side.post_send(e.IBV_WR_RDMA_READ, 5)
            assert [wc.status for wc in side.wait(3)] == [e.IBV_WC_SUCCESS] * 3
            assert [wc.status for wc in side.peer.wait()] == [e.IBV_WC_SUCCESS]


def only(victim: object, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, but of ``victim`` it raises."""

    def either(self: object, *args: object, **kwargs: object) -> Any:
        if self is victim:
            raise PlantedError
        return method(self, *args, **kwargs)

    return either


def plant(monkeypatch: pytest.MonkeyPatch, victim: object, name: str) -> None:
    kind = type(victim)
    monkeypatch.setattr(kind, name, only(victim, getattr(kind, name)))


def by_reference(nic: Any, qp: Any) -> None:
    """The engine, where there is one, knows a queue pair no more."""
    qp.executor = None
    if nic.engine_device is not None:
        nic.engine_device.remove(qp.number)


class Broken:
    """An engine with a mistake."""

    def receive(self, *args: object) -> int:
        raise PlantedError

    def send(self, *args: object) -> int:
        raise PlantedError


def at_a_packet(n: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    by_reference(n.nic, n.qp)
    plant(monkeypatch, n.qp.responder, "receive")
    n.first.b.post_send(e.IBV_WR_SEND, 8)


def at_a_packet_of_the_engine(n: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    n.qp.executor = Broken()  # type: ignore[assignment]
    n.first.b.post_send(e.IBV_WR_SEND, 8)


def at_a_turn_of_the_engine(n: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    n.qp.executor = Broken()  # type: ignore[assignment]
    n.first.a.post_send(e.IBV_WR_RDMA_WRITE, 2000)


def at_a_burst(n: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    by_reference(n.nic, n.qp)
    plant(monkeypatch, n.qp, "receive_burst")
    n.first.b.post_send(e.IBV_WR_RDMA_WRITE, SIZE)


def at_a_turn(n: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    by_reference(n.nic, n.qp)
    plant(monkeypatch, n.qp.requester, "produce")
    n.first.a.post_send(e.IBV_WR_RDMA_WRITE, 2000)


def at_a_doorbell(n: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, n.qp, "doorbell")
    n.first.a.post_send(e.IBV_WR_RDMA_WRITE, 8)


def at_a_timer(n: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    by_reference(n.nic, n.qp)
    plant(monkeypatch, n.qp.requester, "handle_timer")
    n.first.a.post_send(e.IBV_WR_RDMA_WRITE, 8)
    assert n.first.b.node.link.receive(64), "what was sent, and is lost now"


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    ("mistake", "place"),
    [
        (at_a_packet, "packet"),
        (at_a_packet_of_the_engine, "packet"),
        (at_a_turn_of_the_engine, "turn"),
        (at_a_burst, "packet"),
        (at_a_turn, "turn"),
        (at_a_doorbell, "doorbell"),
        (at_a_timer, "timer"),
    ],
)
def test_the_queue_pair_concerned_fails_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
    own_errors: OwnErrors,
    mistake: Callable[[Neighbours, pytest.MonkeyPatch], None],
    place: str,
    rows: int,
) -> None:
    with Neighbours() as n:
        if rows == 2:  # failing fails too
            plant(monkeypatch, n.qp.requester, "stop_waiting")
        n.first.a.post_recv(100)
        mistake(n, monkeypatch)
        n.first.net.run(lambda: n.qp.ctx.state == e.IBV_QPS_ERR)
        assert state(n.first.a) == e.IBV_QPS_ERR
        assert {where for where, _ in own_errors} == ({place} if rows == 1 else {place, "error"})
        assert all(isinstance(error, PlantedError) for _, error in own_errors)
        assert n.nic.counters[f"{OWN_ERRORS}_{place}"] == [where for where, _ in own_errors].count(place)
        assert n.nic.counters[OWN_ERRORS] == len(own_errors)
        assert f"QP {n.qp.ctx.local_qpn:#x}" in n.reports[0]
        if rows == 1:
            assert len(n.reports) == 1
            assert {wc.status for wc in n.first.a.poll()} == {e.IBV_WC_WR_FLUSH_ERR}
        n.second_works()


def test_it_is_told_once_and_counted_each_time(own_errors: OwnErrors, monkeypatch: pytest.MonkeyPatch) -> None:
    with Neighbours() as n:
        for pair in (n.first, n.second):
            qp = n.nic.qps[pair.a.qp.qp_num]
            by_reference(n.nic, qp)
            plant(monkeypatch, qp.responder, "receive")
            pair.b.post_send(e.IBV_WR_SEND, 8)
            n.first.net.run(lambda pair=pair: state(pair.a) == e.IBV_QPS_ERR)  # type: ignore[misc]
        assert n.nic.counters[OWN_ERRORS] == 2
        assert len(n.reports) == 1
        assert "PlantedError" in n.reports[0]


@pytest.mark.parametrize("where", ["accepts", "parse"])
def test_a_packet_that_nobody_has_vouched_for_fails_no_queue_pair(
    monkeypatch: pytest.MonkeyPatch, own_errors: OwnErrors, where: str
) -> None:
    """Else whoever finds such a packet could end every connection."""
    with Neighbours() as n:
        by_reference(n.nic, n.qp)
        target, name = (IcrcCheck, where) if where == "accepts" else ("rnic.device.receiving", "parse")
        with monkeypatch.context() as planted:
            if where == "accepts":
                planted.setattr(target, name, broken)
            else:
                planted.setattr(f"{target}.{name}", broken)
            here, there = n.nic.config, n.first.b.node.nic.config
            stranger = Flow(there.address, here.address, there.port, here.port)
            frame = n.first.factory(n.first.a)("RC_SEND_ONLY", n.qp.ctx.expected_psn)
            n.nic.receive(RxBurst(stranger, memoryview(frame), len(frame), len(frame), 0), n.first.clock.now_ns)
        assert [place for place, _ in own_errors] == ["packet"]
        assert state(n.first.a) == e.IBV_QPS_RTS
        n.second_works()


def test_a_command_answers_internal_error(monkeypatch: pytest.MonkeyPatch, own_errors: OwnErrors) -> None:
    with Neighbours() as n:
        with monkeypatch.context() as planted:
            planted.setattr(n.nic._commands.__class__, "run", broken)
            uar = n.nic.resources.uars[0]
            assert n.nic.command(uar, cmd.NOP).status == cmd.ST_INTERNAL_ERR
        assert [place for place, _ in own_errors] == ["command"]
        assert state(n.first.a) == e.IBV_QPS_RTS
        n.second_works()


def test_what_cannot_be_destroyed_keeps_nothing_else(monkeypatch: pytest.MonkeyPatch, own_errors: OwnErrors) -> None:
    with Neighbours() as n:
        res = n.nic.resources
        plant(monkeypatch, n.qp, "on_modify")
        n.first.a.ctx.close()
        assert [place for place, _ in own_errors] == ["release"]
        assert (res.qps, res.cqs, res.eqs, res.keys, res.uars) == ({}, {}, {}, {}, [])


def test_a_link_that_raises(monkeypatch: pytest.MonkeyPatch, own_errors: OwnErrors) -> None:
    with Neighbours() as n:
        link = n.first.a.node.link
        for name in ("send", "receive"):
            with monkeypatch.context() as planted:
                planted.setattr(link, name, broken)
                n.second.a.post_send(e.IBV_WR_RDMA_WRITE, 100)
                n.first.net.turn()
            assert [wc.status for wc in n.second.a.wait()] == [e.IBV_WC_SUCCESS]
        assert {place for place, _ in own_errors} == {"link"}
        n.second_works()


def test_an_interrupt_handler_that_raises(own_errors: OwnErrors) -> None:
    with Neighbours() as n:
        handlers = n.first.a.ctx.runtime.handlers
        handlers.update(dict.fromkeys(handlers, broken))
        n.first.b.post_send(e.IBV_WR_RDMA_WRITE, 8, remote=SIZE)
        assert [wc.status for wc in n.first.b.wait()] == [e.IBV_WC_REM_ACCESS_ERR]
        n.second_works()
        assert {place for place, _ in own_errors} == {"interrupt"}
