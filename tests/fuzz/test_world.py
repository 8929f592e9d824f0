"""Whole worlds from seeds: nothing is found in them, each is the same again, and what is planted is found and shrunk.

The long form, for as many seeds as there is time: ``python -m rnic.testing.world --help``.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rnic.cc.control import Ack, Control, Flow
from rnic.cc.swift import Swift
from rnic.cc.timely import Timely
from rnic.device.queue_pair import DeviceQp
from rnic.engine import use
from rnic.link.fault_events import ASYNC_EVENTS, EVENTS
from rnic.link.faults import FaultyLink
from rnic.spec.psn import PSN_MASK
from rnic.testing.executors import executed_by, steps_alone
from rnic.testing.world import Figures, Plan, World, make_plan, run_both, run_plan
from rnic.testing.world.command import in_processes, kind, main, run_seed, smallest
from rnic.testing.world.plan import LARGE_AREA, QUEUES, VERBS, XRC_FAULTS
from rnic.testing.world.shrink import shrink
from rnic.testing.world.tap import Tap
from rnic.transport.responder import Responder
from rnic.transport.response_queue import ReplyQueue
from rnic.transport.sge import Payload
from rnic.verbs import enums as e
from rnic.verbs.attrs import WC
from rnic.verbs.cq import CQ

STEPS = 120
SEEDS = (2, 3, 5, 8, 13, 21)
FEW_STEPS = 60
NAK_BESIDE_A_WAITER = Plan(
    1,
    3,
    {"recovery": "go-back-n", "ack_every": 64, "window_packets": 64, "congestion": "dcqcn"},
    (
        {
            "do": "connect",
            "of": 1,
            "service": "RC",
            "a": 1,
            "b": 2,
            "mtu": 1,
            "srq": False,
            "selective": True,
            "timeout": 10,
            "psn": 10897575,
            "data": 39534911,
        },
        {
            "do": "connect",
            "of": 2,
            "service": "RC",
            "a": 2,
            "b": 0,
            "mtu": 1,
            "srq": False,
            "selective": False,
            "timeout": 12,
            "psn": 0,
            "data": 1484771968,
        },
        {
            "do": "connect",
            "of": 3,
            "service": "RC",
            "a": 2,
            "b": 0,
            "mtu": 4,
            "srq": False,
            "selective": False,
            "timeout": 14,
            "psn": 15471756,
            "data": 429497919,
        },
        {
            "do": "post",
            "of": 2,
            "way": 1,
            "verb": "WRITE_IMM",
            "length": 54548,
            "at": 2136,
            "to": 138,
            "how": "",
            "signaled": True,
            "fence": False,
            "value": 3868962345,
            "key": "window",
        },
        {"do": "settle"},
        {
            "do": "fault-rates",
            "rates": {"drop": 0.2, "corrupt": 0.0, "duplicate": 0.2, "delay": 0.2, "reorder": 0.0, "mark": 0.0},
        },
        {"do": "fault", "nic": 2, "event": "port-down", "for": "1ms"},
        {
            "do": "post",
            "of": 1,
            "way": 1,
            "verb": "WRITE_IMM",
            "length": 49209,
            "at": 12961,
            "to": 14110,
            "how": "",
            "signaled": True,
            "fence": False,
            "value": 3675193638,
            "key": "window",
        },
        {
            "do": "post",
            "of": 3,
            "way": 1,
            "verb": "WRITE",
            "length": 58943,
            "at": 6415,
            "to": 5989,
            "how": "inline",
            "signaled": True,
            "fence": False,
            "value": 1642333862,
            "key": "window",
        },
        {
            "do": "post",
            "of": 2,
            "way": 1,
            "verb": "READ",
            "length": 63018,
            "at": 1250,
            "to": 697,
            "how": "inline",
            "signaled": True,
            "fence": False,
            "value": 1543705884,
        },
        {"do": "run", "turns": 200},
    ),
)
"""A NAK gives back what a queue pair had in flight, for which another one waits: the order of their turns."""
RESPONSE_BESIDE_A_WAITER = Plan(
    7017,
    5,
    {"recovery": "go-back-n", "ack_every": 64, "window_packets": 64, "congestion": "dcqcn"},
    (
        {
            "do": "connect",
            "of": 1,
            "service": "RC",
            "a": 4,
            "b": 2,
            "mtu": 4,
            "srq": False,
            "selective": False,
            "timeout": 14,
            "psn": 6005232,
            "cm": False,
            "data": 2544288874,
        },
        {
            "do": "connect",
            "of": 2,
            "service": "RC",
            "a": 2,
            "b": 4,
            "mtu": 5,
            "srq": True,
            "selective": False,
            "timeout": 14,
            "psn": 16776960,
            "cm": True,
            "data": 3145471225,
        },
        {
            "do": "post",
            "of": 2,
            "way": 1,
            "verb": "FETCH_ADD",
            "length": 8,
            "at": 14112,
            "to": 60573,
            "how": "list",
            "signaled": True,
            "fence": True,
            "value": 2710723011,
            "times": 8,
        },
        {
            "do": "post",
            "of": 1,
            "way": 0,
            "verb": "WRITE",
            "length": 58346,
            "at": 4751,
            "to": 4928,
            "how": "",
            "signaled": True,
            "fence": True,
            "value": 2515941720,
            "times": 1,
        },
    ),
)
"""An atomic response gives back room for which another queue pair waits: that one has its turn first."""
compiled = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.full) for seed in SEEDS[1:])])
def test_nothing_is_found(seed: int) -> None:
    found = run_plan(make_plan(seed, STEPS))
    assert (found.finding, found.step) == ("", len(make_plan(seed, STEPS).steps))
    assert found.operations > 50
    assert found.packets > 100
    assert found.faults > 0


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.full) for seed in (4, 9))])
def test_the_engine_leaves_what_the_reference_leaves(seed: int) -> None:
    assert run_both(make_plan(seed, FEW_STEPS)).finding == ""


@compiled
@pytest.mark.slow
def test_what_gives_back_room_gives_turns_in_the_references_order() -> None:
    assert run_both(NAK_BESIDE_A_WAITER).finding == ""
    assert run_both(RESPONSE_BESIDE_A_WAITER).finding == ""


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("control", [Timely, Swift])
def test_a_control_in_python_hears_of_the_acks_that_the_engine_could_take(
    control: type[Control], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both executors then send the same; a lost packet and a timeout are among what it hears."""
    heard: list[int] = []
    on_ack = control.on_ack

    def listen(self: Control, flow: Flow, ack: Ack) -> None:
        heard.append(ack.packets)
        on_ack(self, flow, ack)

    monkeypatch.setattr(control, "on_ack", listen)
    lose = {"do": "lose", "of": 0, "way": 0, "opcode": "*", "nth": 20, "times": 2}
    lose_last = lose | {"opcode": "RC_WRITE_LAST", "nth": 2, "times": 1}
    plan = _small(lose, lose_last, WRITE | {"length": 54_437, "times": 2}, RUN, RUN, service="RC", mtu=2)
    settings = {"ack_every": 1, "window_packets": 16, "congestion": control.__name__.lower()}
    found = run_both(replace(plan, settings=settings))
    assert (found.finding, found.faults) == ("", 3)
    half = len(heard) // 2
    assert heard[:half] == heard[half:]
    assert sum(heard[:half]) == 2 * -(-54_437 // 512)


@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_nothing_is_found_in_new_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    first = random.SystemRandom().getrandbits(31)
    with capsys.disabled():
        print(f"\nworlds from seed {first} on")
        assert main(["--seed", str(first), "--seeds", "150"]) == 0


@pytest.mark.slow
def test_the_same_seed_is_the_same_world() -> None:
    """Byte for byte, in another process, where sets and dictionaries of strings have another order."""
    found = run_plan(make_plan(6, FEW_STEPS))
    assert found.packets > 100
    script = f"from rnic.testing.world import *; print(run_plan(make_plan(6, {FEW_STEPS})))"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    again = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert again.stdout.strip() == repr(found)


def test_a_plan_is_the_same_for_the_same_seed_and_reads_as_it_was_written() -> None:
    plan = make_plan(11)
    assert make_plan(11) == plan
    assert make_plan(12) != plan
    assert Plan.read(plan.text()) == plan
    assert Plan.read(replace(plan, by="reference").text()).by == "reference"


def _said(steps: object, **head: object) -> str:
    return json.dumps({"seed": 1, "nics": 2, "settings": {}, "steps": steps} | head)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"seed": 1}', "nics is missing: give it"),
        ('{"steps": "ab"}', "seed is missing"),
        (_said("ab"), "steps is not a list"),
        (_said([{}]), "step 0: do is None: give one of connect"),
        (_said([{"do": "settle"}, {"do": "fly"}]), "step 1: do is 'fly'"),
        (_said([7]), "step 0: it is 7: give an object"),
        (_said([{"do": "bind", "of": 1}]), "step 0: way is missing"),
        (_said([{"do": "run", "turns": "x"}]), "step 0: turns is 'x': give a whole number"),
        (_said([{"do": "fault-rates", "rates": {"drop": 2}}]), "give 0 to 1"),
        (_said([], nics="x"), "nics is 'x': give a whole number"),
        (_said([], nics=0), "nics is 0: give 1 to 64"),
        (_said([], seed=None), "seed is None"),
        (_said([], by="rxe"), "by is 'rxe'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        Plan.read(text)
    assert "\n" not in str(caught.value)


def test_plans_have_every_kind_of_step() -> None:
    plans = [make_plan(seed) for seed in range(40)]
    kinds = {step["do"] for plan in plans for step in plan.steps}
    assert kinds == {
        *("connect", "post", "recv", "run", "bind", "fault-rates", "fault", "rekey", "stop", "qp-error", "completion"),
        *("lose", "garbage", "end", "fatal", "srq-error", "cq-overflow", "settle", "region-gone", "async-event"),
    }
    events = {step["event"] for plan in plans for step in plan.steps if step["do"] == "fault"}
    assert events == {
        *(
            "port-down",
            "port-state",
            "path-loss",
            "slow-dma",
            "flap",
            "pkey",
            "gid",
            "interrupt-lost",
            "interrupt-late",
        ),
    }
    own = {"qp-error", "srq-error", "cq-overflow", "completion-error", "fatal", "region-gone", "async-event"}
    # nothing is left but to end a fault, or a NIC process, which worlds do not have: their programs end
    assert events | own == EVENTS.keys() - {"heal", "port-up", "kill"}
    assert any("left" in step for plan in plans for step in plan.steps)
    assert {step["service"] for plan in plans for step in plan.steps if step["do"] == "connect"} == VERBS.keys()
    posts = [step for plan in plans for step in plan.steps if step["do"] == "post"]
    assert {step["queue"] for step in posts if "queue" in step} == set(range(QUEUES))
    assert {step["key"] for step in posts if "key" in step} == {"window", "wrong", *XRC_FAULTS}
    assert {plan.settings["congestion"] for plan in plans} == {"none", "dcqcn", "limit", "timely", "swift"}
    for name in ("ipv6", "reorder"):
        assert {plan.settings[name] for plan in plans} == {False, True}
    assert {plan.nics for plan in plans} == {2, 3, 4, 5, 6}


# ----------------------------------------------------------------------------------------- what is planted


def _flip_a_stored_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of each longer piece is stored wrong."""
    write = Payload.write

    def wrong(self: Payload, offset: int, data: memoryview | bytes) -> bool:
        if len(data) > 100:
            data = bytes(data[:50]) + bytes((data[50] ^ 1,)) + bytes(data[51:])
        return write(self, offset, data)

    monkeypatch.setattr(Payload, "write", wrong)


def _execute_atomics_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    atomic = Responder._atomic

    def twice(self: Responder, packet: Any, payload: Any) -> int | None:
        first = atomic(self, packet, payload)
        atomic(self, packet, payload)
        return first

    monkeypatch.setattr(Responder, "_atomic", twice)


def _drop_a_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that finds several completions loses the second."""
    poll = CQ.poll

    def lossy(self: CQ, num_entries: int = 1) -> tuple[int, list[Any]]:
        _, found = poll(self, num_entries)
        del found[1:2]
        return len(found), found

    monkeypatch.setattr(CQ, "poll", lossy)


def _acknowledge_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ACK names the PSN behind the one that it answers: the judge of packets finds it."""
    acknowledge = ReplyQueue.acknowledge

    def ahead(self: ReplyQueue, psn: int, syndrome: int, msn: int) -> bool:
        return acknowledge(self, psn + 1 & PSN_MASK, syndrome, msn)

    monkeypatch.setattr(ReplyQueue, "acknowledge", ahead)


@pytest.fixture
def reference() -> Iterator[None]:
    """Defects are planted in the reference: it alone runs."""
    with steps_alone(), executed_by(engine=False):
        yield


@compiled
@pytest.mark.slow
@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize(
    ("plant", "said", "most"),
    [
        (_flip_a_stored_byte, "bytes in memory|memory at", 4),
        pytest.param(_execute_atomics_twice, "memory at", 4, marks=pytest.mark.full),
        pytest.param(_drop_a_completion, "no completion of|posted earlier", 8, marks=pytest.mark.full),
        pytest.param(_acknowledge_too_much, "rnic check|nothing explains", 4, marks=pytest.mark.full),
    ],
)
def test_what_is_planted_is_found_and_shrunk(
    plant: Callable[[pytest.MonkeyPatch], None], said: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(3, FEW_STEPS)
    plant(monkeypatch)
    found = run_plan(plan)
    assert re.search(said, found.finding)
    small = smallest(plan.having(plan.steps[: found.step + 1]), found.finding, run_plan, tries=80)
    assert len(small.steps) <= most, small.text()
    again = run_plan(small).finding
    assert kind(again) == kind(found.finding)
    monkeypatch.undo()
    assert run_plan(small).finding == ""


# ------------------------------------------------------------------------------------------- shrinking


def _plan(*numbers: int) -> Plan:
    return Plan(0, 2, {}, tuple({"do": "run", "turns": number} for number in numbers))


def _numbers(plan: Plan) -> list[int]:
    return [step["turns"] for step in plan.steps]


@pytest.mark.parametrize("needed", [{0}, {99}, {17, 18}, {0, 50, 99}, set(range(10, 20))])
def test_the_smallest_plan_has_what_is_needed_and_no_more(needed: set[int]) -> None:
    small = shrink(_plan(*range(100)), lambda plan: needed <= set(_numbers(plan)))
    assert _numbers(small) == sorted(needed)


def test_shrinking_ends_after_so_many_tries() -> None:
    tried: list[Plan] = []

    def fails(plan: Plan) -> bool:
        tried.append(plan)
        return len(plan.steps) > 30

    assert len(shrink(_plan(*range(100)), fails, 20).steps) > 30
    assert len(tried) <= 20


def test_kinds_of_findings_have_no_bytes_in_them() -> None:
    assert kind("memory at 17 is ffff, not abcd12") == kind("memory at 400 is 00, not beefbeef")
    assert kind("no completion of SEND 3") != kind("memory at 17 is ffff, not abcd12")


# ---------------------------------------------------------------------------------- small worlds by hand

CONNECT = {
    "do": "connect", "of": 0, "service": "UC", "a": 0, "b": 1, "mtu": 3, "srq": False, "selective": False,
    "timeout": 10, "psn": 7, "cm": False, "data": 3,
}  # fmt: skip
RECV = {"do": "recv", "of": 0, "way": 1, "count": 4}
SEND = {
    "do": "post", "of": 0, "way": 0, "verb": "SEND", "length": 100, "at": 0, "to": 0, "how": "", "signaled": True,
    "fence": False, "value": 1,
}  # fmt: skip
RUN = {"do": "run", "turns": 200}
RATES = {"do": "fault-rates", "rates": {"corrupt": 1.0}}


def _small(*steps: dict[str, Any], **connect: Any) -> Plan:
    return Plan.read(Plan(1, 2, {}, (CONNECT | connect, *steps)).text())


WRITE = SEND | {"verb": "WRITE", "length": 3000}
BIND = {"do": "bind", "of": 0, "way": 1}
PKEY = {"do": "fault", "event": "pkey", "nic": 1, "index": 0, "value": 0x8001, "for": "1ms"}
REGION = {"do": "region-gone", "of": 0, "way": 1, "for": "1ms"}
SPURIOUS = [{"do": "async-event", "nic": 1, "kind": kind} for kind in ASYNC_EVENTS]
CUT = [
    {"do": "lose", "of": 0, "way": 0, "opcode": "*", "nth": nth, "times": 1, "left": left}
    for nth, left in enumerate((1, 11, 12, 16, 20, 28, 40, 100), 1)
]
GONE = {"do": "region-gone", "of": 0, "way": 1, "for": "1ms"}
GID = {"do": "fault", "event": "gid", "nic": 1, "index": 0, "value": "none", "for": "1ms"}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([BIND, *[{"do": "run", "turns": 9}, WRITE | {"key": "window"}, BIND] * 2], id="window of type 1"),
        pytest.param([PKEY, RECV, SEND, {"do": "run", "turns": 50}, WRITE], id="P_Key"),
        pytest.param([GID, RECV, SEND, WRITE], id="GID"),
        pytest.param([RECV, SEND, WRITE, GONE, BIND, {"do": "settle"}, WRITE], id="region, then bind"),
        pytest.param([RECV, SEND, SEND, SEND, GID, {"do": "stop", "of": 0, "way": 1}], id="GID, then ERR"),
        pytest.param([RECV, WRITE, {"do": "cq-overflow", "nic": 1}, SEND, {"do": "settle"}, WRITE], id="CQ"),
        pytest.param([RECV, WRITE, REGION, REGION, SEND, WRITE, {"do": "settle"}, WRITE, RECV, SEND], id="region"),
        pytest.param([RECV, *SPURIOUS, SEND, WRITE], id="events for nothing"),
        pytest.param([RECV, *CUT, SEND, WRITE, WRITE | {"verb": "READ"}, {"do": "settle"}, WRITE], id="truncated"),
        pytest.param([RECV, SEND, {"do": "srq-error", "nic": 1}, RECV, SEND, {"do": "settle"}, RECV, SEND], id="SRQ"),
    ],
)
def test_what_can_happen_is_explained(steps: list[dict[str, Any]]) -> None:
    found = run_plan(_small(*steps, service="RC", window=1, srq=True))
    assert found.finding == ""
    assert found.packets > 3


@compiled
@pytest.mark.parametrize("engine", [True, False])
def test_the_answer_to_a_probe_acknowledges_nothing_behind_it(engine: bool) -> None:
    """The last response to a READ is lost, and the WRITE and the atomic behind it."""
    lose = {"do": "lose", "of": 0, "way": 1, "opcode": "RC_READ_RESPONSE_LAST", "nth": 1, "times": 1}
    steps = lose, lose | {"way": 0, "opcode": "*", "nth": 2, "times": 9}, WRITE | {"verb": "READ", "length": 1500}
    with steps_alone(), executed_by(engine=engine):
        found = run_plan(_small(*steps, WRITE, SEND | {"verb": "FETCH_ADD", "length": 8}, service="RC"))
    assert found.finding == ""
    assert found.faults > 4


QUEUED = [step | {"queue": at} for at in (2, 0, 1) for step in (RECV, SEND, WRITE | {"verb": "WRITE_IMM"}, WRITE)]
QUEUED += [WRITE | {"verb": "READ", "queue": 1}, SEND | {"verb": "FETCH_ADD", "length": 8, "queue": 2}]
OTHER_WAY = [step | {"way": int(step["way"] == 0)} for step in QUEUED]


@pytest.mark.parametrize(
    ("steps", "fails"),
    [
        pytest.param(QUEUED, False, id="queues"),
        pytest.param([SEND | {"key": "queue", "value": 0}], True, id="SRQ of no domain"),
        pytest.param([SEND | {"key": "queue", "value": 2}], True, id="no SRQ"),
        pytest.param([WRITE | {"key": "domain"}], True, id="SRQ of another domain"),
        pytest.param([WRITE | {"key": "pd", "queue": 1}], True, id="memory of another SRQ's domain"),
        pytest.param([WRITE | {"verb": "READ", "key": "pd", "queue": 1}], True, id="READ of it"),
        pytest.param([WRITE | {"verb": "FLUSH", "length": 8, "key": "pd"}], True, id="FLUSH of it"),
        pytest.param([WRITE | {"verb": "ATOMIC_WRITE", "length": 8, "key": "pd"}], True, id="ATOMIC WRITE of it"),
        pytest.param([WRITE | {"verb": "WRITE_IMM", "key": "wrong", "queue": 1}], True, id="wrong key"),
        pytest.param([{"do": "srq-error", "nic": 1, "queue": 2}], True, id="SRQ error"),
        pytest.param([{"do": "stop", "of": 0, "way": 1, "receiver": True}], True, id="receiver stopped"),
        pytest.param([{"do": "qp-error", "of": 0, "way": 1, "receiver": True}], True, id="receiver in error"),
        pytest.param([{"do": "cq-overflow", "nic": 1}], True, id="CQ"),
        pytest.param([{"do": "lose", "of": 0, "way": 0, "opcode": "XRC_*", "nth": 2, "times": 3}], False, id="loss"),
        pytest.param([GONE, WRITE | {"queue": 0}], True, id="region"),
        pytest.param([{"do": "garbage", "of": 0, "way": 0, "what": "sends", "data": 5}], True, id="garbage"),
    ],
)
def test_xrc_requests_reach_the_queues_that_they_name(steps: list[dict[str, Any]], fails: bool) -> None:
    """What fails one direction leaves the other alone, and the next settle connects both again."""
    plan = _small(*QUEUED, RUN, *steps, *OTHER_WAY, *QUEUED[:8], {"do": "settle"}, *QUEUED, *OTHER_WAY, service="XRC")
    with World(plan) as world:
        found = world.run()
        assert found.finding == ""
        assert (world.connections[0].joined > 1 or len(world.connections[0].ends[0].program.ends) < 2) == fails
    assert found.operations > len(QUEUED)


def _serve_any_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceQp, "_srq_of", lambda self, packet: self.nic.resources.srqs.get(packet.srqn))


def _take_the_first_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(self: DeviceQp, packet: Any) -> Any:
        return next(srq for srq in self.nic.resources.srqs.values() if srq.xrcd == self.xrcd)

    monkeypatch.setattr(DeviceQp, "_srq_of", first)


@pytest.mark.parametrize(
    ("plant", "steps", "said"),
    [
        (_serve_any_domain, [WRITE | {"key": "domain"}], "is a success, but WRITE .* must fail"),
        (_take_the_first_queue, [RECV | {"queue": 0}, SEND | {"queue": 1}], "to queue 1 arrived in queue 0"),
        (_take_the_first_queue, [WRITE | {"queue": 1}], "nothing explains"),
    ],
)
def test_an_xrc_request_in_a_wrong_queue_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    steps: list[dict[str, Any]],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = _small(*steps, service="XRC")
    assert run_plan(plan).finding == ""
    plant(monkeypatch)
    assert re.search(said, run_plan(plan).finding)


def test_what_must_fail_changes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where its status is right."""
    plan = _small(WRITE | {"key": "wrong"}, service="RC")
    assert run_plan(plan).finding == ""
    settle = World._settle

    def write(self: World, step: dict[str, Any]) -> None:
        direction = self.connections[0].ends[0].out
        work = direction.posted[0]
        direction.target[work.to : work.to + work.length] = direction.data(work)
        settle(self, step)

    monkeypatch.setattr(World, "_settle", write)
    assert "target memory at 0 is" in run_plan(plan).finding


def test_messages_may_be_larger_than_a_window_of_packets() -> None:
    """A response is lost, and a third of the WRITE behind it."""
    lose = {"do": "lose", "of": 0, "way": 1, "opcode": "RC_READ_RESPONSE_MIDDLE", "nth": 5, "times": 1}
    steps = [lose, lose | {"way": 0, "opcode": "RC_WRITE_MIDDLE", "nth": 9, "times": 80}]
    steps += [WRITE | {"verb": "READ", "length": LARGE_AREA // 4}, WRITE | {"length": LARGE_AREA // 8}, RUN]
    plan = Plan(1, 2, {"area": LARGE_AREA}, (CONNECT | {"service": "RC"}, *steps))
    found = run_plan(Plan.read(plan.text()))
    assert found.finding == ""
    assert found.faults == 81
    assert found.packets > LARGE_AREA // 4 // 1024


@pytest.mark.parametrize("what", ["sends", "receives", "registers"])
def test_garbage_in_queues_harms_nobody_else(what: str) -> None:
    """Of two connections of the same programs one is judged as ever."""
    other = [CONNECT | {"of": 1, "service": "RC"}, RECV | {"of": 1}, *[step | {"of": 1} for step in (WRITE, SEND)]]
    garbage = [{"do": "garbage", "of": 0, "way": way, "what": what, "data": way} for way in range(2)]
    found = run_plan(_small(*other, RECV, WRITE, *garbage, *other[2:], {"do": "settle"}, WRITE, service="RC"))
    assert found.finding == ""


def test_garbage_in_a_queue_pair_frees_its_srq_receive() -> None:
    """A message that came before the NIC looked at the garbage has used a receive that all share."""
    with World(_small(RECV, {"do": "stop", "of": 0, "way": 0}, RECV, service="RC", srq=True)) as world:
        assert world.run().finding == ""
        end = world.connections[0].ends[1]
        slots = end.queues[0].slots
        free, number = len(slots.free), next(iter(slots.posted))
        end.wild = True
        for wr_id in (number, number ^ 1 << 62):
            end.completed(WC(wr_id, e.IBV_WC_SUCCESS, e.IBV_WC_RECV))
        assert len(slots.free) == free + 1
        assert number not in slots.posted


def test_worlds_of_ipv6_addresses_are_judged_too() -> None:
    plan = _small(RECV, SEND, WRITE, service="RC")
    found = run_plan(replace(plan, settings={"ipv6": True}))
    assert (found.finding, found.packets) == ("", run_plan(plan).packets)


@compiled
def test_worlds_may_hold_what_comes_early() -> None:
    """Of what comes behind a lost packet nothing is sent again."""
    lose = {"do": "lose", "of": 0, "way": 0, "opcode": "RC_WRITE_MIDDLE", "nth": 10, "times": 1}
    plan = _small(lose, WRITE | {"length": 60_000, "times": 4}, service="RC", selective=True, mtu=1)
    held, dropped = (run_plan(replace(plan, settings={"reorder": reorder})) for reorder in (True, False))
    assert (held.finding, dropped.finding) == ("", "")
    assert held.packets < dropped.packets


def test_an_exception_is_a_finding_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: World, step: object) -> None:
        raise KeyError("seven")

    monkeypatch.setattr(World, "_recv", fail)
    found = run_plan(_small(RECV, SEND))
    assert re.fullmatch(r"KeyError at test_world\.py:\d+: 'seven'", found.finding)
    assert found.step == 1


@pytest.mark.usefixtures("own_errors")
def test_what_a_guard_has_caught_is_a_finding() -> None:
    with World(_small(SEND)) as world:
        world.net.nodes[1].nic.guard.caught("packet", KeyError("seven"))
        assert world.run().finding == "NIC 1: guards have caught internal errors of rnic: packet 1"


@pytest.mark.parametrize("service", ["UC", "UD"])
@pytest.mark.parametrize("verb", ["SEND", "WRITE"])
def test_a_receiver_that_delivers_nothing_is_found(service: str, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if service == "UD" and verb == "WRITE":
        verb = "SEND_IMM"
    plan = _small(RECV, SEND | {"verb": verb}, service=service)
    assert run_plan(plan).finding == ""
    monkeypatch.setattr(Tap, "send", lambda self, bursts: None)
    assert re.search("never arrived|target memory at", run_plan(plan).finding)
    lossy = _small({"do": "fault-rates", "rates": {"drop": 0.001}}, RECV, SEND | {"verb": verb}, service=service)
    assert run_plan(lossy).finding == ""


def test_only_the_icrcs_of_corrupted_packets_are_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _small(RATES, RECV, SEND, {"do": "settle"}, SEND)
    found = run_plan(plan)
    assert (found.finding, found.faults) == ("", 1)
    monkeypatch.setattr(FaultyLink, "_corrupted", lambda self, packet: None)
    assert ": icrc: " in run_plan(plan).finding


# ----------------------------------------------------------------------------------------- command line


def _die(seed: int) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


@pytest.mark.slow
def test_a_process_that_dies_is_a_finding_of_the_seeds_in_flight() -> None:
    found = list(in_processes(_die, [5, 6], 2, 60))
    assert [line["seed"] for line in found] == [5, 6]
    assert {line["finding"] for line in found} == {"the process died; in flight: seeds 5, 6"}


def test_a_seed_that_takes_too_long_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(plan: Plan) -> None:
        try:
            time.sleep(5)
        except BaseException:  # noqa: BLE001 - as a destructor loses it
            time.sleep(5)

    monkeypatch.setattr("rnic.testing.world.command.run_plan", hang)
    assert main(["--alone", "--steps", "1", "--limit", "0.05"]) == 1
    said = capsys.readouterr().err
    assert "the seed is not over after 0.05 s" in said
    assert "not shrunk" in said


def test_a_machine_that_is_busy_with_others_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is of CPU time; a process that is not scheduled for that long only takes longer."""

    def wait(plan: Plan) -> Figures:
        time.sleep(0.2)
        return run_plan(plan)

    monkeypatch.setattr("rnic.testing.world.command.run_plan", wait)
    assert run_seed(1, steps=1, both=False, alone=True, limit=0.15)["finding"] == ""
    assert run_seed(1, steps=1, both=False, alone=True, limit=0.01)["finding"] == "the seed is not over after 0.01 s"


def _line(seed: int, finding: str) -> str:
    return json.dumps({**Figures(seed, 0, 0, 0, 0, 0, finding, 0)._asdict(), "by": "engine", "seconds": 0.1}) + "\n"


def test_findings_that_were_noted_count_and_a_torn_line_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = tmp_path / "done"
    head = json.dumps({"steps": 1, "both": False, "alone": True}) + "\n"
    done.write_text(head + _line(1, "bad") + '{"seed": 2, "fin')
    words = ["--alone", "--seeds", "1", "--done", str(done)]
    assert main([*words, "--steps", "1"]) == 1
    assert [json.loads(line).get("seed") for line in done.read_text().splitlines()] == [None, 1, 2]
    capsys.readouterr()
    assert main([*words, "--steps", "2"]) == 2
    said = capsys.readouterr().err
    assert 'its seeds have parameters {"steps": 1' in said
    assert said.count("\n") == 1


@compiled
@pytest.mark.parametrize(
    ("by", "words", "run"),
    [("reference", [], "reference"), ("engine", [], "engine"), ("both", [], "both"), ("reference", ["--both"], "both")],
)
def test_a_plan_is_run_again_by_what_it_failed_by(
    by: str, words: list[str], run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "plan"
    script.write_text(replace(_small(SEND), by=by).text())
    assert main(["--replay", str(script), "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["by"] == run


def test_a_finding_that_does_not_come_again_is_not_called_shrunk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = iter(["bad"])
    monkeypatch.setattr(World, "run", lambda self: Figures(1, 0, 0, 0, 0, 0, next(finding, ""), 0))
    script = tmp_path / "plan"
    assert main(["--alone", "--steps", "1", "--script", str(script)]) == 1
    said = capsys.readouterr().err
    assert "not reproduced" in said
    assert "are enough" not in said
    assert Plan.read(script.read_text()).by == ("engine" if use.COMPILED else "reference")


@pytest.mark.slow
def test_the_command_prints_each_seed_and_sums_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = tmp_path / "done"
    words = ["--seed", "3", "--steps", "20", "--alone", "--json", "--done", str(done)]
    assert main([*words, "--seeds", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("seed") for line in lines] == [3, 4, None]
    assert lines[2]["packets"] == lines[0]["packets"] + lines[1]["packets"]
    assert main([*words, "--seeds", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["seed"] == 5
    assert lines[1]["seeds"] == 3


@pytest.mark.slow
def test_a_plan_in_a_file_is_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "plan"
    script.write_text(make_plan(3, 20).text())
    assert main(["--replay", str(script)]) == 0
    assert "seed 3:" in capsys.readouterr().out
    script.write_text("none")
    assert main(["--replay", str(script)]) == 2
    assert "not a plan of a world" in capsys.readouterr().err


@pytest.mark.slow
def test_a_finding_is_shrunk_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _drop_a_completion(monkeypatch)
    script = tmp_path / "plan"
    assert main(["--seed", "3", "--steps", "60", "--alone", "--script", str(script)]) == 1
    assert f"--replay {script}" in capsys.readouterr().err
    assert main(["--replay", str(script)]) == 1
    assert "posted earlier" in capsys.readouterr().err
