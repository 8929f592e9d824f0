from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnic.link.base import Link
from rnic.link.fault_rules import PacketFacts
from rnic.link.fault_script import parse_script
from rnic.link.faults import NO_FAULTS, FaultRates, FaultyLink
from rnic.link.loopback import LoopbackLink, loopback_pair
from rnic.link.middleware import Middleware
from rnic.link.udp import UdpLink
from rnic.spec.opcodes import ACKNOWLEDGE, READ_RESPONSE_MIDDLE, SEND_ONLY, WRITE_MIDDLE
from rnic.state.fault_table import COUNTS
from rnic.testing import own_network
from rnic.trace.tracer import ListTracer
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow
from rnic.wire.packet import build, seal

A, B = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
NET = own_network()
SENT: dict[str, object] = {"match": {"direction": "tx"}}
EVERYTHING = FaultRates(drop=0.1, corrupt=0.1, duplicate=0.1, delay=0.1, reorder=0.2, delay_ns=(5, 500), hold_ns=300)


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Pair:
    """Links a and b, of which a's traffic is faulty."""

    def __init__(
        self,
        script: Sequence[Mapping[str, object]] = (),
        tx: FaultRates = NO_FAULTS,
        rx: FaultRates = NO_FAULTS,
        seed: int = 1,
    ) -> None:
        self.clock = Clock()
        self.tracer = ListTracer()
        inner, self.b = loopback_pair(A, B)
        self.a = FaultyLink(
            inner, clock=self.clock, rng=random.Random(seed), tx=tx, rx=rx, script=script, tracer=self.tracer
        )
        self.out = self.a.local_flow(B, self.b.port)
        self.back = self.b.local_flow(A, self.a.port)

    def send(self, *psns: int, opcode: int = SEND_ONLY) -> None:
        """Each packet in a burst of its own."""
        self.a.send([burst_of(self.out, [psn], opcode) for psn in psns])

    def arrived(self) -> list[int]:
        """PSNs at b, negative where the ICRC is wrong."""
        return psns(self.b.receive(1_000))

    def wait(self, now_ns: int) -> None:
        self.clock.now_ns = now_ns
        assert self.a.receive(8) == []


def burst_of(flow: Flow, psns: Sequence[int], opcode: int = SEND_ONLY, size: int = 32) -> TxBurst:
    payload = bytes(size)
    frames = [
        seal(build(opcode, dqpn=17, psn=psn, payload=b"" if opcode == ACKNOWLEDGE else payload), flow, ident)
        for ident, psn in enumerate(psns)
    ]
    return TxBurst(flow, list(frames), len(frames[0]), len(frames), sum(map(len, frames)))


def psns(bursts: Sequence[RxBurst]) -> list[int]:
    out = []
    for burst in bursts:
        assert burst.ident is not None
        for index, start in enumerate(range(0, burst.length, burst.segment)):
            packet = bytes(burst.buf[start : start + burst.segment])
            psn = int.from_bytes(packet[9:12])
            out.append(psn if burst.flow.check(packet, burst.ident + index) else -psn)
    return out


def test_nothing_asked_nothing_done() -> None:
    pair = Pair([{"match": {"psn": 99}, "action": "drop"}])
    burst = burst_of(pair.out, [1, 2, 3])
    sent: list[TxBurst] = []
    pair.a.inner.send = sent.extend  # type: ignore[method-assign, assignment]
    pair.a.send([burst])
    assert sent == [burst]
    assert pair.a.counters == {}
    assert pair.a.next_deadline_ns() is None


