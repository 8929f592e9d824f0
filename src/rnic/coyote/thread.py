"""``CThread``: what a program of Coyote's software interface sees, on this NIC.

A thread belongs to a region (``vfid``) of a device, which here is a NIC on a local IPv4 address. It has one queue pair,
numbered {vfid, ctid}, and uses the program's memory by its addresses, without registering it.
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
from rnic.spec.errors import RnicError

N_REGIONS: Final = 16
N_CTID_MAX: Final = 64
MAX_TRANSFER_BYTES: Final = 128 << 20
"""As Coyote's host software has it."""
TIMEOUT_S: Final = 30.0
_APP = {
    CoyoteOper.REMOTE_RDMA_READ: c.APP_READ,
    CoyoteOper.REMOTE_RDMA_WRITE: c.APP_WRITE,
    CoyoteOper.REMOTE_RDMA_SEND: c.APP_SEND,
}
_COUNTED = {
    CoyoteOper.LOCAL_READ: "local_read",
    CoyoteOper.LOCAL_WRITE: "local_write",
    CoyoteOper.LOCAL_TRANSFER: "local_write",
    CoyoteOper.REMOTE_RDMA_READ: "rdma_read",
    CoyoteOper.REMOTE_RDMA_WRITE: "rdma_write",
    CoyoteOper.REMOTE_RDMA_SEND: "rdma_write",
}
"""Counter of each operation. WRITEs and SENDs share one, as in the hardware's write-back region."""


class CoyoteError(RnicError):
    """An operation that cannot be, or that failed."""


