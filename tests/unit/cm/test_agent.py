"""The connection manager against a peer made by hand: every state with every message, and what a whole life sends."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import pytest

from rnic.cm.agent import MAX_BACKLOG, CmAgent
from rnic.cm.pending_requests import HOLD_NS, MAX_HELD
from rnic.cm.records import CmError, ConnectionEvent, ConnectionRecord, Parameters, ServiceListener
from rnic.cm.state_machine import TABLE, Action, Input, State
from rnic.spec import cm
from rnic.trace.counters import Counters
from rnic.wire import cm as wire
from rnic.wire import mad

HERE = bytes(10) + b"\xff\xff" + bytes((10, 0, 0, 1))
THERE = bytes(10) + b"\xff\xff" + bytes((10, 0, 0, 2))
SERVICE = cm.service_id(cm.PS_TCP, 7174)
SECOND = 1_000_000_000


class Wire:
    """A port that keeps what is sent."""

    guid = 0x0200_0000_0000_0001
    gid = HERE
    mtu_code = 5
    pkey = 0xFFFF

    def __init__(self) -> None:
        self.sent: list[tuple[wire.Message, bytes]] = []

    def send(self, datagram: bytes, gid: bytes, traffic_class: int) -> None:
        message = wire.parse(datagram)
        assert message is not None
        self.sent.append((message, gid))

    def last(self) -> wire.Message:
        return self.sent[-1][0]


class Bench:
    def __init__(self) -> None:
        self.port = Wire()
        self.counters = Counters()
        self.agent = CmAgent(self.port, random.Random(1), self.counters)
        self.events: list[ConnectionEvent] = []

    def hear(self, attr: int, tid: int = 5, private: bytes = b"", source: bytes = THERE, **fields: int) -> None:
        self.agent.receive(wire.pack(attr, tid, fields, private), source, 0)

    def request(self, **more: Any) -> None:
        self.hear(
            mad.CM_REQ,
            **{
                "local_comm_id": 77,
                "service_id": SERVICE,
                "qpn": 0x22,
                "psn": 9,
                "path_mtu": 3,
                "initiator_depth": 4,
                "responder_resources": 2,
                "max_cm_retries": 3,
                "local_cm_timeout": 20,
                "primary_local_gid": int.from_bytes(THERE, "big"),
                "primary_remote_gid": int.from_bytes(HERE, "big"),
                **more,
            },
        )

    def resolve(self) -> None:
        self.hear(mad.CM_SIDR_REQ, request_id=77, service_id=SERVICE)

    def listen(self, backlog: int = 8) -> ServiceListener:
        return self.agent.listen(SERVICE, self.events.append, backlog)

    def asked(self) -> ConnectionRecord:
        """A request that waits for an answer."""
        self.listen()
        self.request()
        return self.events[-1].connection

    def in_state(self, state: State) -> ConnectionRecord:
        """A connection with a peer, put into a state."""
        connection = self.agent.connect(
            THERE, SERVICE, self.events.append, 0, datagram=state.name.startswith("SIDR"), local=Parameters(qpn=0x11)
        )
        connection.state = state
        connection.expires = state in (State.TIMEWAIT, State.REJ_SENT, State.SIDR_REP_SENT)
        connection.remote_id = connection.local_id if connection.datagram else 77
        connection.remote = Parameters(qpn=0x22)
        self.agent._by_remote[THERE, connection.remote_id, connection.datagram] = connection
        self.events.clear()
        self.port.sent.clear()
        return connection


MESSAGES: dict[Input, tuple[int, dict[str, Any]]] = {
    Input.RX_REQ: (mad.CM_REQ, {}),
    Input.RX_MRA_REQ: (mad.CM_MRA, {"message": 0, "service_timeout": 10}),
    Input.RX_MRA_REP: (mad.CM_MRA, {"message": 1, "service_timeout": 10}),
    Input.RX_REJ: (mad.CM_REJ, {"reason": 28}),
    Input.RX_REP: (mad.CM_REP, {"qpn": 0x22, "psn": 1}),
    Input.RX_RTU: (mad.CM_RTU, {}),
    Input.RX_DREQ: (mad.CM_DREQ, {"qpn": 0x11}),
    Input.RX_DREP: (mad.CM_DREP, {}),
    Input.RX_SIDR_REQ: (mad.CM_SIDR_REQ, {}),
    Input.RX_SIDR_REP: (mad.CM_SIDR_REP, {"qpn": 0x33}),
}
SENDS = {
    Action.SEND_REQ: mad.CM_REQ,
    Action.SEND_REP: mad.CM_REP,
    Action.SEND_RTU: mad.CM_RTU,
    Action.SEND_MRA: mad.CM_MRA,
    Action.SEND_REJ: mad.CM_REJ,
    Action.SEND_REJ_TIMEOUT: mad.CM_REJ,
    Action.SEND_DREQ: mad.CM_DREQ,
    Action.SEND_DREP: mad.CM_DREP,
    Action.SEND_SIDR_REQ: mad.CM_SIDR_REQ,
    Action.SEND_SIDR_REP: mad.CM_SIDR_REP,
}
TELLS = {
    Action.REPORT_RESPONSE: cm.EVENT_CONNECT_RESPONSE,
    Action.REPORT_ESTABLISHED: cm.EVENT_ESTABLISHED,
    Action.REPORT_REJECTED: cm.EVENT_REJECTED,
    Action.REPORT_UNREACHABLE: cm.EVENT_UNREACHABLE,
    Action.REPORT_CONNECT_ERROR: cm.EVENT_CONNECT_ERROR,
    Action.REPORT_DISCONNECTED: cm.EVENT_DISCONNECTED,
    Action.REPORT_TIMEWAIT_EXIT: cm.EVENT_TIMEWAIT_EXIT,
    Action.REPORT_SIDR: cm.EVENT_ESTABLISHED,
}


def deliver(bench: Bench, connection: ConnectionRecord, what: Input) -> None:
    attr, fields = MESSAGES[what]
    if what is Input.RX_REQ:
        bench.request(local_comm_id=connection.remote_id)
    elif what is Input.RX_SIDR_REQ:
        bench.hear(attr, request_id=connection.remote_id, service_id=SERVICE)
    elif what is Input.RX_SIDR_REP:
        bench.hear(attr, connection.tid, request_id=connection.local_id, **fields)
    else:
        bench.hear(attr, local_comm_id=connection.remote_id, remote_comm_id=connection.local_id, **fields)


def first_of_another_kind(state: State, what: Input) -> bool:
    """A request by datagram in the life of a connection, or the other way round: a new ID, not this one's matter."""
    return what is (Input.RX_REQ if state.name.startswith("SIDR") else Input.RX_SIDR_REQ)


