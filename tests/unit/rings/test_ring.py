"""001 3.2's pointer rules, the phase bit, and indices that nobody should trust."""

from __future__ import annotations

import pytest

from rnic.rings.cqe import CQE_BYTES, CQE_PHASE, CQE_STRUCT
from rnic.rings.ring import MAX_ENTRIES, PhaseConsumer, next_index, room, waiting
from rnic.spec.errors import VerbsError


def memory(size: int) -> memoryview:
    return memoryview(bytearray(size))


def store(view: memoryview, index: int, word0: int, word3: int) -> None:
    """One entry, as a producer leaves it."""
    view[index * CQE_BYTES : (index + 1) * CQE_BYTES] = CQE_STRUCT.pack(word0, 0, 0, word3, 0, 0, 0, 0)


def test_next_index_wraps() -> None:
    assert [next_index(index, 3) for index in (0, 1, 2)] == [1, 2, 0]


def test_empty_where_head_is_tail() -> None:
    assert [waiting(0, tail, 4) for tail in (0, 1, 3)] == [0, 1, 3]
    assert waiting(2, 1, 3) == 2


def test_full_where_tail_plus_one_is_head() -> None:
    assert [room(0, tail, 4) for tail in (0, 1, 2, 3)] == [3, 2, 1, 0]
    assert room(1, 3, 4) == 1
    assert room(1, 2, 3) == 1


@pytest.mark.parametrize("bad", [4, 5, 0xFFFFFFFF])
def test_index_beyond_the_ring_means_nothing_to_do(bad: int) -> None:
    assert waiting(1, bad, 4) == 0
    assert room(bad, 1, 4) == 0


class TestPhaseRing:
    def test_stale_entries_are_not_ready(self) -> None:
        view = memory(64)
        consumer = PhaseConsumer(view, 2)
        assert not consumer.ready()
        assert consumer.pop() is None
        for index in range(2):
            store(view, index, index + 1, CQE_PHASE)
        assert [consumer.pop(), consumer.pop()] == [
            (1, 0, 0, 1 << 31, 0, 0, 0, 0),
            (2, 0, 0, 1 << 31, 0, 0, 0, 0),
        ]
        assert consumer.head == 0
        assert consumer.pop() is None

    def test_phase_toggles_with_each_pass(self) -> None:
        view = memory(64)
        consumer = PhaseConsumer(view, 2)
        for number in range(5):
            phase = 0 if number // 2 % 2 else CQE_PHASE
            assert not consumer.ready()
            store(view, number % 2, number, 5 | phase)
            assert consumer.pop() == (number, 0, 0, 5 | phase, 0, 0, 0, 0)

    def test_several_entries_are_taken_at_once_up_to_the_end(self) -> None:
        consumer = PhaseConsumer(memory(4 * 32), 4)
        consumer.skip(1)
        assert (consumer.head, consumer.phase) == (1, CQE_PHASE)
        consumer.skip(3)
        assert (consumer.head, consumer.phase) == (0, 0)

    @pytest.mark.parametrize("size", [3, 6, 65535])
    def test_refuses_a_size_that_is_no_power_of_two(self, size: int) -> None:
        with pytest.raises(VerbsError, match=f"size={size} is not a power of two"):
            PhaseConsumer(memory(64), size)

    @pytest.mark.parametrize("size", [0, 1, 2 * MAX_ENTRIES])
    def test_refuses_a_size(self, size: int) -> None:
        with pytest.raises(VerbsError, match=f"size={size} is not a ring size; use 2 to {MAX_ENTRIES}"):
            PhaseConsumer(memory(64), size)

    def test_refuses_short_memory(self) -> None:
        with pytest.raises(VerbsError, match="4 entries needs 128 bytes, not 127"):
            PhaseConsumer(memory(127), 4)

    def test_takes_a_view_of_words(self) -> None:
        ring = PhaseConsumer(memory(64).cast("I"), 2)
        assert ring.view.nbytes == len(ring.view) == 64
