"""Whatever the bytes: parsing a packet, a frame or a capture file ends in a record, a reason or one clear error."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rnic.link.pcap import CaptureError, read_capture
from rnic.spec.drops import DropReason
from rnic.wire import pretty
from rnic.wire.datagram import Datagram, parse_ip
from rnic.wire.dissect import dissect
from rnic.wire.ethernet import Ethernet
from rnic.wire.flow import Flow
from rnic.wire.ident import solve
from rnic.wire.ip import ip_packet
from rnic.wire.opcode import OPCODES
from rnic.wire.packet import Packet, build, parse, seal

VECTORS = Path(__file__).parents[1] / "vectors" / "rxe"
FLOW = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152)
VALID = [
    seal(build(row, dqpn=1, psn=2, payload=b"12345" if row.payload else b""), FLOW)
    for row in OPCODES
    if row is not None
]
PARSE_REASONS = (DropReason.TOO_SHORT, DropReason.BAD_TVER, DropReason.BAD_OPCODE, DropReason.BAD_LENGTH)


@st.composite
def damaged(draw: st.DrawFn, sources: list[bytes]) -> bytes:
    """A valid packet with some bytes changed, cut, or with bytes added."""
    data = bytearray(draw(st.sampled_from(sources)))
    for at, value in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=6)):
        data[at] = value
    return bytes(data[: draw(st.integers(0, len(data)))]) + draw(st.binary(max_size=8))


def look_at(data: bytes) -> None:
    view = memoryview(data)
    found = parse(view)
    if isinstance(found, Packet):
        assert 12 <= found.row.header_bytes + len(found.payload) + found.pad + 4 <= len(data)
        assert pretty.describe(found)
    else:
        assert found in PARSE_REASONS
    for header in pretty.headers(view):
        for name in header.values():
            assert pretty.text(header, name)
    assert 0 <= pretty.payload_bytes(view) <= len(data)
    if len(data) >= 16:
        FLOW.check(view)
        solve(view, FLOW)


@given(st.binary(max_size=80))
@example(b"")
def test_noise(data: bytes) -> None:
    look_at(data)


@given(damaged(VALID))
def test_damaged_packets(data: bytes) -> None:
    look_at(data)


@pytest.mark.parametrize("opcode", range(256))
def test_every_opcode_at_every_length(opcode: int) -> None:
    for size in range(70):
        look_at(bytes([opcode, size & 0x30 or 0x40]) + bytes(size))


IP_PACKETS = [
    ip_packet(flow, seal(build(0x0A, dqpn=1, psn=2, payload=b"abc"), flow))
    for flow in (FLOW, Flow(bytes(16), bytes(15) + b"\x01", 5))
]
FRAMES = [Ethernet(ethertype=kind).pack() + data for kind, data in zip((0x0800, 0x86DD), IP_PACKETS, strict=True)]


@given(st.one_of(damaged(IP_PACKETS), st.binary(max_size=80)))
def test_ip_packets(data: bytes) -> None:
    found = parse_ip(memoryview(data), None)
    if isinstance(found, Datagram):
        assert len(found.payload) <= len(data) - 28
    else:
        assert found in (DropReason.BAD_IP, DropReason.NOT_ROCE)


@given(
    st.one_of(damaged(FRAMES), damaged(IP_PACKETS), st.binary(max_size=80)), st.sampled_from([1, 101, 113, 276, 197])
)
def test_frames(data: bytes, linktype: int) -> None:
    frame = dissect(memoryview(data), linktype)
    assert frame.kind
    assert frame.icrc_ok in (True, False, None)
    look_at(bytes(frame.payload))


CAPTURE = (VECTORS / "vp_zero_length.pcap").read_bytes()


@given(st.one_of(damaged([CAPTURE]), st.binary(max_size=60)))
def test_captures(data: bytes) -> None:
    with contextlib.suppress(CaptureError):
        for packet in read_capture(io.BytesIO(data), "fuzz"):
            assert len(packet.data) <= len(data)
            dissect(memoryview(packet.data), packet.linktype)
