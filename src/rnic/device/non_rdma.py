"""The non-RDMA channel (004 7.6 "NONR"): what arrives on the port and is not RDMA, for the host's own stack to take."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from rnic.trace.counters import Counters

MAX_FRAMES = 256
MAX_BYTES = 1 << 20


class Frame(NamedTuple):
    """One frame as it arrived, with the device's time of arrival in nanoseconds."""

    now_ns: int
    data: bytes


class NonRdmaChannel:
    """A queue of frames, bounded in number and in bytes: a frame that finds no room is counted and forgotten.

    Counters: ``non_rdma_frames``, ``non_rdma_bytes``, ``drop_non_rdma_full``.
    """

    __slots__ = ("_bytes", "_counters", "_frames", "_max_bytes", "_max_frames")

    def __init__(self, counters: Counters, max_frames: int = MAX_FRAMES, max_bytes: int = MAX_BYTES) -> None:
        self._counters = counters
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._max_frames = max_frames
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        """Frames that wait."""
        return len(self._frames)

    def put(self, data: bytes | bytearray | memoryview, now_ns: int) -> bool:
        """Queue a copy of a frame; false, and counted, where there is no room."""
        size = len(data)
        if len(self._frames) >= self._max_frames or self._bytes + size > self._max_bytes:
            self._counters.bump("drop_non_rdma_full")
            return False
        self._frames.append(Frame(now_ns, bytes(data)))
        self._bytes += size
        self._counters.bump("non_rdma_frames")
        self._counters.bump("non_rdma_bytes", size)
        return True

    def get(self) -> Frame | None:
        """The oldest frame, or ``None``."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._bytes -= len(frame.data)
        return frame

    def clear(self) -> None:
        """Forget every frame."""
        self._frames.clear()
        self._bytes = 0
