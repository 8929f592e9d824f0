"""The whole engine in loopback: what each descriptor comes to, and every state and transition of every block.

Both engines, the serial one and the overlapped one, go through the same scenarios.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from amaranth.hdl import Cat

from rnic.gateware.axi_model import ORDERS, Stalls, Timing
from rnic.gateware.cache import SparseMemory
from rnic.gateware.driver import EVERYTHING, NOTHING, Completion, Driver, NetworkSetup, QueueLayout, Request
from rnic.gateware.interfaces import Resp
from rnic.gateware.model import EngineModel
from rnic.gateware.params import EngineParams
from rnic.gateware.sim import Simulation
from rnic.gateware.sim_bus import AxiRam
from rnic.rings.cqe import CQ_ENTRY, CQE_BYTES
from rnic.rings.sqe import SQ_ENTRY
from rnic.spec import engine_net_regs as net
from rnic.spec import engine_regs as regs
from rnic.spec.status import (
    ENGINE_LENGTH_MISMATCH,
    ENGINE_LOCAL_ACCESS,
    ENGINE_REMOTE_ACCESS,
    ENGINE_SUCCESS,
    ENGINE_TIMEOUT,
)
from rnic.wire.engine_header import ENGINE_HEADER_BYTES, EngineHeader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SQ, CQ, SOURCE, TARGET = 0x1000, 0x2000, 0x10000, 0x20000
SPACE = 0x4000
RING = 4
STATE = {name: code for code, name in enumerate(regs.RDMA_STATES)}
Transition = tuple[str, str]


class Engine:
    """One engine in loopback with a driver; notes every transition of every block."""

    def __init__(
        self,
        serial: bool,
        seed: int = 7,
        stall_rate: float = 0.0,
        width: int = 32,
        timing: Timing | None = None,
        ring: int = RING,
        cq_ring: int = 0,
        **parameters: Any,
    ) -> None:
        self.rng = random.Random(seed)
        small = {"block_size": 64, "boundary": 64, "fifo_depth": 64, "watchdog_cycles": 0} | parameters
        params = EngineParams(bus_width=width, serial=serial, **small)
        self.memory = SparseMemory((SQ, 0x1000), (CQ, 0x1000), (SOURCE, SPACE), (TARGET, SPACE))
        self.simulation = Simulation(params, [self.memory], seed, stall_rate, timing=timing)
        self.sim = self.simulation.engines[0]
        assert isinstance(self.sim.ram, AxiRam)
        self.ram = self.sim.ram
        top = self.top = self.sim.top
        self.blocks: dict[str, tuple[Any, tuple[str, ...]]] = {
            "rdma_controller": (top.controller.state, regs.RDMA_STATES),
            "descriptor_parser": (top.parser.state, regs.PARSER_STATES),
            "cq_streamer": (top.cq_streamer.state, regs.STREAMER_STATES),
            "tx_streamer": (top.tx_streamer.state, regs.TX_STATES),
            "tx_header_inserter": (top.header_inserter.state, regs.INSERTER_STATES),
            "rx_header_parser": (top.header_parser.state, regs.HEADER_PARSER_STATES),
            "rx_streamer": (top.rx_streamer.state, regs.RX_STATES),
        }
        if params.in_flight == 1:
            self.blocks["data_mover_axi_cmd_master"] = (top.cmd_master.state, regs.CMD_STATES)
        self.wires = Cat(*(state for state, _names in self.blocks.values()))
        self.seen: dict[str, set[Transition]] = {name: set() for name in self.blocks}
        self.last: dict[str, int] = dict.fromkeys(self.blocks, 0)
        self.simulation.watchers.append(self._look)
        layout = QueueLayout(SQ, CQ, ring, cq_ring or ring)
        self.driver = Driver(self.sim, layout, poll_limit=300, local=EVERYTHING, remote=EVERYTHING)
        self.driver.start()

    def _look(self, ctx: Any, _cycle: int) -> None:
        value = ctx.get(self.wires)
        for name, (state, names) in self.blocks.items():
            now = value & (1 << len(state)) - 1
            value >>= len(state)
            before = self.last[name]
            if now != before:
                self.seen[name].add((names[before], names[now]))
                self.last[name] = now

    def fill(self, length: int, local: int = SOURCE) -> bytes:
        """Fresh payload at ``local``."""
        payload = self.rng.randbytes(length)
        self.sim.write(local, payload)
        self.sim.invalidate(TARGET, length)
        self.sim.write(TARGET, bytes(length))
        self.sim.flush(TARGET, length)
        return payload

    def write(self, length: int = 24, **changes: int) -> Completion:
        """One descriptor and its completion."""
        request = Request(changes.pop("local", SOURCE), changes.pop("remote", TARGET), length, **changes)
        self.driver.submit([request])
        (done,) = self.driver.wait()
        return done

    def good(self) -> None:
        """The engine carries out a WRITE of three fragments, to the byte."""
        payload = self.fill(150)
        done = self.write(150)
        assert (done.status, done.detail, done.bytes) == (ENGINE_SUCCESS, regs.ERR_NONE, 150)
        assert self.driver.read_back(TARGET, 150) == payload

    def until(self, state: str, block: str = "rdma_controller", limit: int = 400) -> None:
        """Run until a block, the controller unless another is named, is in a state."""
        code = self.blocks[block][1].index(state)
        for _ in range(limit):
            if self.last[block] == code:
                return
            self.simulation.step()
        raise AssertionError(f"{block} never reached {state}")

    def get(self, name: str) -> int:
        return self.driver.get(name)

    def status(self) -> dict[str, int]:
        return regs.HW_STATUS.unpack(self.get("HW_STATUS").to_bytes(4, "little"))

    def events(self) -> set[str]:
        """IRQ_STATUS by name, and clears it."""
        value = self.get("IRQ_STATUS")
        self.driver.put("IRQ_STATUS", value)
        return {field.name for field in regs.IRQ_FIELDS if value >> field.lsb & 1}


# ---------------------------------------------------------------- scenarios


def in_memory_when_completed(engine: Engine) -> None:
    payload = engine.fill(150)
    before = engine.memory.read(CQ, 32)
    engine.ram.silent = {"write"}
    engine.driver.submit([Request(SOURCE, TARGET, 150, wqe_id=0x5A5A5A5A)])
    engine.until("S_WAIT_TX_CPL")
    for _ in range(400):
        engine.simulation.step()
        # the loopback FIFO has all of it, and memory nothing
        assert engine.last["rdma_controller"] == STATE["S_WAIT_TX_CPL"]
    engine.ram.silent = set()
    for _ in range(2000):
        if engine.memory.read(CQ, 32) != before:
            break
        engine.simulation.step()
    # at the first word of the CQ entry, not only once software has seen it
    assert engine.memory.read(TARGET, 150) == payload
    engine.driver.wait()


def small_writes_and_ring_wrap(engine: Engine) -> None:
    ring = engine.driver.layout.sq_size
    for index, length in enumerate((1, 2, 3, 4, 5, 63, 64, 65, 130)):
        local, remote = index % 4, (index * 3) % 4
        payload = engine.fill(length + 8)
        done = engine.write(length, local=SOURCE + local, remote=TARGET + remote, wqe_id=0xABC00000 + index)
        assert (done.index, done.status, done.bytes, done.requested) == (index % ring, 0, length, length)
        assert (done.wqe_id, done.opcode, done.phase) == (0xABC00000 + index, 0x0A, 1 - index // ring % 2)
        raw = engine.memory.read(CQ + 32 * (index % ring), 32)
        assert raw[:24] == CQ_ENTRY.pack({
            "index": done.index, "bytes": length, "opcode": 0x0A, "phase": done.phase, "wqe_id": done.wqe_id,
            "requested": length,
        })[:24]  # fmt: skip
        assert raw[24:] == bytes(8)
        want = bytearray(length + 8)
        want[remote : remote + length] = payload[local : local + length]
        assert engine.driver.read_back(TARGET, length + 8) == want
    assert engine.get("SQ_HEAD") == engine.get("CQ_TAIL") == 9 % ring
    assert engine.events() == {"completion"}
    assert engine.get("TX_PACKETS") == engine.get("RX_PACKETS") > 9
    engine.driver.recover()
    assert engine.get("TX_PACKETS") == 0


def back_to_back(engine: Engine) -> None:
    payload = engine.fill(70 * 7)
    requests = [Request(SOURCE + 70 * n, TARGET + 70 * n, 70, n) for n in range(7)]
    assert [done.wqe_id for done in engine.driver.run(requests)] == list(range(7))
    assert engine.driver.read_back(TARGET, 70 * 7) == payload
    engine.driver.recover()


def opcodes(engine: Engine) -> None:
    for opcode in (*regs.WRITE_OPCODES, 0x00, 0x04, 0x0B, 0xFF):
        payload = engine.fill(80)
        drops = engine.get("RX_DROPS")
        done = engine.write(80, opcode=opcode)
        assert (done.status, done.opcode, done.bytes) == (0, opcode, 80)
        written = opcode in regs.WRITE_OPCODES
        assert engine.driver.read_back(TARGET, 80) == (payload if written else bytes(80)), hex(opcode)
        assert engine.get("RX_DROPS") - drops == (0 if written else 2)
    assert engine.events() == {"completion", "rx_drop"}


def refused_descriptors(engine: Engine) -> None:
    put = engine.driver.put
    put("LOCAL_WINDOW_BASE", SOURCE)
    put("LOCAL_WINDOW_LAST", SOURCE + 255)
    put("REMOTE_WINDOW_BASE", TARGET)
    put("REMOTE_WINDOW_LAST", TARGET + 255)
    local, remote = ENGINE_LOCAL_ACCESS, ENGINE_REMOTE_ACCESS
    cases: list[tuple[dict[str, int], int, int]] = [
        ({"length": 0}, ENGINE_LENGTH_MISMATCH, regs.ERR_ZERO_LENGTH),
        ({"length": 256}, ENGINE_SUCCESS, regs.ERR_NONE),
        ({"length": 257}, local, regs.ERR_LOCAL_WINDOW),
        ({"length": 0xFFFFFFFF}, local, regs.ERR_LOCAL_WINDOW),
        ({"length": 1, "local": SOURCE - 1}, local, regs.ERR_LOCAL_WINDOW),
        ({"length": 8, "local": SOURCE + (1 << 32)}, local, regs.ERR_LOCAL_WINDOW),
        ({"length": 8, "remote": TARGET - 1}, remote, regs.ERR_REMOTE_WINDOW),
        ({"length": 8, "remote": TARGET + 249}, remote, regs.ERR_REMOTE_WINDOW),
        ({"length": 8, "remote": TARGET + (1 << 32)}, remote, regs.ERR_REMOTE_WINDOW),
        ({"length": 8, "remote": TARGET + 248}, ENGINE_SUCCESS, regs.ERR_NONE),
    ]
    for changes, status, detail in cases:
        engine.fill(256)
        engine.sim.write(TARGET + 256, bytes(16))
        request = Request(changes.get("local", SOURCE), changes.get("remote", TARGET), changes["length"])
        # the driver would flush the whole length
        tail = engine.get("SQ_TAIL")
        engine.driver._write_descriptor(tail, Request(request.local, request.remote, 0))
        engine.sim.write(SQ + 64 * tail + 24, request.length.to_bytes(4, "little"))
        engine.sim.flush(SQ + 64 * tail, 64)
        engine.sim.flush(SOURCE, 256)
        engine.driver._posted[tail] = request
        put("SQ_TAIL", (tail + 1) % RING)
        (done,) = engine.driver.wait()
        assert (done.status, done.detail, done.requested) == (status, detail, changes["length"]), changes
        if detail:
            assert engine.status()["error"] == detail
    put("LOCAL_WINDOW_BASE", 0)
    put("LOCAL_WINDOW_LAST", 0xFFFFFFFF)
    put("REMOTE_WINDOW_BASE", 0)
    put("REMOTE_WINDOW_LAST", 0xFFFFFFFF)
    engine.events()
    engine.good()


def windows_after_reset(engine: Engine) -> None:
    """A driver that opens nothing: nothing is read, then nothing is written, wherever it may lie."""
    for local, remote, status, detail in (
        (NOTHING, EVERYTHING, ENGINE_LOCAL_ACCESS, regs.ERR_LOCAL_WINDOW),
        (EVERYTHING, NOTHING, ENGINE_REMOTE_ACCESS, regs.ERR_REMOTE_WINDOW),
    ):
        engine.driver = Driver(engine.sim, engine.driver.layout, 300, local, remote)
        engine.driver.recover()
        for address in (SOURCE, 0, 0xFFFFFFFF):
            request = Request(address, TARGET, 1) if local is NOTHING else Request(SOURCE, address, 1)
            engine.driver.submit([dataclasses.replace(request, length=0)])
            engine.driver.wait()
            tail = engine.get("SQ_TAIL")
            engine.driver._posted[tail] = request
            engine.sim.write(SQ + 64 * tail, SQ_ENTRY.pack({
                "opcode": 0x0A, "local_addr": request.local, "remote_addr": request.remote, "length": 1,
            }))  # fmt: skip
            engine.sim.flush(SQ + 64 * tail, 64)
            engine.driver.put("SQ_TAIL", (tail + 1) % engine.driver.layout.sq_size)
            (done,) = engine.driver.wait()
            assert (done.status, done.detail) == (status, detail), hex(address)
    engine.driver = Driver(engine.sim, engine.driver.layout, 300, EVERYTHING, EVERYTHING)
    engine.driver.recover()
    engine.good()


def bus_errors(engine: Engine) -> None:
    faults = engine.ram.faults
    engine.fill(150)
    for response in (Resp.SLVERR, Resp.DECERR):
        faults["read", SOURCE >> 12] = response
        done = engine.write(150)
        assert (done.status, done.detail, done.bytes) == (ENGINE_LOCAL_ACCESS, regs.ERR_LOCAL_BUS, 0)
        assert engine.driver.read_back(TARGET, 150) == bytes(150), "data of a failed read were stored"
        faults.clear()
        faults["write", TARGET >> 12] = response
        done = engine.write(150)
        assert (done.status, done.detail) == (ENGINE_REMOTE_ACCESS, regs.ERR_REMOTE_BUS)
        faults.clear()
        faults["read", SQ >> 12] = response
        done = engine.write(24, wqe_id=5)
        assert (done.status, done.detail, done.bytes) == (ENGINE_LOCAL_ACCESS, regs.ERR_SQ_FETCH, 0)
        assert (done.wqe_id, done.requested) == (0, 0), "fields of a descriptor that was not read"
        faults.clear()
    assert engine.events() == {"completion", "error", "rx_error"}
    # three fragments that could not be written, twice; a failed read spoils one more, or all that were under way
    assert engine.get("RX_ERRORS") == 2 * (3 + (1 if engine.top.params.serial else 3))
    engine.good()
    faults["write", CQ >> 12] = Resp.SLVERR
    engine.driver.submit([Request(SOURCE, TARGET, 24)])
    engine.simulation.run_cycles(200)
    faults.clear()
    status = engine.status()
    assert (status["halted"], status["error"], status["busy"]) == (1, regs.ERR_CQ_WRITE, 0)
    assert engine.get("SQ_HEAD") != engine.get("SQ_TAIL")
    assert "halted" in engine.events()
    engine.driver.recover()
    engine.good()


def full_completion_queue(engine: Engine) -> None:
    engine.driver.recover()
    engine.driver.submit([Request(SOURCE, TARGET, 8, n) for n in range(RING - 1)])
    engine.simulation.run_cycles(700)
    # the ring of completions is full now; one more descriptor must wait for CQ_HEAD
    tail = engine.get("SQ_TAIL")
    engine.driver._write_descriptor(tail, Request(SOURCE, TARGET, 8, 99))
    engine.driver._posted[tail] = Request(SOURCE, TARGET, 8, 99)
    engine.driver.put("SQ_TAIL", (tail + 1) % RING)
    engine.simulation.run_cycles(300)
    assert engine.status()["cq_full"]
    assert engine.last["rdma_controller"] == STATE["S_PREPARE_WRITE"]
    assert engine.get("CQ_TAIL") == RING - 1
    assert "cq_full" in engine.events()
    assert [done.wqe_id for done in engine.driver.wait(RING)] == [0, 1, 2, 99]
    assert not engine.status()["cq_full"]
    for name, value in (("CQ_SIZE", 0), ("CQ_HEAD", RING)):
        kept = engine.get(name)
        engine.driver.put(name, value)
        engine.driver.submit([Request(SOURCE, TARGET, 8, 7)])
        engine.simulation.run_cycles(250)
        assert engine.status()["cq_full"], name
        engine.driver.put(name, kept)
        assert engine.driver.wait()[0].wqe_id == 7


def control_bits(engine: Engine) -> None:
    put, control = engine.driver.put, regs.BY_NAME["CONTROL"]
    enable, pause, irq = (1 << control.field(name).lsb for name in ("global_enable", "pause", "global_irq_en"))
    engine.events()
    put("CONTROL", enable | pause)
    engine.driver.submit([Request(SOURCE, TARGET, 8, 1)])
    engine.simulation.run_cycles(60)
    assert engine.get("SQ_HEAD") != engine.get("SQ_TAIL")
    assert engine.status()["paused"]
    assert engine.last["rdma_controller"] == STATE["S_IDLE"]
    put("CONTROL", 0)
    engine.simulation.run_cycles(200)  # longer than the descriptor takes
    assert engine.get("CQ_TAIL") == engine.get("CQ_HEAD"), "work without enable"
    put("IRQ_ENABLE", 1)
    put("CONTROL", enable | irq)
    engine.driver.wait()
    assert _irq(engine)
    assert engine.events() == {"completion"}
    assert not _irq(engine)
    put("IRQ_ENABLE", 0)
    # a tail outside the ring is refused, not followed, and interrupts once
    head = engine.get("SQ_HEAD")
    put("IRQ_ENABLE", 2)
    put("SQ_TAIL", RING)
    engine.simulation.run_cycles(60)
    assert _irq(engine)
    assert engine.events() == {"error"}
    engine.simulation.run_cycles(20)
    assert engine.events() == set()
    put("IRQ_ENABLE", 0)
    assert engine.status()["error"] == regs.ERR_TAIL
    assert engine.get("SQ_HEAD") == head
    put("SQ_TAIL", head)
    doorbells = engine.get("DOORBELLS")
    put("SQ_DOORBELL", 1)
    assert engine.get("DOORBELLS") == doorbells + 1
    assert engine.get("SQ_TAIL") == head
    engine.good()


def _irq(engine: Engine) -> int:
    out: list[int] = []
    look: Callable[[Any, int], None] = lambda ctx, _cycle: out.append(int(ctx.get(engine.top.irq)))  # noqa: E731
    engine.simulation.watchers.append(look)
    engine.simulation.run_cycles(2)
    engine.simulation.watchers.remove(look)
    return out[-1]


def watchdog(engine: Engine) -> None:
    engine.fill(150)
    ram = engine.ram
    for state, halts in (
        ("S_WAIT_READ_DONE", False),
        ("S_WAIT_TX_CPL", False),
        ("S_WAIT_WRITE_DONE", True),
    ):
        engine.driver.put("WATCHDOG", 60)
        engine.driver.submit([Request(SOURCE, TARGET, 150, 3)])
        engine.until(state)
        ram.silent = {"read", "write"}
        engine.simulation.run_cycles(75)
        assert engine.status()["flushing"] or engine.status()["halted"], state
        ram.silent = set()
        if halts:
            engine.simulation.run_cycles(100)
            assert engine.status()["halted"]
            assert engine.status()["error"] == regs.ERR_TIMEOUT
        else:
            (done,) = engine.driver.wait()
            assert (done.status, done.detail) == (ENGINE_TIMEOUT, regs.ERR_TIMEOUT), state
            assert engine.status()["error"] == regs.ERR_TIMEOUT
            engine.driver.put("WATCHDOG", 0)
            engine.good()
        assert "watchdog" in engine.events()
        engine.driver.recover()
        engine.driver.put("WATCHDOG", 0)
        engine.good()
    # memory is silent for many times the watchdog, then goes on: the engine waits for it, and goes on too
    engine.driver.put("WATCHDOG", 60)
    for state in ("S_WAIT_READ_DONE", "S_WAIT_TX_CPL"):
        engine.driver.submit([Request(SOURCE, TARGET, 150, 3)])
        engine.until(state)
        ram.silent = {"read", "write"}
        engine.simulation.run_cycles(500)
        seen = engine.status()
        assert (seen["flushing"], seen["halted"]) == (1, 0), state
        ram.silent = set()
        (done,) = engine.driver.wait()
        assert (done.status, done.detail) == (ENGINE_TIMEOUT, regs.ERR_TIMEOUT), state
        engine.good()
    engine.driver.put("WATCHDOG", 0)
    reads_that_stay_silent(engine)


def reads_that_stay_silent(engine: Engine) -> None:
    """The watchdog's CQ entry goes out by the write channel; no descriptor is fetched before the reads have ended."""
    for state in ("S_WAIT_READ_DONE", "S_WAIT_TX_CPL"):
        engine.driver.put("WATCHDOG", 60)
        engine.driver.submit([Request(SOURCE, TARGET, 150, 3)])
        engine.until(state)
        engine.ram.silent = {"read"}
        (done,) = engine.driver.wait()
        assert (done.status, done.detail) == (ENGINE_TIMEOUT, regs.ERR_TIMEOUT), state
        engine.driver.submit([Request(SOURCE, TARGET, 150, 4)])
        engine.simulation.run_cycles(70)
        seen = engine.status()
        assert (seen["flushing"], seen["halted"]) == (1, 0), state
        assert engine.get("SQ_HEAD") != engine.get("SQ_TAIL"), state
        engine.driver.put("WATCHDOG", 0)
        engine.ram.silent = set()
        (done,) = engine.driver.wait()
        assert (done.status, done.wqe_id) == (ENGINE_SUCCESS, 4), state


