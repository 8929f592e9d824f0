"""Connections by CM in Python, over the UDP loopback: blocking and asyncio. Between processes: tests/abi."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import rnic
from rnic import enums as e
from rnic.link.middleware import Middleware
from rnic.link.udp import UdpLink
from rnic.runtime.wait import wait_readable
from rnic.spec import opcodes as op
from rnic.testing import own_network
from rnic.wire.bursts import TxBurst
from rnic.wire.mad import CM_RTU

NET = own_network()
HERE, THERE = f"{NET}.81", f"{NET}.82"


class Service:
    """A listener, and what a thread does with those who come."""

    def __init__(self, act: Any, **listening: Any) -> None:
        self.listener = rnic.cm_listen(HERE, 0, **listening)
        self.found: list[Any] = []
        self.thread = threading.Thread(target=self._run, args=(act,))
        self.thread.start()

    def _run(self, act: Any) -> None:
        try:
            self.found.append(act(self.listener))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.found.append(error)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *exc: object) -> None:
        self.thread.join(10)
        self.listener.close()
        assert not self.thread.is_alive()

    def connect(self, **more: Any) -> rnic.CmConnection:
        return rnic.cm_connect(HERE, self.listener.port, addr=THERE, timeout_s=30, **more)


def echo(listener: rnic.CmListener) -> list[bytes]:
    """Accept one, give back what it says until it leaves; all that was said."""
    said = []
    request = listener.get_request(30)
    with request.accept(b"welcome " + request.private.rstrip(b"\0")) as peer:
        try:
            while True:
                said.append(peer.recv(30))
                peer.send(said[-1])
        except rnic.PeerClosedError:
            return said


def connected(end: rnic.CmConnection) -> bool:
    return end.connected


def test_messages_private_data_and_the_end() -> None:
    with Service(echo) as service:
        with service.connect(private=b"ping") as mine:
            assert mine.private == b"welcome ping".ljust(196, b"\0")
            assert connected(mine)
            for message in (b"one", b"", bytes(range(256)) * 200):
                mine.send(message)
                assert mine.recv(30) == message
            with pytest.raises(TimeoutError, match=r"no message from .* within 0.01 s"):
                mine.recv(0.01)
            mine.disconnect(5)
            assert not connected(mine)
            with pytest.raises(rnic.PeerClosedError):
                mine.recv(30)
        with pytest.raises(rnic.VerbsError, match="is closed"):
            mine.send(b"late")
    assert service.found == [[b"one", b"", bytes(range(256)) * 200]]


def test_one_sided_access() -> None:
    memory = bytearray(b"0123456789")

    def lend(listener: rnic.CmListener) -> bool:
        with listener.accept(30) as peer:
            region = peer.register(memory)
            peer.send(region.buf.to_bytes(8, "big") + region.rkey.to_bytes(4, "big"))
            fixed = peer.register(b"for reading", writable=False)
            peer.send(fixed.buf.to_bytes(8, "big") + fixed.rkey.to_bytes(4, "big"))
            return peer.wait_closed(30)

    with Service(lend) as service, service.connect() as mine:
        told = mine.recv(30)
        address, key = int.from_bytes(told[:8], "big"), int.from_bytes(told[8:], "big")
        assert mine.read(address + 2, key, 5) == b"23456"
        mine.write(address, key, b"abc")
        assert memory == b"abc3456789"
        told = mine.recv(30)
        address, key = int.from_bytes(told[:8], "big"), int.from_bytes(told[8:], "big")
        assert mine.read(address, key, 11) == b"for reading"
        with pytest.raises(rnic.WorkCompletionError, match=r"WRITE at .* failed"):
            mine.write(address, key, b"abc")
    assert service.found == [True]


def test_what_is_said_before_the_peer_leaves_is_received() -> None:
    def say(listener: rnic.CmListener) -> None:
        with listener.accept(30) as peer:
            for number in range(8):
                peer.send(bytes([number]))
            peer.disconnect(5)

    with Service(say) as service, service.connect() as mine:
        assert mine.wait_closed(30)
        assert [mine.recv(30) for _ in range(8)] == [bytes([number]) for number in range(8)]
        with pytest.raises(rnic.PeerClosedError, match="disconnected"):
            mine.recv(30)


def test_rejections_say_why() -> None:
    with Service(lambda listener: listener.get_request(30).reject(b"no room")) as service:
        with pytest.raises(
            rnic.CmRejectedError, match=r"rejected the connection: consumer reject \(reason 28\)"
        ) as said:
            service.connect()
        assert (said.value.reason, said.value.private.rstrip(b"\0")) == (28, b"no room")
        with pytest.raises(rnic.CmRejectedError, match="nobody listens on that port") as said:
            rnic.cm_connect(HERE, 1, addr=THERE)
        assert said.value.reason == 8
        assert "\n" not in str(said.value)


def test_requests_are_answered_once() -> None:
    def act(listener: rnic.CmListener) -> None:
        request = listener.get_request(30)
        request.reject()
        for again in (request.reject, request.accept):
            with pytest.raises(rnic.VerbsError, match="answered already"):
                again()

    with Service(act) as service, pytest.raises(rnic.CmRejectedError):
        service.connect()
    assert service.found == [None]


@pytest.mark.parametrize("looks", [False, True], ids=["at once", "after a look for others"])
def test_a_request_whose_peer_gave_up_is_rejected_by_it(looks: bool) -> None:
    with rnic.cm_listen(HERE) as listener:
        with pytest.raises(rnic.CmTimeoutError):
            rnic.cm_connect(HERE, listener.port, addr=THERE, timeout_s=0.05)
        request = listener.get_request(30)
        counters, end = listener.ctx.nic.counters, time.monotonic() + 30
        while not counters["cm_rx_rej"]:
            assert time.monotonic() < end
            listener.ctx.driver.progress()
        if looks:
            with pytest.raises(TimeoutError):
                listener.get_request(0)
        with pytest.raises(rnic.CmRejectedError, match=r"timeout \(reason 4\); it gave up waiting") as said:
            request.accept()
        assert said.value.reason == 4


def test_nobody_answers_in_time() -> None:
    with pytest.raises(rnic.CmTimeoutError, match=r"port 7 did not answer within 0.05 s: is a NIC there") as said:
        rnic.cm_connect(f"{NET}.83", 7, addr=THERE, timeout_s=0.05)
    assert "\n" not in str(said.value)
    assert isinstance(said.value, TimeoutError)

    async def act() -> None:
        with pytest.raises(rnic.CmTimeoutError, match="did not answer"):
            await rnic.acm_connect(f"{NET}.83", 7, addr=THERE, timeout_s=0.05)

    asyncio.run(act())
    # whoever is asked and says nothing
    with rnic.cm_listen(HERE) as listener, pytest.raises(rnic.CmTimeoutError, match="did not answer"):
        rnic.cm_connect(HERE, listener.port, addr=THERE, timeout_s=0.05)
    with rnic.cm_listen(HERE) as listener, pytest.raises(TimeoutError, match="nobody connected"):
        listener.get_request(0.01)


def test_mistakes_are_named() -> None:
    with rnic.cm_listen(HERE, 4321) as listener:
        with pytest.raises(rnic.CmConnectError, match=r"cannot listen by CM on .* port 4321: port 4321 is taken"):
            rnic.cm_listen(context=listener.ctx, port=4321)
        with pytest.raises(rnic.VerbsError, match="57 bytes: this message has room for 56"):
            rnic.cm_connect(HERE, 4321, addr=THERE, private=bytes(57))
        with pytest.raises(rnic.CmConnectError, match="use one IP version at both ends"):
            rnic.cm_connect("::1", 4321, addr=THERE)
        with pytest.raises(rnic.VerbsError, match="receives=0 is out of range"):
            rnic.cm_connect(HERE, 4321, addr=THERE, receives=0)
        with pytest.raises(rnic.ExchangeError, match="port 0"):
            rnic.cm_connect(HERE, 0, addr=THERE)
        with pytest.raises(rnic.CmConnectError, match=r"cannot reach no\.such\.host\.invalid"):
            rnic.cm_connect("no.such.host.invalid", 7, addr=THERE)
    with pytest.raises(rnic.CmConnectError, match="is closed"):
        listener.get_request()


def test_asyncio() -> None:
    async def serve(listener: rnic.CmListener) -> list[bytes]:
        said = []
        async with await listener.aaccept(b"hello") as peer:
            try:
                while True:
                    said.append(await peer.arecv())
                    await peer.asend(said[-1])
            except rnic.PeerClosedError:
                return said

    async def act() -> None:
        async with rnic.cm_listen(HERE) as listener:
            serving = [asyncio.create_task(serve(listener)) for _ in range(3)]
            peers = [await rnic.acm_connect(HERE, listener.port, addr=THERE) for _ in range(3)]
            for number, peer in enumerate(peers):
                assert peer.private.rstrip(b"\0") == b"hello"
                await peer.asend(bytes([number]) * 100)
            for number, peer in enumerate(peers):
                assert await peer.arecv() == bytes([number]) * 100
                await peer.adisconnect()
                peer.close()
            assert sorted(await asyncio.gather(*serving)) == [[bytes([number]) * 100] for number in range(3)]
            refused = asyncio.create_task(rnic.acm_connect(HERE, listener.port, addr=THERE))
            (await listener.aget_request()).reject(b"no more")
            with pytest.raises(rnic.CmRejectedError, match="reason 28"):
                await refused

    asyncio.run(act())


def wait_for_the_end(listener: rnic.CmListener) -> bool:
    with listener.accept(30) as peer:
        return peer.wait_closed(30)


def test_closing_in_a_task_ends_what_other_tasks_wait_for() -> None:
    with Service(wait_for_the_end) as service:
        mine = service.connect()
        mine._queue._depth = 0  # nothing is posted, so that nothing completes

        async def act() -> None:
            waiting = [
                asyncio.create_task(work) for work in (mine.arecv(), mine.aread(0, 0, 8), mine.awrite(0, 0, b"x"))
            ]
            await asyncio.sleep(0)
            mine.close()
            async with asyncio.timeout(5):
                received, read, written = await asyncio.gather(*waiting, return_exceptions=True)
            assert isinstance(received, rnic.VerbsError)
            assert "is closed; open a new one" in str(received)
            for found in (read, written):
                assert isinstance(found, rnic.WorkCompletionError)
                assert found.status == e.IBV_WC_WR_FLUSH_ERR

        asyncio.run(act())
    assert service.found == [True]


@pytest.mark.parametrize("wait", ["recv", "wait_closed"])
def test_closing_in_a_thread_ends_what_another_waits_for(wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps = threading.Event()

    def sleep(descriptors: list[int], timeout_s: float | None) -> bool:
        if timeout_s != 0 and threading.current_thread() is thread:
            sleeps.set()
        return wait_readable(descriptors, timeout_s)

    found: list[object] = []

    def work() -> None:
        try:
            found.append(getattr(mine, wait)())
        except rnic.VerbsError as error:
            found.append(str(error))

    thread = threading.Thread(target=work, daemon=True)
    with Service(wait_for_the_end) as service:
        mine = service.connect()
        monkeypatch.setattr("rnic.cm.work_queue.wait_readable", sleep)
        monkeypatch.setattr("rnic.cm.work_queue.MAX_WAIT_S", 0.05)
        thread.start()
        assert sleeps.wait(30)
        mine.close()
        thread.join(30)
        assert not thread.is_alive()
    assert service.found == [True], "the peer is told, whichever call waits here"
    if wait == "recv":
        (said,) = found
        assert "is closed; open a new one" in str(said)
    else:
        assert found == [True]


class Deaf(Middleware):
    """Loses every ReadyToUse."""

    def send(self, bursts: Sequence[TxBurst]) -> None:
        self.inner.send([burst for burst in bursts if _message(burst) != CM_RTU])


def _message(burst: TxBurst) -> int:
    """Which message a datagram of QP1 is; 0 for other packets."""
    packet = b"".join(map(bytes, burst.buffers))
    return int.from_bytes(packet[36:38], "big") if packet[0] == op.UD | op.SEND_ONLY else 0


def test_the_first_message_stands_for_an_rtu_that_was_lost() -> None:
    """The passive side hears of the connection by data (IBA 12.9.7.2), and no RTU ever comes."""
    with Service(echo) as service, rnic.Context(link=Deaf(UdpLink(THERE, 4791))) as ctx:
        mine = rnic.cm_connect(HERE, service.listener.port, context=ctx)
        mine.send(b"here I am")
        assert mine.recv(30) == b"here I am"
        counters = service.listener.ctx.nic.counters
        assert counters["cm_rx_rtu"] == 0
        assert counters["cm_rx_req"] >= 1
        mine.close()
    assert service.found == [[b"here I am"]]


def test_nothing_is_left_where_no_queue_pair_could_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise rnic.VerbsError(12, "no queue pair is left")

    with rnic.cm_listen(HERE, 4321) as listener:
        ctx = listener.ctx
        monkeypatch.setattr("rnic.cm.rc_connection.QP", refuse)
        with pytest.raises(rnic.VerbsError, match="no queue pair is left"):
            rnic.cm_connect(HERE, 4321, context=ctx)
        assert not ctx._cqs
        assert [type(child).__name__ for child in ctx._children] == ["Manager"]
        with rnic.listen(HERE, 0, context=ctx) as ours:
            with pytest.raises(rnic.VerbsError, match="no queue pair is left"):
                rnic.connect(HERE, ours.port, context=ctx)
            assert not ctx._cqs
            assert sorted(type(child).__name__ for child in ctx._children) == ["Manager", "PD"]
