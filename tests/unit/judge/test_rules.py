"""Single rules: what proves that they are broken, and what looks like it and is not."""

from __future__ import annotations

import struct
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rnic.judge import Finding, Judge
from rnic.judge.connections import path_text
from rnic.spec import opcodes as op
from rnic.spec.psn import PSN_MASK
from rnic.spec.syndromes import NAK_PSN_SEQUENCE, NAK_REMOTE_OPERATION
from rnic.wire.crc import crc32
from rnic.wire.ethernet import Ethernet
from rnic.wire.flow import Flow
from rnic.wire.infiniband import Grh, IbFlow, Lrh
from rnic.wire.ip import IPv4, ip_packet
from rnic.wire.mad import GSI_QKEY, MAD_BYTES
from rnic.wire.opcode import NOT_DECODED, OPCODES
from rnic.wire.packet import build, seal

CLIENT, SERVER = bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2))
ASK, REPLY = Flow(CLIENT, SERVER, 50_000), Flow(SERVER, CLIENT, 50_000)
SEND, READ, ACK = op.SEND_ONLY, op.READ_REQUEST, op.ACKNOWLEDGE
ATOMIC = op.FETCH_ADD


class Court:
    """Return a judge of a client that counts idents and asks QP 17, and of a server that answers QP 16."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self.judge = Judge(self.found.append)
        self.ident = 1_000

    def ask(self, opcode: int, psn: int, flow: Flow = ASK, dqpn: int = 17, ident: int = -1, **more: Any) -> None:
        if ident < 0:
            ident = self.ident = self.ident + 1
        self._see(flow, build(opcode, dqpn=dqpn, psn=psn & PSN_MASK, **more), ident)

    def reply(self, psn: int, opcode: int = ACK, msn: int = 0, syndrome: int = 0x1F, **more: Any) -> None:
        self._see(REPLY, build(opcode, dqpn=16, psn=psn, msn=msn, syndrome=syndrome, **more), 0)

    def raw(self, body: bytearray, flow: Flow = ASK) -> None:
        self._see(flow, body, 0)

    def _see(self, way: Flow, body: bytearray, ident: int) -> None:
        packet = ip_packet(way, seal(body, way, ident), ident)
        self.judge.frame(0, 101, packet, len(packet))

    def rules(self) -> list[str]:
        self.judge.finish()
        return [finding.rule for finding in self.found]

    def facts(self) -> Counter[str]:
        return sum((stream.facts.counts for stream in self.judge.streams()), Counter())


# ---------------------------------------------------------------------------------------- the order of PSNs


def test_a_psn_far_ahead_that_the_stream_does_not_follow() -> None:
    court = Court()
    court.ask(SEND, 7)
    court.ask(op.SEND_FIRST, 1008, payload=bytes(1024))
    for psn in range(8, 12):
        court.ask(SEND, psn)
    assert court.rules() == ["psn-order"]
    assert court.found[0].frame == 2
    assert court.found[0].detail == "PSN 1008 was sent between 7 and 8 (idents 1001 to 1003)"
    for psn in range(12, 1020):
        court.ask(SEND, psn)
    assert court.rules() == ["psn-order"]  # nothing repeats what nobody expected


def test_a_wrong_psn_in_the_place_of_the_one_that_was_due() -> None:
    court = Court()
    court.ask(SEND, 7)
    court.ask(op.SEND_FIRST, 1008, payload=bytes(1024))
    court.ask(op.SEND_MIDDLE, 9, payload=bytes(1024))
    court.ask(op.SEND_LAST, 10, payload=bytes(1))
    assert court.rules() == ["psn-order"]
    assert court.found[0].detail == "PSN 1008 was sent between 7 and 9 (idents 1001 to 1003)"


@pytest.mark.parametrize(("nak", "rules"), [(False, ["psn-order"]), (True, [])])
def test_a_message_that_goes_on_far_behind_its_first_packet(nak: bool, rules: list[str]) -> None:
    """Without idents the message itself says so, unless a NAK asked for what follows."""
    court = Court()
    court.ask(SEND, 7, ident=0)
    court.ask(op.SEND_FIRST, 1008, payload=bytes(1024), ident=0)
    if nak:
        court.reply(7, msn=1)
        court.reply(9, msn=1, syndrome=0x60)
    court.ask(op.SEND_MIDDLE, 9, payload=bytes(1024), ident=0)
    court.ask(op.SEND_LAST, 10, payload=bytes(1), ident=0)
    assert court.rules() == rules


def test_two_psns_that_changed_places() -> None:
    court = Court()
    for psn in (7, 9, 8, 10, 11):
        court.ask(SEND, psn)
    assert court.rules() == ["psn-order"]
    assert court.found[0].frame == 2


def test_two_psns_that_changed_places_behind_a_read() -> None:
    court = Court()
    court.ask(op.SEND_FIRST, 7, payload=bytes(1024))
    court.ask(op.SEND_LAST, 8, payload=bytes(1))
    court.ask(op.READ_REQUEST, 9, va=0, rkey=1, dma_length=3000)
    for psn in (13, 12, 14):
        court.ask(SEND, psn)
    assert court.rules() == ["psn-order"]
    assert court.found[0].detail == "PSN 13 was sent between 9 and 12 (idents 1003 to 1005)"


def test_what_was_lost_before_the_capture_is_no_wrong_order() -> None:
    court = Court()
    court.ask(SEND, 7)
    court.ident += 1  # PSN 8 was sent, and did not come so far
    for psn in (9, 8, 9, 10):
        court.ask(SEND, psn)
    assert court.rules() == []


def test_what_a_sender_drops_itself_and_repeats_is_no_wrong_order() -> None:
    court = Court()
    for psn in (7, 9, 8, 9, 10):  # PSN 8 never got an ident, as where faults are injected
        court.ask(SEND, psn)
    assert court.rules() == []


def test_a_nak_explains_why_a_psn_comes_late() -> None:
    court = Court()
    court.ask(SEND, 7)
    court.ask(SEND, 9)
    court.reply(7, msn=1)
    court.reply(8, msn=1, syndrome=0x60)
    court.ask(SEND, 8)
    court.ask(SEND, 10)
    assert "psn-order" not in court.rules()


def test_idents_that_are_places_in_a_burst_tell_no_order() -> None:
    court = Court()
    for ident, psn in enumerate((7, 9, 8, 10)):
        court.ask(SEND, psn, ident=ident)
    assert court.rules() == []


def test_a_packet_of_a_message_that_went_to_another_queue_pair() -> None:
    court = Court()
    court.ask(op.SEND_FIRST, 7, payload=bytes(1024))
    court.ask(op.SEND_MIDDLE, 8, payload=bytes(1024), dqpn=99)
    court.ask(op.SEND_LAST, 9, payload=bytes(1))
    assert court.rules() == ["queue-pair"]
    assert court.found[0].frame == 2
    assert court.found[0].detail == "RC_SEND_MIDDLE with PSN 8, which 192.0.2.1 -> 192.0.2.2 QP 17 lacks"


def test_a_gap_and_another_connection_that_the_capture_begins_in() -> None:
    court = Court()
    court.ask(op.SEND_FIRST, 7, payload=bytes(1024))
    court.ask(op.SEND_MIDDLE, 500, payload=bytes(1024), dqpn=99)
    court.ident += 1
    court.ask(op.SEND_LAST, 9, payload=bytes(1))
    assert court.rules() == []


# ------------------------------------------------------------------------ what all packets of a connection share


def test_a_source_port_that_changes_and_stays() -> None:
    court = Court()
    other = Flow(CLIENT, SERVER, 50_001)
    for psn in range(8):
        court.ask(SEND, psn, flow=ASK if psn < 4 else other)
    assert court.rules() == ["source-port"]
    assert court.found[0].detail == "source port 50001, and 50000 before"


def test_another_connection_on_the_same_numbers_may_have_another_port() -> None:
    court = Court()
    other = Flow(CLIENT, SERVER, 50_001)
    for psn in range(4):
        court.ask(SEND, psn)
    for psn in range(1 << 20, (1 << 20) + 4):
        court.ask(SEND, psn, flow=other, migreq=False)
    assert court.rules() == []


def test_migreq_that_changes() -> None:
    court = Court()
    for psn in range(4):
        court.ask(SEND, psn, migreq=psn < 2)
    assert court.rules() == ["migreq"]


def test_migreq_may_be_0() -> None:
    court = Court()
    for psn in range(4):
        court.ask(SEND, psn, migreq=False)
    assert court.rules() == []


# ------------------------------------------------------------------------------------------------- datagrams


def _mad(base: int = 1, management: int = 7, version: int = 2) -> bytes:
    return bytes((base, management, version, 3)) + bytes(MAD_BYTES - 4)


@pytest.mark.parametrize(
    ("qkey", "mad", "rules"),
    [
        (GSI_QKEY, _mad(), []),
        (GSI_QKEY, _mad(management=4, version=1), []),
        (GSI_QKEY + 1, _mad(), ["gsi-qkey"]),
        (GSI_QKEY, _mad(base=2), ["mad-version"]),
        (GSI_QKEY, _mad(version=1), ["mad-version"]),
    ],
)
def test_management_datagrams(qkey: int, mad: bytes, rules: list[str]) -> None:
    court = Court()
    court.ask(op.UD | SEND, 1, dqpn=1, qkey=qkey, payload=mad)
    assert court.rules() == rules


# ---------------------------------------------------------------------------------- what follows a peer's oddity


def test_one_wrong_msn_makes_no_right_one_wrong() -> None:
    court = Court()
    for psn, msn in ((0, 1), (1, 2), (2, 7), (3, 4), (4, 5)):
        court.ask(SEND, psn)
        court.reply(psn, msn=msn)
    assert court.rules() == ["msn"]
    assert court.found[0].frame == 6


@pytest.mark.parametrize("msn", [1, 2])
def test_a_read_that_fails_may_count_from_its_beginning_on(msn: int) -> None:
    """Linux and this NIC count it with its first packet; its memory may be gone when the responses are made."""
    court = Court()
    court.ask(SEND, 0)
    court.reply(0, msn=1)
    court.ask(READ, 1, va=0x1000, rkey=1, dma_length=1024)
    court.reply(1, msn=msn, syndrome=NAK_REMOTE_OPERATION)
    assert court.rules() == []


def test_an_atomic_that_fails_counts_nothing() -> None:
    court = Court()
    court.ask(SEND, 0)
    court.reply(0, msn=1)
    court.ask(ATOMIC, 1, va=0x1000, rkey=1)
    court.reply(1, msn=2, syndrome=NAK_REMOTE_OPERATION)
    assert court.rules() == ["msn"]


def test_a_count_that_is_wrong_from_somewhere_on_is_said_once() -> None:
    court = Court()
    for psn, msn in ((0, 1), (1, 2), (2, 4), (3, 5), (4, 6), (5, 7)):
        court.ask(SEND, psn)
        court.reply(psn, msn=msn)
    assert court.rules() == ["msn"]


def test_a_probe_for_the_first_response_of_a_read_repeats_it_in_part() -> None:
    """IBA 9.4.4: a READ that is repeated may ask for a part of what it was; so it may before the path MTU is known."""
    court = Court()
    court.ask(READ, 0, va=0x1000, rkey=1, dma_length=8192)
    court.ask(READ, 8, va=0x9000, rkey=1, dma_length=8192)
    court.ask(READ, 0, va=0x1000, rkey=1, dma_length=1024)
    court.ask(READ, 1, va=0x1400, rkey=1, dma_length=7168)
    assert court.rules() == []


def test_a_repeated_part_is_known_once_the_path_mtu_is() -> None:
    """The rest of a READ looks like another one until a response says how many bytes a packet has."""
    court = Court()
    court.ask(READ, 0, va=0x1000, rkey=1, dma_length=1028)
    court.ask(READ, 0, va=0x1000, rkey=1, dma_length=512)
    court.ask(READ, 1, va=0x1200, rkey=1, dma_length=516)
    court.reply(0, op.READ_RESPONSE_FIRST, msn=1, payload=bytes(512))
    court.reply(1, op.READ_RESPONSE_MIDDLE, payload=bytes(512))
    court.reply(2, op.READ_RESPONSE_LAST, msn=1, payload=bytes(4))
    assert court.rules() == []


@pytest.mark.parametrize(("psn", "rules"), [(3, []), (1 << 23, ["psn-jump"]), (40_000, ["psn-jump"])])
def test_a_copy_that_comes_very_late_was_sent_before(psn: int, rules: list[str]) -> None:
    """It is longer ago than a stream remembers packets; a PSN that was never used is no copy's."""
    court = Court()
    for number in range(20_000):
        court.ask(SEND, number)
    for late in (psn, 20_000):
        court.ask(SEND, late)
    assert court.rules() == rules
    assert court.facts()["late packets"] == (not rules)


