"""One program's connection to the NIC process, and eventfds that programs share with it."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket

from rnic.device.uar import Uar
from rnic.mem.order import fence
from rnic.nic_process.bypass_slot import BypassSlot
from rnic.nic_process.client_memory import CopiedMemory, ProgramMemory
from rnic.nic_process.explain import Lines
from rnic.runtime.loop import Runtime
from rnic.runtime.wait import wait_readable
from rnic.spec import attach

RUNG_AT = attach.PAGE_BYTES
"""Where a window's bytes for rung doorbells begin, one for each queue block."""
NEVER_NS = -(1 << 62)
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
        """The device, or the NIC of its slot."""
        self.slot: BypassSlot | None = None
        self.device = ""
        """The device's name."""
        self.uar: Uar | None = None
        self.memory: ProgramMemory | CopiedMemory | None = None
        self.window: mmap.mmap | None = None
        self.rung_end = RUNG_AT
        self.doorbell_ns = NEVER_NS
        """When it last rang a doorbell."""
        self.vectors: dict[int, EventFd] = {}
        self.lines: Lines | None = None
        """Where its user is told why its requests fail."""
        self.added: set[str] = set()
        """Devices that it asked for."""
        self.made: list[int] = []
        """Descriptors that only the current answer carries."""

    def forget_context(self) -> None:
        """Undo what was begun for a context that could not be opened."""
        if self.runtime is not None and self.uar is not None:
            self.runtime.nic.unmap_uar(self.uar)
        self.runtime = self.slot = self.uar = self.memory = self.window = None

    def take_doorbells(self) -> bool:
        """Ring the doorbells that the program rang on its device; return whether there were any."""
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
            fence()  # clear the bytes before the registers are read, so that no later doorbell is missed
        return rung

    def flush_doorbells(self) -> None:
        """Have the device act on every doorbell rung so far, before a command is executed."""
        runtime = self.runtime
        if runtime is not None and (self.take_doorbells() or runtime.nic.resources.doorbells.rung):
            runtime.kick()


def drain(fd: int) -> None:
    """Drain an eventfd without waiting, whatever its flags say: programs hold it too, and may change them."""
    try:
        os.preadv(fd, [bytearray(_EVENTFD_BYTES)], -1, os.RWF_NOWAIT)
    except BlockingIOError:  # empty, or another thread was faster
        return
    except OSError:  # the kernel has no RWF_NOWAIT for it
        if wait_readable([fd], 0):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(fd)


class EventFd:
    """A program's eventfd; call it to signal it. It never waits, whatever the program did to its flags and count."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._poller = select.poll()
        self._poller.register(fd, select.POLLOUT)

    @classmethod
    def semaphore(cls) -> EventFd:
        """Make one that counts: each read takes one signal (``EFD_SEMAPHORE``)."""
        return cls(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE))

    def __call__(self) -> None:
        """Signal it."""
        # a full count is a signal that was not read yet
        if self._poller.poll(0):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self.fd, 1)

    def withdraw(self) -> None:
        """Withdraw one signal of a semaphore (``EFD_SEMAPHORE``), unless it has been read."""
        drain(self.fd)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def close_all(fds: list[int]) -> None:
    """Close descriptors and empty their list, which takes no memory."""
    while fds:
        os.close(fds.pop())


__all__ = ["RUNG_AT", "Client", "EventFd", "close_all", "drain"]
