from __future__ import annotations

import struct

import pytest

from rnic.link.packets import kept, received_packets, single_packets
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow

FLOWS = {
    "v4": Flow(bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]), 4791),
    "v6": Flow(bytes(15) + b"\x01", bytes(15) + b"\x02", 4791),
}
SIZES = (40, 40, 40, 24)


def sealed(flow: Flow, ident: int, size: int) -> bytes:
    frame = bytes([ident + 7]) * (size - 4)
    return frame + struct.pack("<I", flow.icrc(frame, ident))


@pytest.fixture(params=["v4", "v6"])
def flow(request: pytest.FixtureRequest) -> Flow:
    return FLOWS[request.param]


def burst_of(flow: Flow) -> TxBurst:
    data = b"".join(sealed(flow, ident, size) for ident, size in enumerate(SIZES))
    # Cut across packets, as a sender's scatter list is.
    return TxBurst(flow, [data[:50], data[50:51], data[51:]], 40, len(SIZES), len(data))


def test_single_packets_are_sealed_for_ident_0(flow: Flow) -> None:
    packets = single_packets(burst_of(flow))
    assert [packet.length for packet in packets] == list(SIZES)
    assert [(packet.segment, packet.count) for packet in packets] == [(size, 1) for size in SIZES]
    for ident, packet in enumerate(packets):
        data = bytes(packet.buffers[0])
        assert data[:-4] == sealed(flow, ident, SIZES[ident])[:-4]
        assert flow.check(data, 0)
        assert packet.flow is flow


def test_a_wrong_packet_stays_wrong(flow: Flow) -> None:
    burst = burst_of(flow)
    data = bytearray(b"".join(burst.buffers))
    data[90] ^= 1
    verdicts = [flow.check(bytes(p.buffers[0]), 0) for p in single_packets(TxBurst(flow, [data], 40, 4, len(data)))]
    assert verdicts == [True, True, False, True]


def test_packets_own_their_memory(flow: Flow) -> None:
    data = bytearray(b"".join(burst_of(flow).buffers))
    (first, *_) = single_packets(TxBurst(flow, [data], 40, 4, len(data)))
    before = bytes(first.buffers[0])
    data[:] = bytes(len(data))
    assert bytes(first.buffers[0]) == before


def test_received_packets_count_known_idents_up(flow: Flow) -> None:
    data = memoryview(b"".join(burst_of(flow).buffers))
    burst = RxBurst(flow, data, 40, len(data), 0xFFFE, 0x4000, 2, 61)
    packets = received_packets(burst)
    assert [packet.ident for packet in packets] == [0xFFFE, 0xFFFF, 0, 1]
    assert b"".join(packet.buf for packet in packets) == data
    assert [(p.length, p.tclass, p.ecn, p.hop_limit) for p in packets] == [(size, 2, 2, 61) for size in SIZES]


def test_unseen_idents_are_settled_by_place() -> None:
    flow = FLOWS["v4"]
    data = bytearray(b"".join(burst_of(flow).buffers))
    data[41] ^= 1
    packets = received_packets(RxBurst(flow, memoryview(data), 40, len(data)))
    assert [packet.ident for packet in packets] == [None, None, 2, 3]


def test_one_packet_is_itself(flow: Flow) -> None:
    burst = RxBurst(flow, memoryview(bytes(24)), 24, 24)
    assert received_packets(burst) == [burst]


def test_kept_outlives_the_buffer(flow: Flow) -> None:
    data = bytearray(sealed(flow, 0, 40))
    burst = kept(RxBurst(flow, memoryview(data), 40, 40, 5, 0, 3, 9))
    data[:] = bytes(40)
    assert bytes(burst.buf) == sealed(flow, 0, 40)
    assert (burst.ident, burst.frag, burst.tclass, burst.hop_limit) == (5, 0, 3, 9)
