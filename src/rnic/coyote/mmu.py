"""Shared virtual memory: a TLB in front of the page tables of processes (003, "Shared Virtual Memory").

A process's addresses are used as they are, without registering memory first. The TLB knows which pages a queue pair's
process has, and with which rights. A page that it does not know is a fault: the host side looks the page up in the
process's own table and fills the TLB, and the access is made again. An address that is not the process's stays refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from rnic.mem.space import AddressSpace, Mapping
from rnic.nic_process.client_memory import ProgramMemory
from rnic.trace.counters import Counters

PAGE_SHIFT: Final = 12
PAGE_BYTES: Final = 1 << PAGE_SHIFT
READ: Final = 1
WRITE: Final = 2
FAULT_PAGES: Final = 512
"""Pages that one fault, or one prefetch, fills at most."""


class PageTable(Protocol):
    """One process's memory, as the host side knows it. Nothing here raises."""

    def walk(self, va: int, pages: int) -> tuple[int, int]:
        """Rights on the page at ``va``, and how many of the ``pages`` pages from there on are known to have the same.

        Rights are :data:`READ` and :data:`WRITE`, 0 where the process has no such page.
        """

    def read(self, va: int, buf: bytearray | memoryview, /) -> bool:
        """Fill ``buf``; false where any byte is not there."""

    def write(self, va: int, data: bytes | bytearray | memoryview, /) -> bool:
        """Store ``data``; false where any byte cannot be written."""


class SpaceTable:
    """The page table of what is mapped in an address space: buffers that a program has allocated or given."""

    def __init__(self, space: AddressSpace) -> None:
        self.space = space
        self.read = space.read
        self.write = space.write

    def walk(self, va: int, pages: int) -> tuple[int, int]:
        """See :class:`PageTable`."""
        found: list[Mapping] = self.space.mappings(va & -PAGE_BYTES, PAGE_BYTES)
        if not found:
            return 0, 1
        return READ if all(mapping.readonly for mapping in found) else READ | WRITE, 1


class ProcessTable:
    """This process's own page table: all of its memory, as the kernel has it. Close it when it is of no more use."""

    def __init__(self) -> None:
        descriptor = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        self._memory = ProgramMemory(descriptor, os.getpid())
        self.read = self._memory.read
        self.write = self._memory.write

    def walk(self, va: int, pages: int) -> tuple[int, int]:
        """See :class:`PageTable`."""
        page, covers = va & -PAGE_BYTES, self._memory.covers
        # the kernel is asked about the whole range first: it answers slowly
        for count in (pages, 1) if pages > 1 else (1,):
            for rights, writable in ((READ | WRITE, True), (READ, False)):
                if covers(page, count * PAGE_BYTES, writable):
                    return rights, count
        return 0, 1

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()


class Fault(NamedTuple):
    """An access that the TLB could not translate: whose, from where on, how much of it is left, and what it is."""

    number: int
    va: int
    length: int
    write: bool


class Tlb:
    """Rights by process and page, set-associative, the least recently used way replaced.

    Args:
        order: log2 of the number of sets.
        ways: pages in one set.
    """

    def __init__(self, order: int = 9, ways: int = 4) -> None:
        self.ways = ways
        self._mask = (1 << order) - 1
        self._sets: list[dict[tuple[int, int], int]] = [{} for _ in range(1 << order)]

    def __len__(self) -> int:
        return sum(map(len, self._sets))

    def _set(self, number: int, page: int) -> dict[tuple[int, int], int]:
        return self._sets[(page ^ number * 0x9E37) & self._mask]

    def lookup(self, number: int, page: int) -> int | None:
        """Rights of a page, which becomes the last to be replaced; ``None`` for a miss."""
        ways = self._set(number, page)
        rights = ways.pop((number, page), None)
        if rights is not None:
            ways[number, page] = rights
        return rights

    def insert(self, number: int, page: int, rights: int) -> bool:
        """Enter a page; true where another one had to go."""
        ways = self._set(number, page)
        full = len(ways) >= self.ways and (number, page) not in ways
        if full:
            del ways[next(iter(ways))]
        ways[number, page] = rights
        return full

    def invalidate(self, number: int, first: int, pages: int) -> int:
        """Forget the pages of a range, of one process; how many were there."""
        if pages <= len(self):
            return sum(
                self._set(number, page).pop((number, page), None) is not None for page in range(first, first + pages)
            )
        gone = [(ways, key) for ways in self._sets for key in ways if key[0] == number and 0 <= key[1] - first < pages]
        for ways, key in gone:
            del ways[key]
        return len(gone)


Handler = Callable[[Fault], bool]


