"""The driver of a device in the user's NIC process: registers in a shared window, commands by message.

Rings are in memory that both sides map. The NIC accesses everything else through ``/proc/PID/mem``.

A program may take a slot of the device (:mod:`rnic.nic_process.bypass_slot`): then the compiled engine runs here, in
the thread that posts, polls or waits, or else in a thread in C, and accesses this program's memory directly.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from errno import ENODEV
from typing import TYPE_CHECKING
from weakref import WeakSet

from rnic.device.commands import CommandResult
from rnic.engine import use
from rnic.link.own_fd import OwnFd
from rnic.link.verbs_faults import VerbsRule, from_records
from rnic.mem.order import fence, load32, store32
from rnic.mem.space import AddressSpace, Mapping, address_of
from rnic.rings.queue_block import BLOCK_BYTES, BLOCK_SHIFT, RQ_TAIL, SQ_DOORBELL, SQ_TAIL, SRQ_LIMIT
from rnic.runtime.attach import ProcessConnection
from rnic.runtime.report import report_once
from rnic.runtime.sched_slice import shorten
from rnic.runtime.wait import wait_readable
from rnic.spec import attach
from rnic.spec import commands as cmd
from rnic.spec.errors import VerbsError
from rnic.spec.registers import GLOBAL_BYTES

if TYPE_CHECKING:
    from rnic.engine import _engine

_GLOBAL_BLOCKS = GLOBAL_BYTES // BLOCK_BYTES
_RINGING = frozenset({SQ_TAIL, SQ_DOORBELL, RQ_TAIL, SRQ_LIMIT})
_COMMAND = struct.Struct("<HHIQI4x")
_COMMAND_REPLY = struct.Struct("<IIQ")
_ASLEEP_AT = attach.WINDOW["asleep"].byte
_CHUNK = 1 << 20
_LARGEST_CHUNK = 1 << 26
_SMALLEST = 1 << 10
_POLLS_BEFORE_YIELD = 100
_POLLS_PER_CHECK = 64
"""Idle polls between two checks that the NIC process is alive. Each yields the core, for long on a busy machine."""

ENVIRONMENT = "RNIC_BYPASS"
"""Environment variable that asks for a slot if the program does not choose."""


_live: WeakSet[RemoteDriver] = WeakSet()


def _identity(fd: int) -> tuple[int, int] | None:
    """Return device and inode of an open descriptor, ``None`` if it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_STDERR = _identity(2)
"""Identity of stderr: if the program has reopened descriptor 2, explanations must not go there."""


