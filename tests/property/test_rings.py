"""Rings against a deque: any order of posting and taking, and both sides agree with the model."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rnic.rings.cqe import CQE_BYTES, CQE_PHASE, CQE_STRUCT
from rnic.rings.ring import PhaseConsumer, next_index, room, waiting

WORD = st.integers(0, (1 << 32) - 1)


class WorkRing(RuleBasedStateMachine):
    """SQ, RQ and SRQ rings of any size: two sides that know each other's index alone."""

    @initialize(size=st.integers(2, 9))
    def start(self, size: int) -> None:
        self.size = size
        self.entries = [0] * size
        self.head = self.tail = 0
        self.model: deque[int] = deque()

    @precondition(lambda self: room(self.head, self.tail, self.size) > 0)
    @rule(value=WORD)
    def post(self, value: int) -> None:
        self.entries[self.tail] = value
        self.tail = next_index(self.tail, self.size)
        self.model.append(value)

    @precondition(lambda self: waiting(self.head, self.tail, self.size) > 0)
    @rule()
    def take(self) -> None:
        value = self.entries[self.head]
        self.head = next_index(self.head, self.size)
        assert value == self.model.popleft()

    @invariant()
    def both_sides_count_alike(self) -> None:
        assert waiting(self.head, self.tail, self.size) == len(self.model)
        assert room(self.head, self.tail, self.size) == self.size - 1 - len(self.model)


class PhaseRing(RuleBasedStateMachine):
    """CQ and EQ rings: the consumer looks at phase bits alone, never at the tail."""

    @initialize(log_size=st.integers(1, 3))
    def start(self, log_size: int) -> None:
        self.size = 1 << log_size
        self.view = memoryview(bytearray(self.size * CQE_BYTES))
        self.tail, self.phase = 0, CQE_PHASE
        self.consumer = PhaseConsumer(self.view, self.size)
        self.model: deque[tuple[int, ...]] = deque()

    @precondition(lambda self: room(self.consumer.head, self.tail, self.size) > 0)
    @rule(words=st.tuples(*[WORD] * 8))
    def push(self, words: tuple[int, ...]) -> None:
        entry = *words[:3], words[3] & ~CQE_PHASE | self.phase, *words[4:]
        CQE_STRUCT.pack_into(self.view, self.tail * CQE_BYTES, *entry)
        self.tail = next_index(self.tail, self.size)
        if not self.tail:
            self.phase ^= CQE_PHASE
        self.model.append(entry)

    @rule()
    def pop(self) -> None:
        entry = self.consumer.pop()
        assert entry == (self.model.popleft() if self.model else None)

    @precondition(lambda self: self.model)
    @rule(most=st.integers(1, 9))
    def skip(self, most: int) -> None:
        count = min(most, len(self.model), self.size - self.consumer.head)
        self.consumer.skip(count)
        for _ in range(count):
            self.model.popleft()

    @invariant()
    def ready_exactly_when_there_is_an_entry(self) -> None:
        assert self.consumer.ready() == bool(self.model)
        assert waiting(self.consumer.head, self.tail, self.size) == len(self.model)


TestWorkRing = WorkRing.TestCase
TestPhaseRing = PhaseRing.TestCase
TestWorkRing.settings = TestPhaseRing.settings = settings(max_examples=15, stateful_step_count=40)


@given(st.integers(2, 9), st.integers(0, 8), st.integers(0, (1 << 32) - 1))
def test_an_index_from_a_register_is_never_trusted(size: int, mine: int, theirs: int) -> None:
    assert 0 <= room(theirs, mine % size, size) < size
    assert 0 <= waiting(mine % size, theirs, size) < size