class Mmu:
    """The TLB, the page tables behind it, and the host side that handles its faults.

    Args:
        counters: gets ``tlb_hits``, ``tlb_misses``, ``tlb_evictions``, ``tlb_invalidations``, ``tlb_prefetched``,
            ``page_faults`` and ``page_faults_refused``.
        tlb: the TLB; one of 512 sets of 4 pages by default.

    Processes go by the short number of their queue pair, {vfid, ctid}. :attr:`handler` is the host side, which may be
    replaced: it answers a fault with true once it has called :meth:`fill`. :attr:`observe` is told of each fault, and
    whether it was handled.
    """

    def __init__(self, counters: Counters, tlb: Tlb | None = None) -> None:
        self.counters = counters
        self.tlb = Tlb() if tlb is None else tlb
        self.tables: dict[int, PageTable] = {}
        self.handler: Handler = self.handle
        self.observe: Callable[[Fault, bool], None] | None = None

    def attach(self, number: int, table: PageTable) -> None:
        """Give a process its page table."""
        self.detach(number)
        self.tables[number] = table

    def detach(self, number: int) -> None:
        """Forget a process, and every page of it."""
        if self.tables.pop(number, None) is not None:
            self.invalidate(number, 0, 1 << 64)

    # --------------------------------------------------------------------------------- the host side

    def handle(self, fault: Fault) -> bool:
        """Look the pages of a fault up in the process's table: true if its first page is there with the right."""
        return self.fill(fault.number, fault.va, fault.length) > 0 and self._known(fault)

    def fill(self, number: int, va: int, length: int) -> int:
        """Enter the process's pages from ``va`` on, up to the first that it has not; how many, 512 at most."""
        table = self.tables.get(number)
        if table is None or length < 1:
            return 0
        first, end = va >> PAGE_SHIFT, (va + length - 1 >> PAGE_SHIFT) + 1
        end = min(end, first + FAULT_PAGES)
        found: list[tuple[int, int]] = []
        page = first
        while page < end:
            rights, count = table.walk(page << PAGE_SHIFT, end - page)
            if not rights:
                break
            found += ((each, rights) for each in range(page, page + count))
            page += count
        # from the last to the first: in a small TLB the page that is waited for stays
        for page, rights in reversed(found):
            if self.tlb.insert(number, page, rights):
                self.counters.bump("tlb_evictions")
        return len(found)

    def prefetch(self, number: int, va: int, length: int) -> int:
        """Fill ahead of use (``userMap``); how many pages."""
        filled = self.fill(number, va, length)
        self.counters.bump("tlb_prefetched", filled)
        return filled

    def invalidate(self, number: int, va: int, length: int) -> int:
        """Memory goes away, or its rights change: forget its pages; how many were known."""
        if length < 1:
            return 0
        first, end = va >> PAGE_SHIFT, (va + length - 1 >> PAGE_SHIFT) + 1
        gone = self.tlb.invalidate(number, first, end - first)
        self.counters.bump("tlb_invalidations", gone)
        return gone

    # ------------------------------------------------------------------------------- the shell's side

    def translate(self, number: int, va: int, length: int, write: bool) -> bool:
        """Whether a process has a whole range with the right; what the TLB does not know, the host side is asked."""
        if number not in self.tables or va < 0:
            return False
        need = WRITE if write else READ
        end = va + length
        at = va
        while at < end:
            page = at >> PAGE_SHIFT
            rights = self.tlb.lookup(number, page)
            if rights is not None and rights & need:
                self.counters.bump("tlb_hits")
            else:
                self.counters.bump("tlb_misses")
                # the access is made again once, with what the host side has found; then it is refused
                if not self._fault(Fault(number, at, end - at, write)):
                    return False
            at = page + 1 << PAGE_SHIFT
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
        """Whether the TLB now has the first page of a fault, with the right."""
        rights = self.tlb.lookup(fault.number, fault.va >> PAGE_SHIFT) or 0
        return bool(rights & (WRITE if fault.write else READ))

    def read(self, number: int, va: int, buf: bytearray | memoryview) -> bool:
        """Fill ``buf`` from a process's memory; false where it is not the process's."""
        return self._access(number, va, len(buf), False, lambda table: table.read(va, buf))

    def write(self, number: int, va: int, data: bytes | bytearray | memoryview) -> bool:
        """Store ``data`` in a process's memory; false where it is not the process's, or read-only."""
        return self._access(number, va, len(data), True, lambda table: table.write(va, data))

    def _access(self, number: int, va: int, length: int, write: bool, do: Callable[[PageTable], bool]) -> bool:
        for _ in range(2):
            if not self.translate(number, va, length, write):
                return False
            if do(self.tables[number]):
                return True
            # memory went away under the TLB: what it said is forgotten, and the host side is asked once more
            self.invalidate(number, va, length)
        return False
