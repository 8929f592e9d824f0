"""Simulator-independent model of an Ethernet MAC and its cable, between the streams of two engines.

It takes beats at line rate and allows no gap inside a frame. It stores a received frame until its FCS is checked, then
delivers a beat in each cycle, without backpressure. On the cable, a frame of at least 60 bytes has 8 bytes of preamble
before it, and 4 of FCS and 12 of gap after it (IEEE 802.3 4.2).
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rnic.gateware.axi_model import BusError

PREAMBLE_BYTES, SHORTEST_BYTES, FCS_BYTES, GAP_BYTES = 8, 60, 4, 12
BUFFER_BEATS = 4
"""Beats that the MAC buffers ahead of the line."""


class Beat(NamedTuple):
    """A beat of either stream; ``bad`` is valid with ``last``."""

    data: bytes
    last: bool
    bad: bool


Harm = Callable[[bytes], bytes | None]
"""A frame after the cable: changed bytes, or ``None`` if it is lost."""


def line_bytes(frame_bytes: int) -> int:
    """Return the line time of a frame, in bytes."""
    return PREAMBLE_BYTES + max(frame_bytes, SHORTEST_BYTES) + FCS_BYTES + GAP_BYTES


class Mac:
    """One MAC of ``lanes`` bytes per beat, with a line of ``rate`` bytes per cycle of the engine's clock.

    ``tx_ready`` and ``rx`` are its outputs until the next :meth:`edge`.

    Raises:
        ValueError: the line is faster than the stream.
    """

    def __init__(self, lanes: int, rate: float) -> None:
        if not 0 < rate <= lanes:
            raise ValueError(f"a line of {rate} bytes in each cycle: above 0, at most the stream's {lanes}")
        self.lanes = lanes
        self.rate = rate
        self.peer: Mac | None = None
        self.harm: Harm = lambda frame: frame
        self.tx_ready = False
        self.rx: Beat | None = None
        self.frames: list[bytes] = []
        """Frames sent on the line, without padding and FCS."""
        self.lost = 0
        """Number of these that did not reach the peer."""
        self.line_bits = 0
        """Bits that the line has carried: preambles, padding, FCS and gaps too."""
        self.moved = 0
        """Beats of both streams."""
        self._held: deque[Beat] = deque()
        self._to_come: deque[Beat] = deque()
        self._budget = 0.0
        self._frame: bytearray | None = None
        self._left = 0
        """Bytes that keep the line busy before it needs more of the frame."""

    def edge(self, shown: Beat | None, rx_ready: bool) -> None:
        """Process a rising edge: the engine's transmit beat, and whether it took the received one.

        Raises:
            BusError: the engine left a gap inside a frame, or made the MAC wait.
        """
        if self.rx is not None:
            if not rx_ready:
                raise BusError("the engine did not take a received beat: a MAC does not wait")
            self.moved += 1
        if shown is not None and self.tx_ready:
            self._held.append(shown)
            self.moved += 1
        self._run_line()
        self.rx = self._to_come.popleft() if self._to_come else None
        self.tx_ready = len(self._held) < BUFFER_BEATS

    def busy(self) -> bool:
        """True if anything is in flight, in either direction."""
        return bool(self._held or self._to_come or self._frame is not None or self._left)

    def receive(self, frame: bytes, fcs: int) -> None:
        """Take a frame at the end of the cable."""
        bad = zlib.crc32(frame) != fcs
        parts = [frame[at : at + self.lanes] for at in range(0, len(frame), self.lanes)]
        self._to_come.extend(Beat(part, number == len(parts), bad) for number, part in enumerate(parts, 1))

    def _run_line(self) -> None:
        self._budget += self.rate
        while True:
            step = min(int(self._budget), self._left)
            self._left -= step
            self._budget -= step
            if self._left or self._budget < 1:
                return
            if not self._held:
                if self._frame is not None:
                    raise BusError(f"a gap inside a frame, behind {len(self._frame)} bytes: the line goes on")
                self._budget = 0.0  # an idle line accumulates no credit
                return
            if self._frame is None:
                self._frame, self._left = bytearray(), PREAMBLE_BYTES
                continue
            beat = self._held.popleft()
            self._frame += beat.data
            self._left = len(beat.data)
            if beat.last:
                self._left += line_bytes(len(self._frame)) - PREAMBLE_BYTES - len(self._frame)
                self._end(bytes(self._frame), beat.bad)
                self._frame = None

    def _end(self, frame: bytes, bad: bool) -> None:
        self.frames.append(frame)
        self.line_bits += 8 * line_bytes(len(frame))
        whole = frame.ljust(SHORTEST_BYTES, b"\0")
        fcs = zlib.crc32(whole) ^ bad  # a frame that the engine marks bad is sent with a wrong FCS
        arrived = self.harm(whole)
        if arrived is None:
            self.lost += 1
        elif self.peer is not None:
            self.peer.receive(arrived, fcs)
