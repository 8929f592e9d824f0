"""Shared virtual memory: a TLB in front of the page tables of processes (003, "Shared Virtual Memory").

A process's virtual addresses are used directly, without registering memory first. The TLB holds the pages of a queue
pair's process, with their rights. A missing page is a fault: the host side looks the page up in the process's own table
and fills the TLB, and the access is retried. An address outside the process stays refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from rnic.engine import use
from rnic.mem.space import AddressSpace, Mapping
from rnic.mem.tlb import PAGE_BYTES, PAGE_SHIFT, READ, WRITE, Tlb
from rnic.nic_process.client_memory import ProgramMemory
from rnic.trace.counters import Counters

FAULT_PAGES: Final = 512
"""Most pages that one fault or one prefetch fills."""


class PageTable(Protocol):
    """One process's memory, as the host side knows it. No method raises."""

    def walk(self, va: int, pages: int) -> tuple[int, int]:
        """Return the rights on the page at ``va``, and how many of ``pages`` pages from there are known to have them.

        Rights are :data:`READ` and :data:`WRITE`, 0 if the process has no such page.
        """

    def read(self, va: int, buf: bytearray | memoryview, /) -> bool:
        """Fill ``buf``; return false if any byte cannot be read."""

    def write(self, va: int, data: bytes | bytearray | memoryview, /) -> bool:
        """Store ``data``; return false if any byte cannot be written."""


class SpaceTable:
    """The page table of an address space: buffers that a program has allocated or mapped."""

    def __init__(self, space: AddressSpace) -> None:
        self.space = space
        self.read = space.read
        self.write = space.write

    def walk(self, va: int, pages: int) -> tuple[int, int]:
        """See :class:`PageTable`."""
        page = va & -PAGE_BYTES
        found: list[Mapping] = self.space.mappings(page, pages * PAGE_BYTES)
        count = 1
        if len(found) == 1 and found[0].va < page + PAGE_BYTES:
            count = min(pages, (found[0].va + found[0].length - 1 >> PAGE_SHIFT) - (page >> PAGE_SHIFT) + 1)
        elif found:
            found = self.space.mappings(page, PAGE_BYTES)
        if not found:
            return 0, 1
        return READ if all(mapping.readonly for mapping in found) else READ | WRITE, count


class ProcessTable:
    """This process's own page table: all of its memory, as the kernel maps it. Close it after use."""

    def __init__(self) -> None:
        descriptor = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        self._memory = ProgramMemory(descriptor, os.getpid())
        self.read = self._memory.read
        self.write = self._memory.write

    def walk(self, va: int, pages: int) -> tuple[int, int]:
        """See :class:`PageTable`."""
        page, covers = va & -PAGE_BYTES, self._memory.covers
        # ask the kernel about the whole range first: each query is slow
        for count in (pages, 1) if pages > 1 else (1,):
            for rights, writable in ((READ | WRITE, True), (READ, False)):
                if covers(page, count * PAGE_BYTES, writable):
                    return rights, count
        return 0, 1

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()


class Fault(NamedTuple):
    """An access that the TLB could not translate: process, first address, bytes left, and whether it is a write."""

    number: int
    va: int
    length: int
    write: bool


Handler = Callable[[Fault], bool]
Observe = Callable[[Fault, bool], None]


__all__ = [
    "PAGE_BYTES",
    "PAGE_SHIFT",
    "READ",
    "WRITE",
    "Fault",
    "Handler",
    "Mmu",
    "PageTable",
    "ProcessTable",
    "SpaceTable",
    "Tlb",
]


