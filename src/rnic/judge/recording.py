"""Undo a capture tool's changes to source ports, and hold frames until the ports are known.

A random wrong ICRC fits a given other source port with a probability of 2^-16. So frames are held from the first such
packet on, until three packets of the flow with different PSNs agree on the port or too many frames are held.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

AGREE = 3
"""Number of packets with different PSNs that prove a source port."""
MAX_HELD = 4_096
MAX_HELD_BYTES = 1 << 24
"""Most frames to hold, and most bytes of them."""
MAX_FLOWS = 1 << 16
_MAX_CANDIDATES = 8
_MAX_CHANGES = 16
"""Most changes of one flow's port that are accepted."""


class HeldFrame(NamedTuple):
    """The arguments of :meth:`rnic.judge.Judge.frame`, and the frame's number."""

    number: int
    time_ns: int
    linktype: int
    data: bytes
    length: int


class SourcePorts:
    """Evidence for source ports from ICRCs, by flow."""

    def __init__(self) -> None:
        self._seen: dict[bytes, dict[int, set[int]]] = {}
        self._changes: dict[bytes, int] = {}
        self._written: set[int] = set()
        """Ports that the capture tool is known to write in place of others; for them one packet of a flow is enough."""

    def agree(self, flow: bytes, captured: int, port: int, psn: int) -> bool:
        """Note that a packet's ICRC fits ``port``; return whether that port is proved now.

        Args:
            flow: key of the flow.
            captured: the source port in the capture.
            port: the one with which the ICRC is correct.
            psn: the packet's.
        """
        if self._changes.get(flow, 0) >= _MAX_CHANGES:
            return False
        if captured not in self._written:
            if len(self._seen) >= MAX_FLOWS:
                self._seen.clear()
            ports = self._seen.setdefault(flow, {})
            if len(ports) >= _MAX_CANDIDATES and port not in ports:
                ports.clear()
            psns = ports.setdefault(port, set())
            psns.add(psn)
            if len(psns) < AGREE:
                return False
            del self._seen[flow]
            self._written.add(captured)
        return True

    def changed(self, flow: bytes) -> None:
        """Use the proved port from now on."""
        if len(self._changes) >= MAX_FLOWS:
            self._changes.clear()
        self._changes[flow] = self._changes.get(flow, 0) + 1


class Hold:
    """Frames held until the source ports of their flows are known."""

    def __init__(self) -> None:
        self.ports = SourcePorts()
        self.active = False
        self.closed = False
        """True once the capture has ended: nothing is held anymore."""
        self._frames: deque[HeldFrame] = deque()
        self._bytes = 0
        self._pending: set[bytes] = set()
        self._refused: set[bytes] = set()

    def begin(self, flow: bytes, frame: HeldFrame) -> bool:
        """Hold a frame of a flow whose port is not proved yet, and all frames after it; return false to hold none."""
        if self.closed or flow in self._refused:
            return False
        self.active = True
        self._pending.add(flow)
        self.add(frame)
        return True

    def add(self, frame: HeldFrame) -> None:
        """Hold one more frame."""
        self._frames.append(frame)
        self._bytes += len(frame.data)

    def doubt(self, flow: bytes) -> None:
        """Count a held frame whose wrong ICRC fits another port, which is not proved yet."""
        if flow not in self._refused:
            self._pending.add(flow)

    def decide(self, flow: bytes, proved: bool) -> None:
        """End the wait of a flow: another port is proved, or the captured one is correct."""
        self._pending.discard(flow)
        if not proved:
            self._refuse(flow)

    @property
    def over(self) -> bool:
        """True once no flow needs to wait anymore."""
        return not self._pending or len(self._frames) >= MAX_HELD or self._bytes >= MAX_HELD_BYTES

    def release(self) -> deque[HeldFrame]:
        """Return the held frames; flows without a proved port are not held again."""
        for flow in self._pending:
            self._refuse(flow)
        self._pending.clear()
        frames, self._frames = self._frames, deque()
        self._bytes = 0
        self.active = False
        return frames

    def _refuse(self, flow: bytes) -> None:
        if len(self._refused) >= MAX_FLOWS:
            self._refused.clear()
        self._refused.add(flow)
