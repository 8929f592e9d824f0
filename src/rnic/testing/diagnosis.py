"""Why a test waits in vain, or its work request failed: the usual mistakes, named from counters and states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rnic.verbs import enums as e
from rnic.verbs.attrs import WC

if TYPE_CHECKING:
    from rnic.testing.pair import Side

MOST_RNR_NAKS = 300
"""So many in one wait, in which nobody can post a receive, mean that nobody will."""

_CAN_RECEIVE = (e.IBV_QPS_RTR, e.IBV_QPS_RTS, e.IBV_QPS_SQD, e.IBV_QPS_SQE)


def diagnose(side: Side, completions: Iterable[WC] = ()) -> list[str]:
    """What looks wrong between a side and its peer, a line for each, the likeliest first; empty where nothing does.

    Args:
        side: who waits, or waited.
        completions: what it took already.

    It knows forgotten receives, keys or ranges that the peer refuses, and queue pairs that never got ready.
    """
    peer = side.peer
    found = []
    for who, end, enough in (("this side's", side, (e.IBV_QPS_RTS, e.IBV_QPS_SQD)), ("the peer's", peer, _CAN_RECEIVE)):
        if end.qp.qp_state not in (*enough, e.IBV_QPS_ERR, e.IBV_QPS_SQE):
            state = e.QP_STATE_NAMES[end.qp.qp_state]
            want = "RTS" if end is side else "RTR or RTS"
            found.append(f"{who} queue pair {end.qp.qp_num} is in {state}: nobody moved it to {want}")
    naks = peer.counters.get("rnr_naks_sent", 0)
    if naks:
        found.append(f"{naks:,} RNR NAKs: the peer has no receive posted")
    unposted = peer.counters.get("drop_no_receive", 0)
    if unposted:
        found.append(f"{unposted:,} messages dropped: the peer has no receive posted")
    if any(wc.status == e.IBV_WC_REM_ACCESS_ERR for wc in (*side.wcs, *completions)):
        found.append("the peer refused the access: wrong rkey, range, rights, or a region that is gone")
    dropped = {name: count for name, count in peer.counters.items() if name.startswith("drop_") and count}
    found += [
        f"the peer dropped {dropped[name]:,} packets: {name.removeprefix('drop_').replace('_', ' ')}"
        for name in ("drop_unknown_qp", "drop_qp_state", "drop_bad_qkey", "drop_wrong_address")
        if name in dropped
    ]
    return found


__all__ = ["MOST_RNR_NAKS", "diagnose"]
