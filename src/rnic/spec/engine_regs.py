"""The descriptor engine's registers, state codes, error codes and DataMover words (000, 001, ``hardware.md`` 1).

The gateware's register block is generated from this table; driver, documentation and tests read it. Offsets 0x00 to
0x7F are the documented map in its RTL form. Everything from 0x80 up is rnic's own, as are the fields of HW_STATUS and
IRQ_STATUS: the documents name these registers without defining them.
"""

from __future__ import annotations

from typing import Final

from rnic.spec.layout import Field, Layout, bits, flag, octet, wide, word
from rnic.spec.registers import Register

# ---------------------------------------------------------------- address windows of the AXI4-Lite slave

AXIL_ADDRESS_BITS: Final = 14
NARROW_ADDRESS_BITS: Final = 32
"""Address bits of the documented engine, which uses the low half of every address."""
ENGINE_BASE: Final = 0x0000
ENCAP_BASE: Final = 0x0100
DECAP_BASE: Final = 0x0200
LOOKUP_BASE: Final = 0x2000
ENGINE_BYTES: Final = 0x100
ENCAP_BYTES: Final = 0x100
DECAP_BYTES: Final = 0x100
LOOKUP_BYTES: Final = 0x2000
"""256 endpoint entries of 32 bytes."""


# ---------------------------------------------------------------- codes

MODE_LOOPBACK: Final = 0
MODE_NETWORK: Final = 1

RDMA_STATES: Final = (
    "S_IDLE",
    "S_PREPARE_READ",
    "S_READ_CMD",
    "S_WAIT_READ_DONE",
    "S_IS_STREAM_BUSY",
    "S_SEND_TX_CMD",
    "S_WAIT_TX_CPL",
    "S_PREPARE_WRITE",
    "S_WRITE_CMD",
    "S_START_STREAM",
    "S_WAIT_WRITE_DONE",
)
"""States of ``rdma_controller``; the index is the code that registers show."""

CMD_STATES: Final = ("IDLE", "SEND_CMD", "WAIT_MM2S", "WAIT_S2MM")
"""States of ``data_mover_axi_cmd_master``."""

PARSER_STATES: Final = ("IDLE", "RECEIVE")
STREAMER_STATES: Final = ("IDLE", "SEND_STREAM")
"""States of the descriptor parser and of the CQ entry streamer."""

TX_STATES: Final = (
    "IDLE",
    "INIT_FRAGMENT",
    "PROGRAM_HEADER",
    "START_HEADER",
    "ISSUE_DM_CMD",
    "WAIT_DM_STS",
    "WAIT_HDR_DONE",
    "UPDATE_STATE",
    "SEND_CPL",
)
"""States of ``tx_streamer``."""

INSERTER_STATES: Final = ("IDLE", "SEND_HEADER", "SEND_DATA")
HEADER_PARSER_STATES: Final = ("IDLE", "PARSE_HEADER", "FORWARD_DATA")

RX_STATES: Final = ("IDLE", "CHECK_OPCODE", "PREPARE_CMD", "ISSUE_DM_CMD", "WAIT_COMPLETE")
"""States of ``rx_streamer``."""

WRITE_OPCODES: Final = {
    0x01: "WRITE_TEST",
    0x06: "WRITE_FIRST",
    0x07: "WRITE_MIDDLE",
    0x08: "WRITE_LAST",
    0x0A: "WRITE_ONLY",
}
"""Opcodes that ``rx_streamer`` writes to memory; it drains every other packet (001 3.5)."""

TX_PSN: Final = 1
TX_PKEY: Final = 0xFFFF
TX_SERVICE_LEVEL: Final = 0
"""Header fields that the controller does not take from the descriptor (000 5.3.1)."""

