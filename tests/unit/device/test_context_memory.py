"""Contexts through the whole device: in pages that a driver lends, in the cache that runs, lost under traffic."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import rnic
from rnic.context.cqc import CQC
from rnic.context.qpc import QPC
from rnic.device import Nic, NicConfig
from rnic.device.icm import CONTEXTS
from rnic.device.mailboxes import ICM_ENTRY, INIT_HCA
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec import registers as reg
from rnic.spec.opcodes import WR_READ
from rnic.spec.states import ERR, RTR, RTS
from rnic.trace.tracer import NullTracer
from tests.unit.device.conftest import Driver, NewPair, Pair, Queue, Snapshot

PAGE = 4096
QPCS, CQCS, EQCS = 0x40000, 0x80000, 0x20000
"""Where the tables of 64 QPs, 64 CQs and 32 EQs lie: 4, 1 and 1 pages."""
TABLES = {"qpc_base": QPCS >> 8, "log_qpcs": 6, "cqc_base": CQCS >> 8, "log_cqcs": 6, "eqc_base": EQCS >> 8}
TABLES |= {"log_eqcs": 5}


def entry(virt: int, host: int, npages: int = 1) -> bytes:
    return ICM_ENTRY.pack({"virt": virt, "page_hi": host >> 32, "page": host >> 12 & 0xFFFFF, "npages": npages})


class Lending:
    """A driver with context memory of its own, eight pages of it, on a NIC that waits for INIT_HCA."""

    def __init__(self, new_driver: type[Driver], order: str = "map first") -> None:
        self.nic = Nic(NicConfig(bytes((10, 0, 0, 1)), log_max_qps=10, autostart=False), rng=random.Random(1))
        self.driver = new_driver(self.nic)
        self.memory, va = self.driver.memory(9 * PAGE)
        self.host = va + PAGE - 1 & -PAGE
        self.at = self.host - va
        # the QPCs' pages from the last to the first
        self.runs = [(QPCS + page * PAGE, self.host + (3 - page) * PAGE) for page in range(4)]
        self.runs += [(CQCS, self.host + 4 * PAGE), (EQCS, self.host + 5 * PAGE)]
        if order == "map first":
            self.lend()
        self.driver.ok(cmd.INIT_HCA, 0, 0, INIT_HCA.pack(TABLES))
        if order == "init first":
            self.lend()
        self.driver.uar.write(reg.CONTROL, reg.CONTROL_ENABLE)

    def lend(self) -> None:
        self.driver.ok(cmd.MAP_ICM, len(self.runs), CONTEXTS, b"".join(entry(virt, host) for virt, host in self.runs))

    def page(self, index: int) -> bytes:
        return bytes(self.memory[self.at + index * PAGE : self.at + (index + 1) * PAGE])


@pytest.fixture
def lending(new_driver: type[Driver]) -> Lending:
    return Lending(new_driver)


# ------------------------------------------------------------------------------ the driver's pages


@pytest.mark.parametrize("order", ["map first", "init first"])
def test_contexts_lie_in_the_pages_of_the_driver(new_driver: type[Driver], order: str) -> None:
    side = Lending(new_driver, order)
    driver = side.driver
    eq = driver.eq(vector=9)
    cq = driver.cq(eq)
    qp = driver.qp(driver.alloc(cmd.RES_PD), cq)
    gid = side.nic.config.gid_table[0]
    assert (eq.number, cq.number, qp.number) == (0, 1, 16)
    # QP 16 is slot 16: the first of the second page, which is the third from the start of the driver's memory
    qpc = side.page(2)[:256]
    assert qpc[0x08] >> 4 == 1
    assert qpc[0x14:0x18].hex() == "00000010"
    assert side.page(4)[64:128] == driver.cqc(eq, cq.block, cq.va)
    assert side.page(5)[0x14:0x18].hex() == "00000009"
    driver.to_rts(qp, gid, 0xABCDEF)
    qpc = side.page(2)[:256]
    assert qpc[0x08] >> 4 == 3
    assert qpc[0x18:0x1C].hex() == "00abcdef"
    assert qpc[0x6C:0x70].hex() == "00000007"
    assert driver.ok(cmd.QUERY_QP, qp.number).outbox == side.page(2)[:256]
    driver.ok(cmd.ERR2RST, qp.number)
    assert side.page(2)[:256] == QPC.pack({"local_qpn": 16})
    driver.ok(cmd.HW2SW_CQ, cq.number)
    driver.ok(cmd.HW2SW_EQ, eq.number)
    assert not any(side.page(4) + side.page(5))


def test_numbers_stay_within_the_tables(lending: Lending) -> None:
    driver = lending.driver
    numbers = [driver.alloc(cmd.RES_QP) for _ in range(64)]
    assert numbers == list(range(16, 80))
    assert driver.run(cmd.ALLOC_RES, cmd.RES_QP).status == cmd.ST_EXCEED_LIM
    assert len([driver.alloc(cmd.RES_EQ) for _ in range(32)]) == 32
    assert driver.run(cmd.ALLOC_RES, cmd.RES_EQ).status == cmd.ST_EXCEED_LIM


def test_pages_wait_for_init_hca_again_after_close_hca(lending: Lending, snapshot: Snapshot) -> None:
    driver = lending.driver
    driver.eq()
    assert driver.run(cmd.CLOSE_HCA).status == cmd.ST_RESOURCE_BUSY
    driver.ok(cmd.HW2SW_EQ, 0)
    driver.ok(cmd.FREE_RES, 0, cmd.RES_EQ)
    driver.ok(cmd.FREE_RES, 2, cmd.RES_UAR_BLOCK)
    driver.ok(cmd.CLOSE_HCA)
    # a page that lies in no table of the next INIT_HCA
    before = snapshot(driver)
    wrong = driver.run(cmd.INIT_HCA, 0, 0, INIT_HCA.pack(TABLES | {"qpc_base": 0x41000 >> 8}))
    assert (wrong.status, snapshot(driver)) == (cmd.ST_BAD_PARAM, before)
    driver.ok(cmd.INIT_HCA, 0, 0, INIT_HCA.pack(TABLES))
    driver.cq(driver.eq())
    assert any(lending.page(4))
    driver.nic.unmap_uar(driver.uar)
    assert len(lending.nic.resources.icm) == 0


def test_refused_while_the_tables_are_in_use(lending: Lending, snapshot: Snapshot, new_driver: type[Driver]) -> None:
    driver, spare = lending.driver, lending.host + 6 * PAGE
    other = new_driver(lending.nic)
    theirs = other.memory(2 * PAGE)[1] + PAGE - 1 & -PAGE
    for status, who, op, count, inbox in (
        (cmd.ST_BAD_PARAM, driver, cmd.MAP_ICM, 1, entry(QPCS + 4 * PAGE, spare)),
        (cmd.ST_RESOURCE_BUSY, driver, cmd.MAP_ICM, 1, entry(QPCS, spare)),
        (cmd.ST_RESOURCE_BUSY, other, cmd.MAP_ICM, 1, entry(EQCS, theirs)),
        (cmd.ST_BAD_NVMEM, driver, cmd.MAP_ICM, 1, entry(QPCS, 0x4000_0000_0000)),
        (cmd.ST_EXCEED_LIM, driver, cmd.MAP_ICM, 65, entry(QPCS, spare) * 65),
        (cmd.ST_BAD_NVMEM, driver, cmd.UNMAP_ICM, 1, entry(QPCS + 4 * PAGE, 0)),
        (cmd.ST_BAD_NVMEM, driver, cmd.UNMAP_ICM, 1, entry(QPCS, 0, 5)),
        (cmd.ST_BAD_NVMEM, other, cmd.UNMAP_ICM, 1, entry(QPCS, 0)),
    ):
        before = snapshot(who)
        result = who.run(op, count, CONTEXTS, inbox)
        assert (cmd.STATUS_NAMES[result.status], snapshot(who)) == (cmd.STATUS_NAMES[status], before)


def test_memory_that_holds_something_else_is_refused(lending: Lending, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lender that changes a context between its write and its reading back gains nothing."""
    driver = lending.driver
    cq = driver.cq(driver.eq())
    qp = driver.qp(driver.alloc(cmd.RES_PD), cq)
    contexts = lending.nic.contexts
    cached = contexts.key.qps[qp.number].store()
    take = contexts.readctx.finish

    def finish() -> bool:
        lending.memory[lending.at + 2 * PAGE + 0x5C + 3] = 0x77  # another protection domain
        return take()

    monkeypatch.setattr(type(contexts.readctx), "finish", lambda self: finish() if self.dma else False)
    fields = driver.rtr_fields(0, lending.nic.config.gid_table[0], 99)
    assert driver.run(cmd.INIT2RTR, qp.number, 0, QPC.pack(fields)).status == cmd.ST_BAD_NVMEM
    assert contexts.key.qps[qp.number].store() == cached


