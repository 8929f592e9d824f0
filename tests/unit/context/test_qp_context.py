"""The typed view of a QPC against the layout table."""

from __future__ import annotations

import struct

import pytest

from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC, QPC_BYTES

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


def test_update_takes_only_the_named_fields() -> None:
    ctx = QpContext(QPC.pack(VALUES))
    ctx.update(QPC.pack({"state": 3, "mtu": 2, "retry_cnt": 6}), ["mtu", "retry_cnt"])
    assert (ctx.mtu, ctx.mtu_bytes, ctx.retry_cnt) == (2, 512, 6)
    assert ctx.state == VALUES["state"]


@pytest.mark.parametrize(
    ("code", "size"), [(0, 0), (1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096), (6, 0), (7, 0)]
)
def test_mtu_bytes(code: int, size: int) -> None:
    assert QpContext(QPC.pack({"mtu": code})).mtu_bytes == size


def test_default_is_all_zero() -> None:
    assert QpContext().store() == bytes(QPC_BYTES)
