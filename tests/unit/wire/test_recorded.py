"""Taking back what recorders do: the source port that an ICRC fits, and the packets in a frame before segmentation."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rnic.spec import opcodes as op
from rnic.spec.limits import MTU_CODES
from rnic.wire.flow import Flow
from rnic.wire.packet import build, seal
from rnic.wire.recorded import MAX_GUESSES, MAX_SEGMENTS, solve_port, split

V4 = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 4791)
V6 = Flow(bytes(15) + b"\x01", bytes(15) + b"\x02", 4791)
DF = 0x4000


@pytest.mark.parametrize("flow", [V4, V6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("size", [0, 4, 1024, 4096])
@pytest.mark.parametrize("port", [0, 1, 4791, 53_427, 65_535])
def test_the_port_that_an_icrc_fits(flow: Flow, size: int, port: int) -> None:
    sent = Flow(flow.src, flow.dst, port)
    packet = seal(build(op.SEND_ONLY, dqpn=7, psn=9, becn=True, payload=bytes(size)), sent, 300)
    assert solve_port(packet, flow, 300, DF) == port


def test_damage_fits_a_port_as_rarely_as_chance_has_it() -> None:
    rng = random.Random(46)
    packet = bytearray(seal(build(op.SEND_ONLY, dqpn=7, psn=9, payload=bytes(64)), V4))
    fits = 0
    for _ in range(20_000):
        packet[-4:] = rng.randbytes(4)
        fits += solve_port(packet, V4, 0, DF) is not None
    assert fits <= 5  # 20,000 / 65,536 are to be expected


def _frame(flow: Flow, bodies: list[bytearray], ident: int, step: int) -> bytes:
    return b"".join(seal(body, flow, ident + step * index & 0xFFFF) for index, body in enumerate(bodies))


@pytest.mark.parametrize("flow", [V4, V6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("mtu", MTU_CODES)
@pytest.mark.parametrize("opcode", [op.SEND_MIDDLE, op.WRITE_MIDDLE, op.READ_RESPONSE_MIDDLE, op.UC | op.SEND_MIDDLE])
def test_middles_of_each_path_mtu(opcode: int, mtu: int, step: int, flow: Flow) -> None:
    bodies = [build(opcode, dqpn=7, psn=psn, payload=bytes((psn,)) * mtu) for psn in range(9)]
    bodies.append(build(op.SEND_LAST, dqpn=7, psn=9, payload=b"end"))
    found = split(_frame(flow, bodies, 0xFFFE, step), flow, 0xFFFE, DF)
    assert [part[:-4] for _, part in found] == bodies
    if len(flow.src) == 4:
        assert [ident for ident, _ in found] == [0xFFFE + step * index & 0xFFFF for index in range(10)]


@pytest.mark.parametrize("size", [0, 4, 8, 100, 1000, 4096])
@pytest.mark.parametrize(
    ("opcode", "fields"),
    [
        (op.SEND_ONLY, {}),
        (op.WRITE_ONLY, {"dma_length": None}),
        (op.WRITE_ONLY_IMM, {"dma_length": None}),
        (op.UD | op.SEND_ONLY, {"qkey": 1}),
    ],
)
def test_whole_messages_of_any_size(opcode: int, fields: dict[str, int | None], size: int) -> None:
    given: dict[str, Any] = {name: size if value is None else value for name, value in fields.items()}
    bodies = [build(opcode, dqpn=7, psn=psn, payload=bytes((psn,)) * size, **given) for psn in range(12)]
    found = split(_frame(V4, bodies, 0, 1), V4, 0, DF)
    assert [part[:-4] for _, part in found] == bodies


@pytest.mark.parametrize("opcode", [op.ACKNOWLEDGE, op.READ_REQUEST, op.FETCH_ADD, op.ATOMIC_ACKNOWLEDGE])
def test_packets_without_payload(opcode: int) -> None:
    bodies = [build(opcode, dqpn=7, psn=psn) for psn in range(5)]
    assert [part[:-4] for _, part in split(_frame(V4, bodies, 0, 1), V4, 0, DF)] == bodies


def test_one_wrong_icrc_is_no_such_frame() -> None:
    bodies = [build(op.WRITE_MIDDLE, dqpn=7, psn=psn, payload=bytes(1024)) for psn in range(5)]
    whole = bytearray(_frame(V4, bodies, 0, 1))
    for at in (100, len(whole) - 1):
        spoilt = bytes(whole[:at]) + bytes((whole[at] ^ 1,)) + bytes(whole[at + 1 :])
        assert split(spoilt, V4, 0, DF) == []


@pytest.mark.parametrize("payload", [bytes(16), bytes(31), bytes(32), b"\x5f" * 64, b"\x04" * 65_000])
def test_garbage_is_no_such_frame(payload: bytes) -> None:
    assert split(payload, V4, 0, DF) == []


@pytest.mark.parametrize("filler", [b"\x5a", bytes((op.SEND_ONLY, 0, 0xFF, 0xFF))], ids=["any bytes", "as many BTHs"])
def test_a_wrong_packet_whose_size_is_open_costs_a_few_sums(monkeypatch: pytest.MonkeyPatch, filler: bytes) -> None:
    packet = seal(build(op.SEND_ONLY, dqpn=7, psn=9, payload=filler * (12_000 // len(filler))), V4)
    tried: list[int] = []
    monkeypatch.setattr("rnic.wire.recorded._right", lambda packet, *_: tried.append(len(packet)))
    assert split(packet, V4, 0, DF) == []
    assert len(tried) == len(MTU_CODES) + (0 if len(filler) == 1 else MAX_GUESSES)


def test_segments_are_bounded() -> None:
    bodies = [build(op.ACKNOWLEDGE, dqpn=7, psn=psn) for psn in range(MAX_SEGMENTS + 1)]
    assert split(_frame(V4, bodies, 0, 1), V4, 0, DF) == []
    assert len(split(_frame(V4, bodies[:-1], 0, 1), V4, 0, DF)) == MAX_SEGMENTS
