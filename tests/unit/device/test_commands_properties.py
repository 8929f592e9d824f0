"""Random commands: none raises, none that fails changes anything, and the device stays consistent."""

from __future__ import annotations

import random
from errno import EAGAIN
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.context.modify import COMMAND_FOR, TRANSITIONS
from rnic.context.qpc import QPC
from rnic.device import Nic, NicConfig
from rnic.device.commands import COMMANDS
from rnic.device.mailboxes import ICM_ENTRY, INIT_HCA, MGM, MTT_ENTRY, MTT_HEADER, OPEN_XRCD, SRQ_ARM
from rnic.mem.keys import key_index
from rnic.mem.mpt import MPT_ENTRY
from rnic.rings.queue_block import BLOCK_BYTES
from rnic.spec import commands as cmd
from rnic.spec.gids import gid_from_address
from tests.unit.device.conftest import Driver, Queue, Snapshot

PEER = gid_from_address(bytes((10, 0, 0, 2)))


class Monkey:
    """Sends commands that are right, nearly right, or nonsense."""

    def __init__(self, seed: int, driver_class: type[Driver]) -> None:
        self.rng = random.Random(seed)
        self.nic = Nic(NicConfig(bytes((10, 0, 0, 1)), log_max_qps=4, max_mrs=8), rng=random.Random(seed))
        self.nic.non_rdma.send = lambda to, frame: self.rng.random() < 0.5
        self.drivers = [driver_class(self.nic) for _ in range(2)]
        self.driver = self.drivers[0]
        self.va = self.driver.memory(1 << 14)[1]
        self.drivers[1].memory(1 << 10)
        self.keys: list[int] = [0]
        if self.rng.random() < 0.8:  # else from nothing
            self.prepare()

    def prepare(self) -> None:
        """Numbers of every kind, an EQ, two CQs and a region, so that later commands have something to meet."""
        driver = self.driver
        for kind in (cmd.RES_UAR_BLOCK,) * 7 + (cmd.RES_PD, cmd.RES_SRQ) + (cmd.RES_CQ, cmd.RES_QP) * 2:
            driver.alloc(kind)
        eq = Queue(driver.alloc(cmd.RES_EQ), 2, bytearray(), self.va)
        driver.ok(cmd.SW2HW_EQ, eq.number, 0, driver.eqc(2, self.va))
        for number in (1, 2):
            driver.ok(cmd.SW2HW_CQ, number, 0, driver.cqc(eq, 2 + number, self.va + 512 * number))
        if self.rng.random() < 0.5:
            driver.ok(cmd.SW2HW_SRQ, 1, 0, driver.srqc(1, 8, self.va))
        self.keys.append(driver.alloc(cmd.RES_MPT))

    def number(self) -> int:
        return self.rng.choice((0, 1, 1, 2, 2, 3, 4, 16, 16, 17, 18, 31, self.rng.getrandbits(32)))

    def any_command(self) -> int:
        usual = (*TRANSITIONS, cmd.ALLOC_RES, cmd.RST2INIT, cmd.INIT2RTR, cmd.RTR2RTS, self.rng.randrange(64))
        return self.rng.choice((*cmd.COMMAND_NAMES, *usual, *usual))

    def command(self) -> tuple[int, int, int, bytes]:
        rng = self.rng
        op = self.any_command()
        if 16 in self.nic.qps and rng.random() < 0.5:  # a life goes on
            state = self.nic.qps[16].ctx.state
            steps = [value for (source, _), value in COMMAND_FOR.items() if source == state]
            op = rng.choice([*steps, *(step for step in steps if step not in (cmd.ERR2RST, cmd.TOERR))])
        in_modifier, op_modifier, inbox = self.number(), 0, b""
        block, logsize = rng.randrange(1, 9), rng.choice((1, 2, 3, 4, 4, 12))
        va = self.va + rng.choice((0, 0, 0, 1, 64, 1 << 13, 1 << 14))
        driver = self.driver
        if op == cmd.ALLOC_RES:
            in_modifier = rng.randrange(10)
        elif op == cmd.FREE_RES:
            op_modifier = rng.randrange(10)
            in_modifier = rng.choice((in_modifier, rng.choice(self.keys)))
        elif op == cmd.HW2SW_MPT:
            in_modifier = rng.choice(self.keys)
        elif op == cmd.DEALLOC_MW:
            in_modifier = key_index(rng.choice(self.keys))
        elif op == cmd.HW2SW_EQ:
            in_modifier = 0
        elif op == cmd.ALLOC_MW:
            op_modifier = rng.randrange(4)
        elif op == cmd.SW2HW_MPT:
            in_modifier = rng.choice(self.keys)
            inbox = driver.mpt(in_modifier, rng.randrange(3), va, rng.choice((0, 8, 4096)), rng.randrange(64))
            assert len(inbox) == MPT_ENTRY.size
        elif op in (cmd.SW2HW_EQ, cmd.SW2HW_CQ, cmd.RESIZE_CQ):
            eq = Queue(rng.randrange(2), block, bytearray(), va)
            inbox = driver.eqc(block, va, logsize) if op == cmd.SW2HW_EQ else driver.cqc(eq, block, va, logsize)
        elif op == cmd.SW2HW_SRQ:
            inbox = driver.srqc(rng.randrange(3), block, va, logsize, rng.randrange(3))
        elif op == cmd.ARM_SRQ:
            inbox = SRQ_ARM.pack({"limit": rng.choice((0, 1, 15, 16, rng.getrandbits(32)))})
        elif op == cmd.MAP_EQ:
            in_modifier = rng.randrange(2) | rng.getrandbits(1) << 31
            inbox = rng.choice((0x1C0004, 4, 1 << 40)).to_bytes(8, "big")
        elif op in (cmd.WRITE_MGM, cmd.READ_MGM):
            gid = gid_from_address(bytes((rng.choice((239, 10)), 0, 0, rng.randrange(3))))
            inbox = MGM.pack({"mgid": int.from_bytes(gid, "big"), "count": rng.randrange(2), "qpn0": 16})
        elif op in (cmd.CLOSE_HCA, cmd.INIT_HCA):
            inbox = INIT_HCA.pack({}) if op == cmd.INIT_HCA else b""
        elif op in (cmd.INIT_PORT, cmd.CLOSE_PORT):
            in_modifier = rng.randrange(3)
        elif op in (cmd.MAP_ICM, cmd.UNMAP_ICM):
            in_modifier, op_modifier = rng.choice((0, 1, 1, 2)), rng.randrange(4)
            page = (self.va + 4095 & ~4095) + rng.choice((0, 0, 4096, 1 << 16))
            values = {"virt": rng.randrange(3) << 12, "page_hi": page >> 32, "page": page >> 12 & 0xFFFFF, "npages": 1}
            inbox = ICM_ENTRY.pack(values) * in_modifier
        elif op == cmd.WRITE_MTT:
            in_modifier = rng.randrange(3)
            inbox = MTT_HEADER.pack({"segment": rng.randrange(3), "first": rng.randrange(2)})
            inbox += MTT_ENTRY.pack({"page": self.va >> 12, "present": 1}) * in_modifier
        elif op == cmd.QUERY_MPT:
            in_modifier = rng.choice(self.keys)
        elif op == cmd.MGID_HASH:
            inbox = gid_from_address(bytes((rng.choice((239, 10)), 0, 0, 1)))
        elif op == cmd.MAD_IFC:
            in_modifier, inbox = rng.randrange(3), bytes((rng.randrange(2), 1, 1, 1)).ljust(256, b"\0")
        elif op in (cmd.READ_CFG, cmd.WRITE_CFG):
            offsets = (0x2000A0, 0x200220, 0x400F00, 0x600F00, 0x600F08, 0x600008)
            in_modifier = rng.choice((*offsets, in_modifier))
            inbox = rng.randbytes(8) if op == cmd.WRITE_CFG else b""
        elif op == cmd.WRITE_NON_RDMA:
            inbox = rng.choice((b"", b"\x45\0\0\x14".ljust(20, b"x"), rng.randbytes(100)))
            in_modifier = len(inbox)
        elif op == cmd.OPEN_XRCD:
            inbox = OPEN_XRCD.pack({name: rng.getrandbits(1) for name in ("device", "named", "create", "exclusive")})
        elif op == cmd.CLOSE_XRCD:
            in_modifier = rng.randrange(4)
        elif op == cmd.SET_WEIGHT:
            in_modifier, op_modifier = rng.choice((16, in_modifier)), rng.randrange(18)
        elif op in TRANSITIONS:
            in_modifier = rng.choice((16, 16, 17, in_modifier))
            service = rng.choice((0, 0, 0, 1, 3, 2))
            if in_modifier in self.nic.qps and rng.random() < 0.8:
                service = self.nic.qps[in_modifier].ctx.servtype
            cq = Queue(rng.randrange(1, 3), block, bytearray(), va)
            fields: dict[str, int] = {}
            if op == cmd.RST2INIT:
                fields = driver.creation(rng.randrange(1, 3), cq, block, va, service)
            elif op == cmd.INIT2RTR:
                fields = driver.rtr_fields(service, PEER, 99)
            elif op == cmd.RTR2RTS:
                fields = driver.rts_fields(service)
            if rng.random() < 0.1:
                name = rng.choice(QPC.fields).name
                fields[name] = rng.getrandbits(QPC[name].width)
            inbox = QPC.pack(fields)
        if rng.random() < 0.05:
            inbox = rng.choice((b"", inbox[:-1], bytes(rng.randbytes(len(inbox)))))
        return op, in_modifier, op_modifier, inbox

    def check(self) -> None:
        """What must hold whatever happened."""
        res = self.nic.resources
        queues: list[Any] = [*res.qps.values(), *res.cqs.values(), *res.eqs.values(), *res.srqs.values()]
        assert {queue.regs.block: queue for queue in queues} == res.blocks
        assert set(res.blocks) == set(res.doorbells.doors)
        assert set(res.blocks) <= set(res.pools[cmd.RES_UAR_BLOCK].owners)
        users: dict[int, int] = {}
        for pd in (
            *(qp.ctx.pd for qp in res.qps.values() if not qp.xrc_target),
            *(srq.pd for srq in res.srqs.values()),
            *(record.entry.pd for record in res.keys.values() if record.entry is not None),
        ):
            users[pd] = users.get(pd, 0) + 1
        assert users == res.pd_users
        for cq in res.cqs.values():
            assert cq.users == sum(qp.cqs.count(cq) for qp in res.qps.values())
        for number, segment in res.segments.items():
            assert segment.users == sum(record.segment == number for record in res.keys.values())
        for kind, objects in (
            (cmd.RES_MTT, res.segments),
            (cmd.RES_QP, res.qps),
            (cmd.RES_CQ, res.cqs),
            (cmd.RES_SRQ, res.srqs),
            (cmd.RES_EQ, res.eqs),
            (cmd.RES_PD, res.pd_users),
        ):
            assert set(objects) <= set(res.pools[kind].owners)
        for address in range(0, 9 * BLOCK_BYTES, BLOCK_BYTES):
            if address // BLOCK_BYTES not in res.blocks:
                assert not any(self.driver.uar.buf[address : address + BLOCK_BYTES])


