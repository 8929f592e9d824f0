from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from rnic.link.base import Link
from rnic.link.loopback import LoopbackLink, loopback_pair
from rnic.link.record import ETHERNET, RAW_IP, RecordingLink
from rnic.spec.opcodes import SEND_ONLY, WRITE_MIDDLE
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow
from rnic.wire.ip import checksum
from rnic.wire.packet import build, seal

ADDRESSES = {
    "v4": (bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])),
    "v6": (bytes.fromhex("fd00" + "00" * 13 + "01"), bytes.fromhex("fd00" + "00" * 13 + "02")),
}


class Sink:
    def __init__(self) -> None:
        self.packets: list[tuple[int, bytes, bool]] = []

    def write(self, time_ns: int, data: bytes, *, inbound: bool) -> None:
        self.packets.append((time_ns, data, inbound))


def burst_of(flow: Flow, count: int, opcode: int = WRITE_MIDDLE, size: int = 33) -> TxBurst:
    frames = [
        seal(build(opcode, dqpn=17, psn=ident, payload=bytes(range(size))), flow, ident) for ident in range(count)
    ]
    return TxBurst(flow, list(frames), len(frames[0]), count, sum(map(len, frames)))


def recorded(version: str, link_type: int = RAW_IP) -> tuple[Sink, RecordingLink, LoopbackLink]:
    first, second = ADDRESSES[version]
    inner, peer = loopback_pair(first, second)
    sink = Sink()
    return sink, RecordingLink(inner, sink, clock=iter(range(100, 200)).__next__, link_type=link_type), peer


def payload_of(packet: bytes) -> bytes:
    return packet[28:] if packet[0] >> 4 == 4 else packet[48:]


@pytest.mark.parametrize("version", ["v4", "v6"])
def test_both_directions_pass_and_are_recorded(version: str) -> None:
    sink, link, peer = recorded(version)
    there, back = link.local_flow(peer.address, 4791), peer.local_flow(link.address, 4791)
    sent, answer = burst_of(there, 3), burst_of(back, 2, SEND_ONLY)
    link.send([sent])
    assert bytes(peer.receive(9)[0].buf) == b"".join(sent.buffers)
    peer.send([answer])
    assert bytes(link.receive(9)[0].buf) == b"".join(answer.buffers)
    assert [(time, inbound) for time, _, inbound in sink.packets] == [(100, False)] * 3 + [(101, True)] * 2
    assert [payload_of(data) for _, data, _ in sink.packets] == [*sent.buffers, *answer.buffers]


def test_ipv4_headers_are_those_that_the_icrc_covers() -> None:
    sink, link, peer = recorded("v4")
    flow = link.local_flow(peer.address, 4791)
    flow.tclass, flow.hop_limit = 2, 9
    link.send([burst_of(flow, 3)])
    for ident, (_, data, _) in enumerate(sink.packets):
        fields = struct.unpack(">BBHHHBBH4s4s", data[:20])
        assert fields[:7] == (0x45, 2, len(data), ident, 0x4000, 9, 17)
        assert fields[8:] == (flow.src, flow.dst)
        assert checksum(data[:20]) == 0
        assert struct.unpack(">HHHH", data[20:28]) == (4791, 4791, len(data) - 20, 0)
        assert flow.check(payload_of(data), ident)


def test_ipv6_has_a_right_udp_checksum() -> None:
    sink, link, peer = recorded("v6")
    link.send([burst_of(link.local_flow(peer.address, 4791), 2)])
    for _, data, _ in sink.packets:
        pseudo = data[8:40] + struct.pack(">II", len(data) - 40, 17)
        assert data[46:48] != b"\0\0"
        assert checksum(pseudo + data[40:]) == 0