@given(st.lists(st.lists(st.integers(0, 1 << 23), min_size=1, max_size=5), max_size=6), st.booleans())
@settings(max_examples=30, deadline=None)
def test_zero_rates_pass_every_burst_unchanged(runs: list[list[int]], with_rule: bool) -> None:
    script = [{"match": {"opcode": "CNP"}, "action": "drop"}] if with_rule else []
    pair = Pair(script)
    sent = [burst_of(pair.out, run) for run in runs]
    pair.a.send(sent)
    got = pair.b.receive(100)
    assert [(bytes(g.buf), g.segment, g.ident) for g in got] == [(b"".join(s.buffers), s.segment, 0) for s in sent]
    pair.b.send([burst_of(pair.back, run) for run in runs])
    assert psns(pair.a.receive(100)) == [psn for run in runs for psn in run]


@pytest.mark.parametrize("runs", [[[1, 2, 3, 4]], [[1], [2], [3], [4]]])
def test_drop_the_third(runs: list[list[int]]) -> None:
    pair = Pair([{"match": {"opcode": "RC_SEND_*", "direction": "tx"}, "nth": 3, "action": "drop"}])
    pair.a.send([burst_of(pair.out, run) for run in runs])
    assert pair.arrived() == [1, 2, 4]
    assert pair.a.counters == {"fault_tx_drop": 1}


