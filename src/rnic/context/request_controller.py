"""request_controller: selects the channel that key_qpc_data serves next, the CEU first, then each engine (002 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rnic.context.fifo import Fifo

VALID: Final = 1 << 7


class RequestController:
    """Selects one of the seven request FIFOs.

    Args:
        fifos: channel 0 the CEU's, 1 to 6 the engine's (doorbell, WQE parser, RTC, RRC, EE, frame encap).
    """

    __slots__ = ("_fifos", "_last", "selected_channel")

    def __init__(self, fifos: Sequence[Fifo[tuple[bytes, bytes]]]) -> None:
        self._fifos = fifos
        self._last = len(fifos) - 1
        self.selected_channel = 0
        """One channel bit and the valid bit, 7; see :data:`rnic.context.messages.SELECTED_CHANNEL`."""

    def select(self) -> int:
        """Select a channel unless one is selected; return its number, or -1 if all FIFOs are empty."""
        if self.selected_channel & VALID:
            return (self.selected_channel & 0x7F).bit_length() - 1
        fifos = self._fifos
        if fifos[0]:
            self.selected_channel = VALID | 1
            return 0
        channel = self._last
        engines = len(fifos) - 1
        for _ in range(engines):
            channel = channel + 1 if channel < engines else 1
            if fifos[channel]:
                self._last = channel
                self.selected_channel = VALID | 1 << channel
                return channel
        return -1

    def receive_req(self) -> None:
        """Clear the valid bit: key_qpc_data has taken the request."""
        self.selected_channel &= ~VALID
