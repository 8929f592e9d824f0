from __future__ import annotations

import pytest

from rnic.state.arena import Arena
from rnic.state.paths import FLOW
from rnic.wire.crc import crc32
from rnic.wire.flow import Flow
from rnic.wire.flow_records import FlowRecords, use

V4 = (b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152, 4_791, 2, 63, 0, 3)
V6 = (bytes(range(16)), bytes(range(16, 32)), 50_000, 4_791, 0x6A, 64, 0x12345, 0)


def arena() -> Arena:
    fresh = Arena(1 << 18)
    fresh.allocate_first(64)
    return fresh


def seed_of(record: dict[str, int], flow: Flow, length: int, ident: int, frag: int) -> int:
    """The CRC after a packet's headers, by its linearity: from that after the template, and what differs from it."""
    words = b"".join(record[f"header_{number}"].to_bytes(8, "little") for number in range(7))
    full = flow.masked_headers(length, ident, frag)
    template = words[: record["header_bytes"]]
    differs = bytes(one ^ other for one, other in zip(full, template, strict=True))
    return record["seed"] ^ crc32(differs) ^ crc32(bytes(len(differs)))


@pytest.mark.parametrize("values", [V4, V6], ids=["v4", "v6"])
def test_a_record_says_all_that_a_flow_knows(values: tuple[bytes, bytes, int, int, int, int, int, int]) -> None:
    memory = arena()
    records = FlowRecords(memory)
    flow = Flow(*values)
    flow.smac, flow.dmac = 0x0200_0000_0001, 0x0200_0000_0002
    records.add(flow)
    assert flow.place
    assert records[flow.place] is flow
    raw = bytes(memory.memory[flow.place : flow.place + FLOW.size])
    record = FLOW.unpack(raw)
    size = len(flow.src)
    at = FLOW["src_0"].byte
    assert (raw[at : at + size], raw[at + 16 : at + 16 + size]) == (flow.src, flow.dst)
    names = ("sport", "dport", "tclass", "hop_limit", "flow_label", "sl", "smac", "dmac")
    assert {name: record[name] for name in names} == {name: getattr(flow, name) for name in names}
    assert (record["family"], record["header_bytes"]) == ((4, 36) if size == 4 else (6, 56))
    for length, ident, frag in ((16, 0, 0x4000), (1_040, 9, 0x4000), (4_112, 0xFFFF, 0)):
        assert seed_of(record, flow, length, ident, frag) == flow.seed(length, ident, frag)


def test_users_are_counted_and_a_dropped_record_is_used_again() -> None:
    memory = arena()
    records = FlowRecords(memory)
    one, two = Flow(*V4), Flow(*V6)
    for flow in (one, two):
        records.add(flow)
    use(memory.cells, 0, one.place)
    use(memory.cells, one.place, two.place)
    assert (records.users(one), records.users(two)) == (0, 1)
    use(memory.cells, two.place, 0)
    assert records.users(two) == 0
    place = one.place
    records.drop(one)
    assert one.place == 0
    with pytest.raises(KeyError):
        records[place]
    records.add(one)
    assert one.place == place


def test_a_full_arena_is_said() -> None:
    full = Arena(64)
    full.allocate_first(4_096)
    with pytest.raises(MemoryError, match="no room for a flow in 4096 bytes of state"):
        FlowRecords(full).add(Flow(*V4))