@pytest.mark.parametrize(
    ("when", "dropped"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"nth": 2}, [2]),
        ({"every": 3}, [3, 6, 9]),
        ({"nth": 2, "every": 3}, [2, 5, 8]),
        ({"times": 2}, [1, 2]),
        ({"every": 4, "times": 1}, [4]),
        ({"nth": None, "every": None, "times": None}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_which_of_those_that_match(when: dict[str, object], dropped: list[int]) -> None:
    pair = Pair([{"action": "drop", **when}])
    pair.send(*range(1, 10))
    assert pair.arrived() == [psn for psn in range(1, 10) if psn not in dropped]


@pytest.mark.parametrize(
    ("match", "struck"),
    [
        ({}, True),
        ({"opcode": "RC_READ_RESPONSE*"}, True),
        ({"opcode": READ_RESPONSE_MIDDLE}, True),
        ({"opcode": "UC_*"}, False),
        ({"psn": 0x1000}, True),
        ({"psn": [0xFF0, 0x1000]}, True),
        ({"psn": [0xFFFFF0, 0x1000]}, True),
        ({"psn": (0x1001, 0xFFF)}, False),
        ({"dqpn": 17}, True),
        ({"dqpn": [18, 20]}, False),
        ({"length": 32 + 16}, True),
        ({"length": [0, 47]}, False),
        ({"ackreq": False}, True),
        ({"ackreq": True}, False),
        ({"syndrome": 0}, False),
        ({"syndrome": "ACK"}, False),
        ({"direction": "tx"}, True),
        ({"direction": "rx"}, False),
        ({"src": "10.0.0.1", "dst": "10.0.0.2"}, True),
        ({"dst": "::1"}, False),
        ({"psn": 0x1000, "dqpn": 18}, False),
    ],
)
def test_what_matches(match: dict[str, object], struck: bool) -> None:
    pair = Pair([{"match": match, "action": "drop"}])
    pair.send(0x1000, opcode=READ_RESPONSE_MIDDLE)
    assert pair.arrived() == ([] if struck else [0x1000])


@pytest.mark.parametrize(
    ("syndrome", "struck"),
    [
        ("ACK", [0x00, 0x1F]),
        ("RNR_NAK", [0x2E]),
        ("NAK", [0x60, 0x62]),
        (0x62, [0x62]),
    ],
)
def test_syndromes(syndrome: object, struck: list[int]) -> None:
    pair = Pair([{"match": {"syndrome": syndrome}, "action": "drop"}])
    for number, value in enumerate((0x00, 0x1F, 0x2E, 0x60, 0x62)):
        frame = seal(build(ACKNOWLEDGE, dqpn=1, psn=number, syndrome=value), pair.out)
        pair.a.send([TxBurst(pair.out, [frame], len(frame), 1, len(frame))])
    got = [burst.buf[12] for burst in pair.b.receive(9)]
    assert got == [value for value in (0x00, 0x1F, 0x2E, 0x60, 0x62) if value not in struck]


def test_every_7th_ack_is_corrupted() -> None:
    pair = Pair([{"match": {"opcode": "RC_ACKNOWLEDGE"}, "every": 7, "action": "corrupt"}])
    for psn in range(1, 15):
        pair.send(psn, opcode=WRITE_MIDDLE)
        pair.send(psn, opcode=ACKNOWLEDGE)
    got = pair.arrived()
    assert len(got) == 28
    assert pair.a.counters == {"fault_tx_corrupt": 2}


@pytest.mark.parametrize("seed", range(40))
def test_corruption_is_one_bit_that_the_icrc_covers(seed: int) -> None:
    pair = Pair(tx=FaultRates(corrupt=1.0), seed=seed)
    burst = burst_of(pair.out, [5], size=0)
    original = b"".join(burst.buffers)
    pair.a.send([burst])
    (got,) = pair.b.receive(9)
    changed = int.from_bytes(got.buf) ^ int.from_bytes(original)
    assert changed.bit_count() == 1
    assert not pair.out.check(got.buf)
    assert b"".join(burst.buffers) == original, "the sender's memory stays as it was"


@pytest.mark.parametrize(("byte", "xor", "at"), [(12, None, 12), (-1, 1, -1), (13, 0x80, 13), (500, 1, None)])
def test_corrupt_a_given_byte(byte: int, xor: int | None, at: int | None) -> None:
    pair = Pair([{"action": "corrupt", "byte": byte, "xor": xor}])
    burst = burst_of(pair.out, [5])
    expected = bytearray(b"".join(burst.buffers))
    if at is not None:
        expected[at] ^= xor or 0xFF
    pair.a.send([burst])
    assert pair.b.receive(9)[0].buf == expected


def test_duplicate_at_once_and_later() -> None:
    pair = Pair(
        [
            {"match": {"psn": 1}, "action": "duplicate"},
            {"match": {"psn": 2}, "action": "duplicate", "delay_ns": 100},
        ]
    )
    pair.a.send([burst_of(pair.out, [1, 2, 3])])
    assert pair.arrived() == [1, 1, 2, 3]
    assert pair.a.next_deadline_ns() == 100
    pair.wait(99)
    assert pair.arrived() == []
    pair.wait(100)
    assert pair.arrived() == [2]
    assert pair.a.next_deadline_ns() is None


def test_delay_psn_by_3_ms() -> None:
    pair = Pair([{"match": {"psn": 0x1000}, "nth": 1, "action": "delay", "delay_ns": 3_000_000}])
    pair.clock.now_ns = 50
    pair.a.send([burst_of(pair.out, [0xFFF, 0x1000, 0x1001])])
    assert pair.arrived() == [0xFFF, 0x1001]
    assert pair.a.next_deadline_ns() == 3_000_050
    pair.clock.now_ns = 3_000_050
    pair.send(7)
    assert pair.arrived() == [0x1000, 7], "what is due goes first"


def test_equal_delays_keep_their_order() -> None:
    pair = Pair([{"action": "delay", "delay_ns": 10}])
    pair.send(5, 4, 3)
    pair.wait(10)
    assert pair.arrived() == [5, 4, 3]


def test_reorder_behind_two_that_follow() -> None:
    pair = Pair([{"match": {"psn": 1}, "action": "reorder", "behind": 2}])
    pair.a.send([burst_of(pair.out, [1, 2]), burst_of(pair.out, [3, 4])])
    assert pair.arrived() == [2, 3, 1, 4]
    assert pair.a.next_deadline_ns() is None


def test_reorder_does_not_wait_for_ever() -> None:
    pair = Pair([{"match": {"psn": 1}, "action": "reorder", "hold_ns": 70}])
    pair.send(1)
    assert pair.arrived() == []
    assert pair.a.next_deadline_ns() == 70
    pair.wait(70)
    assert pair.arrived() == [1]


def test_the_script_outranks_the_rates() -> None:
    pair = Pair([{"action": "delay", "delay_ns": 7}], tx=FaultRates(delay=1.0, delay_ns=(1_000, 2_000)))
    pair.send(1)
    assert pair.a.next_deadline_ns() == 7
    assert pair.a.counters == {"fault_tx_delay": 1}


@pytest.mark.parametrize("name", ["drop", "corrupt", "duplicate", "delay", "reorder"])
def test_each_rate_strikes_about_as_often_as_asked(name: str) -> None:
    quarter: dict[str, Any] = {name: 0.25}
    always: dict[str, Any] = {name: 1.0}
    pair = Pair(tx=FaultRates(**quarter), rx=FaultRates(**always))
    pair.send(*range(1_000))
    assert 200 < pair.a.counters[f"fault_tx_{name}"] < 300
    pair.b.send([burst_of(pair.back, [1])])
    pair.a.receive(9)
    assert pair.a.counters[f"fault_rx_{name}"] == 1
    assert len(pair.a.counters) == 2


def test_rates_that_change_hold_from_then_on() -> None:
    """What is held back by then comes as it was to; no table says what such a link does."""
    pair = Pair()
    pair.a.set_rates(tx=FaultRates(delay=1.0, delay_ns=(100, 100)))
    pair.send(1)
    pair.a.set_rates(tx=FaultRates(drop=1.0))
    pair.send(2)
    pair.a.set_rates()
    pair.send(3)
    assert pair.arrived() == [3]
    pair.wait(100)
    assert pair.arrived() == [1]
    assert pair.a.counters == {"fault_tx_delay": 1, "fault_tx_drop": 1}
    assert pair.a.table() is None


class TestReceiving:
    def test_faults_of_arriving_bursts(self) -> None:
        pair = Pair(
            [
                {"match": {"direction": "rx", "psn": 2}, "action": "drop"},
                {"match": {"direction": "rx", "psn": 3}, "action": "duplicate"},
                {"match": {"direction": "rx", "psn": 4}, "action": "delay", "delay_ns": 9},
                {"match": {"direction": "rx", "psn": 5}, "action": "corrupt", "byte": 20},
            ]
        )
        pair.b.send([burst_of(pair.back, [1, 2, 3, 4, 5])])
        assert psns(pair.a.receive(100)) == [1, 3, 3, -5]
        assert pair.a.next_deadline_ns() == 9
        pair.clock.now_ns = 9
        assert psns(pair.a.receive(100)) == [4]

    def test_the_limit_holds_and_the_rest_is_ready(self) -> None:
        pair = Pair(rx=FaultRates(duplicate=1.0))
        pair.b.send([burst_of(pair.back, [1, 2, 3])])
        pair.clock.now_ns = 5
        assert psns(pair.a.receive(4)) == [1, 1, 2, 2]
        assert pair.a.next_deadline_ns() == 5
        assert psns(pair.a.receive(4)) == [3, 3]
        assert pair.a.receive(4) == []

    def test_an_empty_answer_means_that_nothing_is_left(self) -> None:
        pair = Pair([{"match": {"psn": [0, 9]}, "action": "drop"}])
        pair.b.send([burst_of(pair.back, [psn]) for psn in range(12)])
        assert psns(pair.a.receive(2)) == [10, 11]

    def test_what_waits_outlives_the_inner_links_buffers(self) -> None:
        memory = bytearray()

        class Reusing(Middleware):
            def receive(self, limit: int) -> list[RxBurst]:
                memory[:] = bytes(len(memory))
                got = self.inner.receive(limit)
                for burst in got:
                    at = len(memory)
                    memory.extend(bytes(burst.buf))
                    burst.buf = memoryview(bytes(memory))[at:]
                return got

        inner, b = loopback_pair(A, B)
        clock = Clock()
        script = [{"match": {"psn": 1}, "action": "delay", "delay_ns": 1}]
        a = FaultyLink(Reusing(inner), clock=clock, rng=random.Random(1), script=script)
        flow = b.local_flow(A, 4791)
        b.send([burst_of(flow, [1, 2])])
        assert psns(a.receive(9)) == [2]
        b.send([burst_of(flow, [3])])
        clock.now_ns = 1
        assert psns(a.receive(9)) == [1, 3]


def run(seed: int, runs: list[list[int]]) -> tuple[list[object], list[int], list[int], dict[str, int]]:
    pair = Pair(tx=EVERYTHING, rx=EVERYTHING, seed=seed, script=[{"every": 5, "action": "drop"}])
    there: list[int] = []
    back: list[int] = []
    for numbers in runs:
        pair.a.send([burst_of(pair.out, numbers)])
        pair.b.send([burst_of(pair.back, numbers)])
        back += psns(pair.a.receive(4))
        there += pair.arrived()
        pair.clock.now_ns += 40
    while (deadline := pair.a.next_deadline_ns()) is not None:
        pair.clock.now_ns = deadline
        back += psns(pair.a.receive(4))
    there += pair.arrived()
    return list(pair.tracer.events), there, back, pair.a.counters.snapshot()


RUNS = st.lists(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=8), max_size=12)