ERR_NONE: Final = 0
ERR_SQ_FETCH: Final = 1
ERR_LOCAL_BUS: Final = 2
ERR_REMOTE_BUS: Final = 3
ERR_CQ_WRITE: Final = 4
ERR_LOCAL_WINDOW: Final = 5
ERR_REMOTE_WINDOW: Final = 6
ERR_ZERO_LENGTH: Final = 7
ERR_LENGTH: Final = 8
ERR_TIMEOUT: Final = 9
ERR_TAIL: Final = 10
ERR_NET_META: Final = 11
ERR_NET_LOOKUP: Final = 12
ERR_NET_DISABLED: Final = 13
ERR_NET_LENGTH: Final = 14

ENGINE_ERROR_NAMES: Final = {
    ERR_NONE: "none",
    ERR_SQ_FETCH: "bus error while the descriptor was read",
    ERR_LOCAL_BUS: "bus error while the payload was read",
    ERR_REMOTE_BUS: "bus error while the payload was written",
    ERR_CQ_WRITE: "the CQ entry could not be written",
    ERR_LOCAL_WINDOW: "local address outside the local window",
    ERR_REMOTE_WINDOW: "remote address outside the remote window",
    ERR_ZERO_LENGTH: "length 0",
    ERR_LENGTH: "packet longer or shorter than its header says",
    ERR_TIMEOUT: "the watchdog ran out",
    ERR_TAIL: "SQ_TAIL is not below SQ_SIZE",
    ERR_NET_META: "not sent: an address or port of the encapsulator is 0",
    ERR_NET_LOOKUP: "not sent: the destination IP has no endpoint entry",
    ERR_NET_DISABLED: "not sent: the encapsulator is not enabled",
    ERR_NET_LENGTH: "not sent: packet and META have different lengths, or too long ones",
}
"""Detail of a failure: HW_STATUS.error, and ``vendor_err`` of the CQ entry. The status beside it is 001's 0 to 4."""

# ---------------------------------------------------------------- registers

STATUS_OF_DETAIL: Final = {
    ERR_SQ_FETCH: 1,
    ERR_LOCAL_BUS: 1,
    ERR_REMOTE_BUS: 2,
    ERR_LOCAL_WINDOW: 1,
    ERR_REMOTE_WINDOW: 2,
    ERR_ZERO_LENGTH: 3,
    ERR_LENGTH: 3,
    ERR_TIMEOUT: 4,
    ERR_NET_META: 2,
    ERR_NET_LOOKUP: 2,
    ERR_NET_DISABLED: 2,
    ERR_NET_LENGTH: 3,
}
"""001's status for each ERR_* code that a CQ entry can carry."""

CONTROL_FIELDS: Final = (
    flag("global_enable", 0, "the controller accepts work"),
    flag("soft_reset", 1, "write 1: stop, drain the bus, queue pointers to 0; reads 1 until that is done"),
    flag("pause", 2, "finish the current descriptor, fetch no other"),
    bits("mode", 0, 7, 4, "0 loopback, 1 network"),
    flag("global_irq_en", 8, "enable the interrupt output"),
)
HW_STATUS_FIELDS: Final = (
    flag("busy", 0, "processing a descriptor or a packet", "RO"),
    flag("resetting", 1, "a soft reset is in progress", "RO"),
    flag("cq_full", 2, "a completion waits for CQ_HEAD to move", "RO"),
    flag("halted", 3, "a CQ entry could not be written; only a reset helps", "RO"),
    flag("paused", 4, "CONTROL.pause holds the controller in S_IDLE", "RO"),
    flag("flushing", 5, "an aborted transfer is still draining from the bus", "RO"),
    bits("error", 0, 11, 8, "code of the last error, ERR_*", "RO"),
    bits("rdma_state", 0, 19, 16, "state of the controller", "RO"),
    bits("rx_state", 0, 22, 20, "state of rx_streamer", "RO"),
    bits("tx_state", 0, 27, 24, "state of tx_streamer", "RO"),
)
IRQ_FIELDS: Final = (
    flag("completion", 0, "a CQ entry was written", "W1C"),
    flag("error", 1, "a CQ entry with a status other than 0 was written, or SQ_TAIL is not below SQ_SIZE", "W1C"),
    flag("watchdog", 2, "the watchdog ended a transfer", "W1C"),
    flag("cq_full", 3, "the completion queue became full", "W1C"),
    flag("rx_drop", 4, "a received packet was discarded", "W1C"),
    flag("rx_error", 5, "a received payload could not be written", "W1C"),
    flag("halted", 6, "the controller halted", "W1C"),
    flag("net_error", 7, "the encapsulator or decapsulator reported an error", "W1C"),
)

