"""The NIC's registers as tables: the classes of register tables, and the global block (000, 001 3.2).

A driver's window begins with the 256-byte global block; the queue blocks follow, block ``n`` at ``n * 128``.
Offsets 0x00 to 0x1C are the documented global registers (``hardware.md`` 1a), 0x20 to 0x7C belong to the
descriptor engine's one queue pair and are reserved here, 0x80 holds the command register (``hardware.md`` 2a), and
identity and limits follow. Access rules for every offset of the window:

* 32-bit, aligned. A misaligned or reserved offset, or one beyond the window, reads 0 and ignores stores. A store to a
* read-only register changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from rnic.spec.layout import Field, Layout, bits, flag

Access = Literal["RW", "RO", "W1C", "PULSE", "SPLIT"]
"""``W1C``: ones clear bits. ``PULSE``: a store has an effect but no value is kept; reads 0. ``SPLIT``: loads and stores
access different values."""


@dataclass(frozen=True, slots=True)
class Register:
    """One 32-bit register at byte ``offset``; ``fields`` name its bits if it holds several values."""

    name: str
    offset: int
    access: Access
    doc: str
    fields: tuple[Field, ...] = ()
    reset: int = 0
    source: str = "hardware.md 1a"

    def field(self, name: str) -> Field:
        """Return the field ``name``; ``KeyError`` if there is none."""
        for candidate in self.fields:
            if candidate.name == name:
                return candidate
        raise KeyError(f"register {self.name} has no field {name!r}")

    def mask(self, *accesses: str) -> int:
        """Return the bits that have one of these kinds of access."""
        if not self.fields:
            return 0xFFFF_FFFF if self.access in accesses else 0
        return sum(field.mask << field.lsb for field in self.fields if field.access in accesses)


@dataclass(frozen=True, slots=True)
class WideRegister:
    """One 64-bit register at byte ``offset``, for each queue pair if ``per_qp``."""

    name: str
    offset: int
    doc: str
    fields: tuple[Field, ...]
    source: str = "hardware.md §4"
    per_qp: bool = False

    def get(self, value: int, field: str) -> int:
        """Return one field of a register value."""
        for row in self.fields:
            if row.name == field:
                return value >> row.lsb & row.mask
        raise KeyError(f"{self.name} has no field {field!r}")

    def pack(self, **values: int) -> int:
        """Return a value with these fields; others are 0. ``ValueError`` if one does not fit."""
        out = 0
        for row in self.fields:
            value = values.pop(row.name, 0)
            if not 0 <= value <= row.mask:
                raise ValueError(f"{self.name}.{row.name}={value:#x} does not fit in {row.width} bits")
            out |= value << row.lsb
        if values:
            raise ValueError(f"{self.name} has no field {next(iter(values))!r}")
        return out


GLOBAL_BYTES: Final = 0x100

CONTROL: Final = 0x00
HW_STATUS: Final = 0x04
IRQ_ENABLE: Final = 0x08
IRQ_STATUS: Final = 0x0C
SCRATCH: Final = 0x10
SCRATCH2: Final = 0x1C
HCR_IN_HI: Final = 0x80
HCR_IN_LO: Final = 0x84
HCR_MODIFIER: Final = 0x88
HCR_OUT_HI: Final = 0x8C
HCR_OUT_LO: Final = 0x90
HCR_TOKEN: Final = 0x94
HCR_COMMAND: Final = 0x98
DEVICE_ID: Final = 0xA0
REVISION: Final = 0xA4
GUID_HI: Final = 0xA8
GUID_LO: Final = 0xAC
LIMIT_QUEUES: Final = 0xB0
LIMIT_MEMORY: Final = 0xB4
WINDOW_BLOCKS: Final = 0xB8
PORT: Final = 0xBC
NON_RDMA: Final = 0xC0

CONTROL_ENABLE: Final = 1 << 0
CONTROL_RESET: Final = 1 << 1
CONTROL_PAUSE: Final = 1 << 2
CONTROL_MODE: Final = 0xF << 4
CONTROL_IRQ: Final = 1 << 8

STATUS_ENABLED: Final = 1 << 0
STATUS_READY: Final = 1 << 1
STATUS_PAUSED: Final = 1 << 2
STATUS_LINK: Final = 1 << 3
STATUS_FATAL: Final = 1 << 4
STATUS_BUSY: Final = 1 << 5

IRQ_EVENT: Final = 1 << 0
IRQ_COMMAND: Final = 1 << 1
IRQ_QP_FAULT: Final = 1 << 2
IRQ_PORT: Final = 1 << 3
IRQ_FATAL: Final = 1 << 4
IRQ_NON_RDMA: Final = 1 << 5
IRQ_CNP: Final = 1 << 6
IRQ_BITS: Final = (1 << 7) - 1

HCR_GO: Final = 1 << 23
HCR_EVENT: Final = 1 << 22


_CAUSES = (
    ("EVENT", "an event queue got an entry"),
    ("COMMAND", "a command that requested an event is complete"),
    ("QP_FAULT", "a queue pair failed (004 7.3)"),
    ("PORT_CHANGE", "the link went up or down"),
    ("FATAL", "the device failed: an event queue cannot be written"),
    ("NON_RDMA", "the non-RDMA channel holds frames (004 7.6)"),
    ("CNP", "a congestion notification came (004 7.4)"),
)

GLOBAL_REGISTERS: tuple[Register, ...] = (
    Register(
        "CONTROL",
        CONTROL,
        "RW",
        "global control of the NIC",
        (
            flag("ENABLE", 0, "0: ignore doorbells, send nothing, drop received packets", "RW"),
            flag("SOFT_RESET", 1, "1 destroys every object of every context and resets these registers", "PULSE"),
            flag("PAUSE", 2, "1: stop fetching, sending and timers; still process received packets", "RW"),
            bits("MODE", 0, 7, 4, "stored, no effect: the link decides where packets go", "RW"),
            flag("GLOBAL_IRQ_EN", 8, "gates the interrupt line, not MSI-X vectors", "RW"),
        ),
        source="000, 001; hardware.md 1a",
    ),
    Register(
        "HW_STATUS",
        HW_STATUS,
        "RO",
        "state of the NIC",
        (
            flag("ENABLED", 0, "CONTROL.ENABLE holds", "RO"),
            flag("READY", 1, "INIT_HCA was done", "RO"),
            flag("PAUSED", 2, "CONTROL.PAUSE holds", "RO"),
            flag("LINK_UP", 3, "the port's link is up", "RO"),
            flag("FATAL", 4, "the device failed; soft reset clears it", "RO"),
            flag("BUSY", 5, "queue pairs have work", "RO"),
        ),
        source="000, 001; hardware.md 1a",
    ),
    Register(
        "IRQ_ENABLE",
        IRQ_ENABLE,
        "RW",
        "causes that raise the interrupt line",
        tuple(flag(name, bit, doc, "RW") for bit, (name, doc) in enumerate(_CAUSES)),
        source="000, 001; hardware.md 1a",
    ),
    Register(
        "IRQ_STATUS",
        IRQ_STATUS,
        "W1C",
        "interrupt causes since the last clear",
        tuple(flag(name, bit, doc, "W1C") for bit, (name, doc) in enumerate(_CAUSES)),
        source="hardware.md 1a (RTL)",
    ),
    Register("SCRATCH", SCRATCH, "RW", "scratch, stored without effect"),
    Register("SCRATCH2", SCRATCH2, "RW", "scratch, stored without effect"),
    Register("HCR_IN_PARAM_HI", HCR_IN_HI, "RW", "address of the input mailbox, high half", source="hardware.md 2a"),
    Register("HCR_IN_PARAM_LO", HCR_IN_LO, "RW", "address of the input mailbox, low half", source="hardware.md 2a"),
    Register("HCR_IN_MODIFIER", HCR_MODIFIER, "RW", "number or key that the command acts on", source="hardware.md 2a"),
    Register(
        "HCR_OUT_PARAM_HI",
        HCR_OUT_HI,
        "RW",
        "address of the output mailbox, then high half of the output parameter",
        source="hardware.md 2a",
    ),
    Register("HCR_OUT_PARAM_LO", HCR_OUT_LO, "RW", "the same, low half", source="hardware.md 2a"),
    Register(
        "HCR_TOKEN",
        HCR_TOKEN,
        "RW",
        "returned in the completion event",
        (bits("TOKEN", 0, 31, 16, "the driver's own number for the command", "RW"),),
        source="hardware.md 2a",
    ),
    Register(
        "HCR_COMMAND",
        HCR_COMMAND,
        "RW",
        "a store with GO runs the command in the HCR",
        (
            bits("STATUS", 0, 31, 24, "status of the last command", "RO"),
            flag("GO", 23, "1 runs the command; reads 0 once it is complete", "RW"),
            flag("E", 22, "completion also raises an event", "RW"),
            bits("OP_MODIFIER", 0, 19, 12, "modifier of the opcode", "RW"),
            bits("OPCODE", 0, 11, 0, "command", "RW"),
        ),
        source="hardware.md 2a",
    ),
    Register("DEVICE_ID", DEVICE_ID, "RO", "device type", reset=0x524E, source="design.md"),
    Register("REVISION", REVISION, "RO", "version of this register map", reset=1, source="design.md"),
    Register("GUID_HI", GUID_HI, "RO", "node GUID, high half", source="design.md"),
    Register("GUID_LO", GUID_LO, "RO", "node GUID, low half", source="design.md"),
    Register(
        "LIMIT_QUEUES",
        LIMIT_QUEUES,
        "RO",
        "most queues of each kind",
        (
            bits("LOG_QPS", 0, 7, 0, "log2 of the number of queue pairs", "RO"),
            bits("LOG_CQS", 0, 15, 8, "log2 of the number of CQs", "RO"),
            bits("LOG_SRQS", 0, 23, 16, "log2 of the number of SRQs", "RO"),
            bits("LOG_EQS", 0, 31, 24, "log2 of the number of EQs and vectors", "RO"),
        ),
        source="design.md",
    ),
    Register("LIMIT_MEMORY", LIMIT_MEMORY, "RO", "regions and windows that may exist at once", source="design.md"),
    Register(
        "WINDOW_BLOCKS",
        WINDOW_BLOCKS,
        "RO",
        "128-byte blocks in a window; the global block counts as two",
        source="design.md",
    ),
    Register(
        "PORT",
        PORT,
        "RO",
        "the port",
        (
            bits("UDP_PORT", 0, 15, 0, "UDP port that the NIC receives on", "RO"),
            bits("MTU", 0, 18, 16, "code of the active path MTU", "RO"),
            bits("STATE", 0, 23, 20, "1 down, 4 active", "RO"),
        ),
        source="design.md",
    ),
    Register("NON_RDMA", NON_RDMA, "RO", "frames waiting on the non-RDMA channel", source="004 7.6"),
)
"""The global block, sorted by offset."""

GLOBAL_AT = {register.offset: register for register in GLOBAL_REGISTERS}


def global_layout() -> Layout:
    """Return the global block as one layout, for the pages and the C header, with a field per register or per bit
    field."""
    fields: list[Field] = []
    for register in GLOBAL_REGISTERS:
        if register.fields:
            for field in register.fields:
                name = f"{register.name}_{field.name}"
                fields.append(Field(name, register.offset, field.msb, field.lsb, field.doc, 4, field.access))
        else:
            fields.append(Field(register.name, register.offset, 31, 0, register.doc, 4, register.access))
    return Layout("global block", GLOBAL_BYTES, "little", "000; 001; hardware.md 1a, 2a", tuple(fields))


GLOBAL_BLOCK = global_layout()


def queue_registers(block: Layout) -> tuple[Register, ...]:
    """Return the registers of a queue block from its layout."""
    rows = []
    for field in block.fields:
        access: Access = "RW" if field.access == "RW" else "RO"
        rows.append(Register(field.name, field.byte, access, field.doc, source=block.source))
    return tuple(rows)