@pytest.mark.slow
@given(st.integers(0, 1 << 32))
def test_random_commands(new_driver: type[Driver], snapshot: Snapshot, seed: int) -> None:
    monkey = Monkey(seed, new_driver)
    for _ in range(120):
        op, in_modifier, op_modifier, inbox = monkey.command()
        driver = monkey.drivers[monkey.rng.random() < 0.05]
        before = snapshot(monkey.driver)
        result = driver.run(op, in_modifier, op_modifier, inbox)
        assert result.status in (*cmd.STATUS_NAMES, cmd.ST_ERRNO + EAGAIN)
        assert result.status != cmd.ST_INTERNAL_ERR
        if result.status != cmd.ST_OK:
            assert snapshot(monkey.driver) == before, cmd.COMMAND_NAMES.get(op, op)
        elif (op == cmd.ALLOC_RES and in_modifier == cmd.RES_MPT) or op == cmd.ALLOC_MW:
            monkey.keys.append(result.out_param)
        monkey.check()
    for driver in monkey.drivers:
        monkey.nic.unmap_uar(driver.uar)
    monkey.check()
    res = monkey.nic.resources
    left = [
        res.xrcds,
        res.blocks,
        res.keys,
        res.pd_users,
        res.segments,
        res.icm,
        *(pool.owners for pool in res.pools.values()),
    ]
    assert not any(left)


