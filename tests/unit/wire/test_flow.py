"""The ICRC: known packets, and the shortcuts against a computation with masked copies."""

from __future__ import annotations

import struct
import zlib

import pytest

from rnic.wire import flow as flow_module
from rnic.wire.crc import CRC_BACKEND, crc32
from rnic.wire.flow import MAX_IDENTS, Flow, residue, tx_delta
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal

V4 = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152, tclass=2, hop_limit=63)
V6 = Flow(bytes(15) + b"\x01", bytes(15) + b"\x02", 50_000, tclass=0x6A, hop_limit=1, flow_label=0x12345)


def straightforward(ip: bytes) -> int:
    """The ICRC of an IP packet without its last four bytes: mask a copy, run zlib over it (A17.3.3)."""
    p = bytearray(ip)
    if p[0] >> 4 == 4:
        p[1] = p[8] = p[10] = p[11] = 0xFF
        udp = 20
    else:
        p[0] |= 0x0F
        p[1] = p[2] = p[3] = p[7] = 0xFF
        udp = 40
    p[udp + 6] = p[udp + 7] = p[udp + 8 + 4] = 0xFF
    return zlib.crc32(b"\xff" * 8 + bytes(p))


def test_backend_is_a_crc32() -> None:
    assert CRC_BACKEND in ("isal", "zlib")
    assert crc32(b"123456789") == 0xCBF43926
    assert crc32(b"6789", crc32(b"12345")) == 0xCBF43926


def test_state_after_the_ones() -> None:
    """The register that Soft-RoCE starts from, complemented as zlib counts."""
    assert crc32(b"\xff" * 8) ^ 0xFFFFFFFF == 0xDEBB20E3


@pytest.mark.parametrize("flow", [V4, V6], ids=["v4", "v6"])
@pytest.mark.parametrize("byte4", [0, 0x10, 0x40, 0x80, 0xFF])
@pytest.mark.parametrize("size", [0, 1, 4, 255, 4096])
def test_icrc_is_the_straightforward_one(flow: Flow, byte4: int, size: int) -> None:
    frame = build(0x04, dqpn=0x123456, psn=7, payload=bytes(range(256)) * 16 if size == 4096 else bytes(size))
    frame[4] = byte4
    expected = straightforward(ip_packet(flow, bytes(frame) + bytes(4), 0xBEEF, 0x4000)[:-4])
    assert flow.icrc(frame, 0xBEEF) == expected
    packet = seal(frame, flow, 0xBEEF)
    assert packet[-4:] == struct.pack("<I", expected)
    assert flow.check(packet, 0xBEEF)
    assert not flow.check(packet[:-1] + bytes([packet[-1] ^ 1]), 0xBEEF)


def test_ident_and_fragment_word_are_covered_on_v4_only() -> None:
    frame = build(0x04, dqpn=1, psn=2)
    packet = seal(frame, V4, 0x1234)
    assert V4.check(packet, 0x1234)
    assert not V4.check(packet, 0x1235)
    assert not V4.check(packet, 0x1234, 0)
    assert V6.icrc(frame, 1) == V6.icrc(frame, 2, 0)


@pytest.mark.parametrize(("ident", "frag"), [(0, 0), (1, 0x4000), (0xFFFF, 0x3FFF), (0x8001, 0x8001)])
def test_seed_is_the_crc_of_the_masked_headers(ident: int, frag: int) -> None:
    assert V4.seed(1000, ident, frag) == zlib.crc32(V4.masked_headers(1000, ident, frag))
    assert V6.seed(1000, ident, frag) == zlib.crc32(V6.masked_headers(1000))


@pytest.mark.parametrize("flow", [V4, V6], ids=["v4", "v6"])
def test_seeds(flow: Flow) -> None:
    assert flow.seeds(40) == tuple(flow.seed(40, ident) for ident in range(MAX_IDENTS))
    assert flow.seeds(40) is flow.seeds(40)


def test_masked_fields_do_not_matter() -> None:
    frame = build(0x04, dqpn=1, psn=2)
    other = Flow(V6.src, V6.dst, V6.sport)
    assert other.icrc(frame) == V6.icrc(frame)


def test_tx_delta_and_residue() -> None:
    frame = build(0x04, dqpn=1, psn=2, payload=b"12345678")
    length = len(frame) + 4
    assert crc32(frame, V4.seed(length)) ^ tx_delta(length) == V4.icrc(frame)
    frame[4] = 0x80
    assert crc32(seal(frame, V4), V4.seed(length)) == residue(length, 0x80)


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_module, "_MAX_CACHED", 4)
    monkeypatch.setattr(flow_module, "_MAX_SEED_LISTS", 2)
    monkeypatch.setattr(flow_module, "_residues", {})
    monkeypatch.setattr(flow_module, "_tx_deltas", {})
    flow = Flow(V4.src, V4.dst, 1)
    fresh = Flow(V4.src, V4.dst, 1)
    for length in range(16, 60):
        residue(length)
        tx_delta(length)
        assert flow.seed(length, 3) == zlib.crc32(fresh.masked_headers(length, 3))
        flow.seeds(length)
    assert len(flow_module._residues) <= 4
    assert len(flow_module._tx_deltas) <= 4
    assert len(flow._seeds) <= 4
    assert len(flow._seed_lists) <= 2


def test_caches_keep_what_they_have_room_for() -> None:
    flow = Flow(V4.src, V4.dst, 1)
    first = flow.seeds(272)
    flow.seeds(1040)
    assert flow.seeds(272) is first


def test_reverse_and_repr() -> None:
    back = V6.reverse()
    assert (back.src, back.dst, back.sport, back.dport) == (V6.dst, V6.src, 4791, 50_000)
    assert (back.tclass, back.hop_limit, back.flow_label) == (0x6A, 1, 0x12345)
    assert repr(V4) == "Flow(0a000001:49152 -> 0a000002:4791)"