@given(st.integers(0, 1 << 32), RUNS)
@settings(max_examples=20, deadline=None)
def test_same_seed_same_trace(seed: int, runs: list[list[int]]) -> None:
    assert run(seed, runs) == run(seed, runs)


@given(st.integers(0, 1 << 32), RUNS)
@settings(max_examples=30, deadline=None)
def test_what_arrives_is_what_was_sent_less_the_drops_and_more_the_copies(seed: int, runs: list[list[int]]) -> None:
    _, there, back, counters = run(seed, runs)
    sent = sum(map(len, runs))
    for direction, got in (("tx", there), ("rx", back)):
        # A dropped packet may have been told to be duplicated as well.
        least = sent - counters.get(f"fault_{direction}_drop", 0)
        assert least <= len(got) <= least + counters.get(f"fault_{direction}_duplicate", 0)
        assert sum(psn < 0 for psn in got) <= 2 * counters.get(f"fault_{direction}_corrupt", 0)


class UnseenIdents(Middleware):
    """As a UDP socket receives IPv4: whole bursts, and nothing known of their idents."""

    def receive(self, limit: int) -> list[RxBurst]:
        return [
            RxBurst(burst.flow, burst.buf, burst.segment, burst.length, None, burst.frag, burst.tclass, burst.hop_limit)
            for burst in self.inner.receive(limit)
        ]