def reset_in_every_state(engine: Engine) -> None:
    bit = 1 << regs.CONTROL["soft_reset"].lsb
    expected = EXPECTED_SERIAL if engine.top.params.serial else EXPECTED_OVERLAPPED
    for block, transitions in expected.items():
        for state in sorted({state for pair in transitions for state in pair}):
            engine.fill(150)
            engine.driver.submit([Request(SOURCE, TARGET, 150, 3)])
            engine.until(state, block)
            engine.driver.recover()
            for name in ("SQ_HEAD", "SQ_TAIL", "CQ_HEAD", "CQ_TAIL", "IRQ_STATUS", "RX_PACKETS"):
                assert engine.get(name) == 0, (block, state, name)
            assert not engine.get("CONTROL") & bit
            assert not engine.status()["busy"]
            payload = engine.fill(70)
            assert engine.write(70).bytes == 70, (block, state)
            assert engine.driver.read_back(TARGET, 70) == payload, (block, state)


def what_software_sees(engine: Engine) -> None:
    put, get = engine.driver.put, engine.get
    engine.driver.recover()
    # a descriptor stays in hand while its completion finds no room
    put("CQ_SIZE", 0)
    entry = bytearray(
        SQ_ENTRY.pack({"opcode": 0x0A, "local_addr": 0xA1A2A3A4 << 32, "remote_addr": 0xB1B2B3B4B5B6B7B8, "length": 8})
    )
    entry[28:40] = b"".join(word.to_bytes(4, "little") for word in (0xC1C2C3C4, 0xD1D2D3D4, 0xE1E2E3E4))
    engine.sim.write(SQ, bytes(entry))
    engine.sim.flush(SQ, 64)
    engine.driver._posted[0] = Request(0, 0, 8)
    assert get("ENTRY_VALID") == 0
    put("SQ_TAIL", 1)
    engine.simulation.run_cycles(60)
    status = engine.status()
    assert (status["busy"], status["cq_full"], status["rdma_state"]) == (1, 1, STATE["S_PREPARE_WRITE"])
    in_hand = ("LOCAL_KEY_HI", "REMOTE_KEY_LO", "REMOTE_KEY_HI", "BTT0", "BTT1", "BTT2", "BTT3", "ENTRY_VALID")
    for name, value in zip(
        in_hand, (0xA1A2A3A4, 0xB5B6B7B8, 0xB1B2B3B4, 8, 0xC1C2C3C4, 0xD1D2D3D4, 0xE1E2E3E4, 1), strict=True
    ):
        put(name, 0)  # read only
        assert get(name) == value, name
    put("CQ_SIZE", RING)
    assert engine.driver.wait()[0].status == ENGINE_LOCAL_ACCESS
    assert get("ENTRY_VALID") == 0
    parameters = get("PARAMETERS")
    fields = regs.BY_NAME["PARAMETERS"].fields
    assert {field.name: parameters >> field.lsb & field.mask for field in fields} == {
        "bus_width": 32,
        "serial": engine.top.params.serial,
        "network": 1,
        "address_bits": 0,
        "block_size": 64,
    }
    # the states, while the memory holds each of them
    for state, command, silent, tx in (
        ("S_WAIT_READ_DONE", "WAIT_MM2S", "read", "IDLE"),
        ("S_WAIT_TX_CPL", "IDLE", "read", "WAIT_DM_STS"),
        ("S_WAIT_WRITE_DONE", "WAIT_S2MM", "write", "IDLE"),
    ):
        engine.fill(24)
        engine.driver.submit([Request(SOURCE, TARGET, 24)])
        engine.until(state)
        engine.ram.silent = {silent}
        engine.simulation.run_cycles(30)
        status = engine.status()
        assert (status["busy"], status["rdma_state"]) == (1, STATE[state])
        assert regs.TX_STATES[status["tx_state"]] == tx
        assert get("CQ_DOORBELL") == STATE[state]
        assert regs.CMD_STATES[get("CQ_FLAGS")] == command
        engine.ram.silent = set()
        engine.driver.wait()
    assert engine.status()["busy"] == 0
    if engine.top.params.serial:
        engine.driver.submit([Request(SOURCE, TARGET, 24)])
        engine.until("WAIT_COMPLETE", "rx_streamer")
        engine.ram.silent = {"write"}
        engine.simulation.run_cycles(30)
        assert regs.RX_STATES[engine.status()["rx_state"]] == "WAIT_COMPLETE"
        engine.ram.silent = set()
        engine.driver.wait()
    # a soft reset lasts until the bus is drained
    engine.driver.submit([Request(SOURCE, TARGET, 24)])
    engine.until("S_WAIT_TX_CPL")
    engine.ram.silent = {"read"}
    control = get("CONTROL")
    put("CONTROL", control | 2)
    engine.simulation.run_cycles(60)
    assert (get("CONTROL"), engine.status()["resetting"]) == (control | 2, 1)
    engine.ram.silent = set()
    engine.simulation.run_cycles(60)
    assert (get("CONTROL"), engine.status()["resetting"]) == (control, 0)
    engine.driver.recover()
    engine.good()