def test_without_pages_nothing_is_made(new_driver: type[Driver], snapshot: Snapshot) -> None:
    nic = Nic(NicConfig(bytes((10, 0, 0, 1)), log_max_qps=6, autostart=False), rng=random.Random(1))
    driver = new_driver(nic)
    driver.ok(cmd.INIT_HCA, 0, 0, INIT_HCA.pack(TABLES))
    number, block = driver.alloc(cmd.RES_EQ), driver.alloc(cmd.RES_UAR_BLOCK)
    _, va = driver.memory(512)
    before = snapshot(driver)
    assert driver.run(cmd.SW2HW_EQ, number, 0, driver.eqc(block, va)).status == cmd.ST_BAD_NVMEM
    assert snapshot(driver) == before
    assert nic.counters["ctx_refused"] == 1


def test_a_driver_that_leaves_takes_its_pages_along(new_driver: type[Driver]) -> None:
    nic = Nic(NicConfig(bytes((10, 0, 0, 1)), log_max_qps=6), rng=random.Random(1))
    first = new_driver(nic)
    first.ok(cmd.CLOSE_HCA)
    _, va = first.memory(2 * PAGE)
    first.ok(cmd.MAP_ICM, 1, CONTEXTS, entry(EQCS, va + PAGE - 1 & -PAGE))
    first.ok(cmd.INIT_HCA, 0, 0, INIT_HCA.pack(TABLES))
    second = new_driver(nic)
    nic.unmap_uar(first.uar)
    number, block = second.alloc(cmd.RES_EQ), second.alloc(cmd.RES_UAR_BLOCK)
    assert second.run(cmd.SW2HW_EQ, number, 0, second.eqc(block, second.memory(512)[1])).status == cmd.ST_BAD_NVMEM
    nic.unmap_uar(second.uar)
    third = new_driver(nic)  # the NIC has its own pages again
    third.qp(third.alloc(cmd.RES_PD), third.cq(third.eq()))


