"""The whole engine in loopback: what each descriptor comes to, and every state and transition of every block.

Both engines, the serial one and the overlapped one, go through the same scenarios.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from amaranth.hdl import Cat

from rnic.gateware.cache import SparseMemory
from rnic.gateware.driver import Completion, Driver, QueueLayout, Request
from rnic.gateware.interfaces import Resp
from rnic.gateware.params import EngineParams
from rnic.gateware.sim import Simulation
from rnic.spec import engine_regs as regs
from rnic.spec.status import (
    ENGINE_LENGTH_MISMATCH,
    ENGINE_LOCAL_ACCESS,
    ENGINE_REMOTE_ACCESS,
    ENGINE_SUCCESS,
    ENGINE_TIMEOUT,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SQ, CQ, SOURCE, TARGET = 0x1000, 0x2000, 0x10000, 0x20000
SPACE = 0x4000
RING = 4
STATE = {name: code for code, name in enumerate(regs.RDMA_STATES)}
Transition = tuple[str, str]


class Engine:
    """One engine in loopback with a driver; notes every transition of every block."""

    def __init__(self, serial: bool, seed: int = 7, stall_rate: float = 0.0, width: int = 32) -> None:
        self.rng = random.Random(seed)
        params = EngineParams(
            bus_width=width, serial=serial, block_size=64, boundary=64, fifo_depth=64, watchdog_cycles=0
        )
        self.memory = SparseMemory((SQ, 0x1000), (CQ, 0x1000), (SOURCE, SPACE), (TARGET, SPACE))
        self.simulation = Simulation(params, [self.memory], seed, stall_rate)
        self.sim = self.simulation.engines[0]
        top = self.top = self.sim.top
        self.blocks: dict[str, tuple[Any, tuple[str, ...]]] = {
            "rdma_controller": (top.controller.state, regs.RDMA_STATES),
            "data_mover_axi_cmd_master": (top.cmd_master.state, regs.CMD_STATES),
            "descriptor_parser": (top.parser.state, regs.PARSER_STATES),
            "cq_streamer": (top.cq_streamer.state, regs.STREAMER_STATES),
            "tx_streamer": (top.tx_streamer.state, regs.TX_STATES),
            "tx_header_inserter": (top.header_inserter.state, regs.INSERTER_STATES),
            "rx_header_parser": (top.header_parser.state, regs.HEADER_PARSER_STATES),
            "rx_streamer": (top.rx_streamer.state, regs.RX_STATES),
        }
        self.wires = Cat(*(state for state, _names in self.blocks.values()))
        self.seen: dict[str, set[Transition]] = {name: set() for name in self.blocks}
        self.last: dict[str, int] = dict.fromkeys(self.blocks, 0)
        self.simulation.watchers.append(self._look)
        self.driver = Driver(self.sim, QueueLayout(SQ, CQ, RING, RING), poll_limit=300)
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

    def until(self, state: str, limit: int = 400) -> None:
        """Run until the controller is in a state."""
        for _ in range(limit):
            if self.last["rdma_controller"] == STATE[state]:
                return
            self.simulation.step()
        raise AssertionError(f"the controller never reached {state}")

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


def small_writes_and_ring_wrap(engine: Engine) -> None:
    for index, length in enumerate((1, 2, 3, 4, 5, 63, 64, 65, 130)):
        local, remote = index % 4, (index * 3) % 4
        payload = engine.fill(length + 8)
        done = engine.write(length, local=SOURCE + local, remote=TARGET + remote, wqe_id=0xABC00000 + index)
        assert (done.index, done.status, done.bytes, done.requested) == (index % RING, 0, length, length)
        assert (done.wqe_id, done.opcode, done.phase) == (0xABC00000 + index, 0x0A, 1 - index // RING % 2)
        want = bytearray(length + 8)
        want[remote : remote + length] = payload[local : local + length]
        assert engine.driver.read_back(TARGET, length + 8) == want
    assert engine.get("SQ_HEAD") == engine.get("CQ_TAIL") == 9 % RING
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


def bus_errors(engine: Engine) -> None:
    faults = engine.sim.ram.faults
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
    assert engine.status()["paused"]
    assert engine.last["rdma_controller"] == STATE["S_IDLE"]
    put("CONTROL", 0)
    engine.simulation.run_cycles(60)
    assert engine.get("CQ_TAIL") == engine.get("CQ_HEAD"), "work without enable"
    put("IRQ_ENABLE", 1)
    put("CONTROL", enable | irq)
    engine.driver.wait()
    assert _irq(engine)
    assert engine.events() == {"completion"}
    assert not _irq(engine)
    put("IRQ_ENABLE", 0)
    # a tail outside the ring is refused, not followed
    head = engine.get("SQ_HEAD")
    put("SQ_TAIL", RING)
    engine.simulation.run_cycles(60)
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
    ram = engine.sim.ram
    for state, halts in (
        ("S_WAIT_READ_DONE", False),
        ("S_WAIT_TX_CPL", False),
        ("S_WAIT_WRITE_DONE", True),
    ):
        engine.driver.put("WATCHDOG", 60)
        engine.driver.submit([Request(SOURCE, TARGET, 150, 3)])
        engine.until(state)
        ram.silent = True
        engine.simulation.run_cycles(75)
        assert engine.status()["flushing"] or engine.status()["halted"], state
        ram.silent = False
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


def reset_in_every_state(engine: Engine) -> None:
    bit = 1 << regs.CONTROL["soft_reset"].lsb
    for state in regs.RDMA_STATES:
        engine.fill(150)
        engine.driver.submit([Request(SOURCE, TARGET, 150, 3)])
        engine.until(state)
        engine.driver.recover()
        for name in ("SQ_HEAD", "SQ_TAIL", "CQ_HEAD", "CQ_TAIL", "IRQ_STATUS", "RX_PACKETS"):
            assert engine.get(name) == 0, (state, name)
        assert not engine.get("CONTROL") & bit
        assert not engine.status()["busy"]
        engine.good()


SCENARIOS: tuple[Callable[[Engine], None], ...] = (
    small_writes_and_ring_wrap,
    back_to_back,
    opcodes,
    refused_descriptors,
    bus_errors,
    full_completion_queue,
    control_bits,
    watchdog,
    reset_in_every_state,
)


@cache
def carried_out(scenario: Callable[[Engine], None], serial: bool) -> dict[str, set[Transition]]:
    """The transitions that a scenario made, once its checks have passed."""
    engine = Engine(serial)
    scenario(engine)
    assert engine.sim.cache.missing == []
    return engine.seen


@pytest.mark.parametrize("serial", [True, False], ids=["serial", "overlapped"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[Engine], None], serial: bool) -> None:
    carried_out(scenario, serial)


@pytest.mark.parametrize("width", [32, 512])
@pytest.mark.parametrize("serial", [True, False], ids=["serial", "overlapped"])
def test_stalls_on_every_channel(serial: bool, width: int) -> None:
    engine = Engine(serial, seed=width, stall_rate=0.4, width=width)
    small_writes_and_ring_wrap(engine)
    back_to_back(engine)


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


@pytest.mark.parametrize(
    ("serial", "expected"), [(True, EXPECTED_SERIAL), (False, EXPECTED_OVERLAPPED)], ids=["serial", "overlapped"]
)
def test_every_state_and_transition(serial: bool, expected: dict[str, set[Transition]]) -> None:
    for block, wanted in expected.items():
        seen = set().union(*(carried_out(scenario, serial)[block] for scenario in SCENARIOS))
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
