"""The MPT entry of a region or window in commands: 64 bytes, big-endian (``hardware.md`` 2a).

The documented fields keep their offsets. Words that the document does not define hold the window type, the QP of a type
2 window, and the memory's address in its process, since this NIC accesses memory by process addresses and has no MTT.
"""

from __future__ import annotations

from rnic.spec import access
from rnic.spec.layout import Layout, bits, wide, word

MPT_BYTES = 64

MPT_LOCAL_WRITE = 1 << 0
MPT_REMOTE_WRITE = 1 << 1
MPT_REMOTE_READ = 1 << 2
MPT_ATOMIC = 1 << 3
MPT_FLUSH_GLOBAL = 1 << 4
MPT_ON_DEMAND = 1 << 5
MPT_REGION = 1 << 8
MPT_PHYSICAL = 1 << 9
MPT_NULL = 1 << 10
MPT_BIND_ENABLE = 1 << 15
MPT_MIO = 1 << 17
MPT_RELATIVE = 1 << 26
MPT_ABSOLUTE = 1 << 27
MPT_SW_OWNS = 0xF << 28
"""Bits of ``flags``. With ``MPT_RELATIVE``, addresses are offsets from the start of the region (zero-based)."""

MPT_ENTRY = Layout(
    "MPT entry",
    MPT_BYTES,
    "big",
    "hardware.md 2a",
    (
        bits("sw_owns", 0x00, 31, 28, "15 while software owns the entry, 0 while the NIC does", "WR"),
        bits("absolute", 0x00, 27, 27, "addresses are virtual addresses", "WR"),
        bits("relative", 0x00, 26, 26, "addresses are zero-based", "WR"),
        bits("mio", 0x00, 17, 17, "memory is input/output space", "WR"),
        bits("bind_enable", 0x00, 15, 15, "windows may be bound to this region", "WR"),
        bits("null", 0x00, 10, 10, "null region: reads return zeros, writes are discarded", "WR"),
        bits("physical", 0x00, 9, 9, "addresses need no translation", "WR"),
        bits("region", 0x00, 8, 8, "1 region, 0 window", "WR"),
        bits("on_demand", 0x00, 5, 5, "pages may be mapped, unmapped and moved while the region exists", "WR"),
        bits("flush_global", 0x00, 4, 4, "FLUSH with global visibility", "WR"),
        bits("atomic", 0x00, 3, 3, "remote atomics", "WR"),
        bits("remote_read", 0x00, 2, 2, "remote READ", "WR"),
        bits("remote_write", 0x00, 1, 1, "remote WRITE", "WR"),
        bits("local_write", 0x00, 0, 0, "local write", "WR"),
        word("page_size", 0x04, "log2 of the page size, minus 12", "WR"),
        word("key", 0x08, "key of the entry", "WR"),
        word("pd", 0x0C, "protection domain", "WR"),
        wide("start", 0x10, "first address that the key covers", 8, "WR"),
        wide("length", 0x18, "bytes", 8, "WR"),
        word("lkey", 0x20, "windows: key of the bound region", "WR"),
        bits("window_type", 0x24, 31, 24, "0 region, 1 type 1 window, 2 type 2B window", "WR"),
        bits("qpn", 0x24, 23, 0, "type 2 windows: QP that may use the window", "WR"),
        word("window_count", 0x28, "regions: windows bound to it", "RO"),
        word("mtt_seg", 0x2C, "first MTT segment; not used", "WR"),
        wide("address", 0x30, "virtual address of the first byte in its process", 8, "WR"),
    ),
)

_RIGHTS = (
    (access.LOCAL_WRITE, MPT_LOCAL_WRITE),
    (access.REMOTE_WRITE, MPT_REMOTE_WRITE),
    (access.REMOTE_READ, MPT_REMOTE_READ),
    (access.REMOTE_ATOMIC, MPT_ATOMIC),
    (access.MW_BIND, MPT_BIND_ENABLE),
    (access.FLUSH_GLOBAL, MPT_FLUSH_GLOBAL),
    (access.ON_DEMAND, MPT_ON_DEMAND),
    (access.ZERO_BASED, MPT_RELATIVE),
)


def flags_from_access(rights: int) -> int:
    """Return the rights bits of ``flags`` for ``IBV_ACCESS_*`` bits; drop rights that the entry has no bit for."""
    flags = 0
    for verbs_bit, mpt_bit in _RIGHTS:
        if rights & verbs_bit:
            flags |= mpt_bit
    return flags if flags & MPT_RELATIVE else flags | MPT_ABSOLUTE


def access_from_flags(flags: int) -> int:
    """Return the ``IBV_ACCESS_*`` bits that ``flags`` grants."""
    rights = 0
    for verbs_bit, mpt_bit in _RIGHTS:
        if flags & mpt_bit:
            rights |= verbs_bit
    return rights
