"""The short API over the UDP loopback, both ends in this process."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import mmap
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnic
from rnic import enums as e
from rnic.arrays.handshake import refusal_line
from rnic.arrays.listener import MAX_HANDSHAKES, RETRY_S
from rnic.cm.line_socket import ExchangeError
from rnic.runtime.wait import wait_readable
from rnic.testing import own_network
from tests.forks import child_says

NET = own_network()
STATM = Path("/proc/self/statm")


class Ends:
    """A listener with some buffers, and the two ends of one connection to it."""

    def __init__(self, addr: str) -> None:
        self.table = np.arange(1000, dtype=np.int32).reshape(10, 100)
        self.words = np.zeros(8, dtype=np.int64)
        self.counts = np.zeros(8, dtype=np.uint64)
        self.big = np.zeros(100_000, dtype=np.float64)
        self.mine = bytearray(b"client's own")
        self.listener = rnic.listen(addr, 0, udp_port=0)
        self.listener.share(table=self.table, words=self.words, counts=self.counts, big=self.big)
        self.listener.share_readonly(text=b"read me", fixed=np.ones(4))
        self.client = rnic.connect(addr, self.listener.port, udp_port=0, share={"mine": self.mine})
        self.server = self.listener.accept(30)

    def close(self) -> None:
        self.client.close()
        self.server.close()
        self.listener.close()


@pytest.fixture(params=["127.0.0.1", "::1"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = Ends(request.param)
    yield made
    made.close()


def test_read_and_write(ends: Ends) -> None:
    client = ends.client
    whole = client.read("table")
    assert whole.dtype == np.int32
    assert (whole == ends.table).all()
    assert client.read("table", 95, 10).tolist() == list(range(95, 105))
    assert client.read("table", 990).tolist() == list(range(990, 1000))
    assert bytes(client.read("text")) == b"read me"

    into = np.zeros(50, np.int32)
    assert client.read("table", 7, into=into) is into
    assert into.tolist() == list(range(7, 57))

    client.write("table", np.full(3, -1, np.int32), 10)
    assert ends.table.ravel()[9:14].tolist() == [9, -1, -1, -1, 13]

    values = np.random.default_rng(1).random(100_000)
    client.write("big", values)
    assert (ends.big == values).all()
    assert (client.read("big") == values).all()


def test_the_listeners_end_reads_what_the_client_shares(ends: Ends) -> None:
    assert bytes(ends.server.read("mine")) == b"client's own"
    ends.server.write("mine", b"server", 0)
    assert ends.mine == b"server's own"


def test_atomics(ends: Ends) -> None:
    client = ends.client
    assert [client.fetch_add("words", 2, -5), client.fetch_add("words", 2, 7)] == [0, -5]
    assert [client.compare_swap("words", 2, 2, 40), client.compare_swap("words", 2, 2, 41)] == [2, 40]
    assert ends.words.tolist() == [0, 0, 40, 0, 0, 0, 0, 0]
    assert client.fetch_add("counts", 0, -1) == 0
    assert client.fetch_add("counts", 0, 1) == (1 << 64) - 1


def test_messages(ends: Ends) -> None:
    client, server = ends.client, ends.server
    client.send(b"hello")
    client.send(b"")
    client.send(ends.table)
    assert server.recv() == b"hello"
    assert server.recv() == b""
    array = server.recv()
    assert array.shape == (10, 100)
    assert (array == ends.table).all()
    server.send(np.float64(2.5))
    assert client.recv() == 2.5


def test_more_messages_than_receives_wait(ends: Ends) -> None:
    def send_all() -> None:
        for number in range(30):
            ends.client.send(str(number).encode())

    sender = threading.Thread(target=send_all)
    sender.start()
    assert [int(ends.server.recv(10)) for _ in range(30)] == list(range(30))
    sender.join()


def test_asyncio(ends: Ends) -> None:
    async def main() -> None:
        client, server = ends.client, ends.server
        reads = await asyncio.gather(*(client.aread("table", 10 * at, 10) for at in range(100)))
        assert np.concatenate(reads).tolist() == list(range(1000))
        found = await asyncio.gather(*(client.afetch_add("words", 0, 1) for _ in range(20)))
        assert sorted(found) == list(range(20))
        assert await client.acompare_swap("words", 0, 20, 0) == 20
        await client.awrite("table", np.full(5, 9, np.int32))
        assert ends.table.ravel()[:6].tolist() == [9] * 5 + [5]
        message, _ = await asyncio.gather(server.arecv(), client.asend(b"ping"))
        assert message == b"ping"
        waiting = asyncio.create_task(server.arecv())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.shield(waiting)
        await client.asend(b"late")
        assert await waiting == b"late"

    asyncio.run(main())
    asyncio.run(main_again(ends))


async def main_again(ends: Ends) -> None:
    """Another event loop takes the connection over."""
    ends.words[:] = 3
    assert (await ends.client.aread("words")).tolist() == [3] * 8


def test_threads_share_a_connection(ends: Ends) -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for step in range(20):
                at = (seed * 37 + step * 11) % 900
                assert ends.client.read("table", at, 100).tolist() == list(range(at, at + 100))
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda c: c.read("none"), "shares no 'none'; it shares big, counts"),
        (lambda c: c.read("table", 1001), "offset=1001"),
        (lambda c: c.read("table", -1), "offset=-1"),
        (lambda c: c.read("table", 990, 11), "1000 elements of 4 bytes"),
        (lambda c: c.read("table", 0, -1), "count=-1"),
        (lambda c: c.read("table", into=bytearray(6)), "no multiple of the element's 4"),
        (lambda c: c.read("table", 0, 3, into=bytearray(8)), "fewer than the 12"),
        (lambda c: c.read("table", 0, 2, into=b"readonly"), "read-only"),
        (lambda c: c.write("table", b"123"), "no multiple"),
        (lambda c: c.write("table", bytes(4004)), "count=1001"),
        (lambda c: c.fetch_add("table", 0, 1), "atomics need integers of 8"),
        (lambda c: c.fetch_add("words", 8, 1), "offset=8"),
        (lambda c: c.send(bytes((1 << 20) + 1)), "raise its message_bytes"),
        (lambda c: c.send(object()), "no bytes to register"),
    ],
)
def test_wrong_arguments_are_one_line_and_break_nothing(call: Any, says: str) -> None:
    ends = Ends("127.0.0.1")
    try:
        with pytest.raises(rnic.VerbsError, match=says) as error:
            call(ends.client)
        assert "\n" not in str(error.value)
        assert ends.client.read("table", 5, 1).tolist() == [5]
    finally:
        ends.close()


def test_writing_what_is_shared_for_reading_fails_at_the_peer(ends: Ends) -> None:
    info = dataclasses.replace(ends.client.remote["fixed"], writable=True)
    with pytest.raises(rnic.WorkCompletionError, match=r"WRITE to 'fixed' at .* REM_ACCESS_ERR") as error:
        ends.client.write(info, np.zeros(4))
    assert error.value.status == e.IBV_WC_REM_ACCESS_ERR
    with pytest.raises(rnic.WorkCompletionError, match="broken since an earlier error"):
        ends.client.read("table")
    # and the listener serves on
    with rnic.connect(ends.listener.address, ends.listener.port, udp_port=0) as other:
        assert other.read("fixed").tolist() == [1.0] * 4


def test_the_peer_closes(ends: Ends) -> None:
    ends.client.send(b"last words")
    ends.client.close()
    ends.client.close()
    assert ends.server.wait_closed(30)
    assert ends.server.recv() == b"last words"
    with pytest.raises(rnic.PeerClosedError):
        ends.server.recv()
    with pytest.raises(rnic.VerbsError, match="is closed"):
        ends.client.read("table")


def test_closing_in_a_task_ends_what_other_tasks_wait_for(ends: Ends) -> None:
    client = ends.client
    client._queue._depth = 0  # nothing is posted, so that nothing completes

    async def main() -> None:
        waiting = [
            asyncio.create_task(work) for work in (client.arecv(), client.aread("table"), client.awrite("big", [1.0]))
        ]
        await asyncio.sleep(0)
        client.close()
        async with asyncio.timeout(5):
            received, read, written = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(received, rnic.VerbsError)
        assert "is closed; open a new one" in str(received)
        for found in (read, written):
            assert isinstance(found, rnic.WorkCompletionError)
            assert found.status == e.IBV_WC_WR_FLUSH_ERR

    asyncio.run(main())


def test_closing_in_a_thread_wakes_the_tasks_of_a_loop(ends: Ends) -> None:
    async def main() -> None:
        waiting = asyncio.create_task(ends.client.arecv())
        await asyncio.sleep(0)
        await asyncio.to_thread(ends.client.close)
        async with asyncio.timeout(5):
            with pytest.raises(rnic.VerbsError, match="is closed; open a new one"):
                await waiting
        assert not await ends.client._queue.wait_async(lambda: False), "who comes too late does not wait at all"

    asyncio.run(main())


@pytest.mark.parametrize("wait", ["recv", "wait_closed"])
def test_closing_in_a_thread_ends_what_another_waits_for(
    wait: str, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps = threading.Event()

    def sleep(descriptors: list[int], timeout_s: float | None) -> bool:
        if timeout_s != 0:
            sleeps.set()
        return wait_readable(descriptors, timeout_s)

    monkeypatch.setattr("rnic.cm.work_queue.wait_readable", sleep)
    found: list[object] = []

    def work() -> None:
        try:
            found.append(getattr(ends.client, wait)())
        except rnic.VerbsError as error:
            found.append(str(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert sleeps.wait(30)
    ends.client.close()
    assert ends.server.wait_closed(30), "the peer is told, whichever call waits here"
    thread.join(30)
    assert not thread.is_alive()
    if wait == "recv":
        (said,) = found
        assert "is closed; open a new one" in str(said)
    else:
        assert found == [True]


def test_nothing_is_left_where_what_a_connection_needs_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise rnic.VerbsError(errno.ENOMEM, "nothing is left")

    with rnic.Context(addr=f"{NET}.91", port=0) as ctx, rnic.listen(f"{NET}.91", 0, context=ctx) as listener:
        for what in ("rnic.arrays.one_sided.MR", "rnic.cm.work_queue.CQ"):
            with monkeypatch.context() as patch:
                patch.setattr(what, refuse)
                with pytest.raises(rnic.VerbsError, match="nothing is left"):
                    rnic.connect(listener.address, listener.port, context=ctx)
            assert not ctx._cqs
            assert [type(child).__name__ for child in ctx._children] == ["PD"], "the listener's"


def test_no_message_in_time(ends: Ends) -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.001 s"):
        ends.server.recv(0.001)
    assert not ends.server.wait_closed(0)


@pytest.mark.slow
def test_a_buffer_that_is_gone(ends: Ends) -> None:
    ends.listener.close()
    with pytest.raises(rnic.WorkCompletionError):
        ends.client.read("table")


# ------------------------------------------------------------------------------------------- listener


def test_names_and_buffers_are_checked() -> None:
    with rnic.listen("127.0.0.1", 0, udp_port=0) as listener:
        listener.share(a=bytearray(8))
        refused: tuple[tuple[Callable[[], object], str], ...] = (
            (lambda: listener.share(a=bytearray(8)), "shared already"),
            (lambda: listener.share(b=b""), "length 0"),
            (lambda: listener.share(b=object()), "no bytes to register"),
            (lambda: listener.share(**{"x" * 201: b"1"}), "201 characters"),
        )
        for call, says in refused:
            with pytest.raises(rnic.VerbsError, match=says):
                call()
        with pytest.raises(TimeoutError, match="nobody connected"):
            listener.accept(0.001)
    with pytest.raises(ExchangeError, match="is closed"):
        listener.accept()
    listener.close()
    assert "closed" in repr(listener)


def test_hostile_clients_disturb_nobody() -> None:
    with rnic.listen("127.0.0.1", 0, udp_port=0) as listener:
        listener.share(a=b"fine")
        for said in (b"", b"GET / HTTP/1.0\r\n\r\n", b"{}\n", b'{"rnic":1,"qpn":0}\n', b"\xff" * 100 + b"\n"):
            with socket.create_connection((listener.address, listener.port)) as sock:
                sock.sendall(said)
                sock.shutdown(socket.SHUT_WR)
                answer = sock.makefile("rb").read()
            assert b'"error"' in answer or answer == b""
        with rnic.connect("127.0.0.1", listener.port, udp_port=0) as client:
            assert bytes(client.read("a")) == b"fine"


@pytest.mark.slow
def test_peers_that_come_and_go_unaccepted_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.arrays.listener.CHECK_S", 0.01)
    with (
        rnic.Context(addr="127.0.0.1", port=0) as ctx,
        rnic.listen("127.0.0.1", 0, context=ctx, receives=2, message_bytes=100) as listener,
    ):
        closed: weakref.WeakSet[object] = weakref.WeakSet()
        for _ in range(3):
            rnic.connect("127.0.0.1", listener.port, udp_port=0).close()
        end = time.monotonic() + 10
        while ctx.nic.qps and time.monotonic() < end:
            closed |= {each for each in gc.get_objects() if type(each) is rnic.Connection}
            time.sleep(0.01)
        assert ctx.nic.qps == {}
        while gc.collect() >= 0 and len(closed) and time.monotonic() < end:  # the listener's thread may hold the last
            time.sleep(0.01)
        assert len(closed) == 0, "a listener that only shares keeps none of them"
        with pytest.raises(TimeoutError):
            listener.accept(0.01)


def test_a_server_that_refuses_is_quoted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(1 << 16)
                sock.sendall(refusal_line("try later"))

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(ExchangeError, match="refused: try later"):
            rnic.connect("127.0.0.1", server.getsockname()[1], udp_port=0)
        thread.join()


@pytest.mark.parametrize("options", [{"message_bytes": -1}, {"receives": -1}, {"receives": 5000}])
def test_bad_options(options: dict[str, Any]) -> None:
    with (
        rnic.listen("127.0.0.1", 0, udp_port=0) as listener,
        pytest.raises(rnic.VerbsError, match="out of range"),
    ):
        rnic.connect("127.0.0.1", listener.port, udp_port=0, **options)


def test_an_end_without_receives() -> None:
    with (
        rnic.listen("127.0.0.1", 0, udp_port=0, receives=0) as listener,
        rnic.connect("127.0.0.1", listener.port, udp_port=0) as client,
    ):
        with pytest.raises(rnic.VerbsError, match="longer than the 0"):
            client.send(b"x")
        with listener.accept(30) as server, pytest.raises(rnic.VerbsError, match="posts no receives"):
            server.recv()


def test_the_nics_port_is_chosen_where_4791_is_taken() -> None:
    here, there = (f"{NET}.{number}" for number in (92, 93))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind((here, 4791))
        with rnic.listen(here, 0) as listener:
            listener.share(a=b"here")
            with rnic.connect(here, listener.port, addr=there) as client:
                assert bytes(client.read("a")) == b"here"
        with pytest.raises(rnic.LinkError, match=rf"4791 on {here} is taken"):
            rnic.listen(here, 0, udp_port=4791)


@pytest.fixture
def small_listener() -> Iterator[rnic.Listener]:
    listener = rnic.listen("127.0.0.1", 0, udp_port=0)
    listener.share(word=bytearray(8))
    yield listener
    listener.close()


@pytest.mark.slow
def test_a_listener_without_threads_tells_who_came_and_serves_on(
    small_listener: rnic.Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def full(thread: threading.Thread) -> None:
        if getattr(thread, "_target", None) == small_listener._handshake:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full)
    for _ in range(MAX_HANDSHAKES + 1):  # a slot that was not given back would be missing now
        with pytest.raises(ExchangeError, match="no more threads"):
            rnic.connect("127.0.0.1", small_listener.port, udp_port=0)
    monkeypatch.undo()
    with rnic.connect("127.0.0.1", small_listener.port, udp_port=0) as client:
        assert bytes(client.read("word")) == bytes(8)


def test_a_listener_without_descriptors_waits_before_it_tries_again(
    small_listener: rnic.Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    wait = small_listener._closing.wait

    def noted(timeout: float | None = None) -> bool:
        waits.append(timeout)
        return wait(0)

    class Exhausted:
        """The listening socket; its first three ``accept`` fail."""

        def __init__(self, real: socket.socket) -> None:
            self.real, self.left = real, 3

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def accept(self) -> tuple[socket.socket, Any]:
            if self.left:
                self.left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.real.accept()

    monkeypatch.setattr(small_listener._closing, "wait", noted)
    monkeypatch.setattr(small_listener, "_socket", Exhausted(small_listener._socket))
    # the accept that is under way is the real one's
    for _ in range(2):
        with rnic.connect("127.0.0.1", small_listener.port, udp_port=0) as client:
            assert bytes(client.read("word")) == bytes(8)
    assert waits == [RETRY_S] * 3


# ------------------------------------------------------------------------------ dropped, and in a child


def eventually(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.skipif(not STATM.exists(), reason="no /proc/self/statm tells how much memory is resident")
def test_receives_take_memory_once_they_are_used() -> None:
    def resident() -> int:
        return int(STATM.read_text().split()[1]) * mmap.PAGESIZE

    with rnic.listen("127.0.0.1", 0, udp_port=0) as listener, ExitStack() as made:

        def connect() -> tuple[rnic.Connection, rnic.Connection]:
            client = made.enter_context(rnic.connect("127.0.0.1", listener.port, udp_port=0))
            return client, made.enter_context(listener.accept(30))

        connect()  # the first pays for what all share
        before = resident()
        ends = [connect() for _ in range(3)]
        grown = (resident() - before) // 3
        for client, server in ends:
            client.send(b"there is room")
            assert server.recv(30) == b"there is room"
    assert grown < 1 << 20, f"both ends of a connection take {grown} bytes"


def test_a_connection_that_is_dropped_is_given_back() -> None:
    with rnic.listen("127.0.0.1", 0, udp_port=0) as listener:
        client: Any = rnic.connect("127.0.0.1", listener.port, udp_port=0)
        server = listener.accept(30)
        pd, ctx = client.qp.pd, client.ctx
        assert pd.ctx._qps
        del client
        gc.collect()
        assert server.wait_closed(10)
        assert eventually(lambda: ctx.closed and not ctx._qps)
        server.close()


@pytest.mark.slow
def test_a_connection_that_a_server_drops_serves_until_its_peer_leaves() -> None:
    table = np.arange(100)
    with rnic.listen("127.0.0.1", 0, udp_port=0, share={"table": table}) as listener:
        client = rnic.connect("127.0.0.1", listener.port, udp_port=0)
        qps = listener.accept(30).ctx._qps  # the connection itself goes at once
        gc.collect()
        assert client.read("table").tolist() == table.tolist()
        assert len(qps) == 1
        client.close()
        assert eventually(lambda: not qps)
        # and one that is dropped stays no longer than the listener
        client = rnic.connect("127.0.0.1", listener.port, udp_port=0)
        listener.accept(30)
        gc.collect()
    assert not qps
    client.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_refused_at_once(ends: Ends) -> None:
    """With EIO, as the C library refuses it; the parent's connection is as it was."""
    under_way = ends.client.begin_read("table", 0, 10, None)
    calls: list[Callable[[], Any]] = [
        lambda: ends.client.read("table"),
        lambda: ends.client.write("words", [1]),
        lambda: ends.client.send(b"x"),
        ends.client.recv,
        ends.client.wait_closed,
        lambda: asyncio.run(ends.client.arecv()),
        lambda: ends.client.qp.post_send(rnic.SendWR()),
        lambda: ends.client.qp.post_recv(rnic.RecvWR()),
        ends.client.qp.scq.poll,
        ends.listener.accept,
        under_way.result,
    ]

    def refused() -> bool:
        for call in calls:
            with pytest.raises(rnic.VerbsError) as caught:
                call()
            assert caught.value.errno == errno.EIO
        ends.client.close()
        return True

    assert child_says(refused)
    assert under_way.result().tolist() == list(range(10))
    ends.client.send(b"still here")
    assert ends.server.recv(30) == b"still here"
