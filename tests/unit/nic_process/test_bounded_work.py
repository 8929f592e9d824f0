"""Work that finds no end on a program's arena is ended, and no other."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import rnic.verbs.enums as e
from rnic.nic_process import bounded_work as module
from rnic.nic_process.bounded_work import ArenaCorrupt, WorkWatchdog
from rnic.spec.errors import VerbsError
from rnic.testing import QpPair

SEEDS = [
    pytest.param(range(40), marks=pytest.mark.timeout(180)),
    pytest.param(range(40, 2_000), marks=[pytest.mark.full, pytest.mark.timeout(1200)]),
]
LONG = 20.0


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.004)
    monkeypatch.setattr(module, "TICKS", 5)


@pytest.fixture
def watchdog() -> Iterator[WorkWatchdog]:
    made = WorkWatchdog()
    with made:
        yield made


def spin(seconds: float = LONG) -> bool:
    """Processor time goes by; whether that was the end of it."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return True


def test_work_without_end_is_ended(watchdog: WorkWatchdog) -> None:
    began = time.process_time()
    with pytest.raises(ArenaCorrupt) as caught, watchdog.work_on("mine"):
        spin()
    assert caught.value.owner == "mine"
    assert time.process_time() - began < LONG / 2
    assert not watchdog.active


def test_no_guard_takes_it_for_a_mistake(watchdog: WorkWatchdog) -> None:
    def guarded() -> None:
        try:
            spin()
        except Exception:  # noqa: BLE001 - what the guards catch
            pytest.fail("it was taken for a mistake of our own")

    with pytest.raises(ArenaCorrupt), watchdog.work_on("mine"):
        guarded()


def test_the_inner_work_is_named(watchdog: WorkWatchdog) -> None:
    with watchdog.work_on("outer"):
        with pytest.raises(ArenaCorrupt) as caught, watchdog.work_on("inner"):
            spin()
        assert caught.value.owner == "inner"
        with pytest.raises(ArenaCorrupt) as caught:
            spin()
    assert caught.value.owner == "outer"


def test_each_piece_of_work_begins_anew(watchdog: WorkWatchdog) -> None:
    work = watchdog.work_on("mine")
    for _ in range(6):
        with work:
            assert spin(0.008)


def test_what_is_done_for_nobody_may_last(watchdog: WorkWatchdog) -> None:
    assert spin(0.06)
    assert not watchdog.active


def test_a_thread_of_its_own_watches_nothing() -> None:
    before = signal.getsignal(signal.SIGVTALRM)

    def other() -> None:
        with WorkWatchdog():
            assert signal.getsignal(signal.SIGVTALRM) == before

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()


def test_the_timer_ends_with_it() -> None:
    with WorkWatchdog():
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[1] > 0
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


class Corruption:
    """A pair of the reference's queue pairs at work, while words of the first one's arena change at random."""

    def __init__(self, seed: int, watchdog: WorkWatchdog) -> None:
        self.rng = random.Random(seed)
        self.pair = QpPair(seed=seed, settings={"reference": True}, depth=16, size=1 << 16)
        self.nic = self.pair.a.node.nic
        self.work = watchdog.work_on(self.nic)
        self.post()
        self.pair.net.turn()
        memory = self.nic.arena.memory
        self.used = [at for at in range(0, self.nic.arena.used, 8) if memory[at : at + 8] != bytes(8)]

    def post(self) -> None:
        rng = self.rng
        for _ in range(rng.randrange(1, 6)):
            side = self.pair.a if rng.random() < 0.7 else self.pair.b
            kind = rng.choice((e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_SEND, e.IBV_WR_ATOMIC_FETCH_AND_ADD))
            length = 8 if kind == e.IBV_WR_ATOMIC_FETCH_AND_ADD else rng.choice((8, 100, 5_000, 20_000))
            if kind == e.IBV_WR_SEND:
                side.peer.post_recv(length)
            side.post_send(kind, length)

    def corrupt(self) -> None:
        rng, arena = self.rng, self.nic.arena
        for at in rng.sample(self.used, rng.choice((1, 1, 2, 5))):
            value = rng.choice((0, 1, rng.randrange(arena.used), rng.getrandbits(64), rng.choice(self.used)))
            arena.memory[at : at + 8] = value.to_bytes(8, "little")

    def go_on(self) -> None:
        """Raises whatever nonsense raises, of which a NIC process drops the program."""
        self.post()
        self.corrupt()
        for _ in range(6):
            self.pair.net.turn()
        self.pair.clock.now_ns += self.rng.choice((0, 1_000_000, 2_000_000_000))
        for side in (self.pair.a, self.pair.b):
            side.node.nic.handle_timers(self.pair.clock.now_ns)

    def end(self) -> None:
        with self.work:
            self.nic.unmap_uar(self.pair.a.ctx.driver.uar)  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_corrupt_arenas_come_to_an_end(
    seeds: range, watchdog: WorkWatchdog, own_errors: list[tuple[str, Exception]]
) -> None:
    """Whatever stands there, work on it ends, in a result, a plain exception, or here; and so does its release."""
    ended = 0
    for seed in seeds:
        corruption = Corruption(seed, watchdog)
        for step in [corruption.go_on] * 12 + [corruption.end]:
            try:
                with corruption.work:
                    step()
            except (LookupError, ValueError, ArithmeticError, TypeError, MemoryError, AttributeError, OSError):
                continue
            except VerbsError:
                continue
            except ArenaCorrupt as error:
                ended += error.owner is corruption.nic
        assert not watchdog.active
    own_errors.clear()  # what nonsense raises is no mistake of ours
    assert ended, "no seed has made a cycle"
