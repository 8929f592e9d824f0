"""Read-only views of a NIC's state: plain trees of dicts, lists, numbers and strings, ready for JSON.

Register values are integers; ``fields`` splits a register by its table. Rings have ``base``, ``entries``, ``head`` and
``tail`` of the device. The caller holds the NIC's lock.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from rnic.context import inspect as contexts
from rnic.context.qpc import QPC
from rnic.device.cq import CompletionQueue
from rnic.device.eq import EventQueue
from rnic.device.hcr import Hcr
from rnic.device.queue_pair import DeviceQp
from rnic.device.srq import SharedReceiveQueue
from rnic.device.uar import Uar
from rnic.rings import queue_block as q
from rnic.spec.congestion_regs import CONGESTION_REGISTERS
from rnic.spec.layout import Layout
from rnic.spec.limits import NEVER
from rnic.spec.registers import GLOBAL_REGISTERS, Register, queue_registers
from rnic.spec.states import SERVICE_NAMES, state_name

if TYPE_CHECKING:
    from rnic.device.host import InspectHost

Tree = dict[str, Any]

_BLOCKS: dict[type, tuple[str, Layout]] = {
    DeviceQp: ("QP", q.QP_BLOCK),
    CompletionQueue: ("CQ", q.CQ_BLOCK),
    EventQueue: ("EQ", q.CQ_BLOCK),
    SharedReceiveQueue: ("SRQ", q.SRQ_BLOCK),
}


class _Watcher:
    """Placeholder for a window in loads of the global block."""

    hcr = Hcr()


def _row(register: Register, value: int) -> Tree:
    row: Tree = {
        "offset": register.offset,
        "name": register.name,
        "access": register.access,
        "reset": register.reset,
        "value": value,
        "doc": register.doc,
    }
    if register.fields:
        row["fields"] = {field.name: value >> field.lsb & field.mask for field in register.fields}
    return row


def registers(nic: InspectHost, uar: Uar | None = None) -> Tree:
    """Return every register: the global block (with ``uar``'s command register), and each queue block in use.

    ``{"profile": name, "parameters": {name: value}, "global": [row], "congestion": [row], "blocks": [block]}``: a
    block is ``{"block", "kind", "number", "registers": [row]}``, and rows are of ``offset``, ``name``, ``access``,
    ``reset``, ``value``, ``doc`` and, for registers of several values, ``fields``.
    """
    window: Any = _Watcher if uar is None else uar
    rows = [_row(register, nic.globals.read(window, register.offset)) for register in GLOBAL_REGISTERS]
    blocks = []
    for block, queue in sorted(nic.resources.blocks.items()):
        kind, layout = _BLOCKS[type(queue)]
        blocks.append(
            {
                "block": block,
                "kind": kind,
                "number": queue.regs.get(q.QUEUE_NUMBER),
                "registers": [_row(register, queue.regs.get(register.offset)) for register in queue_registers(layout)],
            }
        )
    config = nic.config
    return {
        "profile": config.profile,
        "parameters": dict(config.parameters),
        "global": rows,
        "congestion": _congestion(nic),
        "blocks": blocks,
    }


def _congestion(nic: InspectHost) -> list[Tree]:
    """Return the device-wide congestion registers; those of queue pairs are part of their views."""
    rows = []
    for register in CONGESTION_REGISTERS:
        if not register.per_qp:
            value = nic.congestion.read(register.offset)
            fields = {field.name: value >> field.lsb & field.mask for field in register.fields}
            row = {"offset": register.offset, "name": register.name, "access": "RW", "value": value}
            rows.append(row | {"doc": register.doc, "fields": fields})
    return rows


def queue_pair(nic: InspectHost, qpn: int) -> Tree | None:
    """Return one queue pair: state, rings, work outstanding, and its whole context; ``None`` if there is none.

    ``context`` is the cached context that the data path uses; ``fields`` compares host memory and cache.
    """
    qp = nic.qps.get(qpn)
    if qp is None:
        return None
    ctx = qp.ctx
    cached = qpn in nic.contexts.key.qps
    if cached:
        qp.query()
    names = [*(field.name for field in QPC.fields), "mtu_bytes"]
    regs = qp.regs
    return {
        "qpn": qpn,
        "state": state_name(ctx.state),
        "cached": cached,
        "block": regs.block,
        "scheduled": bool(qp.scheduled),
        "turn_bytes": qp.turn,
        "congestion": {
            "outstanding_limit": qp.requester.widest,
            "lowered": qp.requester.control_ns != NEVER,
            "rate": qp.rate,
            "masked": bool(qp.masked),
        },
        "send_ring": {
            "base": qp.send_ring.base,
            "entries": qp.sq_entries,
            "head": qp.requester.sq_head,
            "fetched": qp.requester.tail,
            "tail": regs.get(q.SQ_TAIL),
        },
        "receive_ring": None
        if qp.srq is not None
        else {
            "base": regs.get(q.RQ_BASE_HI) << 32 | regs.get(q.RQ_BASE_LO),
            "entries": regs.get(q.RQ_SIZE),
            "head": regs.get(q.RQ_HEAD),
            "tail": regs.get(q.RQ_TAIL),
        },
        "srq": None if qp.srq is None else qp.srq.number,
        "send_cq": qp.cqs[0].number,
        "receive_cq": qp.cqs[1].number,
        "context": {name: getattr(ctx, name) for name in names},
        "fields": contexts.qp(nic.contexts, qpn),
    }


def completion_queue(nic: InspectHost, cqn: int) -> Tree | None:
    """Return one CQ: its ring, arming, users, and its context in host memory and cache; ``None`` if there is none."""
    cq = nic.resources.cqs.get(cqn)
    if cq is None:
        return None
    return {
        "cqn": cqn,
        "block": cq.regs.block,
        "cached": cqn in nic.contexts.key.cqs,
        "eqn": cq.key.comp_eqn,
        "ring": {"base": cq.base, "entries": cq.size, "head": cq.regs.get(q.CQ_HEAD), "tail": cq.tail},
        "unread": cq.unread(),
        "armed": cq.regs.get(q.CQ_DOORBELL),
        "failed": cq.failed,
        "users": cq.users,
        "last_notified": cq.key.last_notified,
        "fields": contexts.cq(nic.contexts, cqn, cq.live()),
    }


def counters(nic: InspectHost) -> dict[str, int]:
    """Return all counters by name."""
    return nic.counters.snapshot()


def summary(nic: InspectHost) -> Tree:
    """Return the data for ``rnic top``: counters, objects, and each queue pair's state and ring.

    ``ssn`` counts sent messages, modulo 2^24; ``rtt_ns`` is the smoothed round-trip time to the peer, 0 until measured.
    """
    res = nic.resources
    return {
        "name": nic.config.name,
        "now_ns": nic.now_ns,
        "objects": {
            "contexts": len(res.uars),
            "qps": len(res.qps),
            "cqs": len(res.cqs),
            "srqs": len(res.srqs),
            "eqs": len(res.eqs),
            "keys": len(res.keys),
        },
        "qps": [
            {
                "qpn": qpn,
                "state": state_name(qp.ctx.state),
                "service": SERVICE_NAMES.get(qp.ctx.servtype, ""),
                "program": qp.regs.uar.program,
                "peer": "" if qp.flow is None else str(ip_address(qp.flow.dst)),
                "remote_qpn": qp.ctx.remote_qpn,
                "last_acked_psn": qp.ctx.last_acked_psn,
                "next_send_psn": qp.ctx.next_send_psn,
                "expected_psn": qp.ctx.expected_psn,
                "sent_bytes": qp.sent_bytes,
                "came_bytes": qp.came_bytes,
                "sq_head": qp.requester.sq_head,
                "sq_tail": qp.regs.get(q.SQ_TAIL),
                "sq_entries": qp.sq_entries,
                "ssn": qp.requester.ssn,
                "rtt_ns": 0 if qp.flow is None else qp.requester.srtt,
            }
            for qpn, qp in sorted(res.qps.items())
        ],
        "cqs": [
            {
                "cqn": cqn,
                "program": cq.uar.program,
                "users": cq.users,
                "unread": cq.unread(),
                "entries": cq.size,
                "tail": cq.tail,
                "failed": cq.failed,
            }
            for cqn, cq in sorted(res.cqs.items())
        ],
        "counters": counters(nic),
    }


def connections(nic: InspectHost) -> Tree:
    """Return the state of QP1's agents: ``services`` with a listener, ``connections``, programs' ``agents``, and the
    joined ``groups``.

    A connection is ``{"id", "remote_id", "state", "peer", "service", "qpn", "remote_qpn"}``. The peer is a GID, groups
    are addresses, both in hexadecimal.
    """
    agent = nic.gsi.agent
    seen: Tree = {"services": [], "connections": []} if agent is None else agent.view()
    programs = {"agents": []} if nic.gsi.programs is None else nic.gsi.programs.view()
    return seen | programs | {"groups": [group.hex() for group in nic.resources.groups.members]}


def look(nic: InspectHost, what: str) -> Tree | None:
    """Return the answer to an INFO message: ``regs``, ``counters``, ``top``, ``cm``, ``qp N`` or ``cq N``; else
    ``None``."""
    name, _, number = what.partition(" ")
    if number:
        if not number.isascii() or not number.isdigit() or name not in ("qp", "cq"):
            return None
        return (queue_pair if name == "qp" else completion_queue)(nic, int(number))
    if name == "regs":
        return registers(nic)
    if name == "counters":
        return dict(counters(nic))
    if name == "cm":
        return connections(nic)
    return summary(nic) if name == "top" else None