@pytest.mark.parametrize(
    ("state", "what"), [pair for pair in product(State, MESSAGES) if not first_of_another_kind(*pair)]
)
def test_every_state_with_every_message(state: State, what: Input) -> None:
    """A listed pair does what its row says, in that order; another changes nothing and is counted."""
    bench = Bench()
    connection = bench.in_state(state)
    about_datagrams = what in (Input.RX_SIDR_REQ, Input.RX_SIDR_REP)
    deliver(bench, connection, what)
    sent = [message.attr for message, _ in bench.port.sent]
    told = [event.event for event in bench.events]
    row = TABLE.get((state, what))
    if row is None or connection.datagram is not about_datagrams:
        assert connection.state is state
        assert not told
        assert not sent
        assert bench.counters["cm_unexpected"] == 1
        return
    following, actions = row
    assert connection.state is following
    expected = [SENDS[action] for action in actions if action in SENDS]
    if Action.REPEAT in actions:
        expected.append(wire.parse(connection.last_message).attr)  # type: ignore[union-attr]
    assert sent == expected
    assert told == [TELLS[action] for action in actions if action in TELLS]
    if what is not Input.RX_SIDR_REP:
        assert all(gid == THERE for _, gid in bench.port.sent)
    waits = connection.deadline_ns is not None
    if Action.STOP in actions and not {Action.START_TIMEWAIT, Action.KEEP_ANSWER} & set(actions):
        assert not waits
    if {Action.START_TIMEWAIT, Action.KEEP_ANSWER, Action.EXTEND} & set(actions):
        assert waits
    if following is State.CLOSED:
        assert connection.local_id not in bench.agent.connections


