"""A small driver: what the verbs do to a device, with nothing in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rnic.context import modify
from rnic.context.cqc import CQC, SRQC
from rnic.context.ctxmdata import PageTable
from rnic.context.eqc import EQC
from rnic.context.qpc import QPC, SRQ_VALID
from rnic.device import CommandResult, Nic, NicConfig, Uar
from rnic.device.channels import make_nic
from rnic.mem.mpt import MPT_ENTRY, MPT_REGION, flags_from_access
from rnic.mem.space import AddressSpace, SimAddressSpace
from rnic.rings.cqe import CQE_BYTES
from rnic.rings.queue_block import CQ_DOORBELL, CQ_HEAD, RQ_TAIL, SQ_TAIL
from rnic.rings.ring import PhaseConsumer
from rnic.rings.rqe import SRQ_ORDER_BYTES, SRQ_ORDER_STRUCT, srq_bytes
from rnic.rings.sqe import FLAG_SIGNALED, SGE_STRUCT, SQE_BYTES, SQE_STRUCT, SQE_UD_STRUCT
from rnic.spec import access
from rnic.spec import commands as cmd
from rnic.spec.opcodes import WR_SEND, WR_WRITE
from rnic.spec.states import ST_RC, ST_UD
from rnic.wire.bursts import RxBurst

ALL_RIGHTS = access.LOCAL_WRITE | access.REMOTE_WRITE | access.REMOTE_READ | access.REMOTE_ATOMIC | access.MW_BIND
QKEY = 0x1111_1111
STRIDE = 16
ENTRIES = 16


class Queue:
    """Number, block and ring of one queue."""

    def __init__(self, number: int, block: int, memory: bytearray | memoryview, va: int) -> None:
        self.number = number
        self.block = block
        self.memory = memory
        self.va = va
        self.ring: PhaseConsumer | None = None
        self.tail = 0
        self.rq_tail = 0
        self.rq_offset = 0
        self.order_offset = 0
        self.service = ST_RC


class Driver:
    """One context on a NIC."""

    def __init__(self, nic: Nic, space: AddressSpace | None = None) -> None:
        self.nic = nic
        self.space = SimAddressSpace() if space is None else space
        self.uar: Uar = nic.map_uar(self.space)

    def run(self, op: int, in_modifier: int = 0, op_modifier: int = 0, inbox: bytes = b"") -> CommandResult:
        return self.nic.command(self.uar, op, in_modifier, op_modifier, inbox)

    def ok(self, op: int, in_modifier: int = 0, op_modifier: int = 0, inbox: bytes = b"") -> CommandResult:
        result = self.run(op, in_modifier, op_modifier, inbox)
        assert cmd.STATUS_NAMES[result.status] == "OK", cmd.COMMAND_NAMES[op]
        return result

    def alloc(self, kind: int) -> int:
        return self.ok(cmd.ALLOC_RES, kind).out_param

    def memory(self, size: int) -> tuple[bytearray, int]:
        buffer = bytearray(size)
        return buffer, self.space.map(buffer).va

    # ------------------------------------------------------------------------------ objects

    def mpt(self, key: int, pd: int, va: int, length: int, rights: int = ALL_RIGHTS, **over: int) -> bytes:
        flags = flags_from_access(rights) | MPT_REGION
        raw = bytearray(MPT_ENTRY.pack({"key": key, "pd": pd, "start": va, "length": length, "address": va} | over))
        raw[:4] = (int.from_bytes(raw[:4], "big") | flags).to_bytes(4, "big")
        return bytes(raw)

    def mr(self, pd: int, size: int, rights: int = ALL_RIGHTS) -> tuple[bytearray, int, int]:
        """Memory, its address and its key."""
        buffer, va = self.memory(size)
        key = self.alloc(cmd.RES_MPT)
        self.ok(cmd.SW2HW_MPT, key, 0, self.mpt(key, pd, va, size, rights))
        return buffer, va, key

    def eqc(self, block: int, va: int, logsize: int = 4, vector: int = 0) -> bytes:
        return EQC.pack({"start": va, "logsize": logsize, "usrpage": block, "msix_vector": vector})

    def eq(self, logsize: int = 4, vector: int = 0) -> Queue:
        number, block = self.alloc(cmd.RES_EQ), self.alloc(cmd.RES_UAR_BLOCK)
        memory, va = self.memory(CQE_BYTES << logsize)
        self.ok(cmd.SW2HW_EQ, number, 0, self.eqc(block, va, logsize, vector))
        queue = Queue(number, block, memory, va)
        queue.ring = PhaseConsumer(memoryview(memory), 1 << logsize)
        return queue

    def map_events(self, eq: Queue, *types: int) -> None:
        self.ok(cmd.MAP_EQ, eq.number, 0, sum(1 << t for t in types).to_bytes(8, "big"))

    def cqc(self, eq: Queue, block: int, va: int, logsize: int = 4) -> bytes:
        return CQC.pack({"start": va, "logsize": logsize, "usrpage": block, "comp_eqn": eq.number})

    def cq(self, eq: Queue, logsize: int = 4) -> Queue:
        number, block = self.alloc(cmd.RES_CQ), self.alloc(cmd.RES_UAR_BLOCK)
        memory, va = self.memory(CQE_BYTES << logsize)
        self.ok(cmd.SW2HW_CQ, number, 0, self.cqc(eq, block, va, logsize))
        queue = Queue(number, block, memory, va)
        queue.ring = PhaseConsumer(memoryview(memory), 1 << logsize)
        return queue

    def srqc(self, pd: int, block: int, va: int, logsize: int = 4, limit: int = 0) -> bytes:
        return SRQC.pack({"start": va, "logsize": logsize, "usrpage": block, "pd": pd, "logstride": 4, "limit": limit})

    def srq(self, pd: int, logsize: int = 4, limit: int = 0) -> Queue:
        number, block = self.alloc(cmd.RES_SRQ), self.alloc(cmd.RES_UAR_BLOCK)
        memory, va = self.memory(srq_bytes(1 << logsize, STRIDE))
        self.ok(cmd.SW2HW_SRQ, number, 0, self.srqc(pd, block, va, logsize, limit))
        queue = Queue(number, block, memory, va)
        queue.order_offset = STRIDE << logsize
        return queue

    def creation(
        self, pd: int, cq: Queue, block: int, va: int, service: int = ST_RC, srq: Queue | None = None
    ) -> dict[str, int]:
        """QPC fields for RST2INIT; the receive ring follows the send ring."""
        return {
            "opt_param_mask": modify.PKEY_INDEX
            | modify.PORT
            | (modify.QKEY if service == ST_UD else modify.ACCESS_FLAGS),
            "servtype": service,
            "pd": pd,
            "usr_page": block,
            "cqn_snd": cq.number,
            "cqn_rcv": cq.number,
            "sq_base": va,
            "snd_wqe_length": ENTRIES * SQE_BYTES,
            "rq_base": 0 if srq else va + ENTRIES * SQE_BYTES,
            "rcv_wqe_length": 0 if srq else ENTRIES * STRIDE,
            "rq_entry_sz_log": 4,
            "srqn": srq.number | SRQ_VALID if srq else 0,
            "port": 1,
            "qkey": QKEY if service == ST_UD else 0,
            "access_flags": 0 if service == ST_UD else 0xF,
        }

    def qp(self, pd: int, cq: Queue, service: int = ST_RC, srq: Queue | None = None) -> Queue:
        """A queue pair in INIT."""
        number, block = self.alloc(cmd.RES_QP), self.alloc(cmd.RES_UAR_BLOCK)
        memory, va = self.memory(ENTRIES * (SQE_BYTES + STRIDE))
        fields = self.creation(pd, cq, block, va, service, srq)
        self.ok(cmd.RST2INIT, number, 0, QPC.pack(fields))
        queue = Queue(number, block, memory, va)
        queue.service = service
        queue.rq_offset = ENTRIES * SQE_BYTES
        return queue

    def rtr_fields(self, service: int, dgid: bytes, dqpn: int, mtu: int = 3, psn: int = 7) -> dict[str, int]:
        if service == ST_UD:
            return {}
        fields = {
            "opt_param_mask": modify.AV | modify.PATH_MTU | modify.DEST_QPN | modify.RQ_PSN,
            "rgid": int.from_bytes(dgid, "big"),
            "hop_limit": 64,
            "mtu": mtu,
            "remote_qpn": dqpn,
            "expected_psn": psn,
        }
        if service == ST_RC:
            fields["opt_param_mask"] |= modify.MAX_DEST_RD_ATOMIC | modify.MIN_RNR_TIMER
            fields |= {"max_dest_rd_atomic": 4, "rnr_nak_timer": 1}
        return fields

    def rts_fields(self, service: int, psn: int = 7) -> dict[str, int]:
        fields = {"opt_param_mask": modify.SQ_PSN, "next_send_psn": psn}
        if service == ST_RC:
            fields["opt_param_mask"] |= modify.TIMEOUT | modify.RETRY_CNT | modify.RNR_RETRY | modify.MAX_QP_RD_ATOMIC
            fields |= {"ackto": 14, "retry_cnt": 2, "rnr_retry": 2, "max_rd_atomic": 4}
        return fields

    def to_rts(self, qp: Queue, dgid: bytes = b"", dqpn: int = 0) -> None:
        self.ok(cmd.INIT2RTR, qp.number, 0, QPC.pack(self.rtr_fields(qp.service, dgid, dqpn)))
        self.ok(cmd.RTR2RTS, qp.number, 0, QPC.pack(self.rts_fields(qp.service)))

    # -------------------------------------------------------------------------- data path

    def post(
        self,
        qp: Queue,
        opcode: int,
        va: int,
        length: int,
        lkey: int,
        remote: int = 0,
        rkey: int = 0,
        flags: int = FLAG_SIGNALED,
        tail: bytes = b"",
    ) -> None:
        at = qp.tail * SQE_BYTES
        SQE_STRUCT.pack_into(qp.memory, at, qp.tail, opcode, flags, va, remote, length, lkey, rkey, 0)
        qp.memory[at + 40 : at + 40 + len(tail)] = tail
        qp.tail = (qp.tail + 1) % ENTRIES
        self.uar.store(qp.block, SQ_TAIL, qp.tail)

    def write(self, qp: Queue, va: int, length: int, lkey: int, remote: int, rkey: int) -> None:
        self.post(qp, WR_WRITE, va, length, lkey, remote, rkey)

    def send(self, qp: Queue, va: int, length: int, lkey: int, flags: int = FLAG_SIGNALED) -> None:
        self.post(qp, WR_SEND, va, length, lkey, flags=flags)

    def send_ud(self, qp: Queue, va: int, length: int, lkey: int, dgid: bytes, dqpn: int, qkey: int) -> None:
        self.post(qp, WR_SEND, va, length, lkey, tail=SQE_UD_STRUCT.pack(dgid, dqpn, qkey))

    def recv(self, queue: Queue, va: int, length: int, lkey: int, slot: int | None = None) -> None:
        """Post to a QP's receive queue, or to an SRQ: into a slot, by default the one at the tail."""
        if slot is None:
            slot = queue.rq_tail
        SGE_STRUCT.pack_into(queue.memory, queue.rq_offset + slot * STRIDE, va, length, lkey)
        if queue.order_offset:
            SRQ_ORDER_STRUCT.pack_into(queue.memory, queue.order_offset + queue.rq_tail * SRQ_ORDER_BYTES, slot)
        queue.rq_tail = (queue.rq_tail + 1) % ENTRIES
        self.uar.store(queue.block, RQ_TAIL, queue.rq_tail)

    def poll(self, queue: Queue) -> list[tuple[int, ...]]:
        """Take all entries of a CQ or EQ."""
        assert queue.ring is not None
        out: list[tuple[int, ...]] = []
        while (entry := queue.ring.pop()) is not None:
            out.append(entry)
        self.uar.store(queue.block, CQ_HEAD, queue.ring.head)
        return out

    def arm(self, cq: Queue, how: int) -> None:
        self.uar.store(cq.block, CQ_DOORBELL, how)


