"""Explain why a test waits forever, or its work request failed: the usual errors, from counters and states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rnic.spec.syndromes import AETH_RNR_NAK
from rnic.state.counters import NAKS_SENT
from rnic.verbs import enums as e
from rnic.verbs.attrs import WC

if TYPE_CHECKING:
    from rnic.testing.pair import Side

MOST_RNR_NAKS = 300
"""RNR NAKs in one wait after which no receive is expected, since the test cannot post one meanwhile."""

_CAN_RECEIVE = (e.IBV_QPS_RTR, e.IBV_QPS_RTS, e.IBV_QPS_SQD, e.IBV_QPS_SQE)


def rnr_naks(end: Side) -> int:
    """Return the number of RNR NAKs that an end sent."""
    return end.counters.get(NAKS_SENT[AETH_RNR_NAK], 0)


def diagnose(side: Side, completions: Iterable[WC] = ()) -> list[str]:
    """Return the likely problems between a side and its peer, one line each, the likeliest first; empty if there are
    none.

    Args:
        side: the side that waits, or waited.
        completions: completions that the side has already taken.

    It detects missing receives, refused keys or ranges, and queue pairs that are not ready, at either end.
    """
    peer = side.peer
    found = []
    for who, end, enough in (("this side's", side, (e.IBV_QPS_RTS, e.IBV_QPS_SQD)), ("the peer's", peer, _CAN_RECEIVE)):
        if end.qp.qp_state not in (*enough, e.IBV_QPS_ERR, e.IBV_QPS_SQE):
            state = e.QP_STATE_NAMES[end.qp.qp_state]
            want = "RTS" if end is side else "RTR or RTS"
            found.append(f"{who} queue pair {end.qp.qp_num} is in {state}: nobody moved it to {want}")
    peer.wcs = peer.poll()  # the completions are kept: the peer's own wait returns them
    for who, end, asker, wcs in (
        ("the peer", peer, "the", (*side.wcs, *completions)), ("this side", side, "the peer's", peer.wcs)
    ):  # fmt: skip
        if naks := rnr_naks(end):
            found.append(f"{naks:,} RNR NAKs: {who} has no receive posted")
        if unposted := end.counters.get("drop_no_receive", 0):
            found.append(f"{unposted:,} messages dropped: {who} has no receive posted")
        if any(wc.status == e.IBV_WC_REM_ACCESS_ERR and wc.opcode < e.IBV_WC_RECV for wc in wcs):
            why = end.qp.why or "wrong rkey, range, rights, or a region that is gone"
            found.append(f"{who} refused {asker} access: {why}")
    if not found:
        found += [f"{who}: {end.qp.why}" for who, end in (("the peer", peer), ("this side", side)) if end.qp.why][:1]
    for who, end in (("this side", side), ("the peer", peer)):
        for direction, of in (("tx", "of those it sent"), ("rx", "of those that came to it")):
            if lost := end.counters.get(f"fault_{direction}_drop", 0):
                found.append(f"{who}: the faults of its link dropped {lost:,} packets {of}")
    dropped = {name: count for name, count in peer.counters.items() if name.startswith("drop_") and count}
    found += [
        f"the peer dropped {dropped[name]:,} packets: {name.removeprefix('drop_').replace('_', ' ')}"
        for name in ("drop_unknown_qp", "drop_qp_state", "drop_bad_qkey", "drop_wrong_address")
        if name in dropped
    ]
    return found


__all__ = ["MOST_RNR_NAKS", "diagnose", "rnr_naks"]
