"""Sealed packets that mean harm, from the right address, against queue pairs at work: others notice nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnic.testing import QpPair
from rnic.testing.packets import NAMES
from rnic.verbs import MR, PD
from rnic.verbs import enums as e

SIZE = 4096
PACKETS = st.lists(
    st.fixed_dictionaries(
        {
            "opcode": st.sampled_from(sorted(NAMES)),
            "shift": st.integers(-3, 5) | st.integers(0, 0xFFFFFF),
            "size": st.sampled_from([0, 1, 8, 1023, 1024, 1025]),
            "dma_length": st.sampled_from([0, 1, 8, 1024, SIZE, SIZE + 1, 1 << 31, (1 << 32) - 1]),
            "at": st.sampled_from([0, 4, SIZE - 8, SIZE, -1, 1 << 40]),
            "key": st.sampled_from(["theirs", "other domain's", "wrong"]),
            "syndrome": st.integers(0, 255),
            "ackreq": st.booleans(),
            "target": st.sampled_from(["victim", "bystander", 0, 1, 0xFFFFFF]),
        }
    ),
    max_size=30,
)


def strike(pair: QpPair, other: QpPair, secret: MR, packet: dict[str, Any]) -> None:
    """Hand one packet to side a's NIC, as if its peer had sent it."""
    side = pair.a
    factory = pair.factory(side)
    name = packet["opcode"]
    requester = side.node.nic.qps[side.qp.qp_num].requester
    base = requester.una if "RESPONSE" in name or "ACK" in name else side.qp.query()[0].rq_psn
    keys = {"theirs": side.mr.rkey, "other domain's": secret.rkey, "wrong": 5}
    # the bystander's own connection is somebody else's to speak for: only packets that its state refuses
    target = {"victim": side.qp.qp_num, "bystander": other.a.qp.qp_num}.get(packet["target"], packet["target"])
    shift = packet["shift"] if target != other.a.qp.qp_num else 1 << 22
    frame = factory(
        name,
        base + shift & 0xFFFFFF,
        dqpn=target,
        payload=bytes(packet["size"]),
        va=side.mr.buf + packet["at"] & 2**64 - 1,
        rkey=keys[packet["key"]],
        dma_length=packet["dma_length"],
        syndrome=packet["syndrome"],
        ackreq=packet["ackreq"],
        swap_add=1,
        qkey=0x1111_1111,
    )
    pair.inject(side, frame)


@pytest.mark.slow
@given(PACKETS)
@settings(max_examples=40)
def test_the_bystander_and_other_memory_are_untouched(packets: list[dict[str, Any]]) -> None:
    with QpPair(size=SIZE) as pair:
        other = QpPair(net=pair.net, size=SIZE)
        guarded = bytearray(b"\x5a" * SIZE)
        secret = MR(PD(pair.a.ctx), guarded, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        for side in (pair.a, pair.b):
            for _ in range(4):
                side.post_recv(1024)
            side.post_send(e.IBV_WR_RDMA_READ, 2000)
            side.post_send(e.IBV_WR_SEND, 1000)
        other.b.buf[:] = bytes(SIZE)
        for number, packet in enumerate(packets):
            if number % 5 == 0:
                other.a.buf[:] = bytes([number + 1]) * SIZE
                other.a.post_send(e.IBV_WR_RDMA_WRITE, SIZE, wr_id=number)
            strike(pair, other, secret, packet)
            if number % 5 == 4:
                assert [(wc.wr_id, wc.status) for wc in other.a.wait()] == [(number - 4, e.IBV_WC_SUCCESS)]
                assert other.b.buf == other.a.buf
        pair.net.run(None)
        assert guarded == b"\x5a" * SIZE
        assert other.a.qp.query()[0].qp_state == other.b.qp.query()[0].qp_state == e.IBV_QPS_RTS
        for side in (pair.a, pair.b):
            wcs = side.poll()
            assert len(wcs) <= 6
            if side.qp.query()[0].qp_state == e.IBV_QPS_ERR:
                assert len(wcs) == 6, "every work request completes, as done or as flushed"
