"""Bus models for Amaranth's simulator: AXI4-Stream ends, an AXI4 memory, an AXI4-Lite master, a link between two MACs.

Each model is an object whose :meth:`run` is a background testbench. It samples its bus at the clock edge and
drives it right after; stalls come only from the ``random.Random`` passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Cat

from rnic.gateware.axi_model import (
    Address,
    Answer,
    AxiChecker,
    AxiSlave,
    BusError,
    Data,
    Memory,
    Read,
    Stalls,
    Timing,
    Wires,
)
from rnic.gateware.mac_model import Beat, Mac


@dataclass
class Frame:
    """One packet of a stream: its bytes, and ``tuser`` of its last beat."""

    data: bytes
    bad: bool = False
    beats: list[tuple[int, int]] = field(default_factory=list)
    """(cycle, bytes) of each beat, if the sink keeps them."""


class StreamSource:
    """Drives an AXI4-Stream. ``send`` queues a packet; its ``header_bytes`` are sent in separate beats."""

    def __init__(self, axis: Any, stalls: Stalls | None = None, header_bytes: int = 0) -> None:
        self.axis = axis
        self.stalls = stalls or Stalls()
        self.lanes = len(axis.tkeep)
        self.header_bytes = header_bytes
        self.domain = "sync"
        """Cycle of the stream's clock."""
        self.queue: deque[tuple[bytes, bool, bool]] = deque()
        self.sent = 0
        """Packets whose last beat has been taken."""
        self.moved = 0
        """Beats that have been taken."""

    def send(self, data: bytes, bad: bool = False) -> None:
        """Queue one packet of at least a byte; ``bad`` sets ``tuser`` on its last beat."""
        head, tail = data[: self.header_bytes], data[self.header_bytes :]
        for part in (head, tail):
            for at in range(0, len(part), self.lanes):
                last = at + self.lanes >= len(part) and (part is tail or not tail)
                self.queue.append((part[at : at + self.lanes], last, bad and last))

    async def run(self, ctx: Any) -> None:
        """Run the testbench."""
        axis = self.axis
        beat: tuple[bytes, bool, bool] | None = None
        while True:
            if beat is None and self.queue and not self.stalls():
                beat = self.queue.popleft()
                data, last, bad = beat
                ctx.set(axis.tdata, int.from_bytes(data, "little"))
                ctx.set(axis.tkeep, (1 << len(data)) - 1)
                ctx.set(axis.tlast, last)
                ctx.set(axis.tuser, bad)
            ctx.set(axis.tvalid, beat is not None)
            _clk, _rst, ready = await ctx.tick(self.domain).sample(axis.tready)
            if beat is not None and ready:
                self.sent += beat[1]
                self.moved += 1
                beat = None


class StreamSink:
    """Collects packets of an AXI4-Stream in ``frames``, and checks that beats are stable while it is not ready."""

    def __init__(self, axis: Any, stalls: Stalls | None = None, keep_beats: bool = False) -> None:
        self.axis = axis
        self.stalls = stalls or Stalls()
        self.keep_beats = keep_beats
        self.domain = "sync"
        """Cycle of the stream's clock."""
        self.frames: list[Frame] = []
        self.moved = 0
        """Beats that have been taken."""
        self.hook: Callable[[Frame], None] | None = None

    async def run(self, ctx: Any) -> None:
        """Run the testbench."""
        axis = self.axis
        wires = Cat(axis.tdata, axis.tkeep, axis.tlast, axis.tuser)
        lanes = len(axis.tkeep)
        width = lanes * 8
        now, data, beats, held = 0, bytearray(), [], None
        while True:
            ready = not self.stalls()
            ctx.set(axis.tready, ready)
            _clk, _rst, valid, value = await ctx.tick(self.domain).sample(axis.tvalid, wires)
            now += 1
            if held is not None and (not valid or value != held):
                raise BusError("an AXI4-Stream beat changed before it was taken")
            held = value if valid and not ready else None
            if not (valid and ready):
                continue
            self.moved += 1
            keep = value >> width & ((1 << lanes) - 1)
            count = keep.bit_length()
            if keep != (1 << count) - 1 or not keep:
                raise BusError(f"tkeep={keep:#x} has holes or is empty")
            data += (value & (1 << count * 8) - 1).to_bytes(count, "little")
            if self.keep_beats:
                beats.append((now, count))
            if value >> width + lanes & 1:
                frame = Frame(bytes(data), bool(value >> width + lanes + 1), beats)
                data, beats = bytearray(), []
                self.frames.append(frame)
                if self.hook is not None:
                    self.hook(frame)