class Wire:
    """Carries bursts between NICs by address, in steps of one microsecond; ``seen`` keeps what passed."""

    def __init__(self, *nics: Nic) -> None:
        self.nics = nics
        self.now = 1_000
        self.seen: list[bytes] = []
        self.known_ident = True
        self.drop: Callable[[bytes], bool] = lambda data: False

    def step(self) -> bool:
        self.now += 1_000
        moved = False
        for nic in self.nics:
            nic.handle_timers(self.now)
            for burst in nic.produce(self.now):
                moved = True
                data = b"".join(burst.buffers)
                assert len(data) == burst.length
                self.seen.append(data)
                if self.drop(data):
                    continue
                for target in self.nics:
                    groups = target.resources.groups.members
                    if target.config.address == burst.flow.dst or burst.flow.dst in groups:
                        flow = burst.flow.reverse().reverse()
                        ident = 0 if self.known_ident else None
                        target.receive(RxBurst(flow, memoryview(data), burst.segment, burst.length, ident), self.now)
        return moved

    def run(self, limit: int = 10_000) -> None:
        """Until nobody has work."""
        for _ in range(limit):  # waits: in steps of simulated time
            if not self.step() and not any(nic.has_work() for nic in self.nics):
                return
        raise AssertionError("the NICs never rest")

    def skip(self, ns: int) -> None:
        self.now += ns
        self.run()


