"""Check contexts before the context manager accepts them: invalid ones are refused before anything changes.

Commands check their own parameters. This module is for contexts from messages (002 3.1) or from edited host memory,
which may have an index beyond its table, an impossible path, or another protection domain than the one that a queue
pair's memory was checked against. Direct stores to the cache bypass these checks: :func:`stored_wrong` finds the
invalid field, and the queue pair fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rnic.context.cqc import CQC
from rnic.context.ctxmdata import CQ, QP
from rnic.context.eqc import EQC
from rnic.context.modify import ACCESS_FLAGS, ATTRIBUTES, AV, DEST_QPN, PATH_MTU, PKEY_INDEX, TRANSITIONS, fields
from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC_BYTES, SRQ_VALID, settled
from rnic.device.qp_commands import SRQN_MASK, wrong_path, wrong_reach, wrong_size, wrong_value
from rnic.device.queue_pair import SERVICE_CODES, send_entries
from rnic.device.rings import ring_status
from rnic.spec import commands as cmd
from rnic.spec.limits import MAX_EQS, MTU_BYTES
from rnic.spec.states import ERR, INIT, RESET, RTR, RTS, SQD, SQE, ST_UD, ST_XRC_TGT
from rnic.transport.wqe import ReceiveRing

if TYPE_CHECKING:
    from rnic.device.cq import CompletionQueue
    from rnic.device.eq import EventQueue
    from rnic.device.host import AdmissionHost
    from rnic.device.queue_pair import DeviceQp
    from rnic.device.uar import Uar

_WAY: Final = {
    INIT: (cmd.RST2INIT,),
    RTR: (cmd.RST2INIT, cmd.INIT2RTR),
    **dict.fromkeys((RTS, SQD, SQE), (cmd.RST2INIT, cmd.INIT2RTR, cmd.RTR2RTS)),
    ERR: (cmd.RST2INIT,),
}
"""Commands that a queue pair in each state has executed, whose required attributes it has."""
_CONNECTED: Final = frozenset({RTR, RTS, SQD, SQE})
_SEND_RING: Final = ("snd_wqe_base_lkey", "wqe_base", "sq_base", "snd_wqe_length", "sq_slab_bytes", "pd")
_RECEIVE_RING: Final = ("rcv_wqe_base_lkey", "wqe_base", "rq_base", "rcv_wqe_length", "pd")
"""Fields that locate a ring. If the ring is not accessible, the first changed field is the cause."""


def wrong_field(nic: AdmissionHost, kind: str, number: int, image: bytes) -> str:
    """Return the first invalid field of a context, or an empty string if it is valid.

    Args:
        nic: the device.
        kind: ``"qp"``, ``"cq"`` or ``"eq"``.
        number: its number.
        image: the context, 192 or 256 bytes for a queue pair, 64 for a CQ or EQ.
    """
    if kind == QP:
        return _qp_wrong(nic, number, image)
    return _cq_wrong(nic, number, image) if kind == CQ else _eq_wrong(nic, number, image)


def _qp_wrong(nic: AdmissionHost, number: int, image: bytes) -> str:
    res = nic.resources
    live = res.qps.get(number)
    cached = res.contexts.key.qps.get(number)
    # an image without the extension keeps the cached extension
    rest = (bytes(QPC_BYTES) if cached is None else cached.store())[len(image) :]
    new = QpContext(settled(image + rest))
    if new.state == RESET:
        return "" if live is None else "state"
    if wrong := _form_wrong(new):
        return wrong
    mask = 0
    for opcode in _WAY[new.state]:
        mask |= TRANSITIONS[opcode].attributes[new.servtype].required
    # a queue pair may outlive its port's address: an unchanged path was checked when it was set
    path = AV if live is None or any(getattr(new, name) != getattr(live.ctx, name) for name in fields(AV)) else 0
    mask &= ~AV | path
    if wrong := wrong_value(new, mask, nic.config):
        return wrong
    if new.mgid_index >= len(nic.config.gid_table):
        return "mgid_index"
    uar = res.pools[cmd.RES_QP].owners.get(number)
    if uar is None:
        return "local_qpn"
    if live is not None and (new.servtype == ST_XRC_TGT) != live.xrc_target:
        return "servtype"
    if live is not None and (wrong := live.lacks_room_for(new)) == "srqn":
        return wrong
    if wrong := _names_wrong(nic, uar, new, None if live is None else live.ctx):
        return wrong
    if new.local_qpn != number:
        return "local_qpn"
    if live is None:
        block = new.usr_page
        if block in res.blocks or res.pools[cmd.RES_UAR_BLOCK].owners.get(block) is not uar:
            return "usr_page"
        srq = res.srqs.get(new.srqn & SRQN_MASK)
        return "srqn" if new.srqn & SRQ_VALID and (srq is None or srq.uar is not uar) else ""
    if new.usr_page != live.regs.block:
        return "usr_page"
    if wrong := live.lacks_room_for(new):
        return wrong
    # a running queue pair has a path and an MTU, regardless of the context's state
    ctx = live.ctx
    if live.flow is None or not (ctx.rgid or ctx.dip):
        path = 0
    return wrong_value(new, path | (PATH_MTU if ctx.mtu in MTU_BYTES else 0), nic.config)


def _form_wrong(ctx: QpContext) -> str:
    """Return the field with a value that is invalid in any context of this device."""
    if ctx.state > ERR:
        return "state"
    if ctx.servtype not in SERVICE_CODES:
        return "servtype"
    return "remote_qpn" if ctx.remote_qpn > 0xFFFFFF else ""


def _owners_wrong(nic: AdmissionHost, uar: Uar, ctx: QpContext) -> str:
    """Return the field that names a missing object, or one of another driver than the queue pair's."""
    res = nic.resources
    if ctx.servtype == ST_XRC_TGT:
        return "" if res.xrcds.has(uar, ctx.xrcd) else "xrcd"
    if res.pools[cmd.RES_PD].owners.get(ctx.pd) is not uar:
        return "pd"
    for field in ("cqn_snd", "cqn_rcv"):
        cq = res.cqs.get(getattr(ctx, field))
        if cq is None or cq.uar is not uar:
            return field
    return ""


