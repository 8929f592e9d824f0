"""A driver's window of queue blocks: 32-bit registers in shared memory, and their doorbells.

There is one window per open context. Blocks are numbered device-wide, and a block has the same offset in every window,
given by its number. A window is sparse memory of which a driver only touches its own blocks.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol

from rnic.device.hcr import Hcr
from rnic.mem.dma import DmaPort
from rnic.mem.order import shared_words
from rnic.rings.queue_block import (
    BLOCK_BYTES,
    BLOCK_SHIFT,
    CQ_BLOCK,
    QP_BLOCK,
    RQ_TAIL,
    SQ_DOORBELL,
    SQ_TAIL,
    SRQ_BLOCK,
    SRQ_LIMIT,
)
from rnic.spec.layout import Layout
from rnic.spec.reasons import Reason
from rnic.spec.registers import GLOBAL_BYTES
from rnic.state.arena import private_memory

U32 = struct.Struct("<I")

GLOBAL_BLOCKS = GLOBAL_BYTES // BLOCK_BYTES
"""Number of blocks at the start of a window that the global registers occupy."""

Doors = dict[int, bool]
"""Registers that software may store to, by offset; true if a store rings a doorbell."""


def _doors(block: Layout, *ringing: int) -> Doors:
    return {field.byte: field.byte in ringing for field in block.fields if field.access == "RW"}


QP_DOORS = _doors(QP_BLOCK, SQ_TAIL, SQ_DOORBELL, RQ_TAIL)
CQ_DOORS = _doors(CQ_BLOCK)
SRQ_DOORS = _doors(SRQ_BLOCK, SRQ_LIMIT)


class Doorbells:
    """Blocks with rung doorbells that the device has not handled yet.

    A driver's thread rings while the device's thread takes. A register is stored before its doorbell is rung, and the
    device clears a doorbell before it reads the register, so no store is missed.
    """

    __slots__ = ("_pending", "doors", "rung")

    def __init__(self) -> None:
        self.rung: deque[int] = deque()
        self._pending: set[int] = set()
        self.doors: dict[int, Doors] = {}
        """Writable registers of each block that has a queue."""

    def ring(self, block: int) -> None:
        """Record that a doorbell was rung in a block, once until it is taken."""
        if block not in self._pending:
            self._pending.add(block)
            self.rung.append(block)

    def take(self) -> int:
        """Return the block that was rung first; ``IndexError`` if there is none."""
        block = self.rung.popleft()
        self._pending.discard(block)
        return block


class GlobalRegisters(Protocol):
    """Registers of the global block."""

    def read(self, uar: Uar, offset: int, /) -> int:
        """Return a register's value."""

    def write(self, uar: Uar, offset: int, value: int, /) -> None:
        """Store a value."""


class Uar:
    """One driver context's window, and the DMA port to its process.

    Args:
        port: DMA port for this driver's memory.
        doorbells: doorbells of the device.
        blocks: number of blocks in the window.
        buf: the window's memory, ``blocks * 128`` bytes of zeros; by default private memory.
        global_block: the device's global registers, at the start of the window.
        program: number of the program that owns the context.
    """

    __slots__ = (
        "_doorbells",
        "_globals",
        "_words",
        "blocks",
        "buf",
        "closed",
        "dead",
        "event_queues",
        "hcr",
        "number",
        "port",
        "program",
        "tell",
    )

    def __init__(
        self,
        port: DmaPort,
        doorbells: Doorbells,
        blocks: int,
        buf: memoryview | None = None,
        global_block: GlobalRegisters | None = None,
        program: int = 0,
    ) -> None:
        self.port = port
        self.program = program
        self.number = 0
        """Number of the context, unique among the device's open ones; reused after it is closed."""
        self.hcr = Hcr()
        self.blocks = blocks
        self.buf = memoryview(private_memory(blocks * BLOCK_BYTES)) if buf is None else buf
        self._words = shared_words(self.buf)
        self.closed = False
        self.dead = False
        """True once the device has failed, after which commands have no effect."""
        self.tell: Callable[[Reason, str], None] | None = None
        """Shows a failure reason to the program's user, if requested."""
        self.event_queues: dict[int, int] = {}
        """EQN by type of asynchronous event (MAP_EQ)."""
        self._doorbells = doorbells
        self._globals = global_block

    @staticmethod
    def offset(block: int) -> int:
        """Return the byte offset of a block in :attr:`buf`."""
        return block << BLOCK_SHIFT

    def store(self, block: int, register: int, value: int) -> None:
        """Store the low 32 bits of ``value``.

        Stores to a read-only register, an offset that is not a register, or a block without a queue are ignored.
        """
        doorbells = self._doorbells
        doors = doorbells.doors.get(block)
        rings = None if doors is None else doors.get(register)
        if rings is None:
            if 0 <= block < GLOBAL_BLOCKS and self._globals is not None and 0 <= register < BLOCK_BYTES:
                self._globals.write(self, (block << BLOCK_SHIFT) + register, value & 0xFFFF_FFFF)
            return
        self._words[(block << BLOCK_SHIFT) + register >> 2] = value & 0xFFFF_FFFF
        if rings:
            doorbells.ring(block)

    def load(self, block: int, register: int) -> int:
        """Return the register's value; 0 outside the window or if the offset is not a multiple of 4."""
        if not 0 <= block < self.blocks or register & 3 or not 0 <= register < BLOCK_BYTES:
            return 0
        if block < GLOBAL_BLOCKS:
            return 0 if self._globals is None else self._globals.read(self, (block << BLOCK_SHIFT) + register)
        return self._words[(block << BLOCK_SHIFT) + register >> 2]

    def write(self, offset: int, value: int) -> None:
        """Run :meth:`store` by byte offset in the window."""
        self.store(offset >> BLOCK_SHIFT, offset & BLOCK_BYTES - 1, value)

    def read(self, offset: int) -> int:
        """Run :meth:`load` by byte offset in the window."""
        return self.load(offset >> BLOCK_SHIFT, offset & BLOCK_BYTES - 1)


class Registers:
    """The device's access to one block, including read-only registers."""

    __slots__ = ("_words", "at", "block", "buf", "uar")

    def __init__(self, uar: Uar, block: int) -> None:
        self.uar = uar
        self.block = block
        self.buf = uar.buf
        self.at = block << BLOCK_SHIFT
        self._words = shared_words(self.buf[self.at : self.at + BLOCK_BYTES])

    def get(self, register: int) -> int:
        """Return the value of one register."""
        return self._words[register >> 2]

    def set(self, register: int, value: int) -> None:
        """Store one register."""
        self._words[register >> 2] = value & 0xFFFF_FFFF

    def clear(self) -> None:
        """Zero the whole block."""
        self.buf[self.at : self.at + BLOCK_BYTES] = bytes(BLOCK_BYTES)
