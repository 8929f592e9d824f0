"""Selective repeat by itself: what is kept and for how long, and what a NAK has sent again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rnic.spec.psn import PSN_MASK, psn_diff
from rnic.spec.syndromes import NAK_PSN_SEQUENCE
from rnic.state.record import NONE
from rnic.transport.selective_repeat import KEPT_MOST, SelectiveRepeat

US = 1_000
NEAR_WRAP = PSN_MASK - 1


class Ends:
    """A queue pair, as far as selective repeat knows one: its messages, its peer, and what it was told."""

    def __init__(self, expected_psn: int = 100, una: int = 100) -> None:
        self.counted: dict[str, int] = {}
        self.replied: list[tuple[int, int]] = []
        self.scheduled: list[Any] = []
        self.taken: list[tuple[int, bytes]] = []
        self.repeated: list[tuple[Any, int]] = []
        self.listed: list[Any] = []
        self.valid, self.sends = True, 1
        self.ctx = SimpleNamespace(expected_psn=expected_psn)
        self.responder = SimpleNamespace(nak_sent=1, nak=self._nak)
        self.requester = SimpleNamespace(
            una=una, sq_head=0, fetch_index=0, rtt_psn=0, retry_left=1, retransmit_interval=70 * US,
            peer=SimpleNamespace(srtt=10 * US, rttvar=5 * US),
            messages=lambda head, index: self.listed,
            payload=lambda message: SimpleNamespace(valid=self.valid),
            retransmit=self._repeat,
        )  # fmt: skip
        self.host = SimpleNamespace(counters=SimpleNamespace(bump=self._bump), schedule=self.scheduled.append)
        self.selective = SelectiveRepeat(self)  # type: ignore[arg-type]

    def _bump(self, name: str) -> None:
        self.counted[name] = self.counted.get(name, 0) + 1

    def _nak(self, psn: int, syndrome: int) -> None:
        self.replied.append((psn, syndrome))
        self.responder.nak_sent = 1

    def _repeat(self, message: Any, payload: Any, index: int, batch: Any) -> int:
        self.repeated.append((message, index))
        return self.sends

    def take(self, packet: Any) -> None:
        """What the responder does with a packet that is due."""
        self.taken.append((packet.psn, bytes(packet.payload)))
        self.ctx.expected_psn = (self.ctx.expected_psn + 1) & PSN_MASK

    def message(self, first_psn: int, packets: int, sent: int | None = None, reads: bool = False) -> Any:
        made = SimpleNamespace(
            first_psn=first_psn, packets=packets, sent=packets if sent is None else sent, reads=reads
        )
        self.listed.append(made)
        return made


def packet(psn: int, payload: bytes | bytearray = b"") -> Any:
    return SimpleNamespace(psn=psn & PSN_MASK, payload=memoryview(payload))


# ------------------------------------------------------------------------------------------ what is kept


def test_a_kept_packet_is_a_copy() -> None:
    ends, buffer = Ends(), bytearray(b"as it came")
    assert ends.selective.keep(packet(101, buffer))
    buffer[:] = b"overwrite!"
    ends.take(packet(100))
    ends.selective.release_next(ends.take)
    assert ends.taken == [(100, b""), (101, b"as it came")]


def test_a_packet_is_kept_once() -> None:
    ends = Ends()
    assert ends.selective.keep(packet(105, b"first"))
    assert ends.selective.keep(packet(105, b"again"))
    assert ends.counted == {"kept_packets": 1}


@pytest.mark.parametrize("expected_psn", [100, NEAR_WRAP])
def test_what_is_too_far_beyond_the_gap_is_not_kept(expected_psn: int) -> None:
    ends = Ends(expected_psn)
    assert ends.selective.keep(packet(expected_psn + KEPT_MOST))
    assert not ends.selective.keep(packet(expected_psn + KEPT_MOST + 1))
    assert ends.counted == {"kept_packets": 1}


def test_every_sixteenth_packet_that_is_kept_has_the_nak_said_again() -> None:
    ends, said = Ends(), []
    for number in range(1, 40):
        ends.responder.nak_sent = 1
        ends.selective.keep(packet(100 + number))
        if not ends.responder.nak_sent:
            said.append(number)
    assert said == [17, 33]


@pytest.mark.parametrize("expected_psn", [100, NEAR_WRAP])
def test_release_continues_to_the_next_gap_and_names_it(expected_psn: int) -> None:
    ends = Ends(expected_psn)
    for beyond in (1, 2, 4, 5):
        ends.selective.keep(packet(expected_psn + beyond))
    ends.take(packet(expected_psn))
    ends.responder.nak_sent = 0
    ends.selective.release_next(ends.take)
    missing = (expected_psn + 3) & PSN_MASK
    assert [psn for psn, _ in ends.taken] == [(expected_psn + n) & PSN_MASK for n in range(3)]
    assert (ends.replied, ends.responder.nak_sent) == ([(missing, NAK_PSN_SEQUENCE)], 1)
    ends.take(packet(missing))
    ends.selective.release_next(ends.take)
    assert psn_diff(ends.ctx.expected_psn, expected_psn) == 6
    assert len(ends.replied) == 1, "nothing is kept, so nothing is missing"


def test_a_kept_packet_that_is_refused_stops_it() -> None:
    ends = Ends()
    for psn in (100, 101):
        ends.selective.keep(packet(psn))
    refused: list[int] = []
    ends.selective.release_next(lambda packet: refused.append(packet.psn))
    assert (refused, ends.replied) == ([100], [])


def test_what_go_back_n_has_repeated_meanwhile_is_dropped() -> None:
    ends = Ends()
    for psn in (102, 103, 110):
        ends.selective.keep(packet(psn))
    ends.ctx.expected_psn = 105
    ends.selective.release_next(ends.take)
    assert (ends.taken, ends.replied) == ([], [(105, NAK_PSN_SEQUENCE)])
    ends.ctx.expected_psn = 102
    ends.selective.release_next(ends.take)
    assert ends.taken == [], "102 and 103 are here no more"


def test_a_reset_forgets_what_is_kept_and_what_is_due() -> None:
    ends = Ends()
    ends.message(100, 4)
    ends.selective.keep(packet(100))
    assert ends.selective.nak(101, 0)
    ends.selective.reset()
    ends.selective.release_next(ends.take)
    assert (ends.taken, ends.replied, ends.selective.due) == ([], [], False)


# -------------------------------------------------------------------------------------- what is sent again


@pytest.mark.parametrize("first_psn", [100, NEAR_WRAP])
def test_a_nak_has_the_packet_that_it_names_sent_again_once(first_psn: int) -> None:
    ends = Ends(una=first_psn)
    ends.message(first_psn, 2)
    second = ends.message((first_psn + 2) & PSN_MASK, 4)
    assert not ends.selective.due
    assert ends.selective.nak((first_psn + 5) & PSN_MASK, 0)
    assert (ends.selective.due, ends.scheduled, ends.requester.rtt_psn) == (True, [ends], NONE)
    batch: Any = None
    assert ends.selective.send(batch) == 1
    assert ends.repeated == [(second, 3)]
    assert ends.selective.send(batch) == 0
    assert ends.counted == {"retransmitted_packets": 1, "repairs": 1}


@pytest.mark.parametrize(
    ("psn", "why"), [(99, "acknowledged"), (104, "not sent yet"), (106, "of a READ"), (200, "of no message")]
)
def test_go_back_n_answers_a_nak_that_names_a_packet(psn: int, why: str) -> None:
    ends = Ends()
    ends.message(100, 5, sent=4)
    ends.message(105, 3, reads=True)
    assert not ends.selective.nak(psn, 0), why
    assert (ends.selective.due, ends.scheduled) == (False, [])


@pytest.mark.parametrize(("srtt", "patience"), [(10 * US, 40 * US), (0, 70 * US)])
def test_the_same_packet_is_named_again(srtt: int, patience: int) -> None:
    """Within two round trips it says nothing new; later it costs a retry, and where none is left it is Go-Back-N's."""
    ends = Ends()
    ends.message(100, 4)
    ends.requester.peer.srtt = srtt
    batch: Any = None
    assert ends.selective.nak(101, 1_000_000)
    ends.selective.send(batch)
    assert ends.selective.nak(101, 1_000_000 + patience - 1)
    assert (ends.selective.due, ends.requester.retry_left) == (False, 1)
    assert ends.selective.nak(101, 1_000_000 + patience)
    assert (ends.selective.due, ends.requester.retry_left) == (True, 0)
    assert not ends.selective.nak(101, 1_000_000 + 2 * patience)


def test_what_was_acknowledged_before_its_turn_is_not_sent_again() -> None:
    ends = Ends()
    ends.message(100, 4)
    ends.selective.nak(101, 0)
    ends.requester.una = 104
    batch: Any = None
    assert ends.selective.send(batch) == 0
    assert (ends.repeated, ends.counted) == ([], {})


def test_a_payload_that_is_not_there_any_more_is_not_sent() -> None:
    ends = Ends()
    ends.message(100, 4)
    ends.selective.nak(101, 0)
    ends.valid = False
    batch: Any = None
    assert ends.selective.send(batch) == 0
    assert ends.repeated == []


def test_what_could_not_be_sent_is_not_counted() -> None:
    ends = Ends()
    ends.message(100, 4)
    ends.selective.nak(101, 0)
    ends.sends = 0
    batch: Any = None
    assert ends.selective.send(batch) == 0
    assert (len(ends.repeated), ends.counted) == (1, {})
