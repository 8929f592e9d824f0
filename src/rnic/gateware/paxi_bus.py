"""Put the engine's DDR on another machine: its AXI bus and the processor's loads and stores use PAXI windows."""

from __future__ import annotations

from collections import deque
from typing import Any

from rnic.gateware.axi_model import Address, Answer, AxiChecker, Data, Read, Stalls
from rnic.gateware.cache import NonCoherentCache
from rnic.gateware.sim_bus import SlaveOnAmaranth
from rnic.paxi import axi
from rnic.paxi.axi import AxiError
from rnic.paxi.pins import PinSlave, Sampled
from rnic.paxi.window import Window
from rnic.spec.axi import Resp


class RemoteMemory:
    """DDR behind two windows of one target: one for the processor, one for the engine's bus.

    Args:
        processor: window for the processor.
        bus: window for the engine; no other user may touch it.
    """

    def __init__(self, processor: Window, bus: Window) -> None:
        self.processor = processor
        self.bus = bus

    def read(self, address: int, count: int) -> bytes:
        """Return ``count`` bytes from ``address``. ``LookupError`` outside the window, ``AxiError`` if the target is
        lost."""
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


class PaxiBus(SlaveOnAmaranth):
    """The slave of the engine's AXI4 bus: a PAXI bridge, which replaces :class:`~rnic.gateware.sim_bus.AxiRam`.

    Args:
        bus: the master's interface.
        memory: the engine's DDR; its bus window must be as wide as ``bus``.
        cache: the processor's cache, notified of the engine's accesses.
        stalls: stall channels at random.
    """

    def __init__(self, bus: Any, memory: RemoteMemory, cache: NonCoherentCache, stalls: Stalls | None = None) -> None:
        port = memory.bus.port
        self.axi = bus
        self.lanes = len(bus.wstrb)
        if port.bridge.lanes != self.lanes:
            raise ValueError(f"a window of {port.bridge.lanes * 8} bits on a bus of {self.lanes * 8}")
        self.checker = AxiChecker(self.lanes)
        self.slave = PinSlave(port, stalls)
        self.arready = self.awready = self.wready = False
        self.r: Read | None = None
        self.b: Answer | None = None
        self._cache = cache
        self._writing: deque[int] = deque()
        """Addresses of the next beats of write bursts."""

    @property
    def moved(self) -> int:
        """Beats read and written."""
        return self.slave.moved

    def edge(self, aw: Address | None, w: Data | None, bready: bool, ar: Address | None, rready: bool) -> None:
        """See :meth:`~rnic.gateware.axi_model.AxiSlave.edge`."""
        self._tell(aw, w, ar)
        beat = None if w is None else axi.WriteBeat(w.data.to_bytes(self.lanes, "little"), w.strobe, bool(w.last))
        was = self.slave.driven
        driven = self.slave.cycle(Sampled(_of(ar), _of(aw), beat, rready, bready))
        self.arready, self.awready, self.wready = driven.arready, driven.awready, driven.wready
        if driven.r is not was.r:
            r = driven.r
            self.r = None if r is None else Read(int.from_bytes(r.data, "little"), r.resp, r.id, int(r.last))
        if driven.b is not was.b:
            self.b = None if driven.b is None else Answer(driven.b.id, driven.b.resp)

    def _tell(self, aw: Address | None, w: Data | None, ar: Address | None) -> None:
        """Notify the cache of the engine's accesses."""
        lanes, cache = self.lanes, self._cache
        if ar is not None and self.arready:
            cache.seen_by_device(ar.address & -lanes, ar.beats * lanes, write=False)
        if w is not None and self.wready:
            at = self._writing[0]
            for first, end in axi.runs(w.strobe):
                cache.seen_by_device(at + first, end - first, write=True)
            self._writing[0] += lanes
            if w.last:
                self._writing.popleft()
        if aw is not None and self.awready:
            self._writing.append(aw.address & -lanes)


def _of(address: Address | None) -> axi.Address | None:
    if address is None:
        return None
    return axi.Address(address.ident, address.address, address.beats - 1, address.size, address.burst)
