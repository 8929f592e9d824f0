"""``state.h``: what C is told of the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rnic
from rnic.engine import header
from rnic.spec.events import EVENT_NAMES
from rnic.state.counters import NAKS_SENT, PACKET_COUNTERS
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


@pytest.mark.slow  # it reads every file of the engine
def test_both_executors_count_by_a_counters_place_in_the_table() -> None:
    text = header.c_header()
    start = text.index("enum engine_count {")
    names = [line.strip().rstrip(",") for line in text[start : text.index("};", start)].splitlines()[1:]]
    assert names == [*(f"COUNT_{name.upper()}" for name in PACKET_COUNTERS), "ENGINE_COUNTS"]
    package = Path(rnic.__file__).parent
    c = "".join(path.read_text() for path in (package / "engine").glob("*/*.c"))
    python = "".join(
        path.read_text() for room in ("device", "transport", "spec") for path in (package / room).glob("*.py")
    )
    by_kind = set(NAKS_SENT.values())  # both count them by the type of the AETH
    in_c = [name for name in PACKET_COUNTERS if name not in by_kind]
    assert [name for name in in_c if not re.search(rf"\bCOUNT_{name.upper()}\b", c)] == []
    of_events = {f"event_{name.lower()}" for name in EVENT_NAMES.values()}  # device/nic.py makes their names
    in_python = [name for name in in_c if name not in of_events]
    assert [name for name in in_python if not re.search(rf"\b{name}\b", python)] == []


def test_the_hash_changes_with_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    before = header.layout_hash()
    monkeypatch.setattr(header, "RECORDS", {**header.RECORDS, "queue_pair": header.RECORDS["send_wqe"]})
    assert header.layout_hash() != before
    monkeypatch.undo()
    monkeypatch.setattr(header, "ROW_FLAGS", header.ROW_FLAGS[::-1])
    assert header.layout_hash() != before
    monkeypatch.undo()
    assert header.layout_hash() == before
