"""The hand-written structs of the data path against the layout tables, for any bytes and any values."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnic.context.cqc import CQC, SRQC
from rnic.context.eqc import EQC
from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC
from rnic.mem.mpt import MPT_ENTRY, access_from_flags, flags_from_access
from rnic.rings.cqe import CQ_ENTRY, CQE_STRUCT
from rnic.rings.eqe import EQ_ENTRY, EQE_STRUCT
from rnic.rings.queue_block import CQ_BLOCK, QP_BLOCK, SRQ_BLOCK
from rnic.rings.sqe import (
    SGE,
    SGE_STRUCT,
    SQ_ENTRY,
    SQ_ENTRY_ATOMIC,
    SQ_ENTRY_BIND,
    SQ_ENTRY_UD,
    SQE_ATOMIC_STRUCT,
    SQE_STRUCT,
    SQE_UD_PATH_STRUCT,
    SQE_UD_STRUCT,
)
from rnic.spec.access import SUPPORTED
from rnic.spec.layout import Layout

LAYOUTS = [
    SQ_ENTRY,
    SQ_ENTRY_ATOMIC,
    SQ_ENTRY_UD,
    SQ_ENTRY_BIND,
    SGE,
    CQ_ENTRY,
    EQ_ENTRY,
    QP_BLOCK,
    CQ_BLOCK,
    SRQ_BLOCK,
    QPC,
    CQC,
    SRQC,
    EQC,
    MPT_ENTRY,
]
FLAGS = ("signaled", "solicited", "fence", "inline", "list")


def join(values: dict[str, int], names: Iterable[str]) -> int:
    """One-bit fields as the integer that they make up, the first at bit 0."""
    return sum(values[name] << place for place, name in enumerate(names))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@settings(max_examples=30)
@given(data=st.data())
def test_pack_and_unpack_are_inverse(layout: Layout, data: st.DataObject) -> None:
    values = {field.name: data.draw(st.integers(0, field.mask)) for field in layout.fields}
    packed = layout.pack(values)
    assert len(packed) == layout.size
    assert layout.unpack(packed) == values


@given(st.binary(min_size=64, max_size=64))
def test_sq_entry(raw: bytes) -> None:
    table = SQ_ENTRY.unpack(raw)
    wqe_id, opcode, flags, *rest = SQE_STRUCT.unpack_from(raw)
    assert (wqe_id, opcode) == (table["wqe_id"], table["opcode"])
    assert flags & 0x1F == join(table, FLAGS)
    assert rest == [table[name] for name in ("local_addr", "remote_addr", "length", "lkey", "rkey", "imm")]


@given(st.binary(min_size=64, max_size=64))
def test_sq_entry_atomic(raw: bytes) -> None:
    table = SQ_ENTRY_ATOMIC.unpack(raw)
    assert SQE_ATOMIC_STRUCT.unpack_from(raw, 40) == (table["swap_add"], table["compare"])


@given(st.binary(min_size=64, max_size=64))
def test_sq_entry_ud(raw: bytes) -> None:
    table = SQ_ENTRY_UD.unpack(raw)
    dgid, destination, qkey = SQE_UD_STRUCT.unpack_from(raw, 40)
    assert dgid == table["dgid"].to_bytes(16, "little") == raw[40:56]
    assert destination == table["dqpn"] | table["hop_limit"] << 24
    assert qkey == table["qkey"]
    path, dport, sport = SQE_UD_PATH_STRUCT.unpack_from(raw, 16)
    assert path & 0xFFFFFFF == table["tclass"] << 20 | table["flow_label"]
    assert (dport, sport) == (table["udp_dport"], table["udp_sport"])


@given(st.binary(min_size=16, max_size=16))
def test_sge(raw: bytes) -> None:
    assert list(SGE_STRUCT.unpack(raw)) == list(SGE.unpack(raw).values())


@given(st.binary(min_size=32, max_size=32))
def test_cq_entry(raw: bytes) -> None:
    table = CQ_ENTRY.unpack(raw)
    words = CQE_STRUCT.unpack(raw)
    assert words[0] == table["index"]
    assert words[1] & 0xFFFF == table["status"] | table["vendor_err"] << 8
    assert words[2] == table["bytes"]
    flags = join(table, ("receive", "imm_valid", "invalidated", "grh", "solicited"))
    assert words[3] & 0x80001FFF == table["opcode"] | flags << 8 | table["phase"] << 31
    assert words[4:6] == (table["wqe_id"], table["requested"])
    assert words[6] & 0xFFFFFF == table["qpn"]
    assert words[7] == table["imm"]


@given(st.binary(min_size=32, max_size=32))
def test_eq_entry(raw: bytes) -> None:
    table = EQ_ENTRY.unpack(raw)
    words = EQE_STRUCT.unpack(raw)
    assert words[0] & 0xFFFF == table["type"] | table["subtype"] << 8
    assert words[1] & 0xFFFFFF == table["number"]
    assert words[2] & 0xFF == table["status"]
    assert words[3] >> 31 == table["phase"]
    assert words[4:6] == (table["out_hi"], table["out_lo"])


@given(st.binary(min_size=256, max_size=256))
def test_qp_context(raw: bytes) -> None:
    table = QPC.unpack(raw)
    ctx = QpContext(raw)
    assert {name: getattr(ctx, name) for name in table} == table
    assert ctx.store() == QPC.pack(table)


@given(st.integers(0, SUPPORTED).map(SUPPORTED.__and__))
def test_mpt_rights(rights: int) -> None:
    assert access_from_flags(flags_from_access(rights)) == rights
