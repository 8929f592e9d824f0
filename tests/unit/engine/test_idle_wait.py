"""How a NIC process sleeps beside programs that make rounds of their own (engine/_idle_wait.pxi)."""

from __future__ import annotations

import os
import select
import sys
import threading

import pytest

from rnic.engine import use
from tests.attempts import every_valid

pytestmark = pytest.mark.skipif(
    use.COMPILED is None or sys.platform != "linux", reason="the engine is not compiled, or nothing here has epoll"
)

MS = 1_000_000


def sleep(epoll: int, words: list[memoryview], every_ms: int, most_ns: int) -> tuple[bool, list[int]]:
    assert use.COMPILED is not None
    return use.COMPILED.sleep_while_active(epoll, words, every_ms, most_ns)


def test_a_word_that_does_not_change_ends_the_sleep_at_the_first_look() -> None:
    word = memoryview(bytearray(b"\x07" + bytes(7))).cast("Q")
    with select.epoll() as epoll:
        assert sleep(epoll.fileno(), [word], 1, 10_000 * MS) == (True, [7])


@pytest.mark.slow
def test_words_that_change_do_not_end_it() -> None:
    words = memoryview(bytearray(16)).cast("Q")
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            words[0] += 1
            words[1] += 1 << 32  # a word has 64 bits

    def attempt() -> None:
        quiet, seen = sleep(epoll.fileno(), [words[:1], words[1:]], 100, 150 * MS)
        assert not quiet
        assert 0 < seen[0] <= words[0]
        assert 0 < seen[1] <= words[1]
        assert seen[1] % (1 << 32) == 0

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with select.epoll() as epoll:
            every_valid(attempt, limit_ms=50, why="the words change only while their thread has a core")
    finally:
        over.set()
        thread.join()


def test_what_can_be_read_ends_it_and_is_still_there() -> None:
    bell = os.eventfd(1)
    with select.epoll() as epoll:
        epoll.register(bell, select.EPOLLIN)
        assert sleep(epoll.fileno(), [], 10_000, 10_000 * MS) == (False, [])
        assert epoll.poll(0) == [(bell, select.EPOLLIN)]
    os.close(bell)


def test_it_ends_in_time() -> None:
    with select.epoll() as epoll:
        assert sleep(epoll.fileno(), [], 1, 3 * MS) == (False, [])
        assert sleep(epoll.fileno(), [], 1, 0) == (False, [])


def test_more_words_than_it_takes() -> None:
    with select.epoll() as epoll, pytest.raises(ValueError, match="1025 words: give at most 1024"):
        sleep(epoll.fileno(), [memoryview(bytes(8))] * 1025, 1, MS)
