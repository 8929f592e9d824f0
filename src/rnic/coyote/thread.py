"""``CThread``, Coyote's software interface for programs, on this NIC.

A thread belongs to a region (``vfid``) of a device, which here is a NIC on a local IPv4 address. It has one queue pair,
numbered {vfid, ctid}, and uses the program's memory by virtual address, without registering it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import time
from collections.abc import Callable
from typing import Final

from rnic.coyote.device import Device, ThreadTable, close_device, lock, open_device
from rnic.coyote.ibvq import CLOSE, DEF_PORT, IbvQ, OutOfBand, accept, bring_up, call, exchange, own_ibvq
from rnic.coyote.mmu import PAGE_BYTES
from rnic.coyote.oper import STRM_HOST, CoyoteOper, rdmaSg
from rnic.link.base import format_address
from rnic.mem.space import AddressSpace, Mapping
from rnic.rings import coyote as c
from rnic.spec import opcodes as op
from rnic.spec.errors import RnicError

N_REGIONS: Final = 16
N_CTID_MAX: Final = 64
MAX_TRANSFER_BYTES: Final = 128 << 20
"""Longest transfer in bytes, as in Coyote's host software."""
TIMEOUT_S: Final = 30.0
_APP = {
    CoyoteOper.REMOTE_RDMA_READ: c.APP_READ,
    CoyoteOper.REMOTE_RDMA_WRITE: c.APP_WRITE,
    CoyoteOper.REMOTE_RDMA_SEND: c.APP_SEND,
}
_PLAIN = {CoyoteOper.REMOTE_RDMA_READ: op.WR_READ, CoyoteOper.REMOTE_RDMA_WRITE: op.WR_WRITE}
"""Operations that may be plain transfers, with their work-request opcodes."""
_COUNTED = {
    CoyoteOper.LOCAL_READ: "local_read",
    CoyoteOper.LOCAL_WRITE: "local_write",
    CoyoteOper.LOCAL_TRANSFER: "local_write",
    CoyoteOper.REMOTE_RDMA_READ: "rdma_read",
    CoyoteOper.REMOTE_RDMA_WRITE: "rdma_write",
    CoyoteOper.REMOTE_RDMA_SEND: "rdma_write",
}
"""Counter of each operation. WRITEs and SENDs share a counter, as in the hardware's write-back region."""
_SETTLED = frozenset({"local_read", "local_write"})
"""Counters of messages that the engine moves and counts itself."""


class CoyoteError(RnicError):
    """An operation that is not possible, or that failed."""


