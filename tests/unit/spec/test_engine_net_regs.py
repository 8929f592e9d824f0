"""The network half's tables against the same facts typed by hand from ``hardware.md`` 1c and 000 5.6."""

from __future__ import annotations

from rnic.spec import engine_net_regs as net
from rnic.spec.layout import Layout
from rnic.spec.registers import Register

ENCAP = """
00 RW CTRL  04 RO STATUS  08 RW META_LEN  0C RW SRC_IP  10 RW DST_IP  14 RW SRC_PORT  18 RW DST_PORT  1C RO PKT_CNT
20 RO DROP_CNT  24 RO BYTE_CNT_LO  28 RO BYTE_CNT_HI  40 PULSE IRQ_ACK
"""
DECAP = """
00 RW CTRL  04 RO STATUS  08 RO RX_SRC_IP  0C RO RX_DST_IP  10 RO RX_SRC_PORT  14 RO RX_DST_PORT  18 RO RX_LEN
1C RO PKT_CNT  20 RO DROP_CNT  24 RO HDR_VALID  28 RO HEARTBEAT  2C RW LOCAL_PORT  30 RW LOCAL_MAC_LO
34 RW LOCAL_MAC_HI  38 RW LOCAL_IP  40 PULSE IRQ_ACK
"""


def rows(registers: tuple[Register, ...]) -> list[str]:
    """Each register as the maps above write it."""
    return [f"{register.offset:02X} {register.access} {register.name}" for register in registers]


def typed(text: str) -> list[str]:
    """The same of a map typed by hand."""
    words = text.split()
    return [" ".join(words[at : at + 3]) for at in range(0, len(words), 3)]


def places(layout: Layout) -> dict[str, tuple[int, int, int]]:
    """(first byte, highest bit, lowest bit) of every field."""
    return {field.name: (field.byte, field.msb, field.lsb) for field in layout.fields}


def test_the_register_maps() -> None:
    assert rows(net.ENCAP_REGISTERS) == typed(ENCAP)
    assert rows(net.DECAP_REGISTERS) == typed(DECAP)
    assert [net.ENCAP_OFFSETS["PKT_CNT"], net.DECAP_OFFSETS["PKT_CNT"]] == [0x1C, 0x1C]
    assert places(net.ENCAP_LAYOUT)["DST_PORT"] == (0x18, 31, 0)
    assert places(net.DECAP_LAYOUT)["LOCAL_PORT"] == (0x2C, 31, 0)


def test_the_values_after_reset() -> None:
    assert {register.name: register.reset for register in net.ENCAP_REGISTERS if register.reset} == {
        "SRC_IP": 0xAC1F09CA, "DST_IP": 0xAC1F09C9, "SRC_PORT": 52742, "DST_PORT": 5005,
    }  # fmt: skip
    assert {register.name: register.reset for register in net.DECAP_REGISTERS if register.reset} == {
        "LOCAL_PORT": 5005, "LOCAL_MAC_LO": 0x456789AB, "LOCAL_MAC_HI": 0x0123, "LOCAL_IP": 0xAC1F09CA,
    }  # fmt: skip
    assert net.DEFAULT_DST_MAC == 0x000A35010203
    assert dict.fromkeys(("META_LEN", "SRC_PORT", "DST_PORT", "LOCAL_PORT", "LOCAL_MAC_HI"), 16) == net.WRITABLE_BITS


def test_the_control_and_status_fields() -> None:
    assert places(net.ENCAP_CTRL) == {"enable": (0, 0, 0), "soft_reset": (0, 2, 2), "start": (0, 1, 1)}
    assert places(net.NET_STATUS) == {
        "busy": (0, 0, 0), "error": (0, 1, 1), "lookup_error": (0, 2, 2), "code": (0, 7, 4), "fsm": (0, 10, 8),
    }  # fmt: skip


def test_the_error_codes() -> None:
    assert list(net.ENCAP_ERROR_NAMES) == list(range(10))
    assert [net.META_LENGTH_ZERO, net.META_LENGTH_LONG, net.META_SRC_IP, net.META_DST_IP] == [1, 2, 3, 4]
    assert [net.META_SRC_PORT, net.META_DST_PORT, net.MAX_UDP_PAYLOAD] == [5, 6, 1472]
    assert list(net.DECAP_ERROR_NAMES) == list(range(16))
    assert [net.RX_MAC, net.RX_NOT_IPV4, net.RX_IP_VERSION, net.RX_IP_IHL, net.RX_IP_CHECKSUM] == [1, 2, 3, 4, 5]
    assert [net.RX_NOT_UDP, net.RX_PORT, net.RX_LENGTH, net.RX_FRAME] == [6, 7, 8, 9]


def test_the_endpoint_entry() -> None:
    # 256 bits: valid 191, dst_ip 159:128, dst_mac 127:80, src_mac 79:32
    entry = net.ENDPOINT_ENTRY.pack(
        {"valid": 1, "dst_ip": 0xAC1F09C9, "dst_mac": 0x000A35010203, "src_mac": 0x0123456789AB}
    )
    number = int.from_bytes(entry, "little")
    assert number == 1 << 191 | 0xAC1F09C9 << 128 | 0x000A35010203 << 80 | 0x0123456789AB << 32
    assert net.ENDPOINT_ENTRIES == 256
    assert net.endpoint_index(0xAC1F09C9) == 0xC9 ^ 0x09
    assert net.endpoint_index(0xFFFF1234) == 0x26