# -------------------------------------------------------------------------- the cache is what runs


def destination(packet: bytes) -> int:
    return int.from_bytes(packet[5:8], "big")


def test_an_edited_cache_changes_the_next_packet(pair: Pair) -> None:
    a, b = pair.connect()
    nic, driver = pair.nics[0], pair.drivers[0]
    va, key = pair.mrs[0][1:]
    contexts = nic.contexts

    def sent() -> int:
        pair.wire.seen.clear()
        driver.write(a, va, 8, key, pair.mrs[1][1], pair.mrs[1][2])
        pair.wire.step()
        return destination(pair.wire.seen[0])

    assert sent() == b.number
    pair.wire.run()
    place = contexts.ctxmdata.tables["qp"].locate(a.number)
    assert place is not None

    def edit() -> None:
        assert contexts.flush_qp(a.number) == 0
        assert place.port.write(place.addr + 0x18, (0x1234).to_bytes(4, "big"))

    # in host memory: nothing, until it is loaded again
    edit()
    assert sent() == b.number
    pair.wire.run()
    edit()
    assert contexts.load_qp(a.number) == 0
    assert sent() == 0x1234
    contexts.key.qps[a.number].remote_qpn = 0x777
    assert sent() == 0x777


class Requests(NullTracer):
    """Keeps what the context manager is asked for."""

    enabled = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int, str]] = []

    def event(self, now_ns: int, stage: str, qpn: int, **fields: int | str) -> None:
        if stage == "channel":
            self.seen.append((str(fields["source"]), str(fields["request"]), qpn, str(fields["status"])))


