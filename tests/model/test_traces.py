"""The executors beside the model: each step of an exploration, and walks that go further."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rnic.rings.sqe import FLAG_FENCE, FLAG_SIGNALED
from rnic.wire.packet import Packet
from tests.model.explore import Network, System
from tests.model.programs import QUIET
from tests.model.rc import ATOMIC, READ, SEND, WRITE, WRITE_IMM, Work
from tests.model.replay import BASE, replay, replay_config
from tests.model.traces import watched_script
from tests.scripts.conftest import NO_ENGINE, Script
from tests.scripts.oracle import engine_script

MAKERS = [Script, pytest.param(engine_script(Script), marks=NO_ENGINE)]
SHORT = {"READ of 2": (Work(READ, 2),), "quiet WRITE": (QUIET,), "atomic": (Work(ATOMIC),)}
FULL = {
    "WRITE of 2": (Work(WRITE, 2),),
    "WRITE, atomic": (Work(WRITE), Work(ATOMIC)),
    "READ of 4": (Work(READ, 4),),
    "READ of 2, atomic": (Work(READ, 2), Work(ATOMIC)),
    "READ, fenced SEND": (Work(READ), Work(SEND, fence=True)),
    "WRITE with immediate": (Work(WRITE_IMM),),
}
PROGRAMS = [*SHORT.items(), *(pytest.param(*item, marks=pytest.mark.full) for item in FULL.items())]


@pytest.mark.parametrize("maker", MAKERS, ids=["reference", "engine"])
@pytest.mark.parametrize(("name", "program"), PROGRAMS, ids=[*SHORT, *FULL])
def test_each_step_of_an_exploration_is_one_of_the_executor(
    maker: Callable[..., Any], name: str, program: tuple[Work, ...]
) -> None:
    """The PSNs wrap after two packets. Quiet WRITEs, ACKs on request and duplicates are all among the steps."""

    def new() -> Any:
        return maker(next_send_psn=BASE, expected_psn=BASE, max_rd_atomic=2, max_dest_rd_atomic=2)

    system = System(replay_config(list(program), new()), Network(1), waiting=0)
    report = system.explore(most=400_000)
    assert not report.violation, report
    for end in (system.requester, system.responder):
        assert replay(system, end, new()) == len(end.steps) > 3


LEAST, LEAST_HELD = 350, 20
"""Steps of each end of a walk that are compared; and of one that had little room at its peer."""


class Walk:
    """Two scripted queue pairs, each with the model beside it, and a random network between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        new = watched_script(Script)
        fields = {"max_rd_atomic": 4, "max_dest_rd_atomic": 4, "window_packets": 8, "retry_cnt": 7, "rnr_retry": 7}
        first = self.random.choice([100, (1 << 24) - 5])
        self.ends = [new(next_send_psn=first, expected_psn=first, **fields) for _ in range(2)]
        self.ways: list[list[tuple[Packet, bytes]]] = [[], []]

    def step(self) -> None:
        """Let something happen to one of them."""
        side = self.random.randrange(2)
        end, random = self.ends[side], self.random
        what = random.randrange(20)
        way = self.ways[side]
        if what < 2 and (end.sq_tail + 1) % 64 != end.qp.sq_head:
            self._post(end)
        elif what < 4 and end.qp.rq.available() < 8:
            end.recv(2048, 4096)
        elif what < 10:
            self.ways[1 - side] += [
                (packet, bytes(packet.payload)) for packet in end.packets(random.choice([1, 4, 256]))
            ]
        elif what < 19 and way:
            place = 0 if random.random() < 0.9 else random.randrange(len(way))
            packet, payload = way[place] if random.random() < 0.05 else way.pop(place)
            if random.random() > 0.05:
                packet.payload = memoryview(payload)
                end.watch.arrival(lambda: end.qp.receive(packet, end.now), packet)
        elif what == 19:
            end.wait(random.choice([10_000, 200_000, 2_000_000]))

    def _post(self, end: Any) -> None:
        random = self.random
        name = random.choice(["SEND", "WRITE", "WRITE", "WRITE_IMM", "READ", "READ", "FETCH_ADD"])
        length = 8 if name == "FETCH_ADD" else random.choice([0, 8, 256, 600, 1500])
        flags = FLAG_SIGNALED * (random.random() < 0.5) | FLAG_FENCE * (random.random() < 0.1)
        end.post(name, length, 8192, flags=flags, remote=end.va + 16384, rkey=end.key)


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 200))])
def test_a_walk_is_one_of_the_model(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(1500):
        walk.step()
    watches = [end.watch for end in walk.ends]
    assert all(watch.left in ("", "little room at the peer") for watch in watches), [watch.left for watch in watches]
    assert all(watch.steps >= (LEAST_HELD if watch.left else LEAST) for watch in watches), [w.steps for w in watches]


def test_a_walk_whose_end_fails_is_found() -> None:
    """A false failure ends the comparison, and the walk says so."""
    walk = Walk(0)
    for _ in range(100):
        walk.step()
    walk.ends[0].ctx.state = 6
    while not walk.ends[0].watch.left:
        walk.step()
    assert walk.ends[0].watch.left == "not in RTS, or held"
