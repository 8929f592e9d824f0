"""RC Link's registers as a table: 64 bits each, byte offsets (``hardware.md`` §4).

Registers of §4 have its offsets; those from 300h and from 2090h are rnic's own, for functions without a register in §4.
The registers of a QP form one block, which shows the QP selected by QP_ID_SET.

* Accesses are 64-bit and aligned. A misaligned or unlisted offset reads 0 and ignores writes.
* A write to a read-only field has no effect.
* Offsets of unsupported features read 0, and a write to one raises an error that names the feature.
"""

from __future__ import annotations

from typing import Final

from rnic.spec.layout import Field, Layout
from rnic.spec.registers import WideRegister

SOURCE: Final = "hardware.md §4"
CHOICE: Final = "choice"


def _bits(name: str, msb: int, lsb: int, doc: str, access: str = "RW") -> Field:
    return Field(name, 0, msb, lsb, doc, 8, access)


QP_BLOCK: Final = 0x2000

XON_THR_RDMA: Final = 0x0008
RETRY_TIMER_CFG: Final = 0x0040
INTR_STATUS: Final = 0x00A0
CC_WINDOW: Final = 0x0300
ACK_MERGE: Final = 0x0308
CNP_MERGE: Final = 0x0310
TX_CFG: Final = 0x0318
PORT: Final = 0x0320
OST_FREE: Final = 0x0328
IRQ_INFO: Final = 0x0330

DEST_IP: Final = 0x2008
DEST_MAC: Final = 0x2010
UDP_SRC_PORT: Final = 0x2018
QP_CONTROL: Final = 0x2028
EXPECT_RESP: Final = 0x2030
TX_LAST_PSN: Final = 0x2038
TX_ACK_SN: Final = 0x2040
TX_SPEED: Final = 0x2048
ACC_CNT: Final = 0x2050
TX_EPSN: Final = 0x2058
RETRY_CNT: Final = 0x2060
RX_PKEY: Final = 0x2070
REQ_CHK: Final = 0x2078
TX_MAX_FW: Final = 0x2080
QP_ID_SET: Final = 0x2088
DEST_IP6_HI: Final = 0x2090
DEST_IP6_LO: Final = 0x2098

INTR_OVERSIZE: Final = 1 << 0
INTR_OVER_CREDIT: Final = 1 << 1
INTR_RETRY_OUT: Final = 1 << 3
INTR_TX_DISABLED: Final = 1 << 14
INTR_RX_DISABLED: Final = 1 << 15

_PSN = (11, 0)


def _psn(name: str, doc: str) -> Field:
    return _bits(name, *_PSN, doc)