def test_two_late_copies_in_a_row_are_no_new_connection() -> None:
    court = Court()
    for number in range(20_000):
        court.ask(SEND, number)
    court.reply(19_999, msn=20_000)
    for psn in (3, 4000, 20_000):
        court.ask(SEND, psn)
    court.reply(20_000, msn=20_001)
    assert court.rules() == []
    assert court.facts()["new connections on used numbers"] == 0


def test_a_read_far_behind_the_newest_request_is_asked_for_again() -> None:
    """The first of two READs, whose 12,288 PSNs are more than the packets that a stream remembers at least."""
    court = Court()
    court.ask(READ, 0, va=0, rkey=1, dma_length=4 << 20)
    court.ask(READ, 4096, va=0, rkey=1, dma_length=8 << 20)
    court.reply(0, op.READ_RESPONSE_FIRST, msn=1, payload=bytes(1024))
    court.ask(READ, 12_288, va=0, rkey=1, dma_length=1024)
    court.ask(READ, 1, va=1024, rkey=1, dma_length=(4 << 20) - 1024)
    court.ask(SEND, 12_289)
    assert court.rules() == []
    assert court.facts()["new connections on used numbers"] == 0


def test_what_is_refused_within_a_read_is_asked_for_again() -> None:
    """The READ was lost, and a part of it that was asked for alone was carried out."""
    court = Court()
    court.ask(op.SEND_FIRST, 0, payload=bytes(1024))
    court.ask(op.SEND_LAST, 1)
    court.reply(1, msn=1)
    court.ask(READ, 2, va=0x1000, rkey=1, dma_length=3072)
    court.ask(READ, 2, va=0x1000, rkey=1, dma_length=1024)
    court.reply(2, op.READ_RESPONSE_ONLY, msn=2, payload=bytes(1024))
    court.ask(SEND, 5)
    court.reply(3, msn=2, syndrome=NAK_PSN_SEQUENCE)
    court.ask(READ, 3, va=0x1400, rkey=1, dma_length=2048)
    court.reply(4, op.READ_RESPONSE_LAST, msn=3, payload=bytes(1024))
    assert "ack-gap" not in court.rules()


