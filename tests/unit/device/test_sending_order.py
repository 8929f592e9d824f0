"""Whether replies or requests leave first: what a program posts when it was woken must not overtake what woke it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rnic.rings.queue_block import ARM_NEXT
from rnic.spec.opcodes import ACKNOWLEDGE, OPERATION_MASK, READ_RESPONSE_ONLY, SEND_ONLY, WR_READ
from rnic.wire.bursts import RxBurst
from tests.unit.device.conftest import Pair, Queue

Served = Callable[..., Queue]


def _carry(pair: Pair, side: int) -> list[int]:
    """What a NIC sends now, by operation; the other has received it."""
    pair.wire.now += 1_000
    operations = []
    for burst in pair.nics[side].produce(pair.wire.now):
        data = b"".join(burst.buffers)
        operations += [data[at] & OPERATION_MASK for at in range(0, burst.length, burst.segment)]
        pair.nics[1 - side].receive(
            RxBurst(burst.flow.reverse().reverse(), memoryview(data), burst.segment, burst.length, 0), pair.wire.now
        )
    return operations


def _post(pair: Pair, side: int, qp: Queue, length: int = 8) -> None:
    _, va, key = pair.mrs[side]
    pair.drivers[side].send(qp, va, length, key)


@pytest.fixture
def served(pair: Pair) -> Served:
    """The second of two connected queue pairs, once it has received a message that it has not acknowledged."""

    def serve(arm: int, read: bool = False) -> Queue:
        mine, theirs = pair.connect()
        if read:
            _, va, key = pair.mrs[0]
            _, remote, rkey = pair.mrs[1]
            pair.drivers[0].post(mine, WR_READ, va, 8, key, remote, rkey)
        _, va, key = pair.mrs[1]
        pair.drivers[1].recv(theirs, va, 64, key)
        pair.drivers[1].arm(pair.cqs[1], arm)
        _post(pair, 0, mine)
        while _carry(pair, 0):
            pass
        assert len(pair.poll(1)) == 1
        return theirs

    return serve


@pytest.mark.parametrize("length", [8, 2000], ids=["one packet", "several"])
def test_who_was_woken_does_not_overtake_the_acknowledgement(pair: Pair, served: Served, length: int) -> None:
    qp = served(ARM_NEXT)
    assert pair.nics[1].next_event() is not None
    _post(pair, 1, qp, length)
    assert _carry(pair, 1)[0] == ACKNOWLEDGE
    assert pair.nics[0].counters["acks_received"] == 1


def test_who_was_woken_does_not_overtake_answers_before_it(pair: Pair, served: Served) -> None:
    qp = served(ARM_NEXT, read=True)
    _post(pair, 1, qp)
    assert _carry(pair, 1) == [READ_RESPONSE_ONLY, ACKNOWLEDGE, SEND_ONLY]


def test_who_polls_is_served_first(pair: Pair, served: Served) -> None:
    qp = served(0)
    _post(pair, 1, qp)
    assert _carry(pair, 1) == [SEND_ONLY], "making the reply would keep it back"
    assert _carry(pair, 1) == [ACKNOWLEDGE]
