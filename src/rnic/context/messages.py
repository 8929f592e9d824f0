"""CtxMgt's messages as data: types, opcodes, headers, inner interfaces and channel payloads (002 chapters 2, 3 and 5).

002 draws headers and write payloads on one line with the high bits on the left, so they are big-endian here. It draws
channel responses with the lowest word first, so they are little-endian. All fields of a vector have the vector's size
as their unit, so bit numbers match the document.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from rnic.spec.layout import Field, Layout

# --- types (1 to 6 are from table 3.1, the others from the published hardware)
RD_QP_CXT: Final = 1
WR_QP_CXT: Final = 2
WR_CQ_CXT: Final = 3
WR_EQ_CXT: Final = 4
WR_ICMMAP_CXT: Final = 5
MAP_ICM_CXT: Final = 6
RD_CQ_CXT: Final = 7
RD_EQ_CXT: Final = 8

# --- opcodes, by type
RD_QP_ALL: Final = 1
RD_QP_NPST: Final = 2
RD_QP_SST: Final = 3
RD_QP_RST: Final = 4
RD_QP_STATE: Final = 5
RD_ENCAP: Final = 6
WR_QP_ALL: Final = 1
WR_QP_UAPST: Final = 2
WR_QP_NPST: Final = 3
WR_QP_EPST: Final = 4
WR_QP_STATE: Final = 5
WR_CQ_ALL: Final = 1
WR_CQ_MODIFY: Final = 2
WR_CQ_INVALID: Final = 3
WR_EQ_ALL: Final = 1
WR_EQ_FUNC: Final = 2
WR_EQ_INVALID: Final = 4
WR_ICMMAP_EN: Final = 1
WR_ICMMAP_DIS: Final = 2
MAP_ICM_EN: Final = 1
MAP_ICM_DIS: Final = 2
RD_CQ_ALL: Final = 1
RD_CQ_CST: Final = 2
RD_EQ_K: Final = 1
RD_EQ_ALL: Final = 2

# --- sources, 3 bits; the request controller's channel is the source minus 1
CEU: Final = 1
DB: Final = 2
WP: Final = 3
RTC: Final = 4
RRC: Final = 5
EE: Final = 6
FE: Final = 7
SOURCE_NAMES: Final = {
    CEU: "ceu_parser",
    DB: "doorbell_processing",
    WP: "wqe_parser",
    RTC: "requester_trans_control",
    RRC: "requester_recv_control",
    EE: "execution_engine",
    FE: "frame_encap",
}
ENGINES: Final = (DB, WP, RTC, RRC, EE, FE)
EQ_DISABLE: Final = 1 << 31
"""WR_EQ_FUNC: the highest address bit disables the EQ's event function (table 3.1)."""
MAX_CHUNKS: Final = 64
"""Most chunks in one MAP_ICM_EN (3.1: 256 KB / 4 KB)."""

# --- kinds of requests, by what they access
READ, WRITE, METADATA, RESERVED = "read", "write", "metadata", "reserved"


class Request(NamedTuple):
    """One row of tables 2.2 and 3.1.

    ``payloads`` are the legal payload lengths in bytes (``MAP_ICM_EN``: 16 per chunk, in whole beats); ``response`` is
    the width of the response payload in bits, 0 if there is none.
    """

    type: int
    opcode: int
    name: str
    sources: tuple[int, ...]
    kind: str
    payloads: tuple[int, ...] = (0,)
    response: int = 0


