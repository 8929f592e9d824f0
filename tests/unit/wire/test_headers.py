"""Every header record against bytes typed by hand from the standards."""

from __future__ import annotations

import struct

import pytest

from rnic.wire.aeth import Aeth
from rnic.wire.atomiceth import AtomicAckEth, AtomicEth
from rnic.wire.bth import Bth
from rnic.wire.cnp import Cnp
from rnic.wire.deth import Deth
from rnic.wire.engine_header import EngineHeader, EngineHeaderWide
from rnic.wire.ethernet import Ethernet, VlanTag
from rnic.wire.header import Header
from rnic.wire.ieth import Ieth
from rnic.wire.immdt import ImmDt
from rnic.wire.ip import IPv4, IPv6, Udp
from rnic.wire.mad import Mad
from rnic.wire.reth import Reth

GOLDEN: list[tuple[type[Header], str, dict[str, int]]] = [
    (
        Bth,
        "0a f5 1234  c5 abcdef  93 fedcba",
        {
            "opcode": 0x0A,
            "solicited": 1,
            "migreq": 1,
            "pad": 3,
            "tver": 5,
            "pkey": 0x1234,
            "fecn": 1,
            "becn": 1,
            "reserved6": 5,
            "dqpn": 0xABCDEF,
            "ackreq": 1,
            "reserved7": 0x13,
            "psn": 0xFEDCBA,
        },
    ),
    (
        Reth,
        "0123456789abcdef deadbeef 00010203",
        {"va": 0x0123456789ABCDEF, "rkey": 0xDEADBEEF, "dma_length": 0x10203},
    ),
    (Aeth, "62 00abcd", {"syndrome": 0x62, "msn": 0xABCD}),
    (Deth, "80010000 7f 000001", {"qkey": 0x80010000, "reserved8": 0x7F, "sqpn": 1}),
    (
        AtomicEth,
        "0000000000001000 00000102 1111111122222222 3333333344444444",
        {"va": 0x1000, "rkey": 0x102, "swap_add": 0x1111111122222222, "compare": 0x3333333344444444},
    ),
    (AtomicAckEth, "0011223344556677", {"orig": 0x0011223344556677}),
    (ImmDt, "cafebabe", {"imm": 0xCAFEBABE}),
    (Ieth, "00000203", {"inv_rkey": 0x203}),
    (Cnp, "00112233445566778899aabbccddeeff", {"reserved128": 0x00112233445566778899AABBCCDDEEFF}),
    (
        Mad,
        "01 07 02 03 0102 0304 0000000212345678 0010 0506 0708090a",
        {
            "base_version": 1,
            "mgmt_class": 7,
            "class_version": 2,
            "method": 3,
            "status": 0x0102,
            "class_specific": 0x0304,
            "tid": 0x0000000212345678,
            "attr_id": 0x10,
            "reserved16": 0x0506,
            "attr_modifier": 0x0708090A,
        },
    ),
    (
        Ethernet,
        "520000000001 520000000002 0800",
        {"dst_mac": 0x520000000001, "src_mac": 0x520000000002, "ethertype": 0x0800},
    ),
    (VlanTag, "b064 86dd", {"pcp": 5, "dei": 1, "vid": 100, "inner_type": 0x86DD}),
    (
        IPv4,
        "45 02 0134 c25b 4000 40 11 22df c633640c c633640b",
        {
            "version": 4,
            "ihl": 5,
            "tos": 2,
            "total_length": 308,
            "identification": 0xC25B,
            "flags_fragment": 0x4000,
            "ttl": 64,
            "protocol": 17,
            "checksum": 0x22DF,
            "src": 0xC633640C,
            "dst": 0xC633640B,
        },
    ),
    (
        IPv6,
        "6a512345 0114 11 3f 20010db8000000000000000000000001 20010db8000000000000000000000002",
        {
            "version": 6,
            "traffic_class": 0xA5,
            "flow_label": 0x12345,
            "payload_length": 276,
            "next_header": 17,
            "hop_limit": 63,
            "src": 0x20010DB8000000000000000000000001,
            "dst": 0x20010DB8000000000000000000000002,
        },
    ),
    (Udp, "d872 12b7 0120 beef", {"sport": 55410, "dport": 4791, "length": 288, "checksum": 0xBEEF}),
    # Seven little-endian words, beat by beat as section 5.3.3 of document 000 draws them; beat 3 whole.
    (
        EngineHeader,
        "0a 56 34 12"  # opcode 0Ah, PSN 123456h
        "bc 9a 78 00"  # QP 789ABCh
        "00 10 00 80"  # address 80001000h
        "00 04 01 00"  # offset 10400h
        "00 02 00 00"  # 512 bytes
        "ff 7f 00 00"  # P_Key 7FFFh
        "03 ab ab ab",  # service level 3, constant
        {
            "opcode": 0x0A,
            "psn": 0x123456,
            "dqpn": 0x789ABC,
            "remote_addr": 0x80001000,
            "fragment_offset": 0x10400,
            "length": 512,
            "pkey": 0x7FFF,
            "service_level": 3,
            "marker": 0xABABAB,
        },
    ),
    # the same with address 123456789ABCDEF0h: in the bits that the document reserves, and the top of beat 3
    (
        EngineHeaderWide,
        "0a 56 34 12  bc 9a 78 78  f0 de bc 9a  00 04 fe 12  00 02 00 00  ff 7f 56 34  03 ab ab ab",
        {
            "opcode": 0x0A,
            "psn": 0x123456,
            "dqpn": 0x789ABC,
            "remote_addr": 0x9ABCDEF0,
            "remote_addr_39_32": 0x78,
            "remote_addr_55_40": 0x3456,
            "remote_addr_63_56": 0x12,
            "fragment_offset": 0xFE0400,
            "length": 512,
            "pkey": 0x7FFF,
            "service_level": 3,
            "marker": 0xABABAB,
        },
    ),
]
IDS = [kind.__name__ for kind, _, _ in GOLDEN]


