"""Sources of frames for ``rnic check``: files, files that grow, standard input, network interfaces."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO, cast

from rnic.cli.check_gzip import DAMAGED_GZIP, decompressed
from rnic.link.pcap import CapturedPacket, CaptureError, read_capture
from rnic.wire.dissect import LINKTYPE_ETHERNET, LINKTYPE_RAW

_POLL_S = 0.2
"""Seconds between two checks of a growing file."""
_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_STATISTICS = struct.Struct("II")
_BIGGEST = 1 << 17
_BUFFER = 1 << 24
_OUTGOING = 4
_LOOPBACK = 772
"""ARPHRD_LOOPBACK: each frame is seen twice, when it is sent and when it arrives."""
_LINKTYPES = {1: LINKTYPE_ETHERNET, _LOOPBACK: LINKTYPE_ETHERNET, 512: LINKTYPE_RAW, 65_534: LINKTYPE_RAW}
"""Link type of frames by kind of interface: Ethernet, loopback, PPP, and no link header (tun, WireGuard)."""


class _Growing(io.RawIOBase):
    """A file that another program is still writing: a read at its end waits for more."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readable(self) -> bool:
        """Return true, for :class:`io.BufferedReader`."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the base takes any buffer
        """Wait until there is data, and read it."""
        while not (data := self._file.read(len(buffer))):
            time.sleep(_POLL_S)
        buffer[: len(data)] = data
        return len(data)


@contextlib.contextmanager
def opened(name: str, follow: bool = False) -> Iterator[BinaryIO]:
    """Open a capture file, decompressing gzip; ``-`` is standard input.

    Args:
        name: path.
        follow: at its end, wait for more data.

    Raises:
        CaptureError: it cannot be opened.
    """
    try:
        raw = sys.stdin.buffer if name == "-" else open(name, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise CaptureError(f"{name}: cannot be opened: {error.strerror}") from None
    with raw:
        if follow:
            yield cast("BinaryIO", io.BufferedReader(_Growing(raw), 1 << 16))
        else:
            with decompressed(cast("io.BufferedReader", raw)) as file:
                yield file


def read_again(name: str) -> Iterator[CapturedPacket]:
    """Yield the packets of a file, as far as they can be read."""
    with contextlib.suppress(CaptureError, *DAMAGED_GZIP), opened(name) as file:
        yield from read_capture(file, name)


def is_interface(name: str) -> bool:
    """Return whether ``name`` is a network interface and not a file."""
    return not os.path.exists(name) and any(name == each for _, each in socket.if_nameindex())


def read_interface(name: str) -> Iterator[CapturedPacket]:
    """Yield the frames that an interface sends and receives, without end.

    At the end, report on standard error how many frames the kernel dropped, if any.

    Raises:
        CaptureError: capturing is not permitted, the link type is not supported, or the interface goes down.
    """
    listener = _listener(name)
    with listener:
        linktype = _linktype(name, listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        listener.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        try:
            while True:
                try:
                    data, notes, _, (_, _, direction, kind, *_) = listener.recvmsg(_BIGGEST, 256)
                except OSError as error:
                    raise CaptureError(f"{name}: cannot be listened to any more: {error.strerror}") from None
                if kind == _LOOPBACK and direction == _OUTGOING:
                    continue
                stamp = next((note for level, what, note in notes if what == _SO_TIMESTAMPNS), b"")
                seconds, rest = _TIMESPEC.unpack(stamp) if len(stamp) == _TIMESPEC.size else (0, time.time_ns())
                yield CapturedPacket(seconds * 1_000_000_000 + rest, linktype, data, len(data))
        finally:
            _, lost = _STATISTICS.unpack(listener.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size))
            if lost:
                print(f"rnic check: {name}: the kernel had no room for {lost} frames", file=sys.stderr)


def _listener(name: str) -> socket.socket:
    """Return a packet socket on an interface."""
    listener = None
    try:
        listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        listener.bind((name, _ETH_P_ALL))
    except OSError as error:
        if listener is not None:
            listener.close()
        detail = f"cannot be listened to: {error.strerror}; that needs CAP_NET_RAW (root)"
        raise CaptureError(f"{name}: {detail}") from None
    return listener


def _linktype(name: str, listener: socket.socket) -> int:
    """Return the link type of an interface's frames."""
    kind = listener.getsockname()[3]
    linktype = _LINKTYPES.get(kind)
    if linktype is None:
        detail = f"an interface of type {kind}; Ethernet, lo, PPP and interfaces of bare IP can be followed"
        raise CaptureError(f"{name}: {detail}")
    return linktype


class Progress:
    """Show how far a file is read, in one temporary line on a terminal."""

    EVERY = 4_096
    """Frames between two checks of the clock."""
    _SHOWN_S = 0.5

    def __init__(self, name: str) -> None:
        self._size = os.path.getsize(name) if os.path.isfile(name) else 0
        self._on = sys.stderr.isatty() and self._size > 0
        self._began = self._next = time.monotonic()
        self._next += self._SHOWN_S
        self._visible = False

    def step(self, file: BinaryIO, frames: int) -> None:
        """Show the progress if an update is due."""
        now = time.monotonic()
        if not self._on or now < self._next:
            return
        self._next = now + self._SHOWN_S
        raw = getattr(file, "fileobj", file)  # for gzip, the position in the compressed file
        share = 100 * cast("BinaryIO", raw).tell() // self._size
        rate = frames / (now - self._began)
        sys.stderr.write(f"\r\x1b[K{share:3} %  {frames:,} frames  {rate:,.0f} frames/s")
        sys.stderr.flush()
        self._visible = True

    def clear(self) -> None:
        """Clear the progress line, to make room for output."""
        if self._visible:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._visible = False