def test_every_transition_is_a_request_of_the_ceu(new_pair: NewPair) -> None:
    tracer = Requests()
    pair = new_pair()
    nic = pair.nics[0]
    nic.tracer = tracer
    nic.contexts.observe = nic._trace_channel
    a, _ = pair.connect()
    assert tracer.seen == 3 * [
        ("ceu_parser", "WR_QP_ALL", a.number, "OK"),
        ("ceu_parser", "RD_QP_ALL", a.number, "OK"),
    ]
    qp = nic.qps[a.number]
    assert qp.ctx.state == RTS
    # the cache is what it runs on: one place of memory
    slot = nic.contexts.key.qps.slot(a.number)
    assert bytes(nic.arena.memory[slot : slot + 256]) == qp.ctx.store()
    nic.arena.memory[slot + 0x98 : slot + 0x9C] = b"\1\2\3\4"
    assert qp.ctx.qkey == nic.contexts.key.qps[a.number].qkey == 0x01020304


STORE = re.compile(r"\.state\)? = ")
CONTEXT_NAMES = {"ctx", "draft", "m_ctx", "context", "plain"}


@pytest.mark.slow
def test_no_way_to_rts_past_the_context_manager(new_pair: NewPair) -> None:
    """The state of a context is stored in five places: by a command's draft, by its reset, by errors, by the cache."""
    found = set()
    for path in sorted(Path(rnic.__file__).parent.rglob("*.py")):
        room = path.relative_to(Path(rnic.__file__).parent).as_posix()
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if STORE.search(text) else ():
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in [part for each in targets for part in ast.walk(each)]:
                if not isinstance(target, ast.Attribute) or target.attr != "state":
                    continue
                if ast.unparse(target.value).split(".")[-1] in CONTEXT_NAMES:
                    found.add((room, ast.unparse(node)))
    assert found == {
        ("device/qp_commands.py", "draft.state = target"),
        ("device/qp_commands.py", "old, ctx.state = (ctx.state, RESET)"),
        ("transport/qp.py", "self.ctx.state = state"),
        ("context/key_qpc_data.py", "plain.state = state"),
        ("context/ctxmgt.py", "m_ctx.local_qpn, m_ctx.state = (qpn, RESET)"),
    }
    # and the draft counts only once memory has taken it
    pair = new_pair()
    driver = pair.drivers[0]
    qp = driver.qp(pair.pds[0], pair.cqs[0])
    driver.ok(cmd.INIT2RTR, qp.number, 0, QPC.pack(driver.rtr_fields(0, pair.gid(1), 99)))
    contexts = pair.nics[0].contexts
    virt = contexts.ctxmdata.tables["qp"].base
    assert contexts.unmap_icm(virt + (qp.number * 256 & -PAGE), 1) == 0
    assert driver.run(cmd.RTR2RTS, qp.number, 0, QPC.pack(driver.rts_fields(0))).status == cmd.ST_BAD_NVMEM
    assert pair.nics[0].qps[qp.number].ctx.state == RTR


# ------------------------------------------------------------------------------ lost under traffic
Busy = tuple[Pair, Queue, Callable[[], None]]


@pytest.fixture
def busy(new_pair: NewPair) -> Busy:
    """Two connected queue pairs with WRITEs going on."""
    pair = new_pair()
    a, _ = pair.connect()
    pair.drivers[0].map_events(pair.eqs[0], events.CQ_ERROR, events.WQ_CATAS_ERROR)

    def go() -> None:
        for _ in range(3):
            pair.drivers[0].write(a, pair.mrs[0][1], 20_000, pair.mrs[0][2], pair.mrs[1][1], pair.mrs[1][2])
        for _ in range(2):
            pair.wire.step()

    go()
    return pair, a, go


def test_an_invalidated_cq_fails_with_its_queue_pairs(busy: Busy) -> None:
    pair, a, go = busy
    nic = pair.nics[0]
    go()
    assert nic.contexts.invalidate_cq(pair.cqs[0].number) == 0
    pair.wire.run()
    assert nic.qps[a.number].ctx.state == ERR
    assert nic.resources.cqs[pair.cqs[0].number].failed
    assert (events.CQ_ERROR, pair.cqs[0].number) in {tuple(event[:2]) for event in pair.events(0)}
    assert nic.counters["event_cq_error"] == 1


