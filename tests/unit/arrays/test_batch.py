"""Many operations at once: batches, their results to be, and reads of many pieces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import rnic


class Ends:
    def __init__(self) -> None:
        self.data = np.arange(20_000, dtype=np.int64)
        self.listener = rnic.listen(port=0, share={"data": self.data}, udp_port=0)
        self.peer = rnic.connect("127.0.0.1", self.listener.port, udp_port=0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.peer.close()
    made.listener.close()


def test_results_of_a_batch_come_in_the_order_of_the_calls(ends: Ends) -> None:
    with ends.peer.batch() as batch:
        before = batch.read("data", 7, 1)
        batch.write("data", [70], 7)
        added = batch.fetch_add("data", 7, 5)
        swapped = batch.compare_swap("data", 7, 75, 7)
        after = batch.read("data", 7, 1)
        batch.send(b"done")
    assert all(one.done() for one in (before, added, swapped, after))
    assert (before.result()[0], added.result(), swapped.result(), after.result()[0]) == (7, 70, 75, 7)
    with ends.listener.accept(30) as other:
        assert other.recv(30) == b"done"


def test_more_operations_than_fit_the_queue(ends: Ends) -> None:
    with ends.peer.batch() as batch:
        found = [batch.read("data", place, 1) for place in range(300)]
        for place in range(300):
            batch.write("data", [-place], place)
    assert [int(one.result()[0]) for one in found] == list(range(300))
    assert ends.data[:300].tolist() == [-place for place in range(300)]


@pytest.mark.slow
def test_thousands_of_pieces_are_one_call(ends: Ends) -> None:
    places = np.random.default_rng(1).integers(0, 20_000, 5_000)
    assert np.array_equal(ends.peer.read_many("data", places), ends.data[places])


def test_pieces_of_several_elements(ends: Ends) -> None:
    got = ends.peer.read_many("data", [5, 1, 19_990], 10)
    assert got.tolist() == [list(range(first, first + 10)) for first in (5, 1, 19_990)]
    assert ends.peer.read_many("data", []).shape == (0,)
    with pytest.raises(rnic.VerbsError, match="offset=19991"):
        ends.peer.read_many("data", [0, 19_991], 10)
    with pytest.raises(rnic.VerbsError, match=r"offset=2\.5 is a float"):
        ends.peer.read_many("data", [1, 2.5])  # type: ignore[list-item]


def test_the_first_failure_ends_a_batch(ends: Ends) -> None:
    info = ends.peer.remote["data"]
    wrong = rnic.BufferInfo("wrong", info.addr, info.length, info.rkey ^ 1, info.dtype, info.shape)
    with pytest.raises(rnic.WorkCompletionError, match=r"READ of 'wrong'.*REM_ACCESS_ERR"):  # noqa: PT012, SIM117
        with ends.peer.batch() as batch:
            good = batch.read("data", 0, 1)
            batch.read(wrong, 0, 1)
            batch.read("data", 1, 1)
    assert good.result()[0] == 0


def test_an_error_of_the_caller_is_not_hidden_by_the_batch(ends: Ends) -> None:
    with pytest.raises(ZeroDivisionError), ends.peer.batch() as batch:  # noqa: PT012
        batch.read("data", 0, 1)
        raise ZeroDivisionError
    assert ends.peer.read("data", 3, 1)[0] == 3


def test_a_write_never_overtakes_a_read_before_it(ends: Ends) -> None:
    for step in range(50):
        with ends.peer.batch() as batch:
            before = batch.read("data", 7, 1)
            batch.write("data", [step + 100], 7)
        assert before.result()[0] == (step + 99 if step else 7)
