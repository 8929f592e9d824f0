"""ICRC policy: known idents, guessed idents, solved idents, IPv6."""

from __future__ import annotations

import pytest

from rnic.device import icrc
from rnic.device.icrc import IcrcCheck
from rnic.spec.opcodes import RC, SEND_ONLY
from rnic.trace.counters import Counters
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow
from rnic.wire.packet import build, seal

FLOW4 = Flow(bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)), 4791)
FLOW6 = Flow(bytes(15) + b"\1", bytes(15) + b"\2", 4791)


def packet(flow: Flow, ident: int = 0, psn: int = 1) -> memoryview:
    frame = build(RC | SEND_ONLY, dqpn=20, psn=psn, payload=b"payload!")
    return memoryview(seal(frame, flow, ident))


def burst(flow: Flow, data: memoryview, ident: int | None = None, frag: int = 0x4000) -> RxBurst:
    return RxBurst(flow, data, len(data), len(data), ident, frag)


@pytest.mark.parametrize("ident", [0, 1, 63, 64, 40_000, 65_535])
def test_known_ident(ident: int) -> None:
    check = IcrcCheck(Counters())
    data = packet(FLOW4, ident)
    assert check.accepts(data, burst(FLOW4, data, ident), 0, 0)
    assert check.accepts(data, burst(FLOW4, data, (ident - 3) & 0xFFFF), 3, 0)
    assert not check.accepts(data, burst(FLOW4, data, ident ^ 1), 0, 0)
    assert check.solved == 0


def test_known_frag_word_is_covered() -> None:
    frame = build(RC | SEND_ONLY, dqpn=20, psn=1, payload=b"payload!")
    data = memoryview(bytes(frame) + FLOW4.icrc(frame, 5, 0).to_bytes(4, "little"))
    check = IcrcCheck(Counters())
    assert check.accepts(data, burst(FLOW4, data, 5, 0), 0, 0)
    assert not check.accepts(data, burst(FLOW4, data, 5), 0, 0)


@pytest.mark.parametrize("index", [0, 5, 63])
def test_segment_index_is_guessed(index: int) -> None:
    check = IcrcCheck(Counters())
    data = packet(FLOW4, index)
    assert check.accepts(data, burst(FLOW4, data), index, 0)
    assert check.solved == 0


def test_counting_peer_is_solved_for() -> None:
    check, flow = IcrcCheck(Counters()), fresh(FLOW4)
    for ident in range(1_000, 1_020):
        data = packet(flow, ident)
        assert check.accepts(data, burst(flow, data), 0, 0)
    assert check.solved == 1, "the next ones are guessed"
    # its habit is known now: an ident far away is no longer believed
    data = packet(flow, 30_000)
    assert not check.accepts(data, burst(flow, data), 0, 0)


def test_index_beyond_the_seeds() -> None:
    check, flow = IcrcCheck(Counters()), fresh(FLOW4)
    data = packet(flow, 200)
    assert check.accepts(data, burst(flow, data), 200, 0)


@pytest.mark.parametrize("flow", [FLOW4, FLOW6])
@pytest.mark.parametrize("ident", [0, None])
def test_any_flipped_bit_is_seen(flow: Flow, ident: int | None) -> None:
    check, flow = IcrcCheck(Counters()), fresh(flow)
    good = packet(flow)
    assert check.accepts(good, burst(flow, good, ident), 0, 0)
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        view = memoryview(bad)
        if bit // 8 == 4:  # FECN, BECN and the reserved bits are not covered
            assert check.accepts(view, burst(flow, view, ident), 0, 0)
        else:
            assert not check.accepts(view, burst(flow, view, ident), 0, 0), bit


def fresh(flow: Flow) -> Flow:
    return flow.reverse().reverse()


def test_a_peer_of_ident_0_is_believed_no_other() -> None:
    """Any of 2^17 header words makes a damaged packet look right; of those only 64 idents are its habit."""
    check, flow = IcrcCheck(Counters()), fresh(FLOW4)
    good = packet(flow)
    assert check.accepts(good, burst(flow, good), 0, 0)
    taken = []
    for ident in range(0, 65_536, 61):
        forged = packet(flow, ident, psn=2 + ident)  # as damage looks that 2^-15 let through
        if check.accepts(forged, burst(flow, forged), 0, 0):
            taken.append(ident)
        assert check.accepts(good, burst(flow, good), 0, 0)
    assert taken == [0, 61]


def test_a_held_packet_is_in_memory_of_its_own_with_what_was_solved_for() -> None:
    check, flow = IcrcCheck(Counters()), fresh(FLOW4)
    good = packet(flow)
    assert check.accepts(good, burst(flow, good), 0, 0)
    data = bytearray(packet(flow, 40_000, psn=2))
    how = RxBurst(flow, memoryview(data), len(data), len(data), None, tclass=2, hop_limit=7)
    assert not check.accepts(memoryview(data), how, 0, 0)
    assert not flow.settled
    kept, data[:] = bytes(data), bytes(len(data))
    after = packet(flow, 40_001, psn=3)
    assert check.accepts(after, burst(flow, after), 0, 0)
    (held,) = check.confirmed
    assert held.packet == kept
    one = held.burst
    assert (one.ident, one.frag, one.tclass, one.hop_limit) == (40_000, 0x4000, 2, 7)
    assert check.accepts(held.packet, one, 0, 0)


def test_what_all_senders_have_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icrc, "MAX_HELD", 3)
    check = IcrcCheck(Counters())
    flows = [Flow(bytes((10, 0, 1, number)), bytes((10, 0, 0, 2)), 4791) for number in range(4)]

    def give(flow: Flow, ident: int) -> bool:
        data = packet(flow, ident, psn=ident)
        return check.accepts(data, burst(flow, data), 0, 0)

    for flow in flows:
        assert give(flow, 30_000)
        assert not give(flow, 50_000)
    assert not give(flows[0], 50_001), "the packet that it would confirm has been forgotten, and now the next is"
    assert [give(flow, 50_001) for flow in flows[:0:-1]] == [True, True, False]


def test_paths_of_one_pair_of_addresses_share_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    check = IcrcCheck(Counters())
    flows = [Flow(FLOW4.src, FLOW4.dst, 50_000 + number) for number in range(100)]
    for turn in range(3):
        for number, flow in enumerate(flows):
            data = packet(flow, 30_000 + 100 * turn + number)
            assert check.accepts(data, burst(flow, data), 0, 0)
    stranger = Flow(bytes((10, 0, 0, 9)), FLOW4.dst, 50_000)
    for ident in (100, 101):
        data = packet(stranger, ident)
        assert check.accepts(data, burst(stranger, data), 0, 0)
    assert len(check.pairs) == 2
    monkeypatch.setattr(icrc, "MAX_PAIRS", 2)
    other = Flow(bytes((10, 0, 0, 8)), FLOW4.dst, 50_000)
    data = packet(other, 100)
    assert check.accepts(data, burst(other, data), 0, 0)
    assert len(check.pairs) == 1


def test_nothing_is_kept_of_who_sends_what_is_wrong() -> None:
    check, flow = IcrcCheck(Counters()), fresh(FLOW4)
    bad = memoryview(bytes(packet(flow))[:-1] + b"\x5a")
    assert not check.accepts(bad, burst(flow, bad), 0, 0)
    assert flow.idents is None