GLOBAL_REGISTERS: tuple[WideRegister, ...] = (
    WideRegister(
        "XON_THR_RDMA",
        XON_THR_RDMA,
        "buffers",
        (_bits("type1_free_busy", 50, 50, "slots of a QP are being freed", "RO"),),
    ),
    WideRegister(
        "RETRY_TIMER_CFG",
        RETRY_TIMER_CFG,
        "retry timeout and limits",
        (
            _bits("retry_timer", 12, 0, "retry timeout in units of 4.096 us (choice), at least 1"),
            _bits("retry_limit", 16, 13, "retries without progress after which the QP stops"),
            _bits("rnr_limit", 20, 17, "consecutive RNR NAKs after which it stops, 7 never (choice)"),
        ),
    ),
    WideRegister(
        "INTR_STATUS",
        INTR_STATUS,
        "interrupt causes since they were cleared",
        (
            _bits("oversize", 0, 0, "a packet to send was too long", "W1C"),
            _bits("over_credit", 1, 1, "a packet to send found no free slot", "W1C"),
            _bits("retry_out", 3, 3, "a QP's retries reached the limit", "W1C"),
            _bits("tx_disabled", 14, 14, "a packet to send was for a disabled QP", "W1C"),
            _bits("rx_disabled", 15, 15, "a packet arrived for a disabled QP", "W1C"),
        ),
    ),
    WideRegister(
        "CC_WINDOW", CC_WINDOW, "rate window", (_bits("code", 2, 0, "4.096 us shifted left by 0 to 4"),), CHOICE
    ),
    WideRegister(
        "ACK_MERGE",
        ACK_MERGE,
        "merging of ACKs",
        (_bits("time", 31, 0, "longest time in ns that an ACK waits to be merged"),),
        CHOICE,
    ),
    WideRegister(
        "CNP_MERGE",
        CNP_MERGE,
        "filtering of CNPs",
        (
            _bits("timer_thr", 31, 0, "TIMER_THR in ns: shortest time between two CNPs of a QP"),
            _bits("enable", 32, 32, "CNPs are filtered"),
        ),
        CHOICE,
    ),
    WideRegister(
        "TX_CFG",
        TX_CFG,
        "sending",
        (
            _bits("bank_rr", 0, 0, "the banks, by QPID[1:0], send in turn"),
            _bits("ack_time", 1, 1, "every ACK carries a timestamp"),
            _bits("cnp_halves", 2, 2, "a CNP halves the QP's rate for TIMER_THR"),
            _bits("icrc", 3, 3, "packets end with an ICRC", "RO"),
            _bits("tclass", 15, 8, "traffic class of QPs enabled after the write"),
        ),
        CHOICE,
    ),
    WideRegister(
        "PORT",
        PORT,
        "ports",
        (
            _bits("type1", 15, 0, "UDP port of TYPE1", "RO"),
            _bits("type2", 31, 16, "UDP port of TYPE2, which is refused", "RO"),
        ),
        CHOICE,
    ),
    WideRegister("OST_FREE", OST_FREE, "slots", (_bits("free", 11, 0, "number of EMPTY slots", "RO"),), CHOICE),
    WideRegister(
        "IRQ_INFO",
        IRQ_INFO,
        "oldest interrupt message, removed by the read; 0 for none",
        (
            _bits("code", 4, 0, "1 oversize, 2 retry out, 3 over-credit, 4 TX disabled, 5 RX disabled", "RO"),
            _bits("qpid", 17, 5, "QP", "RO"),
            _bits("type", 32, 31, "1: TYPE1", "RO"),
        ),
        CHOICE,
    ),
)

