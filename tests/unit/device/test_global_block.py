"""The global block: the table against rows typed by hand from the documents, and what each register does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rnic.device import Nic, NicConfig
from rnic.rings.queue_block import CQ_BLOCK, QP_BLOCK, SRQ_BLOCK
from rnic.spec import commands as cmd
from rnic.spec import congestion_regs, events
from rnic.spec import registers as reg
from rnic.spec.opcodes import CNP
from rnic.spec.ports import PORT_ACTIVE, PORT_DOWN
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from rnic.wire.packet import build, seal
from tests.unit.device.conftest import Driver, Pair, Queue

# offset, name, access, reset value, {bit field: (msb, lsb)}
GLOBAL = [
    (0x00, "CONTROL", "RW", 0, "ENABLE 0:0 SOFT_RESET 1:1 PAUSE 2:2 MODE 7:4 GLOBAL_IRQ_EN 8:8"),
    (0x04, "HW_STATUS", "RO", 0, "ENABLED 0:0 READY 1:1 PAUSED 2:2 LINK_UP 3:3 FATAL 4:4 BUSY 5:5"),
    (0x08, "IRQ_ENABLE", "RW", 0, "EVENT 0:0 COMMAND 1:1 QP_FAULT 2:2 PORT_CHANGE 3:3 FATAL 4:4 NON_RDMA 5:5 CNP 6:6"),
    (0x0C, "IRQ_STATUS", "W1C", 0, "EVENT 0:0 COMMAND 1:1 QP_FAULT 2:2 PORT_CHANGE 3:3 FATAL 4:4 NON_RDMA 5:5 CNP 6:6"),
    (0x10, "SCRATCH", "RW", 0, ""),
    (0x1C, "SCRATCH2", "RW", 0, ""),
    (0x80, "HCR_IN_PARAM_HI", "RW", 0, ""),
    (0x84, "HCR_IN_PARAM_LO", "RW", 0, ""),
    (0x88, "HCR_IN_MODIFIER", "RW", 0, ""),
    (0x8C, "HCR_OUT_PARAM_HI", "RW", 0, ""),
    (0x90, "HCR_OUT_PARAM_LO", "RW", 0, ""),
    (0x94, "HCR_TOKEN", "RW", 0, "TOKEN 31:16"),
    (0x98, "HCR_COMMAND", "RW", 0, "STATUS 31:24 GO 23:23 E 22:22 OP_MODIFIER 19:12 OPCODE 11:0"),
    (0xA0, "DEVICE_ID", "RO", 0x524E, ""),
    (0xA4, "REVISION", "RO", 1, ""),
    (0xA8, "GUID_HI", "RO", 0, ""),
    (0xAC, "GUID_LO", "RO", 0, ""),
    (0xB0, "LIMIT_QUEUES", "RO", 0, "LOG_QPS 7:0 LOG_CQS 15:8 LOG_SRQS 23:16 LOG_EQS 31:24"),
    (0xB4, "LIMIT_MEMORY", "RO", 0, ""),
    (0xB8, "WINDOW_BLOCKS", "RO", 0, ""),
    (0xBC, "PORT", "RO", 0, "UDP_PORT 15:0 MTU 18:16 STATE 23:20"),
    (0xC0, "NON_RDMA", "RO", 0, ""),
]
QUEUE = {
    "QP": (
        QP_BLOCK,
        "QUEUE_NUMBER 00 RO, QUEUE_STATE 04 RO, SQ_BASE_LO 20 RO, SQ_BASE_HI 24 RO, SQ_SIZE 28 RO, SQ_HEAD 2C RO, "
        "SQ_TAIL 30 RW, SQ_DOORBELL 34 RW, SQ_FLAGS 38 RW, SQ_STRIDE 3C RO, RQ_BASE_LO 60 RO, RQ_BASE_HI 64 RO, "
        "RQ_SIZE 68 RO, RQ_HEAD 6C RO, RQ_TAIL 70 RW, RQ_STRIDE 74 RO",
    ),
    "CQ": (
        CQ_BLOCK,
        "QUEUE_NUMBER 00 RO, QUEUE_STATE 04 RO, CQ_BASE_LO 40 RO, CQ_BASE_HI 44 RO, CQ_SIZE 48 RO, CQ_HEAD 4C RW, "
        "CQ_TAIL 50 RO, CQ_DOORBELL 54 RW, CQ_FLAGS 58 RW",
    ),
    "SRQ": (
        SRQ_BLOCK,
        "QUEUE_NUMBER 00 RO, QUEUE_STATE 04 RO, RQ_BASE_LO 60 RO, RQ_BASE_HI 64 RO, RQ_SIZE 68 RO, RQ_HEAD 6C RO, "
        "RQ_TAIL 70 RW, RQ_STRIDE 74 RO, LIMIT 78 RW",
    ),
}
ONES = 0xFFFF_FFFF


@pytest.fixture
def asleep() -> Nic:
    """A NIC as it powers up, with no firmware."""
    return Nic(NicConfig(bytes((10, 0, 0, 1)), log_max_qps=6, autostart=False), rng=random.Random(1))


@pytest.mark.parametrize("row", GLOBAL, ids=[row[1] for row in GLOBAL])
def test_golden_global_register(row: tuple[int, str, str, int, str]) -> None:
    offset, name, access, reset, fields = row
    register = reg.GLOBAL_AT[offset]
    assert (register.name, register.access, register.reset) == (name, access, reset)
    assert " ".join(f"{field.name} {field.msb}:{field.lsb}" for field in register.fields) == fields


def test_golden_table_is_the_whole_table() -> None:
    assert [row[0] for row in GLOBAL] == [register.offset for register in reg.GLOBAL_REGISTERS]


@pytest.mark.parametrize("kind", QUEUE)
def test_golden_queue_block(kind: str) -> None:
    block, expected = QUEUE[kind]
    rows = [f"{row.name} {row.offset:02X} {row.access}" for row in reg.queue_registers(block)]
    assert rows == expected.split(", ")


def test_reset_values(asleep: Nic, new_driver: type[Driver]) -> None:
    uar = new_driver(asleep).uar
    live = {reg.HW_STATUS: 1 << 3, reg.GUID_HI: asleep.config.guid >> 32, reg.GUID_LO: asleep.config.guid & ONES}
    live |= {reg.LIMIT_QUEUES: 6 | 6 << 8 | 12 << 16 | 10 << 24, reg.LIMIT_MEMORY: 1 << 15, reg.WINDOW_BLOCKS: 256}
    live |= {reg.PORT: 4791 | 5 << 16 | PORT_DOWN << 20}
    for register in reg.GLOBAL_REGISTERS:
        assert uar.read(register.offset) == live.get(register.offset, register.reset), register.name


def test_every_offset_of_the_block(asleep: Nic, new_driver: type[Driver]) -> None:
    """What is read-only, reserved, misaligned or outside reads as before whatever is stored there."""
    uar = new_driver(asleep).uar
    stored = {reg.IRQ_ENABLE: reg.IRQ_BITS, reg.CONTROL: 0x1F5, reg.HCR_TOKEN: 0xFFFF_0000}
    for offset in range(-8, reg.GLOBAL_BYTES + 8):
        register = reg.GLOBAL_AT.get(offset)
        if offset == reg.HCR_COMMAND:
            continue
        before = {at: uar.read(at) for at in reg.GLOBAL_AT}
        uar.write(offset, ONES & ~reg.CONTROL_RESET if offset == reg.CONTROL else ONES)
        if register is not None and register.access == "RW":
            assert uar.read(offset) == stored.get(offset, ONES), register.name
            uar.write(offset, 0)
        elif offset % 4 or register is None:
            assert uar.read(offset) == 0
        assert {at: uar.read(at) for at in reg.GLOBAL_AT} == before
    assert not any(uar.buf)


def test_enable_gates_the_data_path(pair: Pair) -> None:
    a, b = pair.connect()
    uar = pair.drivers[0].uar
    uar.write(reg.CONTROL, 0)
    assert uar.read(reg.HW_STATUS) & reg.STATUS_ENABLED == 0
    pair.drivers[0].write(a, pair.mrs[0][1], 64, pair.mrs[0][2], pair.mrs[1][1], pair.mrs[1][2])
    pair.wire.run()
    assert pair.poll(0) == []
    assert pair.nics[0].next_deadline_ns() is None
    pair.drivers[1].write(b, pair.mrs[1][1], 64, pair.mrs[1][2], pair.mrs[0][1], pair.mrs[0][2])
    pair.wire.run()
    assert pair.nics[0].counters["drop_disabled"] > 0
    uar.write(reg.CONTROL, reg.CONTROL_ENABLE)
    pair.wire.run()
    assert len(pair.poll(0)) == 1


def test_pause_keeps_receiving_and_sends_nothing(pair: Pair) -> None:
    a, b = pair.connect()
    uar = pair.drivers[0].uar
    uar.write(reg.CONTROL, reg.CONTROL_ENABLE | reg.CONTROL_PAUSE)
    assert uar.read(reg.HW_STATUS) & reg.STATUS_PAUSED
    pair.drivers[0].write(a, pair.mrs[0][1], 64, pair.mrs[0][2], pair.mrs[1][1], pair.mrs[1][2])
    pair.mrs[1][0][:4] = b"abcd"
    pair.drivers[1].write(b, pair.mrs[1][1], 4, pair.mrs[1][2], pair.mrs[0][1], pair.mrs[0][2])
    pair.wire.step()
    pair.wire.step()
    assert bytes(pair.mrs[0][0][:4]) == b"abcd"
    assert pair.nics[0].produce(pair.wire.now) == []
    assert not pair.nics[0].has_work()
    uar.write(reg.CONTROL, reg.CONTROL_ENABLE)
    pair.wire.run()
    assert len(pair.poll(0)) == len(pair.poll(1)) == 1


def test_soft_reset(pair: Pair) -> None:
    a, _ = pair.connect()
    driver, nic = pair.drivers[0], pair.nics[0]
    _, va, key = pair.mrs[0]
    driver.write(a, va, 64, key, pair.mrs[1][1], pair.mrs[1][2])
    driver.uar.write(reg.SCRATCH, 7)
    driver.uar.write(reg.IRQ_ENABLE, ONES)
    driver.uar.write(reg.HCR_TOKEN, ONES)
    driver.uar.write(reg.CONTROL, reg.CONTROL_RESET | reg.CONTROL_ENABLE)
    res = nic.resources
    assert not any(
        (res.qps, res.cqs, res.eqs, res.srqs, res.blocks, res.keys, res.pd_users, res.segments, res.groups.members)
    )
    assert not any(pool.owners for pool in res.pools.values())
    assert nic.memory.lookup(key) is None
    assert not any(driver.uar.buf)
    for offset in (reg.CONTROL, reg.SCRATCH, reg.IRQ_ENABLE, reg.IRQ_STATUS, reg.HCR_TOKEN):
        assert driver.uar.read(offset) == 0
    assert not nic.has_work()
    assert nic.next_deadline_ns() is None
    assert nic.next_event() is None
    assert driver.run(cmd.ALLOC_RES, cmd.RES_PD).status == cmd.ST_BAD_SYS_STATE
    driver.uar.write(reg.CONTROL, reg.CONTROL_ENABLE)
    driver.ok(cmd.INIT_HCA, inbox=bytes(64))
    pair.pds[0] = driver.alloc(cmd.RES_PD)
    pair.eqs[0] = driver.eq(logsize=6, vector=3)
    pair.cqs[0] = driver.cq(pair.eqs[0], logsize=6)
    pair.mrs[0] = driver.mr(pair.pds[0], 4096)
    a, _ = pair.connect()
    driver.write(a, pair.mrs[0][1], 64, pair.mrs[0][2], pair.mrs[1][1], pair.mrs[1][2])
    pair.wire.run()
    assert [entry[1] & 0xFF for entry in pair.poll(0)] == [0]


def test_interrupt_line(pair: Pair) -> None:
    def line() -> bool:
        return block.interrupt_line

    uar, block = pair.drivers[0].uar, pair.nics[0].globals
    uar.write(reg.IRQ_STATUS, ONES)
    pair.nics[0].receive_other(b"arp", 5)
    assert uar.read(reg.IRQ_STATUS) == reg.IRQ_NON_RDMA
    assert not line()
    uar.write(reg.IRQ_ENABLE, reg.IRQ_NON_RDMA)
    assert not line()
    uar.write(reg.CONTROL, reg.CONTROL_ENABLE | reg.CONTROL_IRQ)
    assert line()
    uar.write(reg.IRQ_STATUS, reg.IRQ_PORT)
    assert line()
    uar.write(reg.IRQ_STATUS, reg.IRQ_NON_RDMA)
    assert not line()


def test_port_change_is_told_to_every_context(driver: Driver, new_driver: type[Driver]) -> None:
    other = new_driver(driver.nic)
    queues: list[tuple[Driver, Queue]] = []
    for who in (driver, other):
        eq = who.eq(vector=len(queues))
        who.map_events(eq, events.PORT_CHANGE)
        queues.append((who, eq))
    driver.nic.set_link(True)
    driver.nic.set_link(False)
    driver.nic.set_link(False)
    assert driver.uar.read(reg.HW_STATUS) & reg.STATUS_LINK == 0
    driver.nic.set_link(True)
    for who, eq in queues:
        assert [(entry[0], entry[1]) for entry in who.poll(eq)] == [
            (events.PORT_CHANGE | PORT_DOWN << 8, 1),
            (events.PORT_CHANGE | PORT_ACTIVE << 8, 1),
        ]
    assert driver.uar.read(reg.IRQ_STATUS) & reg.IRQ_PORT
    driver.ok(cmd.CLOSE_PORT, 1)
    assert driver.uar.read(reg.PORT) >> 20 == PORT_DOWN
    driver.nic.receive_other(b"x", 1)
    assert driver.nic.counters["drop_disabled"] == 1
    driver.ok(cmd.INIT_PORT, 1)
    assert driver.uar.read(reg.PORT) >> 20 == PORT_ACTIVE
    for op in (cmd.INIT_PORT, cmd.CLOSE_PORT):
        assert driver.run(op, 2).status == cmd.ST_BAD_INDEX


def test_an_event_queue_that_cannot_be_written_is_fatal(driver: Driver, new_driver: type[Driver]) -> None:
    other = new_driver(driver.nic)
    watch = other.eq(vector=1)
    other.map_events(watch, events.LOCAL_CATAS_ERROR)
    stranger = new_driver(driver.nic)
    stranger.uar.program = 2  # another program, whose memory is in order
    ease = stranger.eq(vector=2)
    stranger.map_events(ease, events.LOCAL_CATAS_ERROR)
    eq = driver.eq()
    driver.map_events(eq, events.PORT_CHANGE)
    broken = driver.nic.resources.eqs[eq.number]
    broken.view = None
    driver.space.unmap(next(m for m in driver.space._by_va._items if m.va == eq.va))
    driver.nic.set_link(False)
    driver.nic.set_link(True)
    assert [entry[:2] for entry in other.poll(watch)] == [(events.LOCAL_CATAS_ERROR, eq.number)]
    assert stranger.poll(ease) == []
    assert driver.uar.load(eq.block, 0x04) == 15
    assert driver.uar.read(reg.HW_STATUS) & reg.STATUS_FATAL
    assert driver.uar.read(reg.IRQ_STATUS) & reg.IRQ_FATAL
    driver.uar.write(reg.CONTROL, reg.CONTROL_RESET)
    assert driver.uar.read(reg.HW_STATUS) & reg.STATUS_FATAL == 0


def test_non_rdma_channel_is_bounded_and_counted(driver: Driver) -> None:
    nic = driver.nic
    for index in range(300):
        nic.receive_other(index.to_bytes(2, "big"), index)
    assert driver.uar.read(reg.NON_RDMA) == len(nic.non_rdma) == 256
    assert nic.counters["non_rdma_frames"] == 256
    assert nic.counters["non_rdma_bytes"] == 512
    assert nic.counters["drop_non_rdma_full"] == 44
    first = nic.non_rdma.get()
    assert first is not None
    assert (first.now_ns, first.data) == (0, b"\0\0")
    while nic.non_rdma.get() is not None:
        pass
    nic.receive_other(bytes((1 << 20) + 1), 0)
    assert len(nic.non_rdma) == 0
    nic.receive_other(bytes(1 << 20), 0)
    nic.receive_other(b"", 0)
    nic.receive_other(b"x", 0)
    assert len(nic.non_rdma) == 2


def test_a_udp_checksum_is_neither_made_nor_looked_at(pair: Pair) -> None:
    """004 7.2, "parity bypass": over IPv4 it is 0; whatever it says, the packet is taken, since the ICRC covers it."""
    nic = pair.nics[1]
    _, b = pair.connect()
    flow = Flow(pair.nics[0].config.address, nic.config.address, 4791)
    frame = bytearray(ip_packet(flow, seal(build(CNP, dqpn=b.number, psn=0, payload=b""), flow)))
    at = 26 if len(flow.src) == 4 else 46
    if len(flow.src) == 4:
        assert frame[at : at + 2] == bytes(2)
    for value in (b"\0\0", b"\x12\x34", b"\xff\xff"):
        frame[at : at + 2] = value
        before = nic.counters["cnps_received"]
        nic.receive_frame(memoryview(bytes(frame)), 5)
        assert nic.counters["cnps_received"] == before + 1


def test_whole_packets_are_told_apart(pair: Pair) -> None:
    """004 7.3: by their headers; RDMA goes on to its queue pair, the rest to the channel."""
    nic = pair.nics[1]
    _, b = pair.connect()
    flow = Flow(pair.nics[0].config.address, nic.config.address, 4791)
    before = nic.counters["rx_packets"]
    nic.receive_frame(memoryview(ip_packet(flow, seal(build(CNP, dqpn=b.number, psn=0, payload=b""), flow))), 5)
    assert nic.counters["rx_packets"] == before + 1
    assert nic.counters["cnps_received"] == 1
    other = Flow(flow.src, flow.dst, 4791, 53)
    frames = [ip_packet(other, b"to a name server"), b"\x45" + bytes(30), b"\x08\x06 no IP at all", b""]
    for frame in frames:
        nic.receive_frame(memoryview(frame), 6)
    assert nic.counters["rx_packets"] == before + 1
    taken = [nic.non_rdma.get() for _ in frames]
    assert [frame and frame.data for frame in taken] == frames
    assert len(nic.non_rdma) == 0


def test_a_cnp_interrupts(pair: Pair) -> None:
    a, b = pair.connect()
    uar = pair.drivers[1].uar
    uar.write(reg.IRQ_STATUS, ONES)
    flow = Flow(pair.nics[0].config.address, pair.nics[1].config.address, 4791)
    frame = seal(build(CNP, dqpn=b.number, psn=0, payload=b""), flow)
    pair.nics[1].receive(RxBurst(flow, memoryview(frame), len(frame), len(frame), 0), 5_000)
    assert pair.nics[1].counters["cnps_received"] == 1
    assert uar.read(reg.IRQ_STATUS) == reg.IRQ_CNP
    assert a.number


def test_a_port_that_a_program_closes_is_closed_for_it_alone(driver: Driver, new_driver: type[Driver]) -> None:
    def program(number: int) -> Any:
        made = new_driver(driver.nic)
        made.uar.program = number
        return made

    def state() -> int:
        return int(driver.uar.read(reg.PORT) >> 20)

    driver.uar.program = 1
    other = program(2)
    assert driver.run(cmd.CLOSE_PORT, 1).status == cmd.ST_RESOURCE_BUSY
    assert state() == PORT_ACTIVE
    driver.nic.unmap_uar(other.uar)
    second = program(1)
    driver.ok(cmd.CLOSE_PORT, 1)
    driver.nic.unmap_uar(second.uar)
    assert state() == PORT_DOWN, "a context of the program that closed it is still there"
    driver.nic.map_uar(driver.space, program=3)
    assert state() == PORT_ACTIVE, "another program came"


def test_a_port_does_not_stay_closed_behind_a_program(driver: Driver, new_driver: type[Driver]) -> None:
    passing = new_driver(driver.nic)
    driver.nic.unmap_uar(driver.uar)
    passing.ok(cmd.CLOSE_PORT, 1)
    driver.nic.unmap_uar(passing.uar)
    again = new_driver(driver.nic)
    assert again.uar.read(reg.PORT) >> 20 == PORT_ACTIVE
    again.ok(cmd.CLOSE_HCA)
    driver.nic.unmap_uar(again.uar)


def test_what_a_program_set_of_congestion_ends_with_it(driver: Driver, new_driver: type[Driver]) -> None:
    def at_work(made: Any) -> int:
        return int(made.ok(cmd.READ_CFG, congestion_regs.CNP_TIMER_THRD).out_param)

    def choose(made: Any, value: int) -> None:
        made.ok(cmd.WRITE_CFG, congestion_regs.CNP_TIMER_THRD, 0, value.to_bytes(8, "big"))

    driver.uar.program = 1
    before = at_work(driver)
    second = new_driver(driver.nic)
    second.uar.program = 1
    choose(driver, 7)
    driver.nic.unmap_uar(driver.uar)
    assert at_work(second) == 7, "another context of the same program is still there"
    driver.nic.map_uar(driver.space, program=2)
    assert at_work(second) == before, "another program came"
    driver.nic.unmap_uar(driver.nic.resources.uars[-1])
    assert before != 9
    choose(second, 9)
    driver.nic.unmap_uar(second.uar)
    assert at_work(new_driver(driver.nic)) == before, "nobody is left who chose"
