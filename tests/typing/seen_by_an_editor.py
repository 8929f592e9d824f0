"""What a type checker, and so an editor, knows of the short API. ``./dev lint`` reads it; nothing runs it."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import rnic


def arrays(peer: rnic.Connection, floats: NDArray[np.float64]) -> None:
    """A read gives an array; with ``into`` it gives back what it was given, of the same type."""
    assert_type(peer.read("d"), NDArray[Any])
    assert_type(peer.read("d", into=floats), NDArray[np.float64])
    assert_type(peer.read("d", into=bytearray(8)), bytearray)
    assert_type(peer["d"], rnic.RemoteArray)
    assert_type(peer.fetch_add("n", 0, 1), int)
    assert_type(peer.compare_swap("n", 0, 1, 2), int)
    assert_type(peer.write("d", floats), None)


async def waiting(peer: rnic.Connection) -> None:
    """The same with asyncio."""
    assert_type(await peer.aread("d"), NDArray[Any])
    assert_type(await peer.aread("d", into=bytearray(8)), bytearray)
    assert_type(await peer.afetch_add("n", 0, 1), int)


def batches(peer: rnic.Connection) -> None:
    """A batch's reads are promises of arrays."""
    with peer.batch() as batch:
        assert_type(batch, rnic.Batch)
        first = batch.read("d", 0, 1)
        second = batch.read("d", into=bytearray(8))
    assert_type(first.result(), NDArray[Any])
    assert_type(second.result(), bytearray)


def ends() -> None:
    """Both ends of a connection have the same type."""
    with rnic.listen(share={"d": np.zeros(4)}) as listener:
        assert_type(listener, rnic.Listener)
        assert_type(listener.accept(), rnic.Connection)
    assert_type(rnic.connect("127.0.0.1"), rnic.Connection)
    assert_type(rnic.QPAttr().qp_state, int)


def refused() -> None:
    """What does not exist is marked; a mark that is not needed would be an error, too."""
    rnic.QPAttr().min_rnr_time = 12  # type: ignore[attr-defined]
    rnic.connect(7471)  # type: ignore[arg-type]
