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
from rnic.context.qpc import QPC_BYTES
from rnic.device.qp_commands import values_fit
from rnic.device.queue_pair import SERVICE_CODES
from rnic.spec import commands as cmd
from rnic.spec.limits import MTU_BYTES
from rnic.spec.states import ERR, INIT, RESET, RTR, RTS, SQD, SQE

if TYPE_CHECKING:
    from rnic.device.nic import Nic

_FIXED: Final = ("local_qpn", "servtype", "usr_page", "pd", "cqn_snd", "cqn_rcv", "srqn")
"""What a queue pair is made with and keeps: its rings, its CQs and the users of its PD are counted by these."""
_WAY: Final = {
    INIT: (cmd.RST2INIT,),
    RTR: (cmd.RST2INIT, cmd.INIT2RTR),
    **dict.fromkeys((RTS, SQD, SQE), (cmd.RST2INIT, cmd.INIT2RTR, cmd.RTR2RTS)),
    ERR: (cmd.RST2INIT,),
}
"""The commands behind a queue pair in each state: what they require, it has."""


def fits(nic: Nic, kind: str, number: int, image: bytes) -> bool:
    """Whether the device can run on a context: of a queue pair 192 or 256 bytes, of a CQ or EQ 64."""
    if kind == QP:
        return _qp_fits(nic, number, image)
    return _cq_fits(nic, number, image) if kind == CQ else _eq_fits(nic, number, image)


def _qp_fits(nic: Nic, number: int, image: bytes) -> bool:
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
    if live is None:
        named = res.pools[cmd.RES_PD].owners.get(new.pd) is not None
        return named and new.local_qpn == number and new.cqn_snd in res.cqs and new.cqn_rcv in res.cqs
    ctx = live.ctx
    if any(getattr(new, name) != getattr(ctx, name) for name in _FIXED):
        return False
    # what runs has a path and an MTU, whatever state the context says
    path = AV if live.flow is not None and ctx.rgid else 0
    return values_fit(new, path | (PATH_MTU if ctx.mtu in MTU_BYTES else 0), new.servtype, nic.config)


def _cq_fits(nic: Nic, number: int, image: bytes) -> bool:
    res = nic.resources
    cached = res.contexts.key.cqs.get(number) if number in res.cqs else None
    new = CQC.unpack(image)
    return new["comp_eqn"] in res.eqs and (cached is None or cached.pd == new["pd"])


def _eq_fits(nic: Nic, number: int, image: bytes) -> bool:
    res = nic.resources
    cached = res.contexts.key.eqs.get(number) if number in res.eqs else None
    return cached is None or cached.pd == EQC.get(image, "pd")