def test_a_changed_repeated_read_is_reported_with_its_parameters() -> None:
    court = Court()
    court.ask(READ, 0, va=0x1000, rkey=1, dma_length=8192)
    court.ask(READ, 8, va=0x9000, rkey=1, dma_length=8192)
    court.ask(READ, 0, va=0x2000, rkey=1, dma_length=1024)
    assert court.rules() == ["read-retry"]
    assert "1024 bytes at 0x2000, key 0x1; the rest is 8192 bytes at 0x1000, key 0x1" in court.found[0].detail


@pytest.mark.parametrize(
    ("first", "again", "words"),
    [
        (
            (op.WRITE_ONLY, {"va": 8, "rkey": 2, "dma_length": 4, "payload": b"abcd"}),
            (op.WRITE_ONLY, {"va": 16, "rkey": 2, "dma_length": 4, "payload": b"abcd"}),
            ("of 4 bytes to 0x10, key 0x2, 4 in all", "of 4 bytes to 0x8, key 0x2, 4 in all in frame 1"),
        ),
        (
            (op.FETCH_ADD, {"va": 8, "rkey": 2, "swap_add": 1}),
            (op.FETCH_ADD, {"va": 8, "rkey": 2, "swap_add": 3}),
            ("at 0x8, key 0x2, 0x3, 0x0", "at 0x8, key 0x2, 0x1, 0x0 in frame 1"),
        ),
        (
            (op.SEND_ONLY_IMM, {"imm": 1}),
            (op.SEND_ONLY_IMM, {"imm": 2}),
            ("of 0 bytes, word 00000002", "of 0 bytes, word 00000001 in frame 1"),
        ),
    ],
)
def test_a_repetition_with_other_headers_is_said_with_them(
    first: tuple[int, dict[str, Any]], again: tuple[int, dict[str, Any]], words: tuple[str, str]
) -> None:
    court = Court()
    court.ask(first[0], 0, **first[1])
    court.ask(again[0], 0, **again[1])
    assert court.rules() == ["repeat"]
    for each in words:
        assert each in court.found[0].detail