@pytest.mark.slow
def test_the_monkey_reaches_nearly_everything(new_driver: type[Driver]) -> None:
    done: set[int] = set()
    failed: set[int] = set()
    for seed in range(500):
        monkey = Monkey(seed, new_driver)
        for _ in range(120):
            op, in_modifier, op_modifier, inbox = monkey.command()
            result = monkey.driver.run(op, in_modifier, op_modifier, inbox)
            failed.add(result.status)
            if result.status == cmd.ST_OK:
                done.add(op)
                if (op == cmd.ALLOC_RES and in_modifier == cmd.RES_MPT) or op == cmd.ALLOC_MW:
                    monkey.keys.append(result.out_param)
    # an SQE queue pair comes of traffic alone, QP0 and QP1 are the device's, and two open contexts keep it running
    assert {cmd.COMMAND_NAMES[op] for op in COMMANDS - done} <= {
        "SQERR2RTS",
        "CONF_SPECIAL_QP",
        "CLOSE_HCA",
        "INIT_HCA",
    }
    assert failed >= {
        cmd.ST_BAD_OP,
        cmd.ST_BAD_SYS_STATE,
        cmd.ST_BAD_RESOURCE,
        cmd.ST_BAD_NVMEM,
        cmd.ST_BAD_PARAM,
        cmd.ST_BAD_INDEX,
        cmd.ST_BAD_SIZE,
        cmd.ST_BAD_RES_STATE,
        cmd.ST_BAD_QP_STATE,
        cmd.ST_RESOURCE_BUSY,
    }