class MacPort(Mac):
    """:class:`~rnic.gateware.mac_model.Mac` on Amaranth's simulator, at both of an engine's streams.

    Raises:
        BusError: from :meth:`run`.
    """

    def __init__(self, tx: Any, rx: Any, rate: float) -> None:
        super().__init__(len(tx.tkeep), rate)
        self.domain = "sync"
        self.tx_axis, self.rx_axis = tx, rx

    async def run(self, ctx: Any) -> None:
        """Run the testbench."""
        tx, rx, width = self.tx_axis, self.rx_axis, self.lanes * 8
        out = Cat(tx.tdata, tx.tkeep, tx.tlast, tx.tuser)
        driven: Beat | None = None
        while True:
            ctx.set(tx.tready, self.tx_ready)
            ctx.set(rx.tvalid, self.rx is not None)
            if self.rx is not None and self.rx is not driven:
                driven = self.rx
                ctx.set(rx.tdata, int.from_bytes(driven.data, "little"))
                ctx.set(rx.tkeep, (1 << len(driven.data)) - 1)
                ctx.set(rx.tlast, driven.last)
                ctx.set(rx.tuser, driven.bad and driven.last)
            _clk, _rst, valid, value, ready = await ctx.tick(self.domain).sample(tx.tvalid, out, rx.tready)
            shown = None
            if valid:
                count = (value >> width & (1 << self.lanes) - 1).bit_length()
                last, bad = (bool(value >> width + self.lanes + bit & 1) for bit in (0, 1))
                shown = Beat((value & (1 << count * 8) - 1).to_bytes(count, "little"), last, bad)
            self.edge(shown, bool(ready))


class SlaveOnAmaranth:
    """A simulator-independent slave on Amaranth's simulator, with an :class:`AxiChecker`.

    Raises:
        BusError: from :meth:`run`, if a rule of the bus is broken.
    """

    axi: Any
    domain: str = "sync"
    """Cycle of the bus's clock."""
    lanes: int
    checker: AxiChecker
    arready: bool
    awready: bool
    wready: bool
    r: Read | None
    b: Answer | None

    def edge(self, aw: Address | None, w: Data | None, bready: bool, ar: Address | None, rready: bool) -> None:
        """See :meth:`AxiSlave.edge`."""
        raise NotImplementedError

    async def run(self, ctx: Any) -> None:
        """Run the testbench: one loop for all five channels."""
        axi, lanes = self.axi, self.lanes
        r_wires = Cat(axi.rdata, axi.rresp, axi.rid, axi.rlast)
        b_wires = Cat(axi.bid, axi.bresp)
        outputs = Cat(axi.arready, axi.awready, axi.wready, axi.rvalid, axi.bvalid)
        inputs = Cat(axi.awvalid, axi.wvalid, axi.bready, axi.arvalid, axi.rready)
        ar_wires = Cat(axi.arlen, axi.arsize, axi.arburst, axi.arid, axi.araddr)
        aw_wires = Cat(axi.awlen, axi.awsize, axi.awburst, axi.awid, axi.awaddr)
        w_wires = Cat(axi.wstrb, axi.wlast, axi.wdata)
        width, ids = lanes * 8, len(axi.rid)
        shown_r: Read | None = None
        shown_b: Answer | None = None
        driven = -1
        while True:
            ready = self.arready | self.awready << 1 | self.wready << 2
            wanted = ready | (self.r is not None) << 3 | (self.b is not None) << 4
            if wanted != driven:
                ctx.set(outputs, wanted)
                driven = wanted
            if self.r is not None and self.r is not shown_r:
                shown_r = self.r
                ctx.set(
                    r_wires, shown_r.data | (shown_r.response | (shown_r.ident | shown_r.last << ids) << 2) << width
                )
            if self.b is not None and self.b is not shown_b:
                shown_b = self.b
                ctx.set(b_wires, shown_b.ident | shown_b.response << ids)
            sampled = await ctx.tick(self.domain).sample(inputs, ar_wires, aw_wires, w_wires)
            flags, ar, aw, w = sampled[2:]
            wires = Wires(
                _address(aw, ids) if flags & 1 else None,
                self.awready,
                Data(w >> lanes + 1, w & (1 << lanes) - 1, w >> lanes & 1) if flags & 2 else None,
                self.wready,
                self.b,
                bool(flags & 4),
                _address(ar, ids) if flags & 8 else None,
                self.arready,
                self.r,
                bool(flags & 16),
            )
            self.checker.edge(wires)
            self.edge(wires.aw, wires.w, wires.bready, wires.ar, wires.rready)


