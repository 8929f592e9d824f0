"""A bridge at the pins of an AXI4 bus, cycle by cycle, for any simulator.

The simulator's side samples the master's signals at the rising edge, passes them in, and drives the returned signals.
So READY and response signals behave like registers. Handshake violations of the master (a payload changed while VALID
waits for READY) are not detected here but by the simulator's models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rnic.paxi.axi import Address, ReadBeat, WriteBeat, WriteResponse
from rnic.paxi.port import Carrier


class Sampled(NamedTuple):
    """The master's signals at one rising edge; ``None`` if VALID is low."""

    ar: Address | None
    aw: Address | None
    w: WriteBeat | None
    rready: bool
    bready: bool


class Driven(NamedTuple):
    """Signals that the slave drives from one edge to the next; ``None`` if VALID is low."""

    arready: bool
    awready: bool
    wready: bool
    r: ReadBeat | None
    b: WriteResponse | None


class PinSlave:
    """The slave side of the bus.

    Args:
        port: the bridge and its remote; this must be its only master.
        stalls: called once for each channel and cycle; true stalls that channel. By default none stalls.
    """

    def __init__(self, port: Carrier, stalls: Callable[[], bool] | None = None) -> None:
        self.port = port
        self.stalls = stalls or (lambda: False)
        self.driven = Driven(False, False, False, None, None)
        self.cycles = 0
        self.moved = 0
        """Number of beats of R and W transferred."""

    def cycle(self, sampled: Sampled) -> Driven:
        """Process one rising edge: take transfers, and return the signals to drive after it."""
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
