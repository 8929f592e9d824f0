"""Cancel an operation of the short API at each turn of the event loop: nothing breaks and nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import rnic
from rnic.testing import own_network

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("short_collections")]
TURNS = 40
LISTENER_TURNS = 12
HERE, THERE = f"{own_network()}.181", f"{own_network()}.182"
Operation = Callable[[rnic.Connection], Awaitable[Any]]
OPERATIONS: dict[str, Operation] = {
    "aread": lambda peer: peer.aread("a"),
    "awrite": lambda peer: peer.awrite("a", np.arange(4096)),
    "afetch_add": lambda peer: peer.afetch_add("a", 0, 0),
    "acompare_swap": lambda peer: peer.acompare_swap("a", 1, 99, 98),
    "asend": lambda peer: peer.asend(b"cancelled, or not"),
    "arecv": lambda peer: peer.arecv(),
}


async def cancel_after(turns: int, work: Awaitable[Any]) -> bool:
    """Return whether it was cancelled before it was done."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    result: Any
    (result,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(result, asyncio.CancelledError):
        return True
    if isinstance(result, BaseException):
        raise result
    close = getattr(result, "close", None)
    if close is not None:
        close()
    return False


async def answers(peer: rnic.Connection, server: rnic.Connection, number: int) -> None:
    """The connection carries messages both ways and in order; what a cancelled asend had sent may come first."""
    word = b"word %d" % number
    await server.asend(word)
    async with asyncio.timeout(10):
        assert await peer.arecv() == word
        await peer.asend(word)
        while (came := await server.arecv()) != word:
            assert came == b"cancelled, or not"
    assert (await peer.aread("a", 2, 3)).tolist() == [2, 3, 4]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_connection_outlives_a_cancelled_operation(name: str) -> None:
    async def main() -> int:
        cancelled = 0
        async with rnic.alisten(port=0, share={"a": np.arange(1 << 15)}, udp_port=0) as listener:  # noqa: SIM117
            async with rnic.aconnect("127.0.0.1", listener.port, udp_port=0) as peer:
                server = await listener.accept()
                for turns in range(TURNS):
                    cancelled += await cancel_after(turns, OPERATIONS[name](peer))
                    await answers(peer, server, turns)
                server.close()
        return cancelled

    assert asyncio.run(main()) > 0


def test_a_cancelled_connect_leaves_nothing() -> None:
    async def main() -> tuple[int, list[int]]:
        cancelled, counts = 0, []
        async with rnic.alisten(port=0, share={"a": np.arange(8)}, udp_port=0) as listener:
            for turns in [*range(TURNS), *range(TURNS)]:
                work = rnic.aconnect("127.0.0.1", listener.port, udp_port=0)
                cancelled += await cancel_after(turns, asyncio.ensure_future(_awaited(work)))
                async with rnic.aconnect("127.0.0.1", listener.port, udp_port=0) as peer:
                    assert (await peer.aread("a")).tolist() == list(range(8))
                while listener._waiting:
                    (await listener.accept()).close()
                gc.collect()
                counts.append(len(os.listdir("/proc/self/fd")))
        return cancelled, counts

    cancelled, counts = asyncio.run(main())
    assert cancelled > 0
    assert max(counts[TURNS:]) <= max(counts[:TURNS]), "descriptors stay flat"


@pytest.mark.parametrize("client", ["none", "connects", "says nonsense"])
def test_a_cancelled_listener_leaves_nothing(client: str) -> None:
    """Its accept, and its end, at each turn of the loop."""

    async def end(turns: int) -> bool:
        listener = rnic.alisten(port=0, share={"a": np.arange(8)}, udp_port=0)
        await listener.__aenter__()
        port = listener.port
        connecting: asyncio.Task[Any] | None = None
        if client == "connects":
            connecting = asyncio.ensure_future(_awaited(rnic.aconnect("127.0.0.1", port, udp_port=0)))
        elif client == "says nonsense":
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"nonsense\n")
        cancelled = await cancel_after(turns % 5, listener.accept())
        cancelled |= await cancel_after(turns, listener.aclose())
        await listener.aclose()
        assert listener.closed
        assert listener._socket.fileno() == -1
        assert not listener._waiting
        if connecting is not None:
            for result in await asyncio.gather(connecting, return_exceptions=True):
                if isinstance(result, rnic.Connection):
                    result.close()
        elif client != "none":
            writer.close()
        with pytest.raises(rnic.ExchangeError):
            await listener.accept()
        return cancelled

    async def main() -> tuple[int, list[int]]:
        cancelled, counts = 0, []
        for turns in [*range(LISTENER_TURNS), *range(LISTENER_TURNS)]:
            cancelled += await end(turns)
            gc.collect()
            counts.append(len(os.listdir("/proc/self/fd")))
        return cancelled, counts

    cancelled, counts = asyncio.run(main())
    assert cancelled > 0
    assert max(counts[LISTENER_TURNS:]) <= max(counts[:LISTENER_TURNS]), "descriptors stay flat"


