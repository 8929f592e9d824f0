"""Peer of late_receiver.c: send all messages at once, with three retries, to a peer without posted receives.

    early_sender.py ADDRESS PORT MESSAGES BYTES SERVER

Print ``MESSAGES messages`` when all completed, and the time.
"""

from __future__ import annotations

import socket
import sys
import time

from rnic.verbs import CQ, GID, MR, PD, QP, SGE, AHAttr, Context, GlobalRoute, QPAttr, QPCap, QPInitAttr, SendWR
from rnic.verbs import enums as e

RETRIES = 3
SECONDS = 20.0
SHOWN = ("rnr_naks_received", "sequence_naks_received", "rewinds", "ack_timeouts")


def main(address: str, port: str, messages: str, size: str, server: str) -> int:
    """Send all messages; return 1 if one fails."""
    count, length = int(messages), int(size)
    with Context(addr=address) as ctx, socket.create_connection((server, int(port)), SECONDS) as peer:
        pd, cq = PD(ctx), CQ(ctx, count + 1)
        memory = bytearray(b"".join(bytes((number & 0xFF,)) * length for number in range(count)))
        mr = MR(pd, memory, e.IBV_ACCESS_LOCAL_WRITE)
        qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(count, 1), scq=cq, rcq=cq))
        with peer.makefile("rw") as lines:
            lines.write(f"{qp.qp_num} 7 {ctx.query_gid().gid}\n")
            lines.flush()
            number, psn, gid = lines.readline().split()
            attr = QPAttr()
            attr.path_mtu, attr.sq_psn, attr.rq_psn, attr.dest_qp_num = e.IBV_MTU_1024, 7, int(psn), int(number)
            attr.timeout, attr.retry_cnt, attr.rnr_retry = 18, RETRIES, 7
            attr.ah_attr = AHAttr(GlobalRoute(GID(gid)))
            qp.to_rts(attr)
            for place in range(count):
                qp.post_send(SendWR(place, e.IBV_WR_SEND, sg=[SGE(mr.buf + place * length, length, mr.lkey)]))
            done, end = 0, time.monotonic() + SECONDS
            while done < count and time.monotonic() < end:
                for wc in cq.poll(count)[1]:
                    if wc.status != e.IBV_WC_SUCCESS:
                        print(f"message {wc.wr_id}: status {wc.status}")
                        return 1
                    done += 1
            lines.write("done\n")
        print(f"{done} messages;", ", ".join(f"{name} {ctx.nic.counters[name]}" for name in SHOWN))
        return int(done < count)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
