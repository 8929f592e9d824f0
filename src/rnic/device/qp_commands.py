"""Commands on queue pairs: creation by RST2INIT, transitions, queries, and return to RESET.

A queue pair in RESET belongs to software: the device only has its number allocated. RST2INIT sets rings, CQs and
protection domain; ERR2RST destroys the queue pair from any state.
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
    IGNORED,
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
from rnic.spec.appearance import ROCE_V1
from rnic.spec.gids import address_from_gid, gid_from_address, source_refusal
from rnic.spec.limits import MAX_INLINE, MTU_BYTES, MTU_CODES
from rnic.spec.states import ERR, RESET, ST_RC, ST_UD, ST_XRC_TGT, STATE_NAMES, state_name
from rnic.state.queue_pair import QpMemory

if TYPE_CHECKING:
    from rnic.device.host import AdmissionHost, QpCommandHost

MAX_RING_ENTRIES = 1 << 16
MAX_SQ_ENTRY_SHIFT = 12
"""log2 of the largest send entry, a page; its first 64 bytes are the descriptor."""
MIN_RQ_ENTRY_SHIFT, MAX_RQ_ENTRY_SHIFT = 4, 9
"""log2 of the smallest and largest receive entry."""
SRQN_MASK = SRQ_VALID - 1 & 0xFFFFFF
_EMPTY = bytes(QPC_BYTES)


def may_use(nic: QpCommandHost, uar: Uar, qpn: int) -> bool:
    """Return whether a context may modify and query a queue pair: its own, or an XRC TGT queue pair of a domain that it
    has open (``ibv_open_qp``)."""
    qp = nic.resources.qps.get(qpn)
    if nic.resources.pools[cmd.RES_QP].owners.get(qpn) is uar:
        return True
    return qp is not None and qp.xrc_target and nic.resources.xrcds.has(uar, qp.xrcd)


def modify_qp(nic: QpCommandHost, uar: Uar, opcode: int, qpn: int, inbox: bytes) -> None:
    """Run one transition; :class:`Refused`, with nothing changed, if it is invalid."""
    res = nic.resources
    if len(inbox) not in (0, QPC_BYTES):
        raise Refused(cmd.ST_BAD_SIZE)
    if not may_use(nic, uar, qpn) or (opcode == cmd.ERR2RST and res.pools[cmd.RES_QP].owners.get(qpn) is not uar):
        raise Refused(cmd.ST_BAD_INDEX)
    given = QpContext(inbox or _EMPTY)
    qp = res.qps.get(qpn)
    if qp is not None and nic.load_contexts(qp) != Status.OK and opcode != cmd.ERR2RST:
        raise Refused(cmd.ST_BAD_NVMEM)
    state, service = (RESET, given.servtype) if qp is None else (qp.ctx.state, qp.ctx.servtype)
    if qp is not None and opcode in (cmd.TOERR, cmd.ERR2RST):
        # invalid values in its context must not prevent the destruction of a queue pair
        state, service = min(state, ERR), ST_RC
    mask = given.opt_param_mask & ~IGNORED.get(service, 0)
    if service not in SERVICE_CODES or given.local_qpn not in (0, qpn):
        raise Refused(cmd.ST_BAD_PARAM)
    status = check(opcode, state, service, mask)
    if status:
        raise _not_legal(status, opcode, qpn, state, service, mask)
    if wrong_value(given, mask, nic.config):
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
            # the frame encapsulator reads both addresses as IPv4 (002 3.2)
            draft.sip, draft.dip = draft.sgid & 0xFFFF_FFFF, (draft.rgid or draft.dip) & 0xFFFF_FFFF
    draft.state = target
    draft.extension_valid = 1
    # write to host memory first: the cache, which the data path uses, loads the context from there
    if res.contexts.write_qp(qpn, draft.store()) != Status.OK:
        raise Refused(cmd.ST_BAD_NVMEM)
    if qp is None:
        qp = create_qp(nic, uar, res.contexts.key.qps.view(qpn))
    if opcode == cmd.RTS2SQD:
        qp.notify_drained = bool(mask & EN_SQD_ASYNC_NOTIFY)
    qp.on_modify(state, nic.now_ns)
    qp.refresh()


def _not_legal(status: int, opcode: int, qpn: int, state: int, service: int, mask: int) -> Refused:
    """Return why a transition is illegal: its source state or its attributes."""
    target = STATE_NAMES[TRANSITIONS[opcode].target]
    if status == cmd.ST_BAD_QP_STATE:
        return Refused(status, reasons.NO_TRANSITION, qpn=qpn, source=state_name(state), target=target)
    lacks, extra = wrong_attributes(opcode, service, mask)
    reason = reasons.MASK_LACKS if lacks else reasons.MASK_EXTRA
    wrong = [bit for bit in BITS if (lacks or extra) & bit]
    names = ", ".join(f"IBV_QP_{ATTRIBUTE_NAMES[bit]}" for bit in wrong)
    return Refused(status, reason, state=target, attributes=names or f"bits {extra:#x}", mask=mask | STATE)


def _wrong_value(given: QpContext, mask: int, config: NicConfig) -> Refused:
    """Return why :func:`wrong_value` refuses the first wrong value."""
    status = cmd.ST_BAD_PARAM
    if mask & PKEY_INDEX and given.pkey_index >= len(config.pkeys):
        return Refused(status, reasons.PKEY_INDEX, index=given.pkey_index, last=len(config.pkeys) - 1)
    if mask & PORT and given.port != 1:
        return Refused(status, reasons.PORT_NUMBER, port=given.port)
    if mask & ACCESS_FLAGS and given.access_flags & ~access.QP_RIGHTS:
        flags, extra = given.access_flags, given.access_flags & ~access.QP_RIGHTS
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
    wrong_source = gid_refusal(given.mgid_index, config)
    if wrong_source is not None:
        return Refused(status, wrong_source, index=given.mgid_index, own=config.gid_index)
    gid = peer_gid(given, config)
    address = address_from_gid(gid)
    problem = "no address of this port or of its IP version"
    if is_multicast(gid):
        problem = "a multicast group"
    elif len(address) != len(config.address):
        problem = "not of this port's IP version"
    elif not any(address):
        problem = "zero"
    return Refused(status, reasons.PEER_GID, gid=address_text(gid), problem=problem)


def gid_refusal(index: int, config: NicConfig) -> reasons.Reason | None:
    """Return why packets cannot be sent from a GID of the table; ``None`` if they can."""
    return source_refusal(config.gid_table[index], config.gid_type(index) == ROCE_V1, config.gid)


def wrong_value(given: QpContext, mask: int, config: NicConfig) -> str:
    """Return the first field of an attribute in ``mask`` with an unsupported value; empty if there is none."""
    if mask & PKEY_INDEX and given.pkey_index >= len(config.pkeys):
        return "pkey_index"
    if mask & PORT and given.port != 1:
        return "port"
    if mask & ACCESS_FLAGS and given.access_flags & ~access.QP_RIGHTS:
        return "access_flags"
    if mask & PATH_MTU and not 0 < MTU_BYTES.get(given.mtu, 0) <= config.mtu:
        return "mtu"
    if mask & DEST_QPN and not given.remote_qpn:
        return "remote_qpn"
    if mask & AV and (wrong := wrong_path(given, config)):
        return wrong
    return next(
        (each.field for each in ATTRIBUTES if mask & each.bit and getattr(given, each.field) > each.largest), ""
    )


def wrong_path(given: QpContext, config: NicConfig) -> str:
    """Return the field that makes a path invalid; a valid one leads from an address of this NIC to a single host of its
    IP version."""
    address, ipv4 = config.address, len(config.address) == 4
    if given.mgid_index >= len(config.gid_table) or not any(config.gid_table[given.mgid_index]):
        return "mgid_index"
    if gid_refusal(given.mgid_index, config) is not None:
        return "mgid_index"
    peer = address_from_gid(peer_gid(given, config))
    for field, gid in (("dip" if ipv4 and given.dip else "rgid", peer_gid(given, config)), ("rgid", given.rgid)):
        gid = gid if isinstance(gid, bytes) else gid.to_bytes(16, "big")
        if any(gid) and (len(address_from_gid(gid)) != len(address) or is_multicast(gid)):
            return field
    if not any(peer):
        return "rgid" if given.rgid or not ipv4 else "dip"
    own = not ipv4 or not given.sip or gid_from_address(given.sip.to_bytes(4, "big")) in config.gid_table
    return "" if own else "sip"


def _draft(nic: QpCommandHost, uar: Uar, qpn: int, given: QpContext) -> QpContext:
    """Return the context for a RST2INIT mailbox; check all objects that its creation fields name."""
    res = nic.resources
    block = given.usr_page
    if res.pools[cmd.RES_UAR_BLOCK].owners.get(block) is not uar:
        raise Refused(cmd.ST_BAD_INDEX)
    if block in res.blocks:
        raise Refused(cmd.ST_RESOURCE_BUSY)
    if given.servtype == ST_XRC_TGT:
        res.xrcds.own(uar, given.xrcd)
    else:
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
        # a UD queue pair has no path MTU attribute: use the port's MTU
        draft.mtu = MTU_CODES[nic.config.mtu]
    return draft


def create_qp(nic: QpCommandHost, uar: Uar, ctx: QpContext) -> DeviceQp:
    """Create a queue pair for its cached context, whose objects all exist."""
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
    if qp.xrc_target:
        res.xrcds.use(uar, ctx.xrcd, 1)
    res.occupy(ctx.usr_page, qp, QP_DOORS)
    res.qps[ctx.local_qpn] = qp
    nic.update_hold(qp)
    return qp


def _cq(nic: QpCommandHost, uar: Uar, number: int) -> CompletionQueue:
    """Return a CQ of the same driver that has not failed."""
    cq = nic.resources.cqs.get(number)
    if cq is None or cq.uar is not uar:
        raise Refused(cmd.ST_BAD_INDEX)
    if cq.failed:
        raise Refused(cmd.ST_BAD_RES_STATE)
    return cq


def check_rings(nic: AdmissionHost, uar: Uar, given: QpContext) -> None:
    """Check sizes, alignment and memory of the two rings; :class:`Refused` if one is wrong."""
    if wrong_size(given):
        raise Refused(cmd.ST_BAD_SIZE)
    if wrong_reach(nic, uar, given):
        raise Refused(cmd.ST_BAD_PARAM)


def wrong_size(given: QpContext) -> str:
    """Return the field that gives one of the two rings an invalid size or format; empty if there is none.

    For a ring that is too long or too short, return its length field.
    """
    shift = given.sq_entry_sz_log or SQE_SHIFT
    if not SQE_SHIFT <= shift <= MAX_SQ_ENTRY_SHIFT:
        return "sq_entry_sz_log"
    if given.sq_slab_bytes > MAX_INLINE or given.sq_slab_bytes & 15:
        return "sq_slab_bytes"
    if given.snd_wqe_length & (1 << shift) - 1 or not 2 <= send_entries(given) <= MAX_RING_ENTRIES:
        return "snd_wqe_length"
    length, log = given.rcv_wqe_length, given.rq_entry_sz_log
    if given.srqn & SRQ_VALID:
        return "rcv_wqe_length" if length else ""
    if not (MIN_RQ_ENTRY_SHIFT if length else 0) <= log <= MAX_RQ_ENTRY_SHIFT:
        return "rq_entry_sz_log"
    if not length:
        return ""
    return "" if not length & (1 << log) - 1 and 2 <= length >> log <= MAX_RING_ENTRIES else "rcv_wqe_length"


def wrong_reach(nic: AdmissionHost, uar: Uar, given: QpContext) -> str:
    """Return the key or address field of a ring whose memory cannot be used; its sizes are valid."""
    memory = RingMemory(given, nic.memory, uar.port)
    rings = memory.rings()
    length = given.snd_wqe_length + rings.sq_entries * given.sq_slab_bytes
    if not _in_reach(uar, memory.send, rings.sq_base, length):
        return "snd_wqe_base_lkey" if memory.send.key else "sq_base"
    length = given.rcv_wqe_length
    if length and not _in_reach(uar, memory.receive, rings.rq_base, length):
        return "rcv_wqe_base_lkey" if memory.receive.key else "rq_base"
    return ""


def _in_reach(uar: Uar, memory: KeyedMemory, base: int, length: int) -> bool:
    if base & 3:
        return False
    return memory.opens(base, length, False) if memory.key else reachable(uar, base, length, False)


def reset_qp(nic: QpCommandHost, qp: DeviceQp) -> None:
    """Destroy a queue pair: posted work is dropped without completions (IBA 10.3.1, Reset state)."""
    if nic.stopped is not None:
        nic.stopped(qp.number)
    res = nic.resources
    ctx = qp.ctx
    wqe = qp.responder.receive_wqe
    if qp.srq is not None and wqe is not None:
        qp.srq.give_back(wqe)
    if qp.number not in res.contexts.key.qps:
        qp.flow = None  # its context is lost, and with it the peer to send acknowledgements to
    old, ctx.state = ctx.state, RESET
    with nic.guard.around("release", f"QP {qp.number:#x}"):
        qp.on_modify(old, nic.now_ns)
    nic.unregister_qp(qp)
    del res.qps[qp.number]
    qp.release_users()
    if qp.xrc_target:
        res.xrcds.use(qp.uar, qp.xrcd, -1)
    elif qp.srq is not None:
        qp.srq.users -= 1
    res.vacate(qp)
    res.contexts.drop_qp(qp.number)
    qp.memory.free()


def query_qp(nic: QpCommandHost, qpn: int) -> bytes:
    """Flush the cache and return the QPC from host memory; in RESET, only the queue pair number is known."""
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
