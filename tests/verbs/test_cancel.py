"""Cancel an operation of the short API at each turn of the event loop: nothing breaks and nothing stays."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import rnic

pytestmark = pytest.mark.slow
TURNS = 40
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


async def _awaited(work: Awaitable[rnic.Connection]) -> rnic.Connection:
    return await work
