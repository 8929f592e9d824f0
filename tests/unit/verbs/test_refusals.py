"""Calls of the Python API that are refused, one row each: the exception says why in the catalog's words.

The rows are those of ``tests/abi/refusals.c`` as far as Python has the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from errno import EACCES, EBUSY, EINVAL, EOPNOTSUPP
from typing import Any

import pytest

import rnic
from rnic import enums as e
from rnic.spec import reasons
from rnic.spec.reasons import VALUE, Reason
from rnic.testing import QpPair
from rnic.verbs.attrs import (
    GID,
    SGE,
    AHAttr,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
)
from rnic.verbs.cq import CQ
from rnic.verbs.memory import AH, MR, MW
from rnic.verbs.qp import QP
from rnic.verbs.qp_states import INIT_MASK, RTR_MASK, RTS_MASK
from rnic.verbs.srq import SRQ

RANGE = reasons.ATTRIBUTE_RANGE
RC, STATE = e.IBV_QPT_RC, e.IBV_QP_STATE
TO_INIT, TO_RTR, TO_RTS = INIT_MASK[RC], RTR_MASK[RC], RTS_MASK[RC]
INIT, RTR, RTS = e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS
FLUSH_PERSISTENT = 0x200
GROUP = GID("ff0e::ffff:e000:1")


class World:
    """A device with one object of each kind."""

    def __init__(self) -> None:
        self.pair = QpPair(connect=False)
        side = self.pair.a
        self.ctx, self.pd, self.cq = side.ctx, side.pd, side.cq
        self.gid = self.ctx.query_gid(1, 0)
        self.mr = MR(self.pd, 8192, e.IBV_ACCESS_LOCAL_WRITE)
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(8, 1)))
        self.rc, self.sharing = self.qp(), self.qp(srq=self.srq)
        self.init, self.rtr = self.qp(), self.qp()
        self.init.to_init(QPAttr())
        self.rtr.to_rtr(self.attr(self.rtr.qp_num))
        self.ud = self.qp(e.IBV_QPT_UD)
        self.ud.to_rts(QPAttr())
        self.ah = AH(self.pd, AHAttr(GlobalRoute(self.gid)))

    def qp(self, kind: int = RC, cap: QPCap | None = None, srq: SRQ | None = None) -> QP:
        return QP(self.pd, QPInitAttr(kind, None, cap or QPCap(4, 4, 1, 1, 32), self.cq, self.cq, srq))

    def attr(self, number: int = 1) -> QPAttr:
        attr = QPAttr()
        attr.dest_qp_num = number
        attr.ah_attr = AHAttr(GlobalRoute(self.gid))
        return attr

    def modify(self, qp: QP, mask: int, state: int, **values: Any) -> None:
        attr = self.attr()
        attr.qp_state = state
        for name, value in values.items():
            setattr(attr, name, value)
        qp.modify(attr, mask)

    def receives(self, count: int) -> RecvWR:
        return RecvWR(0, count, [SGE(self.mr.buf, 1, self.mr.lkey)] * count)

    def send(self, opcode: int = e.IBV_WR_SEND, count: int = 1, length: int = 1, flags: int = 0) -> SendWR:
        wr = SendWR(0, opcode, sg=[SGE(self.mr.buf, length, self.mr.lkey)] * count, send_flags=flags)
        wr.set_wr_ud(self.ah, 2, 1)
        return wr


REFUSED: tuple[tuple[str, Callable[[World], object], Reason, int], ...] = (
    ("query_port, port", lambda w: w.ctx.query_port(2), reasons.PORT_NUMBER, EINVAL),
    ("query_gid, index", lambda w: w.ctx.query_gid(1, 99), reasons.GID_INDEX, EINVAL),
    ("query_gid, port", lambda w: w.ctx.query_gid(2, 0), reasons.PORT_NUMBER, EINVAL),
    ("query_gid_type, index", lambda w: w.ctx.query_gid_type(1, 99), reasons.GID_INDEX, EINVAL),
    ("query_pkey, index", lambda w: w.ctx.query_pkey(1, 99), reasons.PKEY_INDEX, EINVAL),
    ("query_pkey, port", lambda w: w.ctx.query_pkey(2, 0), reasons.PORT_NUMBER, EINVAL),
    ("CQ, none", lambda w: CQ(w.ctx, 0), RANGE, EINVAL),
    ("CQ, too many", lambda w: CQ(w.ctx, 1 << 30), RANGE, EINVAL),
    ("resize", lambda w: w.cq.resize(0), RANGE, EINVAL),
    ("SRQ, max_wr", lambda w: SRQ(w.pd, SrqInitAttr(SrqAttr(0, 1))), RANGE, EINVAL),
    ("SRQ, max_sge", lambda w: SRQ(w.pd, SrqInitAttr(SrqAttr(8, 99))), RANGE, EINVAL),
    (
        "SRQ.modify, limit",
        lambda w: w.srq.modify(SrqAttr(srq_limit=99), e.IBV_SRQ_LIMIT),
        RANGE,
        EINVAL,
    ),
    ("SRQ.modify, max_wr", lambda w: w.srq.modify(SrqAttr(9), e.IBV_SRQ_MAX_WR), reasons.NOT_SUPPORTED, EINVAL),
    ("SRQ.post_recv, num_sge", lambda w: w.srq.post_recv(w.receives(9)), reasons.NUM_SGE, EINVAL),
    ("MR, rights", lambda w: MR(w.pd, 64, e.IBV_ACCESS_REMOTE_WRITE), reasons.MR_RIGHTS, EINVAL),
    ("MR, length", lambda w: MR(w.pd, 0), reasons.MR_LENGTH, EINVAL),
    ("MR, unknown rights", lambda w: MR(w.pd, 64, 1 << 20), reasons.ACCESS_FLAGS, EINVAL),
    ("MR, persistent", lambda w: MR(w.pd, 64, FLUSH_PERSISTENT), reasons.NOT_PERSISTENT, EOPNOTSUPP),
    ("MW, type", lambda w: MW(w.pd, 7), reasons.WINDOW_TYPE, EINVAL),
    ("MW, bind of type 2", lambda w: MW(w.pd, e.IBV_MW_TYPE_2).bind(w.rc, None), reasons.WINDOW_TYPE, EINVAL),  # type: ignore[arg-type]
    ("QP, CQ", lambda w: QP(w.pd, QPInitAttr(RC, None, QPCap())), reasons.NO_CQ, EINVAL),
    ("QP, type", lambda w: w.qp(77), reasons.NOT_SUPPORTED, EINVAL),
    ("QP, max_send_sge", lambda w: w.qp(cap=QPCap(4, 4, 99, 1)), RANGE, EINVAL),
    ("QP, max_inline_data", lambda w: w.qp(cap=QPCap(4, 4, 1, 1, 1 << 20)), RANGE, EINVAL),
    ("QP, max_send_wr", lambda w: w.qp(cap=QPCap(1 << 30)), RANGE, EINVAL),
    ("modify, mask", lambda w: w.modify(w.rc, STATE, INIT), reasons.MASK_LACKS, EINVAL),
    ("modify, extra", lambda w: w.modify(w.rc, TO_INIT | e.IBV_QP_TIMEOUT, INIT), reasons.MASK_EXTRA, EINVAL),
    ("modify, order", lambda w: w.modify(w.rc, STATE, RTS), reasons.NO_TRANSITION, EINVAL),
    ("modify, no state", lambda w: w.modify(w.rc, e.IBV_QP_TIMEOUT, INIT), reasons.MASK_EXTRA, EINVAL),
    ("modify, state", lambda w: w.modify(w.rc, STATE, 77), RANGE, EINVAL),
    (
        "modify, current",
        lambda w: w.modify(w.rc, TO_INIT | e.IBV_QP_CUR_STATE, INIT, cur_qp_state=RTS),
        reasons.CURRENT_STATE,
        EINVAL,
    ),
    (
        "modify, RESET",
        lambda w: w.modify(w.rc, STATE | e.IBV_QP_PORT, e.IBV_QPS_RESET),
        reasons.RESET_ALONE,
        EINVAL,
    ),
    ("modify, P_Key", lambda w: w.modify(w.rc, TO_INIT, INIT, pkey_index=9), reasons.PKEY_INDEX, EINVAL),
    ("modify, port", lambda w: w.modify(w.rc, TO_INIT, INIT, port_num=2), reasons.PORT_NUMBER, EINVAL),
    (
        "modify, rights",
        lambda w: w.modify(w.rc, TO_INIT, INIT, qp_access_flags=1 << 20),
        RANGE,
        EINVAL,
    ),
    ("modify, path_mtu", lambda w: w.modify(w.init, TO_RTR, RTR, path_mtu=9), RANGE, EINVAL),
    ("modify, path_mtu 0", lambda w: w.modify(w.init, TO_RTR, RTR, path_mtu=0), RANGE, EINVAL),
    (
        "modify, dest_qp_num",
        lambda w: w.modify(w.init, TO_RTR, RTR, dest_qp_num=1 << 24),
        RANGE,
        EINVAL,
    ),
    ("modify, dest_qp_num 0", lambda w: w.modify(w.init, TO_RTR, RTR, dest_qp_num=0), reasons.DEST_QPN, EINVAL),
    (
        "modify, max_dest_rd_atomic",
        lambda w: w.modify(w.init, TO_RTR, RTR, max_dest_rd_atomic=200),
        RANGE,
        EINVAL,
    ),
    (
        "modify, sgid_index",
        lambda w: w.modify(w.init, TO_RTR, RTR, ah_attr=AHAttr(GlobalRoute(w.gid, 99))),
        reasons.GID_INDEX,
        EINVAL,
    ),
    (
        "modify, is_global",
        lambda w: w.modify(w.init, TO_RTR, RTR, ah_attr=AHAttr(GlobalRoute(w.gid), is_global=0)),
        reasons.NO_GRH,
        EINVAL,
    ),
    (
        "modify, dgid",
        lambda w: w.modify(w.init, TO_RTR, RTR, ah_attr=AHAttr(GlobalRoute(GID("fe00::1")))),
        reasons.PEER_GID,
        EINVAL,
    ),
    ("modify, timeout", lambda w: w.modify(w.rtr, TO_RTS, RTS, timeout=40), RANGE, EINVAL),
    ("modify, retry_cnt", lambda w: w.modify(w.rtr, TO_RTS, RTS, retry_cnt=9), RANGE, EINVAL),
    ("modify, rnr_retry", lambda w: w.modify(w.rtr, TO_RTS, RTS, rnr_retry=9), RANGE, EINVAL),
    (
        "modify, max_rd_atomic",
        lambda w: w.modify(w.rtr, TO_RTS, RTS, max_rd_atomic=200),
        RANGE,
        EINVAL,
    ),
    ("post_send, state", lambda w: w.rc.post_send(w.send()), reasons.NOT_IN_RTS, EINVAL),
    ("post_send, opcode", lambda w: w.ud.post_send(w.send(99)), reasons.OPCODE, EINVAL),
    ("post_send, flags", lambda w: w.ud.post_send(w.send(flags=1 << 12)), reasons.SEND_FLAGS, EINVAL),
    (
        "post_send, address handle",
        lambda w: w.ud.post_send(SendWR(0, e.IBV_WR_SEND)),
        reasons.NO_ADDRESS_HANDLE,
        EINVAL,
    ),
    ("post_send, num_sge", lambda w: w.ud.post_send(w.send(count=99)), reasons.NUM_SGE, EINVAL),
    (
        "post_send, inline",
        lambda w: w.ud.post_send(w.send(length=99, flags=e.IBV_SEND_INLINE)),
        reasons.INLINE_LENGTH,
        EINVAL,
    ),
    ("post_recv, state", lambda w: w.rc.post_recv(w.receives(1)), reasons.IN_RESET, EINVAL),
    ("post_recv, shared", lambda w: w.sharing.post_recv(w.receives(1)), reasons.USES_SRQ, EINVAL),
    ("post_recv, num_sge", lambda w: w.ud.post_recv(w.receives(99)), reasons.NUM_SGE, EINVAL),
    ("AH, port", lambda w: AH(w.pd, AHAttr(GlobalRoute(w.gid), 2)), reasons.PORT_NUMBER, EINVAL),
    ("AH, index", lambda w: AH(w.pd, AHAttr(GlobalRoute(w.gid, 99))), reasons.GID_INDEX, EINVAL),
    ("AH, LID", lambda w: AH(w.pd, AHAttr(GlobalRoute(w.gid), is_global=0)), reasons.NO_GRH, EINVAL),
    ("AH, dgid", lambda w: AH(w.pd, AHAttr(GlobalRoute(GID("fe00::1")))), reasons.PEER_GID, EINVAL),
    ("AH, zero", lambda w: AH(w.pd, AHAttr(GlobalRoute(GID("0.0.0.0")))), reasons.PEER_GID, EINVAL),
    ("AH, sl", lambda w: AH(w.pd, AHAttr(GlobalRoute(w.gid), sl=16)), RANGE, EINVAL),
    ("attach_mcast, RC", lambda w: w.rc.attach_mcast(GROUP), reasons.BAD_VALUE, EINVAL),
    ("attach_mcast, no group", lambda w: w.ud.attach_mcast(w.gid), reasons.BAD_VALUE, EINVAL),
    ("detach_mcast, no group", lambda w: w.ud.detach_mcast(w.gid), reasons.BAD_VALUE, EINVAL),
    ("detach_mcast, not there", lambda w: w.ud.detach_mcast(GROUP), reasons.BAD_VALUE, EINVAL),
    ("CQ, in use", lambda w: w.cq.close(), reasons.IN_USE, EBUSY),
    ("PD, in use", lambda w: w.ctx.free(2, w.pd.handle), reasons.IN_USE, EBUSY),
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    with made.pair:
        yield made


def pattern(reason: Reason) -> str:
    """Return the reason's line with its values left open."""
    fixed = VALUE.split(reason.text)[::3]
    return ".+".join(map(re.escape, fixed))


@pytest.mark.parametrize(("name", "call", "reason", "errno"), REFUSED, ids=[each[0] for each in REFUSED])
def test_an_exception_has_the_catalog_s_words(
    world: World, name: str, call: Callable[[World], object], reason: Reason, errno: int
) -> None:
    with pytest.raises(rnic.VerbsError) as raised:
        call(world)
    assert raised.value.errno == errno
    # a step of the state machine is named before what its device says of it
    assert re.fullmatch(
        f"(queue pair 0x[0-9a-f]+: [A-Z]+ to [A-Z]+ refused: )?{pattern(reason)}", raised.value.strerror or ""
    )


def test_a_buffer_that_cannot_be_written_says_what_can(world: World) -> None:
    """Python alone has such a mistake."""
    with pytest.raises(rnic.VerbsError, match="buffer of type bytes is read-only; register it without") as raised:
        MR(world.pd, b"12345678", e.IBV_ACCESS_LOCAL_WRITE)
    assert raised.value.errno == EACCES
