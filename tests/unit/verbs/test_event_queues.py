"""A queue of events with a descriptor: order, bounds, wake-ups, closing."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rnic.runtime.wait import wait_readable
from rnic.spec.errors import VerbsError
from rnic.verbs.event_queues import EventPipe
from tests.forks import child_says, held_by_a_thread

TOO_LONG_S = 30.0
MORE_THAN_A_PIPE_HOLDS = 70_000


def new_pipe(most: int | None = None) -> EventPipe:
    return EventPipe((errno.EINVAL, "it is closed: open a new one"), most)


def readable(pipe: EventPipe) -> bool:
    return wait_readable([pipe.fileno()], 0)


def test_the_descriptor_is_readable_while_something_waits() -> None:
    pipe = new_pipe()
    assert not readable(pipe)
    for round_ in range(2):
        pipe.put(round_)
        pipe.put("more")
        assert readable(pipe)
        assert pipe.get() == round_
        assert readable(pipe)
        assert pipe.get() == "more"
        assert not readable(pipe)
        assert pipe.get() is None
    pipe.close()


def test_it_is_opened_when_it_is_asked_for() -> None:
    def descriptors() -> set[str]:
        return set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else set()

    before, pipe = descriptors(), new_pipe()
    pipe.put(1)
    assert pipe.get() == 1
    pipe.put(2)
    assert descriptors() == before
    assert readable(pipe), "what waits already counts"
    assert pipe.get() == 2
    assert not readable(pipe)
    pipe.close()
    assert descriptors() == before


def test_every_item_comes_out_in_order() -> None:
    pipe = new_pipe()
    for number in range(MORE_THAN_A_PIPE_HOLDS):
        pipe.put(number)
    assert [pipe.get() for _ in range(MORE_THAN_A_PIPE_HOLDS)] == list(range(MORE_THAN_A_PIPE_HOLDS))
    assert pipe.get() is None
    assert not readable(pipe)
    pipe.close()


def test_of_too_many_items_the_last_wait() -> None:
    pipe = new_pipe(most=3)
    for number in range(10):
        pipe.put(number)
    assert [pipe.get() for _ in range(4)] == [7, 8, 9, None]
    assert not readable(pipe)
    pipe.close()


@pytest.mark.parametrize(("kept", "left"), [(lambda n: n % 2, [1, 3]), (lambda _: False, [])], ids=["some", "all"])
def test_dropped_items_wake_nobody(kept: Callable[[int], object], left: list[int]) -> None:
    pipe = new_pipe(most=4)
    for number in range(4):
        pipe.put(number)
    pipe.drop(lambda number: not kept(number))
    assert readable(pipe) == bool(left)
    for number in range(10, 15):
        pipe.put(number)
    assert [pipe.get() for _ in range(5)] == [11, 12, 13, 14, None]
    pipe.close()


def test_what_is_closed_says_so() -> None:
    pipe = new_pipe()
    pipe.put(1)
    pipe.close()
    pipe.close()
    pipe.put(2)
    pipe.drop(bool)
    with pytest.raises(VerbsError, match="it is closed: open a new one") as error:
        pipe.get()
    assert error.value.errno == errno.EINVAL
    assert pipe.fileno() < 0


def test_who_waits_wakes_up_when_it_is_closed() -> None:
    pipe = new_pipe()
    descriptor, woken = pipe.fileno(), threading.Event()

    def wait() -> None:
        if wait_readable([descriptor], TOO_LONG_S):
            woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    pipe.close()
    thread.join()
    assert woken.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_wakes_nobody_and_takes_no_wake_up() -> None:
    pipe, idle = new_pipe(), new_pipe()
    pipe.put(1)

    def touches() -> bool:
        pipe.drop(bool)
        idle.put(1)
        pipe.close()
        return True

    with held_by_a_thread(pipe._lock):
        assert child_says(touches)
    assert readable(pipe)
    assert not readable(idle)
    assert pipe.get() == 1
    pipe.close()
    idle.close()
