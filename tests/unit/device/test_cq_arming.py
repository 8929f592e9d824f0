"""Every order of the steps of a NIC that stores an entry, and of a program that arms, looks, and sleeps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any

import pytest

from rnic.rings.queue_block import ARM_NEXT, ARM_SOLICITED
from tests.unit.device.conftest import Driver

STEPS = 8
"""More than the NIC takes to a register of the CQ, or to the barrier, for one entry."""
ORDERS = list(combinations_with_replacement(range(STEPS), 2))
"""Before which of them the program arms, and looks."""


class Between:
    """Registers that let the program act before each access of the NIC."""

    def __init__(self, regs: Any, step: Callable[[], None]) -> None:
        self._regs = regs
        self._step = step
        self.at = regs.at
        self.words = self

    def __getitem__(self, index: int) -> int:
        self._step()
        word: int = self._regs.words[index]
        return word

    def get(self, register: int) -> int:
        self._step()
        value: int = self._regs.get(register)
        return value

    def set(self, register: int, value: int) -> None:
        self._step()
        self._regs.set(register, value)


@pytest.mark.parametrize("before", [0, ARM_NEXT, ARM_SOLICITED], ids=["unarmed", "armed", "armed for solicited"])
@pytest.mark.parametrize(("arms", "looks"), ORDERS)
def test_a_program_that_saw_nothing_is_woken(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, before: int, arms: int, looks: int
) -> None:
    eq = driver.eq(vector=5)
    cq = driver.cq(eq, logsize=3)
    device_cq = driver.nic.resources.cqs[cq.number]
    driver.arm(cq, before)
    seen: list[tuple[int, ...]] = []
    at = 0

    def step() -> None:
        nonlocal at
        if at == arms:
            driver.arm(cq, ARM_NEXT)
        if at == looks:
            seen.extend(driver.poll(cq))
        at += 1

    monkeypatch.setattr("rnic.device.cq.fence", step)
    monkeypatch.setattr(device_cq, "regs", Between(device_cq.regs, step))
    device_cq.complete(1, 0, 0, 100, 4, 7, 100, 20, 0)
    assert 2 <= at <= STEPS
    for _ in range(at, STEPS):
        step()
    assert seen or driver.nic.next_event() == 5, "it sleeps for ever"
