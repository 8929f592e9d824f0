"""The non-RDMA channel (004 7.6 "NONR"): non-RDMA packets from and to the host's network stack."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from rnic.device.mailboxes import NON_RDMA_BYTES, NON_RDMA_HEADER
from rnic.device.refusal import Refused
from rnic.spec import commands as cmd
from rnic.spec.drops import DropReason
from rnic.trace.counters import Counters
from rnic.wire.datagram import parse_ip

if TYPE_CHECKING:
    from rnic.device.commands import Answer
    from rnic.device.host import CommandHost
    from rnic.device.uar import Uar

MAX_FRAMES = 256
MAX_BYTES = 1 << 20
SendFrame = Callable[[bytes, bytes], bool]
"""Function that sends a whole packet to an IP address and returns whether it was sent."""
_IPV4_BYTES, _IPV6_BYTES = 20, 40


class Frame(NamedTuple):
    """One received frame, with its arrival time in nanoseconds by the device's clock."""

    now_ns: int
    data: bytes


class NonRdmaChannel:
    """A queue of frames, bounded in number and bytes; frames that do not fit are counted and dropped.

    ``fed`` is true if the link carries whole packets. A UDP socket only delivers RDMA packets, so the channel then
    reports that it is not supported instead of staying empty forever. ``send`` transmits frames; ``None`` if the link
    cannot.

    Counters: ``non_rdma_frames``, ``non_rdma_bytes``, ``drop_non_rdma_full``; ``non_rdma_frames_sent``,
    ``non_rdma_bytes_sent``, ``drop_non_rdma_tx``.
    """

    __slots__ = ("_bytes", "_counters", "_frames", "_max_bytes", "_max_frames", "fed", "send")

    def __init__(self, counters: Counters, max_frames: int = MAX_FRAMES, max_bytes: int = MAX_BYTES) -> None:
        self._counters = counters
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self.fed = True
        self.send: SendFrame | None = None
        self._max_frames = max_frames
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        """Return the number of waiting frames."""
        return len(self._frames)

    def put(self, data: bytes | bytearray | memoryview, now_ns: int) -> bool:
        """Queue a copy of a frame. Return false and count it if there is no room."""
        size = len(data)
        if len(self._frames) >= self._max_frames or self._bytes + size > self._max_bytes:
            self._counters.bump("drop_non_rdma_full")
            return False
        self._frames.append(Frame(now_ns, bytes(data)))
        self._bytes += size
        self._counters.bump("non_rdma_frames")
        self._counters.bump("non_rdma_bytes", size)
        return True

    def put_out(self, to: bytes, frame: bytes) -> None:
        """Send a frame, or count a drop."""
        if self.send is not None and self.send(to, frame):
            self._counters.bump("non_rdma_frames_sent")
            self._counters.bump("non_rdma_bytes_sent", len(frame))
        else:
            self._counters.bump("drop_non_rdma_tx")

    def get(self) -> Frame | None:
        """Return the oldest frame, or ``None``."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._bytes -= len(frame.data)
        return frame

    def oldest(self) -> Frame | None:
        """Return the oldest frame without removing it; ``None`` if there is none."""
        return self._frames[0] if self._frames else None

    def clear(self) -> None:
        """Remove all frames."""
        self._frames.clear()
        self._bytes = 0


def read_non_rdma(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Return the oldest frame from byte ``in_modifier`` on; ``op_modifier`` 1 then removes it.

    BAD_OP if the link delivers no such frames, BAD_SIZE beyond the frame's end, BAD_PARAM for another modifier.
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


def destination(frame: bytes) -> bytes | None:
    """Return the destination of a whole IP packet, or ``None`` for another frame: its size must match its length
    field."""
    size = len(frame)
    if size >= _IPV4_BYTES and frame[0] >> 4 == 4 and int.from_bytes(frame[2:4]) == size:
        return frame[16:20]
    if size >= _IPV6_BYTES and frame[0] >> 4 == 6 and int.from_bytes(frame[4:6]) + _IPV6_BYTES == size:
        return frame[24:40]
    return None


def write_non_rdma(nic: CommandHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Send the inbox, a whole packet from its IP header on, bypassing the queue pairs.

    BAD_OP if the link cannot send it, BAD_SYS_STATE while the device sends nothing, BAD_PARAM unless it is an IP packet
    of the port's version, or for RDMA, which only queue pairs may send.
    """
    if nic.non_rdma.send is None:
        raise Refused(cmd.ST_BAD_OP)
    if nic.held:
        raise Refused(cmd.ST_BAD_SYS_STATE)
    frame = bytes(inbox)
    to = destination(frame)
    if to is None or len(to) != len(nic.config.address):
        raise Refused(cmd.ST_BAD_PARAM)
    if not isinstance(parse_ip(memoryview(frame), nic.config.port), DropReason):
        raise Refused(cmd.ST_BAD_PARAM)
    nic.non_rdma.put_out(to, frame)
    return 0, b""
