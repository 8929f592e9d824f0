"""A NIC with its shell, and the state that its threads share: TLB, page tables, counters, streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from rnic.coyote.mmu import WRITE, Fault, Mmu, ProcessTable, SpaceTable, Tlb
from rnic.coyote.shell import HostShell
from rnic.coyote.stack import RoceStack
from rnic.link.base import Link
from rnic.link.beats import Beat
from rnic.link.udp import UdpLink
from rnic.mem.space import AddressSpace
from rnic.rings import coyote as c
from rnic.trace.counters import Counters
from rnic.trace.tracer import Tracer


class Thread(Protocol):
    """The calls that a device makes to its threads."""

    def acknowledged(self, read: bool, done: bool, /) -> None:
        """Take an ``m_rdma_ack`` for this thread: whether it is for a READ, and whether it is complete."""

    def take_stream(self, payload: bytes, /) -> bool:
        """Take a message that arrived as a stream; return false while there is no room for more."""


class CountingShell(HostShell):
    """A shell that counts, for each queue pair, the messages written to and read from host memory."""

    def __init__(self, memory: Mmu) -> None:
        super().__init__(memory)
        self.counting = threading.Lock()
        """Held around changes of the counts; no thread waits for anything while it holds this lock."""
        self.completed: dict[int, dict[str, int]] = {}

    def _count(self, said: dict[str, int], what: str) -> None:
        counts = self.completed.get(c.join_qpn(said["pid"], said["vfid"]))
        if counts is not None and said["ctl"] and said["host"]:
            with self.counting:
                counts[what] += 1

    def m_rdma_rd_req(self, request: bytes) -> Sequence[Beat] | None:
        """See :class:`~rnic.coyote.shell.Shell`."""
        found = super().m_rdma_rd_req(request)
        if found is not None:
            self._count(c.RDMA_RD_REQ.unpack(request), "local_read")
        return found

    def m_rdma_wr_req(self, request: bytes, data: Iterable[Beat]) -> bool:
        """See :class:`~rnic.coyote.shell.Shell`."""
        done = super().m_rdma_wr_req(request, data)
        if done:
            self._count(c.RDMA_WR_REQ.unpack(request), "local_write")
        return done


class ThreadTable:
    """One thread's page table: its own allocations and mappings first, then the whole process."""

    def __init__(self, whole: ProcessTable) -> None:
        self.space = AddressSpace()
        self._own = SpaceTable(self.space)
        self._whole = whole

    def walk(self, va: int, pages: int) -> tuple[int, int]:
        """See :class:`~rnic.coyote.mmu.PageTable`."""
        own = self._own.walk(va, pages)
        return own if own[0] & WRITE else max(own, self._whole.walk(va, pages))

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """See :class:`~rnic.coyote.mmu.PageTable`."""
        return self.space.read(va, buf) or self._whole.read(va, buf)

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """See :class:`~rnic.coyote.mmu.PageTable`."""
        return self.space.write(va, data) or self._whole.write(va, data)


class Device:
    """A NIC with its shell: what the threads on one address share.

    Args:
        link: carries the packets.
        shell: inspects each memory request of every queue pair, in Python. By default there is none, and the engine
            moves the data.
        tlb: the shell's TLB.
        tracer: gets page faults and the NIC's own events.
        counters: counts everything.
        settings: as :class:`~rnic.coyote.stack.RoceStack` takes them.
    """

    def __init__(
        self,
        link: Link,
        *,
        shell: Callable[[Mmu], CountingShell] | None = None,
        tlb: Tlb | None = None,
        tracer: Tracer | None = None,
        counters: Counters | None = None,
        **settings: Any,
    ) -> None:
        self.counters = Counters() if counters is None else counters
        self.mmu = Mmu(self.counters, tlb)
        self.shell = (CountingShell if shell is None else shell)(self.mmu)
        mmu = self.mmu if shell is None else None
        self.stack = RoceStack(link, self.shell, mmu, counters=self.counters, **settings)
        self.stack.acknowledged = self._acknowledged
        nic = self.stack.runtime.nic
        if tracer is not None:
            nic.tracer = tracer
        self.mmu.observe = self._fault
        self.mmu.watched = lambda: nic.tracer.enabled
        self.mmu.changed = nic.invalidate_engine
        self.mmu.changed()
        self.whole = ProcessTable()
        self.threads: dict[int, Thread] = {}

    def _fault(self, fault: Fault, handled: bool) -> None:
        nic = self.stack.runtime.nic
        if nic.tracer.enabled:
            ctid, vfid = c.split_qpn(fault.number)
            nic.tracer.event(
                nic.now_ns,
                "fault",
                self.stack.qpns.full(fault.number),
                vfid=vfid,
                ctid=ctid,
                vaddr=fault.va,
                length=fault.length,
                access="write" if fault.write else "read",
                handled=int(handled),
            )

    def _acknowledged(self, number: int, read: bool, done: bool) -> None:
        thread = self.threads.get(number)
        if thread is not None:
            thread.acknowledged(read, done)

    def progress(self) -> bool:
        """Do one round of the stack, and pass acknowledgements and streams to their threads."""
        did = self.stack.progress()
        # code that runs under the device's lock must not wait for the stack's lock
        if not self.shell.streams or not self.stack.lock.acquire(blocking=False):
            return did
        try:
            while self.shell.streams:
                number, payload = self.shell.streams[0]
                thread = self.threads.get(number)
                if thread is not None and not thread.take_stream(payload):
                    break
                self.shell.streams.popleft()
        finally:
            self.stack.lock.release()
        return did

    def close(self) -> None:
        """Close the NIC."""
        self.stack.close()
        self.whole.close()


_open: dict[tuple[str, int], Device] = {}
lock = threading.Lock()
"""Held while devices are opened and closed, and while threads get their numbers."""


def open_device(address: str, udp_port: int | None) -> Device:
    """Return the device on a local address, which all threads there share; its NIC runs in a separate thread."""
    key = address, -1 if udp_port is None else udp_port
    with lock:
        device = _open.get(key)
        if device is None:
            counters = Counters()
            link = (
                UdpLink(address, counters=counters)
                if udp_port is None
                else UdpLink(address, udp_port, counters=counters)
            )
            device = _open[key] = Device(link, counters=counters)
            device.stack.runtime.start()
        return device


def close_device(device: Device) -> None:
    """Close a device that :func:`open_device` returned, with :data:`lock` held."""
    for key in [key for key, known in _open.items() if known is device]:
        del _open[key]
    device.close()