@pytest.mark.parametrize(("made_for", "ident"), [((0, 1, 2), (0, 1, 2)), ((0, 0, 0), (0, 0, 0)), ((700,), (700,))])
def test_unseen_idents_are_found(made_for: tuple[int, ...], ident: tuple[int, ...]) -> None:
    sink, link, peer = recorded("v4")
    flow = peer.local_flow(link.address, 4791)
    data = b"".join(seal(build(SEND_ONLY, dqpn=1, psn=1, payload=bytes(8)), flow, made) for made in made_for)
    size = len(data) // len(made_for)
    link.inner.receive = lambda limit: [RxBurst(flow, memoryview(data), size, len(data), None, 0x4000, 2, 60)]  # type: ignore[method-assign]
    link.receive(4)
    assert [struct.unpack_from(">BBHHHB", packet) for _, packet, _ in sink.packets] == [
        (0x45, 2, size + 28, number, 0x4000, 60) for number in ident
    ]


def test_a_corrupt_or_short_packet_is_recorded_at_its_place() -> None:
    sink, link, peer = recorded("v4")
    flow = peer.local_flow(link.address, 4791)
    data = bytes(range(60))
    link.inner.receive = lambda limit: [RxBurst(flow, memoryview(data), 50, 60)]  # type: ignore[method-assign]
    link.receive(4)
    assert [payload_of(packet) for _, packet, _ in sink.packets] == [data[:50], data[50:]]
    assert sink.packets[1][1][4:6] == b"\0\1"


@pytest.mark.parametrize("version", ["v4", "v6"])
def test_ethernet_frames(version: str) -> None:
    sink, link, peer = recorded(version, ETHERNET)
    group = bytes([239, 200, 1, 2]) if version == "v4" else bytes.fromhex("ff" + "00" * 11 + "efc80102")
    for target in (peer.address, group):
        link.send([burst_of(link.local_flow(target, 4791), 1)])
    (_, unicast, _), (_, multicast, _) = sink.packets
    kind = b"\x08\x00" if version == "v4" else b"\x86\xdd"
    assert unicast[:14] == b"\x02\x00" + peer.address[-4:] + b"\x02\x00" + link.address[-4:] + kind
    assert multicast[:6].hex() == ("01005e480102" if version == "v4" else "3333efc80102")


def test_other_link_types_are_refused() -> None:
    inner, _ = loopback_pair()
    with pytest.raises(ValueError, match=r"link type 113 is not recorded: give 1 \(Ethernet\) or 101 \(raw IP\)"):
        RecordingLink(inner, Sink(), clock=int, link_type=113)


def test_it_is_a_link() -> None:
    link: Link = recorded("v4")[1]
    assert link.mtu > 0


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v4", "v6"])
@pytest.mark.parametrize("link_type", [RAW_IP, ETHERNET])
def test_tshark_dissects_the_packets(tmp_path: Path, version: str, link_type: int) -> None:
    tshark = shutil.which("tshark")
    if tshark is None:
        pytest.skip("tshark is not installed")
    sink, link, peer = recorded(version, link_type)
    link.send([burst_of(link.local_flow(peer.address, 4791), 3)])
    peer.send([burst_of(peer.local_flow(link.address, 4791), 1, SEND_ONLY)])
    link.receive(4)
    path = tmp_path / "link.pcap"
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65_535, link_type))
        for time_ns, data, _ in sink.packets:
            file.write(struct.pack("<IIII", 0, time_ns, len(data), len(data)) + data)
    fields = ["infiniband.bth.opcode", "infiniband.bth.psn", "udp.checksum.status", "ip.checksum.status"]
    fields += ["_ws.malformed", "_ws.expert.message"]
    command = [tshark, "-r", str(path), "-T", "fields", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]
    command += [part for field in fields for part in ("-e", field)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    udp_status, ip_status = ("3", "1") if version == "v4" else ("1", "")
    assert [line.split("\t") for line in output.stdout.splitlines()] == [
        [str(opcode), str(psn), udp_status, ip_status, "", ""]
        for opcode, psn in ((WRITE_MIDDLE, 0), (WRITE_MIDDLE, 1), (WRITE_MIDDLE, 2), (SEND_ONLY, 0))
    ]