# ------------------------------------------------------------------------------------- FLUSH and ATOMIC WRITE

FLUSH, ATOMIC_WRITE = op.FLUSH, op.ATOMIC_WRITE
FLUSHED: dict[str, Any] = {"va": 64, "rkey": 2, "dma_length": 4096, "feth": op.PLACEMENT_GLOBAL}
WRITTEN: dict[str, Any] = {"va": 64, "rkey": 2, "dma_length": 8, "payload": bytes(8)}


def test_both_are_answered_by_a_read_response() -> None:
    court = Court()
    court.ask(FLUSH, 0, **FLUSHED)
    court.ask(ATOMIC_WRITE, 1, **WRITTEN)
    court.ask(SEND, 2, ackreq=True)
    court.reply(0, op.READ_RESPONSE_ONLY, msn=1)
    court.ask(ATOMIC_WRITE, 1, **WRITTEN)
    court.reply(1, op.READ_RESPONSE_ONLY, msn=2)
    court.reply(2, msn=3)
    assert court.rules() == []


@pytest.mark.parametrize(("opcode", "fields"), [(FLUSH, FLUSHED), (ATOMIC_WRITE, WRITTEN)])
def test_other_answers_are_wrong(opcode: int, fields: dict[str, Any]) -> None:
    court = Court()
    court.ask(opcode, 0, **fields)
    court.reply(0, msn=1)
    assert court.rules() == ["read-as-ack"]
    court = Court()
    court.ask(opcode, 0, **fields)
    court.reply(0, op.READ_RESPONSE_ONLY, msn=1, payload=bytes(8))
    assert court.rules() == ["read-size"]


