"""``state.h``: what C is told of the tables."""

from __future__ import annotations

import pytest

from rnic.engine import header
from rnic.state.queue_pair import QP


def test_the_header_that_is_checked_in_is_what_the_tables_say_now() -> None:
    assert header.PATH.read_text(encoding="utf-8") == header.c_header(), "run python -m rnic.engine.header"


def test_a_record_is_a_struct_with_a_member_for_each_word() -> None:
    text = header.c_header()
    start = text.index("struct queue_pair {")
    struct = text[start : text.index("};", start)].splitlines()[1:]
    names = [line.split(";")[0].split()[-1] for line in struct]
    assert names[: len(QP.fields)] == [field.name for field in QP.fields]
    assert names[len(QP.fields) :] in ([], [f"reserved[{QP.size // 8 - len(QP.fields)}]"])


def test_the_hash_changes_with_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    before = header.layout_hash()
    monkeypatch.setattr(header, "RECORDS", {**header.RECORDS, "queue_pair": header.RECORDS["send_slot"]})
    assert header.layout_hash() != before
    monkeypatch.undo()
    monkeypatch.setattr(header, "ROW_FLAGS", header.ROW_FLAGS[::-1])
    assert header.layout_hash() != before
    monkeypatch.undo()
    assert header.layout_hash() == before