def test_unmapped_context_pages_are_told_by_query_and_count(busy: Busy) -> None:
    pair, a, go = busy
    nic, driver = pair.nics[0], pair.drivers[0]
    go()
    table = nic.contexts.ctxmdata.tables["qp"]
    assert nic.contexts.unmap_icm(table.base, table.pages) == 0
    pair.wire.run()
    assert [item[1] for item in pair.poll(0)] == [0] * 6  # what is cached serves on
    assert driver.run(cmd.QUERY_QP, a.number).status == cmd.ST_BAD_NVMEM
    assert nic.counters["ctx_unmapped"] > 0
    assert driver.run(cmd.TOERR, a.number, 0, bytes(256)).status == cmd.ST_BAD_NVMEM
    driver.ok(cmd.ERR2RST, a.number)  # software can always take a queue pair back
    assert a.number not in nic.contexts.key.qps


def test_pages_of_a_driver_can_be_unmapped_under_its_queues(lending: Lending) -> None:
    driver = lending.driver
    eq = driver.eq()
    cq = driver.cq(eq)
    qp = driver.qp(driver.alloc(cmd.RES_PD), cq)
    driver.ok(cmd.UNMAP_ICM, 1, CONTEXTS, entry(QPCS + PAGE, 0))
    driver.ok(cmd.UNMAP_ICM, 1, CONTEXTS, entry(CQCS, 0))
    assert driver.run(cmd.QUERY_QP, qp.number).status == cmd.ST_BAD_NVMEM
    assert driver.run(cmd.RESIZE_CQ, cq.number, 0, driver.cqc(eq, cq.block, cq.va)).status == cmd.ST_BAD_NVMEM
    driver.ok(cmd.ERR2RST, qp.number)
    driver.ok(cmd.HW2SW_CQ, cq.number)
    assert not lending.nic.contexts.key.cqs


def test_a_disabled_eq_counts_and_says_nothing(busy: Busy) -> None:
    pair, _, go = busy
    nic, driver = pair.nics[0], pair.drivers[0]
    driver.arm(pair.cqs[0], 1)
    assert nic.contexts.event_function(pair.eqs[0].number, 0, True) == 0
    go()
    pair.wire.run()
    assert [item[1] for item in pair.poll(0)] == [0] * 6
    assert pair.events(0) == []
    assert nic.counters["eq_disabled"] > 0
    driver.ok(cmd.MAP_EQ, pair.eqs[0].number, 0, (1 << events.CQ_ERROR).to_bytes(8, "big"))
    driver.arm(pair.cqs[0], 1)
    go()
    pair.wire.run()
    assert [event[0] & 0xFF for event in pair.events(0)] == [events.COMP]


def test_a_query_shows_what_the_engine_changed(busy: Busy) -> None:
    pair, a, _ = busy
    nic, driver = pair.nics[0], pair.drivers[0]
    pair.wire.run()
    place = nic.contexts.ctxmdata.tables["qp"].locate(a.number)
    assert place is not None
    stale = bytearray(256)
    assert place.port.read(place.addr, stale)
    assert QPC.get(stale, "next_send_psn") == 7
    # three messages of 20 packets of 1024 bytes
    fresh = driver.ok(cmd.QUERY_QP, a.number).outbox
    assert QPC.get(fresh, "next_send_psn") == 7 + 60
    assert QPC.get(fresh, "last_acked_psn") == 7 + 60
    assert place.port.read(place.addr, stale)
    assert bytes(stale) == fresh
    assert CQC.size == 64


