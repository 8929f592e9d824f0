"""One program's connection to the NIC process, and descriptors that programs share with it."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket

from rnic.device.uar import Uar
from rnic.mem.order import fence
from rnic.nic_process.bypass_slot import Slot
from rnic.nic_process.client_memory import CopiedMemory, ProgramMemory
from rnic.runtime.loop import Runtime
from rnic.runtime.wait import wait_readable
from rnic.spec import attach

RUNG_AT = attach.PAGE_BYTES
"""Where a window's bytes for rung doorbells begin, one for each queue block."""
NEVER_RANG_NS = -(1 << 62)
_EVENTFD_BYTES = 8


class Client:
    """One connection, and the context opened on it.

    Args:
        sock: the connection.
        pid: the program.
        refusal: errno and words for a program that comes while the process is full: the answer to its HELLO.
    """

    def __init__(self, sock: socket.socket, pid: int, refusal: tuple[int, str] | None = None) -> None:
        self.sock = sock
        self.pid = pid
        self.refusal = refusal
        self.greeted = False
        self.runtime: Runtime | None = None
        """The device, or what it has of it in a slot of its own."""
        self.slot: Slot | None = None
        self.device = ""
        """The device's name."""
        self.uar: Uar | None = None
        self.memory: ProgramMemory | CopiedMemory | None = None
        self.window: mmap.mmap | None = None
        self.rung_end = RUNG_AT
        self.rang_ns = NEVER_RANG_NS
        """When it was last seen to ring a doorbell."""
        self.vectors: dict[int, Fire] = {}
        self.added: set[str] = set()
        """Devices that it asked for."""
        self.made: list[int] = []
        """Descriptors made for the answer under way alone."""

    def take_doorbells(self) -> bool:
        """Hand the doorbells that the program rang to its device; whether there were any."""
        window, runtime = self.window, self.runtime
        if window is None or runtime is None:
            return False
        resources = runtime.nic.resources
        rung = False
        at = window.find(b"\x01", RUNG_AT, self.rung_end)
        while at >= 0:
            window[at] = 0
            block = at - RUNG_AT
            queue = resources.blocks.get(block)
            if queue is not None and queue.regs.uar is self.uar:
                resources.doorbells.ring(block)
            rung = True
            at = window.find(b"\x01", at + 1, self.rung_end)
        if rung:
            fence()  # the bytes are clear before the registers are read: whoever rings from now on is heard again
        return rung

    def catch_up(self) -> None:
        """Before a command: have the device act on every doorbell rung before it, those already handed to it too."""
        runtime = self.runtime
        if runtime is not None and (self.take_doorbells() or runtime.nic.resources.doorbells.rung):
            runtime.kick()


def drain(fd: int) -> None:
    """Read an eventfd empty without waiting, whatever its flags say: programs hold it too, and may clear them."""
    try:
        os.preadv(fd, [bytearray(_EVENTFD_BYTES)], -1, os.RWF_NOWAIT)
    except BlockingIOError:  # empty, or another was faster
        return
    except OSError:  # a kernel that knows no such reads
        if wait_readable([fd], 0):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(fd)


class Fire:
    """Fires a program's eventfd, and never waits, whatever the program made of its flags and its count."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._poller = select.poll()
        self._poller.register(fd, select.POLLOUT)

    def __call__(self) -> None:
        """Wake whoever waits for it."""
        # a count that is full has fired already
        if self._poller.poll(0):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self.fd, 1)

    def take_back(self) -> None:
        """Of a descriptor that counts (``EFD_SEMAPHORE``), take one back, unless it has been read."""
        drain(self.fd)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def close_all(fds: list[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


__all__ = ["RUNG_AT", "Client", "Fire", "close_all", "drain"]
