"""Scheduler, accounts and timers in C do on the records what the Python ones do, step by step, to the last byte."""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rnic.device.scheduler import Scheduler
from rnic.device.timers import Timers
from rnic.mem.space import address_of
from rnic.spec.limits import NEVER
from rnic.state.arena import Arena
from rnic.state.budget import BUDGET, BYTES, NIC_ENTRY, SHARE, share_at
from rnic.state.queue_pair import QP
from rnic.state.record import place
from rnic.transport.budget import Budget
from rnic.transport.inflight import QUEUE_NS, Inflight, Peer
from rnic.wire.flow import Flow

PLACES = {field.name: place(QP, field.name) for field in QP.fields}
DEADLINES = ("ack_deadline", "probe_deadline", "rnr_until", "control_ns", "pace_ns", "owed_ns")
QPS, PROGRAMS, PEERS = 12, 3, 3
QUANTUM = 4_096


class Sched(ctypes.Structure):
    """``struct engine_sched``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("arena", "inflight", "scheduler", "timers", "budget")),
        ("slot", ctypes.c_uint64),
    )


class Limits(ctypes.Structure):
    """``struct engine_limits``."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("peer", "nic", "others"))


class Entries:
    """Peers' entries in the page of several worlds."""

    def __init__(self) -> None:
        self.known: dict[tuple[bytes, int], int] = {}

    def enter(self, address: bytes, port: int) -> int:
        return self.known.setdefault((address, port), 1 + len(self.known))

    def leave(self, address: bytes, port: int) -> None:
        raise AssertionError("nobody leaves")


