"""Every packet in every state, and packets of a peer that means harm: nothing raises, nothing grows, QPs obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.spec.drops import DropReason
from rnic.spec.states import ERR, INIT, RESET, RTR, RTS, SQD, SQE, ST_RC, ST_UC, ST_UD
from rnic.state.queue_pair import REPLIES
from rnic.wire.bursts import RxBurst
from rnic.wire.opcode import OPCODES
from rnic.wire.packet import parse
from tests.scripts.conftest import NewScript, Script

SERVICE_BITS = {ST_RC: 0x00, ST_UC: 0x20, ST_UD: 0x60}
ROWS = {
    service: [row for row in OPCODES if row is not None and row.service == bits]
    for service, bits in SERVICE_BITS.items()
}
fields = st.fixed_dictionaries(
    {
        "shift": st.integers(-3, 6) | st.integers(0, 0xFFFFFF),
        "size": st.sampled_from([0, 1, 4, 255, 256, 257, 1024]),
        "length": st.sampled_from([0, 8, 256, 700, 1 << 31, (1 << 32) - 1]),
        "va": st.sampled_from([0, 4, 8, 65_000, -1]),
        "good_key": st.booleans(),
        "syndrome": st.integers(0, 255),
        "ackreq": st.booleans(),
        "row": st.integers(0, 30),
    }
)


def inject(s: Script, service: int, f: dict[str, int]) -> None:
    rows = ROWS[service]
    row = rows[f["row"] % len(rows)]
    base = s.qp.requester.una if row.response else s.ctx.expected_psn
    s.inject(
        row.name.split("_", 1)[1],
        base + f["shift"],
        payload=bytes(f["size"]) if row.payload else b"",
        va=s.va + f["va"] & 2**64 - 1,
        rkey=s.key if f["good_key"] else 5,
        dma_length=f["length"],
        syndrome=f["syndrome"],
        ackreq=f["ackreq"],
        qkey=0x1111,
    )


@pytest.mark.parametrize("state", [RESET, INIT, RTR, RTS, SQD, SQE, ERR])
@pytest.mark.parametrize("service", [ST_RC, ST_UC, ST_UD])
def test_every_packet_in_every_state(new: NewScript, service: int, state: int) -> None:
    for index, row in enumerate(ROWS[service]):
        s = new(service, state=state)
        s.recv(1024)
        s.ctx.state = state
        before = bytes(s.data), s.ctx.expected_psn
        inject(
            s,
            service,
            {"shift": 0, "size": 256, "length": 256, "va": 0, "good_key": True, "syndrome": 0, "ackreq": True}
            | {"row": index},
        )
        s.out()
        if state in (RESET, INIT, ERR):
            assert (bytes(s.data), s.ctx.expected_psn) == before
            assert s.counters[DropReason.QP_STATE.value] == 1, row.name
        elif row.response:
            assert s.counters[DropReason.GHOST_RESPONSE.value] == 1
            assert s.ctx.state == state
        else:
            assert s.ctx.state in (state, ERR)
            assert s.counters[DropReason.QP_STATE.value] == 0


@pytest.mark.slow
@given(service=st.sampled_from([ST_RC, ST_UC, ST_UD]), packets=st.lists(fields, max_size=25))
def test_hostile_packets(new: NewScript, service: int, packets: list[dict[str, int]]) -> None:
    s = new(service)
    guard = bytes(s.data[32_768:])
    for length in (700, 8):
        s.recv(length)
    if service == ST_RC:
        s.post("SEND", 600)
        s.post("READ", 600)
        s.post("FETCH_ADD", 8)
        s.post("WRITE", 600)
    posted = s.sq_tail
    for f in packets:
        inject(s, service, f)
        s.out(8)
        s.wait(100_000)
        assert len(s.qp.responder.replies) <= REPLIES
        assert s.qp.responder.resources.resource_count <= 16
    assert len(s.send_cq.entries) <= posted
    assert len(s.recv_cq.entries) <= 2
    assert len({e.index for e in s.send_cq.entries}) == len(s.send_cq.entries)
    if s.ctx.state == ERR:
        assert len(s.send_cq.entries) == posted
        assert len(s.recv_cq.entries) == 2
    assert bytes(s.data[32_768:])[:8] == guard[:8]


@pytest.mark.slow
@given(data=st.binary(min_size=12, max_size=300), opcode=st.sampled_from([r.opcode for r in ROWS[ST_RC]]))
def test_random_bytes_behind_an_opcode(new: NewScript, data: bytes, opcode: int) -> None:
    s = new()
    s.recv(700)
    s.post("READ", 600)
    s.packets()
    packet = parse(memoryview(bytes([opcode, data[1] & 0xF0]) + data[2:]))
    if isinstance(packet, DropReason):
        return
    packet.burst = RxBurst(s.in_flow, packet.payload, 1, 1, 0)
    s.qp.receive(packet, s.now)
    s.out()