REGISTERS: Final = (
    Register("CONTROL", 0x00, "RW", "enable, reset, pause, mode, interrupt enable", CONTROL_FIELDS),
    Register("HW_STATUS", 0x04, "RO", "current state, and the last error", HW_STATUS_FIELDS),
    Register("IRQ_ENABLE", 0x08, "RW", "IRQ_STATUS bits that raise the interrupt"),
    Register("IRQ_STATUS", 0x0C, "W1C", "events since they were last cleared", IRQ_FIELDS),
    Register("SCRATCH0", 0x10, "RW", "stored, no effect"),
    Register("RESERVED0", 0x14, "RO", "reads 0"),
    Register("RESERVED1", 0x18, "RO", "reads 0"),
    Register("SCRATCH1", 0x1C, "RW", "stored, no effect"),
    Register("SQ_BASE_LO", 0x20, "RW", "submission queue base, low half; a multiple of 64"),
    Register("SQ_BASE_HI", 0x24, "RW", "submission queue base, high half; stored, no effect with 32 address bits"),
    Register("SQ_SIZE", 0x28, "RW", "entries of the submission queue; 16 bits are used"),
    Register("SQ_HEAD", 0x2C, "RO", "next descriptor that the engine takes"),
    Register("SQ_TAIL", 0x30, "RW", "next descriptor that software fills; a write rings the doorbell"),
    Register("SQ_DOORBELL", 0x34, "PULSE", "any write rings the doorbell, the tail stays; reads 0"),
    Register("SQ_FLAGS", 0x38, "RW", "stored, no effect"),
    Register("SQ_STRIDE", 0x3C, "RW", "stored, no effect"),
    Register("CQ_BASE_LO", 0x40, "RW", "completion queue base, low half; a multiple of 32"),
    Register("CQ_BASE_HI", 0x44, "RW", "completion queue base, high half; stored, no effect with 32 address bits"),
    Register("CQ_SIZE", 0x48, "RW", "entries of the completion queue; 16 bits are used"),
    Register("CQ_HEAD", 0x4C, "RW", "next entry that software takes"),
    Register("CQ_TAIL", 0x50, "RO", "next entry that the engine fills"),
    Register("CQ_DOORBELL", 0x54, "SPLIT", "write: pulse, no effect; read: state of the controller"),
    Register("CQ_FLAGS", 0x58, "SPLIT", "write: stored, no effect; read: state of the command master"),
    Register("LOCAL_KEY_HI", 0x5C, "RO", "current descriptor: local address, high half"),
    Register("REMOTE_KEY_LO", 0x60, "RO", "current descriptor: remote address, low half"),
    Register("REMOTE_KEY_HI", 0x64, "RO", "current descriptor: remote address, high half"),
    Register("BTT0", 0x68, "RO", "current descriptor: word 6, the length"),
    Register("BTT1", 0x6C, "RO", "current descriptor: word 7"),
    Register("BTT2", 0x70, "RO", "current descriptor: word 8"),
    Register("BTT3", 0x74, "RO", "current descriptor: word 9"),
    Register("ENTRY_VALID", 0x78, "RO", "1 while a parsed descriptor is being processed"),
    Register("CONSTANT", 0x7C, "RO", "constant, to check bus access", reset=0x4C4C4C4C),
    Register(
        "LOCAL_WINDOW_BASE", 0x80, "RW", "first byte that payloads are read from", reset=0xFFFFFFFF, source="design.md"
    ),
    Register("LOCAL_WINDOW_LAST", 0x84, "RW", "last byte of that window; empty after reset", source="design.md"),
    Register(
        "REMOTE_WINDOW_BASE",
        0x88,
        "RW",
        "first byte that received payloads are written to",
        reset=0xFFFFFFFF,
        source="design.md",
    ),
    Register("REMOTE_WINDOW_LAST", 0x8C, "RW", "last byte of that window; empty after reset", source="design.md"),
    Register(
        "WATCHDOG",
        0x90,
        "RW",
        "cycles without progress after which a transfer ends with status 4; 0: never",
        source="design.md",
    ),
    Register(
        "PARAMETERS",
        0x94,
        "RO",
        "build parameters of this engine",
        (
            bits("bus_width", 0, 9, 0, "data width of the memory bus in bits", "RO"),
            flag("serial", 10, "one fragment at a time, as documented", "RO"),
            flag("network", 11, "it has MAC ports", "RO"),
            bits("address_bits", 0, 15, 12, "address bits beyond 32, in fours", "RO"),
            bits("block_size", 0, 31, 16, "largest fragment in bytes", "RO"),
        ),
        source="ours",
    ),
    Register("DOORBELLS", 0x98, "RO", "doorbells rung since reset", source="ours"),
    Register("TX_PACKETS", 0x9C, "RO", "packets sent since reset", source="ours"),
    Register("RX_PACKETS", 0xA0, "RO", "packets written to memory since reset", source="ours"),
    Register("RX_DROPS", 0xA4, "RO", "received packets discarded since reset", source="ours"),
    Register("RX_ERRORS", 0xA8, "RO", "received packets whose payload could not be written whole", source="ours"),
)
"""The register map. WATCHDOG's value after reset is a parameter of the engine."""

