"""What verbs needs of a device, wherever it is: commands, queue blocks, memory, interrupts, a turn of work.

:class:`LocalDriver` serves a device in this process; :class:`rnic.runtime.remote.RemoteDriver` one in the user's
NIC process. Nothing in verbs reaches further than this.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from rnic.device.commands import CommandResult
from rnic.mem.space import AddressSpace, Mapping
from rnic.runtime.loop import Runtime
from rnic.runtime.wait import wait_readable
from rnic.spec import commands as cmd

_live: WeakSet[LocalDriver] = WeakSet()


class Driver(Protocol):
    """One opened device. ``store``, ``load``, ``kick`` and ``progress`` are the data path.

    Methods that reach a NIC process raise ``VerbsError`` (``ENODEV``) once that has ended.
    """

    space: AddressSpace
    """This program's memory as far as it is registered."""
    name: str
    address: bytes
    """The NIC's IP address, 4 or 16 bytes."""
    port: int
    """UDP port that the NIC receives on."""

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """Held around several commands that belong together; may be taken again by its holder."""

    @property
    def kick(self) -> Callable[[], None]:
        """After a doorbell: have the NIC send at once what it has to send."""

    @property
    def progress(self) -> Callable[[], bool]:
        """Nothing to poll: let the NIC work, or wait a moment for it. True if something happened."""

    @property
    def store(self) -> Callable[[int, int, int], None]:
        """``store(block, register, value)``: a register of a queue block, and the doorbell where it is one."""

    @property
    def load(self) -> Callable[[int, int], int]:
        """``load(block, register)``."""

    @property
    def start(self) -> Callable[[], None]:
        """Handle interrupts in a thread from now on; a second call does nothing."""

    @property
    def rest(self) -> Callable[[], None]:
        """The application stops polling."""

    @property
    def listen(self) -> Callable[[], None]:
        """The application waits for events by descriptors of its own: that it posts is no sign that it will poll."""

    @property
    def closed(self) -> bool:
        """Whether the device is closed for this context: nothing is left there to destroy."""

    @property
    def threaded(self) -> bool:
        """Whether interrupts are handled between calls."""

    def command(self, op: int, in_modifier: int, op_modifier: int, inbox: bytes) -> CommandResult:
        """Run one device command."""

    def ring(self, size: int) -> Mapping:
        """``size`` zero bytes that the device reaches as fast as it can, for a queue."""

    def map(self, buffer: object, *, writable: bool = False) -> Mapping:
        """Make a program's buffer reachable. Raises as :meth:`rnic.mem.space.AddressSpace.map`."""

    def unmap(self, mapping: Mapping) -> None:
        """Undo :meth:`ring` or :meth:`map`."""

    def on_interrupt(self, vector: int, handler: Callable[[], None], block: int) -> None:
        """Call ``handler``, which must not wait, when the event queue of ``vector`` and ``block`` may have entries."""

    def filenos(self) -> list[int]:
        """Descriptors that become readable when there may be something to do."""

    def check(self) -> None:
        """Raise ``VerbsError`` (``ENODEV``) if the device is gone."""

    def hangup_filenos(self) -> list[int]:
        """Descriptors that become readable when the device goes; :meth:`check` then raises. They may say so wrongly."""

    def await_completion(self, fileno: int) -> None:
        """Sleep until a descriptor can be read, which a completion event makes so; it may end early.

        Who runs the data path in this program does so meanwhile, and saves a thread's wake-up.
        """

    def connected(self, qpn: int) -> None:
        """A reliable connection's queue pair knows its peer."""

    def why(self, qpn: int) -> str:
        """Why something of a queue pair failed the last time (:mod:`rnic.spec.reasons`), or nothing."""

    def on_end(self, handler: Callable[[], None]) -> None:
        """Call ``handler`` once if the device goes without being closed."""

    def close(self) -> None:
        """Close the device for this context: everything that it made there is destroyed."""


