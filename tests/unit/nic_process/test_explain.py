"""Lines to a program's stderr: bounded, in their order, and never waited for."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

import pytest

from rnic.nic_process import explain
from rnic.nic_process.explain import Writer, verb_of
from rnic.spec import commands as cmd
from rnic.spec.reasons import MOST_LINES, NO_RECEIVE, WRONG_QKEY


def read_all(fd: int) -> list[str]:
    """Lines until the writer has closed its end."""
    with os.fdopen(fd) as file:
        return file.read().splitlines()


def full_pipe() -> tuple[int, int]:
    """Return the ends of a pipe without room, to which a write would wait."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    return reading, writing


def test_each_kind_is_written_ten_times_and_then_counted() -> None:
    reading, writing = os.pipe()
    lines = Writer().open(writing)
    os.close(writing)
    for number in range(MOST_LINES + 15):
        lines(NO_RECEIVE, f"missed {number}")
    lines(WRONG_QKEY, "dropped")
    lines.close()
    shown = [f"rnic: missed {number}" for number in range(MOST_LINES)]
    assert read_all(reading) == [*shown, "rnic: dropped", "rnic: 15 more times: NO_RECEIVE"]


def test_who_does_not_read_gets_no_more_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "_WAIT_MS", 10)
    (stuck_reading, stuck), (reading, writing) = full_pipe(), os.pipe()
    writer = Writer()
    deaf, other = writer.open(stuck), writer.open(writing)
    os.close(writing)
    began = time.monotonic()
    for _ in range(MOST_LINES):
        deaf(NO_RECEIVE, "never read")
    assert time.monotonic() - began < 5, "a line waits for no reader"
    other(NO_RECEIVE, "read")
    other.close()
    assert read_all(reading) == ["rnic: read"]
    assert deaf.dead
    deaf.close()
    os.close(stuck)
    os.close(stuck_reading)


def test_a_pipe_that_fills_after_it_had_room_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class HasRoom:
        def register(self, fd: int, events: int) -> None:
            """Nothing to note."""

        def poll(self, timeout: int) -> list[tuple[int, int]]:
            return [(0, select.POLLOUT)]

    (stuck_reading, stuck), (reading, writing) = full_pipe(), os.pipe()
    monkeypatch.setattr(select, "poll", HasRoom)
    writer = Writer()
    deaf, other = writer.open(stuck), writer.open(writing)
    os.close(writing)
    deaf(NO_RECEIVE, "never read")
    other(NO_RECEIVE, "read")
    other.close()
    assert read_all(reading) == ["rnic: read"]
    deaf.close()
    writer.close()
    os.close(stuck)
    os.close(stuck_reading)


def test_without_a_thread_lines_are_lost_and_descriptors_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    reading, writing = os.pipe()
    writer = Writer()
    lines = writer.open(writing)
    os.close(writing)
    lines(NO_RECEIVE, "lost")
    lines.close()
    lines(NO_RECEIVE, "too late")
    assert read_all(reading) == []
    writer.close()


def test_what_may_keep_a_writer_waiting_is_refused() -> None:
    counter = os.eventfd(0)
    with pytest.raises(OSError, match="a file, a pipe, a socket or a terminal"):
        Writer().open(counter)
    os.close(counter)


def test_a_closed_descriptor_is_no_error() -> None:
    reading, writing = os.pipe()
    writer = Writer()
    lines = writer.open(writing)
    os.close(writing)
    os.close(reading)
    lines(NO_RECEIVE, "nobody is there")
    lines.close()
    writer.close()
    assert lines.dead


def test_lines_name_the_verb_that_was_called() -> None:
    assert verb_of(cmd.RST2INIT, 1, 0) == "ibv_modify_qp"
    assert verb_of(cmd.SW2HW_MPT, 1, 0) == "ibv_reg_mr"
    assert verb_of(cmd.ALLOC_RES, cmd.RES_QP, 0) == "ibv_create_qp"
    assert verb_of(cmd.FREE_RES, 5, cmd.RES_PD) == "ibv_dealloc_pd"
