from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOMEBODYS_TESTS = """
import pytest
from rnic import enums


@pytest.mark.rnic_faults([{"match": {"opcode": "RC_READ_RESPONSE*", "direction": "rx"}, "nth": 3, "action": "drop"}])
def test_marked(rnic_pair, rnic_clock):
    a, b = rnic_pair.a, rnic_pair.b
    b.buf[:5000] = bytes(range(250)) * 20
    a.post_send(enums.IBV_WR_RDMA_READ, 5000)
    assert a.wait()[0].status == enums.IBV_WC_SUCCESS
    assert a.buf[:5000] == b.buf[:5000]
    assert a.counters["fault_rx_drop"] == 1
    assert rnic_clock.now_ns > 0


@pytest.mark.rnic_pair(service="UD", ipv6=True)
def test_options(rnic_pair):
    assert rnic_pair.service == "UD"
    assert rnic_pair.a.ctx.address == "fd00::1"


class TestOverridden:
    @pytest.fixture
    def rnic_faults(self):
        return [{"match": {"direction": "tx"}, "action": "drop"}]

    def test_nothing_arrives(self, rnic_pair):
        rnic_pair.a.post_send(enums.IBV_WR_RDMA_WRITE, 10)
        assert rnic_pair.a.wait()[0].status == enums.IBV_WC_RETRY_EXC_ERR
"""


@pytest.mark.slow
def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_somebodys.py").write_text(SOMEBODYS_TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "--strict-markers",
        "-p",
        "rnic.testing.plugin",
    ]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
