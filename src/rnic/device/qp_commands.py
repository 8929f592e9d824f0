"""Commands on queue pairs: creating with RST2INIT, the transitions, queries, and back to RESET.

A queue pair in RESET belongs to software: the device holds nothing of it but its number, so RST2INIT brings
rings, CQs and protection domain, and ERR2RST, from any state, destroys what RST2INIT made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.context.ctxmgt import Status
from rnic.context.modify import (
    ACCESS_FLAGS,
    ATTRIBUTE_NAMES,
    ATTRIBUTES,
    AV,
    BITS,
    CREATION_FIELDS,
    DEST_QPN,
    EN_SQD_ASYNC_NOTIFY,
    PATH_MTU,
    PKEY_INDEX,
    PORT,
    STATE,
    TRANSITIONS,
    check,
    fields,
    wrong_attributes,
)
from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC, QPC_BYTES, SRQ_VALID
from rnic.device.config import NicConfig
from rnic.device.cq import CompletionQueue
from rnic.device.entry_ring import reachable
from rnic.device.keyed_memory import KeyedMemory
from rnic.device.multicast import is_multicast
from rnic.device.paths import peer_gid
from rnic.device.queue_pair import SERVICE_CODES, DeviceQp, RingMemory, send_entries
from rnic.device.refusal import Refused
from rnic.device.uar import QP_DOORS, Uar
from rnic.rings.sqe import SQE_SHIFT
from rnic.spec import access, reasons
from rnic.spec import commands as cmd
from rnic.spec.addresses import address_text
from rnic.spec.gids import address_from_gid, gid_from_address
from rnic.spec.limits import MAX_INLINE, MTU_BYTES, MTU_CODES
from rnic.spec.states import RESET, ST_UD, STATE_NAMES, state_name
from rnic.state.queue_pair import QpMemory

if TYPE_CHECKING:
    from rnic.device.host import AdmissionHost, QpCommandHost

MAX_RING_ENTRIES = 1 << 16
MAX_SQ_ENTRY_SHIFT = 12
"""log2 of the longest send entry: a page; its first 64 bytes are the descriptor."""
SRQN_MASK = SRQ_VALID - 1 & 0xFFFFFF
_REMOTE = access.REMOTE_READ | access.REMOTE_WRITE | access.REMOTE_ATOMIC | access.LOCAL_WRITE
_EMPTY = bytes(QPC_BYTES)


def modify_qp(nic: QpCommandHost, uar: Uar, opcode: int, qpn: int, inbox: bytes) -> None:
    """Run one transition; :class:`Refused`, with nothing changed, if anything about it is wrong."""
    res = nic.resources
    if len(inbox) not in (0, QPC_BYTES):
        raise Refused(cmd.ST_BAD_SIZE)
    if res.pools[cmd.RES_QP].owners.get(qpn) is not uar:
        raise Refused(cmd.ST_BAD_INDEX)
    given = QpContext(inbox or _EMPTY)
    qp = res.qps.get(qpn)
    if qp is not None and nic.load_contexts(qp) != Status.OK and opcode != cmd.ERR2RST:
        raise Refused(cmd.ST_BAD_NVMEM)
    state, service = (RESET, given.servtype) if qp is None else (qp.ctx.state, qp.ctx.servtype)
    mask = given.opt_param_mask
    if service not in SERVICE_CODES or given.local_qpn not in (0, qpn):
        raise Refused(cmd.ST_BAD_PARAM)
    status = check(opcode, state, service, mask)
    if status:
        raise _not_legal(status, opcode, qpn, state, service, mask)
    if not values_fit(given, mask, service, nic.config):
        raise _wrong_value(given, mask, nic.config)
    target = TRANSITIONS[opcode].target
    if target == RESET:
        if qp is not None:
            reset_qp(nic, qp)
        return
    draft = _draft(nic, uar, qpn, given) if qp is None else QpContext(qp.ctx.store())
    for name in fields(mask):
        setattr(draft, name, getattr(given, name))
    if mask & AV:
        draft.sgid = int.from_bytes(nic.config.gid_table[draft.mgid_index], "big")
        if len(nic.config.address) == 4:
            # frame encap reads both addresses as IPv4 (002 3.2)
            draft.sip, draft.dip = draft.sgid & 0xFFFF_FFFF, (draft.rgid or draft.dip) & 0xFFFF_FFFF
    draft.state = target
    # To host memory first: the cache, which is the context that the data path works on, takes it from there.
    if res.contexts.write_qp(qpn, draft.store()) != Status.OK:
        raise Refused(cmd.ST_BAD_NVMEM)
    if qp is None:
        qp = create_qp(nic, uar, res.contexts.key.qps.view(qpn))
    if opcode == cmd.RTS2SQD:
        qp.notify_drained = bool(mask & EN_SQD_ASYNC_NOTIFY)
    qp.on_modify(state, nic.now_ns)
    qp.refresh()


def _not_legal(status: int, opcode: int, qpn: int, state: int, service: int, mask: int) -> Refused:
    """Why a transition is not legal: its source, or its attributes."""
    target = STATE_NAMES[TRANSITIONS[opcode].target]
    if status == cmd.ST_BAD_QP_STATE:
        return Refused(status, reasons.NO_TRANSITION, qpn=qpn, source=state_name(state), target=target)
    lacks, extra = wrong_attributes(opcode, service, mask)
    reason = reasons.MASK_LACKS if lacks else reasons.MASK_EXTRA
    wrong = [bit for bit in BITS if (lacks or extra) & bit]
    names = ", ".join(f"IBV_QP_{ATTRIBUTE_NAMES[bit]}" for bit in wrong)
    return Refused(status, reason, state=target, attributes=names or f"bits {extra:#x}", mask=mask | STATE)


def _wrong_value(given: QpContext, mask: int, config: NicConfig) -> Refused:
    """Why :func:`values_fit` does not let values through: the first that is wrong."""
    status = cmd.ST_BAD_PARAM
    if mask & PKEY_INDEX and given.pkey_index >= len(config.pkeys):
        return Refused(status, reasons.PKEY_INDEX, index=given.pkey_index, last=len(config.pkeys) - 1)
    if mask & PORT and given.port != 1:
        return Refused(status, reasons.PORT_NUMBER, port=given.port)
    if mask & ACCESS_FLAGS and given.access_flags & ~_REMOTE:
        flags, extra = given.access_flags, given.access_flags & ~_REMOTE
        return Refused(status, reasons.ACCESS_FLAGS, name="qp_access_flags", flags=flags, extra=extra)
    if mask & PATH_MTU and not 0 < MTU_BYTES.get(given.mtu, 0) <= config.mtu:
        if given.mtu not in MTU_BYTES:
            return Refused(status, reasons.ATTRIBUTE_RANGE, name="path_mtu", value=given.mtu, least=1, most=5)
        return Refused(status, reasons.PATH_MTU, size=MTU_BYTES[given.mtu], most=config.mtu)
    if mask & DEST_QPN and not given.remote_qpn:
        return Refused(status, reasons.DEST_QPN)
    for each in ATTRIBUTES:
        value = getattr(given, each.field)
        if mask & each.bit and value > each.largest:
            return Refused(status, reasons.ATTRIBUTE_RANGE, name=each.verbs, value=value, least=0, most=each.largest)
    if given.mgid_index >= len(config.gid_table):
        return Refused(status, reasons.GID_INDEX, index=given.mgid_index, last=len(config.gid_table) - 1)
    if not any(config.gid_table[given.mgid_index]):
        return Refused(status, reasons.GID_EMPTY, index=given.mgid_index)
    gid = peer_gid(given, config)
    address = address_from_gid(gid)
    problem = "no address that is this port's or of its IP version"
    if is_multicast(gid):
        problem = "a multicast group"
    elif len(address) != len(config.address):
        problem = "not of this port's IP version"
    elif not any(address):
        problem = "zero"
    return Refused(status, reasons.PEER_GID, gid=address_text(gid), problem=problem)


def values_fit(given: QpContext, mask: int, service: int, config: NicConfig) -> bool:
    """Whether every attribute in ``mask`` has a value that this device can hold to."""
    wrong = (
        (mask & PKEY_INDEX and given.pkey_index >= len(config.pkeys))
        or (mask & PORT and given.port != 1)
        or (mask & ACCESS_FLAGS and given.access_flags & ~_REMOTE)
        or (mask & PATH_MTU and not 0 < MTU_BYTES.get(given.mtu, 0) <= config.mtu)
        or (mask & DEST_QPN and not given.remote_qpn)
        or (mask & AV and not _path_fits(given, config))
        or any(mask & each.bit and getattr(given, each.field) > each.largest for each in ATTRIBUTES)
    )
    return not wrong


def _path_fits(given: QpContext, config: NicConfig) -> bool:
    """A connected queue pair's peer: a single host of this NIC's IP version; its own address is this NIC's."""
    gids = [peer_gid(given, config)]
    if given.rgid:
        gids.append(given.rgid.to_bytes(16, "big"))
    address = config.address
    return (
        given.mgid_index < len(config.gid_table)
        and any(config.gid_table[given.mgid_index])
        and all(len(address_from_gid(gid)) == len(address) and not is_multicast(gid) for gid in gids)
        and any(address_from_gid(gids[0]))
        and (len(address) != 4 or not given.sip or gid_from_address(given.sip.to_bytes(4, "big")) in config.gid_table)
    )


