"""Recording a link: what Wireshark would be shown."""

from __future__ import annotations

import io

import pytest

from rnic.link.loopback import loopback_pair
from rnic.link.middleware import Middleware
from rnic.link.pcap import CapturedPacket, read_capture
from rnic.link.recorder import Recorder
from rnic.trace.counters import Counters
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.dissect import LINKTYPE_RAW, dissect
from rnic.wire.flow import Flow
from rnic.wire.packet import build, seal

V4 = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152)
V6 = Flow(bytes(15) + b"\x01", bytes(15) + b"\x02", 50_000)


class Given(Middleware):
    """A link that has received ``bursts``."""

    address = b"\x0a\0\0\x09"
    source_ports = (4791,)
    counters = Counters()

    def __init__(self, bursts: list[RxBurst]) -> None:
        self.bursts = bursts

    def receive(self, limit: int) -> list[RxBurst]:
        return self.bursts[:limit]


def packet(flow: Flow, ident: int, psn: int = 1) -> bytes:
    return seal(build(0x04, dqpn=1, psn=psn, payload=b"abcd"), flow, ident)


def recorded(file: io.BytesIO) -> list[CapturedPacket]:
    file.seek(0)
    return list(read_capture(file, "record"))


@pytest.mark.parametrize("linktype", [1, LINKTYPE_RAW])
@pytest.mark.parametrize("flow", [V4, V6], ids=["v4", "v6"])
def test_received(flow: Flow, linktype: int) -> None:
    """A burst of two, one with an ident of its own, one with a known ident: all are right in the file."""
    two = packet(flow, 0) + packet(flow, 1)[:-1] + packet(flow, 1)[-1:]
    bursts = [
        RxBurst(flow, memoryview(two + b"rest"), len(two) // 2, len(two)),
        RxBurst(flow, memoryview(packet(flow, 0xBEEF)), 20, 20),
        RxBurst(flow, memoryview(packet(flow, 0xFFFF) + packet(flow, 0)), 20, 40, ident=0xFFFF),
    ]
    file = io.BytesIO()
    recorder = Recorder(Given(bursts), file, linktype, clock=lambda: 77)
    assert recorder.receive(9) is not None
    packets = recorded(file)
    assert [p.time_ns for p in packets] == [77] * 5
    frames = [dissect(memoryview(p.data), p.linktype) for p in packets]
    assert [frame.icrc_ok for frame in frames] == [True] * 5
    if flow is V4:
        assert [frame.ident for frame in frames] == [0, 1, 0xBEEF, 0xFFFF, 0]


@pytest.mark.parametrize("flow", [V4, V6], ids=["v4", "v6"])
def test_a_mark_of_a_switch_is_recorded(flow: Flow) -> None:
    """With the rest of what routers change, and the ICRC does not cover."""
    burst = RxBurst(flow, memoryview(packet(flow, 0)), 20, 20, tclass=0x6B, hop_limit=9, flow_label=0x12345)
    file = io.BytesIO()
    Recorder(Given([burst]), file, LINKTYPE_RAW, clock=lambda: 77).receive(1)
    (captured,) = recorded(file)
    frame = dissect(memoryview(captured.data), captured.linktype)
    assert frame.icrc_ok
    data = captured.data
    if flow is V4:
        assert (data[1], data[8]) == (0x6B, 9)
    else:
        assert (int.from_bytes(data[:4], "big"), data[7]) == (6 << 28 | 0x6B << 20 | 0x12345, 9)


def test_corrupt_and_short_packets_stay_so() -> None:
    bad = bytearray(packet(V4, 0))
    bad[12] ^= 0xFF
    file = io.BytesIO()
    bursts = [RxBurst(V4, memoryview(data), len(data), len(data)) for data in (bad, b"short")]
    Recorder(Given(bursts), file).receive(2)
    frames = [dissect(memoryview(p.data)) for p in recorded(file)]
    assert [(frame.kind, frame.icrc_ok) for frame in frames] == [("RoCEv2", False), ("malformed", None)]


def test_what_a_link_sends_to_itself_is_recorded_once() -> None:
    """Two programs on one NIC: as with tcpdump on lo, no packet looks like its own repetition."""
    to_itself = Flow(Given.address, Given.address, 4791)
    from_a_neighbour = Flow(Given.address, Given.address, 4792)
    bursts = [RxBurst(flow, memoryview(packet(flow, 0)), 20, 20) for flow in (to_itself, from_a_neighbour)]
    file = io.BytesIO()
    link = Recorder(Given(bursts), file, LINKTYPE_RAW)
    assert len(link.receive(2)) == 2
    flows = [dissect(memoryview(p.data), p.linktype).flow for p in recorded(file)]
    assert [flow.sport for flow in flows if flow is not None] == [4792]


def test_sent_over_loopback() -> None:
    left, right = loopback_pair()
    file = io.BytesIO()
    link = Recorder(left, file)
    flow = link.local_flow(right.address, right.port)
    burst = TxBurst(flow, [packet(flow, 0), packet(flow, 1)], 20, 2, 40)
    link.send([burst])
    assert sum(got.length for got in right.receive(8)) == 40
    link.close()
    frames = [dissect(memoryview(p.data), port=flow.dport) for p in recorded(file)]
    assert [frame.icrc_ok for frame in frames] == [True, True]


def test_idents_of_other_protocols_are_not_solved_for() -> None:
    """An ICRC made by other rules would lead to an ident that nobody sent."""
    data = packet(V4, 0xBEEF)
    for solve_idents, ident in ((True, 0xBEEF), (False, 0)):
        file = io.BytesIO()
        given = Given([RxBurst(V4, memoryview(data), len(data), len(data))])
        Recorder(given, file, LINKTYPE_RAW, clock=lambda: 1, solve_idents=solve_idents).receive(1)
        (one,) = recorded(file)
        assert dissect(memoryview(one.data), LINKTYPE_RAW).ident == ident
