from __future__ import annotations

import pytest

from rnic.context.qp_context import QpContext
from rnic.device.config import NicConfig
from rnic.device.paths import Paths
from rnic.rings.sqe import SQ_ENTRY_UD
from rnic.spec.gids import gid_from_address
from rnic.state.arena import Arena
from rnic.state.queue_pair import SEND_WQE
from rnic.trace.counters import Counters
from rnic.transport.message import Message
from rnic.wire.flow import Flow

ME = bytes((10, 0, 0, 1))
PEER = bytes((10, 0, 0, 2))


def nothing() -> None:
    pass


def context(**values: int) -> QpContext:
    ctx = QpContext()
    ctx.rgid = int.from_bytes(gid_from_address(PEER), "big")
    ctx.local_qpn = 20
    for name, value in values.items():
        setattr(ctx, name, value)
    return ctx


class FakeLink:
    def __init__(self) -> None:
        self.agreed: list[Flow] = []

    def max_segments(self, flow: Flow) -> int:
        return 32 if flow in self.agreed else 1

    def allow_gso(self, flow: Flow) -> None:
        self.agreed.append(flow)


def test_connected_path() -> None:
    paths = Paths(NicConfig(ME, port=5000), Counters(), Arena(1 << 20), nothing)
    flow = paths.connected(context(tclass=0x88, hop_limit=3, udp_dport=6000, flow_label=5))
    assert (flow.src, flow.dst, flow.sport, flow.dport) == (ME, PEER, 5000, 6000)
    assert (flow.tclass, flow.hop_limit, flow.flow_label) == (0x88, 3, 5)
    plain = paths.connected(context())
    assert (plain.dport, plain.hop_limit) == (5000, 64), "a peer whose port nobody names has the same as this NIC"


def test_queue_pairs_to_one_peer_share_a_flow() -> None:
    paths = Paths(NicConfig(ME), Counters(), Arena(1 << 20), nothing)
    assert paths.connected(context(local_qpn=20)) is paths.connected(context(local_qpn=21))
    assert paths.connected(context(tclass=4)) is not paths.connected(context())


def test_source_ports_spread_where_the_link_can() -> None:
    paths = Paths(NicConfig(ME, fixed_sport=False), Counters(), Arena(1 << 20), nothing)
    ports = {paths.connected(context(local_qpn=n, remote_qpn=77)).sport for n in range(16, 80)}
    assert len(ports) > 32
    assert all(0xC000 <= port <= 0xFFFF for port in ports)
    assert paths.connected(context(udp_sport=50_000)).sport == 50_000


def test_a_queue_pair_keeps_to_one_of_the_links_ports() -> None:
    ports = (40_001, 40_002, 40_003)
    paths = Paths(NicConfig(ME, source_ports=ports), Counters(), Arena(1 << 20), nothing)
    chosen = [paths.connected(context(local_qpn=n, remote_qpn=77)).sport for n in range(16, 80)]
    assert set(chosen) == set(ports)
    assert chosen == [paths.connected(context(local_qpn=n, remote_qpn=77)).sport for n in range(16, 80)]
    assert paths.connected(context(udp_sport=40_002)).sport == 40_002


def test_the_service_level_goes_with_the_path() -> None:
    paths = Paths(NicConfig(ME), Counters(), Arena(1 << 20), nothing)
    assert paths.connected(context(sl=5)).sl == 5
    assert paths.connected(context(sl=5)) is not paths.connected(context())


def towards(gid: bytes, **values: int) -> Message:
    """A UD work request's destination."""
    entry = SQ_ENTRY_UD.pack({"dgid": int.from_bytes(gid, "little"), **values})
    message = Message(memoryview(bytearray(SEND_WQE.size)), 0, 0)
    message.take(bytearray(entry))
    return message


def test_datagram_paths() -> None:
    counters = Counters()
    paths = Paths(NicConfig(ME), counters, Arena(1 << 20), nothing)
    gid = gid_from_address(PEER)
    flow = paths.datagram(context(rgid=0), towards(gid, tclass=8, hop_limit=2, flow_label=0x54321, sl=4))
    assert (flow.dst, flow.dport, flow.tclass, flow.hop_limit) == (PEER, 4791, 8, 2)
    assert (flow.flow_label, flow.sl) == (0x54321, 4)
    for useless in (bytes.fromhex("20010db8") + bytes(12), gid_from_address(bytes(4)), bytes(16)):
        assert paths.datagram(context(rgid=0), towards(useless)).dst == bytes((240, 0, 0, 0))
    assert counters["drop_tx_bad_address"] == 3
    assert paths.connected(context(rgid=0)).dst == bytes((240, 0, 0, 0))
    v6 = Paths(NicConfig(bytes(15) + b"\1"), counters, Arena(1 << 20), nothing)
    assert v6.datagram(context(rgid=0), towards(gid)).dst == b"\1" + bytes(15)


def test_flows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.device.paths._MAX_FLOWS", 4)
    swept: list[int] = []
    paths = Paths(NicConfig(ME), Counters(), Arena(1 << 20), lambda: swept.append(len(paths._flows)))
    for last in range(10):
        paths.datagram(context(), towards(gid_from_address(bytes((10, 0, 1, last)))))
        assert len(paths._flows) <= 4
    assert swept == [0, 0]  # whoever keeps a path of a datagram is told


def test_max_segments() -> None:
    paths = Paths(NicConfig(ME), Counters(), Arena(1 << 20), nothing)
    flow = paths.connected(context())
    assert paths.max_segments(flow, False) == 1
    assert paths.max_segments(flow, True) == 64
    paths.offload = FakeLink()
    assert paths.max_segments(flow, False) == 1
    assert paths.max_segments(flow, True) == 32
