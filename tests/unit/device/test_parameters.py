from __future__ import annotations

import pytest

from rnic.cc.settings import CongestionSettings
from rnic.device.config import NicConfig
from rnic.device.parameters import UNIVISTA, univista
from rnic.spec.errors import VerbsError

# 004 7.4 and 7.5, by hand: name, lowest, highest, power of two
ROWS = [
    ("QP_NUM", 256, 4096, True),
    ("MR_NUM", 256, 16384, True),
    ("OSQ_PER_QP", 1, 16, False),
    ("RX_BUF_AW", 5, 13, False),
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
    }
    config = NicConfig(bytes((10, 0, 0, 1)), **univista(QP_NUM=256, MR_NUM=512, OSQ_PER_QP=8, RX_BUF_AW=5))
    assert (config.log_max_qps, config.max_mrs, config.window_packets, config.window_bytes) == (8, 512, 8, 4096)
    with pytest.raises(VerbsError, match="SPEED is no parameter"):
        univista(SPEED=1)