WIDE_REGISTERS: Final = (
    Register("LOCAL_WINDOW_BASE_HI", 0xAC, "RW", "LOCAL_WINDOW_BASE, high half", reset=0xFFFFFFFF, source="ours"),
    Register("LOCAL_WINDOW_LAST_HI", 0xB0, "RW", "LOCAL_WINDOW_LAST, high half", source="ours"),
    Register("REMOTE_WINDOW_BASE_HI", 0xB4, "RW", "REMOTE_WINDOW_BASE, high half", reset=0xFFFFFFFF, source="ours"),
    Register("REMOTE_WINDOW_LAST_HI", 0xB8, "RW", "REMOTE_WINDOW_LAST, high half", source="ours"),
)
"""Registers of engines with more than 32 address bits. Bits above the address width are stored without effect."""

DOCUMENTED_DEBUG: Final = (
    Register("CQ_DOORBELL", 0x54, "RW", "stored, no effect"),
    Register("CQ_FLAGS", 0x58, "RW", "stored, no effect"),
    Register("RDMA_STATE", 0x5C, "RO", "state of the controller"),
    Register("CMD_STATE", 0x60, "RO", "state of the command master"),
    Register("LOCAL_KEY_HI", 0x64, "RO", "current descriptor: local address, high half"),
    Register("REMOTE_KEY_LO", 0x68, "RO", "current descriptor: remote address, low half"),
    Register("REMOTE_KEY_HI", 0x6C, "RO", "current descriptor: remote address, high half"),
    Register("BTT0", 0x70, "RO", "current descriptor: word 6, the length"),
    Register("BTT1", 0x74, "RO", "current descriptor: word 7"),
    Register("BTT2", 0x78, "RO", "current descriptor: word 8"),
    Register("BTT3", 0x7C, "RO", "current descriptor: word 9"),
)
"""0x54 to 0x7C as in the register document where it differs from the RTL; an option of the engine."""


