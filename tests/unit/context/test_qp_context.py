"""The typed view of a QPC against the layout table."""

from __future__ import annotations

import struct

import pytest

from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC, QPC_BYTES
from rnic.state.arena import Arena
from rnic.state.structure import Ground

# Every field holds its own number in the table, cut to its width, so no two neighbours are alike.
VALUES = {
    field.name: (number * 0x9E3779B97F4A7C15F39CC0605CEDC834 + 1) & field.mask
    for number, field in enumerate(QPC.fields)
}


@pytest.mark.parametrize("field", QPC.fields, ids=lambda field: field.name)
def test_load_takes_the_field_alone(field) -> None:  # type: ignore[no-untyped-def]
    ctx = QpContext(QPC.pack({field.name: field.mask}))
    assert {name: getattr(ctx, name) for name in VALUES if getattr(ctx, name)} == {field.name: field.mask}


def test_load_and_store_are_the_layouts() -> None:
    data = QPC.pack(VALUES)
    ctx = QpContext(data)
    assert {name: getattr(ctx, name) for name in VALUES} == VALUES
    assert ctx.store() == data


def test_store_clears_reserved_bits() -> None:
    assert QpContext(b"\xff" * QPC_BYTES).store() == QPC.pack({field.name: field.mask for field in QPC.fields})


def test_load_at_the_start_of_a_longer_buffer() -> None:
    assert QpContext(memoryview(QPC.pack(VALUES) + b"more")).store() == QPC.pack(VALUES)


def test_load_needs_256_bytes() -> None:
    with pytest.raises(struct.error):
        QpContext(bytes(255))


@pytest.mark.parametrize("field", QPC.fields, ids=lambda field: field.name)
def test_a_store_changes_the_field_alone_and_is_cut_to_it(field) -> None:  # type: ignore[no-untyped-def]
    ctx = QpContext(QPC.pack(VALUES))
    setattr(ctx, field.name, ~VALUES[field.name] & field.mask | 1 << field.width)
    assert ctx.store() == QPC.pack(VALUES | {field.name: ~VALUES[field.name] & field.mask})


def test_views_of_one_slot_of_an_arena_are_one_context() -> None:
    ground = Ground(Arena(8192))
    one, other = QpContext.at(ground, 4096), QpContext.at(ground, 4096)
    one.load(QPC.pack(VALUES))
    assert {name: getattr(other, name) for name in VALUES} == VALUES
    assert bytes(ground.arena.memory[4096 : 4096 + QPC_BYTES]) == QPC.pack(VALUES)
    assert not any(ground.arena.memory[:4096])
    ground.arena.memory[4096 + 0x18 + 3] ^= 1
    assert (one.remote_qpn, other.remote_qpn) == (VALUES["remote_qpn"] ^ 1,) * 2


@pytest.mark.parametrize(
    ("code", "size"), [(0, 0), (1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096), (6, 0), (7, 0)]
)
def test_mtu_bytes(code: int, size: int) -> None:
    assert QpContext(QPC.pack({"mtu": code})).mtu_bytes == size


def test_default_is_all_zero() -> None:
    assert QpContext().store() == bytes(QPC_BYTES)