class Pair:
    """Two NICs, a driver and one region on each, and a CQ for everything."""

    make_nic: Callable[..., Nic] = staticmethod(make_nic)

    qps: tuple[Queue, Queue]
    queues: list[Queue]

    def __init__(self, ipv6: bool = False, **config: Any) -> None:
        hosts = [bytes(15) + bytes((n,)) if ipv6 else bytes((10, 0, 0, n)) for n in (1, 2)]
        self.nics = [
            self.make_nic(NicConfig(address, name=f"rnic{n}", **config), rng=random.Random(n))
            for n, address in enumerate(hosts)
        ]
        self.drivers = [Driver(nic) for nic in self.nics]
        self.wire = Wire(*self.nics)
        self.eqs = [driver.eq(logsize=6, vector=3) for driver in self.drivers]
        self.cqs = [driver.cq(eq, logsize=6) for driver, eq in zip(self.drivers, self.eqs, strict=True)]
        self.pds = [driver.alloc(cmd.RES_PD) for driver in self.drivers]
        self.mrs = [driver.mr(pd, 1 << 16) for driver, pd in zip(self.drivers, self.pds, strict=True)]

    def gid(self, side: int) -> bytes:
        return self.nics[side].config.gid_table[0]

    def connect(self, service: int = ST_RC) -> tuple[Queue, Queue]:
        a, b = (driver.qp(pd, cq, service) for driver, pd, cq in zip(self.drivers, self.pds, self.cqs, strict=True))
        self.drivers[0].to_rts(a, self.gid(1), b.number)
        self.drivers[1].to_rts(b, self.gid(0), a.number)
        return a, b

    def poll(self, side: int) -> list[tuple[int, ...]]:
        return self.drivers[side].poll(self.cqs[side])

    def events(self, side: int) -> list[tuple[int, ...]]:
        return self.drivers[side].poll(self.eqs[side])


