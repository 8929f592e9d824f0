"""Which streams belong together is found in bounded memory, however many there are."""

from __future__ import annotations

import pytest

from rnic.judge import connections
from rnic.judge.connections import MAX_CANDIDATES, Connections
from rnic.judge.packet import Form, Seen
from rnic.judge.stream import Read, Stream
from rnic.spec.opcodes import RC, READ_REQUEST, SEND_ONLY, UC, UD
from rnic.wire.opcode import OPCODES

CLIENT, SERVER = bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2))


def _asked(made: Connections, qpns: range, psns: range, opcode: int = RC | SEND_ONLY) -> list[Stream]:
    """Streams of requests towards a server, each of which has sent the same PSNs."""
    streams = [made.stream(CLIENT, SERVER, qpn) for qpn in qpns]
    row = OPCODES[opcode]
    assert row is not None
    for stream in streams:
        packet = Seen(Form(stream, row, 0, 0, 0, 0, 0, 0, 0), 0, 0, 0, 0, b"", b"")
        stream.history.update(dict.fromkeys(psns, packet))
    return streams


@pytest.mark.parametrize("count", [2, MAX_CANDIDATES, MAX_CANDIDATES + 1, 10 * MAX_CANDIDATES])
def test_few_candidates_are_remembered_and_many_are_not(count: int) -> None:
    made = Connections()
    _asked(made, range(100, 100 + count), range(10))
    for qpn in range(20):
        response = made.stream(SERVER, CLIENT, qpn)
        assert made.answered(response, 5) is None
        assert len(response.candidates) == (count if count <= MAX_CANDIDATES else 0)


@pytest.mark.parametrize("service", [UC, UD])
def test_no_response_answers_what_is_not_of_a_reliable_connection(service: int) -> None:
    """Both streams have sent the PSN, and only one waits for an answer."""
    made = Connections()
    _asked(made, range(17, 18), range(10), service | SEND_ONLY)
    response = made.stream(SERVER, CLIENT, 16)
    assert made.answered(response, 5) is None
    (peer,) = _asked(made, range(16, 17), range(10))
    assert made.answered(response, 5) is peer


def test_candidates_become_fewer_until_one_is_left() -> None:
    made = Connections()
    (peer,) = _asked(made, range(100, 101), range(30))
    _asked(made, range(101, 100 + MAX_CANDIDATES), range(20))
    others = _asked(made, range(200, 200 + MAX_CANDIDATES), range(10))
    response = made.stream(SERVER, CLIENT, 16)
    left = [(made.answered(response, psn), len(response.candidates)) for psn in (5, 15, 5, 25)]
    assert left == [(None, 0), (None, MAX_CANDIDATES), (None, MAX_CANDIDATES), (peer, 0)]
    assert made.answered(response, 5) is peer
    assert all(other.peer is None for other in others)


def test_a_read_of_unknown_span_may_have_sent_every_psn_behind_its_first() -> None:
    """The path MTU, which says where the READ ends, is known only from the response that is looked at."""
    made = Connections()
    _asked(made, range(22, 23), range(2))
    (reader,) = _asked(made, range(24, 25), range(1), RC | READ_REQUEST)
    reader.reads.append(Read(0, 0, 0, 0, 36_179))
    response = made.stream(SERVER, CLIENT, 23)
    assert [made.answered(response, psn) for psn in (0, 1, 2)] == [None, None, reader]


def test_a_read_of_unknown_span_uses_at_most_its_longest_span() -> None:
    """36,179 bytes are 142 packets at the least path MTU."""
    made = Connections()
    (peer,) = _asked(made, range(22, 23), range(141, 200))
    (reader,) = _asked(made, range(24, 25), range(1), RC | READ_REQUEST)
    reader.reads.append(Read(0, 0, 0, 0, 36_179))
    response = made.stream(SERVER, CLIENT, 23)
    assert [made.answered(response, psn) for psn in (141, 142)] == [None, peer]


def test_candidates_that_are_forgotten_keep_no_stream() -> None:
    made = Connections()
    streams = _asked(made, range(100, 103), range(10))
    response = made.stream(SERVER, CLIENT, 16)
    assert made.answered(response, 5) is None
    for stream in streams[1:]:
        made._drop(stream)
    assert made.answered(response, 5) is streams[0]


def test_nothing_is_left_of_addresses_whose_streams_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_STREAMS", 4)
    made = Connections()
    for number in range(20):
        made.stream(CLIENT, number.to_bytes(4, "big"), 17)
        made.stream(CLIENT, number.to_bytes(4, "big"), 18)
    assert len(made.streams) == 4
    assert {key: list(between) for key, between in made._between.items()} == {
        (CLIENT, number.to_bytes(4, "big")): [17, 18] for number in (18, 19)
    }