QPC_PAYLOADS: Final = (192, 256)
REQUESTS: Final = tuple(
    Request(*row)
    for row in (
        (RD_QP_CXT, RD_QP_ALL, "RD_QP_ALL", (CEU,), READ, (0,), 2048),
        (RD_QP_CXT, RD_QP_NPST, "RD_QP_NPST", (RTC,), READ, (0,), 256),
        (RD_QP_CXT, RD_QP_SST, "RD_QP_SST", (DB,), READ, (0,), 256),
        (RD_QP_CXT, RD_QP_RST, "RD_QP_RST", (EE,), READ, (0,), 320),
        (RD_QP_CXT, RD_QP_STATE, "RD_QP_STATE", (WP,), READ, (0,), 128),
        (RD_QP_CXT, RD_ENCAP, "RD_ENCAP", (FE,), READ, (0,), 256),
        (WR_QP_CXT, WR_QP_ALL, "WR_QP_ALL", (CEU,), WRITE, QPC_PAYLOADS),
        (WR_QP_CXT, WR_QP_UAPST, "WR_QP_UAPST", (RRC,), WRITE, (16,)),
        (WR_QP_CXT, WR_QP_NPST, "WR_QP_NPST", (RTC,), WRITE, (16,)),
        (WR_QP_CXT, WR_QP_EPST, "WR_QP_EPST", (EE,), WRITE, (16,)),
        (WR_QP_CXT, WR_QP_STATE, "WR_QP_STATE", (), RESERVED),
        (WR_CQ_CXT, WR_CQ_ALL, "WR_CQ_ALL", (CEU,), WRITE, (64,)),
        (WR_CQ_CXT, WR_CQ_MODIFY, "WR_CQ_MODIFY", (CEU,), WRITE, (64,)),
        (WR_CQ_CXT, WR_CQ_INVALID, "WR_CQ_INVALID", (CEU,), WRITE),
        (WR_EQ_CXT, WR_EQ_ALL, "WR_EQ_ALL", (CEU,), WRITE, (64,)),
        (WR_EQ_CXT, WR_EQ_FUNC, "WR_EQ_FUNC", (CEU,), WRITE),
        (WR_EQ_CXT, WR_EQ_INVALID, "WR_EQ_INVALID", (CEU,), WRITE),
        (WR_ICMMAP_CXT, WR_ICMMAP_EN, "WR_ICMMAP_EN", (CEU,), METADATA, (32,)),
        (WR_ICMMAP_CXT, WR_ICMMAP_DIS, "WR_ICMMAP_DIS", (CEU,), METADATA),
        (MAP_ICM_CXT, MAP_ICM_EN, "MAP_ICM_EN", (CEU,), METADATA, tuple(range(32, MAX_CHUNKS * 16 + 1, 32))),
        (MAP_ICM_CXT, MAP_ICM_DIS, "MAP_ICM_DIS", (CEU,), METADATA),
        (RD_CQ_CXT, RD_CQ_ALL, "RD_CQ_ALL", (), RESERVED),
        (RD_CQ_CXT, RD_CQ_CST, "RD_CQ_CST", (RRC,), READ, (0,), 256),
        (RD_EQ_CXT, RD_EQ_K, "RD_EQ_K", (), RESERVED),
        (RD_EQ_CXT, RD_EQ_ALL, "RD_EQ_ALL", (), RESERVED),
    )
)
BY_CODE: Final = {(row.type, row.opcode): row for row in REQUESTS}
READS: Final = {row.sources[0]: row for row in REQUESTS if row.kind == READ and CEU not in row.sources}
"""Read request of each engine channel, by source."""


def vector(
    name: str, size: int, endian: str, source: str, rows: Iterable[tuple[str, int, int, str]], access: str
) -> Layout:
    """Return the layout of one bit vector from rows of name, msb, lsb, meaning."""
    fields = tuple(Field(field, 0, msb, lsb, doc, size, access) for field, msb, lsb, doc in rows)
    return Layout(name, size, "big" if endian == "big" else "little", source, fields)


def ascending(*rows: tuple[str, int, str]) -> list[tuple[str, int, int, str]]:
    """Assign bit positions to rows of name, width, meaning, from bit 0 upward; the name ``""`` is a gap."""
    out, at = [], 0
    for name, width, doc in rows:
        if name:
            out.append((name, at + width - 1, at, doc))
        at += width
    return out