def _names_wrong(nic: AdmissionHost, uar: Uar, new: QpContext, old: QpContext | None) -> str:
    """Return the field whose PD, CQ or ring is missing or belongs to another driver."""
    if wrong := _owners_wrong(nic, uar, new) or wrong_size(new):
        return wrong
    wrong = wrong_reach(nic, uar, new)
    if not wrong or old is None:
        return wrong
    ring = _SEND_RING if wrong in _SEND_RING else _RECEIVE_RING
    return next((field for field in ring if getattr(new, field) != getattr(old, field)), wrong)


def stored_wrong(nic: AdmissionHost, qp: DeviceQp) -> str:
    """Return the invalid field in a live queue pair's context, caused by direct stores to the cache; empty if there is
    none.

    Ring addresses are not checked: each read of an entry checks the memory.
    """
    ctx = qp.ctx
    if wrong := _form_wrong(ctx):
        return wrong
    if ctx.local_qpn != qp.number:
        return "local_qpn"
    if (ctx.servtype == ST_XRC_TGT) != qp.xrc_target:
        return "servtype"
    if ctx.usr_page != qp.regs.block:
        return "usr_page"
    if (wrong := qp.lacks_room_for(ctx)) == "srqn":
        return wrong
    return (
        _values_wrong(nic, qp, ctx)
        or _owners_wrong(nic, qp.uar, ctx)
        or wrong_size(ctx)
        or qp.lacks_room_for(ctx)
        or _place_wrong(qp, ctx)
    )


def _values_wrong(nic: AdmissionHost, qp: DeviceQp, ctx: QpContext) -> str:
    """Return the field of an attribute with an invalid value; states with traffic require more attributes."""
    mask, config = PKEY_INDEX, nic.config
    if ctx.state in _CONNECTED:
        mask = sum(each.bit for each in ATTRIBUTES) & ~(ACCESS_FLAGS | DEST_QPN)
    if wrong := wrong_value(ctx, mask, config):
        return wrong
    if ctx.mgid_index >= len(config.gid_table):
        return "mgid_index"
    if ctx.servtype == ST_UD or qp.flow is None:
        return ""
    wrong = wrong_path(ctx, config)
    return "" if wrong == "sip" else wrong  # a different source address is used as is (002 5.4.2)


def _place_wrong(qp: DeviceQp, ctx: QpContext) -> str:
    """Return the length or entry-size field that makes a ring end before the queue pair's current index."""
    if qp.requester.fetch_index >= send_entries(ctx):
        return "snd_wqe_length"
    rq = qp.rq
    if isinstance(rq, ReceiveRing) and ctx.rcv_wqe_length and rq.head >= ctx.rcv_wqe_length >> ctx.rq_entry_sz_log:
        return "rcv_wqe_length"
    return ""


def _cq_wrong(nic: AdmissionHost, number: int, image: bytes) -> str:
    res = nic.resources
    new = CQC.unpack(image)
    eq, live = res.eqs.get(new["comp_eqn"]), res.cqs.get(number)
    if eq is None or (live is not None and eq.uar is not live.uar):
        return "comp_eqn"
    return "" if live is None else _ring_wrong(nic, live, new)


def _eq_wrong(nic: AdmissionHost, number: int, image: bytes) -> str:
    live = nic.resources.eqs.get(number)
    new = EQC.unpack(image)
    if live is None:
        return ""
    return "msix_vector" if new["msix_vector"] >= MAX_EQS else _ring_wrong(nic, live, new)


def _ring_wrong(nic: AdmissionHost, live: CompletionQueue | EventQueue, new: dict[str, int]) -> str:
    """Return the field of a live queue's new context that makes its ring unusable."""
    if new["usrpage"] != live.regs.block:
        return "usrpage"
    status = ring_status(nic.memory, live.uar, new)
    if status == cmd.ST_BAD_SIZE:
        return "logsize"
    if status == cmd.ST_OK:
        owner = nic.resources.pools[cmd.RES_PD].owners.get(new["pd"])
        return "pd" if new["lkey"] and owner is not live.uar else ""
    old = live.key.values()
    return next((field for field in ("lkey", "start", "logsize", "pd") if new[field] != old[field]), "start")