def _draft(nic: QpCommandHost, uar: Uar, qpn: int, given: QpContext) -> QpContext:
    """The context that a RST2INIT mailbox asks for, from its creation fields, everything they name checked."""
    res = nic.resources
    block = given.usr_page
    if res.pools[cmd.RES_UAR_BLOCK].owners.get(block) is not uar:
        raise Refused(cmd.ST_BAD_INDEX)
    if block in res.blocks:
        raise Refused(cmd.ST_RESOURCE_BUSY)
    if res.pools[cmd.RES_PD].owners.get(given.pd) is not uar:
        raise Refused(cmd.ST_BAD_INDEX)
    _cq(nic, uar, given.cqn_snd)
    _cq(nic, uar, given.cqn_rcv)
    if given.srqn & SRQ_VALID:
        srq = res.srqs.get(given.srqn & SRQN_MASK)
        if srq is None or srq.uar is not uar:
            raise Refused(cmd.ST_BAD_INDEX)
        if srq.failed:
            raise Refused(cmd.ST_BAD_RES_STATE)
    check_rings(nic, uar, given)
    draft = QpContext()
    for name in CREATION_FIELDS:
        setattr(draft, name, getattr(given, name))
    draft.local_qpn = qpn
    if draft.servtype == ST_UD:
        # a UD queue pair has no path MTU attribute: its messages fit the port's
        draft.mtu = MTU_CODES[nic.config.mtu]
    return draft