PEER = NetworkSetup(0x0A000001, 0x0A000002, 0x020000000001, 0x020000000002, 0xCE06, 0x138D, 0x138D)


def network_mode(engine: Engine) -> None:
    driver, sim = engine.driver, engine.sim
    driver.recover(network=True)
    payload = engine.fill(100)
    # nobody has set the network up: the packets are dropped, and that is told
    done = engine.write(100)
    assert (done.status, done.detail, done.bytes) == (ENGINE_REMOTE_ACCESS, regs.ERR_NET_DISABLED, 0)
    assert engine.events() == {"completion", "error", "net_error"}
    driver.set_network(PEER)
    encap = regs.ENCAP_BASE
    for register, wrong, right, detail, cause in (
        ("DST_IP", 0x0A0000FF, PEER.dst_ip, regs.ERR_NET_LOOKUP, "the destination IP has no endpoint entry"),
        ("SRC_IP", 0, PEER.src_ip, regs.ERR_NET_META, "source IP 0"),
        ("SRC_PORT", 0, PEER.src_port, regs.ERR_NET_META, "source port 0"),
        ("DST_PORT", 0, PEER.dst_port, regs.ERR_NET_META, "destination port 0"),
        ("CTRL", 0, 1, regs.ERR_NET_DISABLED, "the encapsulator is not enabled"),
    ):
        sim.write32(encap + net.ENCAP_OFFSETS[register], wrong)
        done = engine.write(100)
        assert (done.status, done.detail) == (ENGINE_REMOTE_ACCESS, detail), register
        assert engine.status()["error"] == detail
        assert f"encapsulator: {cause}" in driver.describe()
        sim.write32(encap + net.ENCAP_OFFSETS[register], right)
    engine.simulation.settle()
    assert engine.events() == {"completion", "error", "net_error"}
    assert sim.mac_out.frames == []
    driver.recover(network=True)
    assert engine.write(100, wqe_id=0xFF000005).status == ENGINE_SUCCESS
    engine.simulation.settle()
    frames = [frame.data for frame in sim.mac_out.frames]
    assert [EngineHeader.parse(frame, 42).length for frame in frames] == [64, 36]
    assert driver.read_back(TARGET, 100) == bytes(100), "nothing loops back in network mode"
    assert (engine.get("TX_PACKETS"), engine.get("RX_PACKETS")) == (2, 0)
    # the same frames as a peer would send them; then one for somebody else
    for frame in frames:
        sim.mac_in.send(for_us(frame))
    engine.simulation.settle()
    assert driver.read_back(TARGET, 100) == payload
    assert engine.get("RX_PACKETS") == 2
    assert engine.events() == {"completion"}
    sim.mac_in.send(frames[0])
    engine.simulation.settle()
    assert engine.events() == {"net_error"}
    # what arrives while a WRITE is under way, and is refused, has no part in its completion
    driver.put("REMOTE_WINDOW_LAST", TARGET - 1)
    engine.ram.silent = {"read"}
    driver.submit([Request(SOURCE, TARGET, 60)])
    engine.until("S_WAIT_READ_DONE")
    sim.mac_in.send(for_us(frames[0]))
    engine.simulation.run_cycles(400)
    assert engine.events() == {"rx_drop"}
    took, sim.mac_out.stalls = sim.mac_out.stalls, Stalls(random.Random(0), 1.0)
    engine.ram.silent = set()
    engine.simulation.run_cycles(400)
    assert engine.events() == set(), "a completion before the MAC has taken a frame"
    sim.mac_out.stalls = took
    (done,) = driver.wait()
    assert (done.status, done.detail) == (ENGINE_SUCCESS, regs.ERR_NONE)
    driver.put("REMOTE_WINDOW_LAST", 0xFFFFFFFF)
    sim.mac_out.frames.clear()
    driver.recover()
    engine.good()
    assert sim.mac_out.frames == []


