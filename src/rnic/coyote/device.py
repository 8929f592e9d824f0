"""A NIC with its shell, and what the threads on it share: TLB, page tables, counters, streams."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
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
    """What a device tells its threads."""

    def acknowledged(self, ack: dict[str, int], /) -> None:
        """An ``m_rdma_ack`` for it."""

    def take_stream(self, payload: bytes, /) -> bool:
        """A message that arrived as a stream; false while it takes no more."""


class CountingShell(HostShell):
    """Counts, for each queue pair, the messages that have been written to and read from host memory."""

    def __init__(self, memory: Mmu) -> None:
        super().__init__(memory)
        self.completed: dict[int, dict[str, int]] = {}

    def _count(self, said: dict[str, int], what: str) -> None:
        counts = self.completed.get(c.join_qpn(said["pid"], said["vfid"]))
        if counts is not None and said["ctl"] and said["host"]:
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
    """One thread's page table: what it has allocated or mapped, and after that all of the process."""

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
        tlb: the shell's TLB.
        tracer: is told of page faults, and of what the NIC tells.
        counters: where everything is counted.
        settings: as :class:`~rnic.coyote.stack.RoceStack` takes them.
    """

    def __init__(
        self,
        link: Link,
        *,
        tlb: Tlb | None = None,
        tracer: Tracer | None = None,
        counters: Counters | None = None,
        **settings: Any,
    ) -> None:
        self.counters = Counters() if counters is None else counters
        self.mmu = Mmu(self.counters, tlb)
        self.shell = CountingShell(self.mmu)
        self.stack = RoceStack(link, self.shell, counters=self.counters, **settings)
        nic = self.stack.runtime.nic
        if tracer is not None:
            nic.tracer = tracer
        self.mmu.observe = self._fault
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

    def progress(self) -> bool:
        """One round of the stack; acknowledgements go to their threads."""
        with self.stack.runtime.lock:
            did = self.stack.progress()
            while self.stack.m_rdma_ack:
                ack = c.RDMA_ACK.unpack(self.stack.m_rdma_ack.popleft())
                thread = self.threads.get(c.join_qpn(ack["pid"], ack["vfid"]))
                if thread is not None:
                    thread.acknowledged(ack)
            while self.shell.streams:
                number, payload = self.shell.streams[0]
                thread = self.threads.get(number)
                if thread is not None and not thread.take_stream(payload):
                    break
                self.shell.streams.popleft()
        return did

    def close(self) -> None:
        """Close the NIC."""
        self.stack.close()
        self.whole.close()


_open: dict[tuple[str, int], Device] = {}
lock = threading.Lock()
"""Held while devices are opened and closed, and threads numbered."""


def open_device(address: str, udp_port: int | None) -> Device:
    """The device on a local address, which all threads there share; its NIC runs in a thread of its own."""
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
    """Close a device that :func:`open_device` gave, with :data:`lock` held."""
    for key in [key for key, known in _open.items() if known is device]:
        del _open[key]
    device.close()