def create_qp(nic: QpCommandHost, uar: Uar, ctx: QpContext) -> DeviceQp:
    """Make a queue pair around its cached context, of which everything that it names was found."""
    res = nic.resources
    srq = res.srqs[ctx.srqn & SRQN_MASK] if ctx.srqn & SRQ_VALID else None
    memory = qp = None
    try:
        memory = QpMemory(nic.arena, send_entries(ctx))
        qp = DeviceQp(memory, ctx, nic, uar, srq)
        nic.register_qp(qp)
    except MemoryError:
        if qp is not None:
            qp.release_users()
        if memory is not None:
            memory.free()
        res.contexts.drop_qp(ctx.local_qpn)
        raise Refused(cmd.ST_EXCEED_LIM) from None
    if srq is not None:
        srq.users += 1
    res.occupy(ctx.usr_page, qp, QP_DOORS)
    res.qps[ctx.local_qpn] = qp
    nic.update_hold(qp)
    return qp


def _cq(nic: QpCommandHost, uar: Uar, number: int) -> CompletionQueue:
    """A CQ of the same driver that takes entries."""
    cq = nic.resources.cqs.get(number)
    if cq is None or cq.uar is not uar:
        raise Refused(cmd.ST_BAD_INDEX)
    if cq.failed:
        raise Refused(cmd.ST_BAD_RES_STATE)
    return cq


