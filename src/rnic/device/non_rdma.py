"""The non-RDMA channel (004 7.6 "NONR"): what arrives on the port and is not RDMA, for the host's own stack to take."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from rnic.device.mailboxes import NON_RDMA_BYTES, NON_RDMA_HEADER
from rnic.device.refusal import Refused
from rnic.spec import commands as cmd
from rnic.trace.counters import Counters

if TYPE_CHECKING:
    from rnic.device.commands import Answer
    from rnic.device.host import CommandHost
    from rnic.device.uar import Uar

MAX_FRAMES = 256
MAX_BYTES = 1 << 20


class Frame(NamedTuple):
    """One frame as it arrived, with the device's time of arrival in nanoseconds."""

    now_ns: int
    data: bytes


class NonRdmaChannel:
    """A queue of frames, bounded in number and in bytes: a frame that finds no room is counted and forgotten.

    ``fed`` is whether the link carries whole packets; a UDP socket gives none but RDMA's, so there the channel says
    that it cannot serve instead of staying empty for ever.

    Counters: ``non_rdma_frames``, ``non_rdma_bytes``, ``drop_non_rdma_full``.
    """

    __slots__ = ("_bytes", "_counters", "_frames", "_max_bytes", "_max_frames", "fed")

    def __init__(self, counters: Counters, max_frames: int = MAX_FRAMES, max_bytes: int = MAX_BYTES) -> None:
        self._counters = counters
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self.fed = True
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

    def oldest(self) -> Frame | None:
        """The oldest frame, which stays; ``None`` if there is none."""
        return self._frames[0] if self._frames else None

    def clear(self) -> None:
        """Forget every frame."""
        self._frames.clear()
        self._bytes = 0


def read_non_rdma(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Show the oldest frame from byte ``in_modifier`` on; ``op_modifier`` 1 then takes it away.

    BAD_OP where the link brings no such frames, BAD_SIZE beyond the frame's end, BAD_PARAM for another modifier.
    """
    if not nic.non_rdma.fed:
        raise Refused(cmd.ST_BAD_OP)
    if op_modifier > 1:
        raise Refused(cmd.ST_BAD_PARAM)
    channel = nic.non_rdma
    frame = channel.oldest()
    if in_modifier > (0 if frame is None else len(frame.data)):
        raise Refused(cmd.ST_BAD_SIZE)
    head, part = {"waiting": len(channel)}, b""
    if frame is not None:
        head |= {"arrival_ns": frame.now_ns, "length": len(frame.data)}
        part = frame.data[in_modifier : in_modifier + NON_RDMA_BYTES]
        if op_modifier:
            channel.get()
    return 0, NON_RDMA_HEADER.pack(head) + part.ljust(NON_RDMA_BYTES, b"\0")
