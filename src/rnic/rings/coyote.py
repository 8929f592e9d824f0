"""The control structures of the Coyote RoCEv2 stack (003), bit for bit.

Document 003 gives widths and order, no bit positions; these hold here. Its two connection structures are HLS
structs, whose first member takes the lowest bits; ``qpState`` is a 32-bit enumeration (with it they have the
168 and 184 bits of the interface's wires). The command, acknowledgement and memory request structures are
packed SystemVerilog structs, whose first member takes the highest bits. As bytes all of them are
little-endian, padded with zero bits at the top.
"""

from __future__ import annotations

from rnic.spec.layout import Field, Layout

Members = tuple[tuple[str, int, str], ...]
"""Name, width in bits, meaning."""


def _from_low(name: str, members: Members) -> Layout:
    width = sum(bits for _, bits, _ in members)
    size = -(-width // 8)
    fields = []
    lsb = 0
    for member, bits, doc in members:
        fields.append(Field(member, 0, lsb + bits - 1, lsb, doc, size))
        lsb += bits
    return Layout(name, size, "little", f"003, {width} bits", tuple(fields))


def _from_high(name: str, members: Members) -> Layout:
    # Where members do not fill whole bytes, the zero bits lie above the first one.
    return _from_low(name, tuple(reversed(members)))


QP_CONTEXT = _from_low(
    "qpContext",
    (
        ("new_state", 32, "qpState: RESET, INIT, READY_RECV, READY_SEND, SQ_ERROR, ERROR"),
        ("qp_num", 24, "queue pair, by its short number"),
        ("remote_psn", 24, "PSN of the first packet that is expected"),
        ("local_psn", 24, "PSN of the first packet that is sent"),
        ("r_key", 16, "key of the peer's memory, by its short number"),
        ("virtual_address", 48, "first byte of the peer's memory"),
    ),
)
IF_CONN_REQ = _from_low(
    "ifConnReq",
    (
        ("qpn", 16, "queue pair, by its short number"),
        ("remote_qpn", 24, "queue pair at the peer"),
        ("remote_ip_address", 128, "its address; IPv4 as ::ffff:a.b.c.d"),
        ("remote_udp_port", 16, "its UDP port"),
    ),
)
RDMA_SQ = _from_high(
    "s_rdma_sq",
    (
        ("rsrvd", 20, "0"),
        ("message_size", 64, "payload bytes"),
        ("local_vaddr", 64, "first byte in host memory; an address has 48 bits"),
        ("remote_vaddr", 64, "first byte at the peer (WRITE, READ)"),
        ("offs", 4, "first 64-byte lane of a command that is sent in parts; 0, since commands come whole"),
        ("ssn", 24, "sequence number chosen by the shell, returned in the acknowledgement"),
        ("cmplt", 4, "1: report completion through m_rdma_ack"),
        ("last", 4, "1: last command of a sequence; all of the sequence leave together"),
        ("mode", 4, "0 parse: the stack cuts the message into packets; 1 raw: opcode is that of the one packet"),
        ("host", 4, "1: payload is in host memory; 0: it comes and goes as a stream"),
        ("qpn", 12, "queue pair, by its short number"),
        ("opcode", 8, "APP_* in parse mode, a BTH opcode in raw mode"),
    ),
)
RDMA_ACK = _from_high(
    "m_rdma_ack",
    (
        ("ssn", 24, "of the command"),
        ("vfid", 4, "low 4 bits of the short QP number"),
        ("pid", 8, "high 8 bits of the short QP number"),
        ("cmplt", 4, "1: completed, 0: failed"),
        ("rd", 4, "1: the command was a READ"),
    ),
)


def _memory_request(name: str) -> Layout:
    return _from_high(
        name,
        (
            ("vfid", 4, "low 4 bits of the short QP number"),
            ("vaddr", 48, "first byte"),
            ("sync", 4, "1: tell the shell when it is done"),
            ("stream", 4, "1: the data belong to a stream, vaddr does not count"),
            ("pid", 8, "high 8 bits of the short QP number"),
            ("len", 28, "bytes"),
            ("host", 4, "1: host memory"),
            ("dest", 12, "stream that the data belong to"),
            ("ctl", 4, "1: last request of a message"),
        ),
    )


RDMA_RD_REQ = _memory_request("m_rdma_rd_req")
RDMA_WR_REQ = _memory_request("m_rdma_wr_req")

QPN_BITS = 12
KEY_BITS = 16
ADDRESS_BITS = 48
MAX_REQUEST_BYTES = (1 << 28) - 1
"""What the ``len`` of one memory request can say; longer transfers take several."""

RESET, INIT, READY_RECV, READY_SEND, SQ_ERROR, ERROR = range(6)
QP_STATES = ("RESET", "INIT", "READY_RECV", "READY_SEND", "SQ_ERROR", "ERROR")
"""Names of ``qpState``, by number."""

MODE_PARSE, MODE_RAW = range(2)
APP_READ, APP_WRITE, APP_SEND = range(3)
"""Opcodes of parse mode."""


def split_qpn(qpn: int) -> tuple[int, int]:
    """``(pid, vfid)`` of a short QP number: how acknowledgements and memory requests name it."""
    return qpn >> 4, qpn & 0xF


def join_qpn(pid: int, vfid: int) -> int:
    """The short QP number behind ``(pid, vfid)``."""
    return pid << 4 | vfid