@pytest.mark.parametrize(
    ("over", "rule"), [({"va": 4}, "atomic-aligned"), ({"dma_length": 16}, "size"), ({"payload": bytes(4)}, "size")]
)
def test_an_atomic_write_has_eight_aligned_bytes(over: dict[str, Any], rule: str) -> None:
    court = Court()
    court.ask(ATOMIC_WRITE, 0, **(WRITTEN | over))
    assert court.rules() == [rule]


def test_a_flush_that_is_repeated_is_the_same() -> None:
    court = Court()
    court.ask(FLUSH, 0, **FLUSHED)
    court.ask(FLUSH, 0, **(FLUSHED | {"va": 8}))
    assert court.rules() == ["repeat"]
    assert "at 0x8, key 0x2, 4096 in all" in court.found[0].detail


# ------------------------------------------------------------------------------------------------------- XRC

XRC_SEND, XRC_ACK = op.XRC | SEND, op.XRC | ACK


def test_xrc_is_judged_as_rc() -> None:
    court = Court()
    court.ask(op.XRC | op.SEND_FIRST, 0, srqn=5, payload=bytes(1024))
    court.ask(op.XRC | op.SEND_LAST, 1, srqn=5, payload=bytes(8), ackreq=True)
    court.reply(1, XRC_ACK, msn=1)
    court.ask(op.XRC | READ, 2, srqn=6, va=8, rkey=2, dma_length=1500)
    court.reply(2, op.XRC | op.READ_RESPONSE_FIRST, msn=2, payload=bytes(1024))
    court.reply(3, op.XRC | op.READ_RESPONSE_LAST, msn=2, payload=bytes(476))
    court.ask(op.XRC | ATOMIC, 4, srqn=5, va=8, rkey=2)
    court.reply(4, op.XRC | op.ATOMIC_ACKNOWLEDGE, msn=3)
    court.ask(op.XRC | op.FLUSH, 5, srqn=5, **FLUSHED)
    court.reply(5, op.XRC | op.READ_RESPONSE_ONLY, msn=4)
    for psn in (6, 8, 10):
        court.ask(op.XRC | op.WRITE_FIRST, psn, srqn=5, va=8, rkey=2, dma_length=1500, payload=bytes(1024))
        court.ask(op.XRC | op.WRITE_LAST, psn + 1, srqn=5, payload=bytes(476), ackreq=True)
    court.reply(11, XRC_ACK, msn=7)
    assert court.rules() == []
    assert court.judge.unjudged == 0


