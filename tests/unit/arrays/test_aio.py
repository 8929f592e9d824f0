"""The short API on an event loop: connections, servers, cancellation, and no thread for any of it."""

from __future__ import annotations

import asyncio
import inspect
import threading

import numpy as np
import pytest

import rnic


def test_a_server_and_its_clients() -> None:
    data = np.zeros(8, np.int64)

    async def serve(peer: rnic.Connection) -> None:
        async with peer:
            word = await peer.arecv()
            await peer.asend(word.upper())

    async def client(port: int, number: int) -> bytes:
        async with rnic.aconnect("127.0.0.1", port, udp_port=0) as peer:
            await peer.afetch_add("data", 0, number)
            assert await peer.acompare_swap("data", number, 0, 7) == 0
            await peer["data"].awrite(number, number * 10)
            assert (await peer["data"].aread(np.s_[number : number + 1])).tolist() == [number * 10]
            await peer.asend(b"word %d" % number)
            answer: bytes = await peer.arecv()
            return answer

    async def main() -> list[bytes]:
        async with rnic.alisten(port=0, share={"data": data}, udp_port=0) as listener, asyncio.TaskGroup() as tasks:

            async def accept() -> None:
                left = 3
                async for peer in listener:
                    tasks.create_task(serve(peer))
                    left -= 1
                    if not left:
                        return

            tasks.create_task(accept())
            return await asyncio.gather(*(client(listener.port, number) for number in (1, 2, 3)))

    assert asyncio.run(main()) == [b"WORD 1", b"WORD 2", b"WORD 3"]
    assert data.tolist() == [6, 10, 20, 30, 0, 0, 0, 0]


def test_no_thread_for_a_connection_or_a_call() -> None:
    async def main() -> None:
        here, there = (rnic.Context(addr="127.0.0.1", port=0) for _ in range(2))
        async with rnic.alisten(port=0, share={"a": np.arange(4)}, context=there) as listener:
            first = await rnic.aconnect("127.0.0.1", listener.port, context=here)
            threads = set(threading.enumerate())
            peers = [await rnic.aconnect("127.0.0.1", listener.port, context=here) for _ in range(5)]
            got = await asyncio.gather(*(peer.aread("a", place % 4, 1) for peer in peers for place in range(100)))
            assert [int(array[0]) for array in got] == [place % 4 for _ in peers for place in range(100)]
            assert set(threading.enumerate()) <= threads
            for peer in (first, *peers):
                peer.close()
        here.close()
        there.close()

    asyncio.run(main())


def test_a_cancelled_operation_breaks_nothing() -> None:
    async def main() -> None:
        there = rnic.Context(addr="127.0.0.1", port=0)
        async with rnic.alisten(port=0, share={"a": np.arange(1 << 18)}, context=there) as listener:  # noqa: SIM117
            async with rnic.aconnect("127.0.0.1", listener.port, udp_port=0) as peer:
                server = await listener.accept()
                with there.driver.lock:  # its NIC answers nothing, or the READ might be done before it is cancelled
                    reading = asyncio.create_task(peer.aread("a"))
                    waiting = asyncio.create_task(peer.arecv())
                    await asyncio.sleep(0)
                    reading.cancel()
                    waiting.cancel()
                assert [type(e) for e in await asyncio.gather(reading, waiting, return_exceptions=True)] == [
                    asyncio.CancelledError,
                    asyncio.CancelledError,
                ]
                await server.asend(b"still here")
                assert await peer.arecv() == b"still here"
                assert (await peer.aread("a", 5, 2)).tolist() == [5, 6]
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await peer.arecv()
                server.close()
        there.close()

    asyncio.run(main())


def test_what_goes_wrong_is_said_as_in_the_other_api() -> None:
    async def main() -> None:
        async with rnic.alisten(port=0, udp_port=0) as listener:
            port = listener.port
            with pytest.raises(rnic.VerbsError, match="shares no 'a'"):
                async with rnic.aconnect("127.0.0.1", port, udp_port=0) as peer:
                    await peer.aread("a")
        with pytest.raises(rnic.ExchangeError, match="is closed"):
            await listener.accept()
        with pytest.raises(rnic.ExchangeError, match=f"nobody listens on 127.0.0.1 port {port}"):
            await rnic.aconnect("127.0.0.1", port)
        with pytest.raises(rnic.ExchangeError, match="a TCP port is a whole number"):
            await rnic.aconnect("127.0.0.1", "http")

    asyncio.run(main())


def test_a_client_that_says_nonsense_is_told_and_the_rest_served() -> None:
    async def main() -> None:
        async with rnic.alisten(port=0, share={"a": np.arange(3)}, udp_port=0) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(b"GET / HTTP/1.1\r\n")
            assert b"does not speak the exchange of rnic" in await reader.readline()
            writer.close()
            await writer.wait_closed()
            async with rnic.aconnect("localhost", listener.port, addr="127.0.0.1", udp_port=0) as peer:
                assert (await peer.aread("a")).tolist() == [0, 1, 2]

    asyncio.run(main())


def test_it_has_the_arguments_of_connect() -> None:
    assert inspect.signature(rnic.aconnect).parameters == inspect.signature(rnic.connect).parameters
    with pytest.raises(TypeError, match="no_such"):
        rnic.aconnect("127.0.0.1", no_such=1)  # type: ignore[call-arg]


def test_peers_that_come_and_go_unaccepted_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.arrays.aio.CHECK_S", 0.01)

    async def main() -> None:
        here = rnic.Context(addr="127.0.0.1", port=0)
        async with rnic.alisten(port=0, share={"a": np.arange(4)}, context=here) as listener:
            for _ in range(3):
                async with rnic.aconnect("127.0.0.1", listener.port, udp_port=0) as peer:
                    await peer.aread("a")
            async with asyncio.timeout(10):
                while here.nic.qps:
                    await asyncio.sleep(0.01)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await listener.accept()
        here.close()

    asyncio.run(main())
