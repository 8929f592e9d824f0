"""Beside many programs, quick restarts and a loaded machine nothing fails that succeeds on an idle one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rnic.testing import own_network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a NIC process needs Linux")

PROGRAMS = 64
RESTARTS = 40
LIMIT_S = 500.0
PROGRAM = """
    import sys, time
    from pathlib import Path
    import rnic
    from rnic import enums as e
    from rnic.verbs import *

    directory, address, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with rnic.open(address, directory=directory) as ctx:
        pd, cq = PD(ctx), CQ(ctx, 64)
        data, copy = bytearray(1 << 16), bytearray(1 << 16)
        rights = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        here, there = MR(pd, data, rights), MR(pd, copy, rights)
        qps = [QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(8, 8), scq=cq, rcq=cq)) for _ in "ab"]
        for one, other in (qps, qps[::-1]):
            attr = QPAttr()
            attr.path_mtu, attr.dest_qp_num, attr.timeout, attr.retry_cnt = e.IBV_MTU_1024, other.qp_num, 16, 7
            attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
            attr.ah_attr = AHAttr(GlobalRoute(ctx.query_gid()), udp_dport=ctx.udp_port)
            one.to_rts(attr)
        for number in range(rounds):
            data[:] = bytes((number & 0xFF,)) * (1 << 16)
            wr = SendWR(number, e.IBV_WR_RDMA_WRITE, sg=[SGE(here.buf, 1 << 16, here.lkey)])
            wr.set_wr_rdma(there.rkey, there.buf)
            qps[0].post_send(wr)
            while not (got := cq.poll(1))[0]:
                pass
            assert got[1][0].status == e.IBV_WC_SUCCESS, got[1][0]
            assert copy == data
            time.sleep(0.01)
"""


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_many_programs_restarts_and_a_loaded_machine(
    serve: Callable[[Path], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    nic = serve(tmp_path)
    busy: list[subprocess.Popen[Any]] = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range((os.cpu_count() or 1) + 1)
    ]
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), f"{own_network()}.40"]
    env = {**os.environ, "RNIC_RUNTIME_DIR": str(tmp_path)}

    def begin(rounds: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*program, str(rounds)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    lasting: list[subprocess.Popen[str]] = []
    failed: list[str] = []

    def finish(process: subprocess.Popen[str]) -> None:
        said = process.communicate(timeout=LIMIT_S)[0]
        if process.returncode:
            failed.append(said[-600:])

    try:
        lasting = [begin(50) for _ in range(PROGRAMS)]
        restarted: list[subprocess.Popen[str]] = []
        for number in range(RESTARTS):
            process = begin(3)
            if number % 2:
                restarted.append(process)  # its successor does not wait for it
            else:
                finish(process)
        for process in [*restarted, *lasting]:
            finish(process)
        assert not failed, f"{len(failed)} of {PROGRAMS + RESTARTS} failed: {failed[:3]}"
        assert nic.poll() is None
    finally:
        everybody: list[subprocess.Popen[Any]] = [*busy, *lasting]
        for each in everybody:
            each.kill()
            each.communicate()
        nic.terminate()
        assert nic.wait(60) == 0