@pytest.mark.parametrize(
    ("opcode", "fields", "rule"),
    [
        (ATOMIC, {"va": 4}, "atomic-aligned"),
        (op.ATOMIC_WRITE, {"va": 8, "dma_length": 9, "payload": bytes(8)}, "size"),
        (op.SEND_MIDDLE, {"payload": bytes(1000)}, "size"),
    ],
)
def test_xrc_requests_are_looked_into(opcode: int, fields: dict[str, Any], rule: str) -> None:
    court = Court()
    court.ask(XRC_SEND, 0, srqn=5)
    court.ask(op.XRC | opcode, 1, srqn=5, **fields)
    assert rule in court.rules()


def test_an_xrc_request_repeated_for_another_queue_is_another() -> None:
    court = Court()
    court.ask(XRC_SEND, 0, srqn=5, payload=bytes(8))
    court.ask(XRC_SEND, 0, srqn=6, payload=bytes(8))
    assert court.rules() == ["repeat"]


# --------------------------------------------------------------------------------------------- other services


@pytest.mark.parametrize("opcode", sorted(NOT_DECODED))
def test_legal_services_that_are_not_taken_apart_break_no_rule(opcode: int) -> None:
    court = Court()
    body = bytearray(build(SEND, dqpn=17, psn=1, payload=bytes(64)))
    body[0] = opcode
    court.raw(body)
    assert court.rules() == []
    (fact,) = court.facts()
    assert fact.endswith("packets, not judged")
    assert court.judge.packets == court.judge.unjudged == 1


@pytest.mark.parametrize("opcode", [0x15, 0x18, 0x37, 0x5F, 0x60, 0x80, 0x82, 0x9F, 0xBF])
def test_opcodes_that_do_not_exist(opcode: int) -> None:
    assert OPCODES[opcode] is None
    court = Court()
    body = bytearray(build(SEND, dqpn=17, psn=1, payload=bytes(64)))
    body[0] = opcode
    court.raw(body)
    assert court.rules() == ["opcode"]


# ------------------------------------------------------------------------------------------------ without UDP

GIDS = bytes(15) + b"\x07", bytes(15) + b"\x08"