# --- headers
CEU_HEADER = vector(
    "CEU request header",
    16,
    "big",
    "002 table 2.1, 3.1",
    (
        ("type", 127, 124, "object of the request"),
        ("opcode", 123, 120, "read, write, invalidate, modify"),
        ("addr", 95, 64, "number of the QP, CQ or EQ; chunk_num or page_cnt; bit 31 disables an EQ"),
        ("data", 63, 0, "event mask in the low half, or the ICM address to unmap"),
    ),
    "WR",
)
"""Also key_qpc_data's 128-bit request to ctxmdata (5.3.2); its ``data`` is then a :data:`WRITE_BACK`."""
ENGINE_HEADER = vector(
    "Engine request header",
    16,
    "big",
    "002 table 2.1, 3.2",
    (
        ("type", 127, 124, "object of the request"),
        ("opcode", 123, 120, "which fields"),
        ("addr", 119, 96, "number of the QP"),
    ),
    "WR",
)
WRITE_BACK = vector(
    "Write-back data",
    8,
    "big",
    "002 table 2.1 (63:60 state); design.md",
    (
        ("state", 63, 60, "QP state"),
        ("flags_27_24", 59, 56, "flags in the same byte as the state"),
        ("psn", 23, 0, "PSN selected by the opcode"),
    ),
    "WR",
)
ENGINE_WRITE = vector(
    "Engine write payload",
    16,
    "big",
    "002 table 3.2",
    (("psn", 31, 8, "next, unacknowledged or expected PSN"), ("state", 2, 0, "QP state")),
    "WR",
)
CHUNK = vector(
    "MAP_ICM chunk",
    16,
    "big",
    "002 3.1",
    (
        ("virt", 127, 64, "address in context memory"),
        ("page", 63, 12, "address of the first host page, bits 63 to 12"),
        ("pages", 11, 0, "number of 4096-byte pages"),
    ),
    "WR",
)
ICMMAP = vector(
    "WR_ICMMAP_EN payload",
    32,
    "big",
    "002 5.3.3; first beat of the INIT_HCA mailbox",
    (
        ("qpc_base", 191, 136, "address of the QPCs in context memory, bits 63 to 8"),
        ("log_qps", 135, 128, "log2 of the number of QPs"),
        ("cqc_base", 127, 72, "address of the CQCs, bits 63 to 8"),
        ("log_cqs", 71, 64, "log2 of the number of CQs"),
        ("eqc_base", 63, 8, "address of the EQCs, bits 63 to 8"),
        ("log_eqs", 7, 0, "log2 of the number of EQs"),
    ),
    "WR",
)
# --- inner interfaces
PARSER_REQUEST = vector(
    "Parser request (35 bits)",
    5,
    "big",
    "002 5.1.2",
    (
        ("type", 34, 31, "type of the CEU request"),
        ("opcode", 30, 27, "opcode of the CEU request"),
        ("source", 26, 24, "1: the CEU"),
        ("qpn", 23, 0, "number of the QP, CQ or EQ"),
    ),
    "WR",
)
READ_REQUEST = vector(
    "Read request (108 bits)",
    14,
    "big",
    "002 5.3.2, 5.5.2",
    (
        ("addr", 107, 44, "host address"),
        ("len", 43, 32, "bytes"),
        ("qpn", 31, 0, "number of the QP"),
    ),
    "WR",
)
WRITE_REQUEST = vector(
    "Write request (128 bits)",
    16,
    "big",
    "002 5.3.2 (R21 and data32), 5.6.2 (data53)",
    (
        ("type", 127, 124, "type of the original request"),
        ("opcode", 123, 120, "opcode of the original request"),
        ("source", 119, 117, "who asked"),
        ("state", 116, 113, "QP state of a write-back"),
        ("flags_27_24", 112, 109, "flags in the same byte"),
        ("data", 95, 64, "PSN of a write-back, or event mask"),
        ("addr", 63, 0, "host address of the context"),
    ),
    "WR",
)
DMA_HEADER = vector(
    "DMA header",
    16,
    "big",
    "002 5.5.2, 5.6.2",
    (("addr", 95, 32, "host address"), ("len", 11, 0, "length in bytes, at most 256")),
    "WR",
)
SELECTED_CHANNEL = vector(
    "selected_channel",
    1,
    "little",
    "002 5.2.1",
    (
        ("valid", 7, 7, "set when a channel is selected, cleared by receive_req"),
        *(
            (SOURCE_NAMES[source], source - 1, source - 1, "this channel is selected")
            for source in reversed(SOURCE_NAMES)
        ),
    ),
    "RO",
)
KEY_WORDS: Final = (
    *(0x08, 0x0C, 0x18, 0x1C, 0x20, 0x28, 0x3C, 0x40, 0x44, 0x48, 0x4C, 0x5C),
    *(0x6C, 0x70, 0x74, 0x78, 0x7C, 0x84, 0x8C, 0x90, 0x94),
)
"""Offsets of the cached QPC words: 12 in the first extract FIFO, 9 in the second (4.2.1)."""
KEY_BYTES: Final = len(KEY_WORDS) * 4 - 2
"""Key bytes per QP, 82: the low half of word 20h is reserved."""

