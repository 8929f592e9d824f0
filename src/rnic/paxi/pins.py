"""A bridge at the pins of an AXI4 bus, clock cycle by clock cycle, for any simulator.

The simulator's side samples the master's signals at the rising edge, hands them in, and drives what comes back; so
readies and answers behave like registers. A master that breaks the handshake (changes what it shows before it is taken)
is not noticed here; its simulator's models see that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rnic.paxi.axi import Address, ReadBeat, WriteBeat, WriteResponse
from rnic.paxi.port import Port


class Sampled(NamedTuple):
    """The master's side at one rising edge; ``None`` where VALID is low."""

    ar: Address | None
    aw: Address | None
    w: WriteBeat | None
    rready: bool
    bready: bool


class Driven(NamedTuple):
    """What the slave drives from one edge to the next; ``None`` where VALID is low."""

    arready: bool
    awready: bool
    wready: bool
    r: ReadBeat | None
    b: WriteResponse | None


class PinSlave:
    """The slave side of the bus.

    Args:
        port: the bridge and its remote. Nobody else may be its master.
        stalls: asked once for each channel and cycle; true holds that channel back. None are held by default.
    """

    def __init__(self, port: Port, stalls: Callable[[], bool] | None = None) -> None:
        self.port = port
        self.stalls = stalls or (lambda: False)
        self.driven = Driven(False, False, False, None, None)
        self.cycles = 0
        self.moved = 0
        """Beats of R and W."""

    def cycle(self, sampled: Sampled) -> Driven:
        """One rising edge: what moved at it, and what to drive after it."""
        bridge, was, stalls = self.port.bridge, self.driven, self.stalls
        self.cycles += 1
        now_ns = self.port.clock()
        read, response = was.r, was.b
        if was.arready and sampled.ar is not None:
            bridge.address_read(sampled.ar, now_ns)
        if was.awready and sampled.aw is not None:
            bridge.address_write(sampled.aw, now_ns)
        if was.wready and sampled.w is not None:
            self.moved += 1
            bridge.write_data(sampled.w)
        if read is not None and sampled.rready:
            self.moved += 1
            read = None
        if response is not None and sampled.bready:
            response = None
        self.port.progress()
        if read is None and not stalls():
            read = bridge.read_beat()
        if response is None and not stalls():
            response = bridge.write_response()
        self.driven = Driven(
            bridge.can_read and not stalls(),
            bridge.can_write and not stalls(),
            bridge.can_data and not stalls(),
            read,
            response,
        )
        return self.driven