def _native(psn: int, kind: str, payload: bytes = b"abcd") -> tuple[int, bytes]:
    body = bytes(build(SEND, dqpn=17, psn=psn, payload=payload))
    lrh = Lrh(lnh=2, dlid=5, slid=4, packet_length=(12 + len(body)) // 4).pack()
    flow = IbFlow(*GIDS) if kind == "RoCEv1" else IbFlow(b"\0\4", b"\0\5", lrh[:4])
    icrc = crc32(body[:4] + b"\xff" + body[5:], flow.seed(len(body) + 4)).to_bytes(4, "little")
    if kind == "InfiniBand":
        return 247, lrh + body + icrc
    source, destination = (int.from_bytes(gid, "big") for gid in GIDS)
    grh = Grh(version=6, next_header=0x1B, payload_length=len(body) + 4, src=source, dst=destination).pack()
    return 1, Ethernet(ethertype=0x8915).pack() + grh + body + icrc


@pytest.mark.parametrize("kind", ["RoCEv1", "InfiniBand"])
def test_packets_without_udp_are_judged_by_the_same_rules(kind: str) -> None:
    court = Court()
    for psn, payload in ((0, b"abcd"), (1, b"abcd"), (1, b"abcde")):
        linktype, frame = _native(psn, kind, payload)
        court.judge.frame(0, linktype, frame, len(frame))
    linktype, frame = _native(2, kind)
    frame = frame[:-1] + bytes((frame[-1] ^ 1,))
    court.judge.frame(0, linktype, frame, len(frame))
    assert court.rules() == ["repeat", "icrc"]
    assert court.judge.kinds == {kind: 4}
    ends = ("::7", "::8") if kind == "RoCEv1" else ("LID 4", "LID 5")
    assert court.found[0].queue_pair == f"{ends[0]} -> {ends[1]} QP 17"
    assert path_text(b"\0\4") == "LID 4"


# ------------------------------------------------------------------------------------------ what there was instead


def test_frames_of_other_protocols_are_counted_by_what_they_are() -> None:
    court = Court()
    tcp = bytearray(ip_packet(ASK, bytes(32)))
    tcp[9] = 6
    for frame in (bytes(tcp), ip_packet(Flow(CLIENT, SERVER, 1, 53), bytes(32))):
        court.judge.frame(0, 1, bytes(12) + b"\x08\0" + frame, 200)
    court.judge.frame(0, 1, bytes(12) + b"\x08\x06" + bytes(46), 60)
    court.judge.frame(0, 9999, bytes(60), 60)
    assert court.judge.kinds == {"TCP": 1, "UDP": 1, "ARP": 1, "link type 9999": 1}
    assert court.judge.packets == 0


# ----------------------------------------------------------------------------------- the standard library alone

ALONE = """
    import sys

    class Only:
        def find_spec(self, name, path=None, target=None):
            first = name.partition(".")[0]
            if first not in sys.stdlib_module_names and first != "rnic":
                raise ImportError(f"{name} is not of the standard library")

    sys.meta_path.insert(0, Only())
    sys.path.insert(0, sys.argv[1])
    import importlib
    import pkgutil

    for room in ("rnic.wire", "rnic.judge"):
        package = importlib.import_module(room)
        for module in pkgutil.iter_modules(package.__path__, room + "."):
            importlib.import_module(module.name)
    import rnic.link.pcap

    foreign = {name.partition(".")[0] for name, module in sys.modules.items() if getattr(module, "__file__", None)}
    print(sorted(foreign - set(sys.stdlib_module_names) - {"rnic", "__main__"}))
    print(sorted(n for n in sys.modules if n in ("socket", "threading", "select", "subprocess", "numpy", "click")))
"""


V6 = Flow(bytes(15) + b"\x01", bytes(15) + b"\x02", 50_000)
FRONTS = {
    "IPv4": (ASK, b""),
    "IPv6": (V6, b""),
    "IPv4 in GRE": (ASK, IPv4(total_length=24 + 76, protocol=47, ttl=9, src=1, dst=2).pack() + b"\0\0\x08\0"),
}


@pytest.mark.parametrize("extra", range(4))
@pytest.mark.parametrize("front", FRONTS)
def test_every_packet_ends_on_a_word(front: str, extra: int) -> None:
    flow, outer = FRONTS[front]
    found: list[Finding] = []
    judge = Judge(found.append)
    packet = outer + ip_packet(flow, seal(build(SEND, dqpn=17, psn=1, payload=bytes(32)) + bytes(extra), flow))
    for _ in range(3):
        judge.frame(0, 101, packet, len(packet))
    words = f"{48 + extra} bytes of UDP payload do not end on a word"
    assert [(each.rule, each.detail) for each in found] == [("length", words)] * 3 * (extra > 0)
    assert judge.packets == 3 * (extra == 0)


def test_what_a_tunnel_carries_makes_no_form_of_plain_packets() -> None:
    judge = Judge(lambda finding: None)
    packet = ip_packet(ASK, seal(build(SEND, dqpn=17, psn=1, payload=bytes(32)), ASK))
    carried = FRONTS["IPv4 in GRE"][1] + packet
    judge.frame(0, 101, carried, len(carried))
    (form,) = judge._forms
    judge.frame(0, 101, packet, len(packet))
    assert [len(key) for key in judge._forms] == [len(form), 22]


def test_a_packet_to_a_tunnel_port_is_not_a_roce_packet_of_wrong_length() -> None:
    found: list[Finding] = []
    judge = Judge(found.append)
    data = b"\x08\0\0\0" + bytes(4) + Ethernet(dst_mac=1, src_mac=2, ethertype=0x0800).pack() + b"\x55" * 40
    packet = IPv4(total_length=28 + len(data), protocol=17, ttl=9, src=1, dst=2).pack()
    packet += struct.pack(">HHHH", 1234, 4789, 8 + len(data), 0) + data
    judge.frame(0, 101, packet, len(packet))
    assert found == []
    assert judge.kinds == {"UDP": 1}


@pytest.mark.slow
def test_judge_and_wire_import_on_the_standard_library_alone() -> None:
    """So that they run where nothing else is, as in a browser: without NumPy, without a socket."""
    source = Path(sys.modules["rnic"].__file__ or "").parents[1]
    command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(ALONE), str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["[]", "[]"]
