"""One program's connection to the NIC process, and eventfds that programs share with it."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
from typing import TYPE_CHECKING

from rnic.device.uar import Uar
from rnic.mem.order import fence
from rnic.nic_process.bypass_slot import BypassSlot
from rnic.nic_process.client_memory import CopiedMemory, ProgramMemory
from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.explain import Lines
from rnic.runtime.loop import Runtime
from rnic.runtime.wait import wait_readable
from rnic.spec import attach

if TYPE_CHECKING:
    from rnic.nic_process.live_capture import LiveCapture

RUNG_AT = attach.PAGE_BYTES
"""Offset in a window of the bytes that note rung doorbells, one for each queue block."""
NEVER_NS = -(1 << 62)
_EVENTFD_BYTES = 8


class Client:
    """One connection, and the context opened on it.

    Args:
        sock: the connection.
        pid: the program.
        refusal: errno and words that answer the HELLO of a program that connects while the process is full.
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
        """Time of its last doorbell."""
        self.vectors: dict[int, EventFd] = {}
        self.lines: Lines | None = None
        """Lines that tell the program's user why its requests fail."""
        self.added: set[str] = set()
        """Names of devices that the program asked for."""
        self.capture: LiveCapture | None = None
        """Its live capture, if any."""
        self.made: list[Descriptor] = []
        """Descriptors that only the current answer carries."""

    def new_descriptor(self) -> Descriptor:
        """Return a holder for a descriptor that only the current answer carries: it is closed after that."""
        made = Descriptor()
        self.made.append(made)
        return made

    def forget_context(self) -> None:
        """Undo the setup of a context that could not be opened."""
        if self.runtime is not None and self.uar is not None:
            self.runtime.nic.unmap_uar(self.uar)
        self.release()

    def release(self) -> None:
        """Drop all references, so that whatever still holds the client keeps no memory alive."""
        self.runtime = self.slot = self.uar = self.memory = self.window = self.lines = None
        self.vectors = {}

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
        """Have the device handle every doorbell rung so far, before a command is executed."""
        runtime = self.runtime
        if runtime is not None and (self.take_doorbells() or runtime.nic.resources.doorbells.rung):
            runtime.kick()


def drain(fd: int) -> None:
    """Drain an eventfd without blocking, whatever its flags: programs hold it too, and may change them."""
    try:
        os.preadv(fd, [bytearray(_EVENTFD_BYTES)], -1, os.RWF_NOWAIT)
    except BlockingIOError:  # empty, or another thread was faster
        return
    except OSError:  # the kernel has no RWF_NOWAIT for it
        if wait_readable([fd], 0):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(fd)


class EventFd:
    """A program's eventfd; calling it signals it. It never blocks, whatever the program did to its flags and count.

    Args:
        flags: further flags of eventfd(2).
    """

    def __init__(self, flags: int = 0) -> None:
        self._owned = Descriptor()
        self._poller = select.poll()
        self._owned.number = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | flags)
        self._poller.register(self.fd, select.POLLOUT)

    @property
    def fd(self) -> int:
        """The descriptor."""
        return self._owned.number

    @classmethod
    def semaphore(cls) -> EventFd:
        """Make one that counts: each read takes one signal (``EFD_SEMAPHORE``)."""
        return cls(os.EFD_SEMAPHORE)

    def __call__(self) -> None:
        """Signal it."""
        # a full counter means that a signal is still unread
        if self._poller.poll(0):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self.fd, 1)

    def withdraw(self) -> None:
        """Withdraw one signal of a semaphore (``EFD_SEMAPHORE``), unless it has been read."""
        drain(self.fd)

    def close(self) -> None:
        """Close the descriptor."""
        self._owned.close()


def close_all(fds: list[int]) -> None:
    """Close descriptors and empty their list."""
    try:
        _close_each(fds)
    except MemoryError:
        _close_each(fds)  # there may be memory again


def _close_each(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


__all__ = ["RUNG_AT", "Client", "EventFd", "close_all", "drain"]
