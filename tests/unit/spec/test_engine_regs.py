"""The engine's tables against the same facts typed by hand from 000, 001 and ``hardware.md`` 1."""

from __future__ import annotations

from rnic.rings.cqe import CQ_ENTRY
from rnic.rings.sqe import SQ_ENTRY
from rnic.spec import engine_regs as regs
from rnic.spec.layout import Layout
from rnic.wire.engine_header import ENGINE_HEADER, ENGINE_HEADER_WIDE

MAP = """
00 RW CONTROL     04 RO HW_STATUS    08 RW IRQ_ENABLE  0C W1C IRQ_STATUS
10 RW SCRATCH0    14 RO RESERVED0    18 RO RESERVED1   1C RW SCRATCH1
20 RW SQ_BASE_LO  24 RW SQ_BASE_HI   28 RW SQ_SIZE     2C RO SQ_HEAD
30 RW SQ_TAIL     34 PULSE SQ_DOORBELL  38 RW SQ_FLAGS    3C RW SQ_STRIDE
40 RW CQ_BASE_LO  44 RW CQ_BASE_HI   48 RW CQ_SIZE     4C RW CQ_HEAD
50 RO CQ_TAIL     54 SPLIT CQ_DOORBELL  58 SPLIT CQ_FLAGS
5C RO LOCAL_KEY_HI  60 RO REMOTE_KEY_LO  64 RO REMOTE_KEY_HI
68 RO BTT0  6C RO BTT1  70 RO BTT2  74 RO BTT3  78 RO ENTRY_VALID  7C RO CONSTANT
80 RW LOCAL_WINDOW_BASE  84 RW LOCAL_WINDOW_LAST  88 RW REMOTE_WINDOW_BASE  8C RW REMOTE_WINDOW_LAST
90 RW WATCHDOG  94 RO PARAMETERS  98 RO DOORBELLS
9C RO TX_PACKETS  A0 RO RX_PACKETS  A4 RO RX_DROPS  A8 RO RX_ERRORS
"""
DOCUMENTED = """
54 RW CQ_DOORBELL  58 RW CQ_FLAGS  5C RO RDMA_STATE  60 RO CMD_STATE  64 RO LOCAL_KEY_HI
68 RO REMOTE_KEY_LO  6C RO REMOTE_KEY_HI  70 RO BTT0  74 RO BTT1  78 RO BTT2  7C RO BTT3
"""
RESETS = {"CONSTANT": 0x4C4C4C4C, "LOCAL_WINDOW_BASE": 0xFFFFFFFF, "REMOTE_WINDOW_BASE": 0xFFFFFFFF}


def typed(text: str) -> list[tuple[int, str, str]]:
    """(offset, access, name) of a map typed by hand."""
    words = text.split()
    return [(int(words[at], 16), words[at + 1], words[at + 2]) for at in range(0, len(words), 3)]


def test_the_register_map() -> None:
    found = [(register.offset, register.access, register.name) for register in regs.REGISTERS]
    assert found == typed(MAP)
    assert {register.name: register.reset for register in regs.REGISTERS if register.reset} == RESETS


def test_the_debug_registers_of_the_document() -> None:
    debug = [(register.offset, register.access, register.name) for register in regs.DOCUMENTED_DEBUG]
    assert debug == typed(DOCUMENTED)
    whole = [register.offset for register in regs.register_map(documented_debug=True)]
    assert whole == sorted(offset for offset, _access, _name in typed(MAP))


def test_the_registers_of_wide_addresses() -> None:
    wide = [(register.offset, register.access, register.name, register.reset) for register in regs.WIDE_REGISTERS]
    assert wide == [
        (0xAC, "RW", "LOCAL_WINDOW_BASE_HI", 0xFFFFFFFF),
        (0xB0, "RW", "LOCAL_WINDOW_LAST_HI", 0),
        (0xB4, "RW", "REMOTE_WINDOW_BASE_HI", 0xFFFFFFFF),
        (0xB8, "RW", "REMOTE_WINDOW_LAST_HI", 0),
    ]
    for debug in (False, True):
        without = regs.register_map(debug)
        assert regs.register_map(debug, 36) == (*without, *regs.WIDE_REGISTERS)
        assert regs.register_map(debug, 32) == without


def places(layout: Layout, *names: str) -> dict[str, tuple[int, int, int]]:
    """(first byte, highest bit, lowest bit) of the fields named, or of all."""
    return {
        field.name: (field.byte, field.msb, field.lsb) for field in layout.fields if not names or field.name in names
    }