@pytest.mark.parametrize("count", [1, 2, 15, 16])
@pytest.mark.parametrize("every", [2, 3, 7])
def test_bursts_whose_idents_are_unseen_lose_what_the_script_says(every: int, count: int) -> None:
    inner, other = loopback_pair(A, B)
    rule = {"match": {"direction": "rx"}, "every": every, "action": "drop"}
    link = FaultyLink(UnseenIdents(inner), clock=Clock(), rng=random.Random(1), script=[rule])
    other.send([burst_of(other.local_flow(A, inner.port), list(range(count)), SEND_ONLY)])
    left = [psn for psn in range(count) if (psn + 1) % every]
    got: list[int] = []
    while bursts := link.receive(1_000):
        got += [
            int.from_bytes(burst.buf[start + 9 : start + 12])
            for burst in bursts
            for start in range(0, burst.length, burst.segment)
        ]
    assert got == left


def test_other_seeds_other_faults() -> None:
    runs = [list(range(1, 9))] * 12
    assert run(1, runs)[0] != run(2, runs)[0]


def test_the_tracer_is_told() -> None:
    pair = Pair([{"match": {"psn": 3}, "action": "delay", "delay_ns": 8}])
    pair.clock.now_ns = 77
    pair.send(2, 3)
    (event,) = pair.tracer.events
    assert (event.now_ns, event.stage, event.qpn) == (77, "fault", 17)
    assert event.fields == {"direction": "tx", "action": "delay", "opcode": "RC_SEND_ONLY", "psn": 3, "delay_ns": 8}


