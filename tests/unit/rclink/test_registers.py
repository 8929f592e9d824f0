"""Registers: where they stand, what loads and stores do, and that a set-up takes no other way."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.rclink import Path, RcLinkConfig, RcLinkEndpoint, RcLinkError, disable, set_up
from rnic.rclink import registers as r
from rnic.wire.flow import Flow

# offset and fields (most and least significant bit), typed from hardware.md §4 where it has them, else from the page
TYPED: dict[str, tuple[int, dict[str, tuple[int, int]]]] = {
    "XON_THR_RDMA": (0x0008, {"type1_free_busy": (50, 50)}),
    "RETRY_TIMER_CFG": (0x0040, {"retry_timer": (12, 0), "retry_limit": (16, 13), "rnr_limit": (20, 17)}),
    "INTR_STATUS": (
        0x00A0,
        {
            "oversize": (0, 0), "over_credit": (1, 1), "retry_out": (3, 3), "tx_disabled": (14, 14),
            "rx_disabled": (15, 15),
        },
    ),
    "CC_WINDOW": (0x0300, {"code": (2, 0)}),
    "ACK_MERGE": (0x0308, {"time": (31, 0)}),
    "CNP_MERGE": (0x0310, {"timer_thr": (31, 0), "enable": (32, 32)}),
    "TX_CFG": (
        0x0318,
        {"bank_rr": (0, 0), "ack_time": (1, 1), "cnp_halves": (2, 2), "icrc": (3, 3), "tclass": (15, 8)},
    ),
    "PORT": (0x0320, {"type1": (15, 0), "type2": (31, 16)}),
    "OST_FREE": (0x0328, {"free": (11, 0)}),
    "IRQ_INFO": (0x0330, {"code": (4, 0), "qpid": (17, 5), "type": (32, 31)}),
    "DEST_IP": (0x2008, {"dest_ip_addr": (31, 0), "dest_qpid": (55, 32)}),
    "DEST_MAC": (0x2010, {"dest_mac_addr": (47, 0)}),
    "UDP_SRC_PORT": (0x2018, {"udp_src_port": (15, 0), "qp_p_key": (23, 16), "udp_dest_port": (47, 32)}),
    "QP_CONTROL_STATUS": (0x2028, {"qp_en": (0, 0), "stopped": (1, 1), "free_buf_set": (15, 15)}),
    "EXPECT_RESP_PSN": (0x2030, {"expect_resp_psn": (11, 0)}),
    "TX_LAST_PSN": (0x2038, {"tx_last_psn": (11, 0)}),
    "TX_ACK_SN": (0x2040, {"tx_epsn": (11, 0)}),
    "TX_SPEED": (0x2048, {"tx_speed_cfg": (21, 0)}),
    "ACC_CNT": (0x2050, {"acc_cnt": (31, 0)}),
    "TX_EPSN": (0x2058, {"tx_psn": (11, 0)}),
    "RETRY_CNT": (0x2060, {"retry_counter": (3, 0), "rnr_retry_counter": (7, 4)}),
    "RX_PKEY": (0x2070, {"qp_p_key": (7, 0)}),
    "REQ_CHK_SN": (0x2078, {"rx_req_epsn": (11, 0)}),
    "TX_MAX_FW_PSN": (0x2080, {"max_forward_psn": (11, 0)}),
    "QP_ID_SET": (0x2088, {"qp_id_set": (31, 0)}),
    "DEST_IP6_HI": (0x2090, {"high": (63, 0)}),
    "DEST_IP6_LO": (0x2098, {"low": (63, 0)}),
}  # fmt: skip
READ_ONLY = {"XON_THR_RDMA", "PORT", "OST_FREE", "IRQ_INFO", "ACC_CNT"}


def endpoint(**settings: Any) -> RcLinkEndpoint:
    return RcLinkEndpoint(RcLinkConfig(**settings), lambda dst, port, sport: Flow(bytes(len(dst)), dst, sport, port))


def test_the_table() -> None:
    assert {row.name: (row.offset, {f.name: (f.msb, f.lsb) for f in row.fields}) for row in r.REGISTERS} == TYPED
    assert [row.offset for row in r.REGISTERS] == sorted(row.offset for row in r.REGISTERS)
    assert {row.name for row in r.REGISTERS if all(f.access == "RO" for f in row.fields)} == READ_ONLY
    assert all(row.source in (r.SOURCE, r.CHOICE) and row.doc for row in r.REGISTERS)


def test_reset_values() -> None:
    one = endpoint()
    values = {row.name: one.read(row.offset) for row in r.REGISTERS}
    assert {name: value for name, value in values.items() if value} == {
        "RETRY_TIMER_CFG": 244 | 15 << 13 | 7 << 17,
        "ACK_MERGE": 4_096,
        "CNP_MERGE": 50_000 | 1 << 32,
        "TX_CFG": 1 << 3 | 2 << 8,
        "PORT": 4793 | 4794 << 16,
        "OST_FREE": 512,
        "TX_LAST_PSN": 0xFFF,
        "TX_MAX_FW_PSN": 0xFFF,
        "TX_SPEED": 0x3FFFFF,
    }


def test_set_up_writes_section_4s_registers() -> None:
    one = endpoint()
    set_up(one, 77, Path(b"\x0a\0\0\x05", 81, 5_000, 0x123, 0x456, 0xAB, 6_000, 0x1000))
    assert {row.name: one.read(row.offset) for row in r.QP_REGISTERS} == {
        "QP_ID_SET": 77,
        "TX_EPSN": 0x123,
        "EXPECT_RESP_PSN": 0x123,
        "TX_LAST_PSN": 0x122,
        "TX_MAX_FW_PSN": 0x122,
        "REQ_CHK_SN": 0x456,
        "TX_ACK_SN": 0x456,
        "TX_SPEED": 0x1000,
        "DEST_IP": 0x0A000005 | 81 << 32,
        "DEST_MAC": 0,
        "UDP_SRC_PORT": 6_000 | 0xAB << 16 | 5_000 << 32,
        "RX_PKEY": 0xAB,
        "RETRY_CNT": 0,
        "QP_CONTROL_STATUS": 1,
        "ACC_CNT": 0,
        "DEST_IP6_HI": 0,
        "DEST_IP6_LO": 0,
    }
    flow = one.qps[77].flow
    assert flow is not None
    assert (flow.dst, flow.dport, flow.sport, flow.tclass) == (b"\x0a\0\0\x05", 5_000, 6_000, 2)
    disable(one, 77)
    assert one.read(r.QP_CONTROL) == 0
    assert one.qps[77].flow is None


def test_ipv6_peer() -> None:
    address = bytes.fromhex("fd00000000000001aabbccddeeff0102")
    one = endpoint()
    set_up(one, 1, Path(address, 1))
    flow = one.qps[1].flow
    assert flow is not None
    assert flow.dst == address
    assert one.read(r.DEST_IP6_HI) == 0xFD00000000000001


@pytest.mark.parametrize(("name", "value"), [
    ("DEST_MAC", 0x1122_3344_5566), ("RX_PKEY", 0xAB), ("TX_EPSN", 0x456), ("TX_SPEED", 0x12_3456),
    ("RETRY_CNT", 0x35), ("DEST_IP6_LO", 7), ("CNP_MERGE", 9), ("ACK_MERGE", 100), ("CC_WINDOW", 4), ("TX_CFG", 0x550F),
    ("RETRY_TIMER_CFG", 10 | 2 << 13 | 3 << 17),
])  # fmt: skip
def test_stores_are_read_back(name: str, value: int) -> None:
    one = endpoint()
    one.write(r.BY_NAME[name].offset, value)
    assert one.read(r.BY_NAME[name].offset) == value


def test_what_global_stores_change() -> None:
    one = endpoint()
    one.write(r.CC_WINDOW, 3)
    assert {qp.rate.window_ns for qp in one.qps} == {32_768}
    one.write(r.RETRY_TIMER_CFG, 10 | 2 << 13 | 3 << 17)
    assert (one.config.retry_timer_ns, one.config.retry_limit, one.config.rnr_limit) == (40_960, 2, 3)
    one.write(r.TX_CFG, 0b0111)
    assert (one.config.bank_rr, one.config.ack_time, one.config.cnp_halves, one.config.icrc) == (True, True, True, True)


@pytest.mark.parametrize("name", sorted(READ_ONLY))
def test_read_only_registers_take_no_store(name: str) -> None:
    one = endpoint()
    before = one.read(r.BY_NAME[name].offset)
    one.write(r.BY_NAME[name].offset, (1 << 64) - 1)
    assert one.read(r.BY_NAME[name].offset) == before


def test_unlisted_and_misaligned_offsets() -> None:
    one = endpoint()
    for offset in (0x0001, 0x0044, 0x0400, 0x2000, 0x2800, 1 << 40, -8):
        one.write(offset, 1)
        assert one.read(offset) == 0


@pytest.mark.parametrize(("offset", "words"), [
    (0x0110, "TYPE2"), (0x0120, "TYPE2"), (0x0168, "TYPE2"), (0x01A0, "TYPE2"), (0x0160, "credits"),
    (0x1000, "TYPE3"), (0x1178, "TYPE3"),
])  # fmt: skip
def test_registers_of_what_is_refused_say_why(offset: int, words: str) -> None:
    one = endpoint()
    assert one.read(offset) == 0
    with pytest.raises(RcLinkError, match=f"register {offset:#06x}=0x1: .*{words}"):
        one.write(offset, 1)


@pytest.mark.parametrize(("offset", "value", "words"), [
    (r.QP_ID_SET, 1_024, "QP_ID_SET=1024: this endpoint has QPs 0 to 1023"),
    (r.CC_WINDOW, 5, "CC_WINDOW=0x5: use 0 to 4"),
    (r.RETRY_TIMER_CFG, 0, "retry_timer is 1 to 8191 and rnr_limit 0 to 7"),
    (r.RETRY_TIMER_CFG, 1 | 8 << 17, "retry_timer is 1 to 8191 and rnr_limit 0 to 7"),
    (r.QP_CONTROL, 1, "QP 0 cannot be enabled: set DEST_IP to its peer first"),
    (r.QP_CONTROL, 1 | 1 << 15, "free_buf_set of QP 0: disable the QP first"),
    (r.TX_EPSN, 1 << 64, "use 0 to 2\\^64 - 1"),
    (r.TX_EPSN, -1, "use 0 to 2\\^64 - 1"),
])  # fmt: skip
def test_values_that_cannot_be(offset: int, value: int, words: str) -> None:
    with pytest.raises(RcLinkError, match=words):
        endpoint().write(offset, value)


def test_a_peer_number_that_rh_cannot_carry() -> None:
    with pytest.raises(RcLinkError, match="dest_qpid 8192 does not fit in the 13 bits of RH"):
        set_up(endpoint(), 0, Path(b"\x0a\0\0\x05", 8_192))


def test_an_enabled_qp_keeps_its_path_and_psns() -> None:
    one = endpoint()
    set_up(one, 3, Path(b"\x0a\0\0\x05", 1))
    for offset in r.FIXED_WHILE_ENABLED | r.FIXED_WHILE_HELD:
        with pytest.raises(RcLinkError, match=r"of QP 3: disable the QP (and free its slots )?first"):
            one.write(offset, 0)
    one.send(3, b"x")
    disable(one, 3)
    for offset in r.FIXED_WHILE_ENABLED:
        one.write(offset, 9)
    for offset in r.FIXED_WHILE_HELD:
        with pytest.raises(RcLinkError, match="of QP 3: disable the QP and free its slots first"):
            one.write(offset, 0)
    one.write(r.QP_CONTROL, 1)
    with pytest.raises(RcLinkError, match="free_buf_set of QP 3: disable the QP first"):
        one.write(r.QP_CONTROL, 1 << 15)


def test_acc_cnt_and_free_slots_show() -> None:
    one = endpoint()
    set_up(one, 3, Path(b"\x0a\0\0\x05", 1))
    one.send(3, bytes(100))
    assert one.read(r.OST_FREE) == 511
    one.produce(0)
    assert one.read(r.ACC_CNT) == 100


@pytest.mark.parametrize(("name", "value"), [
    ("port", 0), ("qp_num", 0), ("qp_num", 8_193), ("ost", 2_048), ("pkt_len", 4_097), ("retry_limit", 16),
    ("retry_timer_ns", 4_095), ("rnr_limit", 8), ("rnr_timer", 32), ("cc_window", 5), ("rx_packets", 0), ("ident", -1),
    ("tclass", 256),
])  # fmt: skip
def test_parameters_out_of_range(name: str, value: int) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(RcLinkError, match=f"^{name}={value} is out of range: use "):
        RcLinkConfig(**settings)


@pytest.mark.parametrize("call", [lambda one: one.send(1_024, b"x"), lambda one: one.rtt_ns(-1)])
def test_qps_that_are_not_there(call: Any) -> None:
    with pytest.raises(RcLinkError, match="this endpoint has QPs 0 to 1023"):
        call(endpoint())


@pytest.mark.parametrize("payload", [b"", bytes(1_345)])
def test_sizes_that_are_not_sent(payload: bytes) -> None:
    with pytest.raises(RcLinkError, match=f"packet of {len(payload)} bytes on QP 1: use 1 to 1344"):
        endpoint().send(1, payload)


def test_one_endpoint_does_not_change_anothers_configuration() -> None:
    config = RcLinkConfig()
    one = RcLinkEndpoint(config, lambda dst, port, sport: Flow(dst, dst, sport, port))
    one.write(r.CC_WINDOW, 2)
    assert config.cc_window == 0


@given(st.lists(st.tuples(st.sampled_from([row.offset for row in r.REGISTERS]), st.integers(0, (1 << 64) - 1))))
def test_any_stores_are_taken_or_refused_in_words(stores: list[tuple[int, int]]) -> None:
    """And registers of 64 bits stay registers of 64 bits."""
    one = endpoint(qp_num=4)
    for offset, value in stores:
        with contextlib.suppress(RcLinkError):
            one.write(offset, value)
        assert 0 <= one.read(offset) < 1 << 64
    one.handle_timers(10**9)
    one.produce(10**9)


def test_values_of_a_register() -> None:
    register = r.BY_NAME["RETRY_TIMER_CFG"]
    assert register.pack(retry_timer=1, retry_limit=2) == 1 | 2 << 13
    with pytest.raises(ValueError, match=r"RETRY_TIMER_CFG\.retry_limit=0x10 does not fit in 4 bits"):
        register.pack(retry_limit=16)
    with pytest.raises(ValueError, match="RETRY_TIMER_CFG has no field 'nothing'"):
        register.pack(nothing=1)
    with pytest.raises(KeyError, match="RETRY_TIMER_CFG has no field 'nothing'"):
        register.get(0, "nothing")


def test_free_buf_set_twice_is_once() -> None:
    one = endpoint()
    one.write(r.QP_CONTROL, 1 << 15)
    one.write(r.QP_CONTROL, 1 << 15)
    assert one.read(r.XON_THR_RDMA) == 1 << 50
    one.produce(0)
    assert (one.read(r.XON_THR_RDMA), one.read(r.QP_CONTROL)) == (0, 0)