def frames_that_come_early(engine: Engine) -> None:
    """The network is set up, the engine is not in network mode yet, or not any more: frames are dropped and counted."""
    driver, sim, drops = engine.driver, engine.sim, regs.DECAP_BASE + net.DECAP_OFFSETS["DROP_CNT"]
    driver.recover(network=True)
    driver.set_network(PEER)
    engine.fill(60)
    assert engine.write(60).status == ENGINE_SUCCESS
    engine.simulation.settle()
    early = for_us(sim.mac_out.frames[-1].data)
    driver.recover()  # loopback; the network half stays enabled
    for number in range(3):
        sent = sim.mac_in.sent
        for _ in range(4):
            sim.mac_in.send(early)
        engine.simulation.settle()
        assert sim.mac_in.sent == sent + 4, "the MAC was made to wait"
        assert sim.read32(drops) == 4 * number + 4
        engine.good()  # in loopback
        assert engine.get("RX_PACKETS") == 3 * number + 3
    # frames keep coming while the mode changes, there and back
    for network in (True, False, True):
        for _ in range(6):
            sim.mac_in.send(early)
        engine.simulation.run_cycles(90)
        control = regs.CONTROL.pack({"global_enable": 1, "mode": int(network)})
        driver.put("CONTROL", int.from_bytes(control, "little"))
        payload = engine.fill(60)
        before = len(sim.mac_out.frames)
        assert engine.write(60, remote=TARGET + 256).status == ENGINE_SUCCESS
        engine.simulation.settle()
        assert len(sim.mac_out.frames) == before + network
        assert (driver.read_back(TARGET + 256, 60) == payload) == (not network)
        engine.sim.write(TARGET + 256, bytes(60))
        engine.sim.flush(TARGET + 256, 60)
    # in network mode now: what comes is taken
    engine.fill(60)
    sim.mac_in.send(early)
    engine.simulation.settle()
    assert driver.read_back(TARGET, 60) != bytes(60)
    driver.recover()
    engine.good()


