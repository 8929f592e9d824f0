"""The command unit: mailbox commands by number, each checked before it changes anything.

Layouts: MPT entry (:mod:`rnic.mem`), CQC, EQC, SRQC and QPC (:mod:`rnic.context`), and DEV_LIM, ADAPTER and MGM
(:mod:`rnic.device.mailboxes`). Commands on queue pairs are in :mod:`rnic.device.qp_commands`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from rnic.context.cqc import CQC, CQC_BYTES, SRQC, SRQC_BYTES
from rnic.context.ctxmdata import CQ
from rnic.context.ctxmgt import Status
from rnic.context.eqc import EQC, EQC_BYTES
from rnic.context.modify import TRANSITIONS
from rnic.context.qpc import QPC_BYTES
from rnic.device import memory_commands as memory
from rnic.device import system_commands as system
from rnic.device.congestion import read_cfg, write_cfg
from rnic.device.cq import CompletionQueue
from rnic.device.entry_ring import QUEUE_ERROR, QUEUE_VALID, reachable
from rnic.device.eq import EventQueue
from rnic.device.mailboxes import (
    ADAPTER,
    DEV_LIM,
    DEVICE_ID,
    MAX_GROUP_QPS,
    MGM,
    SRQ_ARM,
    VENDOR_ID,
)
from rnic.device.multicast import is_multicast
from rnic.device.non_rdma import read_non_rdma, write_non_rdma
from rnic.device.qp_commands import may_use, modify_qp, query_qp, reset_qp
from rnic.device.refusal import Refused
from rnic.device.resources import LOG_MAX_PDS, LOG_MAX_SRQS, KeyRecord
from rnic.device.rings import ring_status
from rnic.device.srq import SharedReceiveQueue
from rnic.device.uar import CQ_DOORS, SRQ_DOORS, Uar
from rnic.device.xrc import close_xrcd, open_xrcd
from rnic.mem.keys import key_index
from rnic.mem.mpt import MPT_BYTES
from rnic.mem.table import REGION
from rnic.rings.rqe import srq_bytes
from rnic.spec import access, limits, reasons
from rnic.spec import commands as cmd
from rnic.spec.appearance import RATES, ROCE_V1
from rnic.spec.errors import VerbsError
from rnic.spec.events import EVENT_NAMES
from rnic.spec.gids import address_from_gid
from rnic.spec.psn import PSN_WINDOW
from rnic.spec.states import ST_UD

if TYPE_CHECKING:
    from rnic.device.host import CommandHost

LOG_MAX_SRQ = 15
MIN_STRIDE_LOG = 4
MAX_STRIDE_LOG = 9
"""log2 of the largest receive entry in bytes: 1 to 32 scatter entries of 16 bytes."""
FIRMWARE_VERSION = 0x0000_0001_0000

_STATUS_OF_ERRNO = {
    errno.EBUSY: cmd.ST_RESOURCE_BUSY,
    errno.ENOMEM: cmd.ST_EXCEED_LIM,
    errno.EACCES: cmd.ST_BAD_PARAM,
    errno.EINVAL: cmd.ST_BAD_PARAM,
}

Answer = tuple[int, bytes]
"""A command's out_param and outbox."""
_DONE: Answer = (0, b"")


class CommandResult(NamedTuple):
    """``status`` is a ``ST_*`` number of :mod:`rnic.spec.commands`.

    Unless it is ``ST_OK``, ``out_param`` is 0 and ``outbox`` is empty, and ``text`` may have the reason; ``kind`` is
    the number of the :class:`~rnic.spec.reasons.Reason`.
    """

    status: int
    out_param: int = 0
    outbox: bytes = b""
    kind: int = 0
    text: str = ""


def _refuse(status: int) -> NoReturn:
    raise Refused(status)