class CThread:
    """One Coyote thread.

    Args:
        vfid: region of the device, 0 to 15.
        hpid: the host process; this one by default, and no other can be.
        device: local IPv4 address of the NIC, or a :class:`Device`, which several threads may share.
        udp_port: the NIC's UDP port, 4791 by default; the peer's is taken to be the same.
        remote: what the peer may reach with R_Key 0: ``"buffers"``, what :meth:`getMem` and :meth:`userMap` have given;
            or ``"process"``, all of the process's memory, as Coyote's hardware allows.

    Raises:
        CoyoteError: a region or process that cannot be, or 64 threads in a region.
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
        """What this side has told its peer."""
        self.remote_queue: IbvQ | None = None
        """What the peer has told."""
        device_ = self.device
        device_.mmu.attach(self._number, self._process)
        device_.shell.completed[self._number] = self._counts

    # ----------------------------------------------------------------------------------- memory

    def getMem(self, size: int) -> memoryview:
        """Allocate ``size`` bytes on pages of their own, known to the TLB, and reachable for the peer."""
        if size < 1:
            raise CoyoteError(f"size={size}: allocate at least 1 byte")
        pages = mmap.mmap(-1, -(-size // PAGE_BYTES) * PAGE_BYTES)
        view = memoryview(pages)[:size]
        self._map(view, pages)
        return view

    def freeMem(self, buffer: object) -> None:
        """Take back what :meth:`getMem` gave: it leaves the TLB and is out of the peer's reach."""
        self.userUnmap(buffer)

    def userMap(self, buffer: object) -> int:
        """Enter a buffer's pages into the TLB before they are used, and let the peer reach it; its address.

        Without it the buffer works as well for this side's own transfers, at the cost of a fault a page.
        """
        return self._map(buffer, None)

    def _map(self, buffer: object, pages: mmap.mmap | None) -> int:
        with self.device.stack.runtime.lock:
            mapping = self._process.space.map(buffer)
            self._mappings[mapping.va] = mapping, pages
            self.device.mmu.prefetch(self._number, mapping.va, mapping.length)
        return mapping.va

    def userUnmap(self, buffer: object) -> None:
        """Take a buffer's pages out of the TLB, and out of the peer's reach."""
        with self.device.stack.runtime.lock:
            probe = AddressSpace()
            va = probe.map(buffer).va
            found = self._mappings.pop(va, None)
            if found is None:
                raise CoyoteError(f"the buffer at {va:#x} is not mapped: userMap or getMem maps one")
            self._unmap(found[0])

    def _unmap(self, mapping: Mapping) -> None:
        self.device.mmu.invalidate(self._number, mapping.va, mapping.length)
        self._process.space.unmap(mapping)

    def _admit(self, va: int, length: int, write: bool) -> bool:
        """Whether the peer may use addresses: the guard of R_Key 0."""
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
    ) -> memoryview:
        """Allocate the buffer of the connection and exchange queue pairs with the peer over TCP.

        Args:
            size: bytes of the buffer.
            port: TCP port of the exchange; a server takes it on its NIC's address.
            server: where the server is; without it this side is the server, and waits for one client.
            buffer: memory to use instead of allocating it; at least ``size`` bytes.
            timeout: seconds to wait for the peer; a server waits without end by default.

        Returns:
            The buffer.

        Raises:
            CoyoteError: connected already.
            ExchangeError: the peer is not there, or is no Coyote host.
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
            with stack.runtime.lock:
                self.local_queue = own_ibvq(stack, self._number, psn, va, size)
                stack.open_space(self._number, self._admit)
            self.remote_queue = exchange(line, self.local_queue, client=server is not None, timeout_s=wait)
            with stack.runtime.lock:
                bring_up(stack, self._number, psn, self.remote_queue, stack.runtime.nic.config.port)
        except BaseException:
            if line is not None:
                line.close()
            self.userUnmap(memory)
            self.local_queue = self.remote_queue = None
            raise
        self._line = line
        self._client = server is not None
        return memory

    def connSync(self, client: bool | None = None) -> None:
        """A barrier with the peer: returns when both sides are there.

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
        """Hang up: the client says so, the server waits to hear it. The queue pair is reset."""
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
            with stack.runtime.lock:
                stack.s_axis_qp_interface(c.QP_CONTEXT.pack({"qp_num": self._number, "new_state": c.RESET}))
            self._forget_key()
            self.local_queue = self.remote_queue = None

    def _forget_key(self) -> None:
        """Give the short number of the peer's R_Key back, if it has one and no other thread uses it."""
        rkey = 0 if self.remote_queue is None else self.remote_queue.rkey
        others = [
            thread for thread in self.device.threads.values() if isinstance(thread, CThread) and thread is not self
        ]
        users = [thread.remote_queue for thread in others]
        if rkey and not any(queue is not None and queue.rkey == rkey for queue in users):
            keys = self.device.stack.keys
            keys.remove(keys.add(rkey))

    closeConn = connClose
    """The name that Coyote's second version has."""

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
            CoyoteError: no RDMA operation, more than 128 MiB, not connected, or the stack takes nothing for too long.
        """
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
        host = int(sg.local_stream == STRM_HOST)
        command = {
            "opcode": app,
            "mode": c.MODE_PARSE,
            "qpn": self._number,
            "host": host,
            "last": 1,
            "cmplt": int(last),
            "ssn": int(oper),
            "local_vaddr": (self.local_queue.vaddr if host else 0) + sg.local_offs,
            "remote_vaddr": 0 if app == c.APP_SEND else self.remote_queue.vaddr + sg.remote_offs,
            "message_size": sg.len,
        }
        data = c.RDMA_SQ.pack(command)
        self._until(lambda: self.device.stack.s_rdma_sq(data), "the stack takes no more commands")

    def checkCompleted(self, oper: CoyoteOper) -> int:
        """How many operations have completed since :meth:`clearCompleted`.

        ``REMOTE_RDMA_*`` counts this side's own, WRITEs and SENDs together. ``LOCAL_WRITE`` counts messages written to
        this side's memory: the peer's WRITEs and this side's READs. ``LOCAL_READ`` counts those read from it.

        Raises:
            CoyoteError: an operation failed, and with it the queue pair.
        """
        what = _COUNTED.get(oper)
        if what is None:
            raise CoyoteError(f"{CoyoteOper(oper).name} is not counted")
        self.device.progress()
        self._check()
        return self._counts[what]

    def clearCompleted(self) -> None:
        """All counters back to 0."""
        with self.device.stack.runtime.lock:
            for what in self._counts:
                self._counts[what] = 0

    def wait(self, oper: CoyoteOper, count: int = 1, timeout: float | None = None) -> int:
        """Wait until :meth:`checkCompleted` says at least ``count``; what it says.

        Raises:
            CoyoteError: an operation failed, or the time is over.
        """
        self._until(
            lambda: self.checkCompleted(oper) >= count,
            f"{CoyoteOper(oper).name}: {count} operations did not complete",
            timeout,
        )
        return self.checkCompleted(oper)

    def send(self, data: bytes) -> None:
        """Give the thread's stream ``data``: transfers with ``local_stream`` 0 take them from there."""
        self.device.shell.outgoing[self._number] = bytes(data)

    def receive(self, timeout: float | None = None) -> bytes:
        """The oldest message that arrived as a stream (the peer's SEND); waits for one."""
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
            raise CoyoteError(f"{self._failed} operations failed: the queue pair is in error, connect anew")

    def acknowledged(self, ack: dict[str, int]) -> None:
        """An acknowledgement of the stack is for this thread."""
        if not ack["cmplt"]:
            self._failed += 1
        else:
            self._counts["rdma_read" if ack["rd"] else "rdma_write"] += 1

    def take_stream(self, payload: bytes) -> bool:
        """Take a message from the shell's streams; false while as many wait as may."""
        if len(self._streams) >= 64:
            return False
        self._streams.append(payload)
        return True

    # ------------------------------------------------------------------------------------ closing

    def getVfid(self) -> int:
        """The region."""
        return self.vfid

    def getCtid(self) -> int:
        """The thread's number in its region."""
        return self.ctid

    def getHpid(self) -> int:
        """The host process."""
        return os.getpid()

    def close(self, *, polite: bool = True) -> None:
        """Hang up and let go of everything; the device closes with its last thread.

        Args:
            polite: as :meth:`connClose` does, so that the peer sees an end and no failure.
        """
        device = self.device
        if device.threads.get(self._number) is not self:
            return
        if not polite and self._line is not None:
            self._line.close()
        with contextlib.suppress(RnicError):
            self.connClose()
        with device.stack.runtime.lock:
            for mapping, _ in self._mappings.values():
                self._unmap(mapping)
            self._mappings.clear()
            device.mmu.detach(self._number)
            device.shell.completed.pop(self._number, None)
            device.shell.outgoing.pop(self._number, None)
        with lock:
            del device.threads[self._number]
            if not self._shared and not device.threads:
                close_device(device)

    def __enter__(self) -> CThread:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close(polite=exc[0] is None)
