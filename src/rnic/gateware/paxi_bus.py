"""The engine's DDR on another machine: its AXI bus, and the processor's loads and stores, through PAXI windows."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat

from rnic.gateware.cache import NonCoherentCache
from rnic.gateware.sim_bus import Stalls, address_channel
from rnic.paxi.axi import Address, AxiError, WriteBeat, runs
from rnic.paxi.pins import PinSlave, Sampled
from rnic.paxi.window import Window
from rnic.spec.axi import Resp


class RemoteMemory:
    """DDR behind two windows of one target: one for the processor, one whose master is the engine's bus.

    Args:
        processor: window for the processor.
        bus: window for the engine; nobody else may use it.
    """

    def __init__(self, processor: Window, bus: Window) -> None:
        self.processor = processor
        self.bus = bus

    def read(self, address: int, count: int) -> bytes:
        """``count`` bytes from ``address``. ``LookupError`` outside the window, ``AxiError`` if the target is lost."""
        try:
            return bytes(self.processor[self._at(address, count) : self._at(address, count) + count])
        except AxiError as error:
            raise self._mapped(error) from None

    def write(self, address: int, data: bytes) -> None:
        """Store ``data`` at ``address``; errors as of :meth:`read`."""
        at = self._at(address, len(data))
        try:
            self.processor[at : at + len(data)] = data
        except AxiError as error:
            raise self._mapped(error) from None

    def _at(self, address: int, count: int) -> int:
        at = address - self.processor.base
        if at < 0 or at + count > len(self.processor):
            raise LookupError(f"no memory at {address:#010x} for {count} bytes")
        return at

    @staticmethod
    def _mapped(error: AxiError) -> Exception:
        return LookupError(str(error)) if error.resp == Resp.DECERR else error


class PaxiBus:
    """The slave of the engine's AXI4 bus: a PAXI bridge. In place of :class:`~rnic.gateware.sim_bus.AxiRam`.

    Args:
        axi: the master's interface.
        memory: where the engine's DDR is; its bus window must be as wide as ``axi``.
        cache: the processor's, told of what passes by it.
        stalls: hold channels back.
    """

    def __init__(self, axi: Any, memory: RemoteMemory, cache: NonCoherentCache, stalls: Stalls | None = None) -> None:
        port = memory.bus.port
        if port.bridge.lanes != len(axi.wstrb):
            raise ValueError(f"a window of {port.bridge.lanes * 8} bits on a bus of {len(axi.wstrb) * 8}")
        self.axi = axi
        self.slave = PinSlave(port, stalls)
        self._cache = cache
        self._writing: list[Address] = []

    @property
    def moved(self) -> int:
        """Beats read and written."""
        return self.slave.moved

    def _tell(self, sampled: Sampled) -> None:
        """Let the cache know what the engine touches."""
        driven, lanes, cache = self.slave.driven, self.slave.port.bridge.lanes, self._cache
        if sampled.ar is not None and driven.arready:
            cache.seen_by_device(sampled.ar.addr & -lanes, (sampled.ar.len + 1) * lanes, write=False)
        if sampled.w is not None and driven.wready:
            at = self._writing[0].addr & -lanes
            for first, end in runs(sampled.w.strobe):
                cache.seen_by_device(at + first, end - first, write=True)
            self._writing[0] = self._writing[0]._replace(addr=at + lanes)
            if sampled.w.last:
                self._writing.pop(0)
        if sampled.aw is not None and driven.awready:
            self._writing.append(sampled.aw)

    async def run(self, ctx: Any) -> None:
        """The testbench: one loop for all five channels."""
        axi, slave = self.axi, self.slave
        lanes = len(axi.wstrb)
        width, ids = lanes * 8, len(axi.rid)
        ar_wires = Cat(axi.araddr, axi.arlen, axi.arsize, axi.arburst, axi.arid)
        aw_wires = Cat(axi.awaddr, axi.awlen, axi.awsize, axi.awburst, axi.awid)
        w_wires = Cat(axi.wdata, axi.wstrb, axi.wlast)
        r_wires = Cat(axi.rdata, axi.rresp, axi.rid, axi.rlast)
        valids = Cat(axi.arvalid, axi.awvalid, axi.wvalid, axi.rready, axi.bready)
        controls = Cat(axi.arready, axi.awready, axi.wready, axi.rvalid, axi.bvalid)
        while True:
            _clk, _rst, valid, ar, aw, w = await ctx.tick().sample(valids, ar_wires, aw_wires, w_wires)
            beat = None
            if valid & 4:
                data = (w & (1 << width) - 1).to_bytes(lanes, "little")
                beat = WriteBeat(data, w >> width & (1 << lanes) - 1, bool(w >> width + lanes))
            sampled = Sampled(
                _address(ar) if valid & 1 else None,
                _address(aw) if valid & 2 else None,
                beat,
                bool(valid & 8),
                bool(valid & 16),
            )
            self._tell(sampled)
            arready, awready, wready, r, b = slave.cycle(sampled)
            ctx.set(controls, arready | awready << 1 | wready << 2 | (r is not None) << 3 | (b is not None) << 4)
            if r is not None:
                ctx.set(r_wires, int.from_bytes(r.data, "little") | (r.resp | r.id << 2 | r.last << 2 + ids) << width)
            if b is not None:
                ctx.set(axi.bid, b.id)
                ctx.set(axi.bresp, b.resp)


def _address(value: int) -> Address:
    addr, beats, size, burst, ident = address_channel(value)
    return Address(ident, addr, beats - 1, size, burst)
