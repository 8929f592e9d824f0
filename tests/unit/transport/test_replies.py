from __future__ import annotations

from rnic.transport.payload import EMPTY
from rnic.transport.replies import ReplyQueue

ACK, NAK = 0x1F, 0x60


def test_an_ack_takes_the_place_of_the_one_before_it_and_a_nak_keeps_its_own() -> None:
    queue = ReplyQueue()
    assert not queue.acknowledge(1, ACK, 1)
    assert queue.acknowledge(2, ACK, 2)
    assert queue.acknowledge(3, NAK, 2)
    assert not queue.acknowledge(4, ACK, 3)
    assert len(queue) == 2


def test_a_lone_ack_is_taken_and_nothing_else() -> None:
    queue = ReplyQueue()
    assert queue.take_lone_ack() is None
    queue.acknowledge(1, ACK, 7)
    reply = queue.take_lone_ack()
    assert reply is not None
    assert (reply.psn, reply.syndrome, reply.msn) == (1, ACK, 7)
    assert len(queue) == 0
    queue.atomic(2, 5, ACK, 1)
    assert queue.take_lone_ack() is None
    queue.acknowledge(3, ACK, 1)
    assert queue.take_lone_ack() is None
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
