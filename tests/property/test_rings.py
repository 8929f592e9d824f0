"""Rings against a deque: any order of posting and taking, and both sides agree with the model."""

from __future__ import annotations

import struct
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rnic.rings.ring import ConsumerRing, PhaseConsumer, PhaseProducer, ProducerRing

WORD = st.integers(0, (1 << 32) - 1)


class WorkRing(RuleBasedStateMachine):
    """SQ, RQ and SRQ rings of any size and stride."""

    @initialize(size=st.integers(2, 9), stride=st.sampled_from([16, 32, 64]))
    def start(self, size: int, stride: int) -> None:
        view = memoryview(bytearray(size * stride))
        self.producer = ProducerRing(view, size, stride)
        self.consumer = ConsumerRing(view, size, stride)
        self.model: deque[int] = deque()

    @precondition(lambda self: not self.producer.full(self.consumer.head))
    @rule(value=WORD)
    def post(self, value: int) -> None:
        struct.pack_into("<I", self.producer.view, self.producer.offset, value)
        assert self.producer.advance() == self.producer.tail
        self.model.append(value)

    @precondition(lambda self: not self.consumer.empty(self.producer.tail))
    @rule()
    def take(self) -> None:
        value = struct.unpack_from("<I", self.consumer.view, self.consumer.offset)[0]
        assert self.consumer.advance() == self.consumer.head
        assert value == self.model.popleft()

    @invariant()
    def both_sides_count_alike(self) -> None:
        size = self.producer.size
        assert self.consumer.available(self.producer.tail) == len(self.model)
        assert self.producer.room(self.consumer.head) == size - 1 - len(self.model)
        assert self.producer.full(self.consumer.head) == (len(self.model) == size - 1)
        assert self.consumer.empty(self.producer.tail) == (not self.model)


class PhaseRing(RuleBasedStateMachine):
    """CQ and EQ rings: the consumer looks at phase bits alone, never at the tail."""

    @initialize(log_size=st.integers(1, 3))
    def start(self, log_size: int) -> None:
        size = 1 << log_size
        view = memoryview(bytearray(size * 32))
        self.producer = PhaseProducer(view, size)
        self.consumer = PhaseConsumer(view, size)
        self.model: deque[tuple[int, ...]] = deque()

    @precondition(lambda self: self.producer.room(self.consumer.head))
    @rule(words=st.tuples(*[WORD] * 8))
    def push(self, words: tuple[int, int, int, int, int, int, int, int]) -> None:
        assert self.producer.push(*words) == self.producer.tail
        self.model.append(words)

    @rule()
    def pop(self) -> None:
        entry = self.consumer.pop()
        if not self.model:
            assert entry is None
            return
        assert entry is not None
        expected = self.model.popleft()
        assert entry[:3] + entry[4:] == expected[:3] + expected[4:]
        assert entry[3] & 0x7FFFFFFF == expected[3] & 0x7FFFFFFF

    @invariant()
    def ready_exactly_when_there_is_an_entry(self) -> None:
        assert self.consumer.ready() == bool(self.model)
        assert self.producer.room(self.consumer.head) == self.producer.size - 1 - len(self.model)


TestWorkRing = WorkRing.TestCase
TestPhaseRing = PhaseRing.TestCase
TestWorkRing.settings = TestPhaseRing.settings = settings(max_examples=15, stateful_step_count=40)


@given(st.integers(2, 9), st.integers(0, (1 << 32) - 1))
def test_an_index_from_a_register_is_never_trusted(size: int, index: int) -> None:
    view = memoryview(bytearray(size * 64))
    assert 0 <= ProducerRing(view, size).room(index) < size
    assert 0 <= ConsumerRing(view, size).available(index) < size
