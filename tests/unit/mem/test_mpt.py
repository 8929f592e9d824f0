"""The MPT entry: golden bytes typed by hand from ``hardware.md`` 2a, and the conversion of rights."""

from __future__ import annotations

import pytest

from rnic.mem.mpt import MPT_BYTES, MPT_ENTRY, access_from_flags, flags_from_access
from rnic.spec import access

REGION = bytes.fromhex(
    "0802833f"  # 00h flags: absolute, MIO, BIND_EN, PHYSICAL, REGION, on demand, flush, atomic, RR, RW, LW
    "04050607"  # 04h page_size
    "08090a0b"  # 08h key
    "0c0d0e0f"  # 0Ch pd
    "1011121314151617"  # 10h start
    "18191a1b1c1d1e1f"  # 18h length
    "20212223"  # 20h lkey
    "02252627"  # 24h window_type 2, qpn
    "28292a2b"  # 28h window_count
    "2c2d2e2f"  # 2Ch mtt_seg
    "3031323334353637"  # 30h address
    "0000000000000000"
)
VALUES = {
    "sw_owns": 0,
    "absolute": 1,
    "relative": 0,
    "mio": 1,
    "bind_enable": 1,
    "null": 0,
    "physical": 1,
    "region": 1,
    "on_demand": 1,
    "flush_global": 1,
    "atomic": 1,
    "remote_read": 1,
    "remote_write": 1,
    "local_write": 1,
    "page_size": 0x04050607,
    "key": 0x08090A0B,
    "pd": 0x0C0D0E0F,
    "start": 0x1011121314151617,
    "length": 0x18191A1B1C1D1E1F,
    "lkey": 0x20212223,
    "window_type": 2,
    "qpn": 0x252627,
    "window_count": 0x28292A2B,
    "mtt_seg": 0x2C2D2E2F,
    "address": 0x3031323334353637,
}


def test_golden_bytes() -> None:
    assert len(REGION) == MPT_BYTES == 64
    assert MPT_ENTRY.pack(VALUES) == REGION
    assert MPT_ENTRY.unpack(REGION) == VALUES


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("sw_owns", 0x10000000),
        ("absolute", 0x08000000),
        ("relative", 0x04000000),
        ("mio", 0x00020000),
        ("bind_enable", 0x00008000),
        ("null", 0x00000400),
        ("physical", 0x00000200),
        ("region", 0x00000100),
        ("on_demand", 0x00000020),
        ("flush_global", 0x00000010),
        ("atomic", 0x00000008),
        ("remote_read", 0x00000004),
        ("remote_write", 0x00000002),
        ("local_write", 0x00000001),
    ],
)
def test_flag(name: str, flags: int) -> None:
    assert MPT_ENTRY.pack({name: 1})[:4] == flags.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("rights", "flags"),
    [
        (0, 0x08000000),
        (access.LOCAL_WRITE, 0x08000001),
        (access.REMOTE_WRITE, 0x08000002),
        (access.REMOTE_READ, 0x08000004),
        (access.REMOTE_ATOMIC, 0x08000008),
        (access.MW_BIND, 0x08008000),
        (access.ZERO_BASED, 0x04000000),
        (access.FLUSH_GLOBAL, 0x08000010),
        (access.ON_DEMAND, 0x08000020),
        (access.SUPPORTED, 0x0400803F),
    ],
)
def test_rights(rights: int, flags: int) -> None:
    assert flags_from_access(rights) == flags
    assert access_from_flags(flags) == rights


def test_rights_without_a_bit_are_left_out() -> None:
    assert flags_from_access(access.RELAXED_ORDERING | access.HUGETLB | access.LOCAL_WRITE) == 0x08000001


def test_other_flags_are_no_rights() -> None:
    assert access_from_flags(0xF8020300) == 0
