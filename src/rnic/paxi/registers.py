"""The register block of a window: 4 KB of 32-bit registers, as at PAXI's APB port.

Offsets below 0x400 are the documented ones of PAXI (``hardware.md`` 4 and its register map). Registers that have a
meaning over RDMA work; the others read 0. Choices of rnic are marked "choice": times are in nanoseconds, the cycles of
RC Link's 1 GHz clock, and all registers from 0x400 up are rnic's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rnic.paxi import bridge as b
from rnic.spec.layout import Layout, bits, flag, word
from rnic.spec.registers import Register

if TYPE_CHECKING:
    from rnic.paxi.port import Carrier

BLOCK_BYTES: Final = 0x1000
REVISION: Final = 1


_IRQ_FIELDS: Final = (
    flag("retry_error", b.IRQ_RETRY_ERROR, "a work request got no response until its retries were used up", "W1C"),
    flag("latency_done", b.IRQ_LATENCY_DONE, "a transaction was timed", "W1C"),
    flag("retry_cleared", b.IRQ_RETRY_CLEARED, "the connection was restored after a retry error", "W1C"),
)
_CTRL_FIELDS: Final = (
    flag("wstrb", 6, "strobes are carried; always 1", "RO"),
    flag("ost_limit", 12, "addresses are held back while all slots are taken; always 1", "RO"),
    flag("self_recover", 13, "reconnect after a retry error; 0: answer SLVERR until CTRL.recover", "RW"),
    flag("recover", 14, "write 1 to restore a lost connection; reads 0", "PULSE"),
)
_STATUS_FIELDS: Final = (
    flag("idle", 0, "no transaction is outstanding", "RO"),
    flag("tx_idle", 1, "no work request waits or is outstanding", "RO"),
    flag("rx_idle", 2, "no work request is outstanding", "RO"),
    flag("tx_error", 13, "a failed connection has not been restored", "RO"),
    bits("link", 0, 31, 30, "0 up, 1 broken, 2 down (choice)", "RO"),
)
_LATENCY_FIELDS: Final = (
    bits("id", 0, 15, 0, "AXI ID whose next read and write are timed"),
    flag("enable", 16, "a write of 1 starts the measurement"),
)
_RESULT_FIELDS: Final = (
    bits("ns", 0, 30, 0, "nanoseconds from address to response (choice)", "RO"),
    flag("done", 31, "there is a result", "RO"),
)
_SLOTS_FIELDS: Final = (
    bits("reads", 0, 15, 0, "most outstanding reads", "RO"),
    bits("writes", 0, 31, 16, "most outstanding writes", "RO"),
)

_KNOWN = "hardware.md 4: PAXI"
_CHOICE = "choice"

REGISTERS: Final = (
    Register("WATERMARK", 0x000, "RO", "revision", reset=REVISION, source=_KNOWN),
    Register("INT_MASK", 0x004, "RW", "1 masks the interrupt of the event", _IRQ_FIELDS, source=_KNOWN),
    Register("INT_INDICATOR", 0x008, "W1C", "events since they were last cleared", _IRQ_FIELDS, source=_KNOWN),
    Register("CTRL", 0x00C, "RW", "control; reset value is a choice", _CTRL_FIELDS, reset=0x3040, source=_KNOWN),
    Register("FRAME_LENGTH", 0x010, "RO", "payload bytes of the longest packet: the path MTU (choice)", source=_KNOWN),
    Register(
        "SOFT_RESET", 0x014, "PULSE", "write 1: answer all transactions with SLVERR, clear events, reconnect",
        source=_KNOWN,
    ),
    Register("FIFO_OVERFLOW", 0x018, "RO", "reads 0: slots bound all FIFOs", source=_KNOWN),
    Register("STATUS", 0x01C, "RO", "state of the bridge", _STATUS_FIELDS, reset=0x7, source=_KNOWN),
    Register("LATENCY_CTRL", 0x020, "RW", "measurement of one read and one write", _LATENCY_FIELDS, source=_KNOWN),
    Register("W_LATENCY", 0x024, "RO", "of the write", _RESULT_FIELDS, source=_KNOWN),
    Register("R_LATENCY", 0x028, "RO", "of the read", _RESULT_FIELDS, source=_KNOWN),
    Register("W_LATENCY_ID", 0x02C, "RO", "AWID of the write", source=_KNOWN),
    Register("W_LATENCY_ADDR_LO", 0x030, "RO", "its address, low half", source=_KNOWN),
    Register("W_LATENCY_ADDR_HI", 0x034, "RO", "its address, high half", source=_KNOWN),
    Register("R_LATENCY_ID", 0x038, "RO", "ARID of the read", source=_KNOWN),
    Register("R_LATENCY_ADDR_LO", 0x03C, "RO", "its address, low half", source=_KNOWN),
    Register("R_LATENCY_ADDR_HI", 0x040, "RO", "its address, high half", source=_KNOWN),
    Register("RETRY_ERROR", 0x300, "RO", "bit 0: the remote (destination 0) is lost", source=_KNOWN),
    Register("WINDOW_BASE_LO", 0x400, "RO", "bus address of the window, low half", source=_CHOICE),
    Register("WINDOW_BASE_HI", 0x404, "RO", "high half", source=_CHOICE),
    Register("WINDOW_SIZE_LO", 0x408, "RO", "bytes of the window, low half", source=_CHOICE),
    Register("WINDOW_SIZE_HI", 0x40C, "RO", "high half", source=_CHOICE),
    Register("REMOTE_LO", 0x410, "RO", "address of its first byte at the remote, low half", source=_CHOICE),
    Register("REMOTE_HI", 0x414, "RO", "high half", source=_CHOICE),
    Register("DATA_BITS", 0x418, "RO", "width of the bus", source=_CHOICE),
    Register("SLOTS", 0x41C, "RO", "outstanding slots", _SLOTS_FIELDS, source=_CHOICE),
    Register("READS", 0x440, "RO", "read bursts taken", source=_CHOICE),
    Register("WRITES", 0x444, "RO", "write bursts taken", source=_CHOICE),
    Register("READ_BYTES", 0x448, "RO", "requested bytes, modulo 2^32", source=_CHOICE),
    Register("WRITE_BYTES", 0x44C, "RO", "bytes with a strobe, modulo 2^32", source=_CHOICE),
    Register("REQUESTS", 0x450, "RO", "work requests posted", source=_CHOICE),
    Register("SPLIT_PIECES", 0x454, "RO", "extra work requests of writes with gaps in their strobes", source=_CHOICE),
    Register("SLVERRS", 0x458, "RO", "bursts answered with SLVERR", source=_CHOICE),
    Register("DECERRS", 0x45C, "RO", "bursts answered with DECERR", source=_CHOICE),
    Register("RECOVERIES", 0x460, "RO", "connections made anew", source=_CHOICE),
    Register("REPLAYS", 0x464, "RO", "work requests posted again on a new connection", source=_CHOICE),
)  # fmt: skip
OFFSETS: Final = {register.name: register.offset for register in REGISTERS}
_BY_OFFSET: Final = {register.offset: register for register in REGISTERS}

PAXI_REGISTERS = Layout(
    "PAXI registers",
    REGISTERS[-1].offset + 4,
    "little",
    "hardware.md 4; 0x400 up: choice",
    tuple(word(register.name, register.offset, register.doc, register.access) for register in REGISTERS),
)
PAXI_INTERRUPTS = Layout("INT_MASK, INT_INDICATOR", 4, "little", _KNOWN, _IRQ_FIELDS)
PAXI_CTRL = Layout("CTRL", 4, "little", _KNOWN, _CTRL_FIELDS)
PAXI_STATUS = Layout("STATUS", 4, "little", _KNOWN, _STATUS_FIELDS)
PAXI_LATENCY_CTRL = Layout("LATENCY_CTRL", 4, "little", _KNOWN, _LATENCY_FIELDS)
PAXI_LATENCY = Layout("W_LATENCY, R_LATENCY", 4, "little", _KNOWN, _RESULT_FIELDS)
PAXI_SLOTS = Layout("SLOTS", 4, "little", _CHOICE, _SLOTS_FIELDS)

_COUNTERS: Final = {
    "READS": "paxi_reads",
    "WRITES": "paxi_writes",
    "READ_BYTES": "paxi_read_bytes",
    "WRITE_BYTES": "paxi_write_bytes",
    "REQUESTS": "paxi_requests",
    "SPLIT_PIECES": "paxi_split_pieces",
    "SLVERRS": "paxi_slverr",
    "DECERRS": "paxi_decerr",
    "RECOVERIES": "paxi_recoveries",
    "REPLAYS": "paxi_replays",
}
_EVENTS: Final = sum(1 << field.lsb for field in _IRQ_FIELDS)
_MAX_NS: Final = PAXI_LATENCY["ns"].mask


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


class RegisterBlock:
    """Registers of one port. Offsets without a register read 0 and ignore writes."""

    def __init__(self, port: Carrier) -> None:
        self._port = port
        self._mask = 0
        self._latency_id = 0
        config = port.bridge.config
        self._constant = {
            "WATERMARK": REVISION,
            "FIFO_OVERFLOW": 0,
            "SOFT_RESET": 0,
            "WINDOW_BASE_LO": config.base & 0xFFFF_FFFF,
            "WINDOW_BASE_HI": config.base >> 32,
            "WINDOW_SIZE_LO": config.size & 0xFFFF_FFFF,
            "WINDOW_SIZE_HI": config.size >> 32,
            "REMOTE_LO": config.remote & 0xFFFF_FFFF,
            "REMOTE_HI": config.remote >> 32,
            "DATA_BITS": config.data_bits,
            "SLOTS": _number(PAXI_SLOTS.pack({"reads": config.read_slots, "writes": config.write_slots})),
        }
        self._computed: dict[str, Callable[[], int]] = {
            "INT_MASK": lambda: self._mask,
            "INT_INDICATOR": lambda: port.bridge.interrupts,
            "CTRL": self._ctrl,
            "FRAME_LENGTH": lambda: port.mtu,
            "STATUS": self._status,
            "LATENCY_CTRL": self._latency_ctrl,
            "RETRY_ERROR": lambda: int(port.bridge.link == b.DOWN),
        }
        for letter, write in (("W", True), ("R", False)):
            self._computed |= self._latency_registers(letter, write)

    def _latency_registers(self, letter: str, write: bool) -> dict[str, Callable[[], int]]:
        return {
            f"{letter}_LATENCY": lambda: self._latency(write),
            f"{letter}_LATENCY_ID": lambda: self._timed(write, "id"),
            f"{letter}_LATENCY_ADDR_LO": lambda: self._timed(write, "addr") & 0xFFFF_FFFF,
            f"{letter}_LATENCY_ADDR_HI": lambda: self._timed(write, "addr") >> 32,
        }

    @property
    def interrupt(self) -> bool:
        """Interrupt line: true while an unmasked event is set."""
        return bool(self._port.bridge.interrupts & ~self._mask)

    def read32(self, offset: int) -> int:
        """Return the register at byte ``offset``."""
        register = _BY_OFFSET.get(offset)
        if register is None:
            return 0
        name = register.name
        if name in _COUNTERS:
            return self._port.bridge.counters[_COUNTERS[name]] & 0xFFFF_FFFF
        return self._constant[name] if name in self._constant else self._computed[name]()

    def write32(self, offset: int, value: int) -> None:
        """Write a register; writes to read-only ones are ignored."""
        register = _BY_OFFSET.get(offset)
        name = register.name if register is not None else ""
        port = self._port
        bridge = port.bridge
        data = (value & 0xFFFF_FFFF).to_bytes(4, "little")
        if name == "INT_MASK":
            self._mask = value & _EVENTS
        elif name == "INT_INDICATOR":
            bridge.interrupts &= ~value
        elif name == "CTRL":
            bridge.self_recover = bool(PAXI_CTRL.get(data, "self_recover"))
            if PAXI_CTRL.get(data, "recover"):
                port.recover()
        elif name == "SOFT_RESET" and value & 1:
            bridge.stop()
            port.wait(lambda: bridge.link != b.BROKEN)
            port.recover()
            bridge.interrupts = 0
            bridge.counters.clear()
        elif name == "LATENCY_CTRL":
            self._latency_id = PAXI_LATENCY_CTRL.get(data, "id")
            bridge.wanted_id = None
            if PAXI_LATENCY_CTRL.get(data, "enable"):
                bridge.wanted_id = self._latency_id
                bridge.latency.clear()

    def get(self, name: str) -> int:
        """Return a register by its name."""
        return self.read32(OFFSETS[name])

    def put(self, name: str, value: int) -> None:
        """Write a register by its name."""
        self.write32(OFFSETS[name], value)

    def snapshot(self) -> dict[str, int]:
        """Return every register by name, in order of offset."""
        return {register.name: self.read32(register.offset) for register in REGISTERS}

    def _ctrl(self) -> int:
        recover = int(self._port.bridge.self_recover)
        return _number(PAXI_CTRL.pack({"wstrb": 1, "ost_limit": 1, "self_recover": recover}))

    def _status(self) -> int:
        bridge = self._port.bridge
        return _number(
            PAXI_STATUS.pack(
                {
                    "idle": int(bridge.idle),
                    "tx_idle": int(not bridge.waiting),
                    "rx_idle": int(bridge.drained),
                    "tx_error": int(bridge.link == b.BROKEN),
                    "link": bridge.link,
                }
            )
        )

    def _latency_ctrl(self) -> int:
        enabled = int(self._port.bridge.wanted_id is not None)
        return _number(PAXI_LATENCY_CTRL.pack({"id": self._latency_id, "enable": enabled}))

    def _latency(self, write: bool) -> int:
        found = self._port.bridge.latency.get(write)
        return 0 if found is None else _number(PAXI_LATENCY.pack({"ns": min(found[0], _MAX_NS), "done": 1}))

    def _timed(self, write: bool, field: str) -> int:
        found = self._port.bridge.latency.get(write)
        return 0 if found is None else int(getattr(found[1], field))
