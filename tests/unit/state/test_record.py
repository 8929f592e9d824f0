from __future__ import annotations

import pytest

from rnic.spec.layout import Layout, half, word
from rnic.state.arena import Arena
from rnic.state.queue_pair import QP, QpMemory
from rnic.state.record import NONE, Part, Record, Run, Word, overlay, part, place, record, view, within

TABLE = record("table", "here", (("first", "one", "a"), ("second", "two", "b"), ("third", "one", "c")), 4)


@view(TABLE, "one")
class Whole:
    first: Word
    third: Word

    def __init__(self, words: memoryview) -> None:
        self.words = words


PIECES = Layout("pieces", 8, "little", "here", (word("low", 0, "x"), half("high", 6, "y")))


@overlay(PIECES)
@view(TABLE)
class Item(Record):
    __slots__ = ("place",)

    first: Word
    second: Word
    third: Word
    low: Part
    high: Part

    def __init__(self, memory: memoryview, at: int, place: int) -> None:
        self.place = place


def test_attributes_are_the_words() -> None:
    memory = memoryview(bytearray(64))
    words = memory.cast("Q")
    whole, item = Whole(words), Item(memory, 32, 0)
    whole.third = 7
    item.second = NONE
    assert list(words) == [0, 0, 7, 0, 0, NONE, 0, 0]
    words[0], words[6] = 9, 8
    assert (whole.first, item.first, item.third) == (9, 0, 8)


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_a_word_takes_64_bits(value: int) -> None:
    words = memoryview(bytearray(32)).cast("Q")
    with pytest.raises(ValueError, match="invalid value"):
        Whole(words).first = value
    item = Item(words.cast("B"), 0, 0)
    item.first = value
    assert list(words) == [value & NONE, 0, 0, 0]


def test_parts_of_words_are_attributes_too() -> None:
    item = Item(memoryview(bytearray(32)), 0, 0)
    item.first = 0x1122_3344_5566_7788
    assert (item.low, item.high) == (0x5566_7788, 0x1122)
    item.high = 0x7_FFFF
    assert item.first == 0xFFFF_3344_5566_7788

    class Lacking(Record):
        middle: Part

    with pytest.raises(TypeError, match="middle is not a field of pieces"):
        overlay(PIECES)(Lacking)


def test_a_run_makes_each_view_once_and_keeps_its_memory() -> None:
    memory = memoryview(bytearray(96))
    run = Run(Item, memory, 32, 32)
    assert run[1] is run[1]
    run[1].second = 5
    assert (run[1].place, memory.cast("Q")[9]) == (1, 5)
    item = run[0]
    del run, memory
    item.first = 3
    assert item.first == 3


def test_a_record_is_a_layout_of_words() -> None:
    assert (TABLE.size, [(field.byte, field.unit, field.access) for field in TABLE.fields]) == (
        32,
        [(0, 8, "one"), (8, 8, "two"), (16, 8, "one")],
    )


def test_a_view_that_misses_a_field_or_names_one_too_many_is_refused() -> None:
    class Less:
        first: Word

    class More:
        first: Word
        third: Word
        fourth: Word

    for cls in (Less, More):
        with pytest.raises(TypeError, match="differ in"):
            view(TABLE, "one")(cls)


def test_a_queue_pairs_memory_begins_at_zero_and_is_used_again() -> None:
    arena = Arena(1 << 18)
    memory = QpMemory(arena, 4)
    memory.qp[3] = 5
    memory.cells[memory.sends] = 6
    assert memory.image().count(b"\5") == 1
    memory.free()
    again = QpMemory(arena, 4)
    assert (again.record, again.slots) == (memory.record, memory.slots)
    runs = [place(QP, name) for name in ("pieces", "replies", "resources", "scatters", "sends")]
    assert [word // 8 for word in (again.qp[at] for at in runs)] == [
        again.pieces, again.replies, again.resources, again.scatters, again.sends,
    ]  # fmt: skip
    assert not any(word for at, word in enumerate(again.qp) if at not in runs)
    with pytest.raises(MemoryError, match="no room for a queue pair of 100000 send entries"):
        QpMemory(arena, 100_000)


def test_a_record_within_a_record_is_a_run_of_its_words() -> None:
    larger = record("larger", "here", (("own", "it", "z"), *part("in_", TABLE)))
    assert [field.name for field in larger.fields] == ["own", "in_first", "in_second", "in_third"]
    words = memoryview(bytearray(larger.size)).cast("Q")
    Whole(words[within(larger, "in_", TABLE)]).third = 5
    assert (list(words), place(larger, "in_third")) == ([0, 0, 0, 5], 3)


def test_every_owner_of_a_queue_pairs_words_is_a_class_of_transport_or_device() -> None:
    from rnic.cc import dcqcn, pacing
    from rnic.device import nic, queue_pair, scheduler, timers
    from rnic.transport import completer, qp, requester, resources, responder, response_queue, send_queue, wqe

    owners = {field.access for field in QP.fields}
    modules = (
        completer,
        send_queue,
        qp,
        response_queue,
        requester,
        resources,
        responder,
        wqe,
        queue_pair,
        nic,
        timers,
        scheduler,
        dcqcn,
        pacing,
    )
    assert all(any(hasattr(module, owner) for module in modules) for owner in owners - {"QpMemory"})