# --- responses of the six channels
DB_RESPONSE = vector(
    "Doorbell processing response",
    32,
    "little",
    "002 table 3.2; design.md",
    ascending(
        ("servtype", 8, "service type"),
        ("dst_qpn_hi", 8, "remote QPN, bits 23 to 16 (reserved in 002)"),
        ("dst_qpn", 16, "remote QPN, bits 15 to 0"),
        ("pkey", 16, "P_Key index"),
        ("pmtu_msgmax", 8, "7:5 path MTU code, 4:0 log2 of the largest message"),
        ("", 8, ""),
        ("sq_lkey", 32, "key of the send ring"),
        ("qp_pd", 32, "protection domain of the QP"),
        ("sq_entry_sz_log", 8, "log2 of a send entry"),
        ("", 24, ""),
        ("sq_length", 32, "bytes of the send ring"),
    ),
    "RO",
)
WP_RESPONSE = vector(
    "WQE parser response",
    16,
    "little",
    "002 table 3.2",
    ascending(
        ("sq_entry_sz_log", 8, "log2 of a send entry"),
        ("", 16, ""),
        ("state", 8, "QP state"),
        ("sq_length", 32, "bytes of the send ring"),
    ),
    "RO",
)
RTC_RESPONSE = vector(
    "Requester transmit control response",
    32,
    "little",
    "002 table 3.2; design.md",
    ascending(
        ("state", 4, "QP state"),
        ("", 4, ""),
        ("next_psn", 24, "PSN of the next request"),
        ("scq_lkey", 32, "key of the send CQ"),
        ("scq_length", 32, "log2 of the send CQ's entries"),
        ("scq_pd", 32, "protection domain of the send CQ"),
        ("scqn", 24, "number of the send CQ"),
        ("eqn", 8, "its event queue"),
        ("rlid", 16, "low 16 bits of the destination MAC"),
        ("msix_vector", 8, "interrupt vector, bits 7 to 0 (reserved in 002)"),
        ("eq_length", 8, "log2 of the EQ's entries"),
        ("eq_pd", 32, "protection domain of the EQ"),
        ("eq_lkey", 32, "key of the EQ"),
    ),
    "RO",
)
RRC_RESPONSE = vector(
    "Requester receive control response",
    32,
    "little",
    "002 3.2, order of its list; design.md",
    ascending(
        ("state", 4, "QP state"),
        ("unacked_psn", 24, "oldest unacknowledged PSN"),
        ("next_psn", 24, "PSN of the next request"),
        ("dst_qpn", 24, "remote QPN"),
        ("rlid", 16, "low 16 bits of the destination MAC"),
        ("scq_lkey", 32, "key of the send CQ"),
        ("qp_pd", 12, "protection domain of the QP, bits 11 to 0"),
        ("scq_pd", 12, "protection domain of the send CQ, bits 11 to 0"),
        ("scq_length", 8, "log2 of the send CQ's entries"),
        ("scqn", 24, "number of the send CQ"),
        ("eqn", 8, "its event queue"),
        ("eq_length", 8, "log2 of the EQ's entries"),
        ("eq_pd", 12, "protection domain of the EQ, bits 11 to 0"),
        ("eq_lkey", 32, "key of the EQ"),
        ("msix_vector", 16, "interrupt vector"),
    ),
    "RO",
)
"""The whole list of §3.2 in 256 bits: the three protection domains have 12 bits, as in DEV_LIM."""
EE_RESPONSE = vector(
    "Execution engine response",
    40,
    "little",
    "002 3.2, order of its list; design.md",
    ascending(
        ("expected_psn", 24, "next PSN from the peer"),
        ("rnr_retry", 3, "RNR retries; 7 is forever"),
        ("state", 4, "QP state"),
        ("rlid", 16, "low 16 bits of the destination MAC"),
        ("pmtu", 3, "path MTU code"),
        ("pkey", 16, "P_Key index"),
        ("rq_entry_sz_log", 8, "log2 of a receive entry"),
        ("dst_qpn", 24, "remote QPN"),
        ("rq_lkey", 32, "key of the receive ring"),
        ("cq_lkey", 32, "key of the receive CQ"),
        ("qp_pd", 12, "protection domain of the QP, bits 11 to 0"),
        ("cq_pd", 12, "protection domain of the receive CQ, bits 11 to 0"),
        ("rq_length", 32, "bytes of the receive ring"),
        ("rcq_length", 8, "log2 of the receive CQ's entries"),
        ("cqn", 24, "number of the receive CQ"),
        ("eqn", 8, "its event queue"),
        ("eq_length", 8, "log2 of the EQ's entries"),
        ("eq_pd", 12, "protection domain of the EQ, bits 11 to 0"),
        ("eq_lkey", 32, "key of the EQ"),
        ("msix_vector", 8, "interrupt vector, bits 7 to 0"),
    ),
    "RO",
)
"""The whole list of §3.2 in 320 bits: MTU code and retry count have 3 bits each, the vector has 8."""
FE_RESPONSE = vector(
    "Frame encap response",
    32,
    "little",
    "002 table 3.2",
    ascending(
        ("port", 3, "port number"),
        ("ib_roce", 1, "0: RoCE; 1 is InfiniBand mode"),
        ("sl", 4, "service level"),
        ("", 8, ""),
        ("pkey", 16, "P_Key index"),
        ("sip", 32, "source IPv4 address"),
        ("dip", 32, "destination IPv4 address"),
        ("smac", 48, "source MAC; source LID in 15:0"),
        ("dmac", 48, "destination MAC; destination LID in 15:0"),
    ),
    "RO",
)
FE_RESPONSE_IB = vector(
    "Frame encap response, InfiniBand mode",
    32,
    "little",
    "002 table 3.2",
    ascending(
        ("port", 3, "port number"),
        ("ib_roce", 1, "1: InfiniBand"),
        ("sl", 4, "service level"),
        ("", 8, ""),
        ("pkey", 16, "P_Key index"),
        ("", 64, ""),
        ("slid", 16, "source LID; bits 15:0 of the source MAC in RoCE mode"),
        ("", 32, ""),
        ("dlid", 16, "destination LID; bits 15:0 of the destination MAC in RoCE mode"),
    ),
    "RO",
)
"""The same vector in InfiniBand mode, which no rnic device uses, since the wire is RoCE only."""
RESPONSES: Final = {
    DB: DB_RESPONSE,
    WP: WP_RESPONSE,
    RTC: RTC_RESPONSE,
    RRC: RRC_RESPONSE,
    EE: EE_RESPONSE,
    FE: FE_RESPONSE,
}


def ceu_request(type_: int, opcode: int, addr: int = 0, data: int = 0) -> bytes:
    """Return a CEU request header."""
    return (type_ << 124 | opcode << 120 | addr << 64 | data).to_bytes(16, "big")


def engine_request(type_: int, opcode: int, qpn: int) -> bytes:
    """Return an engine channel's command; ``qpn`` has 24 bits."""
    return (type_ << 28 | opcode << 24 | qpn).to_bytes(4, "big") + bytes(12)


def engine_payload(psn: int, state: int) -> bytes:
    """Return the payload of WR_QP_NPST, WR_QP_UAPST and WR_QP_EPST."""
    return bytes(12) + (psn << 8 | state).to_bytes(4, "big")
