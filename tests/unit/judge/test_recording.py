"""What recorders change is taken back where ICRCs prove it, said once, and judged as what was sent."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rnic.judge import Finding, Judge
from rnic.judge.recording import AGREE, MAX_HELD, SourcePorts
from rnic.spec import opcodes as op
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal

CLIENT, SERVER = bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2))
RAW = 101
SENT, SHOWN = 53_427, 4791
FACT = f"ICRC fits source port {SENT}: the recorder rewrote it"


class Court:
    """A judge, and the frames of a recorder that writes another source port than was sent."""

    def __init__(self, linktype: int = 1) -> None:
        self.found: list[Finding] = []
        self.judge = Judge(self.found.append)
        self.linktype = linktype

    def see(
        self, psn: int, qpn: int = 17, src: bytes = CLIENT, sent: int = SENT, shown: int = SHOWN, **more: Any
    ) -> None:
        dst = SERVER if src == CLIENT else CLIENT
        fields = {"opcode": op.SEND_ONLY, "payload": bytes(64), "spoil": False, "cut": False, **more}
        opcode, spoil, cut = fields.pop("opcode"), fields.pop("spoil"), fields.pop("cut")
        packet = bytearray(seal(build(opcode, dqpn=qpn, psn=psn, **fields), Flow(src, dst, sent)))
        packet[-1] ^= spoil
        self.give(ip_packet(Flow(src, dst, shown), bytes(packet)), 64 if cut else None)

    def give(self, packet: bytes, cut: int | None = None) -> None:
        frame = packet if self.linktype == RAW else bytes(12) + b"\x08\0" + packet
        self.judge.frame(0, self.linktype, frame[:cut], len(frame))

    def rules(self) -> list[str]:
        self.judge.finish()
        return [finding.rule for finding in self.found]

    def facts(self) -> Counter[str]:
        return sum((stream.facts.counts for stream in self.judge.streams()), Counter())


@pytest.mark.parametrize("linktype", [1, RAW], ids=["Ethernet", "IP"])
def test_a_rewritten_source_port_is_one_fact(linktype: int) -> None:
    court = Court(linktype)
    for psn in range(20):
        court.see(psn)
    assert court.rules() == []
    assert court.facts() == {FACT: 1}
    assert court.judge.packets == court.judge.frames == 20


def test_of_ports_that_change_the_first_is_named() -> None:
    """A capture may have each of the 65,536."""
    court = Court()
    for psn in range(3 * AGREE):
        court.see(psn, sent=SENT + psn // AGREE)
    assert court.facts() == {FACT: 1, "ICRC fits further source ports: the recorder rewrote them": 2}


def test_judging_goes_on_behind_a_rewritten_port() -> None:
    court = Court()
    for psn in range(5):
        court.see(psn)
    court.see(4, payload=bytes(32))
    court.see(5, spoil=True)
    assert court.rules() == ["repeat", "icrc"]
    assert [finding.frame for finding in court.found] == [6, 7]


def test_two_packets_prove_nothing() -> None:
    court = Court()
    for psn in (0, 1, 1, 0):
        court.see(psn)
    assert court.rules() == ["icrc"] * 4
    assert f"fits source port {SENT}, which {AGREE} packets would prove" in court.found[0].detail
    assert [finding.frame for finding in court.found] == [1, 2, 3, 4]


def test_what_a_recorder_is_known_to_do_one_packet_of_another_flow_shows() -> None:
    court = Court()
    court.see(0, qpn=99, src=SERVER, sent=50_001)
    for psn in range(3):
        court.see(psn)
    assert court.rules() == []
    assert court.facts() == {FACT: 1, FACT.replace(str(SENT), "50001"): 1}


def test_cut_packets_before_the_proof_had_the_same_port() -> None:
    """Of a cut packet no ICRC says that its port was rewritten; of a whole one behind it one does."""
    court = Court()
    for psn in range(6):
        court.see(psn, cut=psn == 0)
    assert court.rules() == []
    assert court.facts() == {FACT: 1}


def test_a_spoilt_packet_among_right_ones_is_not_explained_away() -> None:
    court = Court()
    for psn in range(2):
        court.see(psn, sent=SHOWN)
    court.see(2)  # damage that fits a port: one in 65,536 does
    for psn in range(3, 6):
        court.see(psn, sent=SHOWN)
    assert court.rules() == ["icrc"]
    assert court.found[0].frame == 3


@pytest.mark.slow
def test_frames_wait_no_longer_than_they_may() -> None:
    court = Court()
    court.see(0)
    for psn in range(MAX_HELD + 10):
        court.see(psn, qpn=18, sent=SHOWN)
    assert [finding.frame for finding in court.found] == [1]
    assert court.judge.packets == court.judge.frames
    court.see(1)
    assert [finding.frame for finding in court.found][1:] == [court.judge.frames]


def test_held_frames_keep_their_order_and_their_numbers() -> None:
    """The answer stands between requests that wait for their port: nothing is early."""
    court = Court()
    court.see(0, ackreq=True)
    court.see(0, qpn=16, src=SERVER, sent=50_001, shown=50_001, opcode=op.ACKNOWLEDGE, payload=b"", msn=1, syndrome=31)
    court.see(1)
    court.see(2)
    court.see(2, payload=bytes(4))
    assert court.rules() == ["repeat"]
    assert court.found[0].frame == 5
    assert "frame 4" in court.found[0].detail
    assert "responses captured before their requests" not in court.facts()


def test_many_flows_that_wait_one_behind_the_other() -> None:
    court = Court()
    for number in range(300):
        court.see(0, qpn=100 + number, shown=10_000 + number)
        for psn in range(1, 3):
            court.see(psn, qpn=50 + number, shown=20_000 + number)
    assert court.judge.frames == 900
    assert set(court.rules()) == {"icrc"}
    assert len(court.found) == 900
    assert sorted(finding.frame for finding in court.found) == [finding.frame for finding in court.found]


def test_ports_that_change_again_and_again_are_believed_for_a_while() -> None:
    ports = SourcePorts()
    for psn in range(AGREE):
        agreed = ports.agree(b"flow", SHOWN, 1, psn)
    assert agreed
    for port in range(100):
        if ports.agree(b"flow", SHOWN, port, 0):
            ports.changed(b"flow")
    assert not ports.agree(b"flow", SHOWN, 1, 0)
    assert ports.agree(b"another", SHOWN, 1, 0)


# ------------------------------------------------------------------------------------- frames before segmentation


def super_frame(flow: Flow, bodies: list[bytearray], ident: int) -> bytes:
    joined = b"".join(seal(body, flow, ident + index & 0xFFFF) for index, body in enumerate(bodies))
    return ip_packet(flow, joined, ident)


@pytest.mark.parametrize("linktype", [1, RAW], ids=["Ethernet", "IP"])
def test_a_frame_before_segmentation_is_judged_as_its_packets(linktype: int) -> None:
    court = Court(linktype)
    flow = Flow(CLIENT, SERVER, SENT)
    bodies = [build(op.WRITE_FIRST, dqpn=17, psn=0, va=8, rkey=1, dma_length=40 * 1024 + 3, payload=bytes(1024))]
    court.give(super_frame(flow, bodies, 0))
    middles = [build(op.WRITE_MIDDLE, dqpn=17, psn=psn, payload=bytes(1024)) for psn in range(1, 40)]
    last = build(op.WRITE_LAST, dqpn=17, psn=40, payload=b"end")
    court.give(super_frame(flow, [*middles, last], 7))
    assert court.rules() == []
    assert court.facts() == {"packets of frames recorded before segmentation": 40}
    assert (court.judge.frames, court.judge.packets) == (2, 41)


def test_a_rule_that_is_broken_inside_of_such_a_frame() -> None:
    court = Court()
    flow = Flow(CLIENT, SERVER, SENT)
    bodies = [build(op.SEND_ONLY, dqpn=17, psn=psn, payload=bytes((psn,)) * 8) for psn in (0, 1, 1, 2)]
    bodies[2][-1] ^= 1
    court.give(super_frame(flow, bodies, 0))
    assert court.rules() == ["repeat-payload"]


@pytest.mark.parametrize(
    ("opcode", "fields"),
    [
        (op.WRITE_MIDDLE, {"payload": bytes(1024)}),
        (op.WRITE_ONLY, {"payload": bytes(64), "va": 8, "rkey": 1, "dma_length": 64}),
        (op.SEND_ONLY, {"payload": bytes(1024)}),
        (op.READ_REQUEST, {"va": 8, "rkey": 1, "dma_length": 64}),
        (op.ACKNOWLEDGE, {"msn": 1, "syndrome": 31}),
        (op.READ_RESPONSE_ONLY, {"msn": 1, "syndrome": 31, "payload": bytes(1024)}),
    ],
)
def test_a_cut_frame_that_may_hold_several_packets_is_not_judged_by_its_size(
    opcode: int, fields: dict[str, Any]
) -> None:
    court = Court()
    flow = Flow(CLIENT, SERVER, SENT)
    bodies = [build(opcode, dqpn=17, psn=psn, **fields) for psn in range(9)]
    court.give(super_frame(flow, bodies, 0), 128)
    assert court.rules() == []
    assert court.facts() == {"cut frames that may hold several packets": 1}


# --------------------------------------------------------------------------------------------------- checksums


def _udp_sum(packet: bytearray, value: int) -> bytes:
    packet[26:28] = value.to_bytes(2, "big")
    return bytes(packet)


@pytest.mark.parametrize("linktype", [1, RAW], ids=["Ethernet", "IP"])
def test_checksums_that_are_right_or_left_to_the_card(linktype: int) -> None:
    court = Court(linktype)
    flow = Flow(CLIENT, SERVER, SENT)
    for psn in range(4):
        packet = bytearray(ip_packet(flow, seal(build(op.SEND_ONLY, dqpn=17, psn=psn, payload=b"abcd"), flow)))
        pseudo = int.from_bytes(CLIENT + SERVER, "big") + 17 + len(packet) - 20
        whole = pseudo + int.from_bytes(packet[20:], "big")
        court.give(_udp_sum(packet, (pseudo % 0xFFFF, 0xFFFF - whole % 0xFFFF, 0, pseudo % 0xFFFF)[psn]))
    packet[10:12] = b"\0\0"
    packet[20:] = ip_packet(flow, seal(build(op.SEND_ONLY, dqpn=17, psn=4, payload=b"abcd"), flow))[20:]
    court.give(bytes(packet))
    assert court.rules() == []


@pytest.mark.parametrize("linktype", [1, RAW], ids=["Ethernet", "IP"])
@pytest.mark.parametrize("known", [False, True], ids=["first", "known form"])
def test_checksums_that_are_wrong(linktype: int, known: bool) -> None:
    court = Court(linktype)
    flow = Flow(CLIENT, SERVER, SENT)
    packets = [
        bytearray(ip_packet(flow, seal(build(op.SEND_ONLY, dqpn=17, psn=psn, payload=b"abcd"), flow)))
        for psn in range(3)
    ]
    if known:
        court.give(bytes(packets[0]))
    court.give(_udp_sum(packets[1], 0x1234))
    packets[2][8] -= 1
    court.give(bytes(packets[2]))
    assert court.rules() == ["udp-checksum", "ip-checksum"]
