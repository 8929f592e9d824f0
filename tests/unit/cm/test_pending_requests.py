"""Requests between two listeners of a service: which wait, for how long, and in which order they are given back."""

from __future__ import annotations

from rnic.cm.pending_requests import HOLD_NS, MAX_HELD, MAX_PORTS, PendingRequests
from rnic.spec import cm
from rnic.wire.cm import Message

FROM = bytes(16)
PORT = cm.service_id(cm.PS_TCP, 80)
SAME_PORT = cm.service_id(cm.PS_UDP, 80)


def request(service: int, tid: int = 0) -> Message:
    return Message(0, tid, {"service_id": service}, b"")


def released(held: PendingRequests, listeners: set[int], now_ns: int) -> list[int]:
    tids: list[int] = []
    held.release(listeners, now_ns, lambda message, source: tids.append(message.tid))
    return tids


def test_only_a_port_that_somebody_listened_on_is_waited_for() -> None:
    held = PendingRequests()
    assert not held.hold(request(PORT), FROM, 0)
    held.listener_closed(PORT)
    assert held.hold(request(PORT), FROM, 0)
    assert held.hold(request(SAME_PORT), FROM, 0), "the next listener may be of the other port space"
    assert not held.hold(request(cm.service_id(cm.PS_TCP, 81)), FROM, 0)


def test_a_request_waits_for_its_listener_or_its_time() -> None:
    held = PendingRequests()
    held.listener_closed(PORT)
    assert held.next_deadline_ns(()) is None
    for tid, (service, now) in enumerate([(PORT, 5), (SAME_PORT, 6), (PORT, 7)]):
        assert held.hold(request(service, tid), FROM, now)
    assert held.next_deadline_ns(()) == 5 + HOLD_NS
    assert held.next_deadline_ns({SAME_PORT}) == 0
    assert released(held, {SAME_PORT}, 8) == [1]
    assert released(held, set(), 4 + HOLD_NS) == []
    assert released(held, set(), 5 + HOLD_NS) == [0]
    assert held.next_deadline_ns(()) == 7 + HOLD_NS
    assert released(held, {PORT}, 9) == [2]
    assert held.next_deadline_ns({PORT}) is None


def test_requests_that_wait_are_bounded_and_so_are_ports() -> None:
    """The ports that were left last are known."""
    held = PendingRequests()
    for service in range(MAX_PORTS + 1):
        held.listener_closed(service)
    held.listener_closed(1)
    held.listener_closed(MAX_PORTS + 1)
    kept = [service for service in range(MAX_PORTS + 2) if held.hold(request(service), FROM, 0)]
    assert kept == [1, *range(3, MAX_PORTS + 2)]
    assert [held.hold(request(1), FROM, 0) for _ in range(MAX_HELD - len(kept) + 1)][-1] is False
    assert len(released(held, set(), HOLD_NS)) == MAX_HELD