class LocalDriver:
    """A device in this process, driven by callers that poll and by its own thread.

    Args:
        runtime: the device with its loop; closed with its last user.
        space: addresses of this program's memory.
    """

    def __init__(self, runtime: Runtime, space: AddressSpace | None = None) -> None:
        self.runtime = runtime
        self.nic = runtime.nic
        self.space = AddressSpace() if space is None else space
        config = runtime.nic.config
        self.name, self.address, self.port = config.name, config.address, config.port
        self.lock = runtime.lock
        self.doorbell = runtime.engine_loop
        """The runtime's compiled rounds, or ``None``."""
        loop = runtime if self.doorbell is None else self.doorbell
        self.kick = loop.kick
        self.progress = loop.progress
        self.start = runtime.start
        self.rest = runtime.rest
        self.listen = runtime.listen
        self._vectors: list[int] = []
        self._closed = False
        with runtime.lock:
            self.uar = runtime.nic.map_uar(self.space)
            runtime.users += 1
        self.registers = self.uar.buf
        """The window's queue blocks, for compiled queues."""
        self.store = self.uar.store
        self.load = self.uar.load
        _live.add(self)

    @property
    def closed(self) -> bool:
        """See :class:`Driver`."""
        return self._closed or self.uar.closed

    @property
    def threaded(self) -> bool:
        """See :class:`Driver`."""
        return self.runtime.threaded

    def command(self, op: int, in_modifier: int, op_modifier: int, inbox: bytes) -> CommandResult:
        """See :class:`Driver`."""
        with self.lock:
            if self._closed:
                return CommandResult(cmd.ST_BAD_SYS_STATE)
            return self.nic.command(self.uar, op, in_modifier, op_modifier, inbox)

    def ring(self, size: int) -> Mapping:
        """See :class:`Driver`."""
        return self.space.map(bytearray(size), writable=True)

    def map(self, buffer: object, *, writable: bool = False) -> Mapping:
        """See :class:`Driver`."""
        return self.space.map(buffer, writable=writable)

    def unmap(self, mapping: Mapping) -> None:
        """See :class:`Driver`."""
        self.space.unmap(mapping)

    def on_interrupt(self, vector: int, handler: Callable[[], None], block: int) -> None:
        """See :class:`Driver`."""
        self.runtime.handlers[vector] = handler
        self._vectors.append(vector)

    def filenos(self) -> list[int]:
        """See :class:`Driver`."""
        return self.runtime.link.filenos()

    def check(self) -> None:
        """See :class:`Driver`: this process's own device goes with this process."""

    def hangup_filenos(self) -> list[int]:
        """See :class:`Driver`."""
        return []

    def await_completion(self, fileno: int) -> None:
        """See :class:`Driver`."""
        wait_readable([fileno], None)

    def connected(self, qpn: int) -> None:
        """See :class:`Driver`."""

    def why(self, qpn: int) -> str:
        """See :class:`Driver`."""
        qp = self.runtime.nic.qps.get(qpn)
        return "" if qp is None or qp.why is None else qp.why.text

    def on_end(self, handler: Callable[[], None]) -> None:
        """See :class:`Driver`."""

    def close(self) -> None:
        """See :class:`Driver`."""
        runtime = self.runtime
        with runtime.lock:
            if self._closed:
                return
            self._closed = True
            for vector in self._vectors:
                runtime.handlers.pop(vector, None)
            self.nic.unmap_uar(self.uar)
            runtime.users -= 1
            last = runtime.users == 0
        if last:
            runtime.close()

    def forget(self) -> None:
        """This process is a child of the one that has the device: it is closed here, and nothing there is destroyed."""
        self._closed = True
        self.lock = self.runtime.lock


def _after_fork() -> None:
    """A child has its runtimes closed, with new locks (:mod:`rnic.runtime.loop`, whose turn is before this one)."""
    for driver in list(_live):
        driver.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