QP_REGISTERS: tuple[WideRegister, ...] = (
    WideRegister(
        "DEST_IP",
        DEST_IP,
        "the peer",
        (
            _bits("dest_ip_addr", 31, 0, "IPv4 address, 0 if DEST_IP6 is set"),
            _bits("dest_qpid", 55, 32, "QP there"),
        ),
    ),
    WideRegister(
        "DEST_MAC", DEST_MAC, "stored only; the system routes packets", (_bits("dest_mac_addr", 47, 0, "MAC"),)
    ),
    WideRegister(
        "UDP_SRC_PORT",
        UDP_SRC_PORT,
        "ports and partition key of sent packets",
        (
            _bits("udp_src_port", 15, 0, "preferred source port; links with one bound port use that port"),
            _bits("qp_p_key", 23, 16, "partition key"),
            _bits("udp_dest_port", 47, 32, "0 is 4793 (choice)"),
        ),
    ),
    WideRegister(
        "QP_CONTROL_STATUS",
        QP_CONTROL,
        "operation",
        (
            _bits("qp_en", 0, 0, "the QP sends and receives"),
            _bits("stopped", 1, 1, "the retry limit was reached (choice)", "RO"),
            _bits("free_buf_set", 15, 15, "write 1 to free the disabled QP's slots; reads 0 when done"),
        ),
    ),
    WideRegister(
        "EXPECT_RESP_PSN", EXPECT_RESP, "acknowledgement", (_psn("expect_resp_psn", "oldest unacknowledged PSN"),)
    ),
    WideRegister("TX_LAST_PSN", TX_LAST_PSN, "sending", (_psn("tx_last_psn", "PSN sent last"),)),
    WideRegister("TX_ACK_SN", TX_ACK_SN, "answering", (_psn("tx_epsn", "PSN after the last one acknowledged"),)),
    WideRegister(
        "TX_SPEED", TX_SPEED, "rate", (_bits("tx_speed_cfg", 21, 0, "length_thr: bytes per window; 0 blocks the QP"),)
    ),
    WideRegister("ACC_CNT", ACC_CNT, "rate", (_bits("acc_cnt", 31, 0, "bytes counted in the window", "RO"),), CHOICE),
    WideRegister("TX_EPSN", TX_EPSN, "sending", (_psn("tx_psn", "PSN of the next packet written into a slot"),)),
    WideRegister(
        "RETRY_CNT",
        RETRY_CNT,
        "retries without progress",
        (_bits("retry_counter", 3, 0, "NAKs and timeouts"), _bits("rnr_retry_counter", 7, 4, "RNR NAKs")),
    ),
    WideRegister(
        "RX_PKEY", RX_PKEY, "receiving", (_bits("qp_p_key", 7, 0, "partition key required in received packets"),)
    ),
    WideRegister("REQ_CHK_SN", REQ_CHK, "receiving", (_psn("rx_req_epsn", "expected PSN"),)),
    WideRegister("TX_MAX_FW_PSN", TX_MAX_FW, "sending", (_psn("max_forward_psn", "highest PSN ever sent"),)),
    WideRegister("QP_ID_SET", QP_ID_SET, "the block", (_bits("qp_id_set", 31, 0, "QP shown by the block"),)),
    WideRegister(
        "DEST_IP6_HI", DEST_IP6_HI, "the peer", (_bits("high", 63, 0, "IPv6 address, high half; 0 is none"),), CHOICE
    ),
    WideRegister("DEST_IP6_LO", DEST_IP6_LO, "the peer", (_bits("low", 63, 0, "IPv6 address, low half"),), CHOICE),
)

REGISTERS: tuple[WideRegister, ...] = GLOBAL_REGISTERS + QP_REGISTERS
"""All registers in the order of offsets."""
AT: dict[int, WideRegister] = {register.offset: register for register in REGISTERS}
BY_NAME: dict[str, WideRegister] = {register.name: register for register in REGISTERS}

FIXED_WHILE_HELD: frozenset[int] = frozenset(
    (DEST_IP, DEST_IP6_HI, DEST_IP6_LO, UDP_SRC_PORT, EXPECT_RESP, TX_LAST_PSN, TX_EPSN, TX_MAX_FW)
)
"""Registers writable only while the QP is disabled and holds no slots (choice)."""
FIXED_WHILE_ENABLED: frozenset[int] = frozenset((TX_ACK_SN, REQ_CHK))
"""Registers writable only while the QP is disabled (choice)."""

REFUSED_AT: tuple[tuple[int, int, str], ...] = (
    (0x0110, 0x0120, "TYPE2"),
    (0x0160, 0x0160, "CREDITS"),
    (0x0168, 0x01A0, "TYPE2"),
    (0x1000, 0x11F8, "TYPE3"),
)
"""First and last offset of the registers of each unsupported feature, and the feature."""


def _layout(name: str, base: int, size: int, registers: tuple[WideRegister, ...]) -> Layout:
    fields = [
        Field(f"{register.name}_{field.name}", register.offset - base, field.msb, field.lsb, field.doc, 8, field.access)
        for register in registers
        for field in register.fields
    ]
    return Layout(name, size, "little", f"{SOURCE}; choices are marked in rclink's registers.py", tuple(fields))


GLOBAL_BLOCK = _layout("RC Link registers", 0, 0x400, GLOBAL_REGISTERS)
QP_BLOCK_LAYOUT = _layout("RC Link registers of a QP, from 2000h", QP_BLOCK, 0x100, QP_REGISTERS)
