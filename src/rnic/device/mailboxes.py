"""Command mailboxes without a documented layout: device limits, adapter, SRQ limit, multicast groups.

All big-endian.
"""

from __future__ import annotations

from rnic.spec.layout import Field, Layout, bits, half, octet, wide, word

MAX_GIDS = 8
MAX_PKEYS = 16
MAX_GROUP_QPS = 120

DEV_LIM = Layout(
    "DEV_LIM",
    256,
    "big",
    "design.md; values of hardware.md 2a",
    (
        octet("log_max_qps", 0x00, "log2 of the number of queue pairs", "RO"),
        octet("log_max_cqs", 0x01, "log2 of the number of CQs", "RO"),
        octet("log_max_srqs", 0x02, "log2 of the number of SRQs", "RO"),
        octet("log_max_eqs", 0x03, "log2 of the number of EQs, and of interrupt vectors", "RO"),
        octet("log_max_pds", 0x04, "log2 of the number of protection domains", "RO"),
        octet("log_max_qp_sz", 0x05, "log2 of the entries of a send or receive ring", "RO"),
        octet("log_max_cq_sz", 0x06, "log2 of the entries of a CQ", "RO"),
        octet("log_max_srq_sz", 0x07, "log2 of the entries of an SRQ", "RO"),
        octet("log_max_msg", 0x08, "log2 of the largest message in bytes", "RO"),
        octet("log_page_sz", 0x09, "log2 of the smallest page", "RO"),
        octet("max_mtu", 0x0A, "code of the largest path MTU", "RO"),
        octet("active_mtu", 0x0B, "code of the active path MTU", "RO"),
        octet("num_ports", 0x0C, "ports", "RO"),
        octet("port_state", 0x0D, "1 down, 4 active", "RO"),
        octet("pkey_count", 0x0E, "entries of the P_Key table", "RO"),
        octet("gid_count", 0x0F, "entries of the GID table", "RO"),
        word("max_mpts", 0x10, "regions and windows", "RO"),
        word("max_sge", 0x14, "scatter entries of a work request", "RO"),
        word("max_inline", 0x18, "bytes of inline data", "RO"),
        word("max_rd_atomic", 0x1C, "READs and atomics outstanding, each way", "RO"),
        word("max_slab_bytes", 0x20, "bytes of one slab slot", "RO"),
        word("uar_blocks", 0x24, "queue blocks in a UAR window", "RO"),
        word("max_group_qps", 0x28, "queue pairs that one context attaches to one multicast group", "RO"),
        word("udp_port", 0x2C, "UDP port that the NIC receives on", "RO"),
        octet("qpc_sz_log", 0x30, "log2 of a QPC in bytes", "RO"),
        octet("cqc_sz_log", 0x31, "log2 of a CQC", "RO"),
        octet("eqc_sz_log", 0x32, "log2 of an EQC", "RO"),
        octet("srqc_sz_log", 0x33, "log2 of an SRQC", "RO"),
        octet("mpt_sz_log", 0x34, "log2 of an MPT entry", "RO"),
        octet("active_width", 0x35, "IBV_WIDTH code of the link", "RO"),
        half("active_speed", 0x36, "IBV_SPEED code of the link", "RO"),
        word("access_flags", 0x38, "IBV_ACCESS_* bits that regions may have", "RO"),
        octet("gids_of_v1", 0x3C, "mask of GIDs of RoCE v1", "RO"),
        octet("own_gid", 0x3D, "index of the GID that packets are sent from", "RO"),
        wide("guid", 0x40, "node GUID", 8, "RO"),
        *(half(f"pkey{index}", 0x50 + 2 * index, f"P_Key {index}", "RO") for index in range(MAX_PKEYS)),
        *(wide(f"gid{index}", 0x80 + 16 * index, f"GID {index}", 16, "RO") for index in range(MAX_GIDS)),
    ),
)
"""QUERY_DEV_LIM outbox."""

ADAPTER = Layout(
    "ADAPTER",
    64,
    "big",
    "design.md",
    (
        word("vendor_id", 0x00, "vendor", "RO"),
        word("device_id", 0x04, "device", "RO"),
        word("revision", 0x08, "hardware revision", "RO"),
        wide("fw_ver", 0x10, "major, minor, sub-minor version, 16 bits each", 8, "RO"),
        wide("guid", 0x18, "node GUID", 8, "RO"),
    ),
)
"""QUERY_ADAPTER outbox."""

SRQ_ARM = Layout(
    "SRQ_ARM",
    4,
    "big",
    "design.md",
    (word("limit", 0x00, "raise an event below this number of entries; 0 disarms", "WR"),),
)
"""ARM_SRQ inbox, since the limit has more bits than the command register's operation modifier."""