class Mmu:
    """The TLB, the page tables under it, and the host side that handles its faults.

    Args:
        counters: gets ``tlb_hits``, ``tlb_misses``, ``tlb_evictions``, ``tlb_invalidations``, ``tlb_prefetched``,
            ``page_faults`` and ``page_faults_refused``.
        tlb: the TLB; one of 512 sets of 4 pages by default.

    Processes go by the short number of their queue pair, {vfid, ctid}. :attr:`handler` is the host side, which may be
    replaced: it answers a fault with true once it has called :meth:`fill`. :attr:`observe` is called with each fault,
    and whether it was handled, while :attr:`watched` is true. :attr:`changed` is called when one of them is replaced.
    """

    def __init__(self, counters: Counters, tlb: Tlb | None = None) -> None:
        self.counters = counters
        self.tlb = Tlb() if tlb is None else tlb
        self.tables: dict[int, PageTable] = {}
        self.changed: Callable[[], None] = lambda: None
        self.watched: Callable[[], bool] = lambda: self._observe is not None
        self._handler: Handler = self.handle
        self._observe: Observe | None = None

    @property
    def handler(self) -> Handler:
        """The host side: answers a fault, true if it was handled."""
        return self._handler

    @handler.setter
    def handler(self, handler: Handler) -> None:
        self._handler = handler
        self.changed()

    @property
    def observe(self) -> Observe | None:
        """Called with each fault, and whether it was handled."""
        return self._observe

    @observe.setter
    def observe(self, observe: Observe | None) -> None:
        self._observe = observe
        self.watched = lambda: self._observe is not None
        self.changed()

    def engine_handles(self) -> bool:
        """Return whether the engine may handle faults in mapped memory: no other handler is set, and faults are not
        watched."""
        return self._handler == self.handle and not self.watched()

    def attach(self, number: int, table: PageTable) -> None:
        """Give a process its page table."""
        self.detach(number)
        self.tables[number] = table

    def detach(self, number: int) -> None:
        """Forget a process and all its pages."""
        if self.tables.pop(number, None) is not None:
            self.invalidate(number, 0, 1 << 64)

    # --------------------------------------------------------------------------------- the host side

    def handle(self, fault: Fault) -> bool:
        """Look up the pages of a fault in the process's table; return whether its first page allows the access."""
        return self.fill(fault.number, fault.va, fault.length) > 0 and self._known(fault)

    def fill(self, number: int, va: int, length: int) -> int:
        """Enter the process's pages from ``va`` up to the first that is missing. Return their number, at most 512."""
        table = self.tables.get(number)
        if table is None or length < 1:
            return 0
        first, end = va >> PAGE_SHIFT, (va + length - 1 >> PAGE_SHIFT) + 1
        end = min(end, first + FAULT_PAGES)
        found: list[tuple[int, int, int]] = []
        page = first
        while page < end:
            rights, count = table.walk(page << PAGE_SHIFT, end - page)
            if not rights:
                break
            found.append((page, count, rights))
            page += count
        # last page first, so that the faulting page stays in a small TLB
        for start, count, rights in reversed(found):
            if gone := self._enter(number, start, count, rights):
                self.counters.bump("tlb_evictions", gone)
        return page - first

    def _enter(self, number: int, first: int, pages: int, rights: int) -> int:
        if use.ENGINE is None:
            return self.tlb.insert_run(number, first, pages, rights)
        return use.ENGINE.insert_tlb(self.tlb, number, first, pages, rights)

    def prefetch(self, number: int, va: int, length: int) -> int:
        """Fill the TLB before use (``userMap``); return the number of pages."""
        filled = self.fill(number, va, length)
        self.counters.bump("tlb_prefetched", filled)
        return filled

    def invalidate(self, number: int, va: int, length: int) -> int:
        """Forget the pages of memory that is unmapped or changes its rights; return how many were in the TLB."""
        if length < 1:
            return 0
        first, end = va >> PAGE_SHIFT, (va + length - 1 >> PAGE_SHIFT) + 1
        gone = self.tlb.invalidate(number, first, end - first)
        self.counters.bump("tlb_invalidations", gone)
        return gone

    # ------------------------------------------------------------------------------- the shell's side

    def count(self) -> None:
        """Count the engine's TLB hits and fills."""
        hits, misses, evictions = self.tlb.take_counts()
        if hits:
            self.counters.bump("tlb_hits", hits)
        if misses:
            self.counters.bump("tlb_misses", misses)
            self.counters.bump("page_faults", misses)
            self.counters.bump("tlb_evictions", evictions)

    def translate(self, number: int, va: int, length: int, write: bool, lock: Any = None) -> bool:
        """Return whether a process may access a whole range; ask the host side for pages that the TLB lacks.

        Args:
            lock: the device's, if the caller does not hold it: it is taken here.
        """
        if number not in self.tables or va < 0:
            return False
        end = va + length
        at = va if use.ENGINE is None else self._hit(number, va, end, write, lock)
        if at >= end:
            return True
        if lock is None:
            return self._walk(number, at, end, write)
        with lock:
            return self._walk(number, at, end, write)

    def _hit(self, number: int, va: int, end: int, write: bool, lock: Any = None) -> int:
        """Use pages of a range up to the first that the TLB lacks; return its address, or ``end``."""
        need = WRITE if write else READ
        page = va >> PAGE_SHIFT
        if use.ENGINE is not None and end <= 1 << 64:
            hits = use.ENGINE.use_tlb(self.tlb, number, va, end - va, need, lock)
        else:
            pages = range(page, (end - 1 >> PAGE_SHIFT) + 1)
            hits = next((each - page for each in pages if not (self.tlb.lookup(number, each) or 0) & need), len(pages))
        if not hits:
            return va
        self.counters.bump("tlb_hits", hits)
        return min(end, page + hits << PAGE_SHIFT)

    def _walk(self, number: int, at: int, end: int, write: bool) -> bool:
        while at < end:
            at = self._hit(number, at, end, write)
            if at < end:
                self.counters.bump("tlb_misses")
                # retry the access once with the pages that the host side found, then refuse it
                if not self._fault(Fault(number, at, end - at, write)):
                    return False
                at = (at >> PAGE_SHIFT) + 1 << PAGE_SHIFT
        return True

    def _fault(self, fault: Fault) -> bool:
        self.counters.bump("page_faults")
        done = self.handler(fault) and self._known(fault)
        if not done:
            self.counters.bump("page_faults_refused")
        if self.observe is not None:
            self.observe(fault, done)
        return done

    def _known(self, fault: Fault) -> bool:
        """Return whether the TLB now has the first page of a fault, and that it allows the access."""
        rights = self.tlb.lookup(fault.number, fault.va >> PAGE_SHIFT) or 0
        return bool(rights & (WRITE if fault.write else READ))

    def read(self, number: int, va: int, buf: bytearray | memoryview) -> bool:
        """Fill ``buf`` from a process's memory; return false if the range is not the process's."""
        return self._access(number, va, len(buf), False, lambda table: table.read(va, buf))

    def write(self, number: int, va: int, data: bytes | bytearray | memoryview) -> bool:
        """Store ``data`` in a process's memory; return false if the range is not the process's, or read-only."""
        return self._access(number, va, len(data), True, lambda table: table.write(va, data))

    def _access(self, number: int, va: int, length: int, write: bool, do: Callable[[PageTable], bool]) -> bool:
        for _ in range(2):
            if not self.translate(number, va, length, write):
                return False
            if do(self.tables[number]):
                return True
            # the TLB had the pages, but the memory is gone: drop the entries, and ask the host side again
            self.invalidate(number, va, length)
        return False