CM_OPERATIONS = ("acm_connect", "aget_request", "aaccept", "adisconnect", "arecv", "aread", "awrite")


@pytest.mark.parametrize("name", CM_OPERATIONS)
def test_a_cancelled_operation_of_the_connection_manager_leaves_nothing(name: str) -> None:
    """Whatever it had begun is over, and the next connection is made as ever."""

    async def connect(listener: rnic.CmListener) -> rnic.CmConnection:
        return await rnic.acm_connect(HERE, listener.port, addr=THERE)

    async def one(listener: rnic.CmListener, turns: int) -> bool:
        if name == "acm_connect":
            cancelled = await cancel_after(turns, connect(listener))
            await _drop_requests(listener)
            return cancelled
        if name == "aget_request":
            return await cancel_after(turns, listener.aget_request())
        connecting = asyncio.ensure_future(connect(listener))
        if name == "aaccept":
            cancelled = await cancel_after(turns, listener.aaccept())
            await _drop_requests(listener)
            for result in await asyncio.gather(connecting, return_exceptions=True):
                assert isinstance(result, rnic.CmConnection | rnic.CmConnectError), result
                if isinstance(result, rnic.CmConnection):
                    result.close()
            return cancelled
        server = await listener.aaccept()
        peer = await connecting
        work: dict[str, Callable[[], Awaitable[Any]]] = {"adisconnect": peer.adisconnect, "arecv": peer.arecv}
        begin = work.get(name, lambda: peer.aread(0, 0, 8) if name == "aread" else peer.awrite(0, 0, b"12345678"))
        try:
            cancelled = await cancel_after(turns, begin())
        except rnic.WorkCompletionError:  # there is no such memory
            cancelled = False
        peer.close()
        server.close()
        return cancelled

    async def main() -> tuple[int, list[int]]:
        cancelled, counts = 0, []
        async with rnic.cm_listen(HERE) as listener:
            for turns in [*range(LISTENER_TURNS), *range(LISTENER_TURNS)]:
                cancelled += await one(listener, turns)
                connecting = asyncio.ensure_future(connect(listener))
                async with await listener.aaccept() as server, await connecting as peer:
                    await server.asend(b"word %d" % turns)
                    async with asyncio.timeout(10):
                        assert await peer.arecv() == b"word %d" % turns
                gc.collect()
                counts.append(len(os.listdir("/proc/self/fd")))
        return cancelled, counts

    cancelled, counts = asyncio.run(main())
    assert cancelled > 0
    assert max(counts[LISTENER_TURNS:]) <= max(counts[:LISTENER_TURNS]), "descriptors stay flat"


async def _drop_requests(listener: rnic.CmListener) -> None:
    """Reject what a cancelled connection asked for, once it is here."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            while True:
                with contextlib.suppress(rnic.VerbsError):
                    (await listener.aget_request()).reject()


async def _awaited(work: Awaitable[rnic.Connection]) -> rnic.Connection:
    return await work
