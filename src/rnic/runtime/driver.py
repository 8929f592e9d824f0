"""Interface of a device for verbs, in any process: commands, queue blocks, memory, interrupts, progress.

:class:`LocalDriver` serves a device in this process; :class:`rnic.runtime.remote.RemoteDriver` one in the user's
NIC process. The verbs layer has no other path to a device.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from rnic.device.commands import CommandResult
from rnic.link.verbs_faults import VerbsRule
from rnic.mem.space import AddressSpace, Mapping
from rnic.runtime.loop import Runtime
from rnic.runtime.wait import wait_readable
from rnic.spec import commands as cmd
from rnic.state.arena import private_memory

_LARGE_RING = 32 << 10
"""Size in bytes from which a ring is mapped: unused pages then cost nothing."""
_live: WeakSet[LocalDriver] = WeakSet()


class Driver(Protocol):
    """One opened device. ``store``, ``load``, ``kick`` and ``progress`` are the data path.

    Methods that reach a NIC process raise ``VerbsError`` (``ENODEV``) once that has ended.
    """

    space: AddressSpace
    """This program's registered memory."""
    name: str
    address: bytes
    """The NIC's IP address, 4 or 16 bytes."""
    port: int
    """UDP port that the NIC receives on."""

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """Reentrant lock, held around several commands that belong together."""

    @property
    def kick(self) -> Callable[[], None]:
        """``kick()``: have the NIC send at once after a doorbell."""

    @property
    def progress(self) -> Callable[[], bool]:
        """``progress()``: let the NIC work after an empty poll, or wait a moment. Returns whether anything happened."""

    @property
    def store(self) -> Callable[[int, int, int], None]:
        """``store(block, register, value)``: store to a register of a queue block; rings the doorbell if it is one."""

    @property
    def load(self) -> Callable[[int, int], int]:
        """``load(block, register)``: load a register of a queue block."""

    @property
    def start(self) -> Callable[[], None]:
        """``start()``: handle interrupts in a thread from now on; a second call does nothing."""

    @property
    def rest(self) -> Callable[[], None]:
        """``rest()``: note that the application stops polling."""

    @property
    def listen(self) -> Callable[[], None]:
        """``listen()``: note that the application waits on event descriptors: a post does not mean it will poll."""

    @property
    def closed(self) -> bool:
        """True if the device is closed for this context: nothing is left to destroy."""

    @property
    def threaded(self) -> bool:
        """True if interrupts are handled between calls."""

    def command(self, op: int, in_modifier: int, op_modifier: int, inbox: bytes) -> CommandResult:
        """Run one device command."""

    def ring(self, size: int) -> Mapping:
        """Return ``size`` zero bytes for a queue, in the memory that the device reaches fastest."""

    def map(self, buffer: object, *, writable: bool = False) -> Mapping:
        """Map a program's buffer for the device. Raises as :meth:`rnic.mem.space.AddressSpace.map`."""

    def unmap(self, mapping: Mapping) -> None:
        """Undo :meth:`ring` or :meth:`map`."""

    def on_interrupt(self, vector: int, handler: Callable[[], None], block: int) -> None:
        """Call ``handler``, which must not wait, when the event queue of ``vector`` and ``block`` may have entries."""

    def filenos(self) -> list[int]:
        """Return descriptors that become readable when there may be work."""

    def check(self) -> None:
        """Raise ``VerbsError`` (``ENODEV``) if the device is gone."""

    def hangup_filenos(self) -> list[int]:
        """Return descriptors that become readable if the device goes away, or spuriously; :meth:`check` tells which."""

    def await_completion(self, fileno: int) -> None:
        """Sleep until a completion event makes a descriptor readable; may return early.

        A driver that runs the data path in this program runs it meanwhile, and saves a thread's wake-up.
        """

    def connected(self, qpn: int) -> None:
        """Note that a reliable connection's queue pair knows its peer."""

    def why(self, qpn: int) -> str:
        """Return the reason of a queue pair's last failure (:mod:`rnic.spec.reasons`), or an empty string."""

    def library_faults(self) -> list[VerbsRule]:
        """Return the rules of a fault script that the library in this program applies."""

    def hold(self, due_ns: int) -> bool:
        """Hold back a completion until a time of :meth:`clock`. Return true if the caller has to wait until then."""

    def clock(self) -> int:
        """Return the time in nanoseconds, on the clock that :meth:`hold` uses."""

    def on_end(self, handler: Callable[[], None]) -> None:
        """Call ``handler`` once if the device goes away without being closed."""

    def close(self) -> None:
        """Close the device for this context: destroy everything that the context made there."""


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
        return self.space.map(bytearray(size) if size < _LARGE_RING else private_memory(size), writable=True)

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
        """See :class:`Driver`: a device in this process ends with this process."""

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

    def library_faults(self) -> list[VerbsRule]:
        """See :class:`Driver`."""
        faults = self.runtime.verbs_faults
        return [] if faults is None else faults.library_rules()

    def hold(self, due_ns: int) -> bool:
        """See :class:`Driver`: sets a deadline for the device's loop."""
        self.runtime.faults().wake_at(due_ns)
        return False

    def clock(self) -> int:
        """See :class:`Driver`."""
        return self.runtime.clock()

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
        """Mark the device as closed in a forked child, without destroying anything in the parent."""
        self._closed = True
        self.lock = self.runtime.lock


def _after_fork() -> None:
    """Close the drivers of a forked child; :mod:`rnic.runtime.loop` has closed the runtimes, with new locks, before."""
    for driver in list(_live):
        driver.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