OWN = (Input.ACCEPT, Input.ESTABLISH, Input.REJECT, Input.DISCONNECT, Input.COMM_EST, Input.DESTROY)


@pytest.mark.parametrize(("state", "what"), list(product(State, OWN)))
def test_every_state_with_every_request_of_its_owner(state: State, what: Input) -> None:
    bench = Bench()
    connection = bench.in_state(state)
    row = TABLE.get((state, what))
    if row is None:
        with pytest.raises(CmError, match=f"{state.name} cannot {what.name.lower()}") as refused:
            bench.agent.request(connection, what, 0)
        assert refused.value.errno == 22
        assert connection.state is state
        assert not bench.port.sent
        return
    bench.agent.request(connection, what, 0)
    assert connection.state is row[0]
    assert [message.attr for message, _ in bench.port.sent] == [SENDS[do] for do in row[1] if do in SENDS]
    if what is Input.DESTROY:
        assert not bench.events


@pytest.mark.parametrize("state", State)
def test_every_state_ends_by_itself_once_its_owner_is_gone(state: State) -> None:
    """Abandoned, and with a peer that says nothing, no state is for ever."""
    bench = Bench()
    connection = bench.in_state(state)
    bench.agent.request(connection, Input.DESTROY, 0)
    now = 0
    for _ in range(64):  # waits: for the last timer
        deadline = bench.agent.next_deadline_ns()
        if deadline is None:
            break
        assert deadline > now
        now = deadline
        bench.agent.handle_timers(now)
    assert connection.state is State.CLOSED
    assert not bench.agent.connections
    assert not bench.agent._by_remote
    assert not bench.agent._by_qpn


def test_the_table_leaves_every_state_and_reaches_all_it_names() -> None:
    reached = {State.IDLE, State.REQ_RCVD, State.SIDR_REQ_RCVD} | {row[0] for row in TABLE.values()}
    assert reached == set(State)
    for state in set(State) - {State.CLOSED}:
        assert any(before is state and row[0] is not state for (before, _), row in TABLE.items()), state


def test_a_whole_life_on_the_active_side() -> None:
    bench = Bench()
    local = Parameters(qpn=0x11, responder_resources=3, initiator_depth=5, retry_count=6, rnr_retry_count=4)
    connection = bench.agent.connect(THERE, SERVICE, bench.events.append, 0, local=local, private=b"hello")
    request = bench.port.last()
    assert request.attr == mad.CM_REQ
    assert request.private[:5] == b"hello"
    assert request.fields["service_id"] == 0x0000_0000_0106_1C06
    assert request.fields["primary_remote_gid"] == int.from_bytes(THERE, "big")
    assert (request.fields["responder_resources"], request.fields["initiator_depth"]) == (3, 5)
    assert (request.fields["retry_count"], request.fields["rnr_retry_count"]) == (6, 4)
    assert request.fields["path_mtu"] == 5
    mine = connection.local_id
    reply: dict[str, Any] = {
        "local_comm_id": 77,
        "remote_comm_id": mine,
        "qpn": 0x22,
        "psn": 0x123456,
        "responder_resources": 2,
    }
    bench.hear(mad.CM_REP, request.tid, b"welcome", **reply)
    assert bench.events[-1].event == cm.EVENT_CONNECT_RESPONSE
    assert bench.events[-1].private[:7] == b"welcome"
    assert (connection.remote.qpn, connection.remote.psn, connection.remote.responder_resources) == (0x22, 0x123456, 2)
    bench.agent.request(connection, Input.ESTABLISH, 0)
    assert bench.port.last().attr == mad.CM_RTU
    assert bench.port.last().tid == request.tid
    assert bench.port.last().fields == {"local_comm_id": mine, "remote_comm_id": 77}
    bench.agent.request(connection, Input.DISCONNECT, 0)
    assert bench.port.last().fields["qpn"] == 0x22
    bench.hear(mad.CM_DREP, local_comm_id=77, remote_comm_id=mine)
    assert bench.events[-1].event == cm.EVENT_DISCONNECTED
    bench.agent.handle_timers(60 * SECOND)
    assert bench.events[-1].event == cm.EVENT_TIMEWAIT_EXIT
    assert not bench.agent.connections