@pytest.mark.parametrize("how", ["query", "flush"])
def test_receive_entries_and_read_slots_are_counted_in_host_memory(new_pair: NewPair, how: str) -> None:
    pair = new_pair()
    a, b = pair.connect()
    nic, driver = pair.nics[1], pair.drivers[1]
    va, key = pair.mrs[1][1:]
    for _ in range(3):
        driver.recv(b, va, 64, key)
    for _ in range(2):
        pair.drivers[0].send(a, pair.mrs[0][1], 8, pair.mrs[0][2])
    for _ in range(6):
        pair.drivers[0].post(a, WR_READ, pair.mrs[0][1], 8, pair.mrs[0][2], va, key)
    pair.wire.run()
    assert [item[1] for item in pair.poll(0)] == [0] * 8
    if how == "query":
        driver.ok(cmd.QUERY_QP, b.number)
    else:
        nic.flush_contexts()
    place = nic.contexts.ctxmdata.tables["qp"].locate(b.number)
    assert place is not None
    raw = bytearray(256)
    assert place.port.read(place.addr, raw)
    assert QPC.get(raw, "rq_wqe_counter") == 2
    assert QPC.get(raw, "ra_buff_indx") == 6 % QPC.get(raw, "max_dest_rd_atomic")


def test_a_flush_writes_indices_and_arm_state_of_a_cq(busy: Busy) -> None:
    pair, a, _ = busy
    nic, driver, cq = pair.nics[0], pair.drivers[0], pair.cqs[0]
    pair.wire.run()
    driver.arm(cq, 1)
    assert len(pair.poll(0)) == 3
    pair.drivers[0].write(a, pair.mrs[0][1], 8, pair.mrs[0][2], pair.mrs[1][1], pair.mrs[1][2])
    pair.wire.run()
    driver.arm(cq, 2)
    place = nic.contexts.ctxmdata.tables["cq"].locate(cq.number)
    assert place is not None

    def stored() -> dict[str, int]:
        raw = bytearray(64)
        assert place.port.read(place.addr, raw)
        return CQC.unpack(bytes(raw))

    before = stored()
    nic.flush_contexts()
    changed = {name: value for name, value in stored().items() if value != before[name]}
    assert changed == {"flags": 0x100, "last_notified_index": 4, "consumer_index": 3, "producer_index": 4}
    driver.arm(cq, 0)
    nic.flush_contexts()
    assert stored()["flags"] == 0


def test_resizing_keeps_what_software_wrote(new_driver: type[Driver]) -> None:
    driver = new_driver(Nic(NicConfig(bytes((10, 0, 0, 1)), log_max_qps=6), rng=random.Random(1)))
    eq, number, block = driver.eq(), driver.alloc(cmd.RES_CQ), driver.alloc(cmd.RES_UAR_BLOCK)
    pd = driver.alloc(cmd.RES_PD)
    _, va, key = driver.mr(pd, 32 << 5)
    records = {"ci_db": 0x1234, "state_db": 0x5678, "flags": 1 << 18, "lkey": key, "pd": pd}
    mailbox = CQC.unpack(driver.cqc(eq, block, va, 4)) | records | {"cqn": number}
    driver.ok(cmd.SW2HW_CQ, number, 0, CQC.pack(mailbox))
    driver.ok(cmd.RESIZE_CQ, number, 0, driver.cqc(eq, block, va, 5))
    place = driver.nic.contexts.ctxmdata.tables["cq"].locate(number)
    assert place is not None
    raw = bytearray(64)
    assert place.port.read(place.addr, raw)
    assert CQC.unpack(bytes(raw)) == mailbox | {"logsize": 5}


def test_fields_that_nothing_uses_are_stored_and_queried(pair: Pair) -> None:
    """mig_state, static_rate, usr_page (002: not used at present)."""
    driver = pair.drivers[0]
    number, block = driver.alloc(cmd.RES_QP), driver.alloc(cmd.RES_UAR_BLOCK)
    _, va = driver.memory(4096)
    given = driver.creation(pair.pds[0], pair.cqs[0], block, va) | {"mig_state": 3, "rlkey_arbel_sched_queue": 9}
    driver.ok(cmd.RST2INIT, number, 0, QPC.pack(given))
    path = {"static_rate": 7, "tclass": 3, "sl": 2, "my_lmc": 5}
    driver.ok(cmd.INIT2RTR, number, 0, QPC.pack(driver.rtr_fields(0, pair.gid(1), 99) | path))
    fields = QPC.unpack(driver.ok(cmd.QUERY_QP, number).outbox)
    path |= {"usr_page": block, "mig_state": 3, "rlkey_arbel_sched_queue": 9}
    assert {name: fields[name] for name in path} == path
    assert fields["opt_param_mask"] == 0