def for_us(frame: bytes) -> bytes:
    """A frame that we sent, as our peer would have sent it."""
    macs = PEER.src_mac.to_bytes(6, "big") + PEER.dst_mac.to_bytes(6, "big")
    return macs + frame[12:26] + frame[30:34] + frame[26:30] + frame[34:]


SCENARIOS: tuple[Callable[[Engine], None], ...] = (
    in_memory_when_completed,
    small_writes_and_ring_wrap,
    back_to_back,
    opcodes,
    refused_descriptors,
    windows_after_reset,
    bus_errors,
    full_completion_queue,
    control_bits,
    watchdog,
    reset_in_every_state,
    what_software_sees,
    network_mode,
    frames_that_come_early,
)


@cache
def carried_out(scenario: Callable[[Engine], None], serial: bool) -> dict[str, set[Transition]]:
    """The transitions that a scenario made, once its checks have passed."""
    engine = Engine(serial)
    scenario(engine)
    assert engine.sim.cache.missing == []
    return engine.seen


LONG = (reset_in_every_state,)
"""A minute each: only with --full."""
OVERLAPPED = (bus_errors,)
"""What the short run carries out on the overlapped engine too; the rest is for the full one."""


@pytest.mark.xdist_group("scenarios")  # what one of these tests carried out, others look at
@pytest.mark.parametrize(
    ("scenario", "serial"),
    [
        pytest.param(
            scenario,
            serial,
            id=f"{scenario.__name__}-{'serial' if serial else 'overlapped'}",
            marks=pytest.mark.full if scenario in LONG or not (serial or scenario in OVERLAPPED) else (),
        )
        for scenario in SCENARIOS
        for serial in (True, False)
    ],
)
def test_scenario(scenario: Callable[[Engine], None], serial: bool) -> None:
    carried_out(scenario, serial)