class CThread:
    """One Coyote thread.

    Args:
        vfid: region of the device, 0 to 15.
        hpid: the host process; only this process is possible, the default.
        device: local IPv4 address of the NIC, or a :class:`Device`, which several threads may share.
        udp_port: the NIC's UDP port, 4791 by default; the peer's is assumed to be the same.
        remote: memory that the peer may access with R_Key 0: ``"buffers"``, the buffers of :meth:`getMem` and
            :meth:`userMap`; or ``"process"``, all of the process's memory, as Coyote's hardware allows.

    Raises:
        CoyoteError: the region or process is invalid, or the region already has 64 threads.
    """

    def __init__(
        self,
        vfid: int = 0,
        hpid: int | None = None,
        device: str | Device = "127.0.0.1",
        *,
        udp_port: int | None = None,
        remote: str = "buffers",
        timeout: float = TIMEOUT_S,
    ) -> None:
        if not 0 <= vfid < N_REGIONS:
            raise CoyoteError(f"vfid={vfid} is no region: use 0 to {N_REGIONS - 1}")
        if hpid is not None and hpid != os.getpid():
            raise CoyoteError(f"hpid={hpid} is another process: a thread uses the memory of its own, {os.getpid()}")
        if remote not in ("buffers", "process"):
            raise CoyoteError(f"remote={remote!r}: the peer may reach 'buffers' or the whole 'process'")
        self._shared = isinstance(device, Device)
        self.device = device if isinstance(device, Device) else open_device(device, udp_port)
        self._remote = remote
        self._timeout = timeout
        self.vfid = vfid
        with lock:
            taken = self.device.threads
            ctid = next((n for n in range(N_CTID_MAX) if c.join_qpn(n, vfid) not in taken), None)
            if ctid is None:
                raise CoyoteError(f"region {vfid} has {N_CTID_MAX} threads: close one first")
            self.ctid = ctid
            self._number = c.join_qpn(ctid, vfid)
            taken[self._number] = self
        self._process = ThreadTable(self.device.whole)
        self._counts = dict.fromkeys(_COUNTED.values(), 0)
        self._mappings: dict[int, tuple[Mapping, mmap.mmap | None]] = {}
        self._streams: list[bytes] = []
        self._failed = 0
        self._line: OutOfBand | None = None
        self._client = False
        self.local_queue: IbvQ | None = None
        """The ``ibvQ`` that this side has sent to its peer."""
        self.remote_queue: IbvQ | None = None
        """The ``ibvQ`` that the peer has sent."""
        self._start_plain: Callable[[CoyoteOper, rdmaSg, bool, object, object], bool] | None = None
        """Starts a plain transfer in C; ``None`` after a failure, or if Python starts all transfers."""
        device_ = self.device
        device_.mmu.attach(self._number, self._process)
        device_.shell.completed[self._number] = self._counts

    # ----------------------------------------------------------------------------------- memory

    def getMem(self, size: int) -> memoryview:
        """Allocate ``size`` bytes on their own pages, enter them into the TLB, and let the peer access them."""
        if size < 1:
            raise CoyoteError(f"size={size}: allocate at least 1 byte")
        pages = mmap.mmap(-1, -(-size // PAGE_BYTES) * PAGE_BYTES)
        view = memoryview(pages)[:size]
        self._map(view, pages)
        return view

    def freeMem(self, buffer: object) -> None:
        """Free a buffer of :meth:`getMem`: remove it from the TLB and from the peer's reach."""
        self.userUnmap(buffer)

    def userMap(self, buffer: object) -> int:
        """Enter a buffer's pages into the TLB before they are used, and let the peer reach it; return its address.

        Without it, this side's own transfers work as well, at the cost of one fault per page.
        """
        return self._map(buffer, None)

    def _map(self, buffer: object, pages: mmap.mmap | None) -> int:
        with self.device.stack.runtime.lock:  # only this lock: the host side of the MMU may map, and holds it
            mapping = self._process.space.map(buffer)
            before = self._mappings.pop(mapping.va, None)
            if before is not None:
                self._unmap(before[0])
            self._mappings[mapping.va] = mapping, pages
            self.device.mmu.prefetch(self._number, mapping.va, mapping.length)
            pair = self.device.stack.known(self._number)
            if pair is not None:
                pair.open(mapping)
        return mapping.va

    def userUnmap(self, buffer: object) -> None:
        """Remove a buffer's pages from the TLB, and from the peer's reach."""
        with self.device.stack.runtime.lock:
            probe = AddressSpace()
            va = probe.map(buffer).va
            found = self._mappings.pop(va, None)
            if found is None:
                raise CoyoteError(f"the buffer at {va:#x} is not mapped: userMap or getMem maps one")
            self._unmap(found[0])

    def _unmap(self, mapping: Mapping) -> None:
        pair = self.device.stack.known(self._number)
        if pair is not None:
            pair.shut(mapping)
        self.device.mmu.invalidate(self._number, mapping.va, mapping.length)
        self._process.space.unmap(mapping)

    def _admit(self, va: int, length: int, write: bool) -> bool:
        """Return whether the peer may use addresses: the guard of R_Key 0."""
        if self._remote == "buffers":
            held = any(
                mapping.va <= va and va + length <= mapping.va + mapping.length and not (write and mapping.readonly)
                for mapping, _ in self._mappings.values()
            )
            if not held:
                self.device.counters.bump("remote_refused")
                return False
        done = self.device.mmu.translate(self._number, va, length, write)
        if not done:
            self.device.counters.bump("remote_refused")
        return done

    # ------------------------------------------------------------------------------- connection

    def initRDMA(
        self,
        size: int,
        port: int = DEF_PORT,
        server: str | None = None,
        *,
        buffer: object = None,
        timeout: float | None = None,
        older: bool = False,
    ) -> memoryview:
        """Allocate the buffer of the connection and exchange queue pairs with the peer over TCP.

        Args:
            size: bytes of the buffer.
            port: TCP port of the exchange; a server takes it on its NIC's address.
            server: address of the server; without it this side is the server, and waits for one client.
            buffer: memory to use instead of allocating it; at least ``size`` bytes.
            timeout: seconds to wait for the peer; a server waits forever by default.
            older: the server is a host of Coyote's first version, whose ``ibvQ`` has 64 bytes; a server detects its
                client's version.

        Returns:
            The buffer.

        Raises:
            CoyoteError: connected already.
            ExchangeError: the peer is absent, or is not a Coyote host.
        """
        if self._line is not None:
            raise CoyoteError("the thread is connected: connClose first")
        if buffer is None:
            memory = self.getMem(size)
            va = next(reversed(self._mappings))
        else:
            memory = memoryview(buffer).cast("B")[:size]  # type: ignore[arg-type]  # any buffer: memoryview itself refuses others
            va = self.userMap(memory)
        stack = self.device.stack
        psn = secrets.randbits(24)
        wait = self._timeout if timeout is None else timeout
        line = None
        try:
            if server is None:
                line = accept(format_address(stack.runtime.nic.config.address), port, timeout)
            else:
                line = call(server, port, wait)
            with stack.held():
                self.local_queue = own_ibvq(stack, self._number, psn, va, size, older)
                self._open_memory()
            self.remote_queue = exchange(line, self.local_queue, client=server is not None, timeout_s=wait)
            with stack.held():
                bring_up(stack, self._number, psn, self.remote_queue, stack.runtime.nic.config.port)
                plain = stack.transfers(
                    self._number, _PLAIN, self.local_queue, self.remote_queue, MAX_TRANSFER_BYTES, self._counts
                )
                self._start_plain = None if plain is None else plain.invoke
        except BaseException:
            if line is not None:
                line.close()
            self.userUnmap(memory)
            self.local_queue = self.remote_queue = self._start_plain = None
            raise
        self._line = line
        self._client = server is not None
        return memory

    def _open_memory(self) -> None:
        """Let the queue pair's peer access the memory that it is allowed to."""
        pair = self.device.stack.pair(self._number)
        if pair.translation is None or self._remote == "process":
            self.device.stack.open_space(self._number, self._admit)
        for mapping, _ in self._mappings.values():
            pair.open(mapping)

    def connSync(self, client: bool | None = None) -> None:
        """Wait at a barrier with the peer until both sides are there.

        Args:
            client: this side speaks first; by default the one that called the other.
        """
        line = self._connected()
        if self._client if client is None else client:
            line.send_word(0, self._timeout)
            line.receive_word(self._timeout, "acknowledgement")
        else:
            line.receive_word(self._timeout, "acknowledgement")
            line.send_word(0, self._timeout)

    def connClose(self) -> None:
        """Close the connection: the client sends a last word, the server waits for it. The queue pair is reset."""
        line, self._line = self._line, None
        if line is None:
            return
        try:
            if self._client:
                line.send_word(CLOSE, self._timeout)
            else:
                line.receive_word(self._timeout, "request to close")
        finally:
            line.close()
            stack = self.device.stack
            with stack.held():
                with self.device.shell.counting:
                    self._settle()
                stack.s_axis_qp_interface(c.QP_CONTEXT.pack({"qp_num": self._number, "new_state": c.RESET}))
            self._forget_key()
            self.local_queue = self.remote_queue = self._start_plain = None

    def _forget_key(self) -> None:
        """Release the short number of the peer's R_Key, if it has one and no other thread uses it."""
        rkey = 0 if self.remote_queue is None else self.remote_queue.rkey
        others = [
            thread for thread in self.device.threads.values() if isinstance(thread, CThread) and thread is not self
        ]
        users = [thread.remote_queue for thread in others]
        if rkey and not any(queue is not None and queue.rkey == rkey for queue in users):
            keys = self.device.stack.keys
            keys.remove(keys.add(rkey))

    closeConn = connClose
    """Name of :meth:`connClose` in Coyote's second version."""

    def _connected(self) -> OutOfBand:
        if self._line is None:
            raise CoyoteError("the thread has no peer: initRDMA connects it")
        return self._line

    # ------------------------------------------------------------------------------- operations

    def invoke(self, oper: CoyoteOper, sg: rdmaSg, last: bool = True) -> None:
        """Start a transfer. Waits only while the stack takes no more commands.

        Args:
            last: count its completion in :meth:`checkCompleted`.

        Raises:
            CoyoteError: not an RDMA operation, more than 128 MiB, not connected, or the stack is full for too long.
        """
        plain = self._start_plain
        if plain is not None and plain(oper, sg, last, self.local_queue, self.remote_queue):
            return
        app = _APP.get(oper)
        if app is None:
            raise CoyoteError(f"{CoyoteOper(oper).name} is no RDMA operation: use one of REMOTE_RDMA_*")
        self._connected()
        assert self.local_queue is not None
        assert self.remote_queue is not None
        if not 0 <= sg.len <= MAX_TRANSFER_BYTES:
            raise CoyoteError(f"len={sg.len}: a transfer has at most {MAX_TRANSFER_BYTES} bytes")
        if sg.local_offs < 0 or sg.remote_offs < 0:
            raise CoyoteError(f"local_offs={sg.local_offs} remote_offs={sg.remote_offs}: offsets are not negative")
        self._check()
        if not 0 <= sg.local_dest < 1 << c.RDMA_SQ["offs"].width:
            raise CoyoteError(f"local_dest={sg.local_dest}: a thread has 16 streams, 0 to 15")
        host = int(sg.local_stream == STRM_HOST)
        command = {
            "opcode": app,
            "mode": c.MODE_PARSE,
            "qpn": self._number,
            "host": host,
            "last": 1,
            "cmplt": int(last),
            "ssn": int(oper),
            "offs": sg.local_dest,
            "local_vaddr": (self.local_queue.vaddr if host else 0) + sg.local_offs,
            "remote_vaddr": 0 if app == c.APP_SEND else self.remote_queue.vaddr + sg.remote_offs,
            "message_size": sg.len,
        }
        take = self.device.stack.take
        if not take(command):
            self._until(lambda: take(command), "the stack takes no more commands")

    def checkCompleted(self, oper: CoyoteOper) -> int:
        """Return how many operations have completed since :meth:`clearCompleted`.

        ``REMOTE_RDMA_*`` counts this side's own, WRITEs and SENDs together. ``LOCAL_WRITE`` counts messages written to
        this side's memory: the peer's WRITEs and this side's READs. ``LOCAL_READ`` counts those read from it.

        Raises:
            CoyoteError: an operation failed, which puts the queue pair in error.
        """
        what = _COUNTED.get(oper)
        if what is None:
            raise CoyoteError(f"{CoyoteOper(oper).name} is not counted")
        self.device.progress()
        self._check()
        if what in _SETTLED:
            with self.device.shell.counting:
                self._settle()
        return self._counts[what]

    def _settle(self) -> None:
        """Add the engine's counts; the caller holds the lock of the counts."""
        pair = self.device.stack.known(self._number)
        if pair is not None:
            written, read = pair.take_counts()
            self._counts["local_write"] += written
            self._counts["local_read"] += read

    def clearCompleted(self) -> None:
        """Reset all counters to 0."""
        with self.device.shell.counting:
            self._settle()
            for what in self._counts:
                self._counts[what] = 0

    def wait(self, oper: CoyoteOper, count: int = 1, timeout: float | None = None) -> int:
        """Wait until :meth:`checkCompleted` returns at least ``count``; return its result.

        Raises:
            CoyoteError: an operation failed, or the timeout is over.
        """
        self._until(
            lambda: self.checkCompleted(oper) >= count,
            f"{CoyoteOper(oper).name}: {count} operations did not complete",
            timeout,
        )
        return self.checkCompleted(oper)

    def send(self, data: bytes, dest: int = 0) -> None:
        """Set the data of the thread's stream ``dest``: transfers with ``local_stream`` 0 take it from there."""
        self.device.shell.outgoing[self._number, dest] = bytes(data)

    def receive(self, timeout: float | None = None) -> bytes:
        """Return the oldest message that arrived as a stream (the peer's SEND); wait for one."""
        self._until(lambda: self.device.progress() is not None and bool(self._streams), "no message arrived", timeout)
        return self._streams.pop(0)

    def _until(self, done: Callable[[], bool], what: str, timeout: float | None = None) -> None:
        seconds = self._timeout if timeout is None else timeout
        end = time.monotonic() + seconds
        idle = 0
        while not done():
            idle = 0 if self.device.progress() else idle + 1
            if idle > 100:
                if time.monotonic() > end:
                    raise CoyoteError(f"{what} within {seconds:g} s: is the peer there?")
                time.sleep(0.0002)

    def _check(self) -> None:
        if self._failed:
            raise CoyoteError(f"{self._failed} operations failed: the queue pair is in error, connect again")

    def acknowledged(self, read: bool, done: bool) -> None:
        """Count an acknowledgement of the stack for this thread."""
        if not done:
            self._failed += 1
            self._start_plain = None
        else:
            with self.device.shell.counting:
                self._counts["rdma_read" if read else "rdma_write"] += 1

    def take_stream(self, payload: bytes) -> bool:
        """Take a message from the shell's streams; return false while there is no room for more."""
        if len(self._streams) >= 64:
            return False
        self._streams.append(payload)
        return True

    # ------------------------------------------------------------------------------------ closing

    def getVfid(self) -> int:
        """Return the number of the region."""
        return self.vfid

    def getCtid(self) -> int:
        """Return the thread's number in its region."""
        return self.ctid

    def getHpid(self) -> int:
        """Return the PID of the host process."""
        return os.getpid()

    def close(self, *, polite: bool = True) -> None:
        """Close the connection and release everything; the device closes with its last thread.

        Args:
            polite: close as :meth:`connClose` does, so that the peer sees an end, not a failure.
        """
        device = self.device
        if device.threads.get(self._number) is not self:
            return
        if not polite and self._line is not None:
            self._line.close()
        with contextlib.suppress(RnicError):
            self.connClose()
        with device.stack.held():
            for mapping, _ in self._mappings.values():
                self._unmap(mapping)
            self._mappings.clear()
            device.mmu.detach(self._number)
            device.shell.completed.pop(self._number, None)
            for key in [key for key in device.shell.outgoing if key[0] == self._number]:
                del device.shell.outgoing[key]
        with lock:
            del device.threads[self._number]
            if not self._shared and not device.threads:
                close_device(device)

    def __enter__(self) -> CThread:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close(polite=exc[0] is None)