class Qp:
    """A queue pair's record, and a requester as far as the budget knows one."""

    def __init__(self, world: World, number: int) -> None:
        self.record = world.arena.take(QP.size, "a queue pair")
        self.cells, self.at = world.arena.cells, self.record // 8
        self.words = world.arena.words(self.record, QP.size)
        self.account, self.qp, self.host = world.inflight, self, SimpleNamespace(schedule=world.schedule)
        self["armed_ns"] = NEVER
        for name in DEADLINES:
            self[name] = NEVER
        self["program"] = number % PROGRAMS
        self.program = number % PROGRAMS
        self.peer = world.inflight.peer(Flow(bytes(4), bytes((10, 0, 0, number // PROGRAMS % PEERS)), 1))
        self.peer.users += 1
        self["peer_record"] = self.peer.record
        world.inflight.add_requester(self)  # type: ignore[arg-type]
        world.scheduler.enroll(self.record, self.program, QUANTUM)

    def __getitem__(self, name: str) -> int:
        return self.cells[self.at + PLACES[name]]

    def __setitem__(self, name: str, value: int) -> None:
        self.cells[self.at + PLACES[name]] = value


def _word(name: str) -> property:
    def get(self: Qp) -> int:
        return self[name]

    def put(self: Qp, value: int) -> None:
        self[name] = value

    return property(get, put)


for _name in ("parked", "admitted", "inflight"):
    setattr(Qp, _name, _word(_name))


class World:
    """Everything that takes turns, in one arena."""

    def __init__(self, limit: int) -> None:
        self.arena = Arena(1 << 19)
        self.arena.allocate_first(64)
        self.inflight = Inflight(self.arena, limit)
        self.scheduler = Scheduler(self.arena, 4 * QUANTUM)
        self.timers = Timers(self.arena, QPS)
        self.qps = [Qp(self, number) for number in range(QPS)]
        base = address_of(self.arena.memory)
        parts = (self.inflight.record, self.scheduler.record, self.timers.record)
        self.sched = Sched(base, *(base + part for part in parts))
        self.c = ctypes.byref(self.sched)

    def share(self, page: mmap.mmap, slot: int, entries: Entries) -> None:
        """A slot of a device whose slots all have this page."""
        self.inflight.share(Budget(page, slot), entries)
        self.sched.budget, self.sched.slot = address_of(memoryview(page)), slot

    def limits(self, sched: ctypes.CDLL, qp: Qp) -> tuple[int, int, bool]:
        """What C says that may be in flight to a queue pair's peer and in all, and whether others are there."""
        limits = Limits()
        sched.engine_inflight_limits(self.c, self.peer(qp), ctypes.byref(limits))
        return limits.peer, limits.nic, limits.others > 0

    def schedule(self, qp: Any) -> None:
        if not qp["scheduled"]:
            qp["scheduled"] = 1
            if not qp["held"]:
                self.scheduler.add(qp.record)

    def peer(self, qp: Qp) -> ctypes.c_void_p:
        return ctypes.c_void_p(address_of(self.arena.memory) + qp.peer.record)

    def image(self) -> bytes:
        return bytes(self.arena.memory[: self.arena.used])


def twins(limit: int) -> tuple[World, World]:
    python, c = World(limit), World(limit)
    assert python.image() == c.image()
    return python, c


def same(python: World, c: World) -> None:
    """Both hold the same bytes; said in words, since a difference of long strings takes minutes to show."""
    one, other = python.image(), c.image()
    if one != other:
        places = [hex(at) for at in range(0, len(one), 8) if one[at : at + 8] != other[at : at + 8]]
        raise AssertionError(f"Python and C differ in the words at {places[:8]}")


@pytest.fixture(scope="module")
def sched(builds: Callable[..., ctypes.CDLL], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = builds(
        tmp_path_factory.mktemp("sched") / "sched.so",
        *(f"device/{name}.c" for name in ("inflight", "lists", "scheduler", "timers")),
    )
    for name in ("engine_scheduler_take", "engine_timers_due", "engine_timers_next"):
        getattr(library, name).restype = ctypes.c_uint64
    return library


def u64(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


@pytest.mark.parametrize("seed", range(4))
def test_turns(sched: ctypes.CDLL, seed: int) -> None:
    rng = random.Random(seed)
    python, c = twins(100)
    taken = 0
    for _ in range(1_500):
        waiting = [n for n in range(QPS) if python.qps[n]["scheduled"]]
        what = rng.randrange(8)
        if what < 3:
            number = rng.randrange(QPS)
            python.schedule(python.qps[number])
            sched.engine_schedule(c.c, u64(c.qps[number].record))
        elif what == 3 and waiting:
            number = rng.choice(waiting)
            record = python.qps[number].record
            python.scheduler.remove(record)
            sched.engine_scheduler_remove(c.c, u64(record))
            for world in (python, c):
                world.qps[number]["scheduled"] = 0
        elif what > 3 and waiting:
            record = python.scheduler.take()
            assert sched.engine_scheduler_take(c.c) == record
            allowance = python.scheduler.allowance(record)
            bytes_ = ctypes.c_int64(0)
            shared = sched.engine_scheduler_allowance(c.c, u64(record), ctypes.byref(bytes_))
            assert (bytes_.value if shared else None) == allowance
            size, again = rng.choice((0, 64, 1_040, 5_000, 40_000)), rng.random() < 0.7
            python.scheduler.spend(record, size, again)
            sched.engine_scheduler_spend(c.c, u64(record), u64(size), again)
            for world in (python, c):
                world.qps[[qp.record for qp in world.qps].index(record)]["scheduled"] = again
            taken += 1
        same(python, c)
    assert taken > 300


def test_who_is_held_gets_no_turn(sched: ctypes.CDLL) -> None:
    python, c = twins(100)
    for world in (python, c):
        world.qps[3]["held"] = 1
    python.schedule(python.qps[3])
    sched.engine_schedule(c.c, u64(c.qps[3].record))
    assert python.image() == c.image()
    assert (len(c.scheduler), c.qps[3]["scheduled"]) == (0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_timers(sched: ctypes.CDLL, seed: int) -> None:
    rng = random.Random(seed)
    python, c = twins(100)
    now, woken = 1_000, 0
    for _ in range(1_500):
        now += rng.randrange(30)
        number, what = rng.randrange(QPS), rng.randrange(4)
        one, other = python.qps[number], c.qps[number]
        if what == 0:
            deadline = now + rng.randrange(300)
            if deadline < one["armed_ns"]:
                python.timers.arm(one.record, deadline)
                sched.engine_timers_arm(c.c, u64(other.record), u64(deadline))
        elif what == 1:
            name = rng.choice(DEADLINES)
            one[name] = other[name] = NEVER if rng.random() < 0.2 else now + rng.randrange(300)
            one["held"] = other["held"] = rng.random() < 0.1
            names = DEADLINES
            earliest = min(one[each] for each in names)
            if earliest < one["armed_ns"] and not one["held"]:
                python.timers.arm(one.record, earliest)
            sched.engine_rearm(c.c, u64(other.record))
        elif what == 2 and rng.random() < 0.3:
            python.timers.forget(one.record)
            sched.engine_timers_forget(c.c, u64(other.record))
        else:
            due = python.timers.due(now)
            assert sched.engine_timers_due(c.c, u64(now)) == due
            woken += bool(due)
        following = python.timers.next_ns()
        assert sched.engine_timers_next(c.c) == (NEVER if following is None else following)
        same(python, c)
    assert woken > 100


def _ask(world: World, qp: Qp, want: int) -> int:
    """What a turn does with the budget, by Python: how much may be sent."""
    return min(want, world.inflight.room(qp, want))  # type: ignore[arg-type]


class Course:
    """The same steps taken in Python and in C, each of which leaves the same bytes."""

    def __init__(self, sched: ctypes.CDLL, rng: random.Random, python: World, c: World) -> None:
        self.sched, self.rng, self.python, self.c = sched, rng, python, c
        self.now, self.waited, self.admitted = 1_000_000, 0, 0

    def step(self) -> None:
        """One of them."""
        sched, rng, python, c = self.sched, self.rng, self.python, self.c
        self.now += rng.randrange(2_000_000)
        number, what = rng.randrange(QPS), rng.randrange(10)
        one, other = python.qps[number], c.qps[number]
        if what < 5:
            # a turn: room is asked for in Python on either's own records, which are equal
            room = _ask(python, one, 30)
            if room:
                own = min(one["admitted"], room)
                one["inflight"] += room
                python.inflight.take(one, room)  # type: ignore[arg-type]
                other["inflight"] += room
                other["admitted"] -= own
                sched.engine_inflight_take(c.c, c.peer(other), u64(room), u64(own))
            else:
                python.inflight.wait(one)  # type: ignore[arg-type]
                assert sched.engine_inflight_wait(c.c, u64(other.record)) == 0
                c.inflight.reserve_line()
                self.waited += 1
            python.inflight.turn_over(one)  # type: ignore[arg-type]
            sched.engine_inflight_turn_over(c.c, u64(other.record))
        elif what < 8 and one["inflight"]:
            packets = rng.randrange(one["inflight"]) + 1
            sample = rng.choice((10_000, 100_000, QUEUE_NS >> 3, QUEUE_NS, 4 * QUEUE_NS))
            if rng.random() < 0.5:
                one.peer.measured(sample, self.now)
                sched.engine_peer_measured(c.peer(other), u64(sample), u64(self.now))
            one.peer.acknowledged(packets)
            sched.engine_peer_acknowledged(c.peer(other), u64(packets))
            one["inflight"] -= packets
            other["inflight"] -= packets
            before = len(python.scheduler)
            python.inflight.release(one.peer, packets)
            sched.engine_inflight_release(c.c, c.peer(other), u64(packets))
            self.admitted += len(python.scheduler) > before
        elif what == 8 and rng.random() < 0.3:
            one.peer.lost(self.now)
            sched.engine_peer_lost(c.peer(other), u64(self.now))
        elif what == 9 and rng.random() < 0.1:
            one.peer.timed_out(self.now)
            sched.engine_peer_silent(c.peer(other), u64(self.now))
        if python.scheduler.count and rng.random() < 0.5:
            record = python.scheduler.take()
            assert sched.engine_scheduler_take(c.c) == record
            python.scheduler.spend(record, 0, False)
            sched.engine_scheduler_spend(c.c, u64(record), u64(0), 0)
            for world in (python, c):
                world.qps[[qp.record for qp in world.qps].index(record)]["scheduled"] = 0
        same(python, c)


@pytest.mark.parametrize("limit", [20, 60, 1_000])
@pytest.mark.parametrize("seed", range(3))
def test_flights(sched: ctypes.CDLL, seed: int, limit: int) -> None:
    course = Course(sched, random.Random(seed), *twins(limit))
    for _ in range(1_500):
        course.step()
    if limit < 500:
        assert (course.waited > 50, course.admitted > 20) == (True, True)  # or the steps mean nothing


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scribbled", [False, True])
def test_slots_of_one_device_share_a_page(sched: ctypes.CDLL, seed: int, scribbled: bool) -> None:
    """Three slots each in Python and in C: same bytes, same page, whatever somebody else writes there."""
    rng = random.Random(seed)
    pages = mmap.mmap(-1, BYTES), mmap.mmap(-1, BYTES)
    courses = [Course(sched, rng, *twins(100)) for _ in range(3)]
    entries = Entries()
    for page in pages:
        for name, value in (("slots", 3), ("limit", 80)):
            page[BUDGET[name].byte : BUDGET[name].byte + 4] = value.to_bytes(4, "little")
    for slot, course in enumerate(courses):
        course.python.share(pages[0], slot, entries)
        course.c.share(pages[1], slot, entries)
    crowded, less = 0, 0
    for _ in range(3_000):
        course = rng.choice(courses)
        course.step()
        if scribbled and rng.random() < 0.1:
            at, value = (
                4 * rng.randrange((BUDGET.size + 5 * 65 * SHARE.size) // 4),
                rng.choice((0, 1, 77, (1 << 32) - 1)),
            )
            for page in pages:
                page[at : at + 4] = value.to_bytes(4, "little")
        qp = rng.randrange(QPS)
        one, account = course.python.qps[qp], course.python.inflight
        seen = account.limit_to(one.peer), account.limit_of_all(), account.crowded()
        assert course.c.limits(sched, course.c.qps[qp]) == seen
        assert min(seen[:2]) >= min(4, one.peer.limit_16 >> 16)
        assert seen[0] <= one.peer.limit
        crowded += seen[2]
        less += seen[1] < 80
        assert pages[0][:] == pages[1][:]
        if not scribbled:
            held = [page_held(pages[0], NIC_ENTRY, slot) for slot in range(3)]
            assert held == [each.python.inflight.packets + each.python.inflight.promised for each in courses]
    assert crowded > 1_000
    assert less > 500


def page_held(page: mmap.mmap, entry: int, slot: int) -> int:
    """What a slot says that it has in flight."""
    return SHARE.get(page[:], "held", share_at(entry, slot))


def test_round_trips_of_every_length(sched: ctypes.CDLL) -> None:
    """Samples alone, long enough to reach each branch: first, shorter, longer, queueing for long, a new time."""
    rng = random.Random(5)
    python, c = twins(1_000)
    peer, now = python.qps[0].peer, 0
    assert isinstance(peer, Peer)
    cuts, sample = 0, 1
    for step in range(4_000):
        now += rng.choice((1_000, 1_000_000, 200_000_000 if rng.random() < 0.05 else 1))
        if step % 12 == 0 or rng.random() < 0.05:
            sample = rng.choice((1, 999, 20_000, 3_000_000, 40_000_000))
        limit = peer.limit_16
        peer.inflight = 1_000
        c.qps[0].peer.inflight = 1_000
        peer.measured(sample, now)
        peer.acknowledged(3)
        sched.engine_peer_measured(c.peer(c.qps[0]), u64(sample), u64(now))
        sched.engine_peer_acknowledged(c.peer(c.qps[0]), u64(3))
        cuts += peer.limit_16 < limit
        same(python, c)
    assert cuts


def test_who_waits_needs_a_line_and_nothing_changes_where_none_is_spare(sched: ctypes.CDLL) -> None:
    c = World(10)
    assert sched.engine_inflight_wait(c.c, u64(c.qps[0].record)) == 0
    before = c.image()
    assert sched.engine_inflight_wait(c.c, u64(c.qps[1].record)) == -1
    assert c.image() == before
    c.inflight.reserve_line()
    assert sched.engine_inflight_wait(c.c, u64(c.qps[1].record)) == 0
    assert c.inflight.queued == 1