@pytest.mark.parametrize(("kind", "data", "values"), GOLDEN, ids=IDS)
def test_golden_bytes(kind: type[Header], data: str, values: dict[str, int]) -> None:
    raw = bytes.fromhex(data)
    assert len(raw) == kind.layout.size
    assert kind.parse(b"\xee\xee" + raw, 2).values() == values
    assert kind(**values).pack() == raw
    assert kind.layout.unpack(raw) == values


@pytest.mark.parametrize(("kind", "data", "values"), GOLDEN, ids=IDS)
def test_too_short(kind: type[Header], data: str, values: dict[str, int]) -> None:
    with pytest.raises((struct.error, ValueError)):
        kind.parse(bytes.fromhex(data)[:-1])


@pytest.mark.parametrize(("kind", "data", "values"), GOLDEN, ids=IDS)
def test_values_that_do_not_fit_are_named(kind: type[Header], data: str, values: dict[str, int]) -> None:
    for field in kind.layout.fields:
        for bad in (field.mask + 1, -1):
            with pytest.raises(ValueError, match=rf"\.{field.name}=.* does not fit in {field.width} bits"):
                kind(**{**values, field.name: bad}).pack()


def test_unknown_field_is_named() -> None:
    with pytest.raises(ValueError, match="AETH has no field 'psn'; it has: syndrome, msn"):
        Aeth(psn=1)


def test_records_compare_by_value_and_show_themselves() -> None:
    assert Aeth(msn=2) == Aeth(msn=2)
    assert Aeth(msn=2) != Aeth(msn=3)
    assert ImmDt() != Ieth()
    assert repr(Aeth(syndrome=0x1F, msn=2)) == "Aeth(syndrome=0x1f, msn=0x2)"
    with pytest.raises(TypeError):
        hash(Aeth())


def test_constants() -> None:
    assert EngineHeader().marker == EngineHeaderWide().marker == 0xABABAB
    assert (IPv4().version, IPv4().ihl, IPv6().version) == (4, 5, 6)
    assert EngineHeader(marker=1).marker == 1


def test_the_engine_ignores_reserved_bits() -> None:
    raw = EngineHeader(dqpn=1, pkey=2).pack()
    dirty = bytearray(raw)
    dirty[7] = dirty[22] = dirty[23] = 0xFF
    assert EngineHeader.parse(dirty).pack() == raw
