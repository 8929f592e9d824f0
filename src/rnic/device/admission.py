"""Which contexts the context manager may take: what a device cannot run on is refused before anything changes.

Commands check what they are given by themselves. This is for contexts that come as messages (002 3.1), or from host
memory that was edited: an index beyond its table, a path that cannot be, or another protection domain than the one that
a queue pair's memory was checked against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rnic.context.cqc import CQC
from rnic.context.ctxmdata import CQ, QP
from rnic.context.eqc import EQC
from rnic.context.modify import AV, PATH_MTU, TRANSITIONS
from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC_BYTES, SRQ_VALID
from rnic.device.qp_commands import SRQN_MASK, check_rings, values_fit
from rnic.device.queue_pair import SERVICE_CODES
from rnic.device.refusal import Refused
from rnic.device.rings import ring_status
from rnic.spec import commands as cmd
from rnic.spec.limits import MAX_EQS, MTU_BYTES
from rnic.spec.states import ERR, INIT, RESET, RTR, RTS, SQD, SQE

if TYPE_CHECKING:
    from rnic.device.cq import CompletionQueue
    from rnic.device.eq import EventQueue
    from rnic.device.host import AdmissionHost
    from rnic.device.uar import Uar

_WAY: Final = {
    INIT: (cmd.RST2INIT,),
    RTR: (cmd.RST2INIT, cmd.INIT2RTR),
    **dict.fromkeys((RTS, SQD, SQE), (cmd.RST2INIT, cmd.INIT2RTR, cmd.RTR2RTS)),
    ERR: (cmd.RST2INIT,),
}
"""The commands behind a queue pair in each state: what they require, it has."""


def fits(nic: AdmissionHost, kind: str, number: int, image: bytes) -> bool:
    """Whether the device can run on a context: of a queue pair 192 or 256 bytes, of a CQ or EQ 64."""
    if kind == QP:
        return _qp_fits(nic, number, image)
    return _cq_fits(nic, number, image) if kind == CQ else _eq_fits(nic, number, image)


def _qp_fits(nic: AdmissionHost, number: int, image: bytes) -> bool:
    res = nic.resources
    live = res.qps.get(number)
    cached = res.contexts.key.qps.get(number)
    # without the extension, what there is of it stays
    rest = (bytes(QPC_BYTES) if cached is None else cached.store())[len(image) :]
    new = QpContext(image + rest)
    if new.state == RESET:
        return live is None
    if new.state > ERR or new.servtype not in SERVICE_CODES or new.remote_qpn > 0xFFFFFF:
        return False
    mask = 0
    for opcode in _WAY[new.state]:
        mask |= TRANSITIONS[opcode].attributes[new.servtype].required
    if not values_fit(new, mask, new.servtype, nic.config) or new.mgid_index >= len(nic.config.gid_table):
        return False
    uar = res.pools[cmd.RES_QP].owners.get(number)
    if uar is None or not _names_fit(nic, uar, new):
        return False
    if live is None:
        block = new.usr_page
        free = block not in res.blocks and res.pools[cmd.RES_UAR_BLOCK].owners.get(block) is uar
        srq = res.srqs.get(new.srqn & SRQN_MASK) if new.srqn & SRQ_VALID else None
        return free and new.local_qpn == number and (not new.srqn & SRQ_VALID or (srq is not None and srq.uar is uar))
    if new.local_qpn != number or new.usr_page != live.regs.block or not live.has_room_for(new):
        return False
    # what runs has a path and an MTU, whatever state the context says
    ctx = live.ctx
    path = AV if live.flow is not None and (ctx.rgid or ctx.dip) else 0
    return values_fit(new, path | (PATH_MTU if ctx.mtu in MTU_BYTES else 0), new.servtype, nic.config)


def _names_fit(nic: AdmissionHost, uar: Uar, new: QpContext) -> bool:
    """Whether PD, CQs and rings are there, and are those of the driver that made the queue pair."""
    res = nic.resources
    cqs = [res.cqs.get(new.cqn_snd), res.cqs.get(new.cqn_rcv)]
    if res.pools[cmd.RES_PD].owners.get(new.pd) is not uar or any(cq is None or cq.uar is not uar for cq in cqs):
        return False
    try:
        check_rings(nic, uar, new)
    except Refused:
        return False
    return True


def _cq_fits(nic: AdmissionHost, number: int, image: bytes) -> bool:
    res = nic.resources
    new = CQC.unpack(image)
    eq, live = res.eqs.get(new["comp_eqn"]), res.cqs.get(number)
    if eq is None:
        return False
    return live is None or (eq.uar is live.uar and _ring_fits(nic, live, new))


def _eq_fits(nic: AdmissionHost, number: int, image: bytes) -> bool:
    live = nic.resources.eqs.get(number)
    new = EQC.unpack(image)
    return live is None or (new["msix_vector"] < MAX_EQS and _ring_fits(nic, live, new))


def _ring_fits(nic: AdmissionHost, live: CompletionQueue | EventQueue, new: dict[str, int]) -> bool:
    """Whether the ring of a live queue can be where its new context says."""
    owner = nic.resources.pools[cmd.RES_PD].owners.get(new["pd"])
    return (
        new["usrpage"] == live.regs.block
        and ring_status(nic.memory, live.uar, new) == cmd.ST_OK
        and (not new["lkey"] or owner is live.uar)
    )
