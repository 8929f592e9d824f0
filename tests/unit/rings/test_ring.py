"""Producer and consumer rings: 001 3.2's pointer rules, the phase bit, and indices that nobody should trust."""

from __future__ import annotations

import struct

import pytest

from rnic.rings.ring import ConsumerRing, PhaseConsumer, PhaseProducer, ProducerRing, next_index
from rnic.spec.errors import VerbsError


def memory(size: int) -> memoryview:
    return memoryview(bytearray(size))


def test_next_index_wraps() -> None:
    assert [next_index(index, 3) for index in (0, 1, 2)] == [1, 2, 0]


class TestWorkRing:
    def test_empty_where_head_is_tail(self) -> None:
        consumer = ConsumerRing(memory(4 * 64), 4)
        assert consumer.empty(0)
        assert not consumer.empty(1)
        assert consumer.available(3) == 3

    def test_full_where_tail_plus_one_is_head(self) -> None:
        producer = ProducerRing(memory(4 * 64), 4)
        assert [producer.room(0), producer.advance(), producer.room(0), producer.advance(), producer.advance()] == [
            3,
            1,
            2,
            2,
            3,
        ]
        assert producer.full(0)
        assert producer.room(1) == 1
        assert not producer.full(1)

    def test_wraps_at_a_size_that_is_no_power_of_two(self) -> None:
        producer = ProducerRing(memory(3 * 16), 3, 16)
        consumer = ConsumerRing(producer.view, 3, 16)
        seen = []
        for value in range(7):
            producer.view[producer.offset] = value
            tail = producer.advance()
            assert consumer.available(tail) == 1
            seen.append((consumer.offset, consumer.view[consumer.offset]))
            consumer.advance()
            assert consumer.empty(tail)
        assert seen == [(0, 0), (16, 1), (32, 2), (0, 3), (16, 4), (32, 5), (0, 6)]

    @pytest.mark.parametrize("bad", [4, 5, 0xFFFFFFFF])
    def test_index_beyond_the_ring_means_nothing_to_do(self, bad: int) -> None:
        assert ConsumerRing(memory(64), 4, 16).available(bad) == 0
        assert ProducerRing(memory(64), 4, 16).room(bad) == 0
        assert PhaseProducer(memory(128), 4).room(bad) == 0

    def test_reset(self) -> None:
        producer = ProducerRing(memory(64), 4, 16)
        consumer = ConsumerRing(producer.view, 4, 16)
        producer.advance()
        consumer.advance()
        producer.reset()
        consumer.reset()
        assert (producer.tail, consumer.head) == (0, 0)

    @pytest.mark.parametrize("size", [0, 1, 65537])
    def test_refuses_a_size(self, size: int) -> None:
        with pytest.raises(VerbsError, match=f"size={size} .*2 to 65536"):
            ProducerRing(memory(64), size)

    def test_refuses_short_memory(self) -> None:
        with pytest.raises(VerbsError, match="4 entries of 64 bytes needs 256 bytes, not 255"):
            ConsumerRing(memory(255), 4)

    def test_takes_a_view_of_words(self) -> None:
        ring = ProducerRing(memory(64).cast("I"), 4, 16)
        assert ring.view.nbytes == len(ring.view) == 64


class TestPhaseRing:
    def test_entry_bytes(self) -> None:
        view = memory(64)
        PhaseProducer(view, 2).push(0x03020100, 1, 2, 0x17, 4, 5, 6, 7)
        assert bytes(view[:32]).hex(" ", 4) == "00010203 01000000 02000000 17000080 04000000 05000000 06000000 07000000"

    def test_phase_toggles_with_each_pass(self) -> None:
        view = memory(64)
        producer = PhaseProducer(view, 2)
        phases = []
        for _ in range(5):
            at = producer.tail * 32 + 12
            producer.push(0, 0, 0, 0, 0, 0, 0, 0)
            phases.append(struct.unpack_from("<I", view, at)[0] >> 31)
        assert phases == [1, 1, 0, 0, 1]

    def test_phase_in_word_3_comes_from_the_ring_alone(self) -> None:
        view = memory(64)
        producer = PhaseProducer(view, 2)
        consumer = PhaseConsumer(view, 2)
        for passes in range(3):
            producer.push(0, 0, 0, 0x80000005, 0, 0, 0, 0)
            producer.push(0, 0, 0, 0x00000005, 0, 0, 0, 0)
            words = [entry[3] for entry in (consumer.pop(), consumer.pop()) if entry is not None]
            assert words == [0x80000005 if passes % 2 == 0 else 5] * 2

    def test_stale_entries_are_not_ready(self) -> None:
        view = memory(64)
        producer = PhaseProducer(view, 2)
        consumer = PhaseConsumer(view, 2)
        assert not consumer.ready()
        assert consumer.pop() is None
        producer.push(1, 0, 0, 0, 0, 0, 0, 0)
        producer.push(2, 0, 0, 0, 0, 0, 0, 0)
        assert [consumer.pop(), consumer.pop()] == [
            (1, 0, 0, 1 << 31, 0, 0, 0, 0),
            (2, 0, 0, 1 << 31, 0, 0, 0, 0),
        ]
        assert consumer.head == 0
        assert consumer.pop() is None

    def test_word_3_is_stored_last(self) -> None:
        """A consumer that looks between the stores of an entry must not take it: the phase comes with the last."""
        view = memory(64)
        producer = PhaseProducer(view, 2)
        consumer = PhaseConsumer(view, 2)
        stored: list[int] = []

        class Spy:
            def __init__(self, word: int) -> None:
                self.word = word

            def __index__(self) -> int:
                assert not consumer.ready()
                stored.append(self.word)
                return self.word

        words = [Spy(word) for word in range(8)]
        producer.push(*words[:3], 3, *words[4:])  # type: ignore[arg-type]
        assert stored == [0, 1, 2, 4, 5, 6, 7]
        assert consumer.ready()

    def test_room_leaves_one_entry_free(self) -> None:
        producer = PhaseProducer(memory(128), 4)
        assert producer.room(0) == 3
        assert [producer.push(0, 0, 0, 0, 0, 0, 0, 0) for _ in range(3)] == [1, 2, 3]
        assert producer.room(0) == 0
        assert producer.room(3) == 3

    @pytest.mark.parametrize("size", [3, 6, 65535])
    def test_refuses_a_size_that_is_no_power_of_two(self, size: int) -> None:
        with pytest.raises(VerbsError, match=f"size={size} is no power of two"):
            PhaseConsumer(memory(64), size)

    def test_refuses_size_zero(self) -> None:
        with pytest.raises(VerbsError, match="size=0 is no ring size"):
            PhaseProducer(memory(64), 0)