NewPair = Callable[..., Pair]
Snapshot = Callable[[Driver], dict[str, object]]


@pytest.fixture
def nic() -> Nic:
    return Nic(NicConfig(bytes((10, 0, 0, 1)), log_max_qps=6), rng=random.Random(1))


@pytest.fixture
def driver(nic: Nic) -> Driver:
    return Driver(nic)


@pytest.fixture(scope="session")
def new_driver() -> type[Driver]:
    return Driver


@pytest.fixture(params=[False, True], ids=["ipv4", "ipv6"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


@pytest.fixture(scope="session")
def new_pair() -> NewPair:
    return Pair


def _plain(value: object) -> object:
    """A value without identities, for comparing states."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value


def _slots(thing: object, *leave_out: str) -> dict[str, object]:
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: _plain(getattr(thing, name)) for name in names if name not in leave_out and hasattr(thing, name)}


def _tables(driver: Driver) -> Iterable[tuple[str, PageTable]]:
    return driver.nic.contexts.ctxmdata.tables.items()


def take_snapshot(driver: Driver) -> dict[str, object]:
    """Everything that a command could change: numbers, objects, contexts, registers, memory."""
    res = driver.nic.resources
    blocks = 1 + max((block for block in res.pools[cmd.RES_UAR_BLOCK].owners), default=0)
    return {
        "pools": {
            kind: (pool._fresh, list(pool._returned or ()), list(pool.owners)) for kind, pool in res.pools.items()
        },
        "keys": {index: (record.key, id(record.entry)) for index, record in res.keys.items()},
        "entries": {key: _slots(entry, "record", "view", "port") for key, entry in res.memory._live.items()},
        "free_keys": (res.memory._free, dict(res.memory._tags)),
        "random": driver.nic.random.getstate(),
        "pds": dict(res.pd_users),
        "blocks": {block: id(queue) for block, queue in res.blocks.items()},
        "doors": dict(res.doorbells.doors),
        "rung": list(res.doorbells.rung),
        "qps": {qpn: (id(qp), qp.ctx.store(), qp.scheduled) for qpn, qp in res.qps.items()},
        "cqs": [_slots(cq, "regs", "view", "_overflowed") for cq in res.cqs.values()],
        "eqs": [_slots(eq, "regs", "view", "_interrupts", "_counters") for eq in res.eqs.values()],
        "srqs": [(srq.number, srq.limit, srq.taken, srq.users, srq.ring.head) for srq in res.srqs.values()],
        "groups": (dict(res.groups.members), list(res.groups.changes)),
        "events": dict(driver.uar.event_queues),
        "registers": bytes(driver.uar.buf[: Uar.offset(blocks + 1)]),
        "memory": [bytes(mapping.view) for mapping in driver.space._by_va._items],
        "work": driver.nic.has_work(),
        "segments": {number: (dict(part.pages), part.users) for number, part in res.segments.items()},
        "icm": {kind: dict(pages) for kind, pages in res.icm._pages.items()},
        "tables": {kind: _slots(table) | {"ports": list(table.ports)} for kind, table in _tables(driver)},
        "cached": [sorted(cached) for cached in (res.contexts.key.qps, res.contexts.key.cqs, res.contexts.key.eqs)],
        "turns": {qpn: qp.turn for qpn, qp in res.qps.items()},
        "globals": _slots(driver.nic.globals, "_nic"),
        "hca": dict(driver.nic.hca),
    }


@pytest.fixture(scope="session")
def snapshot() -> Snapshot:
    return take_snapshot
