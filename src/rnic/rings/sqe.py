"""The 64-byte SQ descriptor (001 section 3.2, extended by ``design.md``), little-endian.

Bytes 0 to 27 are as in 001. Bytes 28 to 63, reserved there, hold the keys, the immediate data and, depending on the
opcode, atomic operands, a UD destination or a memory window. Scatter lists and inline data are in the slab after the
ring, with one fixed slot per descriptor.
"""

from __future__ import annotations

import struct

from rnic.spec.layout import Field, Layout, bits, half, wide, word

SQE_BYTES = 64
SQE_SHIFT = 6
SGE_BYTES = 16

FLAG_SIGNALED = 1 << 0
FLAG_SOLICITED = 1 << 1
FLAG_FENCE = 1 << 2
FLAG_INLINE = 1 << 3
FLAG_LIST = 1 << 4
FLAGS_DEFINED = 0x1F

_FLAG_FIELDS = (
    Field("opcode", 4, 15, 0, "work-request opcode", 2),
    Field("signaled", 6, 0, 0, "write a CQ entry on success", 2),
    Field("solicited", 6, 1, 1, "set the solicited event bit on the last packet", 2),
    Field("fence", 6, 2, 2, "start only when all earlier READs and atomics have completed", 2),
    Field("inline", 6, 3, 3, "payload is in the slab slot, not at local_addr", 2),
    Field("list", 6, 4, 4, "slab slot holds a scatter list; lkey is its number of entries", 2),
)
_HEAD = (word("wqe_id", 0, "identifier chosen by software, returned in the CQ entry"), *_FLAG_FIELDS)
_RDMA = (
    *_HEAD,
    wide("local_addr", 8, "virtual address of the payload"),
    wide("remote_addr", 16, "virtual address at the peer (WRITE, READ, atomics)"),
    word("length", 24, "payload bytes"),
    word("lkey", 28, "local key; with list: number of entries in the slab slot"),
    word("rkey", 32, "remote key"),
    word("imm", 36, "immediate data, or the key to invalidate"),
)

SQ_ENTRY = Layout("SQ entry", SQE_BYTES, "little", "001 3.2; design.md", _RDMA)
SQ_ENTRY_ATOMIC = Layout(
    "SQ entry, atomic",
    SQE_BYTES,
    "little",
    "001 3.2; design.md",
    (
        *_RDMA,
        wide("swap_add", 40, "value to swap in, or to add"),
        wide("compare", 48, "value to compare with"),
    ),
)
SQ_ENTRY_XRC = Layout(
    "SQ entry, XRC",
    SQE_BYTES,
    "little",
    "001 3.2; design.md",
    (*SQ_ENTRY_ATOMIC.fields, bits("srqn", 56, 23, 0, "shared receive queue at the peer")),
)
SQ_ENTRY_UD = Layout(
    "SQ entry, UD",
    SQE_BYTES,
    "little",
    "001 3.2; design.md",
    (
        *_HEAD,
        wide("local_addr", 8, "virtual address of the payload"),
        bits("flow_label", 16, 19, 0, "IPv6 flow label"),
        bits("tclass", 16, 27, 20, "traffic class or type of service"),
        bits("sl", 16, 31, 28, "service level"),
        half("udp_dport", 20, "destination UDP port, 0 for 4791"),
        half("udp_sport", 22, "source UDP port, 0 to derive it from the QP numbers"),
        word("length", 24, "payload bytes"),
        word("lkey", 28, "local key; with list: number of entries in the slab slot"),
        word("sgid_index", 32, "index into the port's GID table"),
        word("imm", 36, "immediate data"),
        wide("dgid", 40, "destination GID, first byte at the lowest address", 16),
        bits("dqpn", 56, 23, 0, "destination QP number"),
        bits("hop_limit", 56, 31, 24, "hop limit or time to live"),
        word("qkey", 60, "Q_Key; with bit 31 set, the QP's own is sent"),
    ),
)
SQ_ENTRY_BIND = Layout(
    "SQ entry, bind",
    SQE_BYTES,
    "little",
    "design.md",
    (
        *_HEAD,
        word("access", 8, "rights of the window, IBV_ACCESS_* bits"),
        wide("start", 16, "first virtual address of the window"),
        word("lkey", 28, "local key of the region to bind to"),
        word("new_rkey", 32, "new key of the window (type 2: chosen by software)"),
        word("window", 36, "handle of the window: the index of its keys (rnic.mem.keys)"),
        wide("bind_length", 40, "length of the window in bytes; 0 unbinds"),
    ),
)

SGE = Layout(
    "scatter/gather entry",
    SGE_BYTES,
    "little",
    "design.md",
    (
        wide("addr", 0, "virtual address"),
        word("length", 8, "bytes; length and lkey both 0 end a receive list"),
        word("lkey", 12, "local key"),
    ),
)

SQE_STRUCT = struct.Struct("<IHHQQIIII")
"""wqe_id, opcode, flags, local_addr, remote_addr, length, lkey, rkey, imm: the first 40 bytes."""
SQE_ATOMIC_STRUCT = struct.Struct("<QQ")
"""swap_add, compare, at byte 40."""
SQE_XRC_STRUCT = struct.Struct("<I")
"""srqn, at byte 56."""
SQE_UD_STRUCT = struct.Struct("<16sII")
"""dgid, dqpn | hop_limit << 24, qkey, at byte 40."""
SQE_UD_PATH_STRUCT = struct.Struct("<IHH")
"""sl << 28 | tclass << 20 | flow_label, udp_dport, udp_sport, at byte 16."""
SQE_ENTRY_BIND_STRUCT = struct.Struct("<IHHI4xQ4xIIIQ")
"""wqe_id, opcode, flags, access, start, lkey, new_rkey, window, bind_length: a whole bind entry."""
SGE_STRUCT = struct.Struct("<QII")
"""addr, length, lkey."""