MGM_BYTES = 512
MGM = Layout(
    "MGM entry",
    MGM_BYTES,
    "big",
    "design.md, after mthca's",
    (
        wide("mgid", 0x00, "multicast GID (IPv4 groups as ::ffff:a.b.c.d)", 16, "WR"),
        word("count", 0x10, "queue pairs in the list", "WR"),
        *(
            Field(f"qpn{index}", 0x20 + 4 * index, 23, 0, f"queue pair {index} of the list", 4, "WR")
            for index in range(MAX_GROUP_QPS)
        ),
    ),
)
"""WRITE_MGM inbox, READ_MGM inbox (only ``mgid`` is used) and outbox: one context's members of a group."""

OPEN_XRCD = Layout(
    "OPEN_XRCD",
    24,
    "big",
    "design.md, after ib_uverbs",
    (
        wide("device", 0x00, "device number of the file that identifies the domain", 8, "WR"),
        wide("inode", 0x08, "its inode", 8, "WR"),
        bits("named", 0x10, 0, 0, "1: a file identifies the domain; 0: a new domain without a file", "WR"),
        bits("create", 0x10, 1, 1, "O_CREAT: create the domain if it does not exist", "WR"),
        bits("exclusive", 0x10, 2, 2, "O_EXCL: fail if the domain exists", "WR"),
    ),
)
"""OPEN_XRCD inbox."""

INIT_HCA = Layout(
    "INIT_HCA",
    64,
    "big",
    "hardware.md 2a",
    tuple(
        field
        for name, at, table in (
            ("qpc", 0x08, "QP contexts"),
            ("cqc", 0x10, "CQ contexts"),
            ("eqc", 0x18, "EQ contexts"),
            ("mpt", 0x30, "MPT entries"),
            ("mtt", 0x38, "page lists"),
        )
        for field in (
            word(f"{name}_base_hi", at, f"address of the {table} in context memory, high half", "WR"),
            bits(f"{name}_base", at + 4, 31, 8, f"address of the {table}, bits 31 to 8", "WR"),
            bits(f"log_{name}s", at + 4, 7, 0, f"log2 of the number of {table}; 0: as many as the NIC has", "WR"),
        )
    ),
)
"""INIT_HCA inbox: addresses and sizes of the context tables."""

ICM_ENTRY = Layout(
    "ICM entry",
    16,
    "big",
    "hardware.md 2a",
    (
        wide("virt", 0x00, "address in context memory, a multiple of 4096", 8, "WR"),
        word("page_hi", 0x08, "host address of the first page, high half; UNMAP_ICM ignores it", "WR"),
        bits("page", 0x0C, 31, 12, "host address, bits 31 to 12", "WR"),
        bits("npages", 0x0C, 11, 0, "pages of 4096 bytes", "WR"),
    ),
)
"""One of ``in_modifier`` entries in the MAP_ICM and UNMAP_ICM inbox."""

MTT_HEADER = Layout(
    "MTT header",
    16,
    "big",
    "design.md, after mthca's",
    (
        word("segment", 0x00, "page list, a number of ALLOC_RES", "WR"),
        word("first", 0x04, "index of the first entry to write", "WR"),
    ),
)
MTT_ENTRY = Layout(
    "MTT entry",
    8,
    "big",
    "hardware.md 2a",
    (
        Field("page", 0, 63, 12, "address of the page, bits 63 to 12", 8, "WR"),
        Field("present", 0, 0, 0, "1: the entry is valid", 8, "WR"),
    ),
)
MTT_PAGE_BYTES = MTT_ENTRY.size
"""WRITE_MTT inbox: the header, then ``in_modifier`` entries."""

NON_RDMA_HEADER = Layout(
    "non-RDMA frame",
    16,
    "big",
    "design.md; 004 7.6 NONR_DATA, NONR_MD",
    (
        wide("arrival_ns", 0x00, "arrival time in nanoseconds, by the device's clock", 8, "RO"),
        word("length", 0x08, "length of the whole frame", "RO"),
        word("waiting", 0x0C, "waiting frames, including this one; 0: none", "RO"),
    ),
)
"""Start of the READ_NON_RDMA outbox, followed by as much of the frame as fits."""
NON_RDMA_BYTES = 4096 - NON_RDMA_HEADER.size
"""Most bytes of a frame that one READ_NON_RDMA returns."""

VENDOR_ID = 0xFF_FFFF
DEVICE_ID = 0x524E
"""Vendor ID and device ID: no vendor assigned an ID, so it is all ones, as for other software devices; the device ID is
``RN``."""