def check_rings(nic: AdmissionHost, uar: Uar, given: QpContext) -> None:
    """Sizes, alignment and memory of the two rings; :class:`Refused` where one is wrong."""
    memory = RingMemory(given, nic.memory, uar.port)
    rings = memory.rings()
    if rings.sq_shift > MAX_SQ_ENTRY_SHIFT or given.sq_slab_bytes > MAX_INLINE or given.sq_slab_bytes & 15:
        raise Refused(cmd.ST_BAD_SIZE)
    if rings.sq_shift < SQE_SHIFT or given.snd_wqe_length & (1 << rings.sq_shift) - 1:
        raise Refused(cmd.ST_BAD_SIZE)
    if not 2 <= rings.sq_entries <= MAX_RING_ENTRIES:
        raise Refused(cmd.ST_BAD_SIZE)
    length = given.snd_wqe_length + rings.sq_entries * given.sq_slab_bytes
    if not _in_reach(uar, memory.send, rings.sq_base, length):
        raise Refused(cmd.ST_BAD_PARAM)
    length = given.rcv_wqe_length
    if given.srqn & SRQ_VALID or not length:
        if length:
            raise Refused(cmd.ST_BAD_SIZE)
        return
    if not 4 <= given.rq_entry_sz_log <= 9 or length & rings.rq_stride - 1:
        raise Refused(cmd.ST_BAD_SIZE)
    if not 2 <= rings.rq_entries <= MAX_RING_ENTRIES:
        raise Refused(cmd.ST_BAD_SIZE)
    if not _in_reach(uar, memory.receive, rings.rq_base, length):
        raise Refused(cmd.ST_BAD_PARAM)


def _in_reach(uar: Uar, memory: KeyedMemory, base: int, length: int) -> bool:
    if base & 3:
        return False
    return memory.opens(base, length, False) if memory.key else reachable(uar, base, length, False)


def reset_qp(nic: QpCommandHost, qp: DeviceQp) -> None:
    """Destroy a queue pair: whatever was posted is forgotten without completions (IBA 10.3.1, Reset state)."""
    if nic.stopped is not None:
        nic.stopped(qp.number)
    res = nic.resources
    ctx = qp.ctx
    wqe = qp.responder.receive_wqe
    if qp.srq is not None and wqe is not None:
        qp.srq.give_back(wqe)
    if qp.number not in res.contexts.key.qps:
        qp.flow = None  # its context is lost, and with it whom to acknowledge
    old, ctx.state = ctx.state, RESET
    with nic.guard.around("release", f"QP {qp.number:#x}"):
        qp.on_modify(old, nic.now_ns)
    nic.unregister_qp(qp)
    del res.qps[qp.number]
    qp.release_users()
    if qp.srq is not None:
        qp.srq.users -= 1
    res.vacate(qp)
    res.contexts.drop_qp(qp.number)
    qp.memory.free()


def query_qp(nic: QpCommandHost, qpn: int) -> bytes:
    """The QPC as host memory has it once the cache is flushed; of a queue pair in RESET only its number is known."""
    qp = nic.resources.qps.get(qpn)
    if qp is None:
        return QPC.pack({"local_qpn": qpn, "state": RESET})
    contexts = nic.resources.contexts
    if qpn in contexts.key.qps:
        qp.query()
    status, data = contexts.flush_qp(qpn), b""
    if status == Status.OK:
        status, data = contexts.read_qp(qpn)
    if status != Status.OK:
        raise Refused(cmd.ST_BAD_NVMEM)
    return data
