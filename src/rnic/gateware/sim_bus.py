"""Bus models for Amaranth's simulator: AXI4-Stream ends, an AXI4 memory, an AXI4-Lite master, a link between two MACs.

Each model is an object whose :meth:`run` is a background testbench. It samples its bus at the clock edge and
drives it right after; stalls come from the ``random.Random`` handed in, never from anywhere else.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from amaranth.hdl import Cat

from rnic.spec.axi import BOUNDARY_BYTES, Resp


class BusError(Exception):
    """The engine broke a rule of the bus. A bug of the gateware, never of its user."""


@dataclass
class Frame:
    """One packet of a stream: its bytes, and ``tuser`` of its last beat."""

    data: bytes
    bad: bool = False
    beats: list[tuple[int, int]] = field(default_factory=list)
    """(cycle, bytes) of each beat, where the sink was asked to keep them."""


class Stalls:
    """Decides each cycle whether a channel holds back, with probability ``rate``."""

    def __init__(self, rng: random.Random | None = None, rate: float = 0.0) -> None:
        self.rng = rng
        self.rate = rate

    def __call__(self) -> bool:
        """True in a cycle in which the channel holds back."""
        return self.rng is not None and self.rng.random() < self.rate


class StreamSource:
    """Drives an AXI4-Stream. ``send`` queues a packet; ``header_bytes`` of it go in beats of their own."""

    def __init__(self, axis: Any, stalls: Stalls | None = None, header_bytes: int = 0) -> None:
        self.axis = axis
        self.stalls = stalls or Stalls()
        self.lanes = len(axis.tkeep)
        self.header_bytes = header_bytes
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
        """The testbench."""
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
            _clk, _rst, ready = await ctx.tick().sample(axis.tready)
            if beat is not None and ready:
                self.sent += beat[1]
                self.moved += 1
                beat = None


class StreamSink:
    """Takes packets of an AXI4-Stream into ``frames``, and checks that nothing changes while it is not ready."""

    def __init__(self, axis: Any, stalls: Stalls | None = None, keep_beats: bool = False) -> None:
        self.axis = axis
        self.stalls = stalls or Stalls()
        self.keep_beats = keep_beats
        self.frames: list[Frame] = []
        self.moved = 0
        """Beats that have been taken."""
        self.hook: Callable[[Frame], None] | None = None

    async def run(self, ctx: Any) -> None:
        """The testbench."""
        axis = self.axis
        wires = Cat(axis.tdata, axis.tkeep, axis.tlast, axis.tuser)
        lanes = len(axis.tkeep)
        width = lanes * 8
        now, data, beats, held = 0, bytearray(), [], None
        while True:
            ready = not self.stalls()
            ctx.set(axis.tready, ready)
            _clk, _rst, valid, value = await ctx.tick().sample(axis.tvalid, wires)
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


class Memory(Protocol):
    """What an AXI4 memory model reads and writes; an address outside raises ``LookupError``."""

    def read(self, address: int, count: int) -> bytes:
        """``count`` bytes from ``address``."""

    def write(self, address: int, data: bytes) -> None:
        """Store ``data`` at ``address``."""


class AxiRam:
    """An AXI4 slave of INCR bursts in front of a memory; an address outside it is answered with DECERR.

    Raises:
        BusError: a burst is not INCR, not of full width or crosses a 4 KB boundary, or WLAST is wrong.
    """

    def __init__(self, axi: Any, memory: Memory, stalls: Stalls | None = None, latency: int = 0) -> None:
        self.axi = axi
        self.memory = memory
        self.stalls = stalls or Stalls()
        self.latency = latency
        self.lanes = len(axi.wstrb)
        self.faults: dict[tuple[str, int], Resp] = {}
        """Answers to inject: ("read" or "write", page number) -> response."""
        self.silent: set[str] = set()
        """"read" or "write", where the memory has stopped answering."""
        self.moved = 0
        """Beats read and written."""

    def _check(self, burst: int, size: int, address: int, beats: int) -> None:
        if burst != 1 or 1 << size != self.lanes:
            raise BusError(f"burst type {burst}, size {size} at {address:#x}: the engine sends full-width INCR")
        if address // BOUNDARY_BYTES != ((address & -self.lanes) + beats * self.lanes - 1) // BOUNDARY_BYTES:
            raise BusError(f"burst of {beats} beats at {address:#x} crosses a 4 KB boundary")

    def _read(self, address: int, beats: int) -> list[tuple[int, int]]:
        """(data, response) of each beat."""
        lanes, out = self.lanes, []
        base = address & -lanes
        fault = self.faults.get(("read", address // BOUNDARY_BYTES))
        for beat in range(beats):
            at = base + beat * lanes
            try:
                data = int.from_bytes(self.memory.read(at, lanes), "little")
                out.append((data, 0) if fault is None else (0, fault.value))
            except LookupError:
                out.append((0, Resp.DECERR.value))
        return out

    def _write(self, at: int, data: int, strobe: int) -> int:
        """Response to one beat."""
        fault = self.faults.get(("write", at // BOUNDARY_BYTES))
        if fault is not None:
            return fault.value
        raw, lane, lanes = data.to_bytes(self.lanes, "little"), 0, self.lanes
        try:
            while lane < lanes:
                if not strobe >> lane & 1:
                    lane += 1
                    continue
                end = lane
                while end < lanes and strobe >> end & 1:
                    end += 1
                self.memory.write(at + lane, raw[lane:end])
                lane = end
        except LookupError:
            return int(Resp.DECERR.value)
        return 0

    async def run(self, ctx: Any) -> None:
        """The testbench: one loop for all five channels."""
        axi, stalls, lanes = self.axi, self.stalls, self.lanes
        reads: deque[tuple[int, int, list[tuple[int, int]]]] = deque()  # (earliest cycle, id, beats)
        writes: deque[list[int]] = deque()  # [id, next address, beats left, worst response]
        answers: deque[tuple[int, int, int]] = deque()  # (earliest cycle, id, response)
        now = 0
        r_shown = b_shown = False
        r_wires = Cat(axi.rdata, axi.rresp, axi.rid, axi.rlast)
        ar_wires = Cat(axi.araddr, axi.arlen, axi.arsize, axi.arburst, axi.arid)
        aw_wires = Cat(axi.awaddr, axi.awlen, axi.awsize, axi.awburst, axi.awid)
        w_wires = Cat(axi.wdata, axi.wstrb, axi.wlast)
        width, ids = lanes * 8, len(axi.rid)
        while True:
            reading, writing = "read" not in self.silent, "write" not in self.silent
            if not r_shown and reads and reads[0][0] <= now and reading and not stalls():
                _when, ident, beats = reads[0]
                data, response = beats[0]
                ctx.set(r_wires, data | (response | ident << 2 | (len(beats) == 1) << 2 + ids) << width)
                r_shown = True
            ctx.set(axi.rvalid, r_shown)
            if not b_shown and answers and answers[0][0] <= now and writing and not stalls():
                ctx.set(axi.bid, answers[0][1])
                ctx.set(axi.bresp, answers[0][2])
                b_shown = True
            ctx.set(axi.bvalid, b_shown)
            ar_ready = reading and len(reads) < 8 and not stalls()
            aw_ready = writing and len(writes) < 8 and not stalls()
            w_ready = writing and bool(writes) and not stalls()
            ctx.set(Cat(axi.arready, axi.awready, axi.wready), ar_ready | aw_ready << 1 | w_ready << 2)
            valids = Cat(axi.arvalid, axi.awvalid, axi.wvalid, axi.rready, axi.bready)
            sampled = await ctx.tick().sample(valids, ar_wires, aw_wires, w_wires)
            now += 1
            valid, ar, aw, w = sampled[2:]
            if r_shown and valid & 8:
                r_shown = False
                self.moved += 1
                reads[0][2].pop(0)
                if not reads[0][2]:
                    reads.popleft()
            if b_shown and valid & 16:
                b_shown = False
                answers.popleft()
            if w_ready and valid & 4:
                self.moved += 1
                burst = writes[0]
                data, strobe, last = w & (1 << width) - 1, w >> width & (1 << lanes) - 1, w >> width + lanes
                if bool(last) != (burst[2] == 1):
                    raise BusError(f"WLAST={last} with {burst[2]} beats to go")
                burst[3] = max(burst[3], self._write(burst[1], data, strobe))
                burst[1] += lanes
                burst[2] -= 1
                if not burst[2]:
                    answers.append((now + self.latency, burst[0], burst[3]))
                    writes.popleft()
            if ar_ready and valid & 1:
                address, beats_wanted, size, kind, ident = address_channel(ar)
                self._check(kind, size, address, beats_wanted)
                reads.append((now + self.latency, ident, self._read(address, beats_wanted)))
            if aw_ready and valid & 2:
                address, beats_wanted, size, kind, ident = address_channel(aw)
                self._check(kind, size, address, beats_wanted)
                writes.append([ident, address & -lanes, beats_wanted, 0])


def address_channel(value: int) -> tuple[int, int, int, int, int]:
    """(address, beats, size, burst, id) of an AR or AW beat."""
    return value & 0xFFFFFFFF, (value >> 32 & 0xFF) + 1, value >> 40 & 7, value >> 43 & 3, value >> 45


@dataclass
class Access:
    """One register access; ``done`` when it has been answered."""

    address: int
    value: int | None
    """What to write; ``None`` reads."""
    done: bool = False
    result: int = 0
    response: int = 0


class AxiLiteMaster:
    """Carries out :class:`Access` objects, in order, one at a time."""

    def __init__(self, axil: Any) -> None:
        self.axil = axil
        self.queue: deque[Access] = deque()

    def post(self, address: int, value: int | None = None) -> Access:
        """Queue an access; its ``done`` tells when it is over."""
        access = Access(address, value)
        self.queue.append(access)
        return access

    async def run(self, ctx: Any) -> None:
        """The testbench."""
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

    ``lose`` is asked for each frame; true loses it. ``frames`` keeps what was put in.
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