def test_a_request_that_nobody_listens_for_is_rejected_and_leaves_nothing() -> None:
    bench = Bench()
    bench.request()
    refusal = bench.port.last()
    assert refusal.attr == mad.CM_REJ
    assert refusal.fields["reason"] == cm.REJ_INVALID_SERVICE_ID
    assert refusal.fields["remote_comm_id"] == 77
    assert not bench.agent.connections


@pytest.mark.parametrize("ask", [Bench.request, Bench.resolve])
def test_a_request_between_two_listeners_waits_for_the_second(ask: Callable[[Bench], None]) -> None:
    bench = Bench()
    first = bench.listen()
    bench.agent.unlisten(first)
    ask(bench)
    ask(bench)  # a repetition
    assert not bench.port.sent
    assert bench.agent.next_deadline_ns() == HOLD_NS
    bench.listen()
    assert bench.agent.next_deadline_ns() == 0
    bench.agent.handle_timers(1)
    assert [event.event for event in bench.events] == [cm.EVENT_CONNECT_REQUEST]
    assert bench.agent.next_deadline_ns() is None


@pytest.mark.parametrize(
    ("ask", "refusal"),
    [
        (Bench.request, {"reason": cm.REJ_INVALID_SERVICE_ID, "remote_comm_id": 77}),
        (Bench.resolve, {"status": cm.SIDR_UNSUPPORTED, "request_id": 77}),
    ],
)
def test_a_request_after_the_last_listener_is_rejected_a_moment_later(
    ask: Callable[[Bench], None], refusal: dict[str, int]
) -> None:
    bench = Bench()
    bench.agent.unlisten(bench.listen())
    ask(bench)
    bench.agent.handle_timers(HOLD_NS - 1)
    assert not bench.port.sent
    bench.agent.handle_timers(HOLD_NS)
    assert refusal.items() <= bench.port.last().fields.items()
    assert bench.agent.next_deadline_ns() is None


def test_a_sidr_request_waits_for_a_port_of_the_other_port_space() -> None:
    """perftest's server agrees by PS_TCP, and then listens in PS_UDP: its client may be there first."""
    bench = Bench()
    bench.agent.unlisten(bench.listen())
    other = cm.service_id(cm.PS_UDP, 7174)
    bench.hear(mad.CM_SIDR_REQ, request_id=77, service_id=other)
    assert not bench.port.sent
    bench.agent.listen(other, bench.events.append)
    bench.agent.handle_timers(1)
    assert [event.connection.service_id for event in bench.events] == [other]


def test_only_service_ids_of_ports_have_something_in_common() -> None:
    assert cm.port_key(cm.service_id(cm.PS_TCP, 80)) == cm.port_key(cm.service_id(cm.PS_UDP, 80))
    assert cm.port_key(cm.service_id(cm.PS_TCP, 80)) != cm.port_key(cm.service_id(cm.PS_TCP, 81))
    assert cm.port_key(0x1000_0000_0006_0050) == 0x1000_0000_0006_0050