def test_the_control_and_status_fields() -> None:
    assert places(regs.CONTROL) == {
        "global_enable": (0, 0, 0), "soft_reset": (0, 1, 1), "pause": (0, 2, 2), "mode": (0, 7, 4),
        "global_irq_en": (0, 8, 8),
    }  # fmt: skip
    assert places(regs.HW_STATUS) == {
        "busy": (0, 0, 0), "resetting": (0, 1, 1), "cq_full": (0, 2, 2), "halted": (0, 3, 3), "paused": (0, 4, 4),
        "flushing": (0, 5, 5), "error": (0, 11, 8), "rdma_state": (0, 19, 16), "rx_state": (0, 22, 20),
        "tx_state": (0, 27, 24),
    }  # fmt: skip
    names = ["completion", "error", "watchdog", "cq_full", "rx_drop", "rx_error", "halted", "net_error"]
    assert [field.name for field in regs.IRQ_FIELDS] == names
    assert [field.lsb for field in regs.IRQ_FIELDS] == list(range(8))


def test_the_state_codes() -> None:
    assert regs.RDMA_STATES == (
        "S_IDLE", "S_PREPARE_READ", "S_READ_CMD", "S_WAIT_READ_DONE", "S_IS_STREAM_BUSY", "S_SEND_TX_CMD",
        "S_WAIT_TX_CPL", "S_PREPARE_WRITE", "S_WRITE_CMD", "S_START_STREAM", "S_WAIT_WRITE_DONE",
    )  # fmt: skip
    assert regs.CMD_STATES == ("IDLE", "SEND_CMD", "WAIT_MM2S", "WAIT_S2MM")
    assert regs.TX_STATES == (
        "IDLE", "INIT_FRAGMENT", "PROGRAM_HEADER", "START_HEADER", "ISSUE_DM_CMD", "WAIT_DM_STS", "WAIT_HDR_DONE",
        "UPDATE_STATE", "SEND_CPL",
    )  # fmt: skip
    assert regs.RX_STATES == ("IDLE", "CHECK_OPCODE", "PREPARE_CMD", "ISSUE_DM_CMD", "WAIT_COMPLETE")
    assert regs.INSERTER_STATES == ("IDLE", "SEND_HEADER", "SEND_DATA")
    assert regs.HEADER_PARSER_STATES == ("IDLE", "PARSE_HEADER", "FORWARD_DATA")


def test_the_codes_of_the_wire() -> None:
    assert sorted(regs.WRITE_OPCODES) == [0x01, 0x06, 0x07, 0x08, 0x0A]
    assert (regs.TX_PSN, regs.TX_PKEY, regs.TX_SERVICE_LEVEL) == (1, 0xFFFF, 0)


def test_the_datamover_words() -> None:
    # 000 5.4.2: {8'b0, addr, 1'b0, 1'b1, 6'b0, 1'b1, btt}
    assert regs.dm_command(0x1000_0040, 64) == int("001000004040800040", 16)
    assert places(regs.DM_COMMAND) == {
        "btt": (0, 22, 0), "type": (0, 23, 23), "dsa": (0, 29, 24), "eof": (0, 30, 30), "drr": (0, 31, 31),
        "address": (4, 31, 0), "tag": (8, 7, 0),
    }  # fmt: skip
    assert places(regs.DM_COMMAND_WIDE) == places(regs.DM_COMMAND) | {"address": (4, 63, 0), "tag": (12, 7, 0)}
    assert regs.dm_command(0x12_1000_0040, 64, address_bits=40) == int("00000000121000004040800040", 16)
    assert places(regs.DM_STATUS) == {
        "tag": (0, 3, 0), "interr": (0, 4, 4), "decerr": (0, 5, 5), "slverr": (0, 6, 6), "okay": (0, 7, 7),
    }  # fmt: skip


def test_the_layouts_of_001() -> None:
    assert places(SQ_ENTRY, "wqe_id", "opcode", "local_addr", "remote_addr", "length") == {
        "wqe_id": (0, 31, 0), "opcode": (4, 15, 0), "local_addr": (8, 63, 0), "remote_addr": (16, 63, 0),
        "length": (24, 31, 0),
    }  # fmt: skip
    names = ("index", "status", "bytes", "wqe_id", "requested")
    assert places(CQ_ENTRY, *names) == {
        "index": (0, 31, 0), "status": (4, 7, 0), "bytes": (8, 31, 0), "wqe_id": (16, 31, 0), "requested": (20, 31, 0),
    }  # fmt: skip
    assert places(ENGINE_HEADER) == {
        "opcode": (0, 7, 0), "psn": (0, 31, 8), "dqpn": (4, 23, 0), "remote_addr": (8, 31, 0),
        "fragment_offset": (12, 31, 0), "length": (16, 31, 0), "pkey": (20, 15, 0), "service_level": (24, 7, 0),
        "marker": (24, 31, 8),
    }  # fmt: skip
    assert places(ENGINE_HEADER_WIDE) == places(ENGINE_HEADER) | {
        "fragment_offset": (12, 23, 0), "remote_addr_39_32": (4, 31, 24), "remote_addr_55_40": (22, 15, 0),
        "remote_addr_63_56": (12, 31, 24),
    }  # fmt: skip
