"""Bit-exact control structures of the Coyote RoCEv2 stack (003).

Document 003 gives widths and order, but no bit positions; this module defines them. Its two connection structures are
HLS structs, whose first member takes the lowest bits; ``qpState`` is a 32-bit enumeration, which gives the 168 and 184
bits of the interface's signals. The command, acknowledgment and memory request structures are packed SystemVerilog
structs, whose first member takes the highest bits. In memory, all of them are little-endian, padded with zero bits at
the top.
"""

from __future__ import annotations

from rnic.spec.layout import Field, Layout

Members = tuple[tuple[str, int, str], ...]
"""Name, width in bits, meaning."""


def _from_low(name: str, members: Members, source: str = "003") -> Layout:
    width = sum(bits for _, bits, _ in members)
    size = -(-width // 8)
    fields = []
    lsb = 0
    for member, bits, doc in members:
        fields.append(Field(member, 0, lsb + bits - 1, lsb, doc, size))
        lsb += bits
    return Layout(name, size, "little", f"{source}, {width} bits", tuple(fields))


def _from_high(name: str, members: Members) -> Layout:
    # if the members do not fill whole bytes, the pad bits are above the first one
    return _from_low(name, tuple(reversed(members)))


QP_CONTEXT = _from_low(
    "qpContext",
    (
        ("new_state", 32, "qpState: RESET, INIT, READY_RECV, READY_SEND, SQ_ERROR, ERROR"),
        ("qp_num", 24, "queue pair, by its short number"),
        ("remote_psn", 24, "expected PSN of the first packet"),
        ("local_psn", 24, "PSN of the first packet to send"),
        ("r_key", 16, "key of the peer's memory, by its short number; 0 is R_Key 0"),
        ("virtual_address", 48, "first byte of the peer's memory"),
    ),
)
IF_CONN_REQ = _from_low(
    "ifConnReq",
    (
        ("qpn", 16, "queue pair, by its short number"),
        ("remote_qpn", 24, "queue pair at the peer"),
        ("remote_ip_address", 128, "address of the peer; IPv4 as ::ffff:a.b.c.d"),
        ("remote_udp_port", 16, "UDP port of the peer"),
    ),
)
RDMA_SQ = _from_high(
    "s_rdma_sq",
    (
        ("rsrvd", 20, "0"),
        ("message_size", 64, "payload bytes"),
        ("local_vaddr", 64, "first byte in host memory; an address has 48 bits"),
        ("remote_vaddr", 64, "first byte at the peer (WRITE, READ)"),
        ("offs", 4, "shell stream that supplies the data: ``dest`` of the command's read requests"),
        ("ssn", 24, "sequence number chosen by the shell, returned in the acknowledgement"),
        ("cmplt", 4, "1: report completion through m_rdma_ack"),
        ("last", 4, "1: last command of a sequence, whose commands are sent together"),
        ("mode", 4, "0 parse: the stack segments the message; 1 raw: one packet with this opcode"),
        ("host", 4, "1: payload is in host memory; 0: payload is a stream"),
        ("qpn", 12, "queue pair, by its short number"),
        ("opcode", 8, "APP_* in parse mode, a BTH opcode in raw mode"),
    ),
)
RDMA_ACK = _from_high(
    "m_rdma_ack",
    (
        ("ssn", 24, "sequence number of the command"),
        ("vfid", 4, "high 4 bits of the short QP number"),
        ("pid", 8, "low 8 bits of the short QP number: the thread, ctid"),
        ("cmplt", 4, "1: completed, 0: failed"),
        ("rd", 4, "1: the command was a READ"),
    ),
)


def _memory_request(name: str) -> Layout:
    return _from_high(
        name,
        (
            ("vfid", 4, "high 4 bits of the short QP number"),
            ("vaddr", 48, "first byte"),
            ("sync", 4, "1: data of a command of this shell"),
            ("stream", 4, "1: stream data, vaddr is ignored"),
            ("pid", 8, "low 8 bits of the short QP number: the thread, ctid"),
            ("len", 28, "bytes"),
            ("host", 4, "1: host memory"),
            ("dest", 12, "stream number"),
            ("ctl", 4, "1: last request of a message"),
        ),
    )


RDMA_RD_REQ = _memory_request("m_rdma_rd_req")
RDMA_WR_REQ = _memory_request("m_rdma_wr_req")

_SHELL = "Coyote's shell (003 has the heading)"
_SID = ("sid", 16, "session")
TCP_LISTEN_REQ = _from_low("tcp_listen_req", (("port", 16, "TCP port to listen on"),), _SHELL)
TCP_LISTEN_RSP = _from_low("tcp_listen_rsp", (("success", 8, "1: the port is open"),), _SHELL)
TCP_OPEN_REQ = _from_low(
    "tcp_open_req", (("ip_address", 32, "IPv4 address of the peer"), ("ip_port", 16, "its TCP port")), _SHELL
)
TCP_OPEN_RSP = _from_low(
    "tcp_open_rsp",
    (_SID, ("success", 8, "1: connected"), ("ip_address", 32, "as requested"), ("ip_port", 16, "as requested")),
    _SHELL,
)
TCP_CLOSE_REQ = _from_low("tcp_close_req", (_SID,), _SHELL)
TCP_NOTIFY = _from_low(
    "tcp_notify",
    (
        _SID,
        ("len", 16, "bytes that can be read; 0 with a session that is new or closed"),
        ("ip_address", 32, "IPv4 address of the peer"),
        ("dst_port", 16, "TCP port of this side"),
        ("closed", 8, "1: the peer has closed its side"),
    ),
    _SHELL,
)
TCP_RD_PKG = _from_low("tcp_rd_pkg", (_SID, ("len", 16, "bytes to read")), _SHELL)
TCP_RX_META = _from_low("tcp_rx_meta", (_SID,), _SHELL)
TCP_TX_META = _from_low("tcp_tx_meta", (_SID, ("len", 16, "bytes to send")), _SHELL)
TCP_TX_STAT = _from_low(
    "tcp_tx_stat",
    (
        _SID,
        ("len", 16, "as requested"),
        ("remaining_space", 30, "free bytes in the session's buffer"),
        ("error", 2, "0: send the data now; 1: no such session; 2: no room, retry"),
    ),
    _SHELL,
)

QPN_BITS = 12
CTID_BITS = 8
"""Width of ctid. A short QP number is {vfid, ctid}: a region of the FPGA in the high 4 bits, and its thread, the
``pid`` of requests, in the low 8."""
KEY_BITS = 16
ADDRESS_BITS = 48
MAX_REQUEST_BYTES = (1 << 28) - 1
"""Largest ``len`` of one memory request; longer transfers use several."""

RESET, INIT, READY_RECV, READY_SEND, SQ_ERROR, ERROR = range(6)
QP_STATES = ("RESET", "INIT", "READY_RECV", "READY_SEND", "SQ_ERROR", "ERROR")
"""Names of ``qpState``, by number."""

MODE_PARSE, MODE_RAW = range(2)
APP_READ, APP_WRITE, APP_SEND = range(3)
"""Opcodes of parse mode."""


def split_qpn(qpn: int) -> tuple[int, int]:
    """Return ``(pid, vfid)`` of a short QP number {vfid, ctid}, as in acknowledgments and memory requests."""
    return qpn & (1 << CTID_BITS) - 1, qpn >> CTID_BITS


def join_qpn(pid: int, vfid: int) -> int:
    """Return the short QP number of ``(pid, vfid)``."""
    return vfid << CTID_BITS | pid