def test_requests_that_wait_are_bounded() -> None:
    bench = Bench()
    bench.agent.unlisten(bench.listen())
    for number in range(MAX_HELD + 1):
        bench.request(local_comm_id=100 + number, qpn=0x40 + number)
    assert bench.port.last().fields["remote_comm_id"] == 100 + MAX_HELD
    assert len(bench.port.sent) == 1


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("transport", 3, cm.REJ_INVALID_TRANSPORT_TYPE),
        ("path_mtu", 6, cm.REJ_INVALID_MTU),
        ("path_mtu", 0, cm.REJ_INVALID_MTU),
        ("primary_local_gid", 1, cm.REJ_INVALID_GID),
        ("primary_remote_gid", 1, cm.REJ_INVALID_GID),
        ("service_id", 1, cm.REJ_INVALID_SERVICE_ID),
    ],
)
def test_a_request_that_cannot_be_is_rejected_with_its_reason(field: str, value: int, reason: int) -> None:
    bench = Bench()
    bench.listen()
    bench.request(**{field: value})
    assert bench.port.last().fields["reason"] == reason
    assert not bench.events


def test_requests_beyond_the_backlog_are_dropped() -> None:
    bench = Bench()
    listener = bench.listen(backlog=2)
    for number in range(3):
        bench.request(local_comm_id=100 + number, qpn=0x40 + number)
    assert len(bench.events) == 2
    assert not bench.port.sent, "whose request was dropped asks again"
    assert bench.counters["cm_backlog_full"] == 1
    first, second = (event.connection for event in bench.events)
    bench.agent.release_backlog(first)
    bench.agent.release_backlog(first)
    bench.request(local_comm_id=102, qpn=0x42)
    assert [event.connection.remote_id for event in bench.events] == [100, 101, 102]
    assert listener.waiting == 2
    bench.agent.request(first, Input.REJECT, 0)
    assert listener.waiting == 2, "that place was free already"
    bench.agent.request(second, Input.REJECT, 0)
    assert listener.waiting == 1


def test_a_withdrawn_request_keeps_its_backlog_entry_until_seen() -> None:
    """Or peers that come and go could fill the owner's memory."""
    bench = Bench()
    listener = bench.listen(backlog=1)
    bench.request()
    connection = bench.events[-1].connection
    bench.hear(mad.CM_REJ, local_comm_id=77, remote_comm_id=connection.local_id, reason=cm.REJ_TIMEOUT)
    assert connection.state is State.CLOSED
    assert listener.waiting == 1
    bench.agent.request(connection, Input.DESTROY, 0)
    assert listener.waiting == 0


def test_datagram_requests_beyond_the_backlog_are_rejected() -> None:
    bench = Bench()
    bench.listen(backlog=1)
    for number in range(2):
        bench.hear(mad.CM_SIDR_REQ, request_id=100 + number, service_id=SERVICE)
    assert len(bench.events) == 1
    assert bench.port.last().fields["status"] == cm.SIDR_REJECTED


def test_a_backlog_is_bounded_and_has_a_default() -> None:
    bench = Bench()
    assert bench.agent.listen(1, bench.events.append, 1 << 30).backlog == MAX_BACKLOG
    assert bench.agent.listen(2, bench.events.append, 0).backlog == MAX_BACKLOG, "as Linux has it"
    with pytest.raises(CmError, match="is taken"):
        bench.agent.listen(2, bench.events.append)


def test_a_new_request_for_a_queue_pair_ends_its_old_connection() -> None:
    bench = Bench()
    connection = bench.asked()
    bench.agent.request(connection, Input.ACCEPT, 0)
    bench.hear(mad.CM_RTU, local_comm_id=77, remote_comm_id=connection.local_id)
    bench.request(local_comm_id=78)
    assert bench.port.last().fields["reason"] == cm.REJ_STALE_CONN
    assert bench.events[-1].event == cm.EVENT_DISCONNECTED
    bench.request(local_comm_id=79)
    assert bench.events[-1].event == cm.EVENT_CONNECT_REQUEST


