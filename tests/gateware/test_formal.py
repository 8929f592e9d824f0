"""Bounded proofs by Yosys's own solver: no bus rule can be broken, and heads and tails never run past each other.

Every input is free in every step, but for what is assumed of the other side of each bus. A proof covers every sequence
of inputs up to its number of steps after reset.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Assert, Assume, Cat, Elaboratable, Module, Mux, Signal, Value

from rnic.gateware.axi_arbiter import ADDRESS, AxiArbiter
from rnic.gateware.data_mover import Mm2s, S2mm
from rnic.gateware.params import EngineParams
from rnic.gateware.rdma_controller import RdmaController
from rnic.gateware.registers import Registers
from rnic.gateware.tools import ToolError, find_tool, run_tool
from rnic.gateware.tx_path import TxHeaderInserter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PARAMS = EngineParams(max_burst=2)


@pytest.fixture(autouse=True)
def _needs_yosys() -> None:
    if find_tool("yosys") is None:
        pytest.skip("no yosys: pip install '.[gateware]'")


def prove(harness: Elaboratable, ports: list[Value], steps: int, place: Path) -> None:
    """That no assertion of ``harness`` fails in the first ``steps`` cycles after reset, whatever ``ports`` do.

    Raises:
        ToolError: the solver found a counter-example.
    """
    text = rtlil.convert(harness, name="dut", ports=[Value.cast(port) for port in ports])
    (place / "in.il").write_text(text)
    script = (
        "read_rtlil in.il; hierarchy -top dut; proc; flatten; memory_map; opt; chformal -lower; async2sync; dffunmap; "
        f"opt -full; sat -prove-asserts -set-assumes -set-def-inputs -set-init-undef -set rst 0 "
        f"-tempinduct-baseonly -maxsteps {steps} -verify dut"
    )
    run_tool("yosys", "-q", "-p", script, cwd=place)


def ports_of(component: Any) -> list[Value]:
    """All inputs of a component."""
    return [value for _path, member, value in component.signature.flatten(component) if member.flow.name == "In"]


def held(m: Module, valid: Value, ready: Value, payload: Value, ours: bool, unless: Value | int = 0) -> None:
    """A beat once shown stays as it is until it is taken: asserted of our side, assumed of the other.

    ``unless``: in such a cycle, and from it to the next, the rule does not bind.
    """
    waits, before = Signal(), Signal(len(payload))
    free = Value.cast(unless).any()
    m.d.sync += [waits.eq(valid & ~ready & ~free), before.eq(payload)]
    with m.If(waits & ~free):
        rule = valid & (payload == before)
        m.d.comb += Assert(rule) if ours else Assume(rule)


def axi_payload(axi: Any, channel: str) -> Value:
    """All wires of one AXI4 channel beside its handshake."""
    names = {
        "w": ("wdata", "wstrb", "wlast"),
        "r": ("rid", "rdata", "rresp", "rlast"),
        "b": ("bid", "bresp"),
    }.get(channel) or tuple(channel + name for name in ADDRESS)
    return Cat(*(Value.cast(getattr(axi, name)) for name in names))


def stream_payload(axis: Any) -> Value:
    return Cat(axis.tdata, axis.tkeep, axis.tlast, axis.tuser)


class Harness(Elaboratable):
    """A block and the rules around it."""

    def __init__(self, block: Any) -> None:
        self.block = block

    def rules(self, m: Module, block: Any) -> None:
        raise NotImplementedError

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.block = self.block
        self.rules(m, self.block)
        return m


class BurstRules(Harness):
    """Address channel of one direction: stable, inside 4 KB, and no data but what was asked for.

    Data to be written may go as soon as their address is shown: a slave may want them before it takes the address.
    """

    def addresses(self, m: Module, axi: Any, channel: str) -> Value:
        """The rules of AR or AW; the number of beats addressed and not yet moved."""
        valid, ready = (getattr(axi, f"{channel}{name}") for name in ("valid", "ready"))
        address, length = getattr(axi, f"{channel}addr"), getattr(axi, f"{channel}len")
        held(m, valid, ready, axi_payload(axi, channel), ours=True)
        lanes = len(axi.wstrb)
        end = Signal(14)
        m.d.comb += end.eq((address[:12] & -lanes & 0xFFF) + (length + 1) * lanes)
        with m.If(valid):
            m.d.comb += [Assert(end <= 4096), Assert(length < PARAMS.max_burst), Assert(address % lanes == 0)]
        data, move = ("r", axi.rvalid & axi.rready) if channel == "ar" else ("w", axi.wvalid & axi.wready)
        owed, waiting = Signal(10), Signal()
        m.d.sync += waiting.eq(valid & ~ready)
        asked = Mux(valid & ready if channel == "ar" else valid & ~waiting, length + 1, 0)
        m.d.sync += owed.eq(owed + asked - move)
        with m.If(getattr(axi, f"{data}valid")):
            m.d.comb += Assume(owed != 0) if channel == "ar" else Assert(owed + asked != 0)
        return owed

    def abort(self, m: Module, block: Any) -> None:
        """An abort lasts until the channel says that it is quiet, as ``top`` has it."""
        owes = Signal()
        m.d.sync += owes.eq(block.abort & ~block.quiet)
        with m.If(owes):
            m.d.comb += Assume(block.abort)


class ReaderRules(BurstRules):
    def rules(self, m: Module, block: Mm2s) -> None:
        axi, out = block.axi, block.m_axis
        self.abort(m, block)
        self.addresses(m, axi, "ar")
        held(m, axi.rvalid, axi.rready, axi_payload(axi, "r"), ours=False)
        held(m, block.cmd.tvalid, block.cmd.tready, block.cmd.tdata, ours=False)
        held(m, out.tvalid, out.tready, stream_payload(out), ours=True, unless=block.abort)
        held(m, block.sts.tvalid, block.sts.tready, block.sts.tdata, ours=True, unless=block.abort)


class WriterRules(BurstRules):
    def rules(self, m: Module, block: S2mm) -> None:
        axi, source = block.axi, block.s_axis
        self.abort(m, block)
        self.addresses(m, axi, "aw")
        held(m, axi.wvalid, axi.wready, axi_payload(axi, "w"), ours=True)
        held(m, axi.bvalid, axi.bready, axi_payload(axi, "b"), ours=False)
        held(m, source.tvalid, source.tready, stream_payload(source), ours=False)
        held(m, block.cmd.tvalid, block.cmd.tready, block.cmd.tdata, ours=False)
        held(m, block.sts.tvalid, block.sts.tready, block.sts.tdata, ours=True, unless=block.abort)
        # a response for each burst whose last beat has gone, and no other
        owed = Signal(8)
        m.d.sync += owed.eq(owed + (axi.wvalid & axi.wready & axi.wlast) - (axi.bvalid & axi.bready))
        with m.If(axi.bvalid):
            m.d.comb += Assume(owed != 0)


class PatientRules(Harness):
    """A slave that takes nothing, and a stream that has data: they are shown soon after their address."""

    WITHIN = 3

    def rules(self, m: Module, block: S2mm) -> None:
        axi, source = block.axi, block.s_axis
        waited = Signal(4)
        m.d.comb += [Assume(~axi.awready), Assume(~axi.wready), Assume(~axi.bvalid)]
        m.d.comb += [Assume(source.tvalid), Assume(~block.abort)]
        m.d.sync += waited.eq(Mux(axi.awvalid & ~axi.wvalid, waited + 1, 0))
        m.d.comb += Assert(waited <= self.WITHIN)


class PatientArbiterRules(Harness):
    """The same of the arbiter: data beside an address are shown on the bus although no address is taken."""

    def rules(self, m: Module, block: AxiArbiter) -> None:
        waited = Signal(4)
        for side in (block.first, block.second):
            m.d.comb += [Assume(side.wvalid), Assume(~side.wlast)]
            held(m, side.awvalid, side.awready, axi_payload(side, "aw"), ours=False)
        m.d.comb += Assume(~block.bus.awready)
        m.d.sync += waited.eq(Mux(block.bus.awvalid & ~block.bus.wvalid, waited + 1, 0))
        m.d.comb += Assert(waited <= 2)


class ArbiterRules(Harness):
    def rules(self, m: Module, block: AxiArbiter) -> None:
        sides = (block.first, block.second)
        for channel in ("ar", "aw", "w"):
            for axi, ours in ((block.bus, True), *((side, False) for side in sides)):
                valid, ready = (getattr(axi, f"{channel}{name}") for name in ("valid", "ready"))
                held(m, valid, ready, axi_payload(axi, channel), ours=ours)
        # a ready says nothing of an id that is not there
        m.d.comb += [Assert(block.bus.rvalid | ~block.bus.rready), Assert(block.bus.bvalid | ~block.bus.bready)]
        # what one side's address gets through, the other's does not
        m.d.comb += [
            Assert(~(block.first.awready & block.second.awready)),
            Assert(~(block.first.wready & block.second.wready)),
            Assert(~(block.first.rvalid & block.second.rvalid)),
        ]


class RegisterRules(Harness):
    def rules(self, m: Module, block: Registers) -> None:
        bus = block.s_axil
        held(m, bus.bvalid, bus.bready, bus.bresp, ours=True)
        held(m, bus.rvalid, bus.rready, Cat(bus.rdata, bus.rresp), ours=True)
        held(m, bus.awvalid, bus.awready, bus.awaddr, ours=False)
        held(m, bus.wvalid, bus.wready, Cat(bus.wdata, bus.wstrb), ours=False)
        held(m, bus.arvalid, bus.arready, bus.araddr, ours=False)
        for asked, answer in (
            (bus.awvalid & bus.awready, bus.bvalid & bus.bready),
            (bus.wvalid & bus.wready, bus.bvalid & bus.bready),
            (bus.arvalid & bus.arready, bus.rvalid & bus.rready),
        ):
            owed = Signal(2)
            m.d.sync += owed.eq(owed + asked - answer)
            with m.If(answer):
                m.d.comb += Assert(owed != 0)
            m.d.comb += Assert(owed <= 1)


class InserterRules(Harness):
    def rules(self, m: Module, block: TxHeaderInserter) -> None:
        source, out = block.s_axis, block.m_axis
        held(m, source.tvalid, source.tready, stream_payload(source), ours=False)
        held(m, out.tvalid, out.tready, stream_payload(out), ours=True, unless=block.abort)
        with m.If(~block.start_ready):
            m.d.comb += Assume(~block.start_tx)


class PointerRules(Harness):
    """Software that posts and takes as it may; the controller must never go past either pointer."""

    def __init__(self, block: RdmaController, size: int) -> None:
        super().__init__(block)
        self.size = size
        self.post, self.take = Signal(), Signal()

    def rules(self, m: Module, block: RdmaController) -> None:
        size = self.size
        tail, head = Signal(4), Signal(4)
        next_tail, next_head = Mux(tail + 1 == size, 0, tail + 1), Mux(head + 1 == size, 0, head + 1)
        posting, taking = self.post & (next_tail != block.sq_head), self.take & (head != block.cq_tail)
        with m.If(posting):
            m.d.sync += tail.eq(next_tail)
        with m.If(taking):
            m.d.sync += head.eq(next_head)
        with m.If(block.reset):
            m.d.sync += [tail.eq(0), head.eq(0)]
        m.d.comb += [
            block.sq_size.eq(size),
            block.cq_size.eq(size),
            block.sq_tail.eq(tail),
            block.cq_head.eq(head),
        ]
        posted, untaken = Signal(8), Signal(8)
        before, moved = Signal(4), Signal()
        m.d.sync += before.eq(Mux(block.reset, 0, block.sq_head))
        m.d.comb += moved.eq(before != block.sq_head)
        # descriptors that are posted and not completed; completions that are written and not taken
        m.d.sync += [posted.eq(posted + posting - moved), untaken.eq(untaken + moved - taking)]
        with m.If(block.reset):
            m.d.sync += [posted.eq(0), untaken.eq(0)]
        with m.Elif(moved):
            m.d.comb += [Assert(posted != 0), Assert(untaken != size - 1)]
        m.d.comb += [Assert(block.sq_head < size), Assert(block.cq_tail < size)]


@pytest.mark.full
def test_the_readers_bus_and_stream(tmp_path: Path) -> None:
    block = Mm2s(PARAMS)
    prove(ReaderRules(block), ports_of(block), 12, tmp_path)


@pytest.mark.full
def test_the_writers_bus(tmp_path: Path) -> None:
    block = S2mm(PARAMS)
    prove(WriterRules(block), ports_of(block), 10, tmp_path)


def test_data_are_shown_before_their_address_is_taken(tmp_path: Path) -> None:
    block = S2mm(PARAMS)
    prove(PatientRules(block), ports_of(block), 10, tmp_path)


def test_the_arbiter_shows_data_before_their_address_is_taken(tmp_path: Path) -> None:
    block = AxiArbiter(PARAMS)
    prove(PatientArbiterRules(block), ports_of(block), 8, tmp_path)


def test_the_arbiter_keeps_both_sides_apart(tmp_path: Path) -> None:
    block = AxiArbiter(PARAMS)
    prove(ArbiterRules(block), ports_of(block), 8, tmp_path)


@pytest.mark.full
def test_the_register_bus(tmp_path: Path) -> None:
    block = Registers(PARAMS)
    prove(RegisterRules(block), ports_of(block), 8, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("serial", [True, False], ids=["serial", "overlapped"])
def test_the_packet_stream(serial: bool, tmp_path: Path) -> None:
    block = TxHeaderInserter(EngineParams(serial=serial))
    prove(InserterRules(block), ports_of(block), 12, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(("size", "steps"), [(2, 20), (3, 30)])
def test_heads_and_tails_never_run_past_each_other(size: int, steps: int, tmp_path: Path) -> None:
    block = RdmaController(EngineParams())
    harness = PointerRules(block, size)
    ours = ("sq_size", "cq_size", "sq_tail", "cq_head")
    free = [getattr(block, name) for name, member in block.signature.members.items() if member.flow.name == "In"]
    kept = {id(getattr(block, name)) for name in ours}
    prove(harness, [harness.post, harness.take, *(port for port in free if id(port) not in kept)], steps, tmp_path)


class Careless(Elaboratable):
    """Shows a beat for one cycle whether or not it is taken."""

    def __init__(self) -> None:
        self.go, self.ready, self.valid = Signal(), Signal(), Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.valid.eq(self.go)
        held(m, self.valid, self.ready, Cat(self.go), ours=True)
        return m


def test_a_broken_rule_is_found(tmp_path: Path) -> None:
    block = Careless()
    with pytest.raises(ToolError, match="Called with -verify and proof did fail"):
        prove(block, [block.go, block.ready], 5, tmp_path)