def test_foreign_and_short_payloads_only_match_what_they_hold() -> None:
    pair = Pair([{"match": {"psn": [0, 0xFFFFFF]}, "action": "drop"}, {"match": {"length": 3}, "action": "duplicate"}])
    for data in (b"abc", b"\xf0" * 16, b""):
        pair.a.send([TxBurst(pair.out, [data], len(data) or 1, 1, len(data))])
    assert [bytes(burst.buf) for burst in pair.b.receive(9)] == [b"abc", b"abc", b""]
    assert [event.fields["opcode"] for event in pair.tracer.events] == ["short", "0xf0"]


def test_corruption_of_an_empty_payload_changes_nothing() -> None:
    pair = Pair(tx=FaultRates(corrupt=1.0))
    pair.a.send([TxBurst(pair.out, [b"x"], 1, 1, 1)])
    assert len(pair.b.receive(9)[0].buf) == 1


def test_it_stacks_on_itself_and_passes_the_rest_on() -> None:
    inner, b = loopback_pair(A, B)
    clock = Clock()
    late: Link = FaultyLink(
        inner, clock=clock, rng=random.Random(1), script=[{**SENT, "action": "delay", "delay_ns": 5, "times": 1}]
    )
    top: Link = FaultyLink(late, clock=clock, rng=random.Random(2), script=[{**SENT, "nth": 2, "action": "drop"}])
    flow = top.local_flow(B, b.port)
    top.send([burst_of(flow, [1]), burst_of(flow, [2]), burst_of(flow, [3])])
    assert psns(b.receive(9)) == [3]
    assert top.next_deadline_ns() == 5
    clock.now_ns = 5
    assert top.receive(9) == []
    assert psns(b.receive(9)) == [1]
    assert (top.address, top.port, top.mtu) == (inner.address, inner.port, inner.mtu)
    assert (top.window_bytes, top.window_packets) == (inner.window_bytes, inner.window_packets)
    assert (top.fileno(), top.filenos(), top.max_segments(flow)) == (None, [], 64)
    top.allow_gso(flow)
    top.join(bytes([239, 0, 0, 1]))
    b.send([burst_of(b.local_flow(bytes([239, 0, 0, 1]), 4791), [9])])
    assert psns(top.receive(9)) == [9]
    top.leave(bytes([239, 0, 0, 1]))
    top.close()
    assert isinstance(inner, LoopbackLink)
    b.send([burst_of(b.local_flow(A, 4791), [9])])
    assert b.counters["drop_tx_unreachable"] == 1


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"drop": 1.5}, "fault rate drop=1.5 is not a probability: give 0 to 1"),
        ({"reorder": -0.1}, "fault rate reorder=-0.1 is not a probability"),
        ({"delay_ns": (5, 1)}, r"fault rate delay_ns=\(5, 1\) is not a range"),
        ({"behind": 0}, "fault rate behind=0 lets nothing overtake"),
        ({"hold_ns": -1}, "fault rate hold_ns=-1 lies in the past"),
    ],
)
def test_bad_rates(rates: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FaultRates(**rates)  # type: ignore[arg-type]


RULE = {"action": "drop"}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (RULE, "a fault script is a list of rules, not dict"),
        ("drop", "a fault script is a list of rules, not str"),
        ([RULE, 5], "fault rule 2 is 5; allowed: a dictionary such as"),
        ([RULE, {"action": "dorp"}], "rule 2: action is 'dorp'; allowed: one of drop, corrupt, duplicate, delay"),
        ([{}], "fault rule 1: action is None; allowed: one of drop"),
        ([{**RULE, "delay_ns": 5}], "fault rule 1: unknown key 'delay_ns'; allowed: match, nth, every, probability"),
        ([{**RULE, "nth": 0}], "fault rule 1: nth is 0; allowed: a whole number from 1"),
        ([{**RULE, "every": "2"}], "fault rule 1: every is '2'; allowed: a whole number from 1"),
        ([{**RULE, "times": True}], "fault rule 1: times is True"),
        ([{"action": "delay"}], "fault rule 1: delay_ns is None; allowed: nanoseconds, such as 3_000_000"),
        ([{"action": "delay", "delay_ns": -1}], "fault rule 1: delay_ns is -1; allowed: a whole number from 0"),
        ([{"action": "corrupt", "xor": 256}], "fault rule 1: xor is 256; allowed: 1 to 255"),
        ([{"action": "reorder", "behind": 0}], "fault rule 1: behind is 0; allowed: 1 to 65536"),
        ([{**RULE, "match": 3}], "fault rule 1: match is 3; allowed: a dictionary with keys of direction, opcode"),
        ([{**RULE, "match": {"qpn": 3}}], "fault rule 1: match: unknown key 'qpn'; allowed: direction, opcode, psn"),
        ([{**RULE, "match": {"direction": "up"}}], "fault rule 1: direction is 'up'; allowed: one of tx, rx"),
        ([{**RULE, "match": {"opcode": "RC_RAED*"}}], r"rule 1: opcode is 'RC_RAED\*'; allowed: a pattern"),
        ([{**RULE, "match": {"opcode": 256}}], "fault rule 1: opcode is 256; allowed: 0 to 255"),
        ([{**RULE, "match": {"psn": 1 << 24}}], "psn is 16777216; allowed: a whole number from 0 to 0xffffff"),
        ([{**RULE, "match": {"psn": [1, 2, 3]}}], r"psn is \[1, 2, 3\]; allowed: a number or \[low, high\]"),
        ([{**RULE, "match": {"dqpn": [5, 4]}}], r"dqpn is \[5, 4\]; allowed: \[low, high\] with low <= high"),
        ([{**RULE, "match": {"length": "x"}}], "fault rule 1: length is 'x'; allowed: 0 to 65535"),
        ([{**RULE, "match": {"ackreq": 1}}], "fault rule 1: ackreq is 1; allowed: true or false"),
        ([{**RULE, "match": {"syndrome": "NACK"}}], "syndrome is 'NACK'; allowed: 0 to 255, one of ACK, RNR_NAK, NAK"),
        ([{**RULE, "match": {"src": "host"}}], "fault rule 1: src: address 'host' is not an IPv4 or IPv6 address"),
    ],
)  # fmt: skip
def test_bad_rules_are_refused_in_one_line(script: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Pair(script)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", [{"action": "delay", "delay_ns": 1_000}, {"action": "reorder", "behind": 1_000}])
def test_what_is_held_back_is_bounded(rule: Mapping[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.link.faults.MAX_HELD", 3)
    pair = Pair([rule])
    pair.send(*range(10))
    assert pair.a.counters["fault_tx_full"] == 7
    pair.wait(10_000_000)
    assert pair.arrived() == [0, 1, 2]


def test_a_late_copy_that_finds_no_room_costs_the_copy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.link.faults.MAX_HELD", 1)
    pair = Pair([{"action": "duplicate", "delay_ns": 1_000}])
    pair.send(0, 1)
    assert pair.arrived() == [0, 1]
    pair.wait(1_000)
    assert pair.arrived() == [0]
    assert pair.a.counters["fault_tx_full"] == 1


def test_a_probability_strikes_its_part_and_repeats_by_the_seed() -> None:
    def struck(seed: int) -> list[bool]:
        rule = {"match": {"direction": "rx"}, "probability": 0.25, "action": "drop"}
        facts = PacketFacts(bytes(16), "rx", Flow(bytes(4), bytes(4), 1, 2))
        own, of_link = parse_script([{**rule, "seed": seed}, rule], seed + 1).rules
        assert [own.strikes(facts) for _ in range(99)] != [of_link.strikes(facts) for _ in range(99)]
        return [of_link.strikes(facts) for _ in range(4000)]

    assert struck(1) == struck(1) != struck(2)
    assert 900 < sum(struck(1)) < 1100


def packet_to(dqpn: int) -> bytes:
    return bytes([SEND_ONLY, 0, 0, 0]) + dqpn.to_bytes(4) + bytes(8)


WHEN: list[dict[str, object]] = [{"nth": 3}, {"every": 2}, {"nth": 2, "every": 3}, {"probability": 0.5}, {"times": 2}]


@given(st.lists(st.tuples(st.sampled_from(["tx", "rx"]), st.integers(1, 3)), max_size=60), st.sampled_from(WHEN))
@settings(deadline=None)
def test_others_packets_change_nothing(packets: list[tuple[str, int]], when: dict[str, object]) -> None:
    """What strikes one direction of one queue pair is the same, however packets of others lie between."""

    def struck(packets: list[tuple[str, int]]) -> list[bool]:
        (rule,) = parse_script([{"action": "drop", **when}], 5).rules
        return [rule.strikes(PacketFacts(packet_to(dqpn), way, Flow(A, B, 1, 2))) for way, dqpn in packets]

    together = struck(packets)
    for each in set(packets):
        assert [what for what, packet in zip(together, packets, strict=True) if packet == each] == struck(
            [packet for packet in packets if packet == each]
        )


def test_an_event_counts_the_packets_of_the_whole_device() -> None:
    (rule,) = parse_script([{"nth": 3, "action": "port-down", "for": "1ms"}]).rules
    assert [rule.strikes(PacketFacts(packet_to(dqpn), "rx", Flow(A, B, 1, 2))) for dqpn in (1, 2, 3, 4)] == [
        *(False, False, True, False)
    ]


def test_counts_that_find_no_place_take_that_of_another() -> None:
    (rule,) = parse_script([{"nth": 2, "action": "drop"}]).rules
    flow = Flow(A, B, 1, 2)
    numbers = range(COUNTS + COUNTS // 2)
    for dqpn in numbers:
        assert not rule.strikes(PacketFacts(packet_to(dqpn), "rx", flow)), "each is the first of its queue pair"
    again = [rule.strikes(PacketFacts(packet_to(dqpn), "rx", flow)) for dqpn in reversed(numbers)]
    assert 0 < sum(again) <= COUNTS, "no more are remembered than there are places"


@pytest.mark.parametrize("way", [None, "tx", "rx"])
def test_what_a_device_sends_to_itself_is_judged_once(way: str | None) -> None:
    rule = {"match": {"direction": way} if way else {}, "every": 5, "action": "drop"}
    with contextlib.closing(UdpLink(f"{NET}.61", 0)) as inner:
        link = FaultyLink(inner, clock=Clock(), rng=random.Random(1), script=[rule])
        link.send([burst_of(link.local_flow(link.address, link.port), [psn], SEND_ONLY) for psn in range(20)])
        got = 0
        for _ in range(20):
            got += len(link.receive(20))
    assert got == 16
    assert link.counters.get(f"fault_{way or 'rx'}_drop", 0) == 4


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"probability": 0}, "probability is 0; allowed: a number above 0 and at most 1"),
        ({"probability": 1.5}, "probability is 1.5; allowed"),
        ({"probability": True}, "probability is True; allowed"),
        ({"probability": 0.5, "every": 2}, "probability goes with neither nth nor every"),
        ({"probability": 0.5, "seed": -1}, "seed is -1; allowed: a whole number from 0"),
        ({"every": 2, "seed": 1}, "seed goes with probability alone"),
    ],
)
def test_bad_probabilities_are_refused(rule: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_script([{**rule, "action": "drop"}])
