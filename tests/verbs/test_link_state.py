"""An interface that goes down and comes up again, in a network namespace of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import subprocess
    from rnic import enums as e
    from rnic.verbs import CQ, GID, MR, PD, QP, SGE, AHAttr, Context, GlobalRoute, QPAttr, QPCap, QPInitAttr, SendWR

    def ip(*args):
        subprocess.run(["ip", *args], check=True)

    ip("link", "add", "far0", "type", "veth", "peer", "name", "far1")
    ip("link", "set", "far1", "up")
    ip("addr", "add", "10.9.9.1/24", "dev", "far0")
    ip("link", "set", "far0", "up")
    ctx = Context(addr="10.9.9.1")
    pd, cq = PD(ctx), CQ(ctx, 16)
    mr = MR(pd, bytearray(64), 7)
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(8, 8), cq, cq, None))
    attr = QPAttr()
    attr.path_mtu, attr.timeout, attr.retry_cnt, attr.min_rnr_timer = e.IBV_MTU_1024, 14, 7, 1
    attr.dest_qp_num, attr.ah_attr = 17, AHAttr(GlobalRoute(GID("10.9.9.2")))
    qp.to_rts(attr)
    ip("link", "set", "far0", "down")
    wr = SendWR(1, e.IBV_WR_RDMA_WRITE, sg=[SGE(mr.buf, 8, mr.lkey)], send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_rdma(5, 0x1000)
    qp.post_send(wr)
    event = ctx.get_async_event()
    assert (event.event_type, event.element) == (e.IBV_EVENT_PORT_ERR, None), event
    assert ctx.query_port().state == 1
    ip("link", "set", "far0", "up")
    assert ctx.get_async_event().event_type == e.IBV_EVENT_PORT_ACTIVE  # with a retry
    assert ctx.query_port().state == 4
    print("down and up again")
"""


def unshare() -> list[str] | None:
    """A command that runs another in a network namespace of its own, where pairs of interfaces can be made."""
    tool = shutil.which("unshare")
    if tool is None or shutil.which("ip") is None:
        return None
    command = [tool, "-n"] if os.geteuid() == 0 else [tool, "-Urn"]
    make = [*command, "ip", "link", "add", "far0", "type", "veth"]
    return command if subprocess.run(make, capture_output=True, check=False).returncode == 0 else None


@pytest.mark.slow
def test_programs_hear_that_the_interface_is_down() -> None:
    command = unshare()
    if command is None:
        pytest.skip("no network namespace with a pair of interfaces can be made here")
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    done = subprocess.run([*command, *program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("down and up again\n", "")
