"""QPC: the queue pair context, 002 section 4.2.1, big-endian, and the 64-byte extension of ``design.md``.

The 192 documented bytes are unchanged. Fields marked "not used at present" in 002 are used, with the meaning that 002
gives them, since a complete RC needs them.
"""

from __future__ import annotations

from rnic.spec import access
from rnic.spec.layout import Field, Layout, bits, half, octet, wide, word
from rnic.spec.limits import MAX_RD_ATOMIC

QPC_BYTES = 256
QPC_DOCUMENTED_BYTES = 192

OPT_GSO = 1 << 0
"""The peer accepts GSO bursts, whose IP IDs count 0, 1, 2 ...."""
OPT_NO_PROBE = 1 << 1
"""Send no tail-loss probes."""
OPT_SQ_SIG_ALL = 1 << 2
"""Every send work request is signaled."""
OPT_CREDITS = 1 << 3
"""Send end-to-end credits instead of the invalid-credits code."""
OPT_SELECTIVE_REPEAT = 1 << 4
"""Both ends keep out-of-order packets: only the packet that a NAK names is retransmitted."""

SRQ_VALID = 1 << 31

_WR = "WR"

DOCUMENTED: tuple[Field, ...] = (
    word("opt_param_mask", 0x00, "attributes that this command changes", _WR),
    bits("state", 0x08, 31, 28, "QP state: RST 0, INIT 1, RTR 2, RTS 3, SQE 4, SQD 5, ERR 6", _WR),
    bits("flags_27_24", 0x08, 27, 24, "flags", _WR),
    bits("servtype", 0x08, 23, 16, "service type: RC 0, UC 1, RD 2, UD 3, XRC INI 5, XRC TGT 6", _WR),
    bits("flags_15_13", 0x08, 15, 13, "flags", _WR),
    bits("mig_state", 0x08, 12, 11, "path migration state: armed 0, rearm 1, migrated 3", _WR),
    bits("flags_10_0", 0x08, 10, 0, "flags", _WR),
    bits("mtu", 0x0C, 31, 29, "path MTU code: 1 to 5 for 256 to 4096", _WR),
    bits("msgmax", 0x0C, 28, 24, "log2 of the largest message in bytes", _WR),
    bits("rq_entry_sz_log", 0x0C, 23, 16, "log2 of an RQ entry in bytes", _WR),
    bits("sq_entry_sz_log", 0x0C, 15, 8, "log2 of an SQ entry in bytes", _WR),
    bits("rlkey_arbel_sched_queue", 0x0C, 7, 0, "scheduling queue", _WR),
    word("usr_page", 0x10, "UAR page; here the number of the queue block", _WR),
    word("local_qpn", 0x14, "this QP's number", _WR),
    word("remote_qpn", 0x18, "the peer's QP number", _WR),
    bits("port", 0x1C, 26, 24, "port number", _WR),
    bits("pkey_index", 0x1C, 6, 0, "index into the P_Key table", _WR),
    bits("rnr_retry", 0x20, 31, 24, "RNR retries before reporting an error; 7 is forever", _WR),
    bits("has_grh", 0x20, 23, 23, "global routing header in use", _WR),
    bits("my_lmc", 0x20, 22, 16, "local mask control", _WR),
    octet("ackto", 0x24, "local ACK timeout code", _WR),
    octet("mgid_index", 0x25, "index of the source GID", _WR),
    octet("static_rate", 0x26, "static rate", _WR),
    octet("hop_limit", 0x27, "hop limit", _WR),
    bits("sl", 0x28, 31, 28, "service level", _WR),
    bits("tclass", 0x28, 27, 20, "traffic class", _WR),
    bits("flow_label", 0x28, 19, 0, "flow label", _WR),
    wide("rgid", 0x2C, "destination GID", 16, _WR),
    half("dlid", 0x3C, "destination LID, or low 16 bits of the destination MAC", _WR),
    half("slid", 0x3E, "source LID, or low 16 bits of the source MAC", _WR),
    word("smac_hi", 0x40, "high 32 bits of the source MAC", _WR),
    word("dmac_hi", 0x44, "high 32 bits of the destination MAC", _WR),
    word("sip", 0x48, "source IPv4 address", _WR),
    word("dip", 0x4C, "destination IPv4 address", _WR),
    word("pd", 0x5C, "protection domain", _WR),
    word("wqe_base", 0x60, "work queue base", _WR),
    word("wqe_lkey", 0x64, "key of the region that holds the work queues", _WR),
    word("next_send_psn", 0x6C, "PSN of the next message to send", _WR),
    word("cqn_snd", 0x70, "CQ of the send queue", _WR),
    word("snd_wqe_base_lkey", 0x74, "key of the send ring", _WR),
    word("snd_wqe_length", 0x78, "length of the send ring in bytes", _WR),
    word("last_acked_psn", 0x7C, "oldest unacknowledged PSN", _WR),
    word("ssn", 0x80, "send sequence number", _WR),
    bits("rnr_nak_timer", 0x84, 31, 24, "receiver not ready: minimum RNR NAK timer code", _WR),
    bits("expected_psn", 0x84, 23, 0, "next PSN expected from the peer", _WR),
    word("ra_buff_indx", 0x88, "READ and atomic buffer index", _WR),
    word("cqn_rcv", 0x8C, "CQ of the receive queue", _WR),
    word("rcv_wqe_base_lkey", 0x90, "key of the receive ring", _WR),
    word("rcv_wqe_length", 0x94, "length of the receive ring in bytes", _WR),
    word("qkey", 0x98, "Q_Key", _WR),
    word("rmsn", 0x9C, "message sequence number of the responder", _WR),
    bits("rq_wqe_counter", 0xBC, 31, 16, "receive entries taken", _WR),
    bits("sq_wqe_counter", 0xBC, 15, 0, "send entries completed", _WR),
)