class RingMemory:
    """Memory shared with the NIC process, cut into pieces for rings.

    Each chunk costs both sides a mapping, so each is twice as long as the one before.

    Args:
        share: announces file-backed memory to the NIC process: ``share(memory, fd)``.
    """

    def __init__(self, share: Callable[[memoryview, int], None]) -> None:
        self._share = share
        self._free: dict[int, list[memoryview]] = {}
        self._rest = memoryview(b"")
        self._next_chunk = _CHUNK

    def take(self, size: int) -> memoryview:
        """Return at least ``size`` zero bytes, rounded up to a power of two."""
        whole = max(_SMALLEST, 1 << (size - 1).bit_length())
        free = self._free.get(whole)
        if free:
            return free.pop()
        if whole >= self._next_chunk:
            return self._chunk(whole)
        if len(self._rest) < whole:
            self._rest = self._chunk(self._next_chunk)
            self._next_chunk = min(2 * self._next_chunk, _LARGEST_CHUNK)
        piece, self._rest = self._rest[:whole], self._rest[whole:]
        return piece

    def give(self, piece: memoryview) -> None:
        """Take back a piece that is no longer used."""
        piece[:] = bytes(len(piece))
        self._free.setdefault(len(piece), []).append(piece)

    def _chunk(self, size: int) -> memoryview:
        fd = os.memfd_create("rnic rings", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            view = memoryview(mmap.mmap(fd, size))
            self._share(view, fd)
        finally:
            os.close(fd)
        return view


class UnfitError(Exception):
    """The kernel does not let this program run the data path itself: its slot cannot be used."""


def wanted(name: str = ENVIRONMENT, unsaid: bool = False) -> bool:
    """Return whether an environment variable is not 0; ``unsaid`` if it is unset."""
    said = os.environ.get(name, "")
    return said != "0" if said else unsaid


class RemoteDriver:
    """One context opened in a NIC process; see :class:`rnic.runtime.driver.Driver`.

    Args:
        connection: connection after HELLO, owned by this context from now on.
        name: name of the device.
        mode: ``DMA_SLOT`` asks for a slot; ``DMA_UNFIT`` or ``DMA_NO_ENGINE`` say why there is none.

    ``slot`` is the engine in this program, or ``None`` if the NIC process handles all packets.

    Raises:
        VerbsError: ENODEV for an unknown device.
        UnfitError: there is a slot, but it cannot be used: open again without one, on another connection.
    """

    def __init__(self, connection: ProcessConnection, name: str, mode: int = 0) -> None:
        self.connection = connection
        self.name = name
        self.lock = threading.RLock()
        self.space = AddressSpace()
        self._closed = False
        listed, _ = connection.request(attach.MSG_LIST)
        size = attach.LIST_RECORD.size
        records = [listed[at : at + size] for at in range(0, len(listed) - size + 1, size)]
        record = next((record for record in records if record[:16].rstrip(b"\0") == name.encode()), None)
        if record is None:
            raise VerbsError(ENODEV, f"device {name!r} is not there")
        gid = record[16:32]
        self.address = gid[12:] if gid[:12] == bytes(10) + b"\xff\xff" else gid
        self.port: int = attach.LIST_RECORD.get(record, "udp_port")
        self.slot: _engine.BypassDriver | None = None
        self._open(name, mode)
        self.doorbell = self.slot
        """Slot through which compiled queues ring doorbells and poll; ``None`` without one."""
        self._rings = RingMemory(self._share)
        self._pieces: dict[Mapping, memoryview] = {}
        self._handlers: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self._events: list[OwnFd] = []
        self._polls = 0
        self._short = False
        self._thread: threading.Thread | None = None
        self._stop: list[OwnFd] = []
        _live.add(self)

    @property
    def closed(self) -> bool:
        """See :class:`~rnic.runtime.driver.Driver`. A NIC process that has ended has destroyed everything."""
        return self._closed or self.connection.ended

    def _open(self, name: str, mode: int) -> None:
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            body = name.encode().ljust(16, b"\0") + struct.pack("<III", attach.DMA_PROC_MEM | mode, mmap.PAGESIZE, 0)
            reply, (window, wake, *rest) = self.connection.request(attach.MSG_OPEN, body, [memory])
            self._wake = OwnFd(wake, private=True)
        finally:
            os.close(memory)
        opened = attach.OPEN_REPLY.unpack(reply)
        try:
            self._window = mmap.mmap(window, opened["window_bytes"])
        except BaseException:
            self._wake.close()
            for fd in rest:
                os.close(fd)
            raise
        finally:
            os.close(window)
        self._rung = opened["rung_offset"]
        self._blocks = opened["blocks_offset"]
        self.registers = memoryview(self._window)[self._blocks :]
        """The window's queue blocks, for compiled queues."""
        if wanted("RNIC_EXPLAIN") and _STDERR is not None and _identity(2) == _STDERR:
            with contextlib.suppress(VerbsError, OSError):  # it has no stderr
                self.connection.request(attach.MSG_EXPLAIN, b"", [2])
        more = reply[attach.OPEN_REPLY.size :]
        if rest:
            self._take_slot(more, rest)
        elif more:
            report_once(f"the NIC process runs this program's data path, which is slower: {more.decode()}")

    def _take_slot(self, answer: bytes, fds: list[int]) -> None:
        """Run the engine in this program from now on."""
        window = memoryview(self._window)
        places = self._blocks, self._rung, _ASLEEP_AT
        try:
            sock = self.connection.sock.fileno()
            self.slot = use.engine().BypassDriver(sock, window, *places, self._wake.fd, answer, fds)
        except OSError as error:
            self._wake.close()
            raise UnfitError(os.strerror(error.errno or 0)) from None
        self.connection.slot = self.slot
        if wanted("RNIC_SHM", unsaid=wanted("RNIC_HAIRPIN", unsaid=True)):
            self.slot.enable_shm_loopback()

    # ----------------------------------------------------------------------------------- data path

    def store(self, block: int, register: int, value: int) -> None:
        """See :class:`~rnic.runtime.driver.Driver`. A store to the global block has had its effect on return."""
        if block < _GLOBAL_BLOCKS:
            self._register(block, register, 1, value)
            return
        if self.slot is not None:
            self.slot.store(block, register, value)
            return
        window = self._window
        store32(window, self._blocks + (block << BLOCK_SHIFT) + register, value)
        if register in _RINGING:
            fence()  # the register before its rung byte
            window[self._rung + block] = 1
            fence()  # the NIC sets its asleep word, then reads the rung bytes; here it is the other way around
            if load32(window, _ASLEEP_AT):
                self._ring()

    def _ring(self) -> None:
        """Wake the NIC process."""
        if not self._wake.valid():
            raise self.connection.mark_ended()
        # awake already, or gone, which other calls detect
        with contextlib.suppress(BlockingIOError, ConnectionError), _borrowed_socket(self._wake.fd) as wake:
            wake.send(b"\0", socket.MSG_DONTWAIT)

    def load(self, block: int, register: int) -> int:
        """See :class:`~rnic.runtime.driver.Driver`."""
        if block < _GLOBAL_BLOCKS:
            return self._register(block, register)
        return load32(self._window, self._blocks + (block << BLOCK_SHIFT) + register)

    def _register(self, block: int, register: int, store: int = 0, value: int = 0) -> int:
        """Load or store a register of the global block by message: it is not in the shared window. Return its value."""
        offset = (block << BLOCK_SHIFT) + register
        if block < 0 or register & 3 or not 0 <= register < BLOCK_BYTES:
            return 0  # not a register: reads 0, as on a device of this process
        body = attach.REGISTER.pack({"offset": offset, "store": store, "value": value & 0xFFFF_FFFF})
        return attach.REGISTER_REPLY.get(self.connection.request(attach.MSG_REGISTER, body)[0], "value")

    def kick(self) -> None:
        """Do nothing: the doorbell was enough."""
        self._polls = 0

    def progress(self) -> bool:
        """See :class:`~rnic.runtime.driver.Driver`. Raises ``ENODEV`` some time after the NIC process ended."""
        if self._closed:
            return False
        did = self.slot is not None and self.slot.poll()
        self._polls = 0 if did else self._polls + 1
        if self._polls > _POLLS_BEFORE_YIELD:
            if not self._short:
                self._short = True
                shorten()
            os.sched_yield()
            if self._polls % _POLLS_PER_CHECK == 0:
                self.check()
        if self._thread is None:
            for handler in self._handlers:
                handler()
        return did

    def check(self) -> None:
        """See :class:`~rnic.runtime.driver.Driver`."""
        # check _closed last: a thread that closes the device sets it before it closes the connection
        if not self.connection.alive() and not self._closed:
            error = self.connection.mark_ended()
            self._tell_end()
            raise error

    def hangup_filenos(self) -> list[int]:
        """See :class:`~rnic.runtime.driver.Driver`; an answer to another thread's command wakes them too."""
        descriptor = self.connection.sock.fileno()
        return [descriptor] if descriptor >= 0 else []  # another thread may have closed it

    def await_completion(self, fileno: int) -> None:
        """See :class:`~rnic.runtime.driver.Driver`."""
        if self.slot is None:
            wait_readable([fileno, *self.hangup_filenos()], None)
            return
        if not self.slot.wait(fileno):
            return
        with self.lock:
            for handler in self._handlers:
                handler()

    def why(self, qpn: int) -> str:
        """See :class:`~rnic.runtime.driver.Driver`."""
        _, (fd,) = self.connection.request(attach.MSG_INFO, f"{self.name} {attach.INFO_WHY}{qpn}".encode())
        with os.fdopen(fd, "rb") as file:
            file.seek(0)
            return str(json.loads(file.read()))

    def connected(self, qpn: int) -> None:
        """See :class:`~rnic.runtime.driver.Driver`."""
        if self.slot is not None:
            self.slot.join(qpn)

    def library_faults(self) -> list[VerbsRule]:
        """See :class:`~rnic.runtime.driver.Driver`."""
        if not load32(self._window, attach.WINDOW["verbs_rules"].byte):
            return []
        return from_records(self.connection.request(attach.MSG_VERBS_RULES)[0])

    def hold(self, due_ns: int) -> bool:
        """See :class:`~rnic.runtime.driver.Driver`: nothing wakes a program that sleeps for a completion."""
        return True

    def clock(self) -> int:
        """See :class:`~rnic.runtime.driver.Driver`."""
        return time.monotonic_ns()

    def on_end(self, handler: Callable[[], None]) -> None:
        """See :class:`~rnic.runtime.driver.Driver`."""
        self._at_end.append(handler)

    def _tell_end(self) -> None:
        with self.lock:
            handlers, self._at_end = self._at_end, []
        for handler in handlers:
            handler()

    # ------------------------------------------------------------------------------------ commands

    def command(self, op: int, in_modifier: int, op_modifier: int, inbox: bytes) -> CommandResult:
        """See :class:`~rnic.runtime.driver.Driver`."""
        body = _COMMAND.pack(op, op_modifier, in_modifier, 0, len(inbox)) + inbox
        reply, _ = self.connection.request(attach.MSG_COMMAND, body)
        status, length, out_param = _COMMAND_REPLY.unpack_from(reply)
        outbox = reply[_COMMAND_REPLY.size : _COMMAND_REPLY.size + length]
        if status == cmd.ST_OK or not outbox:
            return CommandResult(status, out_param, outbox)
        kind = int.from_bytes(outbox[:4], "little")
        return CommandResult(status, kind=kind, text=outbox[4:].decode().partition(": ")[2])

    # -------------------------------------------------------------------------------------- memory

    def _share(self, memory: memoryview, fd: int) -> None:
        place = {"va": address_of(memory), "bytes": len(memory), "offset": 0, "writable": 1}
        self.connection.request(attach.MSG_SHARE, attach.SHARE.pack(place), [fd])
        if self.slot is not None:
            self.slot.keep_alive(memory)

    def ring(self, size: int) -> Mapping:
        """See :class:`~rnic.runtime.driver.Driver`."""
        with self.lock:
            piece = self._rings.take(size)
            mapping = self.space.map(piece[:size], writable=True)
            self._pieces[mapping] = piece
            return mapping

    def map(self, buffer: object, *, writable: bool = False) -> Mapping:
        """See :class:`~rnic.runtime.driver.Driver`."""
        with self.lock:
            return self.space.map(buffer, writable=writable)

    def unmap(self, mapping: Mapping) -> None:
        """See :class:`~rnic.runtime.driver.Driver`."""
        with self.lock:
            self.space.unmap(mapping)
            piece = self._pieces.pop(mapping, None)
            if piece is not None:
                self._rings.give(piece)

    # ---------------------------------------------------------------------------------- interrupts

    def on_interrupt(self, vector: int, handler: Callable[[], None], block: int) -> None:
        """See :class:`~rnic.runtime.driver.Driver`."""
        _, (fd,) = self.connection.request(attach.MSG_VECTOR, struct.pack("<I", vector))
        event = OwnFd(fd, private=False)
        if self.slot is not None:
            self.slot.add_event_queue(vector, event.fd, block, event.word)
        with self.lock:
            self._events.append(event)
            self._handlers.append(handler)

    @property
    def threaded(self) -> bool:
        """See :class:`~rnic.runtime.driver.Driver`."""
        return self._thread is not None

    def start(self) -> None:
        """See :class:`~rnic.runtime.driver.Driver`."""
        with self.lock:
            if self._thread is not None or self.closed:
                return
            self._stop = [OwnFd(fd, private=True) for fd in os.pipe()]
            self._thread = threading.Thread(target=self._run, name=f"rnic {self.name}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._stop[0].fd, select.POLLIN)
        poller.register(self.connection.sock, select.POLLRDHUP)
        events = {event.fd: event for event in self._events}
        for fd in events:
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            for fd in ready.intersection(events):
                if not _clear(events[fd]):
                    poller.unregister(fd)
            with self.lock:
                for handler in self._handlers:
                    handler()
            if ready.difference(events):
                if not self._closed:
                    self.connection.ended = True
                    self._tell_end()
                return

    def rest(self) -> None:
        """Let the slot's thread take over. Without a slot do nothing: the NIC does not depend on polling."""
        if self.slot is not None:
            self.slot.prepare_to_sleep()

    def listen(self) -> None:
        """Do nothing: the NIC does not depend on this program's polling."""

    def filenos(self) -> list[int]:
        """Return the descriptors of the interrupts, cleared: check for work once more before waiting for them."""
        if self._thread is None:
            for event in self._events:
                _clear(event)
            for handler in self._handlers:
                handler()
        return [event.fd for event in self._events]

    # ------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """See :class:`~rnic.runtime.driver.Driver`."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            if self._stop[1].valid():
                os.write(self._stop[1].fd, b"\0")
            if thread is not threading.current_thread():
                thread.join(timeout=5)
        self._hang_up()

    def _hang_up(self) -> None:
        self.connection.close()
        self._let_go()

    def _let_go(self) -> None:
        for own in (*self._events, self._wake, *self._stop):
            own.close()
        self._events, self._stop = [], []

    def _leave_shared_memory(self) -> None:
        """Replace the window and the rings in a forked child, which would share them with its parent."""
        self._window = mmap.mmap(-1, len(self._window))
        self.registers = memoryview(self._window)[self._blocks :]
        self._rings = RingMemory(self._share)
        self._pieces.clear()


def _clear(event: OwnFd) -> bool:
    """Clear an interrupt's eventfd. Return false if the program has closed it."""
    if not event.valid():
        return False
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(event.fd)
    return True


@contextlib.contextmanager
def _borrowed_socket(fd: int) -> Iterator[socket.socket]:
    borrowed = socket.socket(fileno=fd)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def _after_fork() -> None:
    """Close inherited contexts in a forked child: it must not use them, nor keep them open when the parent dies."""
    for driver in list(_live):
        driver.lock = threading.RLock()
        driver._thread = None
        if not driver._closed:
            driver._closed = True
            driver.connection.forget()
            driver._let_go()
            driver._leave_shared_memory()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)
