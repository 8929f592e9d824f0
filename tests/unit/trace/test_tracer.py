from __future__ import annotations

from rnic.trace import ListTracer, NullTracer, Tracer


def report(tracer: Tracer) -> None:
    tracer.event(5, "requester", 17, psn=1, opcode="RC_SEND_ONLY")
    tracer.event(6, "responder", 18)


def test_list_tracer_keeps_events_in_order() -> None:
    tracer = ListTracer()
    report(tracer)
    assert tracer.enabled
    assert tracer.events == [
        (5, "requester", 17, {"psn": 1, "opcode": "RC_SEND_ONLY"}),
        (6, "responder", 18, {}),
    ]
    assert [event.qpn for event in tracer.of("responder")] == [18]


def test_null_tracer_says_that_nobody_listens() -> None:
    tracer = NullTracer()
    report(tracer)
    assert not tracer.enabled
