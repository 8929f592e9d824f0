from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from rnic.mem.table import MemoryTable
from rnic.state.arena import Arena
from rnic.state.queue_pair import REPLIES, QpMemory
from rnic.transport.response_queue import ReplyQueue as Replies
from rnic.transport.sge import local_payload

ACK, NAK = 0x1F, 0x60
EMPTY = local_payload(MemoryTable(random.Random(1)), 1, [], False)


def ReplyQueue() -> Replies:  # noqa: N802 - a queue in memory of its own
    owner: Any = SimpleNamespace()
    return Replies(QpMemory(Arena(1 << 17), 2), owner)


def test_an_ack_replaces_the_pending_ack_but_not_a_nak() -> None:
    queue = ReplyQueue()
    assert not queue.acknowledge(1, ACK, 1)
    assert queue.acknowledge(2, ACK, 2)
    assert queue.acknowledge(3, NAK, 2)
    assert not queue.acknowledge(4, ACK, 3)
    assert len(queue) == 2


def test_pending_reads_are_those_that_answer_no_duplicate() -> None:
    queue = ReplyQueue()
    queue.acknowledge(0, ACK, 0)
    queue.read(1, 3, EMPTY, ACK, 1)
    queue.atomic(4, 9, ACK, 2)
    queue.read(1, 3, EMPTY, ACK, 2, again=True)
    queue.atomic(4, 9, ACK, 2, again=True)
    assert queue.pending_reads == 2
    queue.clear()
    assert (queue.pending_reads, len(queue)) == (0, 0)


def test_waiting_knows_what_has_not_begun() -> None:
    queue = ReplyQueue()
    queue.acknowledge(1, ACK, 0)
    queue.read(2, 3, EMPTY, ACK, 1)
    assert [queue.waiting(psn) for psn in (1, 2, 3)] == [False, True, False]


def test_the_ring_goes_round_and_takes_no_more_than_it_holds() -> None:
    queue = ReplyQueue()
    for lap in range(3):
        for psn in range(REPLIES):
            queue.atomic(psn, lap, ACK, 0)
        assert queue.full
        queue.atomic(5000, 1, ACK, 0)
        assert (len(queue), queue.pending_reads, queue.waiting(5000)) == (REPLIES, REPLIES, False)
        queue.clear()
        queue.acknowledge(1, ACK, 1)  # the next lap begins elsewhere
        assert len(queue) == 1
        queue.clear()
