"""A ping-pong as it is written for pyverbs. Only the imports differ, and how a NIC of one's own is opened.

python pyverbs_pingpong.py & python pyverbs_pingpong.py 127.0.0.1

For a card, take these imports, and ``Context(name="rocep1s0")``::

    from pyverbs.addr import AHAttr, GID, GlobalRoute
    from pyverbs.cq import CQ
    from pyverbs.device import Context
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
    from pyverbs.wr import SGE, RecvWR, SendWR
    import pyverbs.enums as e
"""

from __future__ import annotations

import argparse
import json
import socket
import time

from rnic.verbs import CQ, GID, MR, PD, QP, SGE, AHAttr, Context, GlobalRoute, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from rnic.verbs import enums as e

SIZE = 64


def exchange(host: str | None, port: int, mine: dict[str, object]) -> dict[str, int | str]:
    """Tell the other end our numbers over TCP, and get its."""
    if host is None:
        with socket.create_server(("127.0.0.1", port)) as listening:
            sock, _ = listening.accept()
    else:
        for _ in range(100):
            try:
                sock = socket.create_connection((host, port))
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
    with sock, sock.makefile("rw") as lines:
        lines.write(json.dumps(mine) + "\n")
        lines.flush()
        theirs: dict[str, int | str] = json.loads(lines.readline())
        return theirs


def wait(cq: CQ) -> None:
    """Poll for one completion."""
    count = 0
    while not count:
        count, found = cq.poll(1)
    if found[0].status != e.IBV_WC_SUCCESS:
        raise SystemExit(f"completion with status {found[0].status}")


def run(host: str | None, port: int, rounds: int) -> float:
    """Play; microseconds for a round trip."""
    # a NIC of this program's own
    ctx = Context(addr="127.0.0.1", port=0)
    pd = PD(ctx)
    cq = CQ(ctx, 16)
    memory = bytearray(SIZE)
    mr = MR(pd, memory, e.IBV_ACCESS_LOCAL_WRITE)
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=4, max_recv_wr=4)))
    sge = SGE(mr.buf, SIZE, mr.lkey)
    mine = {"qpn": qp.qp_num, "gid": str(ctx.query_gid(1, 0)), "udp": ctx.udp_port}
    theirs = exchange(host, port, mine)
    attr = QPAttr(port_num=1)
    attr.dest_qp_num = int(theirs["qpn"])
    attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=GID(str(theirs["gid"])), sgid_index=0), is_global=1, port_num=1)
    attr.ah_attr.udp_dport = int(theirs["udp"])  # rnic's own: here the NICs are on ports of their own
    qp.to_init(attr)
    qp.post_recv(RecvWR(num_sge=1, sg=[sge]))
    qp.to_rts(attr)
    send = SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[sge])
    exchange(host, port, {"ready": 1})
    began = time.perf_counter()
    for _ in range(rounds):
        if host is not None:
            qp.post_send(send)
            wait(cq)
        wait(cq)  # their message; RC completes a send only once it is taken, so order is by turns
        qp.post_recv(RecvWR(num_sge=1, sg=[sge]))
        if host is None:
            qp.post_send(send)
            wait(cq)
    took = (time.perf_counter() - began) / rounds * 1e6
    exchange(host, port, {"done": 1})
    ctx.close()
    return took


def main() -> None:
    """Run the server without a host, the client with one."""
    parser = argparse.ArgumentParser(description="A ping-pong over RC, as for pyverbs.")
    parser.add_argument("host", nargs="?")
    parser.add_argument("--port", type=int, default=18600)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    print(f"{given.rounds} round trips of {SIZE} bytes, {run(given.host, given.port, given.rounds):.0f} us each")


if __name__ == "__main__":
    main()