def _said_together(bench: Bench, count: int) -> list[ConnectionRecord]:
    """Requests to one peer, a millisecond apart."""
    return [bench.agent.connect(THERE, SERVICE, bench.events.append, number * 1_000_000) for number in range(count)]


def _answer(bench: Bench, connection: ConnectionRecord, now_ns: int) -> None:
    fields = {"remote_comm_id": connection.local_id, "local_comm_id": connection.local_id ^ 1, "qpn": 0x22, "psn": 1}
    bench.agent.receive(wire.pack(mad.CM_REP, 5, fields, b""), THERE, now_ns)


def test_what_a_peer_has_yet_to_come_to_is_not_repeated() -> None:
    """It takes half a second for each of ten requests, in their order."""
    bench = Bench()
    waiting = _said_together(bench, 10)
    now = 0
    for connection in waiting:
        for _ in range(50):
            now += SECOND // 100
            bench.agent.handle_timers(now)
        _answer(bench, connection, now)
    assert [each.state for each in waiting] == [State.REP_RCVD] * 10
    assert bench.counters["cm_repeats"] == 10, "once, while nobody had answered anything"


def test_what_a_peer_has_passed_over_is_repeated() -> None:
    bench = Bench()
    lost, later, last = _said_together(bench, 3)
    _answer(bench, later, SECOND // 10)
    bench.agent.handle_timers(SECOND // 3)
    assert (lost.tries, last.tries) == (2, 1)
    assert bench.counters["cm_repeats"] == 1


def test_an_unanswered_request_is_retransmitted_with_backoff_then_given_up() -> None:
    bench = Bench()
    bench.agent.connect(THERE, SERVICE, bench.events.append, 0)
    times = []
    while (deadline := bench.agent.next_deadline_ns()) is not None:
        times.append(deadline)
        bench.agent.handle_timers(deadline)
    assert times[0] < SECOND // 2
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == sorted(gaps)
    assert max(gaps) < 6 * SECOND
    requests = [message for message, _ in bench.port.sent if message.attr == mad.CM_REQ]
    assert len(requests) == 1 + cm.MAX_CM_RETRIES
    assert len({request.tid for request in requests}) == 1
    assert [(event.event, event.status) for event in bench.events] == [(cm.EVENT_UNREACHABLE, -110)]
    assert bench.port.last().attr == mad.CM_REJ


def test_messages_from_another_address_than_the_peers_do_nothing() -> None:
    bench = Bench()
    connection = bench.in_state(State.ESTABLISHED)
    other = THERE[:15] + b"\x09"
    fields: dict[str, Any] = {"local_comm_id": 77, "remote_comm_id": connection.local_id, "qpn": 0x11}
    bench.hear(mad.CM_DREQ, source=other, **fields)
    assert connection.state is State.ESTABLISHED
    assert not bench.events


def test_a_message_with_another_communication_id_than_the_peers_does_nothing() -> None:
    bench = Bench()
    connection = bench.in_state(State.ESTABLISHED)
    bench.hear(mad.CM_DREQ, local_comm_id=78, remote_comm_id=connection.local_id, qpn=0x11)
    assert connection.state is State.ESTABLISHED
    assert bench.counters["cm_unexpected"] == 1


def test_who_asks_us_to_disconnect_what_we_forgot_is_answered() -> None:
    bench = Bench()
    bench.hear(mad.CM_DREQ, local_comm_id=5, remote_comm_id=6, qpn=1)
    assert bench.port.last().attr == mad.CM_DREP
    assert bench.port.last().fields == {"local_comm_id": 6, "remote_comm_id": 5}


def test_who_replies_to_what_we_forgot_is_rejected() -> None:
    bench = Bench()
    bench.hear(mad.CM_REP, local_comm_id=5, remote_comm_id=6)
    assert bench.port.last().fields["reason"] == cm.REJ_INVALID_COMM_ID


def test_alternate_paths_are_refused() -> None:
    bench = Bench()
    connection = bench.in_state(State.ESTABLISHED)
    bench.hear(mad.CM_LAP, local_comm_id=77, remote_comm_id=connection.local_id)
    assert bench.port.last().attr == mad.CM_APR
    assert bench.port.last().fields["status"] == cm.APR_UNSUPPORTED
    assert connection.state is State.ESTABLISHED


def test_a_service_is_resolved_by_datagram() -> None:
    bench = Bench()
    connection = bench.agent.connect(THERE, SERVICE, bench.events.append, 0, datagram=True, private=b"who")
    asked = bench.port.last()
    assert asked.attr == mad.CM_SIDR_REQ
    assert asked.private[:3] == b"who"
    bench.hear(mad.CM_SIDR_REP, asked.tid, b"me", request_id=asked.fields["request_id"], qpn=0x33, qkey=0x44)
    assert bench.events[-1].event == cm.EVENT_ESTABLISHED
    assert bench.events[-1].private[:2] == b"me"
    assert (connection.remote.qpn, connection.remote.qkey) == (0x33, 0x44)


def test_private_data_that_is_too_long_is_refused() -> None:
    bench = Bench()
    with pytest.raises(CmError, match="too many"):
        bench.agent.connect(THERE, SERVICE, bench.events.append, 0, private=bytes(93))
    connection = bench.asked()
    with pytest.raises(CmError, match="too many"):
        bench.agent.request(connection, Input.REJECT, 0, bytes(149))
    bench.agent.request(connection, Input.REJECT, 0, bytes(148))


def test_a_timeout_says_whose_it_is() -> None:
    """Linux finds the connection by the GUID in the additional information, and by the sender's ID."""
    bench = Bench()
    connection = bench.agent.connect(THERE, SERVICE, bench.events.append, 0)
    bench.agent.request(connection, Input.DESTROY, 0)
    said = bench.port.last()
    assert (said.attr, said.fields["reason"], said.fields["info_length"]) == (mad.CM_REJ, cm.REJ_TIMEOUT, 8)
    assert wire.REJ.pack(said.fields)[12:20] == Wire.guid.to_bytes(8, "big")
    assert said.fields["local_comm_id"] == connection.local_id


@pytest.mark.parametrize("datagram", [False, True])
def test_a_reason_that_fits_no_message_is_refused_and_changes_nothing(datagram: bool) -> None:
    bench = Bench()
    connection = bench.in_state(State.SIDR_REQ_RCVD if datagram else State.REQ_RCVD)
    with pytest.raises(CmError, match="status=65536 is too large for a CM"):
        bench.agent.request(connection, Input.REJECT, 0, status=0x10000)
    assert connection.state in (State.SIDR_REQ_RCVD, State.REQ_RCVD)
    bench.agent.request(connection, Input.REJECT, 0, status=0xFF)
    while (deadline := bench.agent.next_deadline_ns()) is not None:
        bench.agent.handle_timers(deadline)
    assert bench.agent.connections == {}


def test_a_peer_that_moves_its_deadline_again_and_again_costs_no_memory() -> None:
    bench = Bench()
    connection = bench.in_state(State.REP_SENT)
    for _ in range(1_000):
        bench.hear(mad.CM_MRA, local_comm_id=77, remote_comm_id=connection.local_id, message=1, service_timeout=31)
    assert connection.state is State.MRA_REP_RCVD
    assert len(bench.agent._deadlines) < 100
    assert bench.agent.next_deadline_ns() == connection.deadline_ns


def test_an_mra_of_another_id_extends_nothing() -> None:
    bench = Bench()
    connection = bench.in_state(State.REP_SENT)
    bench.hear(mad.CM_MRA, local_comm_id=78, remote_comm_id=connection.local_id, message=1, service_timeout=31)
    assert connection.peer_timeout == cm.RESPONSE_TIMEOUT
