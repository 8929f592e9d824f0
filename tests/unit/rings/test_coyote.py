"""The structures of 003: widths typed by hand from the document, and golden bytes of each."""

from __future__ import annotations

import pytest

from rnic.rings import coyote as c
from rnic.spec.layout import Layout

# Name and width of every member, in the document's order.
DOCUMENT = {
    "qpContext": "new_state 32, qp_num 24, remote_psn 24, local_psn 24, r_key 16, virtual_address 48",
    "ifConnReq": "qpn 16, remote_qpn 24, remote_ip_address 128, remote_udp_port 16",
    "s_rdma_sq": "rsrvd 20, message_size 64, local_vaddr 64, remote_vaddr 64, offs 4, ssn 24, cmplt 4, last 4, mode 4, "
    "host 4, qpn 12, opcode 8",
    "m_rdma_ack": "ssn 24, vfid 4, pid 8, cmplt 4, rd 4",
    "m_rdma_rd_req": "vfid 4, vaddr 48, sync 4, stream 4, pid 8, len 28, host 4, dest 12, ctl 4",
    "m_rdma_wr_req": "vfid 4, vaddr 48, sync 4, stream 4, pid 8, len 28, host 4, dest 12, ctl 4",
    # 003 has the heading of TCP/IP alone: widths of the published shell
    "tcp_listen_req": "port 16",
    "tcp_listen_rsp": "success 8",
    "tcp_open_req": "ip_address 32, ip_port 16",
    "tcp_open_rsp": "sid 16, success 8, ip_address 32, ip_port 16",
    "tcp_close_req": "sid 16",
    "tcp_notify": "sid 16, len 16, ip_address 32, dst_port 16, closed 8",
    "tcp_rd_pkg": "sid 16, len 16",
    "tcp_rx_meta": "sid 16",
    "tcp_tx_meta": "sid 16, len 16",
    "tcp_tx_stat": "sid 16, len 16, remaining_space 30, error 2",
}
TCP = (
    *(c.TCP_LISTEN_REQ, c.TCP_LISTEN_RSP, c.TCP_OPEN_REQ, c.TCP_OPEN_RSP, c.TCP_CLOSE_REQ, c.TCP_NOTIFY),
    *(c.TCP_RD_PKG, c.TCP_RX_META, c.TCP_TX_META, c.TCP_TX_STAT),
)
LAYOUTS = (c.QP_CONTEXT, c.IF_CONN_REQ, c.RDMA_SQ, c.RDMA_ACK, c.RDMA_RD_REQ, c.RDMA_WR_REQ, *TCP)
FIRST_LOWEST = ("qpContext", "ifConnReq", *(layout.name for layout in TCP))

# As one number, most significant digit first, members as the document lists them: HLS structs from the right,
# SystemVerilog ones from the left.
GOLDEN = {
    "qpContext": (
        "0123456789ab" "cdef" "112233" "445566" "778899" "00000003",
        (3, 0x778899, 0x445566, 0x112233, 0xCDEF, 0x0123456789AB),
    ),
    "ifConnReq": (
        "12b7" "00000000000000000000ffff0a000001" "abcdef" "0123",
        (0x0123, 0xABCDEF, 0xFFFF0A000001, 4791),
    ),
    "s_rdma_sq": (
        "00000" "0000000000001000" "00007f1122334455" "0000123456789abc" "0" "a1b2c3" "1" "1" "0" "1" "123" "01",
        (0, 4096, 0x7F1122334455, 0x123456789ABC, 0, 0xA1B2C3, 1, 1, 0, 1, 0x123, 1),
    ),
    "m_rdma_ack": ("a1b2c3" "3" "12" "1" "0", (0xA1B2C3, 3, 0x12, 1, 0)),
    "m_rdma_rd_req": (
        "3" "7f1122334455" "0" "0" "12" "0001000" "1" "456" "1",
        (3, 0x7F1122334455, 0, 0, 0x12, 0x1000, 1, 0x456, 1),
    ),
    "m_rdma_wr_req": (
        "3" "7f1122334455" "1" "1" "12" "fffffff" "0" "789" "0",
        (3, 0x7F1122334455, 1, 1, 0x12, 0xFFFFFFF, 0, 0x789, 0),
    ),
    "tcp_listen_req": ("1388", (5000,)),
    "tcp_listen_rsp": ("01", (1,)),
    "tcp_open_req": ("1388" "0a000002", (0x0A000002, 5000)),
    "tcp_open_rsp": ("1388" "0a000002" "01" "abcd", (0xABCD, 1, 0x0A000002, 5000)),
    "tcp_close_req": ("abcd", (0xABCD,)),
    "tcp_notify": ("01" "1388" "0a000002" "0123" "abcd", (0xABCD, 0x123, 0x0A000002, 5000, 1)),
    "tcp_rd_pkg": ("0123" "abcd", (0xABCD, 0x123)),
    "tcp_rx_meta": ("abcd", (0xABCD,)),
    "tcp_tx_meta": ("0123" "abcd", (0xABCD, 0x123)),
    "tcp_tx_stat": ("80001000" "0123" "abcd", (0xABCD, 0x123, 0x1000, 2)),
}  # fmt: skip


def members(layout: Layout) -> list[tuple[str, int]]:
    return [(name, int(bits)) for name, bits in (part.split() for part in DOCUMENT[layout.name].split(", "))]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_members_have_the_documents_widths_and_order(layout: Layout) -> None:
    said = members(layout)
    order = sorted(layout.fields, key=lambda field: field.lsb, reverse=layout.name not in FIRST_LOWEST)
    assert [(field.name, field.width) for field in order] == said
    total = sum(bits for _, bits in said)
    assert layout.size == -(-total // 8)
    assert sum(field.width for field in layout.fields) == total


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_golden_bytes(layout: Layout) -> None:
    digits, numbers = GOLDEN[layout.name]
    data = int(digits, 16).to_bytes(layout.size, "little")
    values = dict(zip((name for name, _ in members(layout)), numbers, strict=True))
    assert layout.pack(values) == data
    assert layout.unpack(data) == values


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_value_that_does_not_fit_is_refused(layout: Layout) -> None:
    for name, width in members(layout):
        with pytest.raises(ValueError, match=name):
            layout.pack({name: 1 << width})


def test_short_numbers_split_as_requests_name_them() -> None:
    assert c.split_qpn(0xABC) == (0xBC, 0xA)  # {vfid, ctid}
    assert all(c.join_qpn(*c.split_qpn(number)) == number for number in range(1 << c.QPN_BITS))


def test_states_are_numbered_in_the_documents_order() -> None:
    assert c.QP_STATES == ("RESET", "INIT", "READY_RECV", "READY_SEND", "SQ_ERROR", "ERROR")
    assert [getattr(c, name) for name in c.QP_STATES] == list(range(6))
