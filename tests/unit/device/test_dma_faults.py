"""Host memory that stops answering at any one access, or from there on: no wrong bytes, and nobody else's trouble."""

from __future__ import annotations

import pytest

from rnic.device import Nic
from rnic.mem.space import SimAddressSpace
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec.opcodes import WR_FETCH_ADD, WR_READ, WR_SEND, WR_WRITE
from rnic.spec.states import ERR, RTS
from rnic.spec.status import SUCCESS, SYNDROME_NAMES
from tests.unit.device.conftest import Driver, NewPair

SECOND_NS = 1_000_000_000
MANY = 1 << 30


class FaultyMemory(SimAddressSpace):
    """Memory that is reached access by access, of which ``times`` from number ``first`` on fail."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.first = MANY
        self.times = 1

    def _fails(self) -> bool:
        self.count += 1
        return self.first <= self.count < self.first + self.times

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        return not self._fails() and super().read(va, buf)

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        return not self._fails() and super().write(va, data)

    def views(self, va: int, length: int) -> None:
        return None


class Victim:
    """A context with a queue pair and 16 KiB whose memory fails on command."""

    def __init__(self, new_driver: type[Driver], nic: Nic) -> None:
        self.memory = FaultyMemory()
        self.driver = new_driver(nic, self.memory)
        self.pd = self.driver.alloc(cmd.RES_PD)
        self.eq = self.driver.eq(logsize=6, vector=9)
        self.driver.map_events(self.eq, events.CQ_ERROR, events.WQ_CATAS_ERROR, events.WQ_ACCESS_ERROR)
        self.cq = self.driver.cq(self.eq, logsize=6)
        self.bytes, self.va, self.key = self.driver.mr(self.pd, 1 << 14)
        self.qp = self.driver.qp(self.pd, self.cq)

    @property
    def state(self) -> int:
        return self.driver.nic.qps[self.qp.number].ctx.state

    @property
    def failed(self) -> bool:
        """Whether the queue pair or a queue that it reports to says that something went wrong."""
        res = self.driver.nic.resources
        return self.state != RTS or res.cqs[self.cq.number].failed or res.eqs[self.eq.number].failed


OPERATIONS = {"write": WR_WRITE, "send": WR_SEND, "read": WR_READ, "fetch-add": WR_FETCH_ADD}


def run(new_pair: NewPair, new_driver: type[Driver], operation: str, side: int, first: int, times: int) -> int:
    """One operation between two victims, ``side`` of which has the faults; how often that side's memory was used."""
    pair = new_pair()
    ours, theirs = pair.connect()
    victims = [Victim(new_driver, nic) for nic in pair.nics]
    for here, there, number in ((0, 1, 1), (1, 0, 0)):
        victims[here].driver.to_rts(victims[here].qp, pair.gid(number), victims[there].qp.number)
    a, b = victims
    size = 8 if operation == "fetch-add" else 3000
    a.bytes[:size] = bytes(range(1, 251)) * 12 if size > 8 else bytes(8)
    b.bytes[8192 : 8192 + size] = bytes(range(2, 252)) * 12 if size > 8 else (41).to_bytes(8, "little")
    for victim in victims:
        victim.memory.count = 0
    faulty = victims[side].memory
    faulty.first, faulty.times = first, times
    b.driver.recv(b.qp, b.va, 4096, b.key)
    tail = (1).to_bytes(8, "little") if operation == "fetch-add" else b""
    local = a.va + 4096 if operation in ("read", "fetch-add") else a.va
    remote = b.va if operation == "write" else b.va + 8192
    a.driver.post(a.qp, OPERATIONS[operation], local, size, a.key, remote, b.key, tail=tail)
    pair.drivers[0].write(ours, pair.mrs[0][1], 64, pair.mrs[0][2], pair.mrs[1][1], pair.mrs[1][2])
    pair.wire.run()
    for _ in range(8):  # retries end
        pair.wire.skip(SECOND_NS)
    used = faulty.count
    faulty.first = MANY

    assert [entry[1] & 0xFF for entry in pair.poll(0)] == [SUCCESS], "the bystander"
    assert theirs.number in pair.nics[1].qps
    statuses = [entry[1] & 0xFF for entry in a.driver.poll(a.cq)]
    assert set(statuses) <= {SUCCESS, *SYNDROME_NAMES}
    assert len(statuses) <= 1
    assert all(victim.state in (RTS, ERR) for victim in victims)
    if statuses == [SUCCESS]:
        if operation in ("write", "send"):
            assert b.bytes[:size] == a.bytes[:size]
        elif operation == "read":
            assert a.bytes[4096 : 4096 + size] == b.bytes[8192 : 8192 + size]
        else:
            assert a.bytes[4096:4104] == (41).to_bytes(8, "little")
            assert b.bytes[8192:8200] == (42).to_bytes(8, "little")
    else:
        assert a.failed or b.failed, "work vanished without a word"
    for victim in victims:  # the NIC still takes everything away and gives it anew
        pair.nics[victims.index(victim)].unmap_uar(victim.driver.uar)
    again = Victim(new_driver, pair.nics[side])
    assert again.qp.number in pair.nics[side].qps
    return used


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, MANY], ids=["once", "for good"])
@pytest.mark.parametrize("side", [0, 1], ids=["requester", "responder"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_memory_that_fails_at_any_access(
    new_pair: NewPair, new_driver: type[Driver], operation: str, side: int, times: int
) -> None:
    accesses = run(new_pair, new_driver, operation, side, MANY, times)
    assert accesses >= 2
    for first in range(1, accesses + 1):
        run(new_pair, new_driver, operation, side, first, times)


def test_contexts_in_memory_that_fails(new_driver: type[Driver], nic: Nic) -> None:
    """A ring in memory that refuses is refused by the command; nothing of it stays."""
    space = FaultyMemory()
    driver = new_driver(nic, space)
    number, block = driver.alloc(cmd.RES_EQ), driver.alloc(cmd.RES_UAR_BLOCK)
    _, va = driver.memory(512)
    space.first, space.times = space.count + 1, MANY
    assert driver.run(cmd.SW2HW_EQ, number, 0, driver.eqc(block, va)).status == cmd.ST_BAD_PARAM
    assert not nic.resources.eqs
    space.first = MANY
    driver.ok(cmd.SW2HW_EQ, number, 0, driver.eqc(block, va))
