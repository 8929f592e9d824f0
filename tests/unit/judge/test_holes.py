"""A capture that lacks packets makes nobody guilty; what it proves all the same is still said."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rnic.judge import Finding, Judge
from rnic.judge.judge import MAX_EARLY, MAX_HOLE, MAX_SKEW
from rnic.judge.responses import ANSWERED_UNSEEN
from rnic.spec import opcodes as op
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal

CLIENT, SERVER = bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2))
ASK, REPLY = Flow(CLIENT, SERVER, 50_000), Flow(SERVER, CLIENT, 50_000)
SEND, READ, ACK = op.SEND_ONLY, op.READ_REQUEST, op.ACKNOWLEDGE
NAK = 0x60
CREDITS = 0x1F
"""An ACK that grants no credits."""


class Court:
    """A judge before whom a client asks QP 17 of a server, which answers QP 16."""

    def __init__(self, psn: int | None = 100) -> None:
        self.found: list[Finding] = []
        self.judge = Judge(self.found.append)
        if psn is not None:
            self.judge.connections.connect((CLIENT, SERVER, 17), (SERVER, CLIENT, 16), (psn, 500), 1024)

    def ask(self, opcode: int, psn: int, **more: Any) -> None:
        self._see(ASK, build(opcode, dqpn=17, psn=psn, **more))

    def reply(self, psn: int, opcode: int = ACK, msn: int = 0, syndrome: int = CREDITS, payload: bytes = b"") -> None:
        self._see(REPLY, build(opcode, dqpn=16, psn=psn, msn=msn, syndrome=syndrome, payload=payload))

    def _see(self, way: Flow, body: bytearray) -> None:
        packet = ip_packet(way, seal(body, way))
        self.judge.frame(0, 101, packet, len(packet))

    def rules(self) -> list[str]:
        self.judge.finish()
        return [finding.rule for finding in self.found]

    def facts(self) -> Counter[str]:
        return sum((stream.facts.counts for stream in self.judge.streams()), Counter())


# ------------------------------------------------------------------------------------------------- the first PSN


def test_the_first_requests_may_be_missing() -> None:
    court = Court()
    court.ask(SEND, 102)
    court.reply(102, msn=3)
    court.ask(SEND, 103)
    court.reply(103, msn=4)
    assert court.rules() == []
    assert court.facts()["acknowledged, not in the capture"] == 1


def test_a_wrong_first_psn_shows_in_what_the_responder_counts() -> None:
    court = Court()
    court.ask(SEND, 102)
    court.ask(SEND, 103)
    court.reply(103, msn=2)
    assert court.rules() == ["first-psn"]
    assert court.found[0].frame == 1
    assert "PSN 102; connection management said 100" in court.found[0].detail


@pytest.mark.parametrize("first", [99, 100 + (1 << 22)])
def test_a_first_psn_that_no_missing_packet_explains(first: int) -> None:
    court = Court()
    court.ask(SEND, first)
    assert court.rules() == ["first-psn"]


def test_a_message_without_its_beginning_does_not_set_the_first_psn() -> None:
    court = Court()
    court.ask(op.SEND_LAST, 101, payload=bytes(8))
    court.reply(101, msn=1)
    assert court.rules() == []


def test_the_first_request_may_come_late() -> None:
    court = Court()
    court.ask(SEND, 101)
    court.ask(SEND, 100)
    court.reply(101, msn=2)
    assert court.rules() == []
    assert court.facts()["late packets"] == 1


# ------------------------------------------------------------------------------------- responses without requests


def test_a_read_whose_request_is_missing() -> None:
    court = Court()
    court.ask(SEND, 100)
    court.ask(SEND, 103)
    for psn, opcode in ((101, op.READ_RESPONSE_FIRST), (102, op.READ_RESPONSE_LAST)):
        court.reply(psn, opcode, payload=bytes(1024))
    assert court.rules() == []
    assert court.facts()[ANSWERED_UNSEEN] == 2


def test_a_read_response_to_a_send() -> None:
    court = Court()
    court.ask(SEND, 100)
    court.reply(100, op.READ_RESPONSE_ONLY, payload=bytes(8))
    assert court.rules() == ["read-unasked"]


def test_a_part_of_a_read_that_was_asked_for_again_unseen() -> None:
    """Once the capture is known to lack packets, a READ may have been asked for in other parts."""
    court = Court()
    court.ask(SEND, 101)
    court.reply(101, msn=2)  # 100 is missing
    court.ask(READ, 102, dma_length=3 * 1024)
    court.reply(103, op.READ_RESPONSE_FIRST, payload=bytes(1024))
    assert court.rules() == []
    whole = Court()
    whole.ask(READ, 100, dma_length=3 * 1024)
    whole.reply(101, op.READ_RESPONSE_FIRST, payload=bytes(1024))
    assert whole.rules() == ["read-order"]


@pytest.mark.parametrize("ahead", [0, 1, 60])
def test_an_acknowledgement_of_missing_requests(ahead: int) -> None:
    """The requests go on behind what was acknowledged: it was sent, and not seen."""
    court = Court()
    court.ask(SEND, 100)
    court.reply(101 + ahead, msn=2 + ahead)
    court.ask(SEND, 102 + ahead)
    assert court.rules() == []
    assert court.facts()["acknowledged, not in the capture"] == 1


@pytest.mark.parametrize("between", [0, 3 * MAX_SKEW])
def test_an_acknowledgement_of_what_is_sent_later(between: int) -> None:
    court = Court()
    court.ask(SEND, 100)
    court.reply(103, msn=4)
    for _ in range(between):  # something else, for more frames than a mirror may mix up
        court.judge.frame(0, 101, b"", 0)
    for psn in range(101, 103 + MAX_SKEW):
        court.ask(SEND, psn)
    found = court.rules()
    assert found[:1] == (["ack-unsent"] if between else []), found


def test_the_end_of_a_capture_may_be_missing() -> None:
    near, far = Court(), Court()
    for court, psn in ((near, 100 + MAX_HOLE), (far, 101 + MAX_HOLE)):
        court.ask(SEND, 100)
        court.reply(psn, msn=2)
    assert near.rules() == []
    assert near.facts()[ANSWERED_UNSEEN] == 1
    assert far.rules() == ["ack-unsent"]


def test_responses_without_requests_are_not_kept_for_ever() -> None:
    court = Court()
    court.ask(SEND, 100)
    for psn in range(3 * MAX_EARLY):
        court.reply(101 + psn % 50, msn=2)
    assert len(court.judge._early) == MAX_EARLY
    assert court.rules() == []


# --------------------------------------------------------------------------------------------- what was refused


def _refused(court: Court) -> None:
    """101 is lost before the capture; 102 to 105 are refused."""
    court.ask(SEND, 100)
    for psn in range(102, 106):
        court.ask(SEND, psn)
    court.reply(101, msn=1, syndrome=NAK)


def test_a_repetition_may_be_missing() -> None:
    court = Court()
    _refused(court)
    for psn in (102, 104, 105):  # neither 101 nor 103 again
        court.ask(SEND, psn)
    court.reply(105, msn=6)
    assert court.rules() == []
    assert court.facts()["repeated, not in the capture"] == 1


def test_a_responder_that_keeps_what_it_refused_is_still_found() -> None:
    court = Court()
    _refused(court)
    court.ask(SEND, 101)
    court.reply(105, msn=6)
    assert court.rules() == ["ack-gap"]


def test_a_read_that_is_the_rest_of_one_before_the_capture() -> None:
    """A capture that begins behind the first request of a READ holds late responses to that request."""
    for first, rules in ((102, []), (101, ["read-order"])):
        court = Court(None)
        if first == 101:
            court.ask(SEND, 101)
            court.reply(101, msn=1)
        court.ask(READ, 102, dma_length=2 * 1024)
        court.reply(102, op.READ_RESPONSE_FIRST, msn=2, payload=bytes(1024))
        court.reply(103, op.READ_RESPONSE_LAST, msn=2, payload=bytes(1024))
        court.reply(102, op.READ_RESPONSE_MIDDLE, payload=bytes(1024))
        assert court.rules() == rules
