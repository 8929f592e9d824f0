"""Live capture: programs read a device's packets as they pass, as ``rnic extcap`` does for Wireshark.

A device that records to a file (``--capture``) gives readers the same packets. This process records any other device
while there are readers. Meanwhile programs that run the data path themselves pass their packets through rings
(:mod:`rnic.nic_process.capture_rings`). A slow reader misses packets; nothing waits for it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import BinaryIO, cast

from rnic.link.base import Link
from rnic.link.recorder import Recorder
from rnic.link.recording import Recording
from rnic.nic_process.bypass_programs import BypassPrograms, recorder_of
from rnic.nic_process.descriptor import Descriptor
from rnic.runtime.loop import Runtime
from rnic.trace.counters import Counters

MAX_READERS = 8
"""Most readers of one device."""
_RULE = "CAPTURE brings one end of a pair of SOCK_STREAM sockets of AF_UNIX, and nothing else"
_SEND_BUFFER = 1 << 20
"""Bytes buffered in a socket for a slow reader, as far as the kernel allows."""


def _nothing() -> None:
    """Do nothing."""


class _Stream:
    """One end of a socket pair, as a file whose writes never block, unlike those to a pipe."""

    def __init__(self, fd: int) -> None:
        copied = Descriptor()
        copied.number = os.dup(fd)
        try:
            self.sock = socket.socket(fileno=copied.number)
        except OSError:
            raise OSError(errno.EINVAL, _RULE) from None
        copied.detach()
        if (self.sock.family, self.sock.type & 0xF) != (socket.AF_UNIX, socket.SOCK_STREAM):
            self.sock.close()
            raise OSError(errno.EINVAL, _RULE)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def write(self, data: bytes) -> int | None:
        """Send as much as fits, and return the number of bytes; ``None`` if nothing fits."""
        try:
            # the program has the same file, and may make it blocking
            return self.sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return None

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


class LiveCapture:
    """Write a device's packets to one program.

    Args:
        fd: one end of a pair of SOCK_STREAM sockets; stays the caller's.
        ended: called once when the reader or the device is gone.

    Raises:
        OSError: EINVAL: it is not such a socket. EPIPE: the other end is closed.
    """

    def __init__(self, fd: int, ended: Callable[[], object]) -> None:
        stream = _Stream(fd)
        self._sock = stream.sock
        self._ended: Callable[[], object] = _nothing
        self.leave: Callable[[], object] = _nothing
        """Removes it from its device."""
        self.drain: Callable[[], object] = _nothing
        """Writes the packets that programs of its device have passed so far."""
        self.recording = Recording(cast("BinaryIO", stream), Counters(), ended=lambda error: self.end())
        if not self.recording.active:
            self._sock.close()
            raise OSError(errno.EPIPE, "nothing reads this: keep the other end of the pair open until the capture ends")
        self._ended = ended

    def end(self) -> None:
        """Stop getting packets, and report it; :meth:`close` must still be called."""
        leave, self.leave = self.leave, _nothing
        leave()
        ended, self._ended = self._ended, _nothing
        ended()

    def close(self) -> None:
        """Write the file's end, and close it; a second call does nothing."""
        if self._sock.fileno() >= 0:
            self._ended = _nothing
            leave, self.leave = self.leave, _nothing
            with ExitStack() as last:  # run all of this, whatever fails
                last.callback(self._sock.close)
                last.callback(self.recording.finish)
                last.callback(leave)
                self.drain()


class CaptureReaders:
    """The readers of one device.

    Args:
        main: the device.
        bypass: its programs that run the data path themselves.
    """

    def __init__(self, main: Runtime, bypass: BypassPrograms) -> None:
        self._main = main
        self._bypass = bypass
        self._readers: list[LiveCapture] = []
        self._inserted: Recorder | None = None
        """Recorder of a device that does not record by itself."""

    def check_room(self) -> None:
        """Raise OSError (EUSERS) if there are too many readers."""
        if len(self._readers) >= MAX_READERS:
            raise OSError(errno.EUSERS, f"{MAX_READERS} programs read this device's packets already: end one")

    def add(self, reader: LiveCapture) -> None:
        """Start sending all packets to a reader."""
        recording = self._bypass.recording

        def leave() -> None:
            if reader.recording in recording.followers:
                recording.followers.remove(reader.recording)
            if reader in self._readers:
                self._readers.remove(reader)
            if not self._readers:
                self._take_out()
            self._bypass.captures.update()

        reader.leave, reader.drain = leave, self._drain
        if recorder_of(self._main.link) is None:
            self._insert()
        self._drain()
        self._readers.append(reader)
        recording.followers.append(reader.recording)
        self._bypass.captures.update()

    def _drain(self) -> None:
        """Write the packets that programs have passed so far."""
        self._bypass.captures.drain()

    def _insert(self) -> None:
        def record(link: Link) -> Recorder:
            return Recorder(link, self._bypass.recording)

        self._inserted = cast("Recorder", self._main.insert(record))
        self._main.on_idents = self._inserted.received

    def _take_out(self) -> None:
        """Remove the recorder after the last reader has left."""
        inserted, self._inserted = self._inserted, None
        if inserted is not None:
            self._main.take_out(inserted)
            self._main.on_idents = None

    def close(self) -> None:
        """End all captures together with the device."""
        with ExitStack() as last:  # run all of this, whatever fails
            for reader in tuple(self._readers):
                last.callback(reader.close)
                last.callback(reader.end)
            self._drain()


__all__ = ["MAX_READERS", "CaptureReaders", "LiveCapture"]
