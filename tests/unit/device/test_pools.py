from __future__ import annotations

from rnic.device.pools import NumberPool
from rnic.device.uar import Doorbells, Uar
from rnic.mem.space import SimAddressSpace


def test_fresh_numbers_first_then_the_oldest_returned() -> None:
    owner = Uar(SimAddressSpace(), Doorbells(), 1)
    pool = NumberPool(16, 4)
    assert [pool.take(owner) for _ in range(3)] == [16, 17, 18]
    pool.give_back(17)
    pool.give_back(16)
    assert pool.owners == {18: owner}
    assert [pool.take(owner) for _ in range(4)] == [19, 17, 16, None]
