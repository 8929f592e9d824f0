"""A memory that fails and falls silent anywhere, for any engine in any simulator: what must hold all the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from rnic.gateware.axi_model import AxiSlave, Trouble
from rnic.gateware.driver import Completion, Driver, EngineError, Request
from rnic.spec import engine_regs as regs
from rnic.spec.status import ENGINE_SUCCESS

TROUBLES = (
    Trouble(errors=0.004),
    Trouble(silences=0.004, longest=400),
    Trouble(errors=0.004, silences=0.004, longest=400),
)
WATCHDOGS = (0, 150)
NAMELESS = (regs.ERR_SQ_FETCH, regs.ERR_TIMEOUT)
"""Details with which the descriptor itself may not have come."""
EXPECTED = {
    regs.ERR_NONE,
    regs.ERR_SQ_FETCH,
    regs.ERR_LOCAL_BUS,
    regs.ERR_REMOTE_BUS,
    regs.ERR_TIMEOUT,
    regs.ERR_LENGTH,  # an aborted packet is shorter than its header says
}


def endure(
    driver: Driver, slave: AxiSlave, rng: random.Random, rounds: int, places: tuple[int, int, int]
) -> Counter[str]:
    """Batches of WRITEs in loopback while memory fails; after each it is well again, and a WRITE must do.

    Each descriptor is completed once and in order, or the engine has halted since a CQ entry could not be written; a
    completion that says success is true to the byte; no byte outside a destination changes, and none inside it but to
    what it should become.

    Args:
        places: source, target, and bytes of each.

    Returns:
        How often each outcome was seen: ENGINE_ERROR_NAMES, and ``halted``.
    """
    backend = driver.backend
    source, target, space = places
    payload = rng.randbytes(space)
    backend.write(source, payload)
    backend.flush(source, space)
    seen: Counter[str] = Counter()
    for number in range(rounds):
        before = rng.randbytes(space)
        backend.invalidate(target, space)
        backend.write(target, before)
        backend.flush(target, space)
        driver.put("WATCHDOG", WATCHDOGS[number % len(WATCHDOGS)])
        requests = list(_requests(rng, source, target, space, driver.layout.sq_size - 1))
        first = driver.get("SQ_TAIL")
        slave.trouble = TROUBLES[number % len(TROUBLES)]
        driver.submit(requests)
        done, halted = _completions(driver, len(requests))
        slave.trouble = Trouble()
        seen["halted"] += halted
        seen.update(regs.ENGINE_ERROR_NAMES[each.detail] for each in done)
        if halted:
            driver.recover()  # and the bus has had what it was promised
        for at, each in enumerate(done):
            _check(each, requests[at], (first + at) % driver.layout.sq_size)
        found = driver.read_back(target, space)
        want, free = bytearray(before), set[int]()
        for at, request in enumerate(requests):
            new = payload[request.local - source :][: request.length]
            begin, end = request.remote - target, request.remote - target + request.length
            want[begin:end] = new
            if at >= len(done) or done[at].status != ENGINE_SUCCESS:
                free |= {place for place in range(begin, end) if found[place] == before[place]}
        wrong = [place for place in range(space) if found[place] != want[place] and place not in free]
        assert not wrong, f"round {number}: {len(wrong)} bytes at {wrong[:4]} of {target:#x}; {list(map(str, done))}"
        driver.put("WATCHDOG", 0)
        driver.submit([Request(source + 1, target, 70, 0x600D)])
        (good,) = driver.wait()
        assert (good.status, good.wqe_id, good.bytes) == (ENGINE_SUCCESS, 0x600D, 70), f"round {number}: {good}"
        assert driver.read_back(target, 70) == payload[1:71], f"round {number}: memory is well again, the engine not"
    return seen


def _requests(rng: random.Random, source: int, target: int, space: int, count: int) -> Iterator[Request]:
    """WRITEs whose destinations do not overlap."""
    each = space // count
    for index in range(count):
        length = rng.randrange(1, each)
        local = source + rng.randrange(space - length)
        yield Request(local, target + index * each + rng.randrange(each - length), length, 0xC0DE0000 + index)


def _completions(driver: Driver, count: int) -> tuple[list[Completion], bool]:
    """What came, and whether the engine halted before the rest did."""
    done: list[Completion] = []
    while len(done) < count:
        try:
            done += driver.wait()
        except EngineError:
            status = regs.HW_STATUS.unpack(driver.get("HW_STATUS").to_bytes(4, "little"))
            assert status["halted"], f"{len(done)} of {count}: {driver.describe()}"
            assert status["error"] in (regs.ERR_CQ_WRITE, regs.ERR_TIMEOUT), driver.describe()
            return done, True
    return done, False


def _check(done: Completion, request: Request, index: int) -> None:
    assert done.detail in EXPECTED, str(done)
    assert done.index == index, str(done)
    assert (done.status == ENGINE_SUCCESS) == (done.detail == regs.ERR_NONE), str(done)
    nameless = done.detail in NAMELESS and done.wqe_id == done.requested == 0
    assert nameless or (done.wqe_id, done.requested) == (request.wqe_id, request.length), str(done)
    if done.status == ENGINE_SUCCESS:
        assert done.bytes == request.length, str(done)
