from __future__ import annotations

import random

import pytest

from rnic.cc.settings import CongestionSettings
from rnic.device.config import NicConfig
from rnic.device.inspect import registers
from rnic.device.nic import Nic
from rnic.device.parameters import UNIVISTA, profile_settings, univista
from rnic.mem.space import SimAddressSpace
from rnic.spec import commands as cmd
from rnic.spec.errors import VerbsError

# 004 7.4 and 7.5, by hand: name, lowest, highest, power of two
ROWS = [
    ("QP_NUM", 256, 4096, True),
    ("MR_NUM", 256, 16384, True),
    ("OSQ_PER_QP", 1, 16, False),
    ("RX_BUF_AW", 5, 13, False),
    ("RQ_ALMOST_FULL", 1, 16, False),
    ("RAM_RD_LATENCY", 1, 3, False),
    ("QPM_AXI_DW", 64, 512, True),
    ("MAC_DW", 512, 1024, False),
]


def test_golden_rows() -> None:
    assert [(row.name, row.low, row.high, row.power) for row in UNIVISTA] == ROWS


@pytest.mark.parametrize(("name", "low", "high", "power"), ROWS, ids=[row[0] for row in ROWS])
def test_ranges(name: str, low: int, high: int, power: bool) -> None:
    univista(**{name: low})
    univista(**{name: high})
    for bad in (low - 1, high + 1, *((low + 1,) if power or name == "MAC_DW" else ())):
        with pytest.raises(VerbsError, match=f"{name}={bad}: use"):
            univista(**{name: bad})


def test_settings() -> None:
    assert univista() == {
        "log_max_qps": 12,
        "max_mrs": 16384,
        "window_packets": 16,
        "window_bytes": 1 << 20,
        "congestion": CongestionSettings("limit"),
        "rq_almost_full": 1,
        "fault_events": True,
        "profile": "univista",
        "parameters": {
            "QP_NUM": 4096,
            "MR_NUM": 16384,
            "OSQ_PER_QP": 16,
            "RX_BUF_AW": 13,
            "RQ_ALMOST_FULL": 1,
            "RAM_RD_LATENCY": 1,
            "QPM_AXI_DW": 512,
            "MAC_DW": 1024,
        },
    }
    config = NicConfig(bytes((10, 0, 0, 1)), **univista(QP_NUM=256, MR_NUM=512, OSQ_PER_QP=8, RX_BUF_AW=5))
    assert (config.log_max_qps, config.max_mrs, config.window_packets, config.window_bytes) == (8, 512, 8, 4096)
    with pytest.raises(VerbsError, match="SPEED is not a parameter"):
        univista(SPEED=1)


def test_parameters_of_hardware_alone_are_kept_and_shown() -> None:
    config = NicConfig(bytes((10, 0, 0, 1)), **univista(RAM_RD_LATENCY=3, QPM_AXI_DW=128, MAC_DW=512))
    shown = registers(Nic(config, rng=random.Random(1)))
    assert shown["profile"] == "univista"
    assert [shown["parameters"][name] for name in ("RAM_RD_LATENCY", "QPM_AXI_DW", "MAC_DW")] == [3, 128, 512]
    plain = registers(Nic(NicConfig(bytes((10, 0, 0, 1))), rng=random.Random(1)))
    assert (plain["profile"], plain["parameters"]) == ("", {})


def test_profiles_by_name() -> None:
    assert profile_settings("univista", {"QP_NUM": 512}) == univista(QP_NUM=512)
    assert profile_settings(None, {}) == profile_settings("", {}) == {}
    for profile, parameters, words in (
        ("x", {}, "use univista"),
        (None, {"QP_NUM": 512}, "QP_NUM: parameters require"),
    ):
        with pytest.raises(VerbsError, match=words):
            profile_settings(profile, parameters)


def test_8192_queue_pairs_and_none_of_them_is_the_managements() -> None:
    """004 7.1 and 7.2: up to 8192; QP0 and QP1 are nobody's."""
    nic = Nic(NicConfig(bytes((10, 0, 0, 1)), log_max_qps=13), rng=random.Random(1))
    uar = nic.map_uar(SimAddressSpace())
    given = [nic.command(uar, cmd.ALLOC_RES, cmd.RES_QP) for _ in range(8192)]
    assert {result.status for result in given} == {cmd.ST_OK}
    numbers = {result.out_param for result in given}
    assert len(numbers) == 8192
    assert min(numbers) > 1
    assert nic.command(uar, cmd.ALLOC_RES, cmd.RES_QP).status != cmd.ST_OK
