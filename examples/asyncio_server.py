"""A server on asyncio with many clients at once: messages both ways, and an array that all clients count in.

python asyncio_server.py [--clients 8]
"""

from __future__ import annotations

import argparse
import asyncio

import numpy as np

import rnic


async def serve(peer: rnic.Connection) -> None:
    """Answer one client until it goes."""
    async with peer:
        try:
            while True:
                numbers = await peer.arecv()
                await peer.asend(numbers * 2)
        except rnic.PeerClosedError:
            return


async def client(port: int, number: int, rounds: int) -> None:
    """Send arrays, check the answers, count."""
    async with rnic.aconnect("127.0.0.1", port) as peer:
        for step in range(rounds):
            numbers = np.arange(step + 1) + number
            await peer.asend(numbers)
            answer = await peer.arecv()
            assert (answer == numbers * 2).all()
            await peer.afetch_add("answered", 0, 1)


async def run(clients: int, rounds: int) -> int:
    """Serve clients of this process; return the number of answers that they counted."""
    answered = np.zeros(1, np.uint64)
    async with rnic.alisten(port=0, share={"answered": answered}) as listener, asyncio.TaskGroup() as tasks:

        async def accept() -> None:
            async for peer in listener:
                tasks.create_task(serve(peer))

        accepting = tasks.create_task(accept())
        await asyncio.gather(*(client(listener.port, number, rounds) for number in range(clients)))
        accepting.cancel()
    return int(answered[0])


def main() -> None:
    """Run the clients, and say what came of it."""
    parser = argparse.ArgumentParser(description="A server and its clients on one event loop.")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    print(f"{asyncio.run(run(given.clients, given.rounds))} answers to {given.clients} clients")


if __name__ == "__main__":
    main()
