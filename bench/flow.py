"""Two connected queue pairs of two NICs in this process, over the in-memory link."""

from __future__ import annotations

from collections.abc import Callable

from rnic.link.base import Link
from rnic.link.loopback import loopback_pair
from rnic.verbs import CQ, MR, PD, QP, AHAttr, Context, GlobalRoute, QPAttr, QPCap, QPInitAttr
from rnic.verbs import enums as e

RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE


class Flow:
    """Contexts, completion queues, memory and queue pairs of both ends.

    Args:
        size: bytes of memory.
        depth: send work requests of a queue pair.
        through: wraps each of the two links.
    """

    def __init__(self, size: int, depth: int, through: Callable[[Link], Link] = lambda link: link) -> None:
        links = loopback_pair(bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)), 4791)
        self.contexts = [Context(link=through(link)) for link in links]
        self.cqs, self.mrs, self.qps = [], [], []
        for context in self.contexts:
            pd, cq = PD(context), CQ(context, 256)
            self.cqs.append(cq)
            self.mrs.append(MR(pd, bytearray(size), RIGHTS))
            self.qps.append(QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(depth, 1), scq=cq, rcq=cq)))
        for qp, peer, other in zip(self.qps, self.qps[::-1], self.contexts[::-1], strict=True):
            attr = QPAttr()
            attr.path_mtu, attr.timeout, attr.retry_cnt, attr.gso = e.IBV_MTU_4096, 14, 7, True
            attr.qp_access_flags, attr.dest_qp_num = e.IBV_ACCESS_REMOTE_WRITE, peer.qp_num
            attr.ah_attr = AHAttr(GlobalRoute(other.query_gid()), udp_dport=other.udp_port)
            qp.to_rts(attr)

    def close(self) -> None:
        """Close both NICs."""
        for context in self.contexts:
            context.close()