def register_map(documented_debug: bool = False, address_bits: int = NARROW_ADDRESS_BITS) -> tuple[Register, ...]:
    """Return all registers in order of offset, with the debug registers of the RTL or of the register document."""
    registers = REGISTERS + (WIDE_REGISTERS if address_bits > NARROW_ADDRESS_BITS else ())
    if not documented_debug:
        return registers
    replaced = range(DOCUMENTED_DEBUG[0].offset, DOCUMENTED_DEBUG[-1].offset + 4)
    kept = [register for register in registers if register.offset not in replaced]
    return tuple(sorted((*kept, *DOCUMENTED_DEBUG), key=lambda register: register.offset))


BY_NAME: Final = {register.name: register for register in (*REGISTERS, *WIDE_REGISTERS)}

OFFSETS: Final = {name: register.offset for name, register in BY_NAME.items()}
"""Byte offset of each register by name."""


def _as_layout(name: str, registers: tuple[Register, ...], source: str) -> Layout:
    return Layout(
        name,
        registers[-1].offset + 4,
        "little",
        source,
        tuple(word(register.name, register.offset, register.doc, register.access) for register in registers),
    )


ENGINE_REGISTERS = _as_layout("descriptor engine registers", REGISTERS, "hardware.md 1a; design.md")
CONTROL = Layout("CONTROL", 4, "little", "hardware.md 1a", CONTROL_FIELDS)
HW_STATUS = Layout("HW_STATUS", 4, "little", "design.md", HW_STATUS_FIELDS)
IRQ_STATUS = Layout("IRQ_STATUS", 4, "little", "hardware.md 1a; design.md", IRQ_FIELDS)

# ---------------------------------------------------------------- DataMover words

_DM_BITS = (
    bits("btt", 0, 22, 0, "bytes to transfer, 1 to 8388607"),
    bits("type", 0, 23, 23, "1: incrementing addresses (labelled EOF in 001)"),
    bits("dsa", 0, 29, 24, "DRE stream alignment, 0"),
    bits("eof", 0, 30, 30, "end of frame: the last beat carries TLAST (labelled DSA in 001)"),
    bits("drr", 0, 31, 31, "DRE realignment request, 0"),
)
DM_COMMAND = Layout(
    "DataMover command",
    9,
    "little",
    "001 3.6; PG022",
    (
        *_DM_BITS,
        word("address", 4, "byte address in memory"),
        octet("tag", 8, "bits 3:0 come back in the status; the documents send 0"),
    ),
)
"""72 bits. The bit values are 001's; the names of bits 31 to 23 are AMD PG022's (``design.md``)."""

DM_COMMAND_WIDE = Layout(
    "DataMover command, 64-bit address",
    13,
    "little",
    "PG022",
    (
        *_DM_BITS,
        wide("address", 4, "byte address in memory"),
        octet("tag", 12, "bits 3:0 come back in the status; 0"),
    ),
)
"""The same with PG022's 64-bit address, 104 bits long, for engines with more than 32 address bits."""

DM_STATUS = Layout(
    "DataMover status",
    1,
    "little",
    "PG022",
    (
        Field("tag", 0, 3, 0, "tag of the command", 1, "RO"),
        Field("interr", 0, 4, 4, "command refused, or the stream's length was not BTT", 1, "RO"),
        Field("decerr", 0, 5, 5, "the bus answered DECERR", 1, "RO"),
        Field("slverr", 0, 6, 6, "the bus answered SLVERR", 1, "RO"),
        Field("okay", 0, 7, 7, "no error", 1, "RO"),
    ),
)


def dm_command_layout(address_bits: int) -> Layout:
    """Return the layout of the command of an engine with this number of address bits."""
    return DM_COMMAND if address_bits <= NARROW_ADDRESS_BITS else DM_COMMAND_WIDE


def dm_command(address: int, btt: int, tag: int = 0, address_bits: int = NARROW_ADDRESS_BITS) -> int:
    """Return the command that the documents send, 72 bits with 32-bit addresses: incrementing, end of frame."""
    layout = dm_command_layout(address_bits)
    return int.from_bytes(layout.pack({"btt": btt, "type": 1, "eof": 1, "address": address, "tag": tag}), "little")