@pytest.mark.parametrize("width", [32, pytest.param(512, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "serial", [pytest.param(True, id="serial", marks=pytest.mark.full), pytest.param(False, id="overlapped")]
)
def test_stalls_on_every_channel(serial: bool, width: int) -> None:
    engine = Engine(serial, seed=width, stall_rate=0.4, width=width)
    small_writes_and_ring_wrap(engine)
    back_to_back(engine)


@pytest.mark.parametrize(
    "scenario",
    [
        network_mode,
        pytest.param(watchdog, marks=pytest.mark.full),
        pytest.param(frames_that_come_early, marks=pytest.mark.full),
        pytest.param(reset_in_every_state, marks=pytest.mark.full),
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_what_holds_for_few_lanes_holds_for_many(scenario: Callable[[Engine], None]) -> None:
    """Of many lanes, resets and the mode reach the blocks that are far away by registers of their own, cycles late."""
    engine = Engine(False, width=128)
    scenario(engine)
    assert engine.sim.cache.missing == []


@pytest.mark.parametrize(
    ("serial", "ring", "cq_ring"),
    [
        pytest.param(serial, *rings, id=f"{name}-{rings[0]}-{rings[1]}", marks=pytest.mark.full if long else ())
        for serial, name in ((True, "serial"), (False, "overlapped"))
        for rings, long in (((3, 5), not serial), ((5, 3), serial))
    ],
)
def test_rings_of_different_sizes_wrap_each_at_its_own(serial: bool, ring: int, cq_ring: int) -> None:
    engine = Engine(serial, ring=ring, cq_ring=cq_ring)
    for index in range(11):
        done = engine.write(8, wqe_id=index)
        assert (done.wqe_id, done.index, done.phase) == (index, index % ring, 1 - index // cq_ring % 2)
    assert (engine.get("SQ_HEAD"), engine.get("CQ_TAIL")) == (11 % ring, 11 % cq_ring)
    while engine.write(8).phase:
        pass
    engine.driver.recover()
    assert engine.write(8).phase == 1, "a reset begins with phase 1"


@pytest.mark.full
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("serial", [True, False], ids=["serial", "overlapped"])
def test_every_order_of_address_and_data_at_any_latency(serial: bool, order: str) -> None:
    engine = Engine(serial, stall_rate=0.2, timing=Timing(11, order, 8, mix_ids=True))
    engine.good()
    back_to_back(engine)
    engine.sim.ram.checker.quiet()


# ---------------------------------------------------------------- several WRITEs in flight


def several(timing: Timing | None = None, stall_rate: float = 0.0, **parameters: int) -> Engine:
    return Engine(
        False, stall_rate=stall_rate, timing=timing, ring=8, **{"in_flight": 4, "outstanding": 16} | parameters
    )


def test_several_writes_are_in_flight_and_complete_in_order() -> None:
    """With a slow memory; one that fails in the middle delays nobody and takes nobody's place."""
    engine = several(Timing(40))
    payload = engine.fill(70 * 7)
    requests = [Request(SOURCE + 70 * n, TARGET + 70 * n, 70, n) for n in range(7)]
    requests[2] = dataclasses.replace(requests[2], length=0)
    requests[4] = dataclasses.replace(requests[4], local=SOURCE + (1 << 40), length=0)
    engine.driver.submit(requests)
    done = engine.driver.wait(7)
    assert [each.wqe_id for each in done] == list(range(7))
    assert [each.index for each in done] == list(range(7))
    bad = {2: regs.ERR_ZERO_LENGTH, 4: regs.ERR_ZERO_LENGTH}
    assert [each.detail for each in done] == [bad.get(n, regs.ERR_NONE) for n in range(7)]
    assert [each.bytes for each in done] == [0 if n in bad else 70 for n in range(7)]
    want = bytearray(payload)
    for n in bad:
        want[70 * n : 70 * n + 70] = bytes(70)
    assert engine.driver.read_back(TARGET, 70 * 7) == want
    # one after the other, each fetch, read, write and completion would take its 40 cycles
    assert engine.ram.most_reads > 3
    engine.sim.ram.checker.quiet()


def network_mode_of_several(engine: Engine) -> None:
    driver, sim = engine.driver, engine.sim
    driver.recover(network=True)
    assert engine.write(100).detail == regs.ERR_NET_DISABLED
    driver.set_network(PEER)
    payload = engine.fill(100 * 5)
    requests = [Request(SOURCE + 100 * n, TARGET + 100 * n, 100, n) for n in range(5)]
    assert [each.status for each in driver.run(requests)] == [ENGINE_SUCCESS] * 5
    engine.simulation.settle()
    assert driver.read_back(TARGET, 500) == bytes(500)
    for frame in list(sim.mac_out.frames):
        sim.mac_in.send(for_us(frame.data))
    engine.simulation.settle()
    assert driver.read_back(TARGET, 500) == payload
    driver.recover()
    engine.good()


@pytest.mark.parametrize("latency", [0, pytest.param(25, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "scenario",
    [
        back_to_back,
        network_mode_of_several,
        pytest.param(small_writes_and_ring_wrap, marks=pytest.mark.full),
        pytest.param(opcodes, marks=pytest.mark.full),
        pytest.param(windows_after_reset, marks=pytest.mark.full),
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_what_holds_for_one_write_holds_for_several(scenario: Callable[[Engine], None], latency: int) -> None:
    engine = several(Timing(latency))
    scenario(engine)
    assert engine.sim.cache.missing == []
    engine.sim.ram.checker.quiet()


def test_data_are_in_memory_before_each_completion() -> None:
    engine = several(Timing(9), stall_rate=0.2)
    payload = engine.fill(50 * 6)
    before = [engine.memory.read(CQ + 32 * n, 32) for n in range(6)]
    engine.driver.submit([Request(SOURCE + 50 * n, TARGET + 50 * n, 50, n + 1) for n in range(6)])
    seen = 0
    for _ in range(3000):
        while seen < 6 and engine.memory.read(CQ + 32 * seen, 32) != before[seen]:
            at = 50 * seen
            assert engine.memory.read(TARGET + at, 50) == payload[at : at + 50], f"CQ entry {seen} came first"
            seen += 1
        if seen == 6:
            break
        engine.simulation.step()
    assert [done.wqe_id for done in engine.driver.wait(6)] == [1, 2, 3, 4, 5, 6]


def test_bus_errors_fail_their_own_write_of_several() -> None:
    engine = several(Timing(12))
    faults = engine.ram.faults
    engine.fill(0x1100)
    places = [SOURCE + 0x100, SOURCE + 0x1000, SOURCE + 0x200]
    requests = [Request(place, TARGET + 64 * n, 60, n) for n, place in enumerate(places)]
    faults["read", (SOURCE + 0x1000) >> 12] = Resp.SLVERR
    engine.driver.submit(requests)
    done = engine.driver.wait(3)
    assert [each.detail for each in done] == [regs.ERR_NONE, regs.ERR_LOCAL_BUS, regs.ERR_NONE]
    assert [each.bytes for each in done] == [60, 0, 60]
    faults.clear()
    faults["write", TARGET >> 12] = Resp.DECERR
    requests[1] = Request(SOURCE, TARGET + 0x1000, 60, 1)
    engine.driver.submit(requests)
    done = engine.driver.wait(3)
    assert [each.detail for each in done] == [regs.ERR_REMOTE_BUS, regs.ERR_NONE, regs.ERR_REMOTE_BUS]
    faults.clear()
    faults["read", SQ >> 12] = Resp.SLVERR
    done = [engine.write(24, wqe_id=5)]
    assert (done[0].detail, done[0].wqe_id, done[0].requested) == (regs.ERR_SQ_FETCH, 0, 0)
    faults.clear()
    engine.good()
    faults["write", CQ >> 12] = Resp.SLVERR
    engine.driver.submit([Request(SOURCE, TARGET, 24)])
    engine.simulation.run_cycles(200)
    faults.clear()
    assert (engine.status()["halted"], engine.status()["error"]) == (1, regs.ERR_CQ_WRITE)
    engine.driver.recover()
    engine.good()


def test_a_full_completion_queue_holds_several_back() -> None:
    engine = Engine(False, ring=8, cq_ring=4, in_flight=4, outstanding=16)
    engine.fill(8 * 8)
    tail = 0
    for n in range(6):
        engine.driver._write_descriptor(tail, Request(SOURCE + 8 * n, TARGET + 8 * n, 8, n))
        engine.driver._posted[tail] = Request(SOURCE + 8 * n, TARGET + 8 * n, 8, n)
        tail += 1
    engine.driver.put("SQ_TAIL", tail)
    engine.simulation.run_cycles(600)
    assert engine.status()["cq_full"]
    assert (engine.get("CQ_TAIL"), engine.get("SQ_HEAD")) == (3, 3)
    assert [done.wqe_id for done in engine.driver.wait(6)] == list(range(6))


@pytest.mark.parametrize("silent_from", [*(pytest.param(cycle, marks=pytest.mark.full) for cycle in (5, 40, 100)), 70])
def test_the_watchdog_ends_what_is_in_flight_and_the_rest_goes_on(silent_from: int) -> None:
    engine = several(Timing(6))
    engine.fill(70 * 6)
    engine.driver.put("WATCHDOG", 60)
    engine.driver.submit([Request(SOURCE + 70 * n, TARGET + 70 * n, 70, n) for n in range(6)])
    engine.simulation.run_cycles(silent_from)
    engine.ram.silent = {"read"}
    engine.simulation.run_cycles(200)
    assert engine.status()["flushing"]
    written = engine.get("CQ_TAIL")
    engine.ram.silent = set()
    done = engine.driver.wait(6)
    assert [each.index for each in done] == list(range(6))
    late = [each.detail == regs.ERR_TIMEOUT for each in done]
    assert any(late)
    first = late.index(True)
    assert late == [first <= n < first + sum(late) for n in range(6)], "timeouts stand together"
    assert written == first + sum(late), "their CQ entries did not wait for the reads"
    for n, each in enumerate(done):
        if not late[n]:
            assert (each.status, each.wqe_id, each.bytes) == (ENGINE_SUCCESS, n, 70)
        else:
            assert (each.status, each.bytes) == (ENGINE_TIMEOUT, 0)
    engine.driver.put("WATCHDOG", 0)
    engine.good()


@pytest.mark.full
def test_a_reset_at_any_time_of_several(request: pytest.FixtureRequest) -> None:
    engine = several(Timing(7), stall_rate=0.1)
    for moment in range(1, 200, 13 if request.config.getoption("full") else 33):
        engine.fill(70 * 5)
        engine.driver.submit([Request(SOURCE + 70 * n, TARGET + 70 * n, 70, n) for n in range(5)])
        engine.simulation.run_cycles(moment)
        engine.driver.recover()
        for name in ("SQ_HEAD", "SQ_TAIL", "CQ_HEAD", "CQ_TAIL", "IRQ_STATUS"):
            assert engine.get(name) == 0, (moment, name)
        payload = engine.fill(70)
        done = engine.write(70)
        assert (done.bytes, done.index, done.phase) == (70, 0, 1), moment
        assert engine.driver.read_back(TARGET, 70) == payload, moment


def test_an_engine_without_network_says_so() -> None:
    engine = Engine(serial=True, network=False, block_size=4096, boundary=4096)
    engine.good()
    engine.driver.recover(network=True)
    done = engine.write(8)
    assert (done.status, done.detail) == (ENGINE_REMOTE_ACCESS, regs.ERR_NET_DISABLED)
    assert "not sent: the encapsulator is not enabled" in engine.driver.describe()


def test_what_a_driver_wrote_to_the_network_blocks_can_be_read_back() -> None:
    """Over the register bus, each window's answer and the engine's own in turn."""
    engine = Engine(serial=True)
    setup = NetworkSetup(0x0A000001, 0x0A000102, 0x0211223344AA, 0x0255667788BB, 0x1234, 0x5678, 0x9ABC)
    engine.driver.set_network(setup)
    read, slot = engine.sim.read32, regs.LOOKUP_BASE + net.endpoint_index(setup.dst_ip) * net.ENDPOINT_ENTRY.size
    entry = b""
    for at in range(0, net.ENDPOINT_ENTRY.size, 4):
        entry += read(slot + at).to_bytes(4, "little")
        assert read(regs.ENCAP_BASE + net.ENCAP_OFFSETS["DST_IP"]) == setup.dst_ip
        assert read(regs.DECAP_BASE + net.DECAP_OFFSETS["LOCAL_PORT"]) == setup.local_port
        assert engine.get("CONSTANT") == 0x4C4C4C4C
    assert net.ENDPOINT_ENTRY.unpack(entry) == {
        "valid": 1, "dst_ip": setup.dst_ip, "dst_mac": setup.dst_mac, "src_mac": setup.src_mac,
    }  # fmt: skip


def test_the_debug_registers_where_the_register_document_has_them() -> None:
    engine = Engine(serial=True, documented_debug=True)
    engine.fill(24)
    engine.driver.submit([Request(SOURCE, TARGET, 24)])
    engine.until("S_WAIT_READ_DONE")
    engine.ram.silent = {"read"}
    engine.simulation.run_cycles(30)
    at = {register.name: register.offset for register in regs.DOCUMENTED_DEBUG}
    read = engine.sim.read32
    assert (read(at["RDMA_STATE"]), read(at["CMD_STATE"])) == (STATE["S_WAIT_READ_DONE"], 2)
    engine.ram.silent = set()
    engine.driver.wait()
    # the last descriptor is still there to be looked at
    assert [read(at[name]) for name in ("LOCAL_KEY_HI", "REMOTE_KEY_LO", "REMOTE_KEY_HI", "BTT0")] == [0, TARGET, 0, 24]
    for name in ("CQ_DOORBELL", "CQ_FLAGS"):
        engine.sim.write32(at[name], 0x1234)
        assert read(at[name]) == 0x1234


@pytest.mark.parametrize(
    "parameters", [pytest.param({}, id="serial"), pytest.param({"in_flight": 4}, id="several", marks=pytest.mark.full)]
)
def test_completions_in_the_documents_words(parameters: dict[str, Any]) -> None:
    engine = Engine(serial=not parameters, documented_cqe=True, **parameters)
    engine.driver = Driver(engine.sim, engine.driver.layout, 300, EVERYTHING, EVERYTHING, documented_cqe=True)
    model = EngineModel(engine.top.params, SparseMemory((SQ, 0x1000), (CQ, 0x1000), (SOURCE, SPACE), (TARGET, SPACE)))
    twin = Driver(model, engine.driver.layout, 300, EVERYTHING, EVERYTHING, documented_cqe=True)
    twin.start()
    good, bad = Request(SOURCE, TARGET, 24, 0xABCDEF01), Request(SOURCE, TARGET, 0, 0x5A5A5A5A)
    assert engine.driver.run([good, bad]) == twin.run([good, bad])
    raw = engine.memory.read(CQ, 2 * CQE_BYTES)
    assert struct.unpack("<8I", raw[:CQE_BYTES]) == (0, 0, 24, 0, 0xABCDEF01, 24, 0, 0)
    status = regs.STATUS_OF_DETAIL[regs.ERR_ZERO_LENGTH]
    assert struct.unpack("<8I", raw[CQE_BYTES:]) == (1, status, 0, 1, 0x5A5A5A5A, 0, 0, 0)
    assert model.cache.device.read(CQ, 2 * CQE_BYTES) == raw


@pytest.mark.parametrize("depth", [8, 32])
def test_the_loopback_fifo_holds_what_it_was_built_for(depth: int) -> None:
    engine = Engine(serial=True, fifo_depth=depth, block_size=256, boundary=256)
    out, beats = engine.top.header_inserter.m_axis, 0

    def count(ctx: Any, _cycle: int) -> None:
        nonlocal beats
        beats += ctx.get(out.tvalid & out.tready)

    payload = engine.fill(256)
    engine.simulation.watchers.append(count)
    engine.ram.silent = {"write"}
    engine.driver.submit([Request(SOURCE, TARGET, 256)])
    engine.simulation.run_cycles(200)
    # the parser has taken the header, and the data mover shows its first beat to a bus that takes none; the rest waits,
    # two beats each in the registers before and behind the FIFO and, with that first one, before the bus
    assert beats == ENGINE_HEADER_BYTES // 4 + depth + 3 * 2
    engine.ram.silent = set()
    assert engine.driver.wait()[0].status == 0
    assert engine.driver.read_back(TARGET, 256) == payload


def chain(text: str) -> set[Transition]:
    """``A>B>C`` as pairs."""
    states = text.split(">")
    return set(itertools.pairwise(states))


# The documented order; then what errors and refusals add. A reset may lead from anywhere to the first state.
EXPECTED = {
    "rdma_controller": chain(
        "S_IDLE>S_PREPARE_READ>S_READ_CMD>S_WAIT_READ_DONE>S_IS_STREAM_BUSY>S_SEND_TX_CMD>S_WAIT_TX_CPL>"
        "S_PREPARE_WRITE>S_WRITE_CMD>S_START_STREAM>S_WAIT_WRITE_DONE>S_IDLE"
    )
    | chain("S_WAIT_READ_DONE>S_PREPARE_WRITE")
    | chain("S_IS_STREAM_BUSY>S_PREPARE_WRITE"),
    "data_mover_axi_cmd_master": chain("IDLE>SEND_CMD>WAIT_MM2S>IDLE") | chain("SEND_CMD>WAIT_S2MM>IDLE"),
    "descriptor_parser": chain("IDLE>RECEIVE>IDLE"),
    "cq_streamer": chain("IDLE>SEND_STREAM>IDLE"),
    "tx_header_inserter": chain("IDLE>SEND_HEADER>SEND_DATA>IDLE"),
    "rx_header_parser": chain("IDLE>PARSE_HEADER>FORWARD_DATA>IDLE"),
}
EXPECTED_SERIAL = EXPECTED | {
    "tx_streamer": chain(
        "IDLE>INIT_FRAGMENT>PROGRAM_HEADER>START_HEADER>ISSUE_DM_CMD>WAIT_DM_STS>WAIT_HDR_DONE>UPDATE_STATE>"
        "PROGRAM_HEADER"
    )
    | chain("UPDATE_STATE>SEND_CPL>IDLE"),
    "rx_streamer": chain("IDLE>CHECK_OPCODE>PREPARE_CMD>ISSUE_DM_CMD>WAIT_COMPLETE>IDLE")
    | chain("CHECK_OPCODE>WAIT_COMPLETE")
    | chain("PREPARE_CMD>WAIT_COMPLETE"),
}
EXPECTED_OVERLAPPED = EXPECTED | {
    "tx_header_inserter": EXPECTED["tx_header_inserter"] | chain("SEND_DATA>SEND_HEADER"),
    "tx_streamer": chain("IDLE>INIT_FRAGMENT>PROGRAM_HEADER>START_HEADER>ISSUE_DM_CMD>UPDATE_STATE>PROGRAM_HEADER")
    | chain("UPDATE_STATE>WAIT_DM_STS>WAIT_HDR_DONE>SEND_CPL>IDLE"),
    "rx_streamer": chain("IDLE>CHECK_OPCODE>PREPARE_CMD>ISSUE_DM_CMD>IDLE")
    | chain("CHECK_OPCODE>IDLE")
    | chain("PREPARE_CMD>IDLE"),
}


@pytest.mark.xdist_group("scenarios")
@pytest.mark.parametrize(
    ("serial", "expected"),
    [
        pytest.param(True, EXPECTED_SERIAL, id="serial"),
        pytest.param(False, EXPECTED_OVERLAPPED, id="overlapped", marks=pytest.mark.full),
    ],
)
def test_every_state_and_transition(
    serial: bool, expected: dict[str, set[Transition]], request: pytest.FixtureRequest
) -> None:
    full = request.config.getoption("full")
    scenarios = [scenario for scenario in SCENARIOS if full or scenario not in LONG]
    for block, wanted in expected.items():
        seen = set().union(*(carried_out(scenario, serial)[block] for scenario in scenarios))
        print(f"\n{block}: {len(seen)} transitions")
        for before, after in sorted(seen):
            note = "" if (before, after) in wanted else "  (abort)"
            print(f"  {before} -> {after}{note}")
        assert wanted <= seen, f"{block} never went {sorted(wanted - seen)}"
        # an abort leads to the first state; the watchdog leads the controller to its completion
        aborts = {pair for pair in seen - wanted if pair[1] not in (sorted_first(block), "S_PREPARE_WRITE")}
        assert not aborts, f"{block} went {sorted(aborts)}"


def sorted_first(block: str) -> str:
    """The state with code 0."""
    return "S_IDLE" if block == "rdma_controller" else "IDLE"
