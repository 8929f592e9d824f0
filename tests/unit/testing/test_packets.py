from __future__ import annotations

from typing import Any

import pytest

from rnic import enums as e
from rnic.spec.errors import VerbsError
from rnic.testing import PacketFactory, QpPair
from rnic.wire.flow import Flow

FLOW = Flow(b"\x0a\0\0\1", b"\x0a\0\0\2", 4791)


def test_a_packet_there_and_back() -> None:
    factory = PacketFactory(FLOW, dqpn=17)
    packet = factory("RC_WRITE_ONLY", 5, va=0x1000, rkey=0x77, dma_length=3, payload=b"abc")
    parsed = factory.parse(packet)
    assert (parsed.row.name, parsed.dqpn, parsed.psn, parsed.rkey) == ("RC_WRITE_ONLY", 17, 5, 0x77)
    assert bytes(parsed.payload) == b"abc"
    assert factory.parse(factory(0x04, 1, dqpn=3)).dqpn == 3


def test_what_is_no_packet() -> None:
    factory = PacketFactory(FLOW)
    good = bytearray(factory("RC_SEND_ONLY", payload=b"1234"))
    good[-5] ^= 1
    with pytest.raises(ValueError, match="ICRC of 20 bytes is wrong"):
        factory.parse(bytes(good))
    with pytest.raises(ValueError, match="names are such as RC_SEND_ONLY"):
        factory("RC_NOTHING")
    with pytest.raises(ValueError, match="not in the opcode table"):
        factory(0xFE)


def test_a_forged_write_takes_effect_only_with_the_right_key() -> None:
    with QpPair() as pair:
        factory = pair.factory(pair.b)
        fields: dict[str, Any] = {"va": pair.b.mr.buf, "dma_length": 4, "payload": b"evil"}
        pair.inject(pair.b, factory("RC_WRITE_ONLY", 0, rkey=pair.b.mr.rkey ^ 0x100, **fields))
        assert pair.b.buf[:4] == bytes(4)
        assert pair.b.qp.qp_state == e.IBV_QPS_ERR
    with QpPair() as pair:
        fields["va"] = pair.b.mr.buf
        pair.inject(pair.b, pair.factory(pair.b)("RC_WRITE_ONLY", 0, rkey=pair.b.mr.rkey, **fields))
        assert pair.b.buf[:4] == b"evil"


def test_a_pair_of_an_unknown_service() -> None:
    with pytest.raises(VerbsError, match="service='XRC'"):
        QpPair("XRC")