EXTENSION: tuple[Field, ...] = (
    wide("sgid", 0xC0, "source GID (IPv4 as ::ffff:a.b.c.d)", 16, _WR),
    wide("sq_base", 0xD0, "virtual address of the send ring; its slab follows the last entry", 8, _WR),
    wide("rq_base", 0xD8, "virtual address of the receive ring", 8, _WR),
    octet("retry_cnt", 0xE1, "transport retries before the QP fails, 0 to 7", _WR),
    octet("options", 0xE2, "bit 0 GSO agreed, 1 no probe, 2 all signaled, 3 credits, 4 selective repeat", _WR),
    octet("sq_draining", 0xE3, "SQD reached with requests still outstanding", "RO"),
    octet("max_rd_atomic", 0xE4, "READs and atomics outstanding as requester", _WR),
    octet("max_dest_rd_atomic", 0xE5, "READs and atomics outstanding as responder", _WR),
    half("udp_sport", 0xE6, "UDP source port, 0 to derive it from the QP numbers", _WR),
    half("udp_dport", 0xE8, "UDP destination port, 0 for 4791", _WR),
    octet("sq_max_sge", 0xEA, "scatter entries in one slab slot", _WR),
    octet("rq_max_sge", 0xEB, "scatter entries in one receive entry", _WR),
    word("srqn", 0xEC, "bit 31: uses an SRQ; 23:0: its number", _WR),
    half("sq_slab_bytes", 0xF0, "bytes of one slab slot", _WR),
    half("window_packets", 0xF2, "packets in flight, 0 for the device's default", _WR),
    bits(
        "extension_valid", 0xF4, 31, 31, "bytes C0h to F7h are valid, as in each queue pair created by a command", _WR
    ),
    bits("access_flags", 0xF4, 15, 0, "remote rights of the QP, IBV_ACCESS_* bits", _WR),
    half("xrcd", 0xF8, "XRC domain of an XRC TGT QP", _WR),
)
"""Bytes C0h to FFh: fields that a complete RC needs and 002 lacks. E0h and unlisted bits of F4h to FFh are reserved."""

QPC = Layout("QPC", QPC_BYTES, "big", "002 4.2.1; design.md", DOCUMENTED + EXTENSION)

WITHOUT_EXTENSION = {
    "access_flags": access.REMOTE_READ | access.REMOTE_WRITE | access.REMOTE_ATOMIC,
    "retry_cnt": 7,
    "max_rd_atomic": 1,
    "max_dest_rd_atomic": MAX_RD_ATOMIC,
}
"""Extension values for a QPC of 192 bytes. Only region rights restrict access, and the READ depth is safe for any
peer."""

_ABSENT = QPC.pack(WITHOUT_EXTENSION)[QPC_DOCUMENTED_BYTES:]


def settled(image: bytes | bytearray | memoryview) -> bytes:
    """Return a QPC with defaults in place of an invalid extension, as the device uses it.

    ``sq_draining`` is unchanged, since it belongs to the device.

    Args:
        image: 256 bytes.
    """
    if QPC.get(image, "extension_valid"):
        return bytes(image)
    out = bytearray(bytes(image[:QPC_DOCUMENTED_BYTES]) + _ABSENT)
    QPC.put(out, "sq_draining", QPC.get(image, "sq_draining"))
    return bytes(out)