class CommandUnit:
    """Runs commands on a device. A command that fails changes nothing."""

    __slots__ = ("_nic", "_res")

    def __init__(self, nic: CommandHost) -> None:
        self._nic = nic
        self._res = nic.resources

    def run(self, uar: Uar, opcode: int, in_modifier: int, op_modifier: int, inbox: bytes) -> CommandResult:
        """Run one command for the driver context ``uar``."""
        if uar.closed:
            return CommandResult(cmd.ST_BAD_SYS_STATE)
        if uar.dead:
            return CommandResult(cmd.ST_INTERNAL_ERR)
        if opcode not in COMMANDS:
            return CommandResult(cmd.ST_BAD_OP)
        if not self._nic.globals.ready and opcode not in system.BEFORE_INIT:
            return CommandResult(cmd.ST_BAD_SYS_STATE)
        try:
            if opcode in TRANSITIONS:
                modify_qp(self._nic, uar, opcode, in_modifier, inbox)
                return CommandResult(cmd.ST_OK)
            function = FUNCTIONS.get(opcode)
            if function is not None:
                return CommandResult(cmd.ST_OK, *function(self._nic, uar, in_modifier, op_modifier, inbox))
            return CommandResult(cmd.ST_OK, *_HANDLERS[opcode](self, uar, in_modifier, op_modifier, inbox))
        except Refused as refused:
            return CommandResult(refused.status, kind=refused.kind, text=refused.text)
        except VerbsError as error:
            status = _STATUS_OF_ERRNO.get(error.errno or 0, cmd.ST_INTERNAL_ERR)
            return CommandResult(status, text=str(error.strerror))

    # ----------------------------------------------------------------------------------- queries

    def _nop(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        return _DONE

    def _query_dev_lim(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        config = self._nic.config
        values = {
            "log_max_qps": config.log_max_qps,
            "log_max_cqs": config.log_max_qps,
            "log_max_srqs": LOG_MAX_SRQS,
            "log_max_eqs": limits.MAX_EQS.bit_length() - 1,
            "log_max_pds": LOG_MAX_PDS,
            "log_max_qp_sz": limits.MAX_QP_WR.bit_length() - 1,
            "log_max_cq_sz": limits.LOG_MAX_CQ,
            "log_max_srq_sz": LOG_MAX_SRQ,
            # the longest message whose packets fit in half the PSN space with the smallest path MTU
            "log_max_msg": (PSN_WINDOW * min(limits.MTU_CODES)).bit_length() - 1,
            "log_page_sz": 12,
            "max_mtu": limits.MTU_CODES[limits.MAX_PATH_MTU],
            "active_mtu": limits.MTU_CODES[config.mtu],
            "num_ports": 1,
            "port_state": self._nic.globals.port_state,
            "pkey_count": len(config.pkeys),
            "gid_count": len(config.gid_table),
            "max_mpts": config.max_mrs,
            "max_sge": limits.MAX_SGE,
            "max_inline": limits.MAX_INLINE,
            "max_rd_atomic": limits.MAX_RD_ATOMIC,
            "max_slab_bytes": limits.MAX_INLINE,
            "uar_blocks": self._res.uar_blocks,
            "max_group_qps": MAX_GROUP_QPS,
            "udp_port": config.port,
            "qpc_sz_log": QPC_BYTES.bit_length() - 1,
            "cqc_sz_log": CQC_BYTES.bit_length() - 1,
            "eqc_sz_log": EQC_BYTES.bit_length() - 1,
            "srqc_sz_log": SRQC_BYTES.bit_length() - 1,
            "mpt_sz_log": MPT_BYTES.bit_length() - 1,
            "active_width": RATES[config.appearance.rate].width,
            "active_speed": RATES[config.appearance.rate].speed,
            "gids_of_v1": sum((config.gid_type(at) == ROCE_V1) << at for at in range(len(config.gid_table))),
            "own_gid": config.gid_index,
            "access_flags": access.SUPPORTED,
            "guid": config.guid,
        }
        values |= {f"pkey{index}": pkey for index, pkey in enumerate(config.pkeys)}
        values |= {f"gid{index}": int.from_bytes(gid, "big") for index, gid in enumerate(config.gid_table)}
        return 0, DEV_LIM.pack(values)

    def _query_adapter(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        values = {
            "vendor_id": VENDOR_ID,
            "device_id": DEVICE_ID,
            "fw_ver": FIRMWARE_VERSION,
            "guid": self._nic.config.guid,
        }
        return 0, ADAPTER.pack(values)

    def _query_qp(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        if not may_use(self._nic, uar, in_modifier):
            self._own(uar, cmd.RES_QP, in_modifier)
        return 0, query_qp(self._nic, in_modifier)

    # ----------------------------------------------------------------------------------- numbers

    def _own(self, uar: Uar, kind: int, number: int) -> None:
        self._res.own(uar, kind, number)

    def _stored(self, status: Status) -> None:
        """Refuse the command if the context could not be written to host memory."""
        if status != Status.OK:
            _refuse(cmd.ST_BAD_NVMEM)

    def _free_block(self, uar: Uar, block: int) -> None:
        """Refuse a block that another context owns or that has a queue."""
        self._own(uar, cmd.RES_UAR_BLOCK, block)
        if block in self._res.blocks:
            _refuse(cmd.ST_RESOURCE_BUSY)

    def _alloc_res(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        if in_modifier == cmd.RES_MPT:
            key = self._res.memory.alloc_key(REGION)
            self._res.keys[key_index(key)] = KeyRecord(uar, key)
            return key, b""
        pool = self._res.pools.get(in_modifier)
        if pool is None:
            _refuse(cmd.ST_BAD_PARAM)
        number = pool.take(uar)
        if number is None:
            what, count = cmd.RESOURCE_NAMES[in_modifier], len(pool.owners)
            raise Refused(cmd.ST_EXCEED_LIM, reasons.EXHAUSTED, count=count, what=what)
        return number, b""

    def _free_res(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        res = self._res
        number = in_modifier
        if op_modifier == cmd.RES_MPT:
            if memory.own_key(self._nic, uar, number).entry is not None:
                _refuse(cmd.ST_RESOURCE_BUSY)
            res.memory.free_key(number)
            del res.keys[key_index(number)]
            return _DONE
        pool = res.pools.get(op_modifier)
        if pool is None:
            _refuse(cmd.ST_BAD_PARAM)
        self._own(uar, op_modifier, number)
        in_use: dict[int, bool] = {
            cmd.RES_UAR_BLOCK: number in res.blocks,
            cmd.RES_PD: number in res.pd_users,
            cmd.RES_QP: number in res.qps or res.groups.attached(number),
            cmd.RES_CQ: number in res.cqs,
            cmd.RES_SRQ: number in res.srqs,
            cmd.RES_EQ: number in res.eqs,
            cmd.RES_MTT: number in res.segments and res.segments[number].users > 0,
        }
        if in_use[op_modifier]:
            users = f"{res.pd_users[number]} objects" if op_modifier == cmd.RES_PD else "what was made with it"
            what = cmd.RESOURCE_NAMES[op_modifier].removesuffix("s")
            raise Refused(cmd.ST_RESOURCE_BUSY, reasons.IN_USE, what=what, number=number, users=users)
        if op_modifier == cmd.RES_MTT:
            res.segments.pop(number, None)
        pool.give_back(number)
        return _DONE

    # ------------------------------------------------------------------------------------ events

    def _sw2hw_eq(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        _sized(inbox, EQC_BYTES)
        self._own(uar, cmd.RES_EQ, in_modifier)
        eqc = EQC.unpack(inbox)
        block, vector = eqc["usrpage"], eqc["msix_vector"]
        self._free_block(uar, block)
        self._ring(uar, eqc)
        if vector >= limits.MAX_EQS:
            _refuse(cmd.ST_BAD_PARAM)
        if in_modifier in self._res.eqs:
            _refuse(cmd.ST_BAD_RES_STATE)
        contexts = self._res.contexts
        self._stored(contexts.write_eq(in_modifier, inbox))
        key, cached = contexts.key.eqs.view(in_modifier), contexts.key.eqs
        memory, interrupts = self._res.memory, self._res.interrupts
        nic = self._nic
        eq = EventQueue(in_modifier, uar, key, memory, cached, interrupts, nic.counters, nic.eq_broken)
        self._res.eqs[in_modifier] = eq
        self._res.occupy(block, eq, CQ_DOORS)
        return _DONE

    def _hw2sw_eq(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        self._own(uar, cmd.RES_EQ, in_modifier)
        eq = self._res.eqs.get(in_modifier)
        if eq is None:
            _refuse(cmd.ST_BAD_RES_STATE)
        if any(cq.key.comp_eqn == eq.number for cq in self._res.cqs.values()):
            _refuse(cmd.ST_RESOURCE_BUSY)
        self._drop_eq(eq)
        return _DONE

    def _drop_eq(self, eq: EventQueue) -> None:
        # remove it from the table first: an EQ in the table that loses its context is disabled
        del self._res.eqs[eq.number]
        self._res.contexts.invalidate_eq(eq.number)
        self._res.vacate(eq)
        if eq.key.pending:
            self._res.interrupts.remove(eq)
        mapped = eq.uar.event_queues
        for event_type in [event_type for event_type, number in mapped.items() if number == eq.number]:
            del mapped[event_type]

    def _map_eq(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        _sized(inbox, 8)
        number = in_modifier & 0x7FFF_FFFF
        self._own(uar, cmd.RES_EQ, number)
        if number not in self._res.eqs:
            _refuse(cmd.ST_BAD_RES_STATE)
        mask = int.from_bytes(inbox, "big")
        types = [event_type for event_type in EVENT_NAMES if mask >> event_type & 1]
        if mask != sum(1 << event_type for event_type in types):
            _refuse(cmd.ST_BAD_PARAM)
        self._stored(self._res.contexts.event_function(number, mask, bool(in_modifier >> 31)))
        for event_type in types:
            if in_modifier >> 31:
                if uar.event_queues.get(event_type) == number:
                    del uar.event_queues[event_type]
            else:
                uar.event_queues[event_type] = number
        return _DONE

    # ------------------------------------------------------------------------- completion queues

    def _sw2hw_cq(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        _sized(inbox, CQC_BYTES)
        self._own(uar, cmd.RES_CQ, in_modifier)
        cqc = CQC.unpack(inbox)
        block = cqc["usrpage"]
        self._free_block(uar, block)
        self._own(uar, cmd.RES_EQ, cqc["comp_eqn"])
        if cqc["comp_eqn"] not in self._res.eqs:
            _refuse(cmd.ST_BAD_RES_STATE)
        self._ring(uar, cqc)
        if in_modifier in self._res.cqs:
            _refuse(cmd.ST_BAD_RES_STATE)
        contexts = self._res.contexts
        self._stored(contexts.write_cq(in_modifier, inbox))
        key = contexts.key.cqs.view(in_modifier)
        nic = self._nic
        cq = CompletionQueue(
            in_modifier, uar, key, self._res.memory, self._res.eqs, nic.cq_overflowed, lambda: nic.now_ns
        )
        self._res.cqs[in_modifier] = cq
        self._res.occupy(block, cq, CQ_DOORS)
        return _DONE

    def _own_cq(self, uar: Uar, number: int) -> CompletionQueue:
        self._own(uar, cmd.RES_CQ, number)
        cq = self._res.cqs.get(number)
        if cq is None:
            _refuse(cmd.ST_BAD_RES_STATE)
        return cq

    def _hw2sw_cq(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        cq = self._own_cq(uar, in_modifier)
        if cq.users:
            users = f"{cq.users} work queues"
            raise Refused(cmd.ST_RESOURCE_BUSY, reasons.IN_USE, what="CQ", number=cq.number, users=users)
        self._drop_cq(cq)
        return _DONE

    def _drop_cq(self, cq: CompletionQueue) -> None:
        # remove it from the table first: a CQ in the table that loses its context gets a CQ error
        del self._res.cqs[cq.number]
        self._res.contexts.invalidate_cq(cq.number)
        self._res.vacate(cq)

    def _resize_cq(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        _sized(inbox, CQC_BYTES)
        cq = self._own_cq(uar, in_modifier)
        if cq.failed:
            _refuse(cmd.ST_BAD_RES_STATE)
        if self._nic.load_contexts(cq) != Status.OK:
            _refuse(cmd.ST_BAD_NVMEM)
        ring = {"start": CQC.get(inbox, "start"), "logsize": CQC.get(inbox, "logsize")}
        self._ring(uar, cq.key.values() | ring)
        entries = cq.unread_entries()
        if entries is None:
            _refuse(cmd.ST_BAD_PARAM)
        if len(entries) >= 1 << ring["logsize"]:
            what = f"a CQ smaller than the {len(entries)} entries that wait in it"
            raise Refused(cmd.ST_BAD_SIZE, reasons.BAD_VALUE, what=what)
        old = {"start": cq.key.start, "logsize": cq.key.logsize}
        self._stored(self._modify_cq(cq, ring))
        if not cq.resize(entries):
            self._modify_cq(cq, old)
            _refuse(cmd.ST_BAD_PARAM)
        return _DONE

    def _modify_cq(self, cq: CompletionQueue, ring: dict[str, int]) -> Status:
        """Change the ring in a CQ's context; other fields are unchanged."""
        return self._res.contexts.store(CQ, cq.number, CQC.pack(CQC.unpack(cq.image()) | ring))

    def _ring(self, uar: Uar, values: dict[str, int]) -> None:
        """Refuse a CQC or EQC whose ring has a wrong size or inaccessible memory."""
        status = ring_status(self._res.memory, uar, values)
        if status:
            _refuse(status)
        if values["lkey"]:
            self._own(uar, cmd.RES_PD, values["pd"])

    # ---------------------------------------------------------------------- shared receive queues

    def _sw2hw_srq(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        _sized(inbox, SRQC_BYTES)
        self._own(uar, cmd.RES_SRQ, in_modifier)
        srqc = SRQC.unpack(inbox)
        block, start, pd, stride = srqc["usrpage"], srqc["start"], srqc["pd"], srqc["logstride"]
        self._free_block(uar, block)
        self._own(uar, cmd.RES_PD, pd)
        if not MIN_STRIDE_LOG <= stride <= MAX_STRIDE_LOG:
            _refuse(cmd.ST_BAD_SIZE)
        size = _entries(uar, start, srqc["logsize"], LOG_MAX_SRQ, srq_bytes(1, 1 << stride), False)
        if srqc["limit"] >= size:
            _refuse(cmd.ST_BAD_PARAM)
        xrcd, cqn = srqc["xrcd"], srqc["cqn"]
        if xrcd:
            self._res.xrcds.own(uar, xrcd)
            self._own_cq(uar, cqn)
        if in_modifier in self._res.srqs:
            _refuse(cmd.ST_BAD_RES_STATE)
        try:
            srq = SharedReceiveQueue(in_modifier, uar, block, start, size, 1 << stride, pd, self._nic, xrcd, cqn)
        except MemoryError:
            _refuse(cmd.ST_EXCEED_LIM)
        if xrcd:
            self._res.xrcds.use(uar, xrcd, 1)
            self._res.cqs[cqn].users += 1
        srq.arm(srqc["limit"])
        self._res.srqs[in_modifier] = srq
        self._res.use_pd(pd)
        self._res.occupy(block, srq, SRQ_DOORS)
        return _DONE

    def _own_srq(self, uar: Uar, number: int) -> SharedReceiveQueue:
        self._own(uar, cmd.RES_SRQ, number)
        srq = self._res.srqs.get(number)
        if srq is None:
            _refuse(cmd.ST_BAD_RES_STATE)
        return srq

    def _hw2sw_srq(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        srq = self._own_srq(uar, in_modifier)
        if srq.users:
            users = f"{srq.users} queue pairs"
            raise Refused(cmd.ST_RESOURCE_BUSY, reasons.IN_USE, what="SRQ", number=srq.number, users=users)
        self._drop_srq(srq)
        return _DONE

    def _drop_srq(self, srq: SharedReceiveQueue) -> None:
        del self._res.srqs[srq.number]
        if srq.xrcd:
            for qp in self._res.qps.values():
                qp.leave_srq(srq)
            self._res.xrcds.use(srq.uar, srq.xrcd, -1)
            self._res.cqs[srq.cqn].users -= 1
        self._res.vacate(srq)
        self._res.leave_pd(srq.pd)
        srq.free()

    def _query_srq(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        srq = self._own_srq(uar, in_modifier)
        values = {
            "state": QUEUE_ERROR if srq.failed else QUEUE_VALID,
            "logsize": srq.ring.entries.bit_length() - 1,
            "srqn": srq.number,
            "start": srq.base,
            "logstride": srq.ring.stride.bit_length() - 1,
            "usrpage": srq.regs.block,
            "pd": srq.pd,
            "limit": srq.limit,
            "wqe_counter": srq.taken & 0xFFFF,
            "xrcd": srq.xrcd,
            "cqn": srq.cqn,
        }
        return 0, SRQC.pack(values)

    def _arm_srq(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        _sized(inbox, SRQ_ARM.size)
        srq = self._own_srq(uar, in_modifier)
        limit = SRQ_ARM.get(inbox, "limit")
        if limit >= srq.ring.entries:
            _refuse(cmd.ST_BAD_PARAM)
        srq.arm(limit)
        return _DONE

    # --------------------------------------------------------------------------- multicast groups

    def _write_mgm(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        _sized(inbox, MGM.size)
        gid = _group(inbox)
        count = MGM.get(inbox, "count")
        if count > MAX_GROUP_QPS:
            _refuse(cmd.ST_EXCEED_LIM)
        qpns = tuple(MGM.get(inbox, f"qpn{index}") for index in range(count))
        for qpn in qpns:
            self._own(uar, cmd.RES_QP, qpn)
            qp = self._res.qps.get(qpn)
            if qp is not None and qp.ctx.servtype != ST_UD:
                _refuse(cmd.ST_BAD_PARAM)
        local = len(self._nic.config.address)
        if len(set(qpns)) != count or len(address_from_gid(gid)) != local:
            _refuse(cmd.ST_BAD_PARAM)
        self._res.groups.set(gid, uar, qpns)
        return _DONE

    def _read_mgm(self, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
        if len(inbox) not in (16, MGM.size):
            _refuse(cmd.ST_BAD_SIZE)
        gid = _group(inbox)
        qpns = self._res.groups.get(gid, uar)
        values = {"mgid": int.from_bytes(gid, "big"), "count": len(qpns)}
        values |= {f"qpn{index}": qpn for index, qpn in enumerate(qpns)}
        return 0, MGM.pack(values)

    # ----------------------------------------------------------------------------------- cleanup

    def release(self, uar: Uar) -> None:
        """Destroy everything that a driver context owns. If one object cannot be destroyed, the others still are."""
        res = self._res
        around = self._nic.guard.around
        with around("release"):
            res.groups.forget(uar)
        for qp in [qp for qp in res.qps.values() if qp.uar is uar]:
            with around("release", f"QP {qp.ctx.local_qpn:#x}"):
                reset_qp(self._nic, qp)
        for srq in [srq for srq in res.srqs.values() if srq.uar is uar]:
            with around("release", f"SRQ {srq.number:#x}"):
                self._drop_srq(srq)
        for cq in [cq for cq in res.cqs.values() if cq.uar is uar]:
            with around("release", f"CQ {cq.number:#x}"):
                self._drop_cq(cq)
        for eq in [eq for eq in res.eqs.values() if eq.uar is uar]:
            with around("release", f"EQ {eq.number}"):
                self._drop_eq(eq)
        records = [record for record in res.keys.values() if record.owner is uar]
        # windows first: a region with bound windows is busy
        for record in sorted(records, key=lambda record: record.entry is not None and record.entry.kind is REGION):
            with around("release", f"key {record.key:#x}"):
                memory.drop_key(self._nic, record.key if record.entry is None else record.entry.key)
        for number in [n for n, owner in res.pools[cmd.RES_MTT].owners.items() if owner is uar]:
            res.segments.pop(number, None)
        with around("release"):
            res.icm.forget(uar)
            res.xrcds.forget(uar)
        uar.event_queues.clear()
        for pool in res.pools.values():
            for number in [number for number, owner in pool.owners.items() if owner is uar]:
                pool.give_back(number)


def _sized(inbox: bytes, size: int) -> None:
    if len(inbox) != size:
        _refuse(cmd.ST_BAD_SIZE)


def _entries(uar: Uar, start: int, logsize: int, log_max: int, entry_bytes: int, writable: bool) -> int:
    """Check a ring's size and memory; return its number of entries."""
    if not 1 <= logsize <= log_max:
        _refuse(cmd.ST_BAD_SIZE)
    if start & 3 or not reachable(uar, start, entry_bytes << logsize, writable):
        _refuse(cmd.ST_BAD_PARAM)
    return 1 << logsize


def _group(inbox: bytes) -> bytes:
    gid = bytes(inbox[:16])
    if not is_multicast(gid):
        _refuse(cmd.ST_BAD_PARAM)
    return gid


_HANDLERS: dict[int, Callable[[CommandUnit, Uar, int, int, bytes], Answer]] = {
    cmd.NOP: CommandUnit._nop,
    cmd.QUERY_DEV_LIM: CommandUnit._query_dev_lim,
    cmd.QUERY_ADAPTER: CommandUnit._query_adapter,
    cmd.QUERY_QP: CommandUnit._query_qp,
    cmd.ALLOC_RES: CommandUnit._alloc_res,
    cmd.FREE_RES: CommandUnit._free_res,
    cmd.SW2HW_EQ: CommandUnit._sw2hw_eq,
    cmd.HW2SW_EQ: CommandUnit._hw2sw_eq,
    cmd.MAP_EQ: CommandUnit._map_eq,
    cmd.SW2HW_CQ: CommandUnit._sw2hw_cq,
    cmd.HW2SW_CQ: CommandUnit._hw2sw_cq,
    cmd.RESIZE_CQ: CommandUnit._resize_cq,
    cmd.SW2HW_SRQ: CommandUnit._sw2hw_srq,
    cmd.HW2SW_SRQ: CommandUnit._hw2sw_srq,
    cmd.QUERY_SRQ: CommandUnit._query_srq,
    cmd.ARM_SRQ: CommandUnit._arm_srq,
    cmd.WRITE_MGM: CommandUnit._write_mgm,
    cmd.READ_MGM: CommandUnit._read_mgm,
}
"""Handlers of commands on queues and groups, queries and numbers. Queue pair transitions are in
:data:`rnic.context.modify.TRANSITIONS`, commands on memory and on the device in :data:`FUNCTIONS`."""

FUNCTIONS: dict[int, Callable[[CommandHost, Uar, int, int, bytes], Answer]] = {
    cmd.SW2HW_MPT: memory.sw2hw_mpt,
    cmd.HW2SW_MPT: memory.hw2sw_mpt,
    cmd.QUERY_MPT: memory.query_mpt,
    cmd.WRITE_MTT: memory.write_mtt,
    cmd.ALLOC_MW: memory.alloc_mw,
    cmd.DEALLOC_MW: memory.dealloc_mw,
    cmd.INIT_HCA: system.init_hca,
    cmd.CLOSE_HCA: system.close_hca,
    cmd.INIT_PORT: system.init_port,
    cmd.CLOSE_PORT: system.close_port,
    cmd.MAP_ICM: system.map_icm,
    cmd.UNMAP_ICM: system.unmap_icm,
    cmd.MAD_IFC: system.mad_ifc,
    cmd.CONF_SPECIAL_QP: system.conf_special_qp,
    cmd.MGID_HASH: system.mgid_hash,
    cmd.SET_WEIGHT: system.set_weight,
    cmd.READ_NON_RDMA: read_non_rdma,
    cmd.WRITE_NON_RDMA: write_non_rdma,
    cmd.READ_CFG: read_cfg,
    cmd.WRITE_CFG: write_cfg,
    cmd.OPEN_XRCD: open_xrcd,
    cmd.CLOSE_XRCD: close_xrcd,
}
COMMANDS = frozenset({*_HANDLERS, *FUNCTIONS, *TRANSITIONS})
"""All opcodes that the device supports."""