class AxiRam(AxiSlave, SlaveOnAmaranth):
    """:class:`AxiSlave` on Amaranth's simulator.

    Raises:
        BusError: from :meth:`run`, if a rule of the bus is broken.
    """

    def __init__(
        self, axi: Any, memory: Memory, stalls: Stalls | None = None, timing: Timing | None = None, seed: int = 0
    ) -> None:
        super().__init__(len(axi.wstrb), memory, stalls, timing, seed)
        self.axi = axi
        self.checker = AxiChecker(self.lanes)


def _address(value: int, ids: int) -> Address:
    """Return an AR or AW beat."""
    return Address(value >> 13 + ids, (value & 0xFF) + 1, value >> 8 & 7, value >> 11 & 3, value >> 13 & (1 << ids) - 1)


@dataclass
class Access:
    """One register access; ``done`` when it has been answered."""

    address: int
    value: int | None
    """Value to write; ``None`` reads."""
    done: bool = False
    result: int = 0
    response: int = 0


class AxiLiteMaster:
    """Execute :class:`Access` objects, in order, one at a time."""

    def __init__(self, axil: Any) -> None:
        self.axil = axil
        self.queue: deque[Access] = deque()

    def post(self, address: int, value: int | None = None) -> Access:
        """Queue an access; its ``done`` is set when it is complete."""
        access = Access(address, value)
        self.queue.append(access)
        return access

    async def run(self, ctx: Any) -> None:
        """Run the testbench."""
        axil = self.axil
        ctx.set(axil.bready, 1)
        ctx.set(axil.rready, 1)
        ctx.set(axil.wstrb, 15)
        while True:
            if not self.queue:
                await ctx.tick()
                continue
            access = self.queue.popleft()
            if access.value is None:
                ctx.set(axil.araddr, access.address)
                ctx.set(axil.arvalid, 1)
                while True:
                    _c, _r, taken, valid, data, response = await ctx.tick().sample(
                        axil.arready, axil.rvalid, axil.rdata, axil.rresp
                    )
                    if taken:
                        ctx.set(axil.arvalid, 0)
                    if valid:
                        access.result, access.response = data, _number(response)
                        break
            else:
                ctx.set(axil.awaddr, access.address)
                ctx.set(axil.wdata, access.value)
                ctx.set(axil.awvalid, 1)
                ctx.set(axil.wvalid, 1)
                while True:
                    _c, _r, aw_taken, w_taken, valid, response = await ctx.tick().sample(
                        axil.awready, axil.wready, axil.bvalid, axil.bresp
                    )
                    if aw_taken:
                        ctx.set(axil.awvalid, 0)
                    if w_taken:
                        ctx.set(axil.wvalid, 0)
                    if valid:
                        access.response = _number(response)
                        break
            access.done = True


def _number(value: Any) -> int:
    return int(getattr(value, "value", value))


class MacLink:
    """A wire from one engine's MAC output to another's MAC input, which may lose frames.

    ``lose`` is called for each frame and returns true to drop it. ``frames`` records all frames.
    """

    def __init__(self, source: StreamSink, target: StreamSource, lose: Callable[[Frame], bool] | None = None) -> None:
        self.lose = lose
        self.target = target
        self.frames: list[Frame] = []
        self.lost: list[Frame] = []
        source.hook = self._carry

    def _carry(self, frame: Frame) -> None:
        self.frames.append(frame)
        if self.lose is not None and self.lose(frame):
            self.lost.append(frame)
        else:
            self.target.send(frame.data, frame.bad)


__all__ = [
    "Access",
    "AxiLiteMaster",
    "AxiRam",
    "BusError",
    "Frame",
    "MacLink",
    "MacPort",
    "Stalls",
    "StreamSink",
    "StreamSource",
    "Timing",
]
